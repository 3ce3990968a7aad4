//! Cost and benefit of thermal control on a simulated device in virtual time, with reproducible
//! numbers.
//!
//! `thermal [TOKENS [RATE [LEAST [CAP|- [KEY=VALUE,...]]]]]` generates TOKENS (8000) tokens at RATE
//! (27) tokens per second at fraction 1 on the plant `sim:KEY=VALUE,...`, once with the full model
//! and once controlled down to the fraction LEAST (0.25), below CAP watts. A token at fraction r
//! takes r of the dynamic energy of a full one, in two loops:
//!
//! * *paced* generates RATE tokens per second at any fraction, and draws less power at a smaller
//!   one;
//! * *free* generates RATE/r tokens per second, as if limited by weight bandwidth, and draws the
//!   same power at any.
//!
//! The trajectory of each run is followed by its tokens per fraction in hundredths; `htc eval
//! --fraction` at these gives the quality of the run.
//!
//! Hardware throttling is not simulated: figures at fraction 1 are those of a device that never
//! slows down.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use htc_loader::live::sensor::sim::SimOptions;
use htc_loader::live::{
    ControlLaw, ControlLawOptions, Controller, EnergyAccumulator, EnergyPhase, Reading,
};

const POLL: Duration = Duration::from_millis(500);

/// Readings between two lines of the trajectory: 10 s.
const SHOWN: usize = 20;

const MOST_POLLS: usize = 7 * 24 * 3600 * 2;

#[derive(Clone, Copy)]
struct Run {
    law: ControlLaw,
    plant: SimOptions,
    tokens: f64,
    rate: f64,
}

struct RunResult {
    seconds: f64,
    joules: f64,
    warmest: f64,
    mean: f64,
    beyond: bool,
    tokens: BTreeMap<u32, f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.len() > 5 {
        return Err("thermal [TOKENS [RATE [LEAST [CAP|- [KEY=VALUE,...]]]]]".into());
    }
    let number = |place: usize, name: &str, usual: f64| match args
        .get(place)
        .map(|text| text.parse::<f64>())
    {
        None => Ok(usual),
        Some(Ok(value)) if value > 0.0 && value.is_finite() => Ok(value),
        Some(_) => Err(format!(
            "{name} is `{}`, expected a number above 0",
            args[place]
        )),
    };
    let power_cap = match args.get(3).map(String::as_str) {
        None | Some("-") => None,
        Some(_) => Some(number(3, "CAP", 0.0)?),
    };
    let law = ControlLaw::new(ControlLawOptions {
        min_fraction: number(2, "LEAST", 0.25)?,
        power_cap,
        ..ControlLawOptions::default()
    })?;
    let plant: SimOptions = args.get(4).map_or("", String::as_str).parse()?;
    let run = Run {
        law,
        plant,
        tokens: number(0, "TOKENS", 8000.0)?,
        rate: number(1, "RATE", 27.0)?,
    };

    let mut table = Vec::new();
    for (name, paced) in [("paced", true), ("free", false)] {
        println!("{name}, following: seconds, °C, watts, fraction");
        let following = run.run(true, paced, |seconds, reading, fraction| {
            let said = |value: Option<f64>| value.unwrap_or(f64::NAN);
            println!(
                "{seconds:7.1} {:6.1} {:6.1} {fraction:8.4}",
                said(reading.temperature),
                said(reading.power)
            );
        })?;
        println!("tokens at fractions of");
        for (hundredths, tokens) in &following.tokens {
            println!("{:7.2} {tokens:8.1}", f64::from(*hundredths) / 100.0);
        }
        table.push((name, "fixed", run.run(false, paced, |_, _, _| {})?));
        table.push((name, "following", following));
    }
    println!("\n| loop | fraction | mean fraction | seconds | joules | tokens/J | warmest, °C | |");
    println!("|---|---|--:|--:|--:|--:|--:|---|");
    for (name, how, done) in table {
        let note = if done.beyond {
            "beyond its limits at the least fraction"
        } else {
            ""
        };
        println!(
            "| {name} | {how} | {:.4} | {:.1} | {:.0} | {:.4} | {:.1} | {note} |",
            done.mean,
            done.seconds,
            done.joules,
            run.tokens / done.joules,
            done.warmest
        );
    }
    Ok(())
}

impl Run {
    fn run(
        &self,
        follow: bool,
        paced: bool,
        mut show: impl FnMut(f64, &Reading, f64),
    ) -> Result<RunResult, Box<dyn Error>> {
        // In a paced loop the power follows the fraction; in a free one it does not.
        let share = if paced { 1.0 } else { 0.0 };
        let mut plant = SimOptions {
            share,
            ..self.plant
        }
        .plant();
        let mut controller = Controller::new(self.law);
        let mut meter = EnergyAccumulator::new(2 * POLL, Some(self.plant.idle));
        meter.enter(EnergyPhase::Work, Duration::ZERO);
        let (mut at, mut left, mut fraction, mut joules) = (Duration::ZERO, self.tokens, 1.0, 0.0);
        let mut done = RunResult {
            seconds: 0.0,
            joules: 0.0,
            warmest: plant.temperature(),
            mean: 0.0,
            beyond: false,
            tokens: BTreeMap::new(),
        };
        for poll in 0..MOST_POLLS {
            let power = Some(plant.power(Some(fraction)));
            let reading = Reading {
                time: at,
                temperature: Some(plant.temperature()),
                power,
                energy: Some(joules),
            };
            meter.push(&reading);
            if left <= 0.0 {
                done.seconds = at.as_secs_f64();
                done.mean /= done.seconds;
                done.joules = meter.energy().ok_or("no work was measured")?.joules;
                return Ok(done);
            }
            if follow {
                let decision = controller.apply_reading(&reading);
                done.beyond |= decision.limit_exceeded;
                fraction = decision.fraction;
            }
            if poll % SHOWN == 0 {
                show(at.as_secs_f64(), &reading, fraction);
            }
            let rate = if paced {
                self.rate
            } else {
                self.rate / fraction
            };
            let whole = rate * POLL.as_secs_f64();
            let step = if left > whole {
                POLL
            } else {
                Duration::from_secs_f64(left / rate)
            };
            let written = left.min(whole);
            // Tolerates a fraction slightly below its hundredth.
            let hundredths = (100.0 * fraction + 1e-6).floor() as u32;
            *done.tokens.entry(hundredths).or_default() += written;
            left -= written;
            joules += plant.step(Some(fraction), step);
            at += step;
            done.mean += fraction * step.as_secs_f64();
            done.warmest = done.warmest.max(plant.temperature());
        }
        Err("not done after a week; ask for fewer tokens or a higher rate".into())
    }
}
