//! Trains the tables of `htc_formats::bands` on Gaussian numbers and prints them: `cargo run
//! --release -p htc-math --example tables`.
//!
//! Trellis: alternates between paths for given tables and tables of least squared error for these
//! paths; perturbation of the best tables finds better ones than random starts. Codebook:
//! alternates between scales and levels.

use std::error::Error;

use htc_formats::bands::{Code, GROUP_COLS, MAX_CODEBOOK_SCALE, STATES};
use htc_math::codes::Viterbi;
use htc_math::random::Rng;

const SEQUENCE: usize = 1024;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..count).map(|_| rng.normal() as f32).collect()
}

fn paths(code: Code, x: &[f32], value: impl Fn(usize) -> f32) -> Vec<u16> {
    let mut viterbi = Viterbi::with_values(code, value);
    let mut states = vec![0; x.len()];
    for (x, states) in x.chunks(SEQUENCE).zip(states.chunks_mut(SEQUENCE)) {
        viterbi.encode(x, None, states);
    }
    states
}

fn error(x: &[f32], y: impl Iterator<Item = f32>) -> f64 {
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (&x, y) in x.iter().zip(y) {
        let (x, y) = (f64::from(x), f64::from(y));
        (xx, xy, yy) = (xx + x * x, xy + x * y, yy + y * y);
    }
    (xx - xy * xy / yy) / x.len() as f64
}

/// Bits of the state that select an entry of a table.
#[derive(Clone, Copy)]
struct Field {
    first: usize,
    bits: usize,
}

/// Field of each table. The first two
/// tables serve the low half of a state, the others the high half. (Tables of version 1 were two of
/// 64 free entries.)
const FIELDS: [Field; 4] = [
    Field { first: 0, bits: 4 },
    Field { first: 4, bits: 2 },
    Field { first: 6, bits: 2 },
    Field { first: 8, bits: 4 },
];

const PERTURBED_STARTS: u64 = 48;

fn entry(field: Field, state: usize) -> usize {
    state >> field.first & ((1 << field.bits) - 1)
}

fn value<T: Copy + std::iter::Sum<T>>(tables: &[Vec<T>], state: usize) -> T {
    let pairs = FIELDS.iter().zip(tables);
    pairs
        .map(|(&field, table)| table[entry(field, state)])
        .sum()
}

/// Fits each table in turn, with the others fixed.
fn fit(tables: &mut [Vec<f64>], x: &[f32], states: &[u16]) {
    for _ in 0..4 {
        for (side, field) in FIELDS.into_iter().enumerate() {
            let entries = tables[side].len();
            let (mut sums, mut counts) = (vec![0.0; entries], vec![0.0; entries]);
            for (&x, &state) in x.iter().zip(states) {
                let own = entry(field, state.into());
                let others = value(tables, state.into()) - tables[side][own];
                sums[own] += f64::from(x) - others;
                counts[own] += 1.0;
            }
            for ((to, sum), count) in tables[side].iter_mut().zip(sums).zip(counts) {
                if count > 5.0 {
                    *to = sum / count;
                }
            }
        }
    }
}

fn rounded(mut tables: Vec<Vec<f64>>) -> (Vec<Vec<i32>>, f64) {
    let mut moved = 0.0;
    let last = tables.len() - 1;
    for table in &mut tables[..last] {
        let mean = table.iter().sum::<f64>() / table.len() as f64;
        table.iter_mut().for_each(|v| *v -= mean);
        moved += mean;
    }
    tables[last].iter_mut().for_each(|v| *v += moved);
    let largest = |t: &Vec<f64>| t.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    let scale = 126.0 / tables.iter().map(largest).sum::<f64>();
    let round = |table: Vec<f64>| table.iter().map(|v| (v * scale).round() as i32).collect();
    (tables.into_iter().map(round).collect(), scale)
}

fn trained(code: Code, mut tables: Vec<Vec<f64>>, x: &[f32]) -> Vec<Vec<f64>> {
    for round in 0..150 {
        let some = &x[..(8 + round * 2).min(256) * SEQUENCE];
        let states = paths(code, some, |state| value(&tables, state) as f32);
        fit(&mut tables, some, &states);
    }
    tables
}

fn trellis(bits: u8) -> Result<(), Box<dyn Error>> {
    let code = Code::trellis(bits)?;
    let (train, test) = (numbers(1, 256 * SEQUENCE), numbers(2, 96 * SEQUENCE));
    let mut best = (f64::INFINITY, Vec::new(), 0.0);
    let mut from = FIELDS.map(|field| vec![0.0; 1 << field.bits]).to_vec();
    for (seed, deviation) in [(0, 0.5)]
        .into_iter()
        .chain((0..PERTURBED_STARTS).map(|seed| (seed, 0.1)))
    {
        let mut rng = Rng(100 + seed);
        let mut tables = from.clone();
        for entry in tables.iter_mut().flatten() {
            *entry += rng.normal() * deviation;
        }
        let tables = trained(code, tables, &train);
        let (integers, scale) = rounded(tables.clone());
        let of = |s: usize| f64::from(value(&integers, s));
        let states = paths(code, &test, |s| (of(s) / scale) as f32);
        let mse = error(&test, states.iter().map(|&s| of(s.into()) as f32));
        eprintln!(
            "trellis{bits} shaken by {deviation}, {seed}: {:.4} bits above Shannon",
            bits_above(mse, bits)
        );
        if mse < best.0 {
            best = (mse, integers, scale);
            from = tables;
        }
    }
    println!(
        "    // Bits above Shannon's bound on Gaussian numbers: {:.3}.",
        bits_above(best.0, bits)
    );
    let [lowest, fourth, sixth, highest] = best.1.as_slice() else {
        return Err("four tables".into());
    };
    println!(
        "    Trellis::of_sums({lowest:?}, [{fourth:?}, {sixth:?}], {highest:?}, {:.4}),",
        best.2
    );
    Ok(())
}

fn bits_above(mse: f64, bits: u8) -> f64 {
    f64::from(bits) + 0.5 * mse.log2()
}

fn nearest(borders: &[f64], x: f64) -> usize {
    borders.partition_point(|&border| x > border)
}

fn best_scale(magnitudes: &[f64], borders: &[f64], group: &[f32], unit: f64) -> (f64, f64) {
    let largest = group
        .iter()
        .fold(0.0_f64, |m, &x| m.max(f64::from(x).abs()));
    let whole = |share: f64| ((largest / unit * share) as u8).clamp(1, MAX_CODEBOOK_SCALE);
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
    let x = numbers(3, 2048 * GROUP_COLS);
    let mut magnitudes: Vec<f64> = (0..count)
        .map(|i| (f64::from(i) + 0.5) / f64::from(count))
        .collect();
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
        for group in x.chunks(GROUP_COLS) {
            let (error, scale) = best_scale(
                &magnitudes,
                &borders,
                group,
                4.5 / f64::from(MAX_CODEBOOK_SCALE),
            );
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
    println!("VERSION_2");
    for bits in 2..=5 {
        trellis(bits)?;
    }
    Ok(())
}
