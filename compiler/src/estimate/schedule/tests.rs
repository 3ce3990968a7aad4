use super::*;

const STAGES: StageSeconds = StageSeconds {
    calibrate: 10.0,
    plan: 60.0,
    factorise: 120.0,
    measure: 24.0,
    tune: 7.0,
};

fn named(tasks: &[TaskEstimate]) -> Vec<(&'static str, f64)> {
    let named = tasks.iter();
    named.map(|of| (of.task.name(), of.seconds)).collect()
}

/// The tasks after planning take the seconds of their stages together.
#[test]
fn tasks_share_the_seconds_of_their_stages() {
    let counts = |candidates, compared, refinements, points, tunings| Candidates {
        candidates,
        compared,
        refinements,
        points,
        tunings,
    };
    for counts in [
        counts(1, 0, 0, 0, 0),
        counts(2, 2, 0, 0, 0),
        counts(4, 1, 0, 0, 1),
        counts(2, 2, 1, 5, 2),
        counts(4, 0, 4, 5, 2),
    ] {
        let tasks = tasks_of_candidates(&STAGES, counts);
        let seconds: f64 = tasks.iter().map(|task| task.seconds).sum();
        let curves = STAGES.plan - curve_share(&STAGES, counts);
        let tuned = if counts.tunings > 0 { STAGES.tune } else { 0.0 };
        let expected = STAGES.factorise + STAGES.measure + tuned + curves;
        assert!((seconds - expected).abs() < 1e-9, "{counts:?}: {seconds}");
    }
}

#[test]
fn candidates_are_measured_then_tuned_and_compared() {
    let counts = Candidates {
        candidates: 2,
        compared: 1,
        refinements: 0,
        points: 0,
        tunings: 1,
    };
    assert_eq!(counts.measurements(), 2.5);
    let split = 24.0 / 5.0;
    let expected = [
        ("encoding", 40.0),
        ("measuring", split),
        ("encoding", 40.0),
        ("measuring", split),
        ("tuning", 7.0),
        ("measuring", split),
        ("measuring the result", split),
        ("encoding", 40.0),
        ("measuring", split),
    ];
    assert_eq!(named(&tasks_of_candidates(&STAGES, counts)), expected);
    let single = Candidates {
        candidates: 1,
        compared: 0,
        tunings: 0,
        ..counts
    };
    assert_eq!(single.measurements(), 1.0);
    let expected = [("encoding", 120.0), ("measuring the result", 24.0)];
    assert_eq!(named(&tasks_of_candidates(&STAGES, single)), expected);
    let elastic = Candidates {
        candidates: 1,
        compared: 0,
        refinements: 1,
        points: 1,
        tunings: 2,
    };
    let tasks = tasks_of_candidates(&STAGES, elastic);
    let names: Vec<&str> = tasks.iter().map(|of| of.task.name()).collect();
    let of_bases = [
        "encoding",
        "measuring",
        "tuning",
        "measuring",
        "measuring the result",
    ];
    let of_whole = [
        "losses by type",
        "encoding residuals",
        "tuning",
        "measuring",
        "measuring the result",
    ];
    assert_eq!(names, [of_bases, of_whole].concat());
}
