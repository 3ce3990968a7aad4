//! Coordinate descent over codebook codes, and row scales by least squares.

use htc_formats::bands::{CODEBOOK_UNIT, CodeKind, Codes, GROUP_COLS, QUAD, QUADS_PER_GROUP};

use super::CodebookEncoder;
use super::groups::refit_scale;
use super::strip::{TileState, divide_or_zero, round_to_f16};
use crate::{ErrorFeedback, FactoriseError, product_of_rows};

impl TileState {
    /// Computes `E C`, half of the negative gradient.
    pub fn compute_slopes(&self, feedback: &ErrorFeedback) -> Vec<f32> {
        let pairs = self.weights.iter().zip(&self.values);
        let errors: Vec<f32> = pairs.map(|(w, value)| w - value).collect();
        product_of_rows(&errors, &feedback.moment, self.cols)
    }

    /// Runs one sweep over a column group: moves each scale, then each code, towards the minimum.
    /// `slopes` is `E C`. Returns true if any changed.
    pub fn sweep_codebook(
        &mut self,
        levels: &CodebookEncoder,
        feedback: &ErrorFeedback,
        band: usize,
        scales: &mut [u8],
        quads: &mut [Vec<u8>; QUADS_PER_GROUP],
        slopes: &mut [f32],
    ) -> bool {
        let n = self.cols;
        let columns = band * GROUP_COLS..((band + 1) * GROUP_COLS).min(n);
        let mut changed = false;
        for r in 0..self.rows {
            let slopes = &mut slopes[r * n..][..n];
            let values = &mut self.values[r * n..][columns.clone()];
            changed |= refit_scale(feedback, columns.clone(), &mut scales[r], values, slopes);
            let unit = self.coded.row_scales[0][r] * CODEBOOK_UNIT * f32::from(scales[r]);
            for (c, col) in columns.clone().enumerate() {
                let step = slopes[col] / feedback.moment[col * n + col];
                let before = self.values[r * n + col];
                let nearest = levels.nearest(divide_or_zero(before + step, unit));
                let value = f32::from(nearest.value) * unit;
                if (value - before - step).abs() >= step.abs() {
                    continue;
                }
                quads[c / QUAD][r * QUAD + c % QUAD] = nearest.code;
                self.values[r * n + col] = value;
                changed = true;
                feedback.update_slopes(col, value - before, slopes);
            }
        }
        changed
    }

    /// Refits the row scales by least squares with fixed codes.
    pub fn refit_row_scales(
        &mut self,
        codes: &Codes,
        feedback: &ErrorFeedback,
    ) -> Result<(), FactoriseError> {
        let slopes = self.compute_slopes(feedback);
        let n = self.cols;
        let of = |kind: CodeKind, values: &[f32]| -> Vec<f32> {
            let kinds = codes
                .iter()
                .flat_map(|code| [code.kind() == kind; GROUP_COLS]);
            let mask: Vec<bool> = kinds.take(n).collect();
            let values = values.iter().zip(mask.iter().cycle());
            values.map(|(&v, &of)| if of { v } else { 0.0 }).collect()
        };
        let parts = CodeKind::ALL.map(|kind| {
            codes.contains_kind(kind).then(|| {
                let part = of(kind, &self.values);
                let products = product_of_rows(&part, &feedback.moment, n);
                (part, products)
            })
        });
        for r in 0..self.rows {
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let pairs = a[r * n..][..n].iter().zip(&b[r * n..][..n]);
                pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let slope = |i: usize| {
                parts[i]
                    .as_ref()
                    .map_or(0.0, |(part, _)| dot(part, &slopes))
            };
            let curve = |i: usize, j: usize| match (&parts[i], &parts[j]) {
                (Some((part, _)), Some((_, products))) => dot(part, products),
                _ => 0.0,
            };
            let (g, h) = ([slope(0), slope(1)], [curve(0, 0), curve(1, 1)]);
            let cross = curve(0, 1);
            let determinant = h[0] * h[1] - cross * cross;
            let by = match [h[0] > 0.0, h[1] > 0.0] {
                [true, true] if determinant > 1e-9 * h[0] * h[1] => [
                    (g[0] * h[1] - g[1] * cross) / determinant,
                    (g[1] * h[0] - g[0] * cross) / determinant,
                ],
                [true, false] => [g[0] / h[0], 0.0],
                [false, true] => [0.0, g[1] / h[1]],
                _ => [0.0, 0.0],
            };
            let mut factors = [1.0; 2];
            for ((scales, by), factor) in self.coded.row_scales.iter_mut().zip(by).zip(&mut factors)
            {
                if let Some(scale) = scales.get_mut(r) {
                    let fit = *scale * (1.0 + by.clamp(-0.5, 0.5) as f32);
                    let before = std::mem::replace(scale, round_to_f16(self.first + r, fit)?);
                    *factor = divide_or_zero(*scale, before);
                }
            }
            let bands = self.values[r * n..][..n].chunks_mut(GROUP_COLS);
            for (values, code) in bands.zip(codes.iter()) {
                let factor = factors[usize::from(code.kind() == CodeKind::Trellis)];
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Ok(())
    }
}
