use proptest::prelude::*;

use super::*;
use crate::live::sensor::sim::{SimOptions, ThermalPlant};

const POLL: f64 = 0.5;

fn law(options: ControlLawOptions) -> ControlLaw {
    ControlLaw::new(options).unwrap()
}

fn usual() -> ControlLaw {
    law(ControlLawOptions::default())
}

fn reading(seconds: f64, celsius: f64) -> Reading {
    Reading {
        time: Duration::from_secs_f64(seconds),
        temperature: Some(celsius),
        ..Reading::default()
    }
}

#[test]
fn law_matches_the_published_formula() {
    let law = usual();
    for (celsius, expected) in [
        (-40.0, 1.0),
        (65.0, 1.0),
        (70.0, 0.8125),
        (75.0, 0.625),
        (85.0, 0.25),
        (150.0, 0.25),
    ] {
        assert_eq!(law.fraction(celsius), expected, "{celsius}");
        let decision = Controller::new(law).apply_reading(&reading(0.0, celsius));
        assert_eq!(decision.fraction, expected, "{celsius}");
    }
    for tenth in 650..850 {
        let celsius = f64::from(tenth) / 10.0;
        let expected = 1.0 - 0.0375 * (celsius - 65.0);
        assert!((law.fraction(celsius) - expected).abs() < 1e-12);
        let fraction = Controller::new(law)
            .apply_reading(&reading(0.0, celsius))
            .fraction;
        assert!(fraction <= expected + 1e-12 && fraction > expected - FRACTION_STEP);
    }
}

#[test]
fn invalid_parameters_are_rejected() {
    let usual = ControlLawOptions::default();
    let refused = [
        ControlLawOptions {
            low_celsius: 85.0,
            ..usual
        },
        ControlLawOptions {
            low_celsius: f64::NAN,
            ..usual
        },
        ControlLawOptions {
            high_celsius: 64.0,
            ..usual
        },
        ControlLawOptions {
            high_celsius: f64::INFINITY,
            ..usual
        },
        ControlLawOptions {
            low_celsius: -41.0,
            ..usual
        },
        ControlLawOptions {
            min_fraction: 0.0,
            ..usual
        },
        ControlLawOptions {
            min_fraction: 1.1,
            ..usual
        },
        ControlLawOptions {
            min_fraction: f64::NAN,
            ..usual
        },
        ControlLawOptions {
            hysteresis: -0.1,
            ..usual
        },
        ControlLawOptions {
            hysteresis: 20.0,
            ..usual
        },
        ControlLawOptions {
            hysteresis: f64::NAN,
            ..usual
        },
        ControlLawOptions {
            recovery: 0.0,
            ..usual
        },
        ControlLawOptions {
            recovery: f64::NAN,
            ..usual
        },
        ControlLawOptions {
            power_cap: Some(0.0),
            ..usual
        },
        ControlLawOptions {
            power_cap: Some(f64::NAN),
            ..usual
        },
        ControlLawOptions {
            power_cap: Some(f64::INFINITY),
            ..usual
        },
    ];
    for options in refused {
        let fault = ControlLaw::new(options).unwrap_err();
        assert!(fault.to_string().contains("expected"), "{fault}");
    }
    let mut controller = Controller::new(law(usual));
    assert!(
        controller.set_min_fraction(0.0).is_err() && controller.set_min_fraction(f64::NAN).is_err()
    );
    controller.set_min_fraction(0.5).unwrap();
    assert_eq!(controller.apply_reading(&reading(0.0, 100.0)).fraction, 0.5);
    controller.set_min_fraction(1.0).unwrap();
    assert_eq!(controller.apply_reading(&reading(1.0, 100.0)).fraction, 1.0);
}

#[test]
fn heating_acts_at_once_and_cooling_is_delayed() {
    let mut controller = Controller::new(usual());
    let mut at = |seconds, celsius| {
        controller
            .apply_reading(&reading(seconds, celsius))
            .fraction
    };
    assert_eq!(at(0.0, 75.0), 0.625);
    assert_eq!(at(0.5, 85.0), 0.25);
    assert_eq!(at(1.0, 84.0), 0.25);
    assert_eq!(at(1.5, 83.0), 0.25);
    assert_eq!(
        at(2.0, 75.0),
        (0.26 / FRACTION_STEP).floor() * FRACTION_STEP
    );
    let rising: Vec<f64> = (5..60)
        .map(|poll| at(f64::from(poll) / 2.0, 75.0))
        .collect();
    assert!(rising.is_sorted());
    assert_eq!(
        rising.last(),
        Some(&((0.55 / FRACTION_STEP).floor() * FRACTION_STEP))
    );
    for poll in 60..80 {
        let celsius = 75.0 + f64::from(poll % 3);
        assert_eq!(at(f64::from(poll) / 2.0, celsius), rising[54]);
    }
}

#[test]
fn missing_quantities_impose_no_limit_and_are_reported_once() {
    let mut controller = Controller::new(usual());
    let mut at = |seconds, celsius| controller.apply_reading(&reading(seconds, celsius));
    assert_eq!(at(0.0, 80.0).temperature, ReadingStatus::Available);
    for (poll, wrong) in [255.0, -1.0, f64::NAN, 151.0].into_iter().enumerate() {
        let decision = at(1.0 + poll as f64, wrong);
        assert_eq!(
            (decision.fraction, decision.reason),
            (1.0, LimitReason::NoReading)
        );
        let expected = match poll {
            0 => ReadingStatus::Lost,
            _ => ReadingStatus::StillMissing,
        };
        assert_eq!(decision.temperature, expected);
    }
    let back = at(6.0, 80.0);
    assert_eq!(
        (back.temperature, back.fraction),
        (ReadingStatus::Restored, 0.4375)
    );
    assert_eq!(at(7.0, 80.0).temperature, ReadingStatus::Available);
    assert_eq!(
        controller
            .apply_reading(&Reading::without_values(Duration::from_secs(8)))
            .temperature,
        ReadingStatus::Lost
    );
    let first = Controller::new(usual()).apply_reading(&Reading::default());
    assert_eq!(
        (first.temperature, first.fraction),
        (ReadingStatus::Lost, 1.0)
    );
    assert_eq!(first.power, ReadingStatus::Unused);
}

#[test]
fn unused_temperature_imposes_no_limit() {
    let mut controller = Controller::new(law(ControlLawOptions {
        thermal: false,
        low_celsius: f64::NAN,
        power_cap: Some(50.0),
        ..ControlLawOptions::default()
    }));
    let at = |seconds, temperature, power| Reading {
        time: Duration::from_secs(seconds),
        temperature,
        power,
        energy: None,
    };
    let hot = controller.apply_reading(&at(0, Some(120.0), Some(40.0)));
    assert_eq!(
        (
            hot.fraction,
            hot.reason,
            hot.temperature,
            hot.limit_exceeded
        ),
        (1.0, LimitReason::Base, ReadingStatus::Unused, false)
    );
    let capped = controller.apply_reading(&at(1, None, Some(100.0)));
    assert_eq!(
        (capped.temperature, capped.reason),
        (ReadingStatus::Unused, LimitReason::PowerCap)
    );
    assert!(capped.fraction < 1.0);
    let lost = controller.apply_reading(&Reading::without_values(Duration::from_secs(2)));
    assert_eq!(
        (lost.fraction, lost.power, lost.reason),
        (1.0, ReadingStatus::Lost, LimitReason::NoReading)
    );
}

#[test]
fn cap_and_temperature_work_independently() {
    let mut controller = Controller::new(law(ControlLawOptions {
        power_cap: Some(50.0),
        ..ControlLawOptions::default()
    }));
    let mut at = |seconds: u64, temperature, power| {
        controller.apply_reading(&Reading {
            time: Duration::from_secs(seconds),
            temperature,
            power,
            energy: None,
        })
    };
    let capped = at(0, None, Some(100.0));
    assert_eq!(
        (capped.temperature, capped.power),
        (ReadingStatus::Lost, ReadingStatus::Available)
    );
    // The square root of 0.475.
    assert!(
        (capped.fraction - 0.689).abs() < FRACTION_STEP && capped.reason == LimitReason::PowerCap
    );
    let warm = at(1, Some(75.0), None);
    assert_eq!(
        (warm.temperature, warm.power),
        (ReadingStatus::Restored, ReadingStatus::Lost)
    );
    assert_eq!(
        (warm.fraction, warm.reason),
        (0.625, LimitReason::Temperature)
    );
    let blind = at(2, None, None);
    assert_eq!(
        (blind.fraction, blind.power),
        (1.0, ReadingStatus::StillMissing)
    );
    for second in 3..30 {
        at(second, Some(20.0), Some(100.0));
    }
    let least = at(30, Some(20.0), Some(100.0));
    assert!(least.limit_exceeded && least.fraction == 0.25, "{least:?}");
    assert!(!at(31, Some(20.0), Some(48.0)).limit_exceeded);
}

#[test]
fn time_may_stand_still_or_go_back() {
    let mut controller = Controller::new(usual());
    let mut at = |seconds, celsius| {
        controller
            .apply_reading(&reading(seconds, celsius))
            .fraction
    };
    assert_eq!(at(1e6, 85.0), 0.25);
    assert_eq!(at(1e6, 20.0), 0.25);
    assert_eq!(at(0.0, 20.0), 0.25);
    assert_eq!(at(10.0, 20.0), 0.25);
    assert!(at(1e6 + 1.0, 20.0) > 0.25);
    assert!(at(2e6, 20.0) < 0.32);
    assert_eq!(at(5.0, 85.0), 0.25);
}

struct Run {
    fractions: Vec<f64>,
    /// In °C.
    temperatures: Vec<f64>,
    watts: Vec<f64>,
}

impl Run {
    fn ripple(&self) -> f64 {
        let last = &self.fractions[self.fractions.len() * 2 / 3..];
        let (least, most) = last
            .iter()
            .fold((1.0_f64, 0.0_f64), |(least, most), &value| {
                (least.min(value), most.max(value))
            });
        most - least
    }

    fn warmest(&self) -> f64 {
        self.temperatures.iter().copied().fold(f64::MIN, f64::max)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Distortion {
    whole: bool,
    average: f64,
    steps: u32,
}

fn run(
    mut decide: impl FnMut(&Reading) -> f64,
    mut plant: ThermalPlant,
    options: &SimOptions,
    distortion: Distortion,
) -> Run {
    let polls = ((options.time * 10.0).max(600.0) / POLL) as usize;
    let (mut fraction, mut average) = (1.0, plant.power(None));
    let mut run = Run {
        fractions: Vec::new(),
        temperatures: Vec::new(),
        watts: Vec::new(),
    };
    for poll in 1..=polls {
        let used = match distortion.steps {
            0 => fraction,
            steps => (fraction * f64::from(steps)).floor().max(1.0) / f64::from(steps),
        };
        plant.step(Some(used), Duration::from_secs_f64(POLL));
        let (watts, celsius) = (plant.power(Some(used)), plant.temperature());
        average += if distortion.average > 0.0 {
            (watts - average) * (1.0 - (-POLL / distortion.average).exp())
        } else {
            watts - average
        };
        fraction = decide(&Reading {
            time: Duration::from_secs_f64(poll as f64 * POLL),
            temperature: Some(if distortion.whole {
                celsius.floor()
            } else {
                celsius
            }),
            power: Some(average),
            energy: None,
        });
        run.fractions.push(fraction);
        run.temperatures.push(celsius);
        run.watts.push(watts);
    }
    run
}

fn controlled(law: ControlLaw, options: &SimOptions, distortion: Distortion) -> Run {
    let mut controller = Controller::new(law);
    run(
        |reading| controller.apply_reading(reading).fraction,
        options.plant(),
        options,
        distortion,
    )
}

fn plants() -> impl Strategy<Value = SimOptions> {
    let cold = |options: &SimOptions| options.plant().equilibrium(Some(0.25)) < 140.0;
    any_plants().prop_filter("beyond what sensors say", cold)
}

prop_compose! {
    fn any_plants()(
        time in (2.0_f64.ln()..600.0_f64.ln()).prop_map(f64::exp),
        ambient in 10.0..40.0,
        idle in 0.0..60.0,
        more in 10.0..500.0,
        resistance in 0.05..1.5,
    ) -> SimOptions {
        SimOptions {
            time,
            ambient,
            idle,
            full: idle + more,
            resistance,
            start: Some(ambient),
            ..SimOptions::default()
        }
    }
}

/// Returns `L` and `1/(e^(τ/RC) - 1)` of the documentation.
fn gain(law: &ControlLaw, plant: &SimOptions) -> (f64, f64) {
    let ControlLawOptions {
        low_celsius: low,
        high_celsius: high,
        min_fraction: least,
        ..
    } = law.options();
    let gain = plant.resistance * (plant.full - plant.idle) * (1.0 - least) / (high - low);
    (gain, 1.0 / ((POLL / plant.time).exp() - 1.0))
}

fn ripple_bound(plant: &SimOptions, whole: bool) -> f64 {
    let (gain, most) = gain(&usual(), plant);
    FRACTION_STEP
        + if !whole {
            0.02 * POLL
        } else if gain <= most {
            0.0375
        } else {
            2.0 * 0.0375
        }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ripple_is_bounded_for_any_plant(options in plants(), whole: bool, average in 0.0..2.0) {
        let distortion = Distortion { whole, average, steps: 0 };
        let found = controlled(usual(), &options, distortion).ripple();
        let bound = ripple_bound(&options, whole);
        prop_assert!(found <= bound, "{found} {bound}");
    }

    #[test]
    fn discrete_fractions_alternate_between_two(options in plants(), steps in 4_u32..40, whole: bool) {
        let (gain, most) = gain(&usual(), &options);
        prop_assume!(gain <= most);
        let distortion = Distortion { whole, average: 0.0, steps };
        let found = controlled(usual(), &options, distortion).ripple();
        prop_assert!(found <= 1.0 / f64::from(steps) + 0.05, "{found}");
    }

    #[test]
    fn upper_threshold_is_never_exceeded(options in plants(), least in 0.05..0.9) {
        let law = law(ControlLawOptions { min_fraction: least, ..ControlLawOptions::default() });
        let (gain, most) = gain(&law, &options);
        let end = options.plant().equilibrium(Some(least));
        prop_assume!(gain <= most && end <= 85.0);
        let found = controlled(law, &options, Distortion::default()).warmest();
        prop_assert!(found <= 85.0 + 1e-9, "{found}");
    }

    #[test]
    fn reachable_cap_is_met(options in plants(), part in 0.0..1.0, average in 0.0..2.0) {
        let (least, most) = (options.plant().power(Some(0.25)), options.full);
        let budget = (least + part * (most - least)) / 0.94;
        let law = law(ControlLawOptions { power_cap: Some(budget), ..ControlLawOptions::default() });
        let distortion = Distortion { average, ..Distortion::default() };
        let run = controlled(law, &options, distortion);
        prop_assert!(run.ripple() <= 0.03, "{}", run.ripple());
        let last = &run.watts[run.watts.len() / 3..];
        prop_assert!(last.iter().all(|watts| *watts <= budget));
        let (fraction, watts) = (run.fractions[run.fractions.len() - 1], last[last.len() - 1]);
        let warm = run.temperatures[run.temperatures.len() - 1] > 62.9;
        prop_assert!(fraction == 1.0 || warm || watts > 0.9 * budget, "{fraction} {watts} {budget}");
    }

    #[test]
    fn fraction_never_exceeds_the_law(
        celsius in proptest::collection::vec(0.0..120.0, 1..60), least in 0.01..1.0
    ) {
        let law = law(ControlLawOptions { min_fraction: least, ..ControlLawOptions::default() });
        let mut controller = Controller::new(law);
        for (poll, celsius) in celsius.into_iter().enumerate() {
            let found = controller.apply_reading(&reading(poll as f64, celsius)).fraction;
            prop_assert!(found >= least && found <= law.fraction(celsius).max(least));
        }
    }
}

#[test]
fn whole_degrees_on_a_fast_plant_ripple_by_two_degrees() {
    // Between the two conditions of the module's documentation.
    let quick = SimOptions {
        ambient: 14.0,
        idle: 1.0,
        full: 364.5,
        resistance: 0.59,
        time: 2.0,
        start: Some(14.0),
        ..SimOptions::default()
    };
    let (found, most) = gain(&usual(), &quick);
    assert!(found > 2.0 * most && (found - 8.04).abs() < 0.01, "{found}");
    let ripple = |whole| {
        let distortion = Distortion {
            whole,
            ..Distortion::default()
        };
        controlled(usual(), &quick, distortion).ripple()
    };
    let degrees = ripple(true);
    assert!(
        degrees > 0.0375 + FRACTION_STEP && degrees <= ripple_bound(&quick, true),
        "{degrees}"
    );
    assert!(ripple(false) <= ripple_bound(&quick, false));
}

#[test]
fn law_alone_oscillates_as_documented() {
    let quick = SimOptions {
        time: 0.5,
        idle: 0.0,
        full: 1500.0 / 7.0,
        ..SimOptions::default()
    };
    let law = usual();
    let plain = |reading: &Reading| law.fraction(reading.temperature.unwrap());
    let alone = run(plain, quick.plant(), &quick, Distortion::default());
    assert!(alone.ripple() > 0.5, "{}", alone.ripple());
    let found = controlled(law, &quick, Distortion::default());
    assert!(found.ripple() <= 0.03, "{}", found.ripple());

    let cool = SimOptions {
        idle: 0.0,
        full: 100.0,
        resistance: 0.1,
        ..SimOptions::default()
    };
    let scale = |budget: f64| move |reading: &Reading| (budget / reading.power.unwrap()).min(1.0);
    let alone = run(scale(50.0), cool.plant(), &cool, Distortion::default());
    assert!(alone.ripple() >= 0.49, "{}", alone.ripple());
    let idle = SimOptions { idle: 30.0, ..cool };
    let alone = run(scale(50.0), idle.plant(), &idle, Distortion::default());
    assert!(alone.watts[alone.watts.len() - 1] > 60.0);
}

#[test]
fn plant_settles_at_the_intersection_with_the_law() {
    let options = SimOptions::default();
    let run = controlled(usual(), &options, Distortion::default());
    let (fraction, celsius) = (run.fractions[1199], run.temperatures[1199]);
    assert!((fraction - 0.6264).abs() < FRACTION_STEP, "{fraction}");
    assert!((celsius - 74.96).abs() < 0.5, "{celsius}");
}
