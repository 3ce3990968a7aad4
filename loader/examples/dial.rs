//! Speed at several active fractions of a model, and the cost of switching between them.
//!
//! `dial MODEL THREADS FRACTION...` prints, for every fraction, the weight bytes per token, tokens
//! per second, and the extra time of the first token after a switch; then the cost of a switch, and
//! the cost per token of polling an unchanged fraction. Fractions alternate every 16 tokens, a
//! hundred times; figures are medians.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use htc_loader::dial::ActiveFraction;
use htc_loader::live::SharedFraction;
use htc_loader::{Cpu, Model, Pool, Session};

/// Tokens between two switches, and rounds over all fractions.
const TOKENS: usize = 16;
const TURNS: usize = 100;

const CONTEXT: usize = 128;

const SWITCHES: usize = 1000;
const LOADS: usize = 1_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads, fractions @ ..] = &args[..] else {
        return Err("dial MODEL THREADS FRACTION...".into());
    };
    let numbers: Result<Vec<f64>, _> = fractions.iter().map(|text| text.parse()).collect();
    let fractions: Result<Vec<ActiveFraction>, _> =
        numbers?.into_iter().map(ActiveFraction::new).collect();
    let fractions = fractions?;
    let pool = Arc::new(Pool::new(threads.parse()?)?);
    let model = Arc::new(Model::open(model)?);
    let mut session = Session::new(Arc::clone(&model), Cpu::new(&pool), CONTEXT)?;

    let mut times = vec![[const { Vec::new() }; 2]; fractions.len()];
    for _ in 0..TURNS {
        for (&fraction, times) in fractions.iter().zip(&mut times) {
            if session.position() + TOKENS > CONTEXT {
                session.reset();
            }
            session.set_fraction(fraction)?;
            for token in 0..TOKENS {
                let started = Instant::now();
                black_box(session.step(&[5])?);
                times[usize::from(token > 0)].push(started.elapsed().as_secs_f64());
            }
        }
    }
    println!("fraction  of bytes  bytes touched  tokens/s  first behind a switch, µs more");
    for (&fraction, times) in fractions.iter().zip(&mut times) {
        let setting = model.dial().setting_for(fraction)?;
        let [first, other] = times;
        let (first, other) = (median(first), median(other));
        println!(
            "{:8}  {:8.4}  {:13}  {:8.1}  {:8.1}",
            fraction.get(),
            model.dial().fraction(setting),
            model.dial().active_bytes(setting),
            1.0 / other,
            1e6 * (first - other),
        );
    }

    let follow = SharedFraction::new();
    session.follow_with(Arc::clone(&follow), ActiveFraction::FULL)?;
    let least = model.dial().smallest_fraction();
    let mut switches = Vec::new();
    for index in 0..SWITCHES {
        follow.set_fraction(
            least + (1.0 - least) * (index * 617 % SWITCHES) as f64 / SWITCHES as f64,
        );
        let started = Instant::now();
        session.follow()?;
        switches.push(started.elapsed().as_secs_f64());
    }
    let started = Instant::now();
    for _ in 0..LOADS {
        black_box(&mut session).follow()?;
    }
    let nothing = started.elapsed().as_secs_f64() / LOADS as f64;
    let largest = switches.iter().fold(0.0_f64, |most, &time| most.max(time));
    println!(
        "a switch takes {:.2} µs ({:.2} µs at most of {SWITCHES}), following without one {:.2} ns a token",
        1e6 * median(&mut switches),
        1e6 * largest,
        1e9 * nothing
    );
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
