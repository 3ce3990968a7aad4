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
mod tests {
    use super::*;
    use crate::SecondMoment;
    use crate::random::Rng;

    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut random = Rng(seed);
        (0..count).map(|_| random.normal() as f32).collect()
    }

    fn within(feedback: &ErrorFeedback) -> Option<GroupFeedback<'_>> {
        Some(GroupFeedback { feedback, start: 0 })
    }

    fn feedback() -> ErrorFeedback {
        let of = numbers(1, GROUP_COLS * 4);
        let entry = |at: usize| {
            let (i, j) = (at / GROUP_COLS, at % GROUP_COLS);
            let pairs = of[4 * i..][..4].iter().zip(&of[4 * j..]);
            let own = if i == j { 0.1 } else { 0.0 };
            pairs.map(|(a, b)| f64::from(a * b)).sum::<f64>() + own
        };
        let moment: Vec<f64> = (0..GROUP_COLS * GROUP_COLS).map(entry).collect();
        let moment = SecondMoment {
            order: GROUP_COLS,
            values: &moment,
        };
        ErrorFeedback::new(moment, 0.01).unwrap()
    }

    #[test]
    fn best_scale_with_feedback_beats_the_scale_without() {
        let feedback = feedback();
        let within = within(&feedback);
        for bits in 2..=4 {
            let levels = CodebookEncoder::new(bits).unwrap();
            let (mut alone, mut fed) = (0.0, 0.0);
            for seed in 0..40 {
                let row: Vec<f32> = numbers(seed, GROUP_COLS)
                    .iter()
                    .map(|x| x * 1500.0)
                    .collect();
                let group = ScaledGroup::new(1.0, &row, &row);
                let lost = |scale: u8| {
                    let (codes, lost) = group.quantise(&levels, scale, within, None).unwrap();
                    let errors: Vec<f64> = row
                        .iter()
                        .zip(codes)
                        .map(|(w, code)| f64::from(*w) - f64::from(scale) * f64::from(code.value))
                        .collect();
                    let exact: f64 = (0..GROUP_COLS * GROUP_COLS)
                        .map(|at| {
                            let entry = f64::from(feedback.moment[at]);
                            errors[at / GROUP_COLS] * entry * errors[at % GROUP_COLS]
                        })
                        .sum();
                    assert!(
                        (exact / f64::from(lost) - 1.0).abs() < 1e-2,
                        "{exact} {lost}"
                    );
                    exact
                };
                let (best, codes) = group.quantise_best(&levels, within);
                assert_eq!(
                    codes,
                    group.quantise(&levels, best, within, None).unwrap().0
                );
                let found = lost(best);
                let plain = levels.best_scale(group.targets(), Some(feedback.importance()));
                assert!(found <= lost(plain) * 1.001);
                (alone, fed) = (alone + lost(plain), fed + found);
            }
            assert!(fed < 0.9 * alone, "{bits} bits: {fed} of {alone}");
        }
    }

    fn slopes(feedback: &ErrorFeedback, errors: &[f64]) -> Vec<f64> {
        let column = |col: usize| {
            let entries = errors.iter().enumerate();
            let products =
                entries.map(|(k, e)| e * f64::from(feedback.moment[k * GROUP_COLS + col]));
            products.sum::<f64>()
        };
        (0..GROUP_COLS).map(column).collect()
    }

    #[test]
    fn fitted_scale_is_optimal_and_updates_the_slopes() {
        let feedback = feedback();
        let mut fitted = 0;
        for seed in 0..40 {
            let row = numbers(seed, GROUP_COLS);
            let codes: Vec<f64> = row.iter().map(|w| f64::from((w * 3.0).round())).collect();
            let errors = |scale: f64| -> Vec<f64> {
                let pairs = row.iter().zip(&codes);
                pairs
                    .map(|(w, code)| f64::from(*w) - code * scale / 100.0)
                    .collect()
            };
            let lost = |scale: u8| -> f64 {
                let errors = errors(scale.into());
                let slopes = slopes(&feedback, &errors);
                errors.iter().zip(slopes).map(|(e, slope)| e * slope).sum()
            };
            let mut scale = 20 + (seed % 30) as u8;
            let before = scale;
            let of = |scale: u8| {
                codes
                    .iter()
                    .map(move |code| (code * f64::from(scale) / 100.0) as f32)
            };
            let mut values: Vec<f32> = of(scale).collect();
            let initial = slopes(&feedback, &errors(scale.into()));
            let mut found: Vec<f32> = initial.iter().map(|&slope| slope as f32).collect();
            let changed = refit_scale(
                &feedback,
                0..GROUP_COLS,
                &mut scale,
                &mut values,
                &mut found,
            );
            assert_eq!(changed, scale != before);
            fitted += usize::from(changed);
            let least = (1..=MAX_CODEBOOK_SCALE)
                .map(lost)
                .fold(f64::INFINITY, f64::min);
            assert!(lost(scale) <= least * 1.0001, "{seed}: {scale}");
            assert!(
                values
                    .iter()
                    .zip(of(scale))
                    .all(|(a, b)| (a - b).abs() < 1e-5)
            );
            let expected = slopes(&feedback, &errors(scale.into()));
            let size = initial
                .iter()
                .fold(1e-3, |most: f64, slope| most.max(slope.abs()));
            for (found, expected) in found.iter().zip(expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-4 * size, "{seed}");
            }
        }
        assert!(fitted > 20, "{fitted}");
    }

    #[test]
    fn a_group_of_zeros_has_no_scale() {
        let feedback = feedback();
        let within = within(&feedback);
        let levels = CodebookEncoder::new(2).unwrap();
        let zeros = [0.0; GROUP_COLS];
        for group in [
            ScaledGroup::new(1.0, &zeros, &zeros),
            ScaledGroup::new(0.0, &zeros, &[1.0; GROUP_COLS]),
        ] {
            let (scale, codes) = group.quantise_best(&levels, within);
            assert_eq!(scale, 0);
            assert!(codes.iter().all(|code| code.code == 0));
        }
    }
}
