//! Losses of low-rank factors for the candidates that pass the [bound](super::bound).
//!
//! A projection is decomposed once under its output gauge; rounded factors are measured on the same
//! rows as codes. The loss counts [`TIMES`] times.

use htc_formats::DType;
use htc_formats::block;

use super::bound::{EnergySpectrum, FACTOR_LOSS_MULTIPLIER};
use super::curves::{CurveInputs, MatrixCosts};
use super::sample::RowSample;
use crate::math::{BasisOptions, Gauge, LowRankOptions, Weight, low_rank_with, shared_basis_with};
use crate::plan::{
    self, LossCurve, LossPoint, MatrixForm, SharedLossCurve, SharedLossPoint, UnitMatrix,
};
use crate::unit::{MakeError, decomposition_path, dense_weight, dense_weights};

/// Yields matrices with the same input together: Q, K, V and gate, up; others alone.
pub(crate) fn input_groups(members: &[UnitMatrix]) -> impl Iterator<Item = &[UnitMatrix]> {
    let of = |member: &UnitMatrix| Some((member.matrix.layer()?, member.projection()?.group()?));
    members.chunk_by(move |a, b| of(a).is_some() && of(a) == of(b))
}

/// Returns the groups that may share a basis.
pub(super) fn groups(members: &[UnitMatrix]) -> Vec<Vec<UnitMatrix>> {
    let groups = input_groups(members);
    let shares = |group: &&[UnitMatrix]| {
        let outs: usize = group.iter().map(|member| member.rows).sum();
        group.len() > 1 && group[0].cols <= plan::MAX_ASPECT * outs
    };
    groups.filter(shares).map(<[UnitMatrix]>::to_vec).collect()
}

/// Returns the smallest ratio of the bound to the codes' loss.
pub(super) fn add_factors(
    inputs: CurveInputs<'_>,
    read: &MatrixCosts<'_>,
    sample: &RowSample,
    curve: &mut LossCurve,
) -> Result<Option<f64>, MakeError> {
    let reads = std::slice::from_ref(read);
    let Some(spectrum) = EnergySpectrum::of_projections(inputs, reads)? else {
        return Ok(None);
    };
    let members = std::slice::from_ref(read.member);
    let codes = plan::pareto_sums_of(members, std::slice::from_ref(curve));
    let Some(screened) = spectrum.screen(members, &codes) else {
        return Ok(None);
    };
    if screened.forms.is_empty() {
        return Ok(Some(screened.closest));
    }
    let weight = dense_weight(inputs.source, read.member)?;
    let weight = read.member.weight(&weight);
    let gauge = gauge(inputs, read)?;
    let options = LowRankOptions {
        method: decomposition_path(read.member.projection(), &gauge),
        input: &gauge,
        algebra: inputs.treatment.algebra,
        ..LowRankOptions::default()
    };
    let found = low_rank_with(weight, screened.largest(), &options);
    let found = found.map_err(|error| MakeError::of_tensor(&read.tensor.name, error))?;
    let factors = Factors {
        first: &found.a,
        second: &found.b,
        rank: screened.largest(),
        cols: weight.cols,
    };
    for form in screened.forms {
        if let Some(stored) = factors.stored(&form, sample) {
            let loss = FACTOR_LOSS_MULTIPLIER * read.loss(sample, &stored);
            curve.points.push(LossPoint { form, loss });
        }
    }
    Ok(Some(screened.closest))
}

/// Measures a shared basis; returns its curve and the smallest ratio of the bound to the codes'
/// loss.
pub(super) fn shared_basis_curve(
    inputs: CurveInputs<'_>,
    reads: &[MatrixCosts<'_>],
    curves: &[LossCurve],
) -> Result<(Option<SharedLossCurve>, Option<f64>), MakeError> {
    let Some(spectrum) = EnergySpectrum::of_projections(inputs, reads)? else {
        return Ok((None, None));
    };
    let members: Vec<UnitMatrix> = reads.iter().map(|read| *read.member).collect();
    let codes = plan::pareto_sums_of(&members, curves);
    let Some(screened) = spectrum.screen(&members, &codes) else {
        return Ok((None, None));
    };
    let (Some(first), false) = (reads.first(), screened.forms.is_empty()) else {
        return Ok((None, Some(screened.closest)));
    };
    let dense = dense_weights(inputs.source, &members)?;
    let weights = members.iter().zip(&dense);
    let weights: Vec<Weight<'_>> = weights.map(|(one, of)| one.weight(of)).collect();
    let options = BasisOptions {
        gauge: &*gauge(inputs, first)?,
        algebra: inputs.treatment.algebra,
        ..BasisOptions::default()
    };
    let largest = screened.largest();
    let found = shared_basis_with(&weights, largest, &options);
    let found = found.map_err(|error| MakeError::of_tensor(&first.tensor.name, error))?;
    let effort = inputs.treatment.effort.settings();
    let samples = reads.iter().map(|read| read.sample(inputs, effort));
    let samples: Vec<RowSample> = samples.collect::<Result<_, _>>()?;
    let points = screened.forms.into_iter().filter_map(|form| {
        let each = reads.iter().zip(&samples).zip(&found.projected);
        let losses = each.map(|((read, sample), second)| {
            let factors = Factors {
                first: &found.basis,
                second,
                rank: largest,
                cols: read.member.cols,
            };
            let stored = factors.stored(&form, sample)?;
            Some(FACTOR_LOSS_MULTIPLIER * read.loss(sample, &stored))
        });
        let losses: Vec<f64> = losses.collect::<Option<_>>()?;
        Some(SharedLossPoint { form, losses })
    });
    let curve = SharedLossCurve {
        members: members.iter().map(|member| member.matrix).collect(),
        points: points.collect(),
    };
    Ok((Some(curve), Some(screened.closest)))
}

fn gauge(
    inputs: CurveInputs<'_>,
    read: &MatrixCosts<'_>,
) -> Result<std::sync::Arc<Gauge>, MakeError> {
    let gauge = read.place.map(|place| inputs.treatment.gauge(place));
    let gauge = gauge.transpose();
    Ok(gauge
        .map_err(|error| MakeError::of_tensor(&read.tensor.name, error))?
        .unwrap_or_default())
}

/// `first [rank, cols]`, `second [outs, rank]`.
struct Factors<'a> {
    first: &'a [f32],
    second: &'a [f32],
    rank: usize,
    cols: usize,
}

impl Factors<'_> {
    /// Decodes the sampled rows; `None` if out of range.
    fn stored(&self, form: &MatrixForm, sample: &RowSample) -> Option<Vec<f32>> {
        let rank = form.rank().filter(|rank| *rank <= self.rank)?;
        let [first, second] = form.factor_types();
        let first = round_to_type(first, &self.first[..rank * self.cols])?;
        let rows = sample.indices.iter();
        let own: Vec<f32> = rows
            .flat_map(|row| &self.second[row * self.rank..][..rank])
            .copied()
            .collect();
        let second = round_to_type(second, &own)?;
        let mut stored = vec![0.0; sample.rows * self.cols];
        let rows = second.chunks_exact(rank);
        for (to, of) in stored.chunks_exact_mut(self.cols).zip(rows) {
            for (component, of) in first.chunks_exact(self.cols).zip(of) {
                let products = component.iter().map(|value| of * value);
                to.iter_mut().zip(products).for_each(|(to, x)| *to += x);
            }
        }
        Some(stored)
    }
}

fn round_to_type(dtype: DType, values: &[f32]) -> Option<Vec<f32>> {
    let mut bytes = vec![0; dtype.matrix_bytes(1, values.len())?];
    block::encode(dtype, values, &mut bytes).ok()?;
    let mut stored = vec![0.0; values.len()];
    block::decode(dtype, &bytes, &mut stored).ok()?;
    let finite = stored.iter().all(|value| value.is_finite());
    finite.then_some(stored)
}

#[cfg(test)]
mod tests;
