//! Which code each band of a matrix has, and what follows from that: sizes and places.

use std::fmt;
use std::ops::{Deref, Range};
use std::str::FromStr;
use std::sync::Arc;

use super::{BAND, CHUNK, CodesError, GROUP_ROWS, QUADS, SCALE_BYTES, STRIP_ROWS, TABLES_VERSION};
use crate::escape::one_line;
use crate::limits::MAX_WIDTH;
use crate::wire;

/// How the weights of a band are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A table of values, and a scale for each row.
    Levels,
    /// A trellis of 4096 states with two added tables, and a scale for each column.
    Trellis,
}

/// The code of a band: its kind, its bits for each weight, and which tables a trellis has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code {
    kind: Kind,
    bits: u8,
    /// The version of the tables; levels have the same in all of them, and version 1.
    version: u8,
}

impl Kind {
    /// The numbers of bits that there are.
    pub const fn bits(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Kind::Levels => 2..=8,
            Kind::Trellis => 2..=5,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Kind::Levels => "levels",
            Kind::Trellis => "trellis",
        }
    }

    /// What stands for it in the text of [`Codes`].
    pub(super) const fn letter(self) -> char {
        match self {
            Kind::Levels => 'l',
            Kind::Trellis => 't',
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Code {
    /// A table of levels of 2 to 8 bits.
    ///
    /// # Errors
    /// [`CodesError::Bits`].
    pub fn levels(bits: u8) -> Result<Code, CodesError> {
        Code::new(Kind::Levels, bits)
    }

    /// A trellis of 2 to 5 bits.
    ///
    /// # Errors
    /// [`CodesError::Bits`].
    pub fn trellis(bits: u8) -> Result<Code, CodesError> {
        Code::new(Kind::Trellis, bits)
    }

    /// The code of a kind with so many bits.
    ///
    /// # Errors
    /// [`CodesError::Bits`].
    pub fn new(kind: Kind, bits: u8) -> Result<Code, CodesError> {
        if kind.bits().contains(&bits) {
            return Ok(Code::of(kind, bits, TABLES_VERSION));
        }
        Err(CodesError::Bits { kind, found: bits })
    }

    const fn of(kind: Kind, bits: u8, version: u8) -> Code {
        let version = match kind {
            Kind::Levels => 1,
            Kind::Trellis => version,
        };
        Code {
            kind,
            bits,
            version,
        }
    }

    /// The same with tables of a version that there is.
    pub(super) const fn with_tables(self, version: u8) -> Code {
        Code::of(self.kind, self.bits, version)
    }

    /// Every code that matrices are given today.
    pub fn all() -> impl Iterator<Item = Code> {
        let of = |kind: Kind| {
            kind.bits()
                .map(move |bits| Code::of(kind, bits, TABLES_VERSION))
        };
        of(Kind::Levels).chain(of(Kind::Trellis))
    }

    /// Those that are only read, with tables of earlier versions.
    pub fn earlier() -> impl Iterator<Item = Code> {
        (1..TABLES_VERSION).flat_map(|version| {
            let of = move |bits| Code::of(Kind::Trellis, bits, version);
            Kind::Trellis.bits().map(of)
        })
    }

    /// Levels or trellis.
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// The version of the tables that a trellis has; 1 for levels.
    pub const fn version(self) -> u8 {
        self.version
    }

    /// Whether it is one of [`all`](Self::all), which its name alone stands for.
    pub const fn is_current(self) -> bool {
        matches!(self.kind, Kind::Levels) || self.version == TABLES_VERSION
    }

    /// Which of [`TRELLIS_TABLES`](super::TRELLIS_TABLES) a trellis has; the first for levels.
    pub const fn tables(self) -> usize {
        self.version as usize - 1
    }

    /// Bits of a weight, without its scales.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Bytes of a band in sixteen rows, with the scales of levels and without those of columns.
    pub const fn group_bytes(self) -> usize {
        let weights = QUADS * CHUNK * self.bits as usize / 8;
        match self.kind {
            Kind::Levels => SCALE_BYTES + weights,
            Kind::Trellis => weights,
        }
    }
}

/// `levels4`, `trellis3`; `trellis3 (tables 1)` with tables of an earlier version, which is read only in the text of
/// [`Codes`].
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
    type Err = CodesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || CodesError::Unknown {
            found: one_line(text),
        };
        for kind in [Kind::Levels, Kind::Trellis] {
            if let Some(bits) = text.strip_prefix(kind.name()) {
                return Code::new(kind, number(bits).ok_or_else(unknown)?);
            }
        }
        Err(unknown())
    }
}

/// A number in its one spelling.
pub(super) fn number<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The code of every band of a matrix, from the first columns to the last. Cloning shares them. A last band that the
/// columns do not fill is padded.
///
/// As a text, and in a manifest, it is the version of the tables, 1 where there are levels alone, and the runs
/// of equal codes, `2:t3x60,l4x4`, and behind them where there is padding a minus and its columns: `2:t3x5,l4x1-20`. Where
/// the matrix is [rotated](super::rotate) an `r` stands behind the version: `2r:t3x60,l4x4`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Codes(Arc<Inner>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Inner {
    codes: Vec<Code>,
    /// Columns of the matrix, without padding.
    cols: usize,
    /// Whether whole bands hold the rotated matrix.
    rotated: bool,
    /// Bytes of sixteen rows before each band, and of all bands at the end.
    starts: Vec<u64>,
    /// Trellises before each band, and all of them at the end.
    trellises: Vec<usize>,
}

impl Codes {
    /// The codes of a matrix of `cols` columns, the last band of which is padded where they do not fill it.
    ///
    /// # Errors
    /// [`CodesError::Width`] where there is not a code for every 32 columns and for those that are left;
    /// [`CodesError::Mixed`].
    pub fn new(codes: Vec<Code>, cols: usize) -> Result<Codes, CodesError> {
        if cols == 0 || codes.len() != cols.div_ceil(BAND) || cols > MAX_WIDTH {
            let bands = codes.len();
            return Err(CodesError::Width { cols, bands });
        }
        let trellises = codes.iter().filter(|code| code.kind == Kind::Trellis);
        let mut versions = trellises.map(|code| code.version);
        if let Some(first) = versions.next()
            && let Some(other) = versions.find(|&other| other != first)
        {
            return Err(CodesError::Mixed { first, other });
        }
        let (mut starts, mut trellises) = (vec![0], vec![0]);
        let (mut bytes, mut count) = (0, 0);
        for code in &codes {
            bytes += code.group_bytes() as u64;
            count += usize::from(code.kind == Kind::Trellis);
            starts.push(bytes);
            trellises.push(count);
        }
        Ok(Codes(Arc::new(Inner {
            codes,
            cols,
            rotated: false,
            starts,
            trellises,
        })))
    }

    /// One code for all columns.
    ///
    /// # Errors
    /// [`CodesError::Width`] where there are none, or more than a matrix may have.
    pub fn uniform(code: Code, cols: usize) -> Result<Codes, CodesError> {
        let bands = cols.div_ceil(BAND);
        if cols > MAX_WIDTH {
            return Err(CodesError::Width { cols, bands });
        }
        Codes::new(vec![code; bands], cols)
    }

    /// The same codes of a matrix that is [rotated](super::rotate) before it has them. Without a whole band there is
    /// nothing to rotate, and they stay as they are.
    #[must_use]
    pub fn of_rotated(&self) -> Codes {
        Codes(Arc::new(Inner {
            rotated: self.cols() >= BAND,
            ..(*self.0).clone()
        }))
    }

    /// Whether whole bands hold the matrix [rotated](super::rotate).
    pub fn is_rotated(&self) -> bool {
        self.0.rotated
    }

    /// Why these are no codes of a matrix of `cols` columns; `None` where they are.
    pub fn misfit(&self, cols: usize) -> Option<CodesError> {
        let bands = self.len();
        match (cols == self.cols(), bands == cols.div_ceil(BAND)) {
            (true, _) => None,
            (false, false) => Some(CodesError::Width { cols, bands }),
            (false, true) => Some(CodesError::Padding {
                cols,
                expected: bands * BAND - cols,
                found: self.padding(),
            }),
        }
    }

    /// The version of the tables of its trellises, one where it has none.
    pub fn version(&self) -> u8 {
        self.iter().map(|code| code.version).max().unwrap_or(1)
    }

    /// Columns of the matrix, without padding.
    pub fn cols(&self) -> usize {
        self.0.cols
    }

    /// Columns by which the last band is padded, 0 to 31.
    pub fn padding(&self) -> usize {
        (self.len() * BAND).saturating_sub(self.0.cols)
    }

    /// Columns of a band that are the matrix's: 32 but for the last band, 0 where there is no such band.
    pub fn band_cols(&self, band: usize) -> usize {
        self.0.cols.saturating_sub(band * BAND).min(BAND)
    }

    /// The code of all bands, where they have the same.
    pub fn same(&self) -> Option<Code> {
        let first = self.first()?;
        self.iter().all(|code| code == first).then_some(*first)
    }

    /// Bits of a weight on average, without scales; of a band that is padded as of any other.
    pub fn mean_bits(&self) -> f64 {
        let bits: usize = self.iter().map(|code| usize::from(code.bits)).sum();
        bits as f64 / self.len() as f64
    }

    /// Bytes of a matrix of so many rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        let groups = rows.div_ceil(GROUP_ROWS) as u64;
        self.data_start(rows)
            .saturating_add(groups.saturating_mul(self.group_bytes()))
    }

    /// Bytes of sixteen rows.
    fn group_bytes(&self) -> u64 {
        self.0.starts.last().copied().unwrap_or(0)
    }

    /// Bands of trellises.
    fn trellises(&self) -> usize {
        self.0.trellises.last().copied().unwrap_or(0)
    }

    /// Whether a band is of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Levels => self.trellises() < self.len(),
            Kind::Trellis => self.trellises() > 0,
        }
    }

    /// Where the first strip begins, behind the scales of rows and columns.
    pub(super) fn data_start(&self, rows: usize) -> u64 {
        let columns = (self.trellises() * 2 * BAND) as u64;
        wire::align_up(self.rows_end(rows).saturating_add(columns), 64).unwrap_or(u64::MAX)
    }

    /// Where the scales of rows end: each kind that there is has one for each, padded to whole groups.
    fn rows_end(&self, rows: usize) -> u64 {
        let kinds = [Kind::Levels, Kind::Trellis].into_iter();
        let kinds = kinds.filter(|&kind| self.has(kind)).count() as u64;
        scales_of_rows(rows).saturating_mul(kinds)
    }

    /// Where the scales of rows begin that bands of a kind have; `None` where there are none.
    pub(super) fn row_scales(&self, rows: usize, kind: Kind) -> Option<usize> {
        let behind = kind == Kind::Trellis && self.has(Kind::Levels);
        let at = if behind {
            scales_of_rows(rows) as usize
        } else {
            0
        };
        self.has(kind).then_some(at)
    }

    /// Where the scales of a trellis band's columns begin; `None` for other bands.
    pub(super) fn column_scales(&self, rows: usize, band: usize) -> Option<usize> {
        let code = self.get(band)?;
        let before = *self.0.trellises.get(band)?;
        let at = self.rows_end(rows) as usize + before * 2 * BAND;
        (code.kind == Kind::Trellis).then_some(at)
    }

    /// Rows of a strip, padded to whole groups.
    pub fn strip_rows(rows: usize, strip: usize) -> usize {
        let rest = rows.saturating_sub(strip * STRIP_ROWS);
        rest.min(STRIP_ROWS).next_multiple_of(GROUP_ROWS)
    }

    /// Bytes of a band in a strip; empty where there is no such band or strip.
    pub fn place(&self, rows: usize, strip: usize, band: usize) -> Range<usize> {
        let groups = (Codes::strip_rows(rows, strip) / GROUP_ROWS) as u64;
        let Some([start, end]) = self.0.starts.get(band..band + 2) else {
            return 0..0;
        };
        let before = (strip * (STRIP_ROWS / GROUP_ROWS)) as u64 * self.group_bytes();
        let base = self.data_start(rows) + before;
        (base + groups * start) as usize..(base + groups * end) as usize
    }
}

/// Bytes of a scale for each row, padded to whole groups.
fn scales_of_rows(rows: usize) -> u64 {
    (rows.div_ceil(GROUP_ROWS) as u64).saturating_mul(2 * GROUP_ROWS as u64)
}

impl Deref for Codes {
    type Target = [Code];

    fn deref(&self) -> &[Code] {
        &self.0.codes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Codes {
        "2:t3x2,l4x1,t2x1".parse().unwrap()
    }

    #[test]
    fn sizes_follow_from_rows_and_codes() {
        // Rows are padded to 16; 12 bytes of scales for 16 rows in a band of levels.
        let levels = Codes::uniform(Code::levels(4).unwrap(), 64).unwrap();
        assert_eq!(levels.bytes(20), 64 + 2 * 2 * (12 + 256));
        let trellis = Codes::uniform(Code::trellis(3).unwrap(), 64).unwrap();
        assert_eq!(
            trellis.bytes(300),
            (304 * 2 + 64 * 2_u64).next_multiple_of(64) + 19 * 2 * 192
        );
        // Padding is paid for.
        let padded = Codes::uniform(Code::levels(4).unwrap(), 33).unwrap();
        assert_eq!(padded.bytes(20), levels.bytes(20));
        assert_eq!((padded.cols(), padded.padding()), (33, 31));
        assert_eq!([0, 1, 2].map(|band| padded.band_cols(band)), [32, 1, 0]);
        for (cols, bands) in [
            (32, 2),
            (65, 2),
            (0, 0),
            (0, 1),
            (MAX_WIDTH + 1, (1 << 15) + 1),
        ] {
            let codes = vec![Code::levels(4).unwrap(); bands];
            assert_eq!(
                Codes::new(codes, cols).unwrap_err(),
                CodesError::Width { cols, bands }
            );
        }
        for cols in [0, MAX_WIDTH + 1] {
            assert!(Codes::uniform(Code::levels(4).unwrap(), cols).is_err());
        }
        assert_eq!(padded.misfit(33), None);
        let (expected, found) = (30, 31);
        let other = CodesError::Padding {
            cols: 34,
            expected,
            found,
        };
        assert_eq!(padded.misfit(34), Some(other));
        assert_eq!(
            padded.misfit(65),
            Some(CodesError::Width { cols: 65, bands: 2 })
        );
    }

    #[test]
    fn bands_of_strips_lie_side_by_side_to_the_end() {
        let (codes, rows) = (mixed(), 530);
        let mut end = codes.data_start(rows) as usize;
        for strip in 0..3 {
            assert_eq!(Codes::strip_rows(rows, strip), [256, 256, 32][strip]);
            for band in 0..codes.len() {
                let place = codes.place(rows, strip, band);
                assert_eq!(place.start, end);
                end = place.end;
            }
        }
        assert_eq!(end as u64, codes.bytes(rows));
        assert!(codes.place(rows, 0, 4).is_empty() && codes.place(rows, 3, 0).is_empty());
        assert_eq!(codes.row_scales(rows, Kind::Levels), Some(0));
        assert_eq!(codes.row_scales(rows, Kind::Trellis), Some(1088));
        assert_eq!(codes.column_scales(rows, 1), Some(2 * 1088 + 64));
        assert_eq!(codes.column_scales(rows, 2), None);
        assert_eq!(codes.column_scales(rows, 3), Some(2 * 1088 + 128));
    }
}
