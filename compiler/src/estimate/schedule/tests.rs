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
    let counts = |candidates, compared, refinements, points| Candidates {
        candidates,
        compared,
        refinements,
        points,
    };
    for counts in [
        counts(1, 0, 0, 0),
        counts(2, 2, 0, 0),
        counts(4, 1, 0, 0),
        counts(2, 2, 1, 5),
        counts(4, 0, 4, 5),
    ] {
        let tasks = tasks_of_candidates(&STAGES, counts);
        let seconds: f64 = tasks.iter().map(|task| task.seconds).sum();
        let curves = STAGES.plan - curve_share(&STAGES, counts);
        let expected = STAGES.factorise + STAGES.measure + STAGES.tune + curves;
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
    };
    assert_eq!(counts.measurements(), 2.0);
    let expected = [
        ("encoding", 40.0),
        ("measuring", 6.0),
        ("encoding", 40.0),
        ("measuring", 6.0),
        ("tuning", 7.0),
        ("measuring", 6.0),
        ("encoding", 40.0),
        ("measuring", 6.0),
    ];
    assert_eq!(named(&tasks_of_candidates(&STAGES, counts)), expected);
    let single = Candidates {
        candidates: 1,
        compared: 0,
        ..counts
    };
    assert_eq!(single.measurements(), 1.0);
    let expected = [("encoding", 120.0), ("tuning", 7.0), ("measuring", 24.0)];
    assert_eq!(named(&tasks_of_candidates(&STAGES, single)), expected);
}
