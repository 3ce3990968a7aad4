//! Column-group matrices with row classes, each with its own codes, so that costlier rows, such as
//! frequent tokens of an embedding, get more bits.
//!
//! The bytes begin with a class map in blocks of 256 rows: for each class the number of its rows
//! before the block, then two bits per row. The matrices of the classes follow, with rows in
//! ascending order.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Code, CodeKind, Codes, ColumnGroups};
use crate::CodecError;
use crate::escape::escape_truncated;
use crate::limits::MAX_VOCABULARY;
use crate::wire;

/// Maximum number of classes of a matrix.
pub const MAX_CLASSES: usize = 4;

/// Rows per block of the class map.
pub const MAP_BLOCK_ROWS: usize = 256;

const MAP_BLOCK_BYTES: usize = 4 * MAX_CLASSES + MAP_BLOCK_ROWS / 4;

/// Number of rows and codes of one class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowClass {
    /// Number of rows.
    pub rows: usize,
    /// Code of each column group.
    pub codes: Codes,
}

/// The two to four classes of a matrix. Clones share memory.
///
/// As text, and in a manifest, a class is `rows*codes`, and classes are separated by semicolons:
/// `8192*2:t4x20;253952*2:t2x20`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowClasses(Arc<[RowClass]>);

impl RowClasses {
    /// Creates the list of classes.
    ///
    /// # Errors
    /// [`CodecError::Classes`] for fewer than two or more than [`MAX_CLASSES`] classes, an empty
    /// class, or classes of different widths.
    pub fn new(classes: Vec<RowClass>) -> Result<RowClasses, CodecError> {
        let wrong = |found: String| Err(CodecError::Classes { found });
        if !(2..=MAX_CLASSES).contains(&classes.len()) {
            return wrong(format!("{} classes", classes.len()));
        }
        if classes.iter().any(|class| class.rows == 0) {
            return wrong("a class without rows".to_owned());
        }
        if classes.iter().any(|class| class.rows > MAX_VOCABULARY) {
            return wrong(format!("a class of more than {MAX_VOCABULARY} rows"));
        }
        let mut widths = classes.iter().map(|class| class.codes.cols());
        let first = widths.next();
        if let Some(other) = widths.find(|width| Some(*width) != first) {
            return wrong(format!(
                "classes of {} and {other} columns",
                first.unwrap_or(0)
            ));
        }
        Ok(RowClasses(classes.into()))
    }

    /// Iterates over the classes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &RowClass> + Clone {
        self.0.iter()
    }

    /// Total number of rows.
    pub fn rows(&self) -> usize {
        self.iter().map(|class| class.rows).sum()
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.0.first().map_or(0, |class| class.codes.cols())
    }

    /// Size of the matrix in bytes.
    pub fn bytes(&self) -> u64 {
        self.iter().fold(self.map_bytes(), |at, class| {
            align(at).saturating_add(class.codes.bytes(class.rows))
        })
    }

    fn map_bytes(&self) -> u64 {
        (self.rows().div_ceil(MAP_BLOCK_ROWS) * MAP_BLOCK_BYTES) as u64
    }

    pub(super) fn class_range(&self, index: usize) -> std::ops::Range<usize> {
        let mut end = self.map_bytes();
        let mut start = end;
        for class in self.iter().take(index + 1) {
            start = align(end);
            end = start.saturating_add(class.codes.bytes(class.rows));
        }
        start as usize..end as usize
    }

    /// Assembles the bytes of the matrix from the class of each row and the bytes of each class.
    ///
    /// # Panics
    /// If rows or bytes do not match the classes.
    pub fn pack(&self, of_rows: &[u8], classes: &[Vec<u8>]) -> Vec<u8> {
        assert_eq!(of_rows.len(), self.rows());
        assert_eq!(classes.len(), self.0.len());
        let mut bytes = vec![0; self.bytes() as usize];
        let mut before = [0_u32; MAX_CLASSES];
        let blocks = bytes.chunks_exact_mut(MAP_BLOCK_BYTES);
        for (rows, block) in of_rows.chunks(MAP_BLOCK_ROWS).zip(blocks) {
            let (counts, of_block) = block.split_at_mut(4 * MAX_CLASSES);
            for (to, count) in counts.chunks_exact_mut(4).zip(before) {
                to.copy_from_slice(&count.to_le_bytes());
            }
            for (row, &class) in rows.iter().enumerate() {
                of_block[row / 4] |= class << (2 * (row % 4));
                before[usize::from(class)] += 1;
            }
        }
        let counted = before.iter().zip(self.iter());
        assert!(counted.clone().all(|(&n, class)| n as usize == class.rows));
        for (index, class) in classes.iter().enumerate() {
            bytes[self.class_range(index)].copy_from_slice(class);
        }
        bytes
    }
}

fn align(at: u64) -> u64 {
    wire::align_up(at, 64).unwrap_or(u64::MAX)
}

impl fmt::Display for RowClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, class) in self.iter().enumerate() {
            let between = if i > 0 { ";" } else { "" };
            write!(f, "{between}{}*{}", class.rows, class.codes)?;
        }
        Ok(())
    }
}

/// Layout of a column-group matrix: the same codes in all rows, or row classes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CodeLayout {
    /// The same codes in all rows.
    Uniform(Codes),
    /// Row classes.
    Classes(RowClasses),
}

impl CodeLayout {
    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            CodeLayout::Uniform(codes) => codes.cols(),
            CodeLayout::Classes(classes) => classes.cols(),
        }
    }

    /// Columns of padding in the last column group, 0 to 31.
    pub fn padding(&self) -> usize {
        self.codes_with_rows(0)
            .map(|(_, codes)| codes.padding())
            .max()
            .unwrap_or(0)
    }

    /// Returns true if rows of any class are stored [rotated](super::rotate).
    pub fn is_rotated(&self) -> bool {
        self.codes_with_rows(0).any(|(_, codes)| codes.is_rotated())
    }

    /// Returns the error if the layout does not fit a matrix of `cols` columns.
    pub fn width_error(&self, cols: usize) -> Option<CodecError> {
        self.codes_with_rows(0)
            .find_map(|(_, codes)| codes.width_error(cols))
    }

    /// Returns true if the layout fits a matrix of `rows` rows.
    pub fn has_rows(&self, rows: usize) -> bool {
        match self {
            CodeLayout::Uniform(_) => true,
            CodeLayout::Classes(classes) => classes.rows() == rows,
        }
    }

    /// Returns the size in bytes of a matrix of `rows` rows.
    pub fn bytes(&self, rows: usize) -> u64 {
        match self {
            CodeLayout::Uniform(codes) => codes.bytes(rows),
            CodeLayout::Classes(classes) => classes.bytes(),
        }
    }

    /// Returns the code of the matrix if all column groups and rows share one.
    pub fn uniform_code(&self) -> Option<Code> {
        match self {
            CodeLayout::Uniform(codes) => codes.uniform_code(),
            CodeLayout::Classes(_) => None,
        }
    }

    /// Iterates over the codes of a matrix, each with its number of rows.
    pub fn codes_with_rows(&self, rows: usize) -> impl Iterator<Item = (usize, &Codes)> {
        let (whole, classes) = match self {
            CodeLayout::Uniform(codes) => (Some((rows, codes)), None),
            CodeLayout::Classes(classes) => (None, Some(classes)),
        };
        let classes = classes.into_iter().flat_map(RowClasses::iter);
        whole
            .into_iter()
            .chain(classes.map(|class| (class.rows, &class.codes)))
    }

    /// Returns true if any column group has this kind.
    pub fn contains_kind(&self, kind: CodeKind) -> bool {
        self.codes_with_rows(0)
            .any(|(_, codes)| codes.contains_kind(kind))
    }

    /// Returns the mean of a property of codes, weighted by their number of weights.
    pub fn weighted_mean(&self, of: impl Fn(Code) -> f64) -> f64 {
        let each = self.codes_with_rows(1).map(|(rows, codes)| {
            let sum: f64 = codes.iter().map(|&code| of(code)).sum();
            (rows as f64, sum / codes.len() as f64)
        });
        let (rows, sum) = each.fold((0.0, 0.0), |(rows, sum), (n, mean)| {
            (rows + n, sum + n * mean)
        });
        sum / rows
    }

    /// Mean bits per weight, without scales.
    pub fn mean_bits(&self) -> f64 {
        self.weighted_mean(|code| f64::from(code.bits()))
    }

    /// Returns a view of `bytes` as a matrix of `rows` rows; the content is checked by
    /// [`ColumnGroupMatrix::check`] only.
    ///
    /// # Errors
    /// [`CodecError::ColumnGroupLength`].
    pub fn view<'a>(
        &'a self,
        rows: usize,
        bytes: &'a [u8],
    ) -> Result<ColumnGroupMatrix<'a>, CodecError> {
        match self {
            CodeLayout::Uniform(codes) => Ok(ColumnGroupMatrix::Uniform(ColumnGroups::new(
                codes, rows, bytes,
            )?)),
            CodeLayout::Classes(classes) => {
                let classed = RowClassMatrix::new(classes, rows, bytes)?;
                Ok(ColumnGroupMatrix::Classes(classed))
            }
        }
    }
}

impl From<Codes> for CodeLayout {
    fn from(codes: Codes) -> CodeLayout {
        CodeLayout::Uniform(codes)
    }
}

impl fmt::Display for CodeLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodeLayout::Uniform(codes) => codes.fmt(f),
            CodeLayout::Classes(classes) => classes.fmt(f),
        }
    }
}

impl FromStr for CodeLayout {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.contains('*') {
            return text.parse().map(CodeLayout::Uniform);
        }
        let malformed = |found: &str| CodecError::MalformedCodes {
            expected: "rows, a star and codes, as 8192*2:t4x20".to_owned(),
            found: escape_truncated(found),
        };
        let classes = text.splitn(MAX_CLASSES + 1, ';').map(|class| {
            let (rows, codes) = class.split_once('*').ok_or_else(|| malformed(class))?;
            let number: usize = rows.parse().map_err(|_| malformed(class))?;
            if number.to_string() != rows {
                return Err(malformed(class));
            }
            let codes = codes.parse()?;
            Ok(RowClass {
                rows: number,
                codes,
            })
        });
        let classes: Result<Vec<RowClass>, CodecError> = classes.collect();
        RowClasses::new(classes?).map(CodeLayout::Classes)
    }
}

crate::serde_as_text!(CodeLayout);

/// View of the bytes of a column-group matrix.
#[derive(Clone, Copy, Debug)]
pub enum ColumnGroupMatrix<'a> {
    /// The same codes in all rows.
    Uniform(ColumnGroups<'a>),
    /// Row classes.
    Classes(RowClassMatrix<'a>),
}

impl ColumnGroupMatrix<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            ColumnGroupMatrix::Uniform(bands) => bands.rows(),
            ColumnGroupMatrix::Classes(classes) => classes.rows(),
        }
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            ColumnGroupMatrix::Uniform(bands) => bands.cols(),
            ColumnGroupMatrix::Classes(classes) => classes.cols(),
        }
    }

    /// Checks that all scales of rows and columns are finite and that a class map is consistent.
    ///
    /// # Errors
    /// [`CodecError::InconsistentClassMap`] for an inconsistent map, [`CodecError::Scale`] for the
    /// first scale that is not finite.
    pub fn check(&self) -> Result<(), CodecError> {
        match self {
            ColumnGroupMatrix::Uniform(bands) => bands.check_scales(),
            ColumnGroupMatrix::Classes(classes) => {
                classes.check_map()?;
                classes.classes().try_for_each(|class| class.check_scales())
            }
        }
    }

    /// Decodes a row, see [`ColumnGroups::decode_row`].
    ///
    /// # Errors
    /// [`CodecError::Row`].
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), CodecError> {
        match self {
            ColumnGroupMatrix::Uniform(bands) => bands.decode_row(row, out),
            ColumnGroupMatrix::Classes(classes) => classes.decode_row(row, out),
        }
    }
}

/// View of the bytes of a matrix with row classes.
#[derive(Clone, Copy, Debug)]
pub struct RowClassMatrix<'a> {
    classes: &'a RowClasses,
    bytes: &'a [u8],
}

/// A block of the class map.
pub struct MapBlock<'a> {
    /// Number of rows of each class before the block.
    pub before: [usize; MAX_CLASSES],
    row_classes: &'a [u8],
}

impl MapBlock<'_> {
    /// Returns the class of a row of the block.
    pub fn class(&self, row: usize) -> usize {
        usize::from(self.row_classes[row / 4] >> (2 * (row % 4)) & 3)
    }
}

impl<'a> RowClassMatrix<'a> {
    /// Creates a view of `bytes` as a matrix of `rows` rows.
    ///
    /// # Errors
    /// [`CodecError::ColumnGroupLength`]; the content is checked by [`ColumnGroupMatrix::check`]
    /// only.
    pub fn new(classes: &'a RowClasses, rows: usize, bytes: &'a [u8]) -> Result<Self, CodecError> {
        let (expected, found) = (classes.bytes(), bytes.len() as u64);
        if expected != found || classes.rows() != rows {
            return Err(CodecError::ColumnGroupLength {
                rows,
                cols: classes.cols(),
                expected,
                found,
            });
        }
        Ok(RowClassMatrix { classes, bytes })
    }

    fn check_map(&self) -> Result<(), CodecError> {
        let mut counted = [0; MAX_CLASSES];
        for first in (0..self.rows()).step_by(MAP_BLOCK_ROWS) {
            let block = self.block(first / MAP_BLOCK_ROWS);
            if block.before != counted {
                return Err(CodecError::InconsistentClassMap { row: first });
            }
            let here = MAP_BLOCK_ROWS.min(self.rows() - first);
            for (class, count) in counted.iter_mut().enumerate() {
                *count += count_rows(block.row_classes, here, class);
            }
        }
        let mut expected = [0; MAX_CLASSES];
        for (to, class) in expected.iter_mut().zip(self.classes.iter()) {
            *to = class.rows;
        }
        if counted == expected {
            Ok(())
        } else {
            Err(CodecError::InconsistentClassMap { row: self.rows() })
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.classes.rows()
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.classes.cols()
    }

    /// Iterates over the classes, each a matrix of its rows.
    pub fn classes(&self) -> impl Iterator<Item = ColumnGroups<'a>> {
        let of = *self;
        (0..self.classes.0.len()).filter_map(move |index| of.class(index))
    }

    /// Returns the rows of a class as a matrix.
    pub fn class(&self, index: usize) -> Option<ColumnGroups<'a>> {
        let class = self.classes.0.get(index)?;
        let bytes = self.bytes.get(self.classes.class_range(index))?;
        ColumnGroups::new(&class.codes, class.rows, bytes).ok()
    }

    /// Returns a block of [`MAP_BLOCK_ROWS`] rows of the map.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn block(&self, index: usize) -> MapBlock<'a> {
        let block = &self.bytes[index * MAP_BLOCK_BYTES..][..MAP_BLOCK_BYTES];
        let (counts, of_rows) = block.split_at(4 * MAX_CLASSES);
        let (counts, _) = counts.as_chunks::<4>();
        let mut before = [0; MAX_CLASSES];
        for (to, &count) in before.iter_mut().zip(counts) {
            *to = u32::from_le_bytes(count) as usize;
        }
        MapBlock {
            before,
            row_classes: of_rows,
        }
    }

    /// Returns the class of a row and the row's index within it.
    ///
    /// # Panics
    /// If `row` is out of range.
    pub fn locate_row(&self, row: usize) -> (usize, usize) {
        let block = self.block(row / MAP_BLOCK_ROWS);
        let row = row % MAP_BLOCK_ROWS;
        let class = block.class(row);
        (
            class,
            block.before[class] + count_rows(block.row_classes, row, class),
        )
    }

    /// Decodes a row.
    ///
    /// # Errors
    /// [`CodecError::Row`].
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), CodecError> {
        let outside = CodecError::Row {
            row,
            rows: self.rows(),
            buffer_len: out.len(),
            cols: self.cols(),
        };
        if row >= self.rows() {
            return Err(outside);
        }
        let (class, index) = self.locate_row(row);
        self.class(class).ok_or(outside)?.decode_row(index, out)
    }
}

fn count_rows(of_rows: &[u8], rows: usize, class: usize) -> usize {
    let whole = &of_rows[..rows / 4];
    let same = [0b11_11_11_11_u8, 0b10_10_10_10, 0b01_01_01_01, 0][class & 3];
    let has = |byte: u8| {
        let found = byte ^ same;
        found & (found >> 1) & 0b01_01_01_01
    };
    let mut count: u32 = whole.iter().map(|&byte| has(byte).count_ones()).sum();
    if let Some(&last) = of_rows.get(rows / 4) {
        let mask = (1_u8 << (2 * (rows % 4))) - 1;
        count += (has(last) & mask).count_ones();
    }
    count as usize
}
