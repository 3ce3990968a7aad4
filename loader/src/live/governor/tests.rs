//! Tests of the thread: events, sensor faults and termination.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::live::SensorInfo;
use crate::live::control::{ControlLawOptions, LimitReason};
use crate::live::energy::Source;
use crate::live::sensor::sim::{SimOptions, SimulatedSensor};

const TICK: Duration = Duration::from_millis(2);

fn law() -> ControlLaw {
    ControlLaw::new(ControlLawOptions::default()).unwrap()
}

fn quick() -> GovernorOptions {
    GovernorOptions {
        interval: TICK,
        ..GovernorOptions::default()
    }
}

enum Act {
    Say(f64),
    Fail,
    Panic,
    /// Blocks until the other end is dropped.
    Hang(Receiver<()>),
}

struct Script {
    acts: VecDeque<Act>,
    info: SensorInfo,
}

impl Script {
    fn boxed(acts: impl IntoIterator<Item = Act>) -> Box<Script> {
        Box::new(Script {
            acts: acts.into_iter().collect(),
            info: SensorInfo {
                name: "script".to_owned(),
                clock: Clock::manual(),
                min_interval: Duration::ZERO,
                notes: Vec::new(),
            },
        })
    }
}

impl Sensor for Script {
    fn info(&self) -> &SensorInfo {
        &self.info
    }
    fn read(&mut self) -> Result<Reading, LiveError> {
        self.info.clock.advance(Duration::from_secs(1));
        let last = self.acts.len() == 1;
        let act = match self.acts.front() {
            Some(Act::Say(celsius)) if last => Act::Say(*celsius),
            Some(Act::Fail) if last => Act::Fail,
            _ => self.acts.pop_front().unwrap(),
        };
        match act {
            Act::Say(celsius) => Ok(Reading {
                time: self.info.clock.now(),
                temperature: Some(celsius),
                power: Some(50.0),
                energy: None,
            }),
            Act::Fail => Err(LiveError::TraceEnded {
                path: "trace".into(),
                seconds: 1.0,
            }),
            Act::Panic => panic!("on purpose"),
            Act::Hang(until) => {
                let _ = until.recv();
                Ok(Reading::default())
            }
        }
    }
}

fn start(sensor: Box<dyn Sensor>, options: GovernorOptions) -> (Governor, Receiver<Event>) {
    let (to, events): (Sender<Event>, _) = channel();
    let follow = SharedFraction::new();
    let governor = Governor::start(sensor, law(), options, &follow, move |event| {
        let _ = to.send(event.clone());
    });
    (governor.unwrap(), events)
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(Duration::from_secs(20)).unwrap()
}

#[test]
fn lost_and_restored_sensor_is_reported_in_order() {
    let wrong = [f64::NAN, 255.0, -1.0].map(Act::Say);
    let acts = [Act::Say(85.0)].into_iter().chain(wrong).chain([
        Act::Say(85.0),
        Act::Fail,
        Act::Fail,
        Act::Say(20.0),
    ]);
    let (governor, events) = start(Script::boxed(acts), quick());
    let start = next(&events);
    assert!(matches!(&start.what, EventKind::Start { sensor, .. } if sensor == "script"));
    let least = next(&events);
    assert_eq!(
        least.what,
        EventKind::Change {
            why: LimitReason::Temperature
        }
    );
    assert_eq!((least.fraction, least.at), (0.25, 1.0));
    let lost = next(&events);
    assert!(
        lost.warning().is_some_and(|said| said.contains("says NaN")),
        "{lost:?}"
    );
    assert_eq!(lost.fraction, 1.0);
    assert_eq!(
        next(&events).what,
        EventKind::Change {
            why: LimitReason::NoReading
        }
    );
    assert!(matches!(next(&events).what, EventKind::Back { .. }));
    assert_eq!(next(&events).fraction, 0.25);
    let again = next(&events);
    assert_eq!(again.warning(), None);
    assert!(
        matches!(&again.what, EventKind::Lost { reason, first: false, .. } if reason.contains("trace"))
    );
    assert_eq!(next(&events).fraction, 1.0);
    assert!(matches!(next(&events).what, EventKind::Back { .. }));
    assert_eq!(governor.shared_fraction().fraction(), 1.0);
    governor.stop().unwrap();
    assert_eq!(next(&events).what, EventKind::Stop);
    assert!(events.recv().is_err());
}

#[test]
fn unreachable_limit_is_reported_once() {
    let acts = [90.0, 91.0, 92.0, 80.0, 95.0].map(Act::Say);
    let (governor, events) = start(Script::boxed(acts), quick());
    next(&events);
    assert_eq!(next(&events).fraction, 0.25);
    let beyond = next(&events);
    assert_eq!(beyond.what, EventKind::Beyond { first: true });
    assert!(
        beyond
            .warning()
            .is_some_and(|said| said.contains("90.0 °C"))
    );
    // The fraction recovered for a second.
    let why = LimitReason::Temperature;
    assert_eq!(next(&events).what, EventKind::Change { why });
    assert_eq!(next(&events).what, EventKind::Change { why });
    assert_eq!(next(&events).what, EventKind::Beyond { first: false });
    drop(governor);
    assert_eq!(next(&events).what, EventKind::Stop);
}

#[test]
fn stop_does_not_wait_for_the_next_reading() {
    let hour = GovernorOptions {
        interval: Duration::from_secs(3600),
        ..GovernorOptions::default()
    };
    let (governor, events) = start(Script::boxed([Act::Say(75.0)]), hour);
    next(&events);
    assert_eq!(next(&events).fraction, 0.625);
    let (begun, follow) = (Instant::now(), Arc::clone(governor.shared_fraction()));
    governor.enter_phase(EnergyPhase::Work).unwrap();
    governor.enter_phase(EnergyPhase::Other).unwrap();
    let energy = governor.stop().unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(follow.fraction(), 1.0);
    assert_eq!(
        (energy.joules, energy.seconds, energy.missed),
        (50.0, 1.0, 0.0)
    );
    assert_eq!(energy.source, Source::Integral);
}

#[test]
fn hanging_sensor_times_out() {
    let (hold, until) = channel();
    let options = GovernorOptions {
        timeout: Duration::from_millis(50),
        ..quick()
    };
    let (governor, events) = start(
        Script::boxed([Act::Say(85.0), Act::Hang(until), Act::Say(85.0)]),
        options,
    );
    next(&events);
    assert_eq!(next(&events).fraction, 0.25);
    let (begun, follow) = (Instant::now(), Arc::clone(governor.shared_fraction()));
    let stuck = governor.enter_phase(EnergyPhase::Work).unwrap_err();
    assert!(matches!(stuck, LiveError::Stuck { .. }), "{stuck}");
    let stuck = governor.stop().unwrap_err();
    assert!(stuck.to_string().contains("script"), "{stuck}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(follow.fraction(), 1.0);
    drop(hold);
    assert_eq!(next(&events).what, EventKind::Stop);
    assert!(events.recv().is_err());
    assert_eq!(follow.fraction(), 1.0);
}

#[test]
fn panic_resets_the_fraction_and_is_reported() {
    let (governor, events) = start(Script::boxed([Act::Say(85.0), Act::Panic]), quick());
    next(&events);
    assert_eq!(next(&events).fraction, 0.25);
    while events.recv().is_ok() {}
    let follow = Arc::clone(governor.shared_fraction());
    assert!(matches!(
        governor.enter_phase(EnergyPhase::Work),
        Err(LiveError::Panicked { .. })
    ));
    assert!(matches!(governor.stop(), Err(LiveError::Panicked { .. })));
    assert_eq!(follow.fraction(), 1.0);
    let follow = SharedFraction::new();
    let bad = |_: &Event| panic!("on purpose");
    let governor = Governor::start(
        Script::boxed([Act::Say(85.0)]),
        law(),
        quick(),
        &follow,
        bad,
    );
    assert!(matches!(
        governor.unwrap().stop(),
        Err(LiveError::Panicked { .. })
    ));
}

#[test]
fn options_are_validated_and_least_can_change() {
    let follow = SharedFraction::new();
    let refused = |sensor: Box<dyn Sensor>, options| {
        Governor::start(sensor, law(), options, &follow, |_| {}).unwrap_err()
    };
    let mut slow = Script::boxed([Act::Say(20.0)]);
    slow.info.name = "slow".to_owned();
    slow.info.min_interval = DEFAULT_POLL_INTERVAL;
    let fault = refused(slow, quick()).to_string();
    assert!(fault.contains("500ms") && fault.contains("slow"), "{fault}");
    let options = GovernorOptions {
        idle_watts: Some(f64::NAN),
        ..quick()
    };
    let fault = refused(Script::boxed([Act::Say(20.0)]), options);
    assert!(matches!(fault, LiveError::IdleWatts(_)));
    let never = GovernorOptions {
        interval: Duration::ZERO,
        ..quick()
    };
    let fault = refused(Script::boxed([Act::Say(20.0)]), never);
    assert!(matches!(fault, LiveError::Interval { .. }));

    let (governor, events) = start(Script::boxed([Act::Say(85.0)]), quick());
    next(&events);
    assert_eq!(next(&events).fraction, 0.25);
    assert!(governor.set_min_fraction(0.0).is_err());
    governor.set_min_fraction(0.125).unwrap();
    assert_eq!(next(&events).fraction, 0.125);
    governor.set_min_fraction(0.5).unwrap();
    assert_eq!(next(&events).fraction, 0.5);
}

#[test]
fn plant_is_controlled_and_energy_is_counted() {
    let options: SimOptions = "start=80,time=20".parse().unwrap();
    let (follow, clock) = (SharedFraction::new(), Clock::manual());
    let plant = SimulatedSensor::new(options.plant(), Arc::clone(&follow), clock.clone());
    let hour = GovernorOptions {
        interval: Duration::from_secs(3600),
        ..GovernorOptions::default()
    };
    let governor = Governor::start(Box::new(plant), law(), hour, &follow, |_| {}).unwrap();
    governor.enter_phase(EnergyPhase::Idle).unwrap();
    clock.advance(Duration::from_secs(10));
    governor.enter_phase(EnergyPhase::Work).unwrap();
    let cooled = follow.fraction();
    for _ in 0..400 {
        clock.advance(Duration::from_millis(500));
        governor.enter_phase(EnergyPhase::Work).unwrap();
    }
    assert!((cooled - 0.4775).abs() < 1.0 / 256.0, "{cooled}");
    assert!(
        (follow.fraction() - 0.626).abs() < 0.01,
        "{}",
        follow.fraction()
    );
    let energy = governor.stop().unwrap().unwrap();
    assert_eq!((energy.source, energy.seconds), (Source::Counter, 200.0));
    assert_eq!(energy.idle_watts, Some(15.0));
    let mean = energy.joules / 200.0;
    assert!((71.0..80.0).contains(&mean), "{mean}");
}
