use super::*;
use crate::event::TaskEstimate;
use crate::options::Treatment;

fn update(overall: &mut OverallProgress, events: &[Event]) {
    for event in events {
        overall.update(event, Duration::ZERO);
    }
}

fn begin(task: Task, steps: usize) -> Event<'static> {
    Event::Begin {
        task,
        steps,
        done: 0,
    }
}

#[test]
fn every_task_is_labelled_and_candidates_are_numbered() {
    let mut overall = OverallProgress::default();
    let shown = |overall: &OverallProgress| show_stage(overall, Duration::ZERO);
    assert_eq!(shown(&overall), "starting");
    update(&mut overall, &[begin(Task::Digest, 0)]);
    assert_eq!(shown(&overall), "reading the source");
    let task = |task| TaskEstimate {
        task,
        seconds: 30.0,
    };
    let estimate = CostEstimate {
        tasks: vec![
            task(Task::Calibration),
            task(Task::Encoding),
            task(Task::Encoding),
        ],
        memory: 540_000_000,
        disk: 45_000_000,
    };
    assert_eq!(
        describe(&estimate),
        "about 2 min, at most 540 MB of memory beside the mapped source, 45.0 MB of disk"
    );
    update(
        &mut overall,
        &[
            Event::Estimated(&estimate),
            begin(Task::Calibration, 4),
            Event::Done(""),
        ],
    );
    assert_eq!(shown(&overall), "calibration 1/4");
    let trial = Event::Trial {
        treatment: Treatment::default(),
        ratio: 0.5,
    };
    update(&mut overall, &[trial, begin(Task::Encoding, 9)]);
    assert_eq!(shown(&overall), "encoding, candidate 1 of 2 0/9");
    assert_eq!(show_remaining(&overall, Duration::ZERO), "about 14 s left");
    update(&mut overall, &[begin(Task::Tuning, 9)]);
    assert_eq!(shown(&overall), "tuning 0/9");
}
