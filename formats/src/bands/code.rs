//! Codes of the column groups of a matrix, and the sizes and offsets that follow from them.

use std::fmt;
use std::ops::{Deref, Range};
use std::str::FromStr;
use std::sync::Arc;

use super::{
    CHUNK, GROUP_COLS, GROUP_ROWS, QUADS_PER_GROUP, SCALE_BYTES, TABLES_VERSION, TILE_ROWS,
};
use crate::CodecError;
use crate::escape::escape_truncated;
use crate::limits::MAX_WIDTH;
use crate::wire;

/// Kind of the code of a column group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeKind {
    /// A non-uniform scalar codebook with a scale for each row and column group.
    Codebook,
    /// A trellis of 4096 states with two additive tables and a scale for each column.
    Trellis,
}

/// Code of a column group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code {
    kind: CodeKind,
    bits: u8,
    /// Version of the trellis tables; 1 for codebooks.
    version: u8,
}

impl CodeKind {
    /// Returns the valid numbers of bits.
    pub const fn bits(self) -> std::ops::RangeInclusive<u8> {
        match self {
            CodeKind::Codebook => 2..=8,
            CodeKind::Trellis => 2..=5,
        }
    }

    pub(super) const fn letter(self) -> char {
        match self {
            CodeKind::Codebook => 'l',
            CodeKind::Trellis => 't',
        }
    }
}

crate::names!(CodeKind { Codebook "levels", Trellis "trellis" });

impl Code {
    /// Creates a codebook of 2 to 8 bits.
    ///
    /// # Errors
    /// [`CodecError::Bits`].
    pub fn codebook(bits: u8) -> Result<Code, CodecError> {
        Code::new(CodeKind::Codebook, bits)
    }

    /// Creates a trellis of 2 to 5 bits.
    ///
    /// # Errors
    /// [`CodecError::Bits`].
    pub fn trellis(bits: u8) -> Result<Code, CodecError> {
        Code::new(CodeKind::Trellis, bits)
    }

    /// Creates a code of this kind.
    ///
    /// # Errors
    /// [`CodecError::Bits`].
    pub fn new(kind: CodeKind, bits: u8) -> Result<Code, CodecError> {
        if kind.bits().contains(&bits) {
            return Ok(Code::from_parts(kind, bits, TABLES_VERSION));
        }
        Err(CodecError::Bits { kind, found: bits })
    }

    const fn from_parts(kind: CodeKind, bits: u8, version: u8) -> Code {
        let version = match kind {
            CodeKind::Codebook => 1,
            CodeKind::Trellis => version,
        };
        Code {
            kind,
            bits,
            version,
        }
    }

    pub(super) const fn with_version(self, version: u8) -> Code {
        Code::from_parts(self.kind, self.bits, version)
    }

    /// Iterates over the codes with current tables.
    pub fn all() -> impl Iterator<Item = Code> {
        let of = |kind: CodeKind| {
            kind.bits()
                .map(move |bits| Code::from_parts(kind, bits, TABLES_VERSION))
        };
        of(CodeKind::Codebook).chain(of(CodeKind::Trellis))
    }

    /// Iterates over the codes with tables of earlier versions, which are only read.
    pub fn legacy() -> impl Iterator<Item = Code> {
        (1..TABLES_VERSION).flat_map(|version| {
            let of = move |bits| Code::from_parts(CodeKind::Trellis, bits, version);
            CodeKind::Trellis.bits().map(of)
        })
    }

    /// Kind of the code.
    pub const fn kind(self) -> CodeKind {
        self.kind
    }

    /// Version of the trellis tables; 1 for codebooks.
    pub const fn version(self) -> u8 {
        self.version
    }

    /// Returns true if the name alone identifies the code.
    pub const fn is_current(self) -> bool {
        matches!(self.kind, CodeKind::Codebook) || self.version == TABLES_VERSION
    }

    /// Index of the tables in [`TRELLIS_TABLES`](super::TRELLIS_TABLES); 0 for codebooks.
    pub const fn table_index(self) -> usize {
        self.version as usize - 1
    }

    /// Bits per weight, without scales.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Bytes of a column group in sixteen rows, without column scales.
    pub const fn group_bytes(self) -> usize {
        let weights = QUADS_PER_GROUP * CHUNK * self.bits as usize / 8;
        match self.kind {
            CodeKind::Codebook => SCALE_BYTES + weights,
            CodeKind::Trellis => weights,
        }
    }
}

/// Writes `levels4` or `trellis3`; with earlier tables `trellis3 (tables 1)`, which [`FromStr`]
/// rejects.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind, self.bits)?;
        if !self.is_current() {
            write!(f, " (tables {})", self.version)?;
        }
        Ok(())
    }
}

impl FromStr for Code {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || CodecError::UnknownCode {
            found: escape_truncated(text),
        };
        for kind in CodeKind::ALL {
            if let Some(bits) = text.strip_prefix(kind.name()) {
                return Code::new(kind, parse_canonical_number(bits).ok_or_else(unknown)?);
            }
        }
        Err(unknown())
    }
}

pub(super) fn parse_canonical_number<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// Codes of all column groups of a matrix; an incomplete last group is padded.
///
/// As text: the version of the tables (1 if there are only codebooks) and the runs of equal codes,
/// `2:t3x60,l4x4`; padding follows after a minus: `2:t3x5,l4x1-20`. An `r` after the version marks
/// a [rotated](super::rotate) matrix: `2r:t3x60,l4x4`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Codes(Arc<CodesData>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CodesData {
    codes: Vec<Code>,
    cols: usize,
    rotated: bool,
    /// Byte offset of each column group within sixteen rows, and the total size.
    starts: Vec<u64>,
    trellises: Vec<usize>,
}

impl Codes {
    /// Creates the codes of a matrix of `cols` columns.
    ///
    /// # Errors
    /// [`CodecError::Width`] if the number of codes does not match the columns;
    /// [`CodecError::Mixed`].
    pub fn new(codes: Vec<Code>, cols: usize) -> Result<Codes, CodecError> {
        if cols == 0 || codes.len() != cols.div_ceil(GROUP_COLS) || cols > MAX_WIDTH {
            let bands = codes.len();
            return Err(CodecError::Width {
                cols,
                groups: bands,
            });
        }
        let trellises = codes.iter().filter(|code| code.kind == CodeKind::Trellis);
        let mut versions = trellises.map(|code| code.version);
        if let Some(first) = versions.next()
            && let Some(other) = versions.find(|&other| other != first)
        {
            return Err(CodecError::Mixed {
                first,
                second: other,
            });
        }
        let (mut starts, mut trellises) = (vec![0], vec![0]);
        let (mut bytes, mut count) = (0, 0);
        for code in &codes {
            bytes += code.group_bytes() as u64;
            count += usize::from(code.kind == CodeKind::Trellis);
            starts.push(bytes);
            trellises.push(count);
        }
        Ok(Codes(Arc::new(CodesData {
            codes,
            cols,
            rotated: false,
            starts,
            trellises,
        })))
    }

    /// Creates the codes of a matrix with one code for all columns.
    ///
    /// # Errors
    /// [`CodecError::Width`] for no columns or too many.
    pub fn uniform(code: Code, cols: usize) -> Result<Codes, CodecError> {
        let bands = cols.div_ceil(GROUP_COLS);
        if cols > MAX_WIDTH {
            return Err(CodecError::Width {
                cols,
                groups: bands,
            });
        }
        Codes::new(vec![code; bands], cols)
    }

    /// Returns the same codes for a matrix that is [rotated](super::rotate) first. Without a full
    /// column group the codes stay unchanged.
    #[must_use]
    pub fn with_rotation(&self) -> Codes {
        Codes(Arc::new(CodesData {
            rotated: self.cols() >= GROUP_COLS,
            ..(*self.0).clone()
        }))
    }

    /// Returns true if full column groups are stored [rotated](super::rotate).
    pub fn is_rotated(&self) -> bool {
        self.0.rotated
    }

    /// Returns the error if the codes do not fit a matrix of `cols` columns.
    pub fn width_error(&self, cols: usize) -> Option<CodecError> {
        let bands = self.len();
        match (cols == self.cols(), bands == cols.div_ceil(GROUP_COLS)) {
            (true, _) => None,
            (false, false) => Some(CodecError::Width {
                cols,
                groups: bands,
            }),
            (false, true) => Some(CodecError::Padding {
                cols,
                expected: bands * GROUP_COLS - cols,
                found: self.padding(),
            }),
        }
    }

    /// Version of the trellis tables; 1 without trellises.
    pub fn version(&self) -> u8 {
        self.iter().map(|code| code.version).max().unwrap_or(1)
    }

    /// Number of columns, without padding.
    pub fn cols(&self) -> usize {
        self.0.cols
    }

    /// Columns of padding in the last column group, 0 to 31.
    pub fn padding(&self) -> usize {
        (self.len() * GROUP_COLS).saturating_sub(self.0.cols)
    }

    /// Columns of a column group without padding.
    pub fn group_cols(&self, band: usize) -> usize {
        self.0
            .cols
            .saturating_sub(band * GROUP_COLS)
            .min(GROUP_COLS)
    }

    /// Returns the code of the matrix if all column groups share one.
    pub fn uniform_code(&self) -> Option<Code> {
        let first = self.first()?;
        self.iter().all(|code| code == first).then_some(*first)
    }

    /// Mean bits per weight, without scales; padded column groups count fully.
    pub fn mean_bits(&self) -> f64 {
        let bits: usize = self.iter().map(|code| usize::from(code.bits)).sum();
        bits as f64 / self.len() as f64
    }

    /// Returns the size in bytes of a matrix of `rows` rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        let groups = rows.div_ceil(GROUP_ROWS) as u64;
        self.data_start(rows)
            .saturating_add(groups.saturating_mul(self.group_bytes()))
    }

    fn group_bytes(&self) -> u64 {
        self.0.starts.last().copied().unwrap_or(0)
    }

    fn trellis_groups(&self) -> usize {
        self.0.trellises.last().copied().unwrap_or(0)
    }

    /// Returns true if any column group has this kind.
    pub fn contains_kind(&self, kind: CodeKind) -> bool {
        match kind {
            CodeKind::Codebook => self.trellis_groups() < self.len(),
            CodeKind::Trellis => self.trellis_groups() > 0,
        }
    }

    pub(super) fn data_start(&self, rows: usize) -> u64 {
        let columns = (self.trellis_groups() * 2 * GROUP_COLS) as u64;
        wire::align_up(self.rows_end(rows).saturating_add(columns), 64).unwrap_or(u64::MAX)
    }

    /// Returns the end of the row scales: one per row for each kind present, padded to whole row
    /// groups.
    fn rows_end(&self, rows: usize) -> u64 {
        let kinds = CodeKind::ALL.into_iter();
        let kinds = kinds.filter(|&kind| self.contains_kind(kind)).count() as u64;
        row_scale_bytes(rows).saturating_mul(kinds)
    }

    pub(super) fn row_scales_offset(&self, rows: usize, kind: CodeKind) -> Option<usize> {
        let behind = kind == CodeKind::Trellis && self.contains_kind(CodeKind::Codebook);
        let at = if behind {
            row_scale_bytes(rows) as usize
        } else {
            0
        };
        self.contains_kind(kind).then_some(at)
    }

    pub(super) fn column_scales_offset(&self, rows: usize, band: usize) -> Option<usize> {
        let code = self.get(band)?;
        let before = *self.0.trellises.get(band)?;
        let at = self.rows_end(rows) as usize + before * 2 * GROUP_COLS;
        (code.kind == CodeKind::Trellis).then_some(at)
    }

    /// Returns the number of rows of a tile, padded to whole row groups.
    pub fn tile_rows(rows: usize, strip: usize) -> usize {
        let rest = rows.saturating_sub(strip * TILE_ROWS);
        rest.min(TILE_ROWS).next_multiple_of(GROUP_ROWS)
    }

    /// Returns the byte range of a column group in a tile; empty if out of range.
    pub fn tile_range(&self, rows: usize, strip: usize, band: usize) -> Range<usize> {
        let groups = (Codes::tile_rows(rows, strip) / GROUP_ROWS) as u64;
        let Some([start, end]) = self.0.starts.get(band..band + 2) else {
            return 0..0;
        };
        let before = (strip * (TILE_ROWS / GROUP_ROWS)) as u64 * self.group_bytes();
        let base = self.data_start(rows) + before;
        (base + groups * start) as usize..(base + groups * end) as usize
    }
}

fn row_scale_bytes(rows: usize) -> u64 {
    (rows.div_ceil(GROUP_ROWS) as u64).saturating_mul(2 * GROUP_ROWS as u64)
}

impl Deref for Codes {
    type Target = [Code];

    fn deref(&self) -> &[Code] {
        &self.0.codes
    }
}

#[cfg(test)]
mod tests;
