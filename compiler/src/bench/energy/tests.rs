//! Joules of runs in closed form, with manual clocks.

use std::collections::VecDeque;

use htc_loader::live::sensor::sim::{SimOptions, SimulatedSensor};

use htc_loader::live::Clock;

use super::super::record::Pair;
use super::*;
use crate::bench::runner::Timing;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn run(tokens: usize, took: Duration, reading: EnergyReading) -> Run {
    let timing = Timing {
        prompt_tokens: 10,
        tokens,
        prefill: took / 2,
        decode: took / 2,
    };
    Run::new(timing, Some(reading)).unwrap()
}

fn alone(runs: Vec<Run>) -> BenchResults {
    let pair = |subject| Pair {
        prompt: None,
        tokens: 5,
        subject_first: true,
        subject,
        baseline: None,
    };
    BenchResults {
        pairs: runs.into_iter().map(pair).collect(),
        contexts: Vec::new(),
    }
}

#[test]
fn run_energy_excludes_pauses_and_reports_idle_power() {
    let (clock, plant) = (Clock::manual(), SharedFraction::new());
    plant.set_busy(false);
    let options: SimOptions = "idle=10,full=110".parse().unwrap();
    let sensor = SimulatedSensor::new(options.plant(), Arc::clone(&plant), clock.clone());
    let mut metered = EnergyMeter::with(Box::new(sensor), plant, 1.0, Duration::ZERO).unwrap();
    metered.set_fractions(0.5, 1.0);
    metered.governor.enter_phase(EnergyPhase::Idle).unwrap();
    clock.advance(seconds(10));
    metered.governor.enter_phase(EnergyPhase::Other).unwrap();
    let mut of = |side, prefill, decode| {
        clock.advance(seconds(5));
        metered.start(side).unwrap();
        clock.advance(seconds(prefill));
        metered.mark().unwrap();
        clock.advance(seconds(decode));
        metered.stop().unwrap().unwrap()
    };
    let close = |found: Option<f64>, expected: f64| {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    };
    let subject = of(Side::Subject, 2, 4);
    close(subject.joules, 360.0);
    close(subject.decode_joules, 240.0);
    close(subject.net_joules, 300.0);
    close(subject.power_watts, 60.0);
    close(subject.missed_seconds, 0.0);
    let warmth = subject.temperature_before_celsius.unwrap();
    assert!((warmth - 32.0).abs() < 1e-9, "{warmth}");
    assert!(subject.temperature_after_celsius.unwrap() > warmth);
    assert_eq!(
        subject.temperature_celsius,
        subject.temperature_after_celsius
    );
    let baseline = of(Side::Baseline, 1, 2);
    close(baseline.joules, 330.0);
    close(baseline.decode_joules, 220.0);
    close(baseline.net_joules, 300.0);
    let paid = run(6, seconds(6), subject);
    close(paid.energy.unwrap().tokens_per_joule, 6.0 / 360.0);
    close(paid.energy.unwrap().net_tokens_per_joule, 6.0 / 300.0);
    close(paid.energy.unwrap().decode_tokens_per_joule, 5.0 / 240.0);
    let record = metered.record();
    close(record.idle_watts, 10.0);
    assert_eq!(record.source, Some(Source::Counter));
    assert_eq!(metered.notes(&alone(vec![paid])), Vec::<String>::new());
    let short = metered.notes(&alone(vec![
        paid,
        run(6, Duration::from_millis(900), baseline),
    ]));
    assert!(
        short.len() == 1 && short[0].starts_with("1 of 2 runs took less than 1 s"),
        "{short:?}"
    );
}

struct ScriptedSensor {
    info: SensorInfo,
    says: Arc<Mutex<VecDeque<Option<Sensed>>>>,
}

impl Sensor for ScriptedSensor {
    fn info(&self) -> &SensorInfo {
        &self.info
    }

    fn read(&mut self) -> Result<Sensed, LiveError> {
        let says = self.says.lock().unwrap();
        let reading = says.front().copied().flatten();
        let reading = reading.map(|reading| Sensed {
            time: self.info.clock.now(),
            ..reading
        });
        reading.ok_or(LiveError::NoNvml {
            reason: "it was told to".into(),
        })
    }
}

fn given() -> (EnergyMeter, Clock, impl Fn(Option<Sensed>)) {
    let (clock, says) = (
        Clock::manual(),
        Arc::new(Mutex::new(VecDeque::from([None]))),
    );
    let sensor = ScriptedSensor {
        info: SensorInfo {
            name: "given".into(),
            clock: clock.clone(),
            // Polled only on request.
            min_interval: seconds(3600),
            notes: Vec::new(),
        },
        says: Arc::clone(&says),
    };
    let metered =
        EnergyMeter::with(Box::new(sensor), SharedFraction::new(), 1.0, Duration::ZERO).unwrap();
    let say = move |reading| says.lock().unwrap()[0] = reading;
    (metered, clock, say)
}

fn watts(power: f64) -> Option<Sensed> {
    Some(Sensed {
        power: Some(power),
        ..Sensed::default()
    })
}

#[test]
fn missed_time_is_reported_and_too_much_gives_no_energy() {
    let (mut metered, clock, say) = given();
    say(watts(100.0));
    metered.start(Side::Subject).unwrap();
    clock.advance(seconds(1));
    metered.mark().unwrap();
    metered.stop().unwrap();
    metered.start(Side::Subject).unwrap();
    clock.advance(seconds(10));
    metered.mark().unwrap();
    for _ in 0..3 {
        clock.advance(seconds(4));
        metered.governor.enter_phase(EnergyPhase::Work).unwrap();
    }
    let reading = metered.stop().unwrap().unwrap();
    assert_eq!(reading.joules, Some(2200.0));
    assert_eq!(reading.decode_joules, Some(1200.0));
    assert_eq!(
        (reading.power_watts, reading.missed_seconds),
        (Some(100.0), Some(10.0))
    );
    assert_eq!(
        (reading.net_joules, reading.temperature_celsius),
        (None, None)
    );
    let known = run(5, seconds(22), reading);
    metered.start(Side::Subject).unwrap();
    clock.advance(seconds(4));
    metered.mark().unwrap();
    say(None);
    clock.advance(seconds(8));
    let reading = metered.stop().unwrap().unwrap();
    assert_eq!(reading, EnergyReading::default());
    let unknown = run(5, seconds(12), reading);
    assert_eq!(unknown.energy, Some(Default::default()));
    let notes = metered.notes(&alone(vec![known, unknown]));
    assert!(
        notes[0].starts_with("1 of 2 runs have no joules"),
        "{notes:?}"
    );
    assert!(notes[0].contains("it was told to"), "{notes:?}");
}

#[test]
fn temperature_only_sensor_gives_no_energy() {
    let (mut metered, clock, say) = given();
    let warm = |celsius| {
        Some(Sensed {
            temperature: Some(celsius),
            ..Sensed::default()
        })
    };
    say(warm(50.0));
    metered.idle(&CancellationToken::default()).unwrap();
    metered.start(Side::Subject).unwrap();
    say(warm(71.0));
    clock.advance(seconds(3));
    metered.mark().unwrap();
    say(warm(64.0));
    clock.advance(seconds(3));
    let reading = metered.stop().unwrap().unwrap();
    let expected = EnergyReading {
        temperature_before_celsius: Some(50.0),
        temperature_after_celsius: Some(64.0),
        temperature_celsius: Some(71.0),
        ..EnergyReading::default()
    };
    assert_eq!(reading, expected);
    assert_eq!(
        (metered.record().idle_watts, metered.record().source),
        (None, None)
    );
    assert_eq!(reading.without_energy(), reading);
    say(Some(Sensed {
        energy: Some(7.0),
        ..Sensed::default()
    }));
    metered.start(Side::Subject).unwrap();
    clock.advance(Duration::from_millis(3));
    metered.mark().unwrap();
    let reading = metered.stop().unwrap().unwrap();
    assert_eq!((reading.joules, reading.decode_joules), (None, None));
}

#[test]
fn missing_sensor_is_an_error() {
    let error = EnergyMeter::open(&"trace:no.csv".parse().unwrap());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("no.csv"), "{error}");
}
