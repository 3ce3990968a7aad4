use super::*;

fn estimate(tasks: &[(Task, f64)]) -> CostEstimate {
    let tasks = tasks.iter();
    CostEstimate {
        tasks: tasks
            .map(|&(task, seconds)| TaskEstimate { task, seconds })
            .collect(),
        memory: 0,
        disk: 0,
    }
}

fn begin(task: Task, steps: usize, done: usize) -> Event<'static> {
    Event::Begin { task, steps, done }
}

/// Reports events of which each takes a second.
fn report(overall: &mut OverallProgress, events: &[Event], from: u64) {
    for (second, event) in (from..).zip(events) {
        overall.update(event, Duration::from_secs(second));
    }
}

fn close(found: Option<f64>, expected: f64) -> bool {
    found.is_some_and(|found| (found - expected).abs() < 1e-12)
}

#[test]
fn steps_count_by_the_estimated_time_of_their_task() {
    let mut overall = OverallProgress::default();
    assert_eq!(overall.fraction(), None);
    let all = estimate(&[(Task::Calibration, 30.0), (Task::Encoding, 60.0)]);
    report(
        &mut overall,
        &[Event::Estimated(&all), begin(Task::Calibration, 3, 0)],
        0,
    );
    assert!(close(overall.fraction(), 0.0));
    report(&mut overall, &[Event::Done(""), Event::Done("")], 2);
    assert!(close(overall.fraction(), 20.0 / 90.0));
    report(
        &mut overall,
        &[begin(Task::Encoding, 4, 0), Event::Done("a")],
        4,
    );
    assert!(close(overall.fraction(), 45.0 / 90.0));
    assert_eq!(overall.current(), Some((Task::Encoding, 1, 4)));
    // Never complete before the end, though every step is done.
    report(&mut overall, &[Event::Done(""); 3], 6);
    assert!(close(overall.fraction(), MAX_FRACTION));
}

#[test]
fn cached_tasks_and_steps_are_no_work() {
    let mut overall = OverallProgress::default();
    let all = estimate(&[
        (Task::Calibration, 30.0),
        (Task::Gradients, 10.0),
        (Task::Encoding, 60.0),
        (Task::Measuring, 20.0),
    ]);
    // The calibration is cached as a whole, half of the gradients were found.
    report(
        &mut overall,
        &[
            Event::Estimated(&all),
            begin(Task::Calibration, 8, 8),
            begin(Task::Gradients, 10, 5),
        ],
        0,
    );
    assert!(close(overall.fraction(), 0.0));
    report(&mut overall, &[Event::Done("")], 3);
    assert!(close(overall.fraction(), 1.0 / 85.0));
    report(&mut overall, &[begin(Task::Measuring, 4, 0)], 4);
    assert!(close(overall.fraction(), 5.0 / 25.0));
    // Work that was not expected does not take the bar back.
    report(&mut overall, &[Event::Done(""); 3], 5);
    assert!(close(overall.fraction(), 20.0 / 25.0));
    report(&mut overall, &[begin(Task::Encoding, 4, 0)], 8);
    assert!(close(overall.fraction(), 20.0 / 25.0));
}

#[test]
fn tasks_beyond_the_estimate_are_expected_to_take_as_long_as_before() {
    let mut overall = OverallProgress::default();
    let all = estimate(&[(Task::Encoding, 60.0), (Task::Measuring, 20.0)]);
    report(
        &mut overall,
        &[
            Event::Estimated(&all),
            begin(Task::Encoding, 2, 0),
            begin(Task::Measuring, 2, 0),
            begin(Task::Encoding, 2, 0),
            begin(Task::Depth, 2, 0),
        ],
        0,
    );
    // Nothing is known of the last task.
    assert!(close(overall.fraction(), MAX_FRACTION));
    assert!(close(
        overall.remaining(Duration::ZERO).map(|d| d.as_secs_f64()),
        0.0
    ));
    assert_eq!(overall.done, 140.0);
}

#[test]
fn remaining_time_follows_the_speed_until_now() {
    let mut overall = OverallProgress::default();
    let all = estimate(&[(Task::Calibration, 50.0), (Task::Encoding, 50.0)]);
    let start = 7;
    report(
        &mut overall,
        &[Event::Estimated(&all), begin(Task::Calibration, 1, 0)],
        start,
    );
    let remaining = |overall: &OverallProgress, second: u64| {
        let found = overall.remaining(Duration::from_secs(second)).unwrap();
        found.as_secs_f64()
    };
    assert_eq!(remaining(&overall, start), 100.0);
    report(&mut overall, &[begin(Task::Encoding, 1, 0)], start + 100);
    // Half was done in twice its time: 50 left at (100 + 10) / (50 + 10).
    let expected = 50.0 * 110.0 / 60.0;
    assert!((remaining(&overall, start + 100) - expected).abs() < 1e-9);
}

#[test]
fn candidates_are_counted_among_those_expected() {
    let mut overall = OverallProgress::default();
    let all = estimate(&[(Task::Encoding, 1.0), (Task::Encoding, 1.0)]);
    overall.update(&Event::Estimated(&all), Duration::ZERO);
    assert_eq!(overall.candidate(), None);
    let (treatment, ratio) = (crate::options::Treatment::default(), 0.5);
    let trial = Event::Trial { treatment, ratio };
    report(&mut overall, &[trial, begin(Task::Encoding, 2, 0)], 0);
    assert_eq!(overall.candidate(), Some((1, 2)));
    report(&mut overall, &[trial, begin(Task::Encoding, 2, 0)], 0);
    assert_eq!(overall.candidate(), Some((2, 2)));
}

/// A resumed search finds complete candidates, of which nothing is encoded or measured.
#[test]
fn complete_candidates_take_their_estimated_tasks_with_them() {
    let mut overall = OverallProgress::default();
    let candidate = [(Task::Encoding, 10.0), (Task::Measuring, 5.0)];
    let all = estimate(&[&candidate[..]; 3].concat());
    let (treatment, ratio) = (crate::options::Treatment::default(), 0.5);
    let trial = Event::Trial { treatment, ratio };
    report(
        &mut overall,
        &[Event::Estimated(&all), trial, begin(Task::Gauges, 2, 0)],
        0,
    );
    assert_eq!(overall.candidate(), Some((1, 3)));
    report(
        &mut overall,
        &[trial, trial, begin(Task::Encoding, 2, 0)],
        3,
    );
    assert_eq!(overall.candidate(), Some((3, 3)));
    assert!(close(
        overall.remaining(Duration::ZERO).map(|d| d.as_secs_f64()),
        15.0
    ));
}

/// The result is measured whether or not all candidates were needed.
#[test]
fn result_ends_the_search_for_candidates() {
    let mut overall = OverallProgress::default();
    let candidate = [(Task::Encoding, 10.0), (Task::Measuring, 5.0)];
    let all = [&candidate[..], &candidate[..], &[(Task::Quality, 5.0)]].concat();
    let all = estimate(&all);
    report(
        &mut overall,
        &[
            Event::Estimated(&all),
            begin(Task::Encoding, 2, 0),
            begin(Task::Measuring, 2, 0),
            begin(Task::Quality, 2, 0),
        ],
        0,
    );
    assert!(close(overall.fraction(), 15.0 / 20.0));
}
