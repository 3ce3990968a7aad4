//! Measures the time of coding, relative to the estimates.
//!
//! `coding [TURNS]` prints the time per value of every GGUF type that searches for its scales, in
//! units of multiplications in matrix products. The last line has the mean and the estimate, which
//! should agree within a factor of 4.

use std::error::Error;
use std::time::Instant;

use htc::codes::{BlockCoder, DAMPING, ROWS_PER_TILE};
use htc::estimate::coding_cost;
use htc::estimate::duration::Speed;
use htc::math::random::Rng;
use htc::math::{ErrorFeedback, SecondMoment, Weight};
use htc_formats::block::BlockFit;

const SWEEPS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let turns = std::env::args().nth(1).map(|turns| turns.parse());
    let turns: usize = turns.transpose()?.unwrap_or(12);
    let mut rng = Rng(5);
    println!("columns  type     multiplications");
    for cols in [256, 1024] {
        let values: Vec<f32> = (0..ROWS_PER_TILE * cols)
            .map(|_| rng.normal() as f32)
            .collect();
        let seconds = shortest(&values, cols, turns)?;
        let multiplication = (0..turns.max(1)).map(|_| Speed::measure().product_seconds(1.0));
        let multiplication = multiplication.fold(f64::INFINITY, f64::min);
        let each = |seconds: f64| seconds / values.len() as f64 / multiplication;
        for (dtype, &seconds) in BlockFit::TYPES.iter().zip(&seconds) {
            println!("{cols:7}  {:7}  {:.0}", dtype.to_string(), each(seconds));
        }
        let mean = each(seconds.iter().sum::<f64>()) / seconds.len() as f64;
        let said = coding_cost(cols);
        println!(
            "{cols:7}  mean     {mean:.0}, {said:.0} said: {:.2}",
            mean / said
        );
    }
    Ok(())
}

fn shortest(values: &[f32], cols: usize, turns: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let weight = Weight {
        rows: ROWS_PER_TILE,
        cols,
        values,
    };
    let entry = |i: usize, j: usize| 0.9f64.powi(i.abs_diff(j) as i32);
    let moment: Vec<f64> = (0..cols * cols)
        .map(|at| entry(at / cols, at % cols))
        .collect();
    let moment = SecondMoment {
        order: cols,
        values: &moment,
    };
    let feedback = ErrorFeedback::new(moment, DAMPING)?;
    let mut stored = vec![0.0; values.len()];
    let mut shortest = vec![f64::INFINITY; BlockFit::TYPES.len()];
    for _ in 0..turns {
        for (&dtype, shortest) in BlockFit::TYPES.iter().zip(&mut shortest) {
            let row = dtype.row_bytes(cols).ok_or("a row of no whole blocks")?;
            let mut bytes = vec![0; ROWS_PER_TILE * row];
            let begun = Instant::now();
            BlockCoder::new(dtype, &feedback, None, SWEEPS).code(
                weight,
                &mut bytes,
                &mut stored,
            )?;
            *shortest = shortest.min(begun.elapsed().as_secs_f64());
        }
    }
    Ok(shortest)
}
