//! Rate-distortion curves of matrices in column groups of 32.
//!
//! The error of a column is that of its code times its weight, `D_j Σ_i h_i w_ij²`: `h` is the cost
//! of output errors, `D` the part that error feedback cannot compensate. The loss of a code is
//! measured on a sample of rows and distributed over the groups by weight.

use std::borrow::Cow;

use crate::math::FactoriseError;
use htc_formats::CodecError;
use htc_formats::bands::{
    Code, CodeKind, CodeLayout, Codes, ColumnGroups, GROUP_COLS, GROUP_ROWS, RowClass, RowClasses,
    rotate,
};

use super::curves::MatrixCosts;
use super::sample::{ErrorCost, RowSample};
use crate::math::codes::{QuantisationGuide, encode_column_groups, gaussian_relative_error};
use crate::math::{ErrorFeedback, rotate_moment};
use crate::plan::{LossPoint, MatrixForm};
use crate::unit::MakeError;

const PLANS_PER_MATRIX: usize = 40;

/// Intermediate plans, which use up the rest of a budget: in row classes one group may be a large
/// step.
const INTERMEDIATE_STEPS: u64 = 32;

pub(super) struct MatrixInputs<'a> {
    pub read: &'a MatrixCosts<'a>,
    pub feedback: Option<&'a ErrorFeedback>,
    pub codes: Vec<Code>,
    /// Whether the matrix is rotated before coding.
    pub rotated: bool,
}

impl MatrixInputs<'_> {
    fn codes_of(&self, codes: Vec<Code>) -> Result<Codes, CodecError> {
        let codes = Codes::new(codes, self.read.member.cols)?;
        Ok(if self.rotated {
            codes.with_rotation()
        } else {
            codes
        })
    }
}

pub(super) struct RowClassSample<'a> {
    pub rows: usize,
    pub sample: &'a RowSample,
}

#[derive(Clone, Copy, Debug)]
struct UniformCode {
    code: Code,
    bytes: u64,
    loss: f64,
}

#[derive(Default)]
pub(super) struct ColumnGroupPlans {
    /// Main plans, smallest first.
    pub all: Vec<LossPoint>,
    /// Intermediate plans with less gain per byte.
    pub intermediate: Vec<LossPoint>,
}

/// Returns plans smaller than the source: with all rows as one class, and with the given classes.
/// Empty if out of range for all codes.
pub(super) fn points(
    matrix: &MatrixInputs<'_>,
    all: &RowClassSample<'_>,
    classes: &[RowClassSample<'_>],
) -> Result<ColumnGroupPlans, MakeError> {
    let cols = matrix.read.member.cols;
    if cols == 0 || matrix.codes.is_empty() {
        return Ok(ColumnGroupPlans::default());
    }
    let refused = |source| MakeError::of_tensor(&matrix.read.tensor.name, source);
    let mut points = ColumnGroupPlans::default();
    let whole = measure_codes(matrix, all)?;
    let in_one_class = |codes: Vec<Code>, loss: f64| {
        let codes = matrix.codes_of(codes).map_err(refused)?.into();
        let form = MatrixForm::ColumnGroups { codes };
        Ok::<_, MakeError>(LossPoint { form, loss })
    };
    for one in &whole {
        let codes = vec![one.code; cols.div_ceil(GROUP_COLS)];
        points.all.push(in_one_class(codes, one.loss)?);
    }
    let of_class = |class: &RowClassSample<'_>| -> Result<(Vec<UniformCode>, Vec<f64>), MakeError> {
        Ok((
            lower_hull(measure_codes(matrix, class)?),
            group_weights(matrix, class.sample)?,
        ))
    };
    let (of_whole, _) = plans(&[(lower_hull(whole), group_weights(matrix, all.sample)?)]);
    for (codes, loss) in of_whole {
        for codes in codes {
            points.all.push(in_one_class(codes, loss)?);
        }
    }
    let of_classes: Result<Vec<_>, MakeError> = classes.iter().map(of_class).collect();
    let of_classes = of_classes?;
    if of_classes.len() > 1 {
        let in_classes = |(codes, loss): GroupCodes| -> Result<LossPoint, MakeError> {
            let of = codes.into_iter().zip(classes).map(|(codes, class)| {
                let codes = matrix.codes_of(codes)?;
                let rows = class.rows;
                Ok(RowClass { rows, codes })
            });
            let of: Result<Vec<RowClass>, CodecError> = of.collect();
            let of = of.and_then(RowClasses::new).map_err(refused)?;
            let form = MatrixForm::ColumnGroups {
                codes: CodeLayout::Classes(of),
            };
            Ok(LossPoint { form, loss })
        };
        let (told, between) = plans(&of_classes);
        for shared in told {
            points.all.push(in_classes(shared)?);
        }
        for shared in between {
            points.intermediate.push(in_classes(shared)?);
        }
    }
    let members = std::slice::from_ref(matrix.read.member);
    let before = matrix.read.member.bytes();
    for list in [&mut points.all, &mut points.intermediate] {
        list.retain(|point| point.form.bytes(members) < before);
    }
    Ok(points)
}

fn measure_codes(
    matrix: &MatrixInputs<'_>,
    class: &RowClassSample<'_>,
) -> Result<Vec<UniformCode>, MakeError> {
    let refused = |source| MakeError::of_tensor(&matrix.read.tensor.name, source);
    let mut whole: Vec<UniformCode> = Vec::with_capacity(matrix.codes.len());
    for &code in &matrix.codes {
        // By the errors of Gaussian numbers.
        let in_proportion = !matrix.read.costs.iter().any(|cost| cost.of_logits);
        let below = whole.last().filter(|below| {
            in_proportion
                && !code.bits().is_multiple_of(2)
                && below.code.kind() == code.kind()
                && below.code.bits() + 1 == code.bits()
        });
        let loss = match below {
            Some(below) => Ok(
                below.loss * gaussian_relative_error(code) / gaussian_relative_error(below.code)
            ),
            None => {
                let codes = vec![code; matrix.read.member.cols.div_ceil(GROUP_COLS)];
                let codes = matrix.codes_of(codes).map_err(|e| refused(e.into()))?;
                measure_loss(matrix, class, &codes)
            }
        };
        match loss {
            Ok(loss) => whole.push(UniformCode {
                code,
                bytes: bytes_of_band(code, class.rows),
                loss,
            }),
            // Out of range of the scales.
            Err(FactoriseError::Codec(CodecError::Scale { .. })) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(whole)
}

fn measure_loss(
    matrix: &MatrixInputs<'_>,
    class: &RowClassSample<'_>,
    codes: &Codes,
) -> Result<f64, FactoriseError> {
    let sample = class.sample;
    let weight = sample.weight(&sample.values);
    let bytes = encode_column_groups(
        codes,
        weight,
        QuantisationGuide {
            columns: matrix.feedback,
            rows: None,
            sweeps: sample.sweeps,
        },
    )?;
    let bands = ColumnGroups::new(codes, sample.rows, &bytes)?;
    let mut stored = vec![0.0; sample.values.len()];
    for (row, stored) in stored.chunks_exact_mut(sample.cols).enumerate() {
        bands.decode_row(row, stored)?;
    }
    Ok(matrix.read.loss(sample, &stored))
}

fn bytes_of_band(code: Code, rows: usize) -> u64 {
    let scales = match code.kind() {
        CodeKind::Codebook => 0,
        CodeKind::Trellis => 2 * GROUP_COLS,
    };
    (rows.div_ceil(GROUP_ROWS) * code.group_bytes() + scales) as u64
}

/// Share of each column group in the cost of a class's errors.
fn group_weights(matrix: &MatrixInputs<'_>, sample: &RowSample) -> Result<Vec<f64>, MakeError> {
    let mut columns = vec![0.0; sample.cols];
    let mut values = Cow::Borrowed(&sample.values);
    if matrix.rotated {
        let rows = values.to_mut().chunks_exact_mut(sample.cols);
        rows.for_each(rotate);
    }
    let mut count = |row_worth: &dyn Fn(usize) -> f64, column_worth: &dyn Fn(usize) -> f64| {
        let mut sums = vec![0.0; sample.cols];
        let rows = values.chunks_exact(sample.cols);
        for ((row, &index), of) in rows.zip(&sample.indices).zip(&sample.represented_rows) {
            let of_row = of * row_worth(index);
            for (sum, &w) in sums.iter_mut().zip(row) {
                *sum += of_row * f64::from(w).powi(2);
            }
        }
        for (col, (all, sum)) in columns.iter_mut().zip(sums).enumerate() {
            *all += sum * column_worth(col);
        }
    };
    let feedback = match matrix.feedback {
        Some(feedback) if matrix.rotated => {
            let rotated = feedback.rotated();
            Some(rotated.map_err(|source| MakeError::of_tensor(&matrix.read.tensor.name, source))?)
        }
        feedback => feedback,
    };
    let conditional = |col: usize| {
        let feedback = feedback.map(|feedback| feedback.importance()[col]);
        feedback.map_or(1.0, f64::from)
    };
    if matrix.read.costs.is_empty() {
        count(&|_| 1.0, &conditional);
    }
    for (i, cost) in matrix.read.costs.iter().enumerate() {
        let own = diagonal(cost.order, &cost.moment);
        // Rotation does not change the sum.
        let mean = own.iter().sum::<f64>() / cost.order.max(1) as f64;
        let row = |index: usize| cost.rows.get(index).map_or(0.0, |h| f64::from(h.max(0.0)));
        // Error feedback follows the first cost.
        match (i, feedback) {
            (0, Some(_)) => count(&row, &|col| mean * conditional(col)),
            _ if matrix.rotated => {
                let rotated = rotated_diagonal(cost);
                count(&row, &|col| rotated[col]);
            }
            _ => count(&row, &|col| own[col]),
        }
    }
    let bands = columns
        .chunks(GROUP_COLS)
        .map(|columns| columns.iter().sum::<f64>());
    let bands: Vec<f64> = bands.collect();
    let all: f64 = bands.iter().sum();
    Ok(if all > 0.0 {
        bands.iter().map(|band| band / all).collect()
    } else {
        vec![1.0 / bands.len() as f64; bands.len()]
    })
}

fn diagonal(n: usize, moment: &[f64]) -> Vec<f64> {
    (0..n).map(|col| moment[col * n + col]).collect()
}

fn rotated_diagonal(cost: &ErrorCost) -> Vec<f64> {
    let n = cost.order;
    let entry = |at: usize| {
        let (row, col) = (at / n, at % n);
        cost.moment[row.max(col) * n + row.min(col)]
    };
    let mut whole: Vec<f64> = (0..n * n).map(entry).collect();
    rotate_moment(n, &mut whole);
    diagonal(n, &whole)
}

fn lower_hull(mut all: Vec<UniformCode>) -> Vec<UniformCode> {
    all.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss)));
    let mut hull: Vec<UniformCode> = Vec::with_capacity(all.len());
    for next in all {
        if hull
            .last()
            .is_some_and(|last| next.loss >= last.loss || next.bytes == last.bytes)
        {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if gain_per_byte(&before, &last) > gain_per_byte(&last, &next) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

fn gain_per_byte(from: &UniformCode, to: &UniformCode) -> f64 {
    (from.loss - to.loss) / (to.bytes - from.bytes) as f64
}

type GroupCodes = (Vec<Vec<Code>>, f64);

#[derive(Clone, Copy, Debug)]
struct Step {
    class: usize,
    band: usize,
    from: usize,
    bytes: u64,
    gain: f64,
}

/// Returns plans from all smallest to all largest codes, in steps of about equal bytes, and
/// intermediate plans. A class has a hull of codes and group weights.
fn plans(classes: &[(Vec<UniformCode>, Vec<f64>)]) -> (Vec<GroupCodes>, Vec<GroupCodes>) {
    let mut steps: Vec<Step> = Vec::new();
    let mut codes = Vec::with_capacity(classes.len());
    let (mut loss, mut whole) = (0.0, 0);
    for (class, (hull, worth)) in classes.iter().enumerate() {
        let [first, .., last] = &hull[..] else {
            return Default::default();
        };
        for (band, worth) in worth.iter().enumerate() {
            for (from, pair) in hull.windows(2).enumerate() {
                steps.push(Step {
                    class,
                    band,
                    from,
                    bytes: pair[1].bytes - pair[0].bytes,
                    gain: (pair[0].loss - pair[1].loss) * worth,
                });
            }
        }
        codes.push(vec![first.code; worth.len()]);
        loss += first.loss;
        whole += (last.bytes - first.bytes) * worth.len() as u64;
    }
    let per_byte = |step: &Step| step.gain / step.bytes as f64;
    steps.sort_by(|a, b| {
        let order = per_byte(b).total_cmp(&per_byte(a));
        order.then((a.from, a.class, a.band).cmp(&(b.from, b.class, b.band)))
    });
    let every = whole / PLANS_PER_MATRIX as u64 + 1;
    let (mut bytes, mut told) = (0, 0);
    let mut plans: Vec<GroupCodes> = Vec::with_capacity(PLANS_PER_MATRIX + 1);
    let mut between = Vec::new();
    if classes.len() > 1 {
        add_intermediate(classes, &codes, loss, &steps, every, &mut between);
    }
    for (index, step) in steps.iter().enumerate() {
        codes[step.class][step.band] = classes[step.class].0[step.from + 1].code;
        loss -= step.gain;
        bytes += step.bytes;
        if bytes >= told + every {
            plans.push((codes.clone(), loss.max(0.0)));
            told = bytes;
            if classes.len() > 1 {
                let behind = &steps[index + 1..];
                add_intermediate(classes, &codes, loss, behind, every, &mut between);
            }
        }
    }
    (plans, between)
}

/// For each part of `every` additional bytes, takes the following steps that fit.
fn add_intermediate(
    classes: &[(Vec<UniformCode>, Vec<f64>)],
    codes: &[Vec<Code>],
    loss: f64,
    behind: &[Step],
    every: u64,
    to: &mut Vec<GroupCodes>,
) {
    let mut taken_before = 0;
    for part in 1..=INTERMEDIATE_STEPS {
        let budget = every * part / INTERMEDIATE_STEPS;
        let (mut codes, mut loss, mut taken) = (codes.to_vec(), loss, 0);
        for step in behind {
            let hull = &classes[step.class].0;
            let code = &mut codes[step.class][step.band];
            if taken + step.bytes <= budget && *code == hull[step.from].code {
                *code = hull[step.from + 1].code;
                loss -= step.gain;
                taken += step.bytes;
            }
        }
        if taken > taken_before {
            to.push((codes, loss.max(0.0)));
            taken_before = taken;
        }
    }
}

#[cfg(test)]
mod tests;
