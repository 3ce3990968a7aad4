//! Replays the published trace of a decoding GPU, if it is present in `HTC_SHARED` or `../shared`.

use std::path::PathBuf;
use std::time::Duration;

use htc_loader::live::sensor::trace::{Trace, TraceSensor};
use htc_loader::live::{
    Clock, ControlLaw, ControlLawOptions, Controller, EnergyAccumulator, EnergyPhase, LimitReason,
    LiveError, Reading, ReadingStatus, Sensor, Source,
};

/// Adaptive Compression, the telemetry of its thermal section.
const TOKENS: u64 = 4 * 384;

const LOAD: f64 = 50.0;

fn published() -> Option<Trace> {
    let root = std::env::var_os("HTC_SHARED").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = root.join("targets/thermal_sustained_8b.csv");
    if !path.exists() {
        println!("skipped: {} is absent", path.display());
        return None;
    }
    Some(Trace::read(&path).unwrap())
}

#[test]
fn published_trace_is_read_completely() {
    let Some(trace) = published() else { return };
    let rows = trace.readings();
    assert_eq!(rows.len(), 94);
    assert!((trace.duration().as_secs_f64() - 98.357).abs() < 1e-3);
    let celsius: Vec<f64> = rows
        .iter()
        .map(|row| row.plausible_temperature().unwrap())
        .collect();
    assert_eq!(celsius.iter().copied().fold(f64::MAX, f64::min), 41.0);
    assert_eq!(celsius.iter().copied().fold(f64::MIN, f64::max), 75.0);
    let mean = celsius.iter().sum::<f64>() / 94.0;
    assert!((mean - 60.670_212_765_957_444).abs() < 1e-12);

    let mut loaded: Vec<f64> = rows
        .iter()
        .filter_map(|row| row.plausible_power())
        .filter(|watts| *watts > LOAD)
        .collect();
    loaded.sort_by(f64::total_cmp);
    // Without the ends of passes.
    let part = |part: f64| loaded[(part * (loaded.len() - 1) as f64) as usize];
    assert!(part(0.1) >= 87.5 && part(0.9) <= 113.0, "{loaded:?}");
}

#[test]
fn controller_reduces_the_rank_and_restores_it() {
    let Some(trace) = published() else { return };
    let law = ControlLaw::new(ControlLawOptions::default()).unwrap();
    let (clock, mut controller) = (Clock::manual(), Controller::new(law));
    let length = trace.duration();
    let mut sensor = TraceSensor::new(trace, clock.clone());
    let (mut fractions, mut changes) = (Vec::new(), 0);
    while let Ok(reading) = sensor.read() {
        let decision = controller.apply_reading(&reading);
        assert_eq!(decision.temperature, ReadingStatus::Available);
        assert!(decision.fraction <= law.fraction(reading.temperature.unwrap()));
        assert!(!decision.limit_exceeded);
        changes += usize::from(
            fractions
                .last()
                .is_some_and(|last| *last != decision.fraction),
        );
        fractions.push(decision.fraction);
        clock.advance(Duration::from_millis(500));
    }
    let least = fractions.iter().copied().fold(f64::MAX, f64::min);
    assert_eq!((fractions[0], least), (1.0, 0.625));
    assert_eq!(fractions.last(), Some(&1.0));
    assert!(
        changes > 10 && changes < fractions.len() / 2,
        "{changes} of {}",
        fractions.len()
    );

    assert!(clock.now() > length);
    assert!(matches!(sensor.read(), Err(LiveError::TraceEnded { .. })));
    let lost = controller.apply_reading(&Reading::without_values(clock.now()));
    assert_eq!(
        (lost.fraction, lost.reason, lost.temperature),
        (1.0, LimitReason::NoReading, ReadingStatus::Lost)
    );
}

#[test]
fn idle_time_is_excluded_from_work() {
    let Some(trace) = published() else { return };
    let measure = |idle_counts: bool| {
        let mut meter = EnergyAccumulator::new(Duration::from_secs(5), None);
        let last_load = trace
            .readings()
            .iter()
            .rfind(|row| row.power.unwrap() > LOAD);
        let end = last_load.unwrap().time;
        let mut began = false;
        for row in trace.readings() {
            began |= row.power.unwrap() > LOAD;
            meter.push(row);
            meter.enter(
                match (began, row.time < end || idle_counts) {
                    (false, _) => EnergyPhase::Other,
                    (true, true) => EnergyPhase::Work,
                    (true, false) => EnergyPhase::Idle,
                },
                row.time,
            );
        }
        meter.energy().unwrap()
    };
    let (work, all) = (measure(false), measure(true));
    assert_eq!(
        (work.source, work.missed, work.resets),
        (Source::Integral, 0.0, 0)
    );
    assert!((work.seconds - 61.286).abs() < 1e-3, "{work:?}");
    assert!(
        (all.seconds - work.seconds - 30.701).abs() < 1e-3,
        "{all:?}"
    );
    let idle = work.idle_watts.unwrap();
    assert!((3.0..8.0).contains(&idle), "{idle}");
    let watts = |energy: &htc_loader::live::Energy| energy.joules / energy.seconds;
    assert!(
        (90.0..100.0).contains(&watts(&work)) && watts(&all) < 70.0,
        "{work:?} {all:?}"
    );
    // The published 0.415 includes idle time.
    let per_joule = work.tokens_per_joule(TOKENS).unwrap();
    assert!((0.24..0.27).contains(&per_joule), "{per_joule}");
    assert!(work.net_tokens_per_joule(TOKENS).unwrap() > per_joule);
    let rate = TOKENS as f64 / work.seconds;
    assert!(rate / watts(&all) > 1.3 * per_joule, "{rate} {all:?}");
}
