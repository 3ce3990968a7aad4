//! Journal of the finished parts of an artifact. A line is a seal, made with a secret of the user,
//! followed by JSON. A seal covers its line, every line before it and the key of the artifact, so
//! that changed, moved and added lines are rejected, with all lines after.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use htc_formats::folder::Folder;
use htc_formats::htz::{Digest, Htz, HtzError, HtzWriter, Manifest, Section};
use htc_formats::map::MappedFile;
use htc_formats::open::OpenError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::work::{WorkFolder, io_failure};
use crate::event::{Event, Progress};
use crate::system::disk;
use crate::system::secret::Secret;

const MAX_JOURNAL: u64 = 256 << 20;

const MAX_NOTE: u64 = 16 << 20;

const BEGIN: &[u8] = b"htc journal 1\n";
const NOTE: &[u8] = b"htc note 1\n";
const STATE: &[u8] = b"htc state 1\n";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum JournalEntry<T> {
    Tensor(Digest),
    Step(usize, T),
    Complete(Digest),
}

/// Left by an earlier run.
#[derive(Debug)]
pub struct ResumeState<T> {
    pub tensors: Vec<Digest>,
    pub steps: Vec<(usize, T)>,
    /// Digest of header and manifest, of a complete artifact.
    pub complete: Option<Digest>,
}

impl<T> Default for ResumeState<T> {
    fn default() -> Self {
        ResumeState {
            tensors: Vec::new(),
            steps: Vec::new(),
            complete: None,
        }
    }
}

/// An artifact in a work folder, complete or unfinished.
#[derive(Clone, Copy, Debug)]
pub struct Artifact<'a> {
    pub(super) work: &'a WorkFolder,
    pub(super) key: Digest,
}

impl<'a> Artifact<'a> {
    fn name(&self, suffix: &str) -> OsString {
        format!("{}.{suffix}", self.key).into()
    }

    fn path(&self, name: &OsStr) -> PathBuf {
        self.work.path().join(name)
    }

    fn folder(&self) -> &'a Folder {
        self.work.folder()
    }

    /// Returns its file name when complete.
    pub fn complete_name(&self) -> OsString {
        self.name("htz")
    }

    /// Returns its file name while unfinished.
    pub fn partial_name(&self) -> OsString {
        self.name("partial")
    }

    /// Starts writing the artifact from the beginning.
    pub fn restart(
        &self,
        journal: &mut Journal,
        draft: Manifest,
        sections: &[Section],
    ) -> Result<HtzWriter, HtzError> {
        journal.rewrite(&ResumeState::<()>::default())?;
        let (name, partial) = (self.complete_name(), self.partial_name());
        let sections = sections.to_vec();
        let mut writer = HtzWriter::resume(self.work.folder(), &name, &partial, draft, sections)?;
        writer.resume_tensors(&[])?;
        Ok(writer)
    }

    /// Opens the complete artifact.
    pub fn open(&self) -> Result<Htz, HtzError> {
        let (name, path) = (self.complete_name(), self.path(&self.complete_name()));
        let file = self
            .folder()
            .open_for_reading(&name)
            .map_err(|error| OpenError::io(&path, error))?;
        Htz::from_map(MappedFile::from_file(path, &file)?)
    }

    /// Returns true if the artifact is complete, undamaged, and its header and manifest have this
    /// digest. Otherwise renames the complete file to the unfinished one.
    pub fn is_complete(&self, head: Option<Digest>) -> bool {
        let (complete, partial) = (self.complete_name(), self.partial_name());
        if self.folder().metadata(&complete).is_err() {
            return false;
        }
        let sound = self.open().and_then(|artifact| {
            artifact.verify_all(|_| {})?;
            Ok(Some(Digest::of_bytes(artifact.header_and_manifest())) == head)
        });
        let sound = sound.unwrap_or(false);
        if !sound
            && self
                .folder()
                .rename(&complete, self.folder(), &partial, true)
                .is_err()
        {
            let _ = self.folder().remove(&complete);
        }
        sound
    }

    /// Reads the journal and opens it for appending. Truncates a partial last line, and lines
    /// without the user's seal; warns about the latter.
    pub fn journal<T: Serialize + DeserializeOwned>(
        &self,
        watch: Progress,
    ) -> Result<(ResumeState<T>, Journal), HtzError> {
        let name = self.name("journal");
        let path = self.path(&name);
        let secret = self.work.secret().clone();
        let open = || -> io::Result<(ResumeState<T>, File, Digest)> {
            let mut file = self.folder().open_for_writing(&name)?;
            let mut text = Vec::new();
            (&mut file).take(MAX_JOURNAL).read_to_end(&mut text)?;
            let mut left = ResumeState::default();
            let mut seal = secret.seal(&[BEGIN, &self.key.0]);
            let mut whole = 0;
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                let Some(said) = line.strip_suffix(b"\n") else {
                    break;
                };
                let Some((found, said)) = verify_seal(&secret, &[&seal.0], said) else {
                    self.warn_unsealed(watch);
                    break;
                };
                match serde_json::from_slice(said) {
                    Ok(JournalEntry::Tensor(digest)) => left.tensors.push(digest),
                    Ok(JournalEntry::Step(step, found)) => left.steps.push((step, found)),
                    Ok(JournalEntry::Complete(digest)) => left.complete = Some(digest),
                    Err(_) => break,
                }
                seal = found;
                whole += line.len();
            }
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok((left, file, seal))
        };
        let (left, file, seal) = open().map_err(|source| io_failure("open", &path, source))?;
        let key = self.key;
        let journal = Journal {
            path,
            file,
            secret,
            key,
            seal,
        };
        Ok((left, journal))
    }

    fn warn_unsealed(&self, watch: Progress) {
        let folder = self.work.path().display();
        let said = match self.work.not_resumable_reason() {
            Some(why) => format!("{folder}: {why}; what is in it is not gone on with"),
            None => format!(
                "{folder}: what is in it was not written by this user's htc on this machine; it is not gone on with"
            ),
        };
        watch.report(Event::Warning(&said));
    }

    /// Returns the measurements of the artifact on the windows with the given digest.
    pub fn measurements<T: DeserializeOwned>(&self, windows: Digest) -> Option<T> {
        let context: [&[u8]; 3] = [NOTE, &self.key.0, &windows.0];
        let said = self.read_sealed(&format!("{windows}.json"), MAX_NOTE, &context)?;
        serde_json::from_slice(&said).ok()
    }

    /// Stores measurements of the artifact.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn store_measurements<T: Serialize>(
        &self,
        windows: Digest,
        measured: &T,
    ) -> Result<(), HtzError> {
        let name = format!("{windows}.json");
        let context: [&[u8]; 3] = [NOTE, &self.key.0, &windows.0];
        let text = serde_json::to_vec(measured)
            .map_err(|error| io_failure("write", &self.path(&self.name(&name)), error.into()))?;
        self.write_sealed(&name, &context, &text)
    }

    /// Returns the state that a stage stored under a name, at most `most` bytes, if its seal is
    /// valid.
    pub fn state(&self, name: &str, most: usize) -> Option<Vec<u8>> {
        let context: [&[u8]; 3] = [STATE, &self.key.0, name.as_bytes()];
        let most = most as u64 + 2 * 32 + 2;
        self.read_sealed(&format!("{name}.state"), most, &context)
    }

    /// Stores a stage's state under a name.
    pub fn keep_state(&self, name: &str, bytes: &[u8]) -> Result<(), HtzError> {
        let context: [&[u8]; 3] = [STATE, &self.key.0, name.as_bytes()];
        self.write_sealed(&format!("{name}.state"), &context, bytes)
    }

    /// Returns the content of a sealed file of at most `most` bytes, if its seal is valid.
    fn read_sealed(&self, suffix: &str, most: u64, context: &[&[u8]]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.folder().open_for_reading(&self.name(suffix)).ok()?;
        file.take(most).read_to_end(&mut bytes).ok()?;
        let (_, said) = verify_seal(self.work.secret(), context, &bytes)?;
        Some(said.to_vec())
    }

    fn write_sealed(&self, suffix: &str, context: &[&[u8]], bytes: &[u8]) -> Result<(), HtzError> {
        let name = self.name(suffix);
        let (_, line) = seal(self.work.secret(), context, bytes);
        let written = disk::write_in(self.folder(), &name, true, |to| to.write_all(&line));
        written.map_err(|source| io_failure("write", &self.path(&name), source))
    }

    /// Removes the artifact but keeps its measurements.
    pub fn discard(&self) {
        let _ = self.folder().remove(&self.complete_name());
    }
}

fn seal(secret: &Secret, about: &[&[u8]], said: &[u8]) -> (Digest, Vec<u8>) {
    let seal = secret.seal(&[about, &[said]].concat());
    (seal, [seal.to_string().as_bytes(), b" ", said].concat())
}

fn verify_seal<'a>(secret: &Secret, about: &[&[u8]], line: &'a [u8]) -> Option<(Digest, &'a [u8])> {
    let (_, said) = line.split_at_checked(2 * 32 + 1)?;
    let (expected, as_written) = seal(secret, about, said);
    (as_written == line).then_some((expected, said))
}

#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    secret: Secret,
    key: Digest,
    seal: Digest,
}

impl Journal {
    pub fn record_tensor(&mut self, digest: Digest) -> Result<(), HtzError> {
        self.line(&JournalEntry::<()>::Tensor(digest))
    }

    pub fn record_step<T: Serialize>(&mut self, step: usize, found: &T) -> Result<(), HtzError> {
        self.line(&JournalEntry::Step(step, found))
    }

    /// Records that an artifact is complete, with the digest of its header and manifest.
    pub fn record_complete(&mut self, artifact: &Artifact) -> Result<(), HtzError> {
        let head = Digest::of_bytes(artifact.open()?.header_and_manifest());
        self.line(&JournalEntry::<()>::Complete(head))
    }

    pub fn rewrite<T: Serialize>(&mut self, left: &ResumeState<T>) -> Result<(), HtzError> {
        let ResumeState {
            tensors,
            steps,
            complete: _,
        } = left;
        self.seal = self.secret.seal(&[BEGIN, &self.key.0]);
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|source| io_failure("write", &self.path, source))?;
        tensors
            .iter()
            .try_for_each(|&digest| self.record_tensor(digest))?;
        let mut steps = steps.iter();
        steps.try_for_each(|(step, found)| self.record_step(*step, found))
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), HtzError> {
        let text = serde_json::to_vec(line).map_err(io::Error::from);
        text.and_then(|text| {
            let (next, mut line) = seal(&self.secret, &[&self.seal.0], &text);
            line.push(b'\n');
            self.file.write_all(&line)?;
            self.seal = next;
            Ok(())
        })
        .map_err(|source| io_failure("write", &self.path, source))
    }
}

#[cfg(test)]
mod tests;
