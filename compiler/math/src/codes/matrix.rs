//! A whole matrix, without calibration: every weight counts the same.

use htc_formats::bands::{
    BAND, BandsError, Codes, CodesError, Kind, LEVEL_UNIT, MAX_SCALE, Packer, QUAD, QUADS,
    STRIP_ROWS, TRELLIS_TABLES,
};

use super::{Levels, Viterbi};

/// Why a matrix has no codes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BandsEncodeError {
    /// Numbers that are not those of so many rows and columns.
    #[error("{rows} rows of {cols} columns are not {found} numbers")]
    Length {
        /// Rows.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Numbers given.
        found: usize,
    },
    /// A number that is not finite.
    #[error("the number {value} in row {row} has no code; it must be finite")]
    NotFinite {
        /// The row.
        row: usize,
        /// The number.
        value: f32,
    },
    /// A scale that is none in f16.
    #[error(transparent)]
    Scale(#[from] BandsError),
    /// A code that there is not.
    #[error(transparent)]
    Code(#[from] CodesError),
}

/// Encodes `w [rows, codes.cols()]`: the scales of rows from their numbers, in a trellis those of columns
/// by least squares behind the search. The same numbers give the same bytes.
///
/// # Errors
/// [`BandsEncodeError::NotFinite`]; [`BandsEncodeError::Scale`] where numbers are too large;
/// [`BandsEncodeError::Length`].
pub fn encode_bands(codes: &Codes, rows: usize, w: &[f32]) -> Result<Vec<u8>, BandsEncodeError> {
    let cols = codes.cols();
    if rows.checked_mul(cols) != Some(w.len()) {
        let found = w.len();
        return Err(BandsEncodeError::Length { rows, cols, found });
    }
    let mut packer = Packer::new(codes, rows);
    let source = Source { rows, cols, w };
    let mut row_scales = [Vec::new(), Vec::new()];
    for (kind, scales) in [Kind::Levels, Kind::Trellis]
        .into_iter()
        .zip(&mut row_scales)
    {
        if codes.has(kind) {
            for row in 0..rows {
                scales.push(packer.row_scale(kind, row, source.row_scale(kind, row)?)?);
            }
        }
    }
    let [levels, trellis] = &row_scales;
    for (band, code) in codes.iter().enumerate() {
        match code.kind() {
            Kind::Levels => band_of_levels(&source, levels, band, code.bits(), &mut packer)?,
            Kind::Trellis => {
                let mut viterbi = Viterbi::new(code.bits())?;
                for quad in 0..QUADS {
                    four_columns(&source, trellis, (band, quad), &mut viterbi, &mut packer)?;
                }
            }
        }
    }
    Ok(packer.finish())
}

/// The matrix to encode.
struct Source<'a> {
    rows: usize,
    cols: usize,
    w: &'a [f32],
}

impl Source<'_> {
    fn row(&self, row: usize) -> &[f32] {
        &self.w[row * self.cols..][..self.cols]
    }

    /// The scale of a row: for levels such that its largest number is about the largest level with the
    /// largest scale, for a trellis the root of the mean square.
    fn row_scale(&self, kind: Kind, row: usize) -> Result<f32, BandsEncodeError> {
        let x = self.row(row);
        if let Some(&value) = x.iter().find(|x| !x.is_finite()) {
            return Err(BandsEncodeError::NotFinite { row, value });
        }
        Ok(match kind {
            Kind::Levels => {
                let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                largest / (LEVEL_UNIT * 127.0 * f32::from(MAX_SCALE))
            }
            Kind::Trellis => {
                let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                (squares / self.cols as f64).sqrt() as f32
            }
        })
    }
}

/// A number over a scale; zero over a scale of zero, where no code matters.
fn over(x: f32, scale: f32) -> f32 {
    if scale > 0.0 { x / scale } else { 0.0 }
}

fn band_of_levels(
    source: &Source<'_>,
    row_scales: &[f32],
    band: usize,
    bits: u8,
    packer: &mut Packer,
) -> Result<(), BandsEncodeError> {
    let levels = Levels::new(bits)?;
    for strip in 0..packer.strips() {
        let padded = packer.strip_rows(strip);
        let mut scales = vec![0; padded];
        let mut codes = vec![[0; QUAD]; padded * QUADS];
        for r in 0..padded.min(source.rows - strip * STRIP_ROWS) {
            let row = strip * STRIP_ROWS + r;
            let unit = row_scales[row] * LEVEL_UNIT;
            let mut x = [0.0; BAND];
            for (x, &w) in x.iter_mut().zip(&source.row(row)[band * BAND..]) {
                *x = over(w, unit);
            }
            scales[r] = levels.scale(&x, None);
            let inverse = over(1.0, scales[r].into());
            for (quad, x) in x.as_chunks::<QUAD>().0.iter().enumerate() {
                codes[quad * padded + r] = x.map(|x| levels.nearest(x * inverse).code);
            }
        }
        packer.level_scales(strip, band, &scales);
        for (quad, codes) in codes.chunks_exact(padded).enumerate() {
            packer.levels(strip, band, quad, codes.as_flattened());
        }
    }
    Ok(())
}

fn four_columns(
    source: &Source<'_>,
    row_scales: &[f32],
    (band, quad): (usize, usize),
    viterbi: &mut Viterbi,
    packer: &mut Packer,
) -> Result<(), BandsEncodeError> {
    let first = band * BAND + quad * QUAD;
    let weights = |row: usize| &source.row(row)[first..][..QUAD];
    // The root of the mean square of each column, over the scales of the rows.
    let mut squares = [0.0_f64; QUAD];
    for (row, &scale) in row_scales.iter().enumerate() {
        for (sum, &w) in squares.iter_mut().zip(weights(row)) {
            *sum += f64::from(over(w, scale)).powi(2);
        }
    }
    let deviation = TRELLIS_TABLES[usize::from(viterbi.bits()) - 2].deviation;
    let columns = squares.map(|sum| (sum / source.rows as f64).sqrt() as f32 / deviation);
    // What the columns' scales should be, now that the integers are known.
    let (mut products, mut values) = ([0.0_f64; QUAD], [0.0_f64; QUAD]);
    for strip in 0..packer.strips() {
        let padded = packer.strip_rows(strip);
        let rows = strip * STRIP_ROWS..source.rows.min((strip + 1) * STRIP_ROWS);
        let mut targets = vec![[0.0; QUAD]; padded];
        for (targets, row) in targets.iter_mut().zip(rows.clone()) {
            for c in 0..QUAD {
                targets[c] = over(weights(row)[c], row_scales[row] * columns[c]);
            }
        }
        let mut states = vec![0; padded * QUAD];
        viterbi.encode(targets.as_flattened(), None, &mut states);
        packer.trellis(strip, band, quad, &states);
        for (states, row) in states.as_chunks::<QUAD>().0.iter().zip(rows) {
            for c in 0..QUAD {
                let value = f64::from(row_scales[row] * viterbi.value(states[c]));
                products[c] += f64::from(weights(row)[c]) * value;
                values[c] += value * value;
            }
        }
    }
    for c in 0..QUAD {
        let scale = if values[c] > 0.0 {
            products[c] / values[c]
        } else {
            0.0
        };
        packer.column_scale(first + c, scale as f32)?;
    }
    Ok(())
}
