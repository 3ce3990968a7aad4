//! Column and row scales.

use crate::FactoriseError;
use htc_formats::CodecError;
use htc_formats::bands::{
    CODEBOOK_UNIT, CodeKind, Codes, ColumnGroupWriter, GROUP_COLS, MAX_CODEBOOK_SCALE, QUAD,
    Trellis, stored_scale,
};

use super::gaussian_relative_error;
use crate::ErrorFeedback;

/// Growth of a row's largest number by error feedback.
const HEADROOM: f32 = 1.2;

/// Mean squares of columns relative to those of their rows.
#[derive(Clone, Debug)]
pub struct ColumnEnergies {
    rows: usize,
    sums: Vec<f64>,
}

impl ColumnEnergies {
    /// Creates empty statistics.
    pub fn new(cols: usize) -> ColumnEnergies {
        ColumnEnergies {
            rows: 0,
            sums: vec![0.0; cols],
        }
    }

    /// Adds the next row.
    ///
    /// # Errors
    /// [`FactoriseError::NoCode`]; [`FactoriseError::Length`].
    pub fn add_row(&mut self, row: &[f32]) -> Result<(), FactoriseError> {
        let cols = self.sums.len();
        if row.len() != cols {
            return Err(FactoriseError::Length {
                rows: 1,
                cols,
                found: row.len(),
            });
        }
        let index = self.rows;
        if let Some(&value) = row.iter().find(|x| !x.is_finite()) {
            return Err(FactoriseError::NoCode { row: index, value });
        }
        self.rows += 1;
        let mean = mean_square(row.iter().copied());
        if mean > 0.0 {
            for (sum, &x) in self.sums.iter_mut().zip(row) {
                *sum += f64::from(x).powi(2) / mean;
            }
        }
        Ok(())
    }

    /// Returns the scales for `codes`, enlarged by the expected carried errors.
    pub fn scales(
        &self,
        codes: &Codes,
        feedback: Option<&ErrorFeedback>,
    ) -> Result<ColumnScales, FactoriseError> {
        let cols = self.sums.len();
        if codes.cols() != cols || feedback.is_some_and(|feedback| feedback.order != cols) {
            return Err(FactoriseError::Length {
                rows: 1,
                cols: codes.cols(),
                found: cols,
            });
        }
        let rows = self.rows.max(1) as f64;
        let natural: Vec<f64> = self.sums.iter().map(|sum| sum / rows).collect();
        let mut grown = natural.clone();
        if let Some(feedback) = feedback {
            for k in 0..cols {
                let error = gaussian_relative_error(codes[k / GROUP_COLS]) * grown[k];
                let factors = &feedback.factor[k * cols..][k + 1..cols];
                for (grown, &factor) in grown[k + 1..].iter_mut().zip(factors) {
                    *grown += f64::from(factor).powi(2) * error;
                }
            }
        }
        let scale = |(col, square): (usize, f64)| {
            Trellis::for_code(codes[col / GROUP_COLS]).map_or(1.0, |tables| {
                let scale = square.sqrt() / f64::from(tables.deviation);
                stored_scale(scale as f32)
            })
        };
        Ok(ColumnScales {
            codes: codes.clone(),
            rms: natural.iter().map(|square| square.sqrt() as f32).collect(),
            scales: grown.into_iter().enumerate().map(scale).collect(),
        })
    }
}

/// Column scales as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnScales {
    codes: Codes,
    rms: Vec<f32>,
    scales: Vec<f32>,
}

impl ColumnScales {
    /// Writes the scales.
    ///
    /// # Errors
    /// [`CodecError::Scale`].
    pub fn pack(&self, packer: &mut ColumnGroupWriter) -> Result<(), CodecError> {
        for (col, &scale) in self.scales.iter().enumerate() {
            if self.codes[col / GROUP_COLS].kind() == CodeKind::Trellis {
                packer.set_column_scale(col, scale)?;
            }
        }
        Ok(())
    }

    pub(super) fn scaled_by(&self, by: &[f64]) -> ColumnScales {
        let scales = self.scales.iter().zip(by);
        // A larger factor is no valid fit.
        let scales =
            scales.map(|(&scale, by)| stored_scale(scale * (1.0 + by.clamp(-0.5, 0.5) as f32)));
        ColumnScales {
            scales: scales.collect(),
            ..self.clone()
        }
    }

    pub(super) fn scales(&self, first: usize) -> [f32; QUAD] {
        std::array::from_fn(|c| self.scales.get(first + c).copied().unwrap_or(0.0))
    }

    /// Returns the scale of a row: for codebooks from its largest number, for a trellis its root
    /// mean square relative to the columns.
    pub(super) fn row_scale(&self, kind: CodeKind, row: &[f32]) -> f32 {
        match kind {
            CodeKind::Codebook => {
                let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                HEADROOM * largest / (CODEBOOK_UNIT * 127.0 * f32::from(MAX_CODEBOOK_SCALE))
            }
            CodeKind::Trellis => {
                let pairs = row.iter().zip(&self.rms);
                let ratios = pairs.map(|(&x, &of)| if of > 0.0 { x / of } else { 0.0 });
                mean_square(ratios).sqrt() as f32
            }
        }
    }
}

fn mean_square(x: impl ExactSizeIterator<Item = f32>) -> f64 {
    let count = x.len().max(1) as f64;
    x.map(|x| f64::from(x).powi(2)).sum::<f64>() / count
}
