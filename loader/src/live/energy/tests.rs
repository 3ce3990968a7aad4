use proptest::prelude::*;

use super::*;

fn meter() -> EnergyAccumulator {
    EnergyAccumulator::new(Duration::from_secs(5), None)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn reading(at: f64, power: Option<f64>, energy: Option<f64>) -> Reading {
    Reading {
        time: seconds(at),
        temperature: None,
        power,
        energy,
    }
}

fn watts(at: f64, power: f64) -> Reading {
    reading(at, Some(power), None)
}

#[test]
fn only_work_is_counted() {
    let mut meter = meter();
    meter.enter(EnergyPhase::Idle, seconds(0.0));
    for at in 0..=10 {
        meter.push(&watts(f64::from(at), 20.0));
    }
    meter.enter(EnergyPhase::Other, seconds(10.0));
    meter.push(&watts(12.0, 500.0));
    meter.push(&watts(12.0, 100.0));
    meter.enter(EnergyPhase::Work, seconds(12.0));
    for at in 13..=22 {
        meter.push(&watts(f64::from(at), 100.0));
    }
    meter.enter(EnergyPhase::Idle, seconds(22.0));
    meter.push(&watts(22.0, 20.0));
    for at in 23..=32 {
        meter.push(&watts(f64::from(at), 20.0));
    }
    let energy = meter.energy().unwrap();
    let expected = Energy {
        joules: 1000.0,
        seconds: 10.0,
        missed: 0.0,
        idle_watts: Some(20.0),
        idle_joules: Some(200.0),
        source: Source::Integral,
        samples: 10,
        resets: 0,
    };
    assert_eq!(energy, expected);
    assert_eq!(energy.net_joules(), Some(800.0));
    assert_eq!(energy.tokens_per_joule(400), Some(0.4));
    assert_eq!(energy.net_tokens_per_joule(400), Some(0.5));
}

#[test]
fn phase_change_between_readings_splits_the_integral() {
    let mut integral = meter();
    integral.push(&watts(0.0, 10.0));
    integral.enter(EnergyPhase::Work, seconds(1.0));
    integral.enter(EnergyPhase::Other, seconds(3.0));
    integral.push(&watts(4.0, 90.0));
    let energy = integral.energy().unwrap();
    assert_eq!((energy.joules, energy.seconds), (100.0, 2.0));
    let counter = |power: [Option<f64>; 2]| {
        let mut meter = meter();
        meter.push(&reading(0.0, power[0], Some(7.0)));
        meter.enter(EnergyPhase::Work, seconds(1.0));
        meter.enter(EnergyPhase::Other, seconds(3.0));
        meter.push(&reading(4.0, power[1], Some(407.0)));
        meter.energy().unwrap()
    };
    let counted = counter([Some(10.0), Some(90.0)]);
    assert_eq!((counted.joules, counted.source), (200.0, Source::Counter));
    assert_eq!(counter([None, Some(3.0)]).joules, 200.0);
    assert_eq!(counter([Some(0.0), Some(0.0)]).joules, 200.0);
}

#[test]
fn counter_reset_falls_back_to_power() {
    let mut meter = meter();
    meter.enter(EnergyPhase::Work, seconds(0.0));
    for (at, power, energy) in [
        (0.0, 50.0, 1000.0),
        (1.0, 50.0, 1060.0),
        (2.0, 50.0, 3.0),
        (3.0, 50.0, 1e12),
        (4.0, 50.0, 1e12 + 60.0),
    ] {
        meter.push(&reading(at, Some(power), Some(energy)));
    }
    let energy = meter.energy().unwrap();
    assert_eq!((energy.joules, energy.resets), (220.0, 2));
    assert_eq!((energy.source, energy.missed), (Source::Both, 0.0));
}

#[test]
fn uncovered_time_is_reported_as_missed() {
    let mut meter = meter();
    assert_eq!(meter.energy(), None);
    meter.enter(EnergyPhase::Work, seconds(0.0));
    meter.push(&reading(1.0, None, None));
    assert_eq!(meter.energy(), None);
    meter.push(&watts(2.0, 100.0));
    meter.push(&watts(3.0, f64::NAN));
    meter.push(&watts(4.0, 100.0));
    meter.push(&watts(12.0, 100.0));
    meter.push(&watts(13.0, -1.0));
    meter.push(&watts(13.0, 100.0));
    let energy = meter.energy().unwrap();
    assert_eq!(
        (energy.joules, energy.seconds, energy.missed),
        (300.0, 3.0, 10.0)
    );
    assert_eq!(energy.tokens_per_joule(10), None);
    for at in 14..=20 {
        meter.push(&watts(f64::from(at), 100.0));
    }
    meter.enter(EnergyPhase::Other, seconds(21.0));
    let energy = meter.energy().unwrap();
    assert_eq!((energy.seconds, energy.missed), (10.0, 11.0));
    meter.push(&watts(22.0, 100.0));
    let energy = meter.energy().unwrap();
    assert_eq!((energy.seconds, energy.missed), (11.0, 10.0));
    assert_eq!(energy.tokens_per_joule(2100), Some(1.0));
    assert_eq!(energy.idle_watts, None);
    assert_eq!(energy.net_tokens_per_joule(2100), None);
}

#[test]
fn backward_time_adds_no_energy() {
    let mut meter = meter();
    meter.enter(EnergyPhase::Work, seconds(10.0));
    meter.push(&watts(10.0, 100.0));
    meter.push(&watts(12.0, 100.0));
    meter.push(&watts(3.0, 100.0));
    meter.enter(EnergyPhase::Other, seconds(1.0));
    meter.enter(EnergyPhase::Work, seconds(12.0));
    meter.push(&watts(12.0, 300.0));
    meter.push(&watts(13.0, 300.0));
    let energy = meter.energy().unwrap();
    assert_eq!((energy.joules, energy.seconds), (500.0, 3.0));
}

#[test]
fn given_idle_power_is_used() {
    let mut meter = EnergyAccumulator::new(Duration::from_secs(5), Some(30.0));
    meter.enter(EnergyPhase::Idle, seconds(0.0));
    meter.push(&watts(0.0, 10.0));
    meter.push(&watts(1.0, 10.0));
    meter.enter(EnergyPhase::Work, seconds(1.0));
    meter.push(&watts(3.0, 10.0));
    let energy = meter.energy().unwrap();
    assert_eq!(
        (energy.idle_watts, energy.net_joules()),
        (Some(30.0), Some(-40.0))
    );
    assert_eq!(energy.net_tokens_per_joule(1), None);
}

proptest! {
    #[test]
    fn phase_energies_sum_to_the_integral(
        powers in proptest::collection::vec(0.0..400.0, 2..12),
        borders in proptest::collection::vec((0.0..1.0, 0_usize..3), 0..20),
    ) {
        let mut meter = meter();
        let end = (powers.len() - 1) as f64;
        let mut borders: Vec<(f64, usize)> = borders.into_iter().map(|(part, phase)| (part * end, phase)).collect();
        borders.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut borders = borders.into_iter().peekable();
        for (at, power) in powers.iter().enumerate() {
            while let Some((at, phase)) = borders.next_if(|(border, _)| *border <= at as f64) {
                meter.enter([EnergyPhase::Other, EnergyPhase::Idle, EnergyPhase::Work][phase], seconds(at));
            }
            meter.push(&watts(at as f64, *power));
        }
        let expected: f64 = powers.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).sum();
        let joules: f64 = meter.accounts.iter().map(|account| account.joules).sum();
        let covered: f64 = meter.accounts.iter().map(|account| account.seconds).sum();
        prop_assert!((joules - expected).abs() < 1e-6 * (1.0 + expected), "{joules} {expected}");
        prop_assert!((covered - end).abs() < 1e-6, "{covered} {end}");
    }
}
