//! Codebook quantisation of a column group, row by row, with error feedback.

use std::ops::Range;

use htc_formats::bands::{CODEBOOK_UNIT, GROUP_COLS, MAX_CODEBOOK_SCALE, QUAD};

use super::coded::CodedColumnGroup;
use super::strip::{TileState, divide_or_zero};
use super::{CodebookEncoder, NearestLevel};
use crate::ErrorFeedback;

/// Range of candidate scales, relative to the best scale without feedback.
const SCALE_SEARCH_RANGE: Range<f32> = 0.7..1.3;

const SCALES_TRIED: usize = 10;

/// Group of a row, in units of the row scale.
struct ScaledGroup {
    width: usize,
    exact: [f32; GROUP_COLS],
    targets: [f32; GROUP_COLS],
}

#[derive(Clone, Copy)]
struct GroupFeedback<'a> {
    feedback: &'a ErrorFeedback,
    start: usize,
}

impl ScaledGroup {
    fn new(unit: f32, exact: &[f32], targets: &[f32]) -> ScaledGroup {
        let in_units = |numbers: &[f32]| {
            let mut of = [0.0; GROUP_COLS];
            let pairs = of.iter_mut().zip(numbers);
            pairs.for_each(|(to, &x)| *to = divide_or_zero(x, unit));
            of
        };
        ScaledGroup {
            width: exact.len().min(GROUP_COLS),
            exact: in_units(exact),
            targets: in_units(targets),
        }
    }

    fn targets(&self) -> &[f32] {
        &self.targets[..self.width]
    }

    /// Returns codes and loss, or `None` once the loss reaches `most`.
    fn quantise(
        &self,
        levels: &CodebookEncoder,
        scale: u8,
        within: Option<GroupFeedback<'_>>,
        most: Option<f32>,
    ) -> Option<([NearestLevel; GROUP_COLS], f32)> {
        let scale = f32::from(scale);
        let inverse = divide_or_zero(1.0, scale);
        let mut codes = [NearestLevel::default(); GROUP_COLS];
        let mut nearest = |c: usize, target: f32| {
            codes[c] = levels.nearest(target * inverse);
            scale * f32::from(codes[c].value)
        };
        let lost = match within {
            Some(GroupFeedback { feedback, start }) => {
                let mut targets = self.targets;
                let exact = &self.exact[..self.width];
                let targets = &mut targets[..self.width];
                feedback.quantise_run(start, exact, targets, most, nearest)?
            }
            None => {
                let targets = self.targets().iter().enumerate();
                targets.for_each(|(c, &target)| _ = nearest(c, target));
                0.0
            }
        };
        Some((codes, lost))
    }

    fn quantise_best(
        &self,
        levels: &CodebookEncoder,
        within: Option<GroupFeedback<'_>>,
    ) -> (u8, [NearestLevel; GROUP_COLS]) {
        let columns = |of: GroupFeedback<'_>| of.start..of.start + self.width;
        let importance = within.map(|of| &of.feedback.importance()[columns(of)]);
        let alone = levels.best_scale(self.targets(), importance);
        let with = |scale, most| self.quantise(levels, scale, within, most);
        let (mut codes, mut least) = with(alone, None).unwrap_or_default();
        let mut best = alone;
        if within.is_none() {
            return (best, codes);
        }
        let [first, last] = [SCALE_SEARCH_RANGE.start, SCALE_SEARCH_RANGE.end]
            .map(|share| share * f32::from(alone));
        let (first, last) = (
            first.max(1.0) as u8,
            (last.ceil() as u8).min(MAX_CODEBOOK_SCALE),
        );
        let step = usize::from(last.saturating_sub(first)) / SCALES_TRIED + 1;
        for scale in (first..=last).step_by(step) {
            if let Some((other, lost)) = with(scale, Some(least)) {
                (best, codes, least) = (scale, other, lost);
            }
        }
        (best, codes)
    }
}

/// Refits the integer scale with fixed codes; returns true if it changed. `slopes` are half of the
/// negative gradient.
pub(super) fn refit_scale(
    feedback: &ErrorFeedback,
    columns: Range<usize>,
    scale: &mut u8,
    values: &mut [f32],
    slopes: &mut [f32],
) -> bool {
    let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let of_column = |col: usize| &feedback.moment[col * feedback.order..][columns.clone()];
    let pairs = columns.clone().zip(values.iter());
    let curve: f32 = pairs
        .map(|(col, value)| value * dot(of_column(col), values))
        .sum();
    let before = f32::from(*scale);
    let best = before * (1.0 + divide_or_zero(dot(values, &slopes[columns.clone()]), curve));
    // The loss is a parabola of the scale.
    let after = best.round().clamp(1.0, f32::from(MAX_CODEBOOK_SCALE));
    if *scale == 0 || after == before || !after.is_finite() {
        return false;
    }
    *scale = after as u8;
    let grown = after / before - 1.0;
    for (col, value) in columns.zip(values) {
        let moved = *value * grown;
        *value += moved;
        feedback.update_slopes(col, moved, slopes);
    }
    true
}

impl TileState {
    /// Quantises a column group; does not carry its error to later ones.
    pub fn quantise_with_codebook(
        &mut self,
        levels: &CodebookEncoder,
        feedback: Option<&ErrorFeedback>,
        columns: Range<usize>,
    ) -> CodedColumnGroup {
        let (start, width) = (columns.start, columns.len());
        let within = feedback.map(|feedback| GroupFeedback { feedback, start });
        let mut scales = vec![0; self.padded];
        let mut quads = std::array::from_fn(|_| vec![0; self.padded * QUAD]);
        for (r, to) in scales.iter_mut().enumerate().take(self.rows) {
            let unit = self.coded.row_scales[0][r] * CODEBOOK_UNIT;
            let at = r * self.cols + start;
            let [exact, targets] = [&self.weights, &self.targets].map(|of| &of[at..][..width]);
            let (scale, codes) =
                ScaledGroup::new(unit, exact, targets).quantise_best(levels, within);
            *to = scale;
            let values = &mut self.values[at..][..width];
            for (c, (value, code)) in values.iter_mut().zip(codes).enumerate() {
                quads[c / QUAD][r * QUAD + c % QUAD] = code.code;
                *value = f32::from(code.value) * unit * f32::from(scale);
            }
        }
        CodedColumnGroup::Codebook(scales, quads)
    }
}

#[cfg(test)]
mod tests;
