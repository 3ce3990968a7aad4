use super::super::axiom::Objective;
use super::super::{
    AxiomOptions, AxiomProjection, FactoriseError, Gauge, Host, ResidualSide, SvdMethod,
    axiom_gauge,
};
use super::gauge::{diagonal, gauged, singular_values, spread};
use super::{Dense, Rng, close};

use ResidualSide::{Read, Write};

fn block(d: usize, seed: u64) -> Vec<(Dense, usize, ResidualSide)> {
    let projection = |m: usize, n: usize, seed: u64| {
        let q = m.min(n);
        let spectrum: Vec<f64> = (0..q).map(|i| (-3.0 * i as f64 / q as f64).exp()).collect();
        Dense::with_spectrum(m, n, &spectrum, seed)
    };
    vec![
        (projection(d, d, seed), d / 3, Read),
        (projection(d / 4, d, seed + 1), d / 8, Read),
        (projection(d / 4, d, seed + 2), d / 4, Read),
        (projection(2 * d, d, seed + 3), d / 2, Read),
        (projection(d, d, seed + 4), d / 3, Write),
        (projection(d, 2 * d, seed + 5), d / 2, Write),
        (projection(d, d / 2, seed + 6), d / 5, Write),
    ]
}

fn projections(block: &[(Dense, usize, ResidualSide)]) -> Vec<AxiomProjection<'_>> {
    block
        .iter()
        .map(|(w, rank, side)| AxiomProjection {
            weight: w.weight(),
            rank: *rank,
            side: *side,
        })
        .collect()
}

fn energy_left(values: &[f64], r: usize) -> f64 {
    values[r..].iter().map(|s| s * s).sum()
}

#[test]
fn the_objective_is_the_tail_of_the_gauged_weights() {
    let d = 24;
    let block = block(d, 1);
    let objective = Objective::new(&projections(&block), &Host).unwrap();
    for seed in 0..3 {
        let g = spread(d, seed);
        let lambda: Vec<f64> = g.iter().map(|g| g.ln()).collect();
        let inverse: Vec<f64> = g.iter().map(|g| 1.0 / g).collect();
        let expected: f64 = block
            .iter()
            .map(|(w, r, side)| {
                let gauged = match side {
                    Read => w.f64() * diagonal(&inverse),
                    Write => diagonal(&g) * w.f64(),
                };
                energy_left(&singular_values(&gauged), *r)
            })
            .sum();
        let found = objective.evaluate(&lambda).unwrap().tail;
        close(found, expected, 1e-12 * expected);
    }
}

#[test]
fn the_gradient_is_that_of_central_differences() {
    let d = 20;
    let block = block(d, 11);
    for (w, rank, side) in &block {
        let one = [AxiomProjection {
            weight: w.weight(),
            rank: *rank,
            side: *side,
        }];
        check_gradient(&one, d);
    }
    check_gradient(&projections(&block), d);
}

fn check_gradient(projections: &[AxiomProjection<'_>], d: usize) {
    let objective = Objective::new(projections, &Host).unwrap();
    let mut rng = Rng(13);
    let lambda: Vec<f64> = (0..d).map(|_| 0.5 * rng.normal()).collect();
    let here = objective.evaluate(&lambda).unwrap();
    let gradient = here.gradient();
    let largest = gradient.iter().fold(0.0f64, |m, g| m.max(g.abs()));
    let energy: f64 = projections.iter().map(|s| s.weight.norm_squared()).sum();
    let h = 1e-5;
    for i in 0..d {
        let at = |step: f64| {
            let mut moved = lambda.clone();
            moved[i] += step;
            objective.evaluate(&moved).unwrap().tail
        };
        let difference = (at(h) - at(-h)) / (2.0 * h);
        close(gradient[i], difference, 1e-6 * largest + 1e-9 * energy);
    }
}

#[test]
fn the_tail_never_rises_and_the_mean_is_one() {
    for (seed, scale) in [(21, 1.0), (22, 1e-20), (23, 1e12)] {
        let d = 32;
        let mut block = block(d, seed);
        let g = spread(d, seed);
        for (w, _, side) in &mut block {
            *w = Dense::from_fn(w.rows, w.cols, |i, j| {
                let v = scale * f64::from(w.values[i * w.cols + j]);
                match side {
                    Read => v * g[j],
                    Write => v / g[i],
                }
            });
        }
        let found = axiom_gauge(&projections(&block), AxiomOptions::default(), &Host).unwrap();
        assert!(found.trace.len() > 2);
        assert!(found.trace.windows(2).all(|w| w[1] < w[0]));
        assert!(found.trace[found.trace.len() - 1] < 0.8 * found.trace[0]);
        let mean: f64 = found.entries.iter().map(|g| g.ln()).sum::<f64>() / d as f64;
        close(mean, 0.0, 1e-12);
        assert!(found.entries.iter().all(|g| (0.0624..16.01).contains(g)));
        assert!(found.evaluations <= 40 && found.evaluations >= found.trace.len());

        let (reads, writes) = (found.input_gauge().unwrap(), found.output_gauge().unwrap());
        let last: f64 = block
            .iter()
            .map(|(w, r, side)| {
                let (input, output) = match side {
                    Read => (&reads, None),
                    Write => (&Gauge::None, Some(&writes)),
                };
                let found = gauged(w, *r, SvdMethod::Svd, input, output).unwrap();
                energy_left(&found.singular_values, *r)
            })
            .sum();
        let traced = found.trace[found.trace.len() - 1];
        close(last, traced, 1e-10 * traced);

        let again = axiom_gauge(&projections(&block), AxiomOptions::default(), &Host).unwrap();
        assert_eq!(found, again);
    }
}

/// `f = a² e^{−2λ} + b² e^{2λ}` has its minimum at `e^λ = (a/b)^½`.
#[test]
fn two_channels_have_the_minimum_of_the_closed_form() {
    let square = |first: f64, second: f64| {
        Dense::from_fn(2, 2, |i, j| match (i, j) {
            (0, 0) => first,
            (1, 1) => second,
            _ => 0.0,
        })
    };
    let wide = |first: f64, second: f64| {
        Dense::from_fn(2, 3, |i, j| match (i, j) {
            (0, 0) => first,
            (1, 2) => second,
            _ => 0.0,
        })
    };
    let options = AxiomOptions {
        tolerance: 1e-12,
        ..AxiomOptions::default()
    };
    for (a, b) in [(1.0f64, 0.25f64), (0.25, 1.0), (1.0, 1.0)] {
        for read in [square(50.0, a), wide(50.0, a).transpose()] {
            for write in [square(50.0, b), wide(50.0, b)] {
                let block = [(read.scaled(1.0), 1, Read), (write, 1, Write)];
                let found = axiom_gauge(&projections(&block), options, &Host).unwrap();
                close(found.trace[0], a * a + b * b, 1e-12);
                close(found.trace[found.trace.len() - 1], 2.0 * a * b, 1e-9);
                let ratio = (a / b).sqrt();
                close(found.entries[1], ratio, 1e-4);
                close(found.entries[0], 1.0 / ratio, 1e-4);
            }
        }
    }
    let alone = [(square(2.0, 1.0), 1, Read)];
    let found = axiom_gauge(&projections(&alone), options, &Host).unwrap();
    close(found.entries[1], 16.0, 1e-9);
    close(found.entries[0], 1.0 / 16.0, 1e-9);
    close(found.trace[found.trace.len() - 1], 1.0 / 256.0, 1e-12);
}

#[test]
fn options_bound_the_work() {
    let block = block(24, 41);
    let projections = projections(&block);
    let find = |iterations, evaluations| {
        let options = AxiomOptions {
            iterations,
            evaluations,
            tolerance: 0.0,
        };
        axiom_gauge(&projections, options, &Host).unwrap()
    };
    for none in [find(0, 40), find(20, 1), find(20, 0)] {
        assert_eq!(none.entries, vec![1.0; 24]);
        assert_eq!((none.trace.len(), none.evaluations), (1, 1));
    }
    assert_eq!(find(3, 40).trace.len(), 4);
    assert_eq!(find(100, 7).evaluations, 7);
}

#[test]
fn channels_without_energy_and_ranks_without_tail() {
    let d = 16;
    let read = Dense::normal(20, d, 51);
    let read = Dense::from_fn(20, d, |i, j| match j {
        3 | 5 => 0.0,
        _ => f64::from(read.values[i * d + j]),
    });
    let write = Dense::normal(d, 20, 53);
    let write = Dense::from_fn(d, 20, |i, j| match i {
        3 => 0.0,
        _ => f64::from(write.values[i * 20 + j]),
    });
    let some = [(read, 4, Read), (write, 4, Write)];
    let found = axiom_gauge(&projections(&some), AxiomOptions::default(), &Host).unwrap();
    assert!(found.entries.iter().all(|g| (0.0624..16.01).contains(g)));
    assert!(found.input_gauge().is_ok() && found.output_gauge().is_ok());

    let zero = Dense::from_fn(d, d, |_, _| 0.0);
    let found = axiom_gauge(
        &projections(&[(zero, 4, Read)]),
        AxiomOptions::default(),
        &Host,
    )
    .unwrap();
    assert_eq!((found.entries, found.trace), (vec![1.0; d], vec![0.0]));

    let full = [(Dense::normal(d, d, 55), d, Write)];
    let found = axiom_gauge(&projections(&full), AxiomOptions::default(), &Host).unwrap();
    assert!(found.trace[0] < 1e-12 && found.entries.iter().all(|g| g.is_finite()));
}

#[test]
fn refusals() {
    let (w, other) = (Dense::normal(6, 4, 61), Dense::normal(5, 3, 63));
    let projection = |w: &Dense, rank, side| {
        let projection = AxiomProjection {
            weight: w.weight(),
            rank,
            side,
        };
        axiom_gauge(&[projection], AxiomOptions::default(), &Host).map(|_| ())
    };
    for rank in [0, 5] {
        assert_eq!(
            projection(&w, rank, Read),
            Err(FactoriseError::Rank {
                requested: rank,
                largest: 4
            })
        );
    }
    assert_eq!(
        axiom_gauge(&[], AxiomOptions::default(), &Host),
        Err(FactoriseError::NoWeights)
    );
    let mixed = [(w, 2, Read), (other, 2, Write)];
    assert_eq!(
        axiom_gauge(&projections(&mixed), AxiomOptions::default(), &Host),
        Err(FactoriseError::InputMismatch {
            index: 1,
            expected: 4,
            found: 5
        })
    );
}
