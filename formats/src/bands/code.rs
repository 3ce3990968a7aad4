//! Which code each band of a matrix has, and what follows from that: sizes and places.

use std::fmt;
use std::ops::{Deref, Range};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{BAND, CHUNK, GROUP_ROWS, MAX_CLASSES, QUADS, SCALE_BYTES, STRIP_ROWS, TABLES_VERSION};
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

/// What is no code, or does not fit a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodesError {
    /// A number of bits that no code of the kind has.
    #[error("{kind} of {found} bits; there are {kind} of {} to {} bits", kind.bits().start(), kind.bits().end())]
    Bits {
        /// The kind.
        kind: Kind,
        /// What was asked for.
        found: u8,
    },
    /// A text that names no code.
    #[error("{found:?} is no code of a band, as levels4 or trellis3 are")]
    Unknown {
        /// The text.
        found: String,
    },
    /// A text that is no list of codes.
    #[error("codes of bands: expected {expected}, found {found:?}")]
    List {
        /// What would do.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Tables that this build does not have.
    #[error(
        "codes of bands: tables of version {found:?}, this build has those up to {TABLES_VERSION}; update htc"
    )]
    Tables {
        /// The version.
        found: String,
    },
    /// Trellises with tables of several versions in one matrix.
    #[error(
        "codes of bands: trellises with tables of version {first} and of version {other}; expected one"
    )]
    Mixed {
        /// The version of the first trellis.
        first: u8,
        /// Another one.
        other: u8,
    },
    /// A width that is no whole number of bands, or another number of them.
    #[error(
        "{cols} columns, {bands} bands: a matrix in bands has {BAND} columns for each of them, and one band at least"
    )]
    Width {
        /// Columns of the matrix.
        cols: usize,
        /// Bands that have a code.
        bands: usize,
    },
    /// Classes of rows that are none.
    #[error(
        "classes of rows: found {found}, expected 2 to {MAX_CLASSES} classes of one width, with a row each at least"
    )]
    Classes {
        /// What was found.
        found: String,
    },
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

    const fn letter(self) -> char {
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
fn number<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The code of every band of a matrix, from the first columns to the last. Cloning shares them.
///
/// As a text, and in a manifest, it is the version of the tables, 1 where there are levels alone, and the runs
/// of equal codes: `2:t3x60,l4x4`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Codes(Arc<Inner>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Inner {
    codes: Vec<Code>,
    /// Bytes of sixteen rows before each band, and of all bands at the end.
    starts: Vec<u64>,
    /// Trellises before each band, and all of them at the end.
    trellises: Vec<usize>,
}

impl Codes {
    /// The codes of a matrix of `cols` columns.
    ///
    /// # Errors
    /// [`CodesError::Width`] where there is not a code for every 32 columns; [`CodesError::Mixed`].
    pub fn new(codes: Vec<Code>, cols: usize) -> Result<Codes, CodesError> {
        if codes.is_empty() || codes.len().checked_mul(BAND) != Some(cols) || cols > MAX_WIDTH {
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
            starts,
            trellises,
        })))
    }

    /// One code for all columns.
    ///
    /// # Errors
    /// [`CodesError::Width`] where they are no multiple of 32.
    pub fn uniform(code: Code, cols: usize) -> Result<Codes, CodesError> {
        if !cols.is_multiple_of(BAND) || cols > MAX_WIDTH {
            let bands = cols / BAND;
            return Err(CodesError::Width { cols, bands });
        }
        Codes::new(vec![code; cols / BAND], cols)
    }

    /// The version of the tables of its trellises, one where it has none.
    pub fn version(&self) -> u8 {
        self.iter().map(|code| code.version).max().unwrap_or(1)
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.len() * BAND
    }

    /// The code of all bands, where they have the same.
    pub fn same(&self) -> Option<Code> {
        let first = self.first()?;
        self.iter().all(|code| code == first).then_some(*first)
    }

    /// Bits of a weight on average, without scales.
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

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.version())?;
        for (i, run) in self.chunk_by(|a, b| a == b).enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            // A run is not empty.
            let Code { kind, bits, .. } = run[0];
            write!(f, "{}{bits}x{}", kind.letter(), run.len())?;
        }
        Ok(())
    }
}

impl FromStr for Codes {
    type Err = CodesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |expected: &str, found: &str| CodesError::List {
            expected: expected.to_owned(),
            found: one_line(found),
        };
        let (version, runs) = text
            .split_once(':')
            .ok_or_else(|| wrong("a version and runs, as 2:t3x60,l4x4", text))?;
        let known = number(version).filter(|known| (1..=TABLES_VERSION).contains(known));
        let Some(known) = known else {
            return Err(CodesError::Tables {
                found: one_line(version),
            });
        };
        let mut codes = Vec::new();
        for run in runs.split(',') {
            let malformed = || wrong("a run of a code, as t3x60", run);
            let kind = match run.chars().next() {
                Some('l') => Kind::Levels,
                Some('t') => Kind::Trellis,
                _ => return Err(malformed()),
            };
            let (bits, count) = run[1..].split_once('x').ok_or_else(malformed)?;
            let code = Code::new(kind, number(bits).ok_or_else(malformed)?)?;
            let code = Code::of(kind, code.bits, known);
            let count: usize = number(count).ok_or_else(malformed)?;
            let most = MAX_WIDTH / BAND - codes.len();
            if count == 0 || count > most {
                return Err(wrong(&format!("a run of 1 to {most} bands"), run));
            }
            // One spelling for each list of codes.
            if codes.last() == Some(&code) {
                return Err(wrong("another code than in the run before", run));
            }
            codes.extend(std::iter::repeat_n(code, count));
        }
        let cols = codes.len() * BAND;
        let codes = Codes::new(codes, cols)?;
        if codes.version() != known {
            return Err(wrong("version 1 where there are levels alone", version));
        }
        Ok(codes)
    }
}

impl Serialize for Codes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Codes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Codes {
        "2:t3x2,l4x1,t2x1".parse().unwrap()
    }

    #[test]
    fn codes_survive_their_text_and_others_are_refused() {
        for code in Code::all() {
            assert_eq!(code.to_string().parse(), Ok(code));
            let codes = Codes::uniform(code, 96).unwrap();
            assert_eq!(codes.to_string().parse(), Ok(codes.clone()));
            assert_eq!(codes.same(), Some(code));
        }
        for code in Code::earlier() {
            let codes = Codes::uniform(code, 96).unwrap();
            assert_eq!(codes.to_string(), format!("1:t{}x3", code.bits()));
            assert_eq!(codes.to_string().parse(), Ok(codes));
            // A name alone stands for today's tables.
            assert_eq!(
                code.to_string(),
                format!("trellis{} (tables 1)", code.bits())
            );
            assert!(code.to_string().parse::<Code>().is_err());
            let mixed = vec![Code::levels(4).unwrap(), code, Code::trellis(2).unwrap()];
            let refused = Codes::new(mixed, 96).unwrap_err();
            assert_eq!(refused, CodesError::Mixed { first: 1, other: 2 });
        }
        assert_eq!(mixed().to_string(), "2:t3x2,l4x1,t2x1");
        assert_eq!((mixed().cols(), mixed().same()), (128, None));
        assert_eq!(mixed().mean_bits(), 3.0);
        for text in [
            "levels1", "levels9", "trellis6", "trellis1", "levels04", "levels", "q4_0", "",
        ] {
            assert!(text.parse::<Code>().is_err(), "{text}");
        }
        for text in [
            "",
            "1:",
            "t3x1",
            "1:t3x0",
            "1:t3",
            "1:t3x1,",
            "1:t3x1,t3x1",
            "1:t6x1",
            "1:l1x1",
            "1:q3x1",
            "1:t3x01",
            "1:t3x32769",
            "1:t3x99999999999999999999",
            "1:é3x1",
            "1:l4x32768,l5x1",
            "2:l4x1",
            "0:t3x1",
            "02:t3x1",
            "-1:t3x1",
            "257:t3x1",
        ] {
            assert!(text.parse::<Codes>().is_err(), "{text}");
        }
        let tables = "3:t3x1".parse::<Codes>().unwrap_err();
        assert!(tables.to_string().contains("version \"3\""), "{tables}");
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
        assert!(Codes::uniform(Code::levels(4).unwrap(), 48).is_err());
        assert!(Codes::new(vec![Code::levels(4).unwrap(); 2], 32).is_err());
        assert!(Codes::new(Vec::new(), 0).is_err());
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
