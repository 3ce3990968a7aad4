//! Steps recorded as graphs: creation, replay, update and rejection.

use std::path::Path;

use htc_kernels::cuda::{
    Cuda, CudaMemory, Device, DeviceError, DeviceMemory, Kernel, StepCounts, ops,
};

use super::scenarios::{
    TRIAL, Trial, assert_all_freed, download, open, open_with, read_call_log, trial, upload,
};

pub fn counts(device: &Cuda) -> [u64; 5] {
    let StepCounts {
        replayed,
        updated,
        changed_operations: _,
        created: made,
        launched: plain,
        interrupted,
        ..
    } = device.step_counts();
    [replayed, updated, made, plain, interrupted]
}

pub fn step(
    device: &Cuda,
    [x, y]: [&CudaMemory; 2],
    numbers: usize,
    copy: Option<&CudaMemory>,
) -> Result<(), DeviceError> {
    device.begin_step()?;
    ops::add(device, numbers, x, y)?;
    ops::add(device, numbers, x, y)?;
    if let Some(copy) = copy {
        device.copy(x.at(0), copy.at(0), 4 * numbers)?;
    }
    device.end_step()
}

pub fn repeated_steps_are_replayed(log: &Path) {
    let device = open();
    let [x, y, z] = [1.0, 10.0, 0.0].map(|value| upload(&device, &[value; 600]));
    let first = |memory| download(&device, memory, 600)[0];
    step(&device, [&x, &y], 600, Some(&z)).unwrap();
    assert_eq!((first(&x), first(&z)), (21.0, 21.0));
    assert_eq!(counts(&device), [0, 0, 1, 0, 0]);
    step(&device, [&x, &y], 600, Some(&z)).unwrap();
    assert_eq!((first(&x), first(&z)), (41.0, 41.0));
    assert_eq!(counts(&device), [1, 0, 1, 0, 0]);
    step(&device, [&y, &z], 1, Some(&x)).unwrap();
    assert_eq!((first(&y), first(&x)), (92.0, 92.0));
    assert_eq!(download(&device, &y, 2)[1], 10.0);
    assert_eq!(counts(&device), [1, 0, 2, 0, 0]);
    step(&device, [&y, &z], 1, None).unwrap();
    step(&device, [&y, &z], 1, Some(&x)).unwrap();
    step(&device, [&y, &z], 1, None).unwrap();
    assert_eq!(first(&y), 92.0 + 6.0 * 41.0);
    assert_eq!(counts(&device), [3, 0, 3, 0, 0]);
    device.begin_step().unwrap();
    device.end_step().unwrap();
    device.end_step().unwrap();
    assert_eq!(counts(&device), [3, 0, 3, 0, 0]);
    assert_eq!(
        read_call_log(log)
            .iter()
            .filter(|l| l.starts_with("launch add"))
            .count(),
        0
    );
    drop((x, y, z, device));
    assert_all_freed(log);
}

pub fn partly_changed_steps_are_updated(log: &Path, updates: bool) {
    let device = open();
    let [x, y, z] = [1.0, 10.0, 100.0].map(|value| upload(&device, &[value; 600]));
    let copies = [0.0, 0.0].map(|value| upload(&device, &[value; 600]));
    let step = |second: (&CudaMemory, usize), copy: &CudaMemory| {
        device.begin_step().unwrap();
        ops::add(&device, 600, &x, &y).unwrap();
        ops::add(&device, second.1, &x, second.0).unwrap();
        device.copy(x.at(0), copy.at(0), 2400).unwrap();
        ops::add(&device, 1, &y, &z).unwrap();
        device.end_step().unwrap();
        let found = download(&device, copy, 600);
        (found[0], found[599])
    };
    let changes = || {
        read_call_log(log)
            .into_iter()
            .filter(|l| l == "change a node")
    };
    assert_eq!(step((&y, 600), &copies[0]), (21.0, 21.0));
    // Changes: the copy; the second launch, by its arguments and by its grid; both; none.
    assert_eq!(step((&y, 600), &copies[1]), (241.0, 41.0));
    assert_eq!(step((&z, 600), &copies[1]), (551.0, 151.0));
    assert_eq!(step((&z, 1), &copies[1]), (961.0, 161.0));
    assert_eq!(step((&y, 600), &copies[0]), (1781.0, 181.0));
    assert_eq!(step((&y, 600), &copies[0]), (2801.0, 201.0));
    let expected = if updates { [1, 4, 1] } else { [1, 0, 5] };
    let [replayed, updated, made, ..] = counts(&device);
    assert_eq!([replayed, updated, made], expected);
    let changed = if updates { 5 } else { 0 };
    assert_eq!(device.step_counts().changed_operations, changed);
    assert_eq!(changes().count() as u64, changed);
    drop((x, y, z, copies, device));
    assert_all_freed(log);
}

pub fn dependent_launches_begin_early(log: &Path, accepted: bool) {
    let open = || open_with(|options| options.overlap_launches = true).unwrap();
    let early = || {
        let lines = read_call_log(log).into_iter();
        lines.filter(|l| l == "let a launch begin early").count()
    };
    let step = |device: &Cuda, rows: usize| {
        let [x, y, weight] = [1.0, 10.0, 2.0].map(|value| upload(device, &[value; 2 * 4096]));
        let shape = ops::RowsShape { rows, cols: 4096 };
        device.begin_step().unwrap();
        ops::add(device, 600, &x, &y).unwrap();
        ops::rms_norm(device, shape, &x, &weight, 0.0, &y).unwrap();
        device.copy(y.at(0), x.at(0), 2400).unwrap();
        ops::add(device, 600, &x, &y).unwrap();
        ops::add(device, 600, &x, &y).unwrap();
        device.end_step().unwrap();
        assert_eq!(counts(device)[2], 1);
        download(device, &x, 600)[0]
    };
    let device = open();
    let one = step(&device, 1);
    assert_eq!(early(), if accepted { 2 } else { 0 });
    drop(device);
    let device = open();
    assert_eq!(step(&device, 2), one);
    assert_eq!(early(), if accepted { 3 } else { 0 });
    drop(device);
    let device = open_with(|options| options.overlap_launches = false).unwrap();
    assert_eq!(step(&device, 1), one);
    assert_eq!(early(), if accepted { 3 } else { 0 });
    drop(device);
    assert_all_freed(log);
}

pub fn steps_of_many_kinds(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    let mut sum = 1.0;
    let mut steps = |kinds: std::ops::Range<usize>| {
        for numbers in kinds {
            step(&device, [&x, &y], numbers, None).unwrap();
            sum += 20.0;
            assert_eq!(download(&device, &x, 1)[0], sum);
        }
    };
    steps(1..9);
    assert_eq!(counts(&device), [0, 0, 8, 0, 0]);
    steps(1..9);
    assert_eq!(counts(&device), [8, 0, 8, 0, 0]);
    steps(9..12);
    assert_eq!(counts(&device), [8, 3, 8, 0, 0]);
    assert_eq!(device.step_counts().changed_operations, 6);
    device.begin_step().unwrap();
    ops::add(&device, 6, &x, &y).unwrap();
    ops::add(&device, 300, &x, &y).unwrap();
    device.end_step().unwrap();
    assert_eq!(counts(&device), [8, 4, 8, 0, 0]);
    assert_eq!(device.step_counts().changed_operations, 7);
    let made = read_call_log(log)
        .into_iter()
        .filter(|l| l == "make a graph");
    assert_eq!(made.count(), 8);
    drop((x, y, device));
    assert_all_freed(log);
}

pub fn steps_without_graphs(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    for _ in 0..5 {
        assert_eq!(
            device.launch_note().is_some(),
            device.step_counts().launched >= 3
        );
        step(&device, [&x, &y], 600, None).unwrap();
    }
    assert_eq!(download(&device, &x, 1), [101.0]);
    assert_eq!(counts(&device), [0, 0, 0, 5, 0]);
    // After three rejections in a row graphs are disabled.
    let refused = read_call_log(log)
        .into_iter()
        .filter(|l| l == "a graph is refused");
    assert_eq!(refused.count(), 3);
    let remark = device.launch_note().unwrap();
    assert!(remark.starts_with("the driver makes no graph"), "{remark}");
    let device = open_with(|options| options.use_graphs = false).unwrap();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    step(&device, [&x, &y], 600, None).unwrap();
    assert_eq!(counts(&device), [0, 0, 0, 1, 0]);
    let device = open_with(|options| options.synchronous_launches = true).unwrap();
    let to = device.allocate(256).unwrap();
    let error = trial(&device, &to, 1).unwrap_err().to_string();
    assert!(error.starts_with("kernel trial: "), "{error}");
    assert!(error.ends_with("noticed when waiting for it"), "{error}");
    assert!(
        !read_call_log(log)
            .iter()
            .any(|line| line.starts_with("make"))
    );
}

pub fn steps_that_end_early(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    assert_eq!(download(&device, &x, 1), [11.0]);
    ops::add(&device, 600, &x, &y).unwrap();
    device.end_step().unwrap();
    assert_eq!(download(&device, &x, 1), [21.0]);
    assert_eq!(counts(&device), [0, 0, 0, 0, 1]);
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    device.upload(&[0; 4], &x, 0).unwrap();
    device.end_step().unwrap();
    assert_eq!(download(&device, &x, 2), [0.0, 31.0]);
    let absent = Kernel::<Trial>::new("absent", 64);
    let arguments = Trial {
        to: x.span("to", 0, 256).unwrap(),
        operation: 0,
        unused: 0,
    };
    device.begin_step().unwrap();
    unsafe { device.launch(&absent, [1, 1, 1], 0, &arguments) }.unwrap();
    let error = device.end_step().unwrap_err().to_string();
    assert_eq!(error, "kernel absent: there is no kernel of this name");
    device.begin_step().unwrap();
    unsafe { device.launch(&TRIAL, [1, 70_000, 1], 0, &arguments) }.unwrap();
    let error = device.end_step().unwrap_err().to_string();
    assert!(error.contains("1 x 70000 x 1 blocks"), "{error}");
    step(&device, [&x, &y], 600, None).unwrap();
    assert_eq!(counts(&device), [0, 0, 1, 2, 2]);
    drop((x, y, device));
    assert_all_freed(log);
}

pub fn dropped_memory_survives_until_the_step_ends(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| upload(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    drop(y);
    let z = device.allocate(2400).unwrap();
    device.copy(x.at(0), z.at(0), 2400).unwrap();
    device.end_step().unwrap();
    assert_eq!(download(&device, &z, 600), [11.0; 600]);
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &z).unwrap();
    drop((x, z, device));
    assert_all_freed(log);
}
