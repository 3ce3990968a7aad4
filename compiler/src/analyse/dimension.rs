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
mod tests {
    use super::*;

    fn uniform(count: usize, dimension: usize, embed: impl Fn(&[f64]) -> Vec<f64>) -> Sample {
        let mut random = Rng(5);
        let mut values = Vec::new();
        let mut width = 0;
        for _ in 0..count {
            let point: Vec<f64> = (0..dimension).map(|_| random.unit()).collect();
            let row = embed(&point);
            width = row.len();
            values.extend(row.iter().map(|&x| x as f32));
        }
        Sample::new(&values, width, &(0..count).collect::<Vec<_>>())
    }

    #[test]
    fn two_nn_finds_the_dimension_of_a_cube_and_of_a_line() {
        let cube = uniform(1500, 3, <[f64]>::to_vec);
        let ratios_of_cube = ratios(&cube.distances());
        let alone: Vec<Range<usize>> = cube.blocks();
        let found = two_nn(&sorted(ratios_of_cube.iter().flatten())).unwrap();
        assert!((2.7..3.3).contains(&found), "{found}");
        let (low, high) = two_nn_interval(&ratios_of_cube, &alone, &mut Rng(1)).unwrap();
        assert!(
            low < found && found < high && high - low < 0.6,
            "{low} {high}"
        );
        let line = uniform(1000, 1, |t| {
            (0..20).map(|i| f64::from(i - 7) * t[0] + 3.0).collect()
        });
        let found = two_nn(&sorted(ratios(&line.distances()).iter().flatten())).unwrap();
        assert!((0.9..1.1).contains(&found), "{found}");
    }

    #[test]
    fn the_fit_is_exact_where_the_law_holds() {
        for d in [0.5, 4.0, 17.0] {
            let n = 200;
            let quantile = |i: usize| -(1.0 - (i + 1) as f64 / n as f64).max(1e-9).ln() / d;
            let ratios: Vec<f64> = (0..n).map(quantile).collect();
            assert!((two_nn(&ratios).unwrap() / d - 1.0).abs() < 1e-12);
        }
        assert!(two_nn(&[0.0; 40]).is_none() && two_nn(&[0.1, 0.2]).is_none());
    }

    #[test]
    fn components_are_the_fewest_that_hold_the_part() {
        let values = [50.0, 30.0, 15.0, 5.0, -1e-9];
        for (part, expected) in [(0.5, 1), (0.51, 2), (0.8, 2), (0.95, 3), (0.96, 4)] {
            assert_eq!(components_for(&values, part), expected, "{part}");
        }
        assert_eq!(components_for(&[0.0, 0.0], 0.95), 0);
        assert_eq!(components_for(&[], 0.95), 0);
    }

    #[test]
    fn the_mean_does_not_count_as_a_dimension() {
        let moment = StoredMoment {
            count: 10,
            mean: vec![100.0, 0.0, 0.0],
            second: vec![10001.0, 0.0, 1.0, 0.0, 0.0, 1e-3],
        };
        let found =
            analyse_layer(0, &moment, &Sample::new(&[], 3, &[]), &Mat::zeros(0, 0)).unwrap();
        assert_eq!((found.pca.value, found.pca.samples), (2, 10));
        assert_eq!((found.pca.sample_value, found.pca.interval), (0, None));
        assert!(found.twonn.is_none() && found.stability.is_none());
    }

    #[test]
    fn planted_dimensions_are_found_and_stable() {
        let plant = |point: &[f64]| {
            let mut row = vec![0.0; 30];
            for (x, p) in row.iter_mut().zip(point) {
                *x = p - 0.5;
            }
            row
        };
        let sample = uniform(400, 10, plant);
        let moment = {
            let rows = &sample.rows_for_tests();
            let (n, width) = rows.shape();
            let product = rows.transpose() * rows;
            let mut second = Vec::new();
            for i in 0..width {
                second.extend((0..=i).map(|j| (product[(i, j)] / n as f64) as f32));
            }
            StoredMoment {
                count: n as u64,
                mean: vec![0.0; width],
                second,
            }
        };
        let found = analyse_layer(0, &moment, &sample, &sample.distances()).unwrap();
        assert_eq!((found.pca.value, found.pca.sample_value), (10, 10));
        assert_eq!(found.pca.interval, Some((10, 10)));
        let stability = found.stability.unwrap();
        assert_eq!((stability.samples, stability.pca.len()), (64, 5));
        assert!(stability.pca_stable, "{stability:?}");
        assert!(!is_stable(&[1.0, 2.0, 3.1]) && is_stable(&[1.0, 2.0, 3.0]));
        let twonn = found.twonn.unwrap();
        let (low, high) = twonn.interval.unwrap();
        assert!(low <= twonn.value && twonn.value <= high);
    }

    fn windows(random: &mut Rng) -> Sample {
        let mut values = Vec::new();
        for _ in 0..16 {
            let of_window = 0.06f64.sqrt() * random.normal();
            for _ in 0..32 {
                let own = 0.94f64.sqrt() * random.normal();
                values.extend([own, of_window, 1e-4 * random.normal()].map(|x| x as f32));
            }
        }
        let of: Vec<usize> = (0..512).map(|row| row / 32).collect();
        Sample::new(&values, 3, &of)
    }

    #[test]
    fn resampling_windows_gives_valid_intervals() {
        let mut random = Rng(11);
        let (mut held, mut by_vectors, mut right) = (0, 0, 0);
        let trials = 200;
        for _ in 0..trials {
            let sample = windows(&mut random);
            let value = pca(&sample).unwrap();
            right += usize::from(value == 2);
            let has = |blocks: &[Range<usize>], random: &mut Rng| {
                let found = resampled_pca(value, &sample, blocks, random).unwrap();
                let ((low, high), _) = found.unwrap();
                usize::from((low..=high).contains(&2))
            };
            held += has(&sample.blocks(), &mut random);
            let vectors: Vec<Range<usize>> = (0..512).map(|i| i..i + 1).collect();
            by_vectors += has(&vectors, &mut random);
        }
        assert!(right < trials * 7 / 10, "{right}");
        assert!(held >= trials * 85 / 100, "{held}");
        assert!(by_vectors < trials * 75 / 100, "{by_vectors}");
    }

    #[test]
    fn replicates_have_their_own_components() {
        let rows = |copy: usize| (0..32).map(move |window| (window, copy));
        let values: Vec<f32> = (0..2)
            .flat_map(rows)
            .flat_map(|(window, copy)| {
                let mut row = [0.0; 40];
                row[window] = if copy == 0 { 1.0 } else { -1.0 };
                row
            })
            .collect();
        let mut of: Vec<usize> = (0..64).map(|row| row % 32).collect();
        let mut order: Vec<usize> = (0..64).collect();
        order.sort_by_key(|&row| of[row]);
        of.sort_unstable();
        let values: Vec<f32> = order
            .iter()
            .flat_map(|&row| values[40 * row..][..40].to_vec())
            .collect();
        let sample = Sample::new(&values, 40, &of);
        let blocks = sample.blocks();
        assert_eq!(blocks.len(), 32);
        let found = resampled_pca(31, &sample, &blocks, &mut Rng(1)).unwrap();
        let ((low, high), median) = found.unwrap();
        assert!((17..=21).contains(&median), "{median}");
        assert!(
            (24..31).contains(&low) && (32..=40).contains(&high),
            "{low} {high}"
        );
        let again = resampled_pca(31, &sample, &blocks, &mut Rng(1)).unwrap();
        assert_eq!(again, found);
        let few = resampled_pca(31, &sample, &blocks[..7], &mut Rng(1)).unwrap();
        assert!(few.is_none());
    }
}
