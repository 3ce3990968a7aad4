use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::*;
use crate::Compiler;
use crate::event::Task;
use crate::options::{CodeKinds, Effort, Switch};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo/reference-7m-f16.gguf")
}

/// Costs that a compilation reports before anything else, and the tasks that it begins; it ends
/// with the first step.
fn costs_before_work(compiler: Compiler) -> (CostEstimate, Vec<Task>) {
    let cancel = crate::CancellationToken::default();
    let (costs, begun) = (Mutex::new(None), Mutex::new(Vec::new()));
    let ended = compiler
        .cancelled_by(&cancel)
        .run_with(|event| match event {
            Event::Estimated(found) if begun.lock().unwrap().is_empty() => {
                *costs.lock().unwrap() = Some(found.clone());
            }
            Event::Begin { task, .. } => begun.lock().unwrap().push(task),
            Event::Done(_) => cancel.cancel(),
            _ => {}
        });
    assert!(
        matches!(ended, Err(CompileError::Cancelled(_))),
        "{ended:?}"
    );
    let costs = costs
        .into_inner()
        .unwrap()
        .expect("an estimate before the first task");
    (costs, begun.into_inner().unwrap())
}

#[test]
fn costs_are_reported_before_the_first_task() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = || Compiler::new(demo(), folder.path().join("m.htz"));
    let calibrated = compiler().cache(folder.path().join("cache"));
    let (costs, begun) = costs_before_work(calibrated.file_size(4_000_000));
    assert_eq!(begun, [Task::Digest, Task::Calibration]);
    let tasks: Vec<Task> = costs.tasks.iter().map(|of| of.task).collect();
    let expected = [
        Task::Calibration,
        Task::Gradients,
        Task::Curves,
        Task::Encoding,
    ];
    assert_eq!(tasks[..4], expected);
    assert!(costs.tasks.iter().all(|of| of.seconds > 0.0), "{costs:?}");
    assert!(costs.seconds() > 1.0, "{costs:?}");
    // Statistics, residual streams and two artifacts.
    assert!(
        costs.disk > 50_000_000 && costs.disk < 1 << 30,
        "{}",
        costs.disk
    );
    assert!(
        costs.memory > 50_000_000 && costs.memory < 4 << 30,
        "{}",
        costs.memory
    );
    // Ranks by ratio need no measurement, and nothing is calibrated.
    let factors = compiler().method(Method::PerProjection).ratio(0.5);
    let (costs, begun) = costs_before_work(factors);
    assert_eq!(begun[0], Task::Digest);
    let tasks: Vec<Task> = costs.tasks.iter().map(|of| of.task).collect();
    assert_eq!(tasks, [Task::Encoding, Task::Quality]);
}

#[test]
fn artifact_without_room_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = Compiler::new(demo(), folder.path().join("m.htz"));
    let options = compiler.options().unwrap();
    assert!(check_disk_space(&options, 1 << 20).unwrap().is_some());
    let refused = check_disk_space(&options, u64::MAX).unwrap_err();
    assert!(
        matches!(
            refused,
            CompileError::NoSpace {
                needed: u64::MAX,
                ..
            }
        ),
        "{refused:?}"
    );
}

#[test]
fn work_without_memory_is_refused() {
    let estimate = |peak_memory| Estimate {
        bytes: 0,
        peak_memory,
        seconds: 0.0,
        stages: estimate::StageSeconds::default(),
    };
    check_memory(&estimate(1 << 20)).unwrap();
    if memory::available().is_some() {
        let refused = check_memory(&estimate(u64::MAX)).unwrap_err();
        assert!(
            matches!(refused, CompileError::NoMemory { .. }),
            "{refused:?}"
        );
    }
}

/// Tasks that are too short to be estimated.
const UNESTIMATED: [Task; 4] = [
    Task::Digest,
    Task::ChannelPermutation,
    Task::Depth,
    Task::Sealing,
];

#[test]
fn every_task_begins_in_the_estimated_order() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = |name: &str| {
        Compiler::new(demo(), folder.path().join(name))
            .cache(folder.path().join("cache"))
            .effort(Effort::Fast)
            .codes(CodeKinds::Levels)
            .low_rank(Switch::Off)
            .calibration_tokens(1024)
            .context(64)
            .tune(1)
    };
    let cases = [
        compiler("size.htz").file_size(4_400_000).compare(true),
        compiler("elastic.htz").file_size(6_000_000).planes(2),
    ];
    for (index, case) in cases.into_iter().enumerate() {
        let (estimated, begun) = (Mutex::new(None), Mutex::new(Vec::new()));
        case.run_with(|event| match event {
            Event::Estimated(costs) => {
                estimated.lock().unwrap().get_or_insert(costs.clone());
            }
            Event::Begin { task, .. } if !UNESTIMATED.contains(&task) => {
                begun.lock().unwrap().push(task);
            }
            _ => {}
        })
        .unwrap();
        let costs = estimated.into_inner().unwrap().unwrap();
        let mut expected = costs.tasks.iter().map(|of| of.task);
        let begun = begun.into_inner().unwrap();
        let in_order = begun.iter().all(|task| expected.any(|of| of == *task));
        assert!(in_order, "case {index}: {begun:?} of {:?}", costs.tasks);
        assert!(begun.contains(&Task::Quality), "case {index}: {begun:?}");
    }
}
