use super::super::{BlockFormat, ErrorFeedback, SecondMoment, Weight, weighted_dense_energies};
use htc_formats::block::NearbyKind;

use super::Dense;
use super::gauge::Moment;

/// The largest number has the code `reach`.
struct Grid {
    block: usize,
    reach: f32,
    near: &'static [f32],
}

impl BlockFormat for Grid {
    type Scales = f32;

    fn block_len(&self) -> usize {
        self.block
    }

    fn scales(&self, values: &[f32], _: &[f32]) -> Option<f32> {
        let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        (largest < 1e30).then_some(largest / self.reach)
    }

    fn nearest(&self, step: &f32, _: usize, value: f32) -> (u8, f32) {
        if *step == 0.0 {
            return (0, 0.0);
        }
        let code = (value / step).round().clamp(-self.reach, self.reach);
        ((code + self.reach) as u8, code * step)
    }

    fn run_len(&self) -> usize {
        self.block
    }

    fn level(&self, _: &f32, code: u8) -> f32 {
        f32::from(code) - self.reach
    }

    fn step_and_shift(&self, step: &f32, _: usize) -> (f32, f32) {
        (*step, 0.0)
    }

    fn neighbouring_scales(
        &self,
        step: &f32,
        _: usize,
        of: NearbyKind,
    ) -> impl Iterator<Item = f32> {
        let steps = self.near.iter().filter(move |_| of == NearbyKind::Steps);
        steps.map(move |by| by * step)
    }
}

const COARSE: Grid = Grid {
    block: 16,
    reach: 3.0,
    near: &[],
};

const CHOSEN: Grid = Grid {
    near: &[0.85, 0.95, 1.05, 1.15],
    ..COARSE
};

fn moment(values: &[f64], order: usize) -> SecondMoment<'_> {
    SecondMoment { order, values }
}

fn missing(weight: &Dense, values: &[f32], moment: SecondMoment<'_>) -> f64 {
    weighted_dense_energies(weight.weight(), values, moment).error
}

fn rounded(weight: &Dense, code: &Grid) -> Vec<f32> {
    let mut values = Vec::new();
    for row in weight.values.chunks(weight.cols) {
        for block in row.chunks(code.block) {
            let step = code.scales(block, &[]).unwrap();
            values.extend(block.iter().map(|v| code.nearest(&step, 0, *v).1));
        }
    }
    values
}

#[test]
fn the_factor_is_that_of_the_damped_moment() {
    let n = 48;
    let of = Moment::new(n, 3);
    let damping = 0.02;
    let feedback = ErrorFeedback::new(moment(&of.values, n), damping).unwrap();
    let mean = (0..n).map(|i| of.values[i * n + i]).sum::<f64>() / n as f64;
    let factor = |i: usize, j: usize| match i.cmp(&j) {
        std::cmp::Ordering::Less => f64::from(feedback.factor[i * n + j]),
        std::cmp::Ordering::Equal => 1.0,
        std::cmp::Ordering::Greater => 0.0,
    };
    for i in 0..n {
        for j in 0..=i {
            let product: f64 = (0..n)
                .map(|k| factor(i, k) * f64::from(feedback.importance()[k]) * factor(j, k))
                .sum();
            let damped = of.values[i * n + j] / mean + if i == j { damping } else { 0.0 };
            assert!(
                (product - damped).abs() < 1e-5 * damped.abs().max(1.0),
                "{i} {j}"
            );
        }
    }
}

#[test]
fn second_column_compensates_for_the_first() {
    let of = [2.0, f64::NAN, 0.9, 1.0];
    let feedback = ErrorFeedback::new(moment(&of, 2), 0.0).unwrap();
    let code = Grid {
        block: 2,
        reach: 1.0,
        near: &[],
    };
    let weight = Dense {
        rows: 1,
        cols: 2,
        values: vec![0.4, 1.0],
    };
    let coded = feedback.quantise(weight.weight(), &code, 0).unwrap();
    // 0.4 becomes 0, and 1 aims at 1 + 0.4 · 0.9 / 1.
    assert_eq!(coded.values, [0.0, 1.0]);
    let weight = Dense {
        values: vec![1.0, 0.3],
        ..weight
    };
    let wide = Grid {
        block: 1,
        reach: 1.0,
        near: &[],
    };
    let coded = feedback.quantise(weight.weight(), &wide, 0).unwrap();
    assert_eq!(coded.codes, [2, 2]);
    assert_eq!(coded.scales, [1.0, 0.3]);
    let half = Half;
    let weight = Dense {
        values: vec![0.4, 0.3],
        ..weight
    };
    let coded = feedback.quantise(weight.weight(), &half, 0).unwrap();
    assert_eq!(coded.values, [0.0, 1.0]);
    assert_eq!(rounded_to_ones(0.3), 0.0);
}

struct Half;

fn rounded_to_ones(value: f32) -> f32 {
    if value > 0.5 { 1.0 } else { 0.0 }
}

impl BlockFormat for Half {
    type Scales = ();

    fn block_len(&self) -> usize {
        1
    }

    fn scales(&self, _: &[f32], _: &[f32]) -> Option<()> {
        Some(())
    }

    fn nearest(&self, (): &(), _: usize, value: f32) -> (u8, f32) {
        let value = rounded_to_ones(value);
        (value as u8, value)
    }

    fn run_len(&self) -> usize {
        1
    }

    fn level(&self, (): &(), code: u8) -> f32 {
        code.into()
    }

    fn step_and_shift(&self, (): &(), _: usize) -> (f32, f32) {
        (1.0, 0.0)
    }

    fn neighbouring_scales(&self, (): &(), _: usize, _: NearbyKind) -> impl Iterator<Item = ()> {
        std::iter::empty()
    }
}

#[test]
fn feedback_reduces_the_loss_and_sweeps_never_raise_it() {
    let (m, n) = (24, 160);
    for seed in 0..6 {
        let weight = Dense::normal(m, n, seed);
        let of = Moment::new(n, seed + 100);
        let c = moment(&of.values, n);
        let feedback = ErrorFeedback::new(c, 0.01).unwrap();
        let plain = missing(&weight, &rounded(&weight, &COARSE), c);
        let mut first = f64::INFINITY;
        for code in [&COARSE, &CHOSEN] {
            let mut last = f64::INFINITY;
            for sweeps in 0..4 {
                let coded = feedback.quantise(weight.weight(), code, sweeps).unwrap();
                let lost = missing(&weight, &coded.values, feedback_moment(&feedback).as_ref());
                assert!(
                    lost <= last * (1.0 + 1e-6),
                    "{seed}, sweep {sweeps}: {lost} of {last}"
                );
                last = lost;
                if sweeps == 0 {
                    let fed = missing(&weight, &coded.values, c);
                    assert!(fed < 0.7 * plain, "{seed}: {fed} of {plain}");
                }
                for (at, (&q, &value)) in coded.codes.iter().zip(&coded.values).enumerate() {
                    let step = coded.scales[at / code.block];
                    assert_eq!(value, (f32::from(q) - code.reach) * step);
                }
            }
            assert!(last < 0.97 * first, "{seed}: {last} of {first}");
            first = last;
        }
    }
}

struct Damped {
    order: usize,
    values: Vec<f64>,
}

impl Damped {
    fn as_ref(&self) -> SecondMoment<'_> {
        moment(&self.values, self.order)
    }
}

fn feedback_moment(feedback: &ErrorFeedback) -> Damped {
    Damped {
        order: feedback.order,
        values: feedback.moment.iter().map(|v| f64::from(*v)).collect(),
    }
}

#[test]
fn uncorrelated_inputs_are_rounded_independently() {
    let (m, n) = (5, 64);
    let weight = Dense::normal(m, n, 9);
    let mut values = vec![0.0; n * n];
    for i in 0..n {
        values[i * n + i] = 1.0 + i as f64;
    }
    let feedback = ErrorFeedback::new(moment(&values, n), 0.0).unwrap();
    let coded = feedback.quantise(weight.weight(), &COARSE, 2).unwrap();
    assert_eq!(coded.values, rounded(&weight, &COARSE));
}

#[test]
fn zero_or_identical_inputs_are_coded() {
    let (m, n) = (4, 32);
    let weight = Dense::normal(m, n, 5);
    for value in [0.0, 1.0] {
        let values = vec![value; n * n];
        let feedback = ErrorFeedback::new(moment(&values, n), 0.01).unwrap();
        let coded = feedback.quantise(weight.weight(), &COARSE, 2).unwrap();
        assert!(coded.values.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn mismatched_shapes_are_refused() {
    let of = Moment::new(32, 1);
    assert!(ErrorFeedback::new(moment(&of.values, 32), -1.0).is_err());
    assert!(ErrorFeedback::new(moment(&of.values, 32), f64::NAN).is_err());
    let mut wrong = of.values.clone();
    wrong[0] = f64::NAN;
    assert!(ErrorFeedback::new(moment(&wrong, 32), 0.01).is_err());
    let feedback = ErrorFeedback::new(moment(&of.values, 32), 0.01).unwrap();
    let refused =
        |weight: &Dense, code: &Grid| feedback.quantise(weight.weight(), code, 0).is_err();
    assert!(refused(&Dense::normal(2, 16, 1), &COARSE));
    let block = Grid {
        block: 24,
        reach: 1.0,
        near: &[],
    };
    assert!(refused(&Dense::normal(2, 32, 1), &block));
    let mut huge = Dense::normal(2, 32, 1);
    huge.values[40] = 1e35;
    let error = feedback.quantise(huge.weight(), &COARSE, 0).unwrap_err();
    assert!(error.to_string().contains("row 1, column 0"), "{error}");
    let mut infinite = Dense::normal(2, 32, 1);
    infinite.values[3] = f32::INFINITY;
    assert!(refused(&infinite, &COARSE));
    let weight = Weight {
        rows: 2,
        cols: 32,
        values: &[0.0; 63],
    };
    assert!(feedback.quantise(weight, &COARSE, 0).is_err());
}

#[test]
fn the_rotated_feedback_is_that_of_the_rotated_moment() {
    let (n, damping) = (75, 0.05);
    let of = Moment::new(n, 5);
    let feedback = ErrorFeedback::new(moment(&of.values, n), damping).unwrap();
    let entry = |i: usize, j: usize| {
        let whole = n / 32 * 32;
        match (i < whole && j < whole, i / 32 == j / 32) {
            (true, true) if ((i % 32) & (j % 32)).count_ones().is_multiple_of(2) => {
                32f64.sqrt().recip()
            }
            (true, true) => -32f64.sqrt().recip(),
            _ => f64::from(u8::from(i == j)),
        }
    };
    let mut rotated = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            for a in 0..n {
                for b in 0..n {
                    let (row, col) = (a.max(b), a.min(b));
                    let product = entry(i, a) * entry(b, j);
                    if product != 0.0 {
                        rotated[i * n + j] += product * of.values[row * n + col];
                    }
                }
            }
        }
    }
    let expected = ErrorFeedback::new(moment(&rotated, n), damping).unwrap();
    let found = feedback.rotated().unwrap();
    let close = |found: &[f32], expected: &[f32]| {
        let pairs = found.iter().zip(expected);
        let far = pairs.map(|(a, b)| (a - b).abs() / (1e-3 + b.abs()));
        far.fold(0.0, f32::max)
    };
    assert!(close(found.importance(), expected.importance()) < 1e-3);
    assert!(close(&found.moment, &expected.moment) < 1e-3);
    assert!(close(feedback.importance(), expected.importance()) > 0.01);
}
