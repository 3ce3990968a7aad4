//! Intrinsic dimensions: PCA at 95 %, and TwoNN (Facco, d'Errico, Rodriguez and Laio 2017).

use std::ops::Range;

use faer::Mat;

use super::record::{Dimension, DimensionLayer, Pca, Stability, TwoNn, rounded};
use super::sample::{Sample, WeightedSample, shuffled};
use crate::calibrate::StoredMoment;
use crate::math::{FactoriseError, Host, symmetric_eigenvalues};
use crate::system::random::Rng;

pub(super) const ENERGY: f64 = 0.95;

const CONFIDENCE: f64 = 0.95;

/// The outermost 25 on either side are left out.
const REPLICATES: usize = 1000;

/// The outermost 5 on either side are left out.
const PCA_REPLICATES: usize = 200;

const MIN_BLOCKS: usize = 8;

/// A layer adds its index.
pub(super) const SEED: u64 = 0x6874_635f_616e_616c;

const SUBSAMPLE_SIZE: usize = 64;

const SUBSAMPLES: usize = 5;

const MAX_DEVIATION: f64 = 1.0;

/// Fraction of the largest ratios left out: distant vectors weigh most and do not follow the law
/// (Facco et al. 2017).
const DISCARDED: f64 = 0.1;

/// Returns the rules, without layers.
pub(super) fn empty() -> Dimension {
    Dimension {
        confidence: CONFIDENCE,
        replicates: REPLICATES,
        pca_replicates: PCA_REPLICATES,
        seed: SEED,
        layers: Vec::new(),
    }
}

pub(super) fn components_for(values: &[f64], part: f64) -> usize {
    let total: f64 = values.iter().map(|v| v.max(0.0)).sum();
    let mut sum = 0.0;
    let reaches = |v: &f64| {
        sum += v.max(0.0);
        sum >= part * total
    };
    if total > 0.0 {
        values
            .iter()
            .position(reaches)
            .map_or(values.len(), |at| at + 1)
    } else {
        0
    }
}

/// Returns the lower triangle of `E[(x − E[x])(x − E[x])ᵀ]`.
pub(super) fn covariance(moment: &StoredMoment) -> Mat<f64> {
    let n = moment.mean.len();
    let mut covariance = Mat::zeros(n, n);
    let mut at = 0;
    for row in 0..n {
        for col in 0..=row {
            let centred = f64::from(moment.second[at]) - moment.mean[row] * moment.mean[col];
            covariance[(row, col)] = centred;
            at += 1;
        }
    }
    covariance
}

pub(super) fn analyse_layer(
    layer: usize,
    moment: &StoredMoment,
    sample: &Sample,
    distances: &Mat<f64>,
) -> Result<DimensionLayer, FactoriseError> {
    let width = moment.mean.len();
    let mut random = Rng(SEED.wrapping_add(layer as u64));
    let value = components_for(&symmetric_eigenvalues(covariance(moment), &Host)?, ENERGY);
    let sample_value = pca(sample)?;
    let blocks = sample.blocks();
    let resampled = resampled_pca(value, sample, &blocks, &mut random)?;
    let relative = |k: f64| rounded(k / width.max(1) as f64);
    let ratios = ratios(distances);
    Ok(DimensionLayer {
        layer,
        pca: Pca {
            value,
            relative: relative(value as f64),
            samples: moment.count,
            sample_value,
            sample_samples: sample.count(),
            windows: blocks.len(),
            replicates_median: resampled.map(|(_, median)| median),
            interval: resampled.map(|(interval, _)| interval),
        },
        twonn: two_nn(&sorted(ratios.iter().flatten())).map(|value| TwoNn {
            value: rounded(value),
            relative: relative(value),
            samples: ratios.iter().flatten().count(),
            interval: two_nn_interval(&ratios, &blocks, &mut random),
        }),
        stability: stability(sample, &mut random)?,
    })
}

fn draw_blocks(blocks: usize, random: &mut Rng) -> Vec<usize> {
    let mut times = vec![0; blocks];
    for _ in 0..blocks {
        times[random.below(blocks)] += 1;
    }
    times
}

type Resampled = ((usize, usize), usize);

/// Resamples windows, since the vectors of one text are dependent (Künsch 1989); returns the
/// interval of `value` and the median of the replicates. `None` for fewer than [`MIN_BLOCKS`]
/// windows.
///
/// Repeated vectors bias the components of a replicate downwards, so the interval is scaled to
/// `value`.
fn resampled_pca(
    value: usize,
    sample: &Sample,
    blocks: &[Range<usize>],
    random: &mut Rng,
) -> Result<Option<Resampled>, FactoriseError> {
    if blocks.len() < MIN_BLOCKS {
        return Ok(None);
    }
    let weighted = WeightedSample::new(sample);
    let mut found = Vec::with_capacity(PCA_REPLICATES);
    for _ in 0..PCA_REPLICATES {
        let times = draw_blocks(blocks.len(), random);
        let each = blocks.iter().zip(times);
        let times: Vec<f64> = each
            .flat_map(|(block, times)| block.clone().map(move |_| times as f64))
            .collect();
        found.push(components_for(&weighted.variances(&times)?, ENERGY));
    }
    found.sort_unstable();
    let median = found[found.len() / 2];
    let Some((low, high)) = interval_ends(&found).filter(|_| median > 0) else {
        return Ok(None);
    };
    let low = value * low / median;
    let high = (value * high).div_ceil(median).min(sample.width());
    Ok(Some(((low, high), median)))
}

fn pca(sample: &Sample) -> Result<usize, FactoriseError> {
    Ok(components_for(&sample.variances()?, ENERGY))
}

fn interval_ends<T: Copy>(sorted: &[T]) -> Option<(T, T)> {
    let outside = ((1.0 - CONFIDENCE) / 2.0 * sorted.len() as f64) as usize;
    let low = sorted.get(outside)?;
    let high = sorted.get(sorted.len().checked_sub(1 + outside)?)?;
    Some((*low, *high))
}

/// `ln(r₂ / r₁)` of the distances to the two nearest neighbours, if positive.
fn ratios(distances: &Mat<f64>) -> Vec<Option<f64>> {
    let n = distances.nrows();
    let of = |i: usize| {
        let (mut nearest, mut next) = (f64::INFINITY, f64::INFINITY);
        for j in (0..n).filter(|&j| j != i) {
            let distance = distances[(i, j)];
            if distance < nearest {
                (nearest, next) = (distance, nearest);
            } else {
                next = next.min(distance);
            }
        }
        (nearest > 0.0 && next.is_finite()).then(|| (next / nearest).ln() / 2.0)
    };
    (0..n).map(of).collect()
}

fn sorted<'a>(values: impl Iterator<Item = &'a f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Fits the slope of `−ln(1 − F(μ))` over `ln μ` through the origin, without the largest ratios.
fn two_nn(ratios: &[f64]) -> Option<f64> {
    let n = ratios.len();
    if n < 3 {
        return None;
    }
    let kept = ((1.0 - DISCARDED) * n as f64) as usize;
    let (mut products, mut squares) = (0.0, 0.0);
    for (i, x) in ratios[..kept].iter().enumerate() {
        let y = -(1.0 - (i + 1) as f64 / n as f64).ln();
        products += x * y;
        squares += x * x;
    }
    let slope = products / squares;
    (squares > 0.0 && slope.is_finite()).then_some(slope)
}

/// Repeated vectors would be their own neighbours in a replicate.
fn two_nn_interval(
    ratios: &[Option<f64>],
    blocks: &[Range<usize>],
    random: &mut Rng,
) -> Option<(f64, f64)> {
    if blocks.len() < MIN_BLOCKS {
        return None;
    }
    let mut found = Vec::with_capacity(REPLICATES);
    for _ in 0..REPLICATES {
        let each = blocks.iter().zip(draw_blocks(blocks.len(), random));
        let rows = each.flat_map(|(block, times)| {
            std::iter::repeat_n(ratios[block.clone()].iter().flatten(), times).flatten()
        });
        found.extend(two_nn(&sorted(rows)));
    }
    found.sort_by(f64::total_cmp);
    let (low, high) = interval_ends(&found)?;
    Some((rounded(low), rounded(high)))
}

fn stability(sample: &Sample, random: &mut Rng) -> Result<Option<Stability>, FactoriseError> {
    if sample.count() < SUBSAMPLE_SIZE {
        return Ok(None);
    }
    let disjoint = sample.count() >= SUBSAMPLES * SUBSAMPLE_SIZE;
    let mut order = shuffled(sample.count(), random);
    let (mut pcas, mut twonns) = (Vec::new(), Vec::new());
    for index in 0..SUBSAMPLES {
        let from = if disjoint { index * SUBSAMPLE_SIZE } else { 0 };
        let small = sample.select(&order[from..from + SUBSAMPLE_SIZE]);
        pcas.push(pca(&small)?);
        let ratios = ratios(&small.distances());
        twonns.extend(two_nn(&sorted(ratios.iter().flatten())).map(rounded));
        if !disjoint {
            order = shuffled(sample.count(), random);
        }
    }
    let dimensions: Vec<f64> = pcas.iter().map(|&k| k as f64).collect();
    Ok(Some(Stability {
        samples: SUBSAMPLE_SIZE,
        pca_stable: is_stable(&dimensions),
        pca: pcas,
        twonn_stable: twonns.len() == SUBSAMPLES && is_stable(&twonns),
        twonn: twonns,
    }))
}

fn is_stable(values: &[f64]) -> bool {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(&median) = sorted.get(sorted.len() / 2) else {
        return false;
    };
    sorted
        .iter()
        .all(|value| (value - median).abs() <= MAX_DEVIATION)
}

#[cfg(test)]
mod tests;
