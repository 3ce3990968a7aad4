//! File format of trained drafts: bases or a correction, bound to the draft and the target model by
//! their digests.
//!
//! Little-endian: magic, version (u16), kind (u16), digests of draft and model (32 bytes each),
//! samples (u64) and number of matrices (u32). Each matrix has layer, rows and columns (u32 each)
//! and its numbers (f32), row by row. The SHA-256 digest of everything before ends the file.

use std::fmt;
use std::io::{Read, Write};
use std::path::Path;

use crate::CodecError;
use crate::folder::Folder;
use crate::htz::{Digest, HtzError};
use crate::limits::{MAX_LAYERS, MAX_TRAINED_DRAFT_BYTES, MAX_WIDTH};
use crate::open::{self, OpenError};
use crate::wire::{self, Cursor};

/// Magic bytes of the file.
pub const MAGIC: [u8; 8] = *b"HTCLEARN";

pub(crate) const VERSION: u16 = 1;

const DIGEST_BYTES: usize = 32;

/// Kind of the trained parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// Bases of Q, K and V.
    Bases,
    /// A correction of the head's input, `A` and `B`.
    Correction,
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParameterKind::Bases => "bases",
            ParameterKind::Correction => "a correction",
        })
    }
}

/// A trained matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedMatrix {
    /// Layer of a basis; for a correction 0 for `A` and 1 for `B`.
    pub layer: u32,
    /// Number of rows.
    pub rows: u32,
    /// Number of columns.
    pub cols: u32,
    /// `[rows, cols]`.
    pub numbers: Vec<f32>,
}

/// Trained parameters of a draft.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedDraft {
    /// Kind of the parameters.
    pub kind: ParameterKind,
    /// [`ModelFile::digest`](crate::source::ModelFile::digest) of the draft.
    pub draft: Digest,
    /// Digest of the target model.
    pub model: Digest,
    /// Number of training samples.
    pub samples: u64,
    /// Trained matrices.
    pub matrices: Vec<TrainedMatrix>,
}

impl TrainedDraft {
    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        wire::put_u16(&mut out, VERSION);
        let kind: u16 = match self.kind {
            ParameterKind::Bases => 1,
            ParameterKind::Correction => 2,
        };
        wire::put_u16(&mut out, kind);
        out.extend(self.draft.0);
        out.extend(self.model.0);
        wire::put_u64(&mut out, self.samples);
        wire::put_u32(&mut out, self.matrices.len() as u32);
        for part in &self.matrices {
            for number in [part.layer, part.rows, part.cols] {
                wire::put_u32(&mut out, number);
            }
            for &number in &part.numbers {
                wire::put_f32(&mut out, number);
            }
        }
        let digest = Digest::of_bytes(&out);
        out.extend(digest.0);
        out
    }

    /// Parses the bytes of a file.
    pub fn parse(bytes: &[u8]) -> Result<TrainedDraft, HtzError> {
        let damaged = |damage: &str| HtzError::DamagedTrainedDraft {
            damage: damage.to_owned(),
        };
        let cut = |error: CodecError| damaged(&error.to_string());
        if !bytes.starts_with(&MAGIC) {
            return Err(HtzError::NotTrainedDraft);
        }
        let mut cursor = Cursor::new(&bytes[MAGIC.len()..]);
        let found = cursor.u16().map_err(cut)?;
        if found != VERSION {
            return Err(HtzError::TrainedDraftVersion { found });
        }
        let Some((whole, digest)) =
            bytes.split_at_checked(bytes.len().saturating_sub(DIGEST_BYTES))
        else {
            return Err(damaged("it ends too early"));
        };
        if Digest::of_bytes(whole).0 != *digest {
            return Err(damaged("its digest is another"));
        }
        let mut cursor = Cursor::new(&whole[MAGIC.len() + size_of::<u16>()..]);
        let kind = match cursor.u16().map_err(cut)? {
            1 => ParameterKind::Bases,
            2 => ParameterKind::Correction,
            other => return Err(damaged(&format!("it is of kind {other}"))),
        };
        let draft = Digest(cursor.array().map_err(cut)?);
        let model = Digest(cursor.array().map_err(cut)?);
        let samples = cursor.u64().map_err(cut)?;
        let count = cursor.u32().map_err(cut)?;
        if count as usize > MAX_LAYERS.max(2) {
            return Err(damaged("it has more matrices than a model has layers"));
        }
        let mut parts = Vec::new();
        for _ in 0..count {
            let [layer, rows, cols] = [cursor.u32(), cursor.u32(), cursor.u32()];
            let (layer, rows, cols) = (layer.map_err(cut)?, rows.map_err(cut)?, cols.map_err(cut)?);
            if rows as usize > MAX_WIDTH || cols as usize > MAX_WIDTH {
                return Err(damaged("a matrix is wider than any model"));
            }
            let numbers = u64::from(rows) * u64::from(cols) * 4;
            let (numbers, _) = cursor.bytes(numbers).map_err(cut)?.as_chunks::<4>();
            let numbers: Vec<f32> = numbers.iter().map(|x| f32::from_le_bytes(*x)).collect();
            if !numbers.iter().all(|x| x.is_finite()) {
                return Err(damaged("a number is not finite"));
            }
            parts.push(TrainedMatrix {
                layer,
                rows,
                cols,
                numbers,
            });
        }
        if cursor.remaining() > 0 {
            return Err(damaged("something follows its last matrix"));
        }
        Ok(TrainedDraft {
            kind,
            draft,
            model,
            samples,
            matrices: parts,
        })
    }

    /// Reads a file, or returns `None` if it does not exist.
    pub fn read(path: &Path) -> Result<Option<TrainedDraft>, HtzError> {
        let io = |error| OpenError::io(path, error);
        let file = match open::open_regular(path) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        let found = file.metadata().map_err(io)?.len();
        if found > MAX_TRAINED_DRAFT_BYTES {
            return Err(HtzError::TrainedDraftTooLarge { found }.in_file(path));
        }
        let mut bytes = Vec::new();
        file.take(MAX_TRAINED_DRAFT_BYTES)
            .read_to_end(&mut bytes)
            .map_err(io)?;
        let parsed = TrainedDraft::parse(&bytes);
        parsed.map(Some).map_err(|error| error.in_file(path))
    }

    /// Writes a file atomically, in place of a trained draft, but of no other file.
    pub fn write(&self, path: &Path) -> Result<(), HtzError> {
        match open::open_regular(path) {
            Err(error) if error.is_not_found() => {}
            file => {
                let mut magic = [0; MAGIC.len()];
                if file?.read_exact(&mut magic).is_err() || magic != MAGIC {
                    return Err(HtzError::NotTrainedDraft.in_file(path));
                }
            }
        }
        let write = || {
            let (folder, name) = Folder::parent_of(path)?;
            let temporary = folder.temporary(0o666)?;
            let mut file = temporary.file()?;
            file.write_all(&self.to_bytes())?;
            file.sync_all()?;
            temporary.persist(&name, true)
        };
        write().map_err(|source| HtzError::Io {
            action: "write",
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests;
