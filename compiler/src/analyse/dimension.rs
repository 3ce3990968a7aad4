//! Intrinsic dimensions: PCA at 95 %, and TwoNN (Facco, d'Errico, Rodriguez and Laio 2017).

use faer::Mat;

use super::record::{DimensionLayer, Pca, Stability, TwoNn, rounded};
use super::sample::{Sample, shuffled};
use crate::calibrate::Moment;
use crate::math::{FactoriseError, symmetric_eigen};
use crate::system::random::Rng;

/// The part of the variance that principal components are to hold.
pub(super) const ENERGY: f64 = 0.95;

/// What the intervals are of.
pub(super) const CONFIDENCE: f64 = 0.95;

/// Bootstrap replicates: of a thousand the outermost 25 on either side are left out.
pub(super) const REPLICATES: usize = 1000;

/// Seed of all random choices; a layer adds its index.
pub(super) const SEED: u64 = 0x6874_635f_616e_616c;

/// Vectors of a small sample, as many as the published dimensions were measured on.
const SMALL: usize = 64;

/// Small samples that are compared.
const SUBSAMPLES: usize = 5;

/// How far small samples that agree may be from their median.
const STABLE: f64 = 1.0;

/// A part of the second moment that is no variance.
const ROUNDING: f64 = 1e-12;

/// The part of the largest ratios that TwoNN leaves out of its fit: far from their neighbours the
/// vectors do not follow the law, and weigh most (Facco et al. 2017).
const DISCARDED: f64 = 0.1;

/// The fewest of decreasing `values` whose sum is `part` of all; those below zero are rounding.
pub(super) fn components_for(values: &[f64], part: f64) -> usize {
    let total: f64 = values.iter().map(|v| v.max(0.0)).sum();
    let mut sum = 0.0;
    let reaches = |v: &f64| {
        sum += v.max(0.0);
        sum >= part * total
    };
    match total > 0.0 {
        true => values
            .iter()
            .position(reaches)
            .map_or(values.len(), |at| at + 1),
        false => 0,
    }
}

/// The lower triangle of `E[(x − E[x])(x − E[x])ᵀ]`.
pub(super) fn covariance(moment: &Moment) -> Mat<f64> {
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

/// The dimensions of the stream with this second moment and this sample.
///
/// # Errors
/// Statistics that no activations have.
pub(super) fn of_layer(
    layer: usize,
    moment: &Moment,
    sample: &Sample,
    distances: &Mat<f64>,
) -> Result<DimensionLayer, FactoriseError> {
    let width = moment.mean.len();
    let mut random = Rng(SEED.wrapping_add(layer as u64));
    let whole = symmetric_eigen(covariance(moment), width)?;
    let value = components_for(&whole.values, ENERGY);
    let sample_value = pca(sample)?;
    let interval = pca_interval(&sample.along(&whole.vectors), &mut random);
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
            interval,
        },
        twonn: two_nn(&ratios).map(|value| TwoNn {
            value: rounded(value),
            relative: relative(value),
            samples: ratios.len(),
            interval: two_nn_interval(&ratios, &mut random),
        }),
        stability: stability(sample, &mut random)?,
    })
}

/// The interval of the fewest principal components with 95 % of the variance, by resampling the vectors whose
/// coordinates along all components are `along [n, width]`.
///
/// The components stay those of the whole calibration. Made anew from so few vectors they would fit these
/// better than the others, and the number that is needed of them would be biased downwards: a resample
/// of n vectors has n dimensions at most.
fn pca_interval(along: &Mat<f64>, random: &mut Rng) -> Option<(usize, usize)> {
    let (n, width) = along.shape();
    if n == 0 {
        return None;
    }
    let mut found = Vec::with_capacity(REPLICATES);
    for _ in 0..REPLICATES {
        let mut times = vec![0.0; n];
        for _ in 0..n {
            times[random.below(n)] += 1.0;
        }
        let variance = |component: usize| {
            let (mut sum, mut squares) = (0.0, 0.0);
            for (x, times) in along.col(component).iter().zip(&times) {
                sum += times * x;
                squares += times * x * x;
            }
            let variance = squares - sum * sum / n as f64;
            // Of one vector again and again only rounding would be left.
            if variance > ROUNDING * squares {
                variance
            } else {
                0.0
            }
        };
        let variances: Vec<f64> = (0..width).map(variance).collect();
        found.push(components_for(&variances, ENERGY));
    }
    found.sort_unstable();
    ends(&found)
}

fn pca(sample: &Sample) -> Result<usize, FactoriseError> {
    Ok(components_for(&sample.variances()?, ENERGY))
}

/// The ends of the middle [`CONFIDENCE`] of sorted values.
fn ends<T: Copy>(sorted: &[T]) -> Option<(T, T)> {
    let outside = ((1.0 - CONFIDENCE) / 2.0 * sorted.len() as f64) as usize;
    let low = sorted.get(outside)?;
    let high = sorted.get(sorted.len().checked_sub(1 + outside)?)?;
    Some((*low, *high))
}

/// Of every vector `ln(r₂ / r₁)`, the ratio of the distances to its two nearest neighbours, increasing.
fn ratios(distances: &Mat<f64>) -> Vec<f64> {
    let n = distances.nrows();
    if n < 3 {
        return Vec::new();
    }
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
        // The distances are squared. Different vectors may be so near that their square is zero.
        (nearest > 0.0).then(|| (next / nearest).ln() / 2.0)
    };
    let mut ratios: Vec<f64> = (0..n).filter_map(of).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// The slope of `−ln(1 − F(μ))` over `ln μ` through the origin, without the largest ratios; `None`
/// where there are fewer than three, or none that differs from 1.
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

fn two_nn_interval(ratios: &[f64], random: &mut Rng) -> Option<(f64, f64)> {
    let mut found = Vec::with_capacity(REPLICATES);
    for _ in 0..REPLICATES {
        let mut drawn: Vec<f64> = (0..ratios.len())
            .map(|_| ratios[random.below(ratios.len())])
            .collect();
        drawn.sort_by(f64::total_cmp);
        found.extend(two_nn(&drawn));
    }
    found.sort_by(f64::total_cmp);
    let (low, high) = ends(&found)?;
    Some((rounded(low), rounded(high)))
}

/// Small samples, disjoint where there are vectors enough for that.
fn stability(sample: &Sample, random: &mut Rng) -> Result<Option<Stability>, FactoriseError> {
    if sample.count() < SMALL {
        return Ok(None);
    }
    let disjoint = sample.count() >= SUBSAMPLES * SMALL;
    let mut order = shuffled(sample.count(), random);
    let (mut pcas, mut twonns) = (Vec::new(), Vec::new());
    for index in 0..SUBSAMPLES {
        let from = if disjoint { index * SMALL } else { 0 };
        let small = sample.chosen(&order[from..from + SMALL]);
        pcas.push(pca(&small)?);
        twonns.extend(two_nn(&ratios(&small.distances())).map(rounded));
        if !disjoint {
            order = shuffled(sample.count(), random);
        }
    }
    let dimensions: Vec<f64> = pcas.iter().map(|&k| k as f64).collect();
    Ok(Some(Stability {
        samples: SMALL,
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
    sorted.iter().all(|value| (value - median).abs() <= STABLE)
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
        Sample::new(&values, width)
    }

    #[test]
    fn two_neighbours_find_the_dimension_of_a_cube_and_of_a_line() {
        let cube = uniform(1500, 3, <[f64]>::to_vec);
        let ratios_of_cube = ratios(&cube.distances());
        let found = two_nn(&ratios_of_cube).unwrap();
        assert!((2.7..3.3).contains(&found), "{found}");
        let (low, high) = two_nn_interval(&ratios_of_cube, &mut Rng(1)).unwrap();
        assert!(
            low < found && found < high && high - low < 0.6,
            "{low} {high}"
        );
        let line = uniform(1000, 1, |t| {
            (0..20).map(|i| f64::from(i - 7) * t[0] + 3.0).collect()
        });
        let found = two_nn(&ratios(&line.distances())).unwrap();
        assert!((0.9..1.1).contains(&found), "{found}");
    }

    /// The law of the estimator itself: ratios with `F(μ) = 1 − μ^(−d)` are fitted exactly.
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
        let moment = Moment {
            count: 10,
            mean: vec![100.0, 0.0, 0.0],
            second: vec![10001.0, 0.0, 1.0, 0.0, 0.0, 1e-3],
        };
        let found = of_layer(0, &moment, &Sample::new(&[], 3), &Mat::zeros(0, 0)).unwrap();
        assert_eq!((found.pca.value, found.pca.samples), (2, 10));
        assert_eq!((found.pca.sample_value, found.pca.interval), (0, None));
        assert!(found.twonn.is_none() && found.stability.is_none());
    }

    /// Ten directions of equal variance: every subsample has 10, the interval too.
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
            Moment {
                count: n as u64,
                mean: vec![0.0; width],
                second,
            }
        };
        let found = of_layer(0, &moment, &sample, &sample.distances()).unwrap();
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

    /// A component whose share is 5 % on average is needed by about half of all resamples.
    #[test]
    fn the_interval_shows_what_other_vectors_would_say() {
        let mut random = Rng(4);
        let along = Mat::from_fn(500, 3, |_, j| [4.36, 1.0, 0.01][j] * random.normal());
        assert_eq!(pca_interval(&along, &mut Rng(1)), Some((1, 2)));
        assert_eq!(pca_interval(&along, &mut Rng(2)), Some((1, 2)));
        // Far from the mean.
        let far = Mat::from_fn(500, 3, |i, j| {
            along[(i, j)] * if j == 0 { 1.0 } else { 0.1 } + 50.0
        });
        assert_eq!(pca_interval(&far, &mut Rng(1)), Some((1, 1)));
        assert_eq!(pca_interval(&Mat::zeros(0, 3), &mut Rng(1)), None);
        // A vector alone has no variance in any direction.
        let one = Mat::from_fn(1, 40, |_, j| 0.1 * j as f64);
        assert_eq!(pca_interval(&one, &mut Rng(1)), Some((0, 0)));
        let two = Mat::from_fn(2, 40, |i, j| (0.1 + 3.0 * i as f64) * j as f64);
        assert!(pca_interval(&two, &mut Rng(1)).unwrap().0 == 0);
    }
}
