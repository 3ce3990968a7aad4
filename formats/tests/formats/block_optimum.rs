//! The scale search compared with exhaustive searches.

use crate::block_common::{Random, error};
use htc_formats::DType;
use htc_formats::block::BlockFit;

/// Between two scales at which a level changes, the best scale has a closed form.
fn least_error(x: &[f32], w: &[f32], levels: &[f64]) -> f64 {
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let w: Vec<f64> = w.iter().map(|&w| f64::from(w)).collect();
    let mut bounds: Vec<f64> = Vec::new();
    for x in &x {
        bounds.extend(levels.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0 / x));
    }
    bounds.sort_by(f64::total_cmp);
    let nearest = |x: f64| {
        let at = levels
            .partition_point(|level| *level < x)
            .clamp(1, levels.len() - 1);
        let (below, above) = (levels[at - 1], levels[at]);
        if x - below < above - x { below } else { above }
    };
    let between = bounds.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let gain = between.map(|inverse| {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (x, w) in x.iter().zip(&w) {
            let q = nearest(x * inverse);
            xq += w * x * q;
            qq += w * q * q;
        }
        if qq > 0.0 { xq * xq / qq } else { 0.0 }
    });
    let energy: f64 = x.iter().zip(&w).map(|(x, w)| w * x * x).sum();
    energy - gain.fold(0.0, f64::max)
}

const IQ4: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

#[test]
fn a_scale_is_near_the_optimum() {
    let whole = |low: i32, high: i32| (low..=high).map(f64::from).collect::<Vec<f64>>();
    // Measured bounds for the sum and for a single block, without and with importances.
    for (dtype, levels, within) in [
        (DType::Q4_0, whole(-8, 7), [1.001, 1.02, 1.01, 1.5]),
        (DType::Q5_0, whole(-16, 15), [1.004, 1.03, 1.015, 1.3]),
        (DType::Q8_0, whole(-127, 127), [1.1, 1.6, 1.25, 2.8]),
        (DType::IQ4NL, IQ4.to_vec(), [1.002, 1.03, 1.02, 1.8]),
    ] {
        let mut random = Random(9);
        for importances in [false, true] {
            let (mut found, mut least, mut worst) = (0.0, 0.0, 0.0_f64);
            for _ in 0..60 {
                let (values, weights) = (random.block(dtype), random.importance(dtype));
                let weights = if importances {
                    weights
                } else {
                    vec![1.0; values.len()]
                };
                let fit = BlockFit::search(dtype, &values, Some(&weights)).unwrap();
                let optimum = least_error(&values, &weights, &levels);
                let of_fit = error(&fit, &values, &weights);
                assert!(of_fit > 0.99 * optimum, "{dtype}: {of_fit} {optimum}");
                (found, least) = (found + of_fit, least + optimum);
                worst = worst.max(of_fit / optimum);
            }
            println!(
                "{dtype} {importances}: {:.4} of the optimum, worst block {worst:.4}",
                found / least
            );
            let [all, one] = if importances {
                [within[2], within[3]]
            } else {
                [within[0], within[1]]
            };
            assert!(
                found < all * least,
                "{dtype} {importances}: {}",
                found / least
            );
            assert!(worst < one, "{dtype} {importances}: {worst}");
        }
    }
}

fn above(
    dtype: DType,
    blocks: usize,
    least: impl Fn(&[f64], &[f64], &BlockFit) -> f64,
) -> [f64; 2] {
    [false, true].map(|importances| {
        let mut random = Random(10);
        let (mut found, mut optimum) = (0.0, 0.0);
        for _ in 0..blocks {
            let (values, weights) = (random.block(dtype), random.importance(dtype));
            let weights = if importances {
                weights
            } else {
                vec![1.0; values.len()]
            };
            let fit = BlockFit::search(dtype, &values, Some(&weights)).unwrap();
            found += error(&fit, &values, &weights);
            let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
            optimum += least(&wide(&values), &wide(&weights), &fit);
        }
        let above = found / optimum;
        println!("{dtype} importances {importances}: {above:.4} of the least error");
        above
    })
}

fn error_of(x: &[f64], w: &[f64], step: f64, offset: f64, levels: &[f64]) -> f64 {
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let terms = x.iter().zip(w).map(|(x, w)| {
        let q = (x + offset) * inverse;
        let at = levels
            .partition_point(|level| *level < q)
            .clamp(1, levels.len() - 1);
        let (below, above) = (levels[at - 1], levels[at]);
        let q = if q - below < above - q { below } else { above };
        w * (step * q - offset - x).powi(2)
    });
    terms.sum()
}

/// Tries all positions of the least and the largest number among the codes, in steps of a tenth of
/// a code.
#[test]
fn a_scale_and_a_minimum_are_near_the_optimum() {
    for (dtype, last, most) in [
        (DType::Q4_1, 15, [1.015, 1.0]),
        (DType::Q5_1, 31, [1.01, 1.01]),
    ] {
        let levels: Vec<f64> = (0..=last).map(f64::from).collect();
        let least = |x: &[f64], w: &[f64], _: &BlockFit| {
            let low = x.iter().copied().fold(f64::INFINITY, f64::min);
            let high = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut least = f64::INFINITY;
            let places = || (-30..=10).map(|tenths| f64::from(tenths) / 10.0);
            for first in places() {
                for behind in places() {
                    let step = (high - low) / (f64::from(last) - first - behind);
                    least = least.min(error_of(x, w, step, first * step - low, &levels));
                }
            }
            least
        };
        let found = above(dtype, 12, least);
        assert!(
            found[0] < most[0] && found[1] < most[1],
            "{dtype}: {found:?}"
        );
    }
}

#[test]
fn integer_scales_are_near_the_optimum() {
    let whole = |low: i32, high: i32| (low..=high).map(f64::from).collect::<Vec<f64>>();
    for (dtype, levels, run, most) in [
        (DType::Q3K, whole(-4, 3), 16, [1.003, 1.01]),
        (DType::IQ4XS, IQ4.to_vec(), 32, [1.005, 1.05]),
    ] {
        let least = |x: &[f64], w: &[f64], fit: &BlockFit| {
            let steps =
                (0..x.len()).map(|place| f64::from(fit.value(place, 1) - fit.value(place, 0)));
            let largest = steps.map(f64::abs).fold(0.0, f64::max) / (levels[1] - levels[0]);
            let of_d = |hundredths: i32| {
                let d = largest / 32.0 * f64::from(hundredths) / 100.0;
                let of_run = |(x, w): (&[f64], &[f64])| {
                    let scales = -32..=31;
                    let errors =
                        scales.map(|scale| error_of(x, w, d * f64::from(scale), 0.0, &levels));
                    errors.fold(f64::INFINITY, f64::min)
                };
                x.chunks(run).zip(w.chunks(run)).map(of_run).sum::<f64>()
            };
            (60..160).map(of_d).fold(f64::INFINITY, f64::min)
        };
        let found = above(dtype, 6, least);
        assert!(
            found[0] < most[0] && found[1] < most[1],
            "{dtype}: {found:?}"
        );
    }
}

#[test]
fn integer_scales_and_minima_are_near_the_optimum() {
    let levels: Vec<f64> = (0..=3).map(f64::from).collect();
    let least = |x: &[f64], w: &[f64], fit: &BlockFit| {
        let places = || (0..x.len()).step_by(16);
        let steps = places().map(|place| f64::from(fit.value(place, 1) - fit.value(place, 0)));
        let (step, offset) = (
            steps.fold(0.0, f64::max),
            places()
                .map(|place| -f64::from(fit.value(place, 0)))
                .fold(0.0, f64::max),
        );
        let of_pair = |of_step: i32, of_offset: i32| {
            let d = step / 15.0 * f64::from(of_step) / 20.0;
            let d_min = offset / 15.0 * f64::from(of_offset) / 20.0;
            let of_run = |(x, w): (&[f64], &[f64])| {
                let mut least = f64::INFINITY;
                for scale in 0..16 {
                    for minimum in 0..16 {
                        let (step, offset) = (d * f64::from(scale), d_min * f64::from(minimum));
                        least = least.min(error_of(x, w, step, offset, &levels));
                    }
                }
                least
            };
            x.chunks(16).zip(w.chunks(16)).map(of_run).sum::<f64>()
        };
        let mut least = f64::INFINITY;
        for of_step in 15..28 {
            for of_offset in 15..28 {
                least = least.min(of_pair(of_step, of_offset));
            }
        }
        least
    };
    let found = above(DType::Q2K, 2, least);
    assert!(found[0] < 1.01 && found[1] < 1.025, "{found:?}");
}
