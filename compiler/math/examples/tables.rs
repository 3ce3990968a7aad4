//! Trains the tables of `htc_formats::bands` on Gaussian numbers and prints them:
//! `cargo run --release -p htc-math --example tables`. The same tables every time.
//!
//! A trellis: paths for given tables, then the tables of least squared error for these paths, in turn;
//! the best of some starts on numbers that trained nothing. Levels: the scale of each group for given
//! levels, then the levels for these scales, in turn.

use std::error::Error;

use htc_formats::bands::{BAND, Code, MAX_SCALE, STATES};
use htc_math::codes::Viterbi;
use htc_math::random::Rng;

/// Weights of a sequence: a strip of 256 rows and 4 columns.
const SEQUENCE: usize = 1024;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.normal() as f32).collect()
}

/// Paths of all sequences.
fn paths(code: Code, x: &[f32], value: impl Fn(usize) -> f32) -> Vec<u16> {
    let mut viterbi = Viterbi::with_values(code, value);
    let mut states = vec![0; x.len()];
    for (x, states) in x.chunks(SEQUENCE).zip(states.chunks_mut(SEQUENCE)) {
        viterbi.encode(x, None, states);
    }
    states
}

/// Mean squared error with the best common scale.
fn error(x: &[f32], y: impl Iterator<Item = f32>) -> f64 {
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (&x, y) in x.iter().zip(y) {
        let (x, y) = (f64::from(x), f64::from(y));
        (xx, xy, yy) = (xx + x * x, xy + x * y, yy + y * y);
    }
    (xx - xy * xy / yy) / x.len() as f64
}

type Tables = [[f64; 64]; 2];

fn value(tables: &Tables, state: usize) -> f32 {
    (tables[0][state % 64] + tables[1][state / 64]) as f32
}

/// The tables of least squared error for the paths, each for the other in turn.
fn fit(tables: &mut Tables, x: &[f32], states: &[u16]) {
    for round in 0..8 {
        let side = round % 2;
        let (mut sums, mut counts) = ([0.0; 64], [0.0; 64]);
        for (&x, &state) in x.iter().zip(states) {
            let halves = [usize::from(state) % 64, usize::from(state) / 64];
            let other = tables[1 - side][halves[1 - side]];
            sums[halves[side]] += f64::from(x) - other;
            counts[halves[side]] += 1.0;
        }
        for i in 0..64 {
            if counts[i] > 5.0 {
                tables[side][i] = sums[i] / counts[i];
            }
        }
    }
}

/// Tables as integers and the unit they are multiples of.
fn rounded(tables: &Tables) -> ([[i8; 64]; 2], f64) {
    // What one table has more than its mean, the other may have less.
    let mean = tables[0].iter().sum::<f64>() / 64.0;
    let mut centred = *tables;
    centred[0].iter_mut().for_each(|v| *v -= mean);
    centred[1].iter_mut().for_each(|v| *v += mean);
    let largest = |t: &[f64; 64]| t.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    let scale = 126.0 / (largest(&centred[0]) + largest(&centred[1]));
    let integers = centred.map(|table| table.map(|v| (v * scale).round() as i8));
    (integers, scale)
}

fn trellis(bits: u8) -> Result<(), Box<dyn Error>> {
    let code = Code::trellis(bits)?;
    let (train, test) = (numbers(1, 256 * SEQUENCE), numbers(2, 96 * SEQUENCE));
    let mut best = (f64::INFINITY, [[0; 64]; 2], 0.0);
    for start in [0, 2] {
        let mut rng = Rng(100 + start);
        let mut tables: Tables = [[0.0; 64]; 2];
        for table in &mut tables {
            table.iter_mut().for_each(|v| *v = rng.normal() * 0.707);
        }
        for round in 0..150 {
            // More numbers as the tables settle.
            let some = &train[..(8 + round * 2).min(256) * SEQUENCE];
            let states = paths(code, some, |state| value(&tables, state));
            fit(&mut tables, some, &states);
        }
        let (integers, scale) = rounded(&tables);
        let of = |s: usize| f64::from(integers[0][s % 64]) + f64::from(integers[1][s / 64]);
        let states = paths(code, &test, |s| (of(s) / scale) as f32);
        let mse = error(&test, states.iter().map(|&s| of(s.into()) as f32));
        eprintln!(
            "trellis{bits} start {start}: {:.4} bits above Shannon",
            bits_above(mse, bits)
        );
        if mse < best.0 {
            best = (mse, integers, scale);
        }
    }
    println!(
        "    // Bits above Shannon's bound on Gaussian numbers: {:.3}.",
        bits_above(best.0, bits)
    );
    println!(
        "    Trellis {{\n        low: {:?},\n        high: {:?},\n        deviation: {:.4},\n    }},",
        best.1[0], best.1[1], best.2
    );
    Ok(())
}

fn bits_above(mse: f64, bits: u8) -> f64 {
    f64::from(bits) + 0.5 * mse.log2()
}

/// The nearest level.
fn nearest(borders: &[f64], x: f64) -> usize {
    borders.partition_point(|&border| x > border)
}

/// The scale of least error for a group and its error, in whole multiples of `unit`.
fn best_scale(magnitudes: &[f64], borders: &[f64], group: &[f32], unit: f64) -> (f64, f64) {
    let largest = group
        .iter()
        .fold(0.0_f64, |m, &x| m.max(f64::from(x).abs()));
    let whole = |share: f64| ((largest / unit * share) as u8).clamp(1, MAX_SCALE);
    let mut best = (f64::INFINITY, 0.0);
    for scale in whole(0.3)..=whole(1.1) {
        let scale = f64::from(scale) * unit;
        let error: f64 = group
            .iter()
            .map(|&x| {
                let x = f64::from(x.abs());
                (x - scale * magnitudes[nearest(borders, x / scale)]).powi(2)
            })
            .sum();
        if error < best.0 {
            best = (error, scale);
        }
    }
    best
}

fn levels(bits: u8) {
    let count = 1 << (bits - 1);
    let x = numbers(3, 2048 * BAND);
    let mut magnitudes: Vec<f64> = (0..count)
        .map(|i| (f64::from(i) + 0.5) / f64::from(count))
        .collect();
    // The largest level of the first magnitudes is 1: a group's scale is about its largest number.
    let mut mse = 0.0;
    for _ in 0..30 {
        let (mut sums, mut weights, mut total) = (
            vec![0.0; magnitudes.len()],
            vec![0.0; magnitudes.len()],
            0.0,
        );
        let borders: Vec<f64> = magnitudes
            .windows(2)
            .map(|pair| (pair[0] + pair[1]) / 2.0)
            .collect();
        for group in x.chunks(BAND) {
            let (error, scale) =
                best_scale(&magnitudes, &borders, group, 4.5 / f64::from(MAX_SCALE));
            total += error;
            for &x in group {
                let x = f64::from(x.abs());
                let i = nearest(&borders, x / scale);
                sums[i] += x * scale;
                weights[i] += scale * scale;
            }
        }
        mse = total / x.len() as f64;
        for i in 0..magnitudes.len() {
            if weights[i] > 0.0 {
                magnitudes[i] = sums[i] / weights[i];
            }
        }
        let top = magnitudes.last().copied().unwrap_or(1.0);
        magnitudes.iter_mut().for_each(|m| *m /= top);
    }
    let integers: Vec<i8> = magnitudes
        .iter()
        .map(|m| (m * 127.0).round() as i8)
        .collect();
    println!(
        "    // Bits above Shannon's bound without scales: {:.3}.\n    &{integers:?},",
        bits_above(mse, bits)
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    assert_eq!(STATES, 64 * 64);
    println!("LEVEL_TABLES");
    (2..=7).for_each(levels);
    println!("TRELLIS_TABLES");
    for bits in 2..=5 {
        trellis(bits)?;
    }
    Ok(())
}
