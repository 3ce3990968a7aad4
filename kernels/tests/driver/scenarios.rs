//! What happens in a process of its own.

use std::path::Path;

use htc_formats::htz::{CodeForm, CodeImage, Digest, KernelCode};
use htc_kernels::cuda::driver::{Options, Which};
use htc_kernels::cuda::source::{UNITS, digest};
use htc_kernels::cuda::{
    Arguments, Cuda, CudaMemory, Device, DeviceError, Emulated, Kernel, Memory, Span, StepCounts,
    Unavailable, code::Architecture, compile::Compiler, ops,
};

/// Code as the library that emulates a driver takes it.
fn sealed() -> KernelCode {
    let forms = [
        (CodeForm::Cubin, &b"\x7fELF"[..]),
        (CodeForm::Ptx, b"// PTX\0"),
    ];
    let image = |unit: &str, (form, bytes): (CodeForm, &[u8])| CodeImage {
        architecture: Architecture { major: 9, minor: 0 },
        form,
        unit: unit.to_owned(),
        bytes: bytes.to_vec(),
    };
    let images = UNITS
        .iter()
        .flat_map(|unit| forms.map(|form| image(unit.name, form)));
    KernelCode {
        sources: digest(),
        compiler: "none".to_owned(),
        images: images.collect(),
    }
}

fn open_with(change: impl Fn(&mut Options<'_>)) -> Result<Cuda, DeviceError> {
    let sealed = sealed();
    let mut options = Options {
        sealed: Some(&sealed),
        ..Options::default()
    };
    change(&mut options);
    Cuda::open(Which::Index(0), options)
}

pub fn open() -> Cuda {
    open_with(|_| ()).unwrap()
}

fn unavailable(which: Which) -> Unavailable {
    match Cuda::open(which, Options::default()) {
        Err(DeviceError::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

pub fn put<D: Device>(device: &D, numbers: &[f32]) -> D::Memory {
    ops::put(device, numbers).unwrap()
}

pub fn get<D: Device>(device: &D, memory: &D::Memory, numbers: usize) -> Vec<f32> {
    ops::get(device, memory, numbers).unwrap()
}

pub fn called(log: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Everything was given back, and nothing was freed twice or written behind its end.
pub fn nothing_is_left(log: &Path) {
    let called = called(log);
    let left = "left: 0 allocations, 0 of the host, 0 modules, 0 streams, 0 events, 0 graphs, 0 handles of libraries";
    assert_eq!(called.last().map(String::as_str), Some(left));
    let bad = |line: &&String| {
        let parts = ["not there", "behind its end", "refused"];
        parts.iter().any(|part| line.contains(part))
    };
    assert_eq!(called.iter().find(bad), None);
}

pub fn run(name: &str, log: &Path) {
    // What was called in a scenario of this name before, with another library.
    let _ = std::fs::remove_file(log);
    match name {
        "no-library" => assert_eq!(unavailable(Which::Index(0)), Unavailable::NoLibrary),
        "a-library-that-is-too-old" => {
            let why = unavailable(Which::Index(0)).to_string();
            assert!(
                why.contains("has no cuCtxSetCurrent: a newer driver"),
                "{why}"
            );
        }
        "a-stub" => {
            let why = unavailable(Which::Index(0)).to_string();
            let expected =
                "the driver does not start: the library is a stub (CUDA_ERROR_STUB_LIBRARY)";
            assert_eq!(why, expected);
        }
        "a-driver-without-devices" | "no-devices" => {
            let why = unavailable(Which::Index(3));
            assert_eq!(why, Unavailable::NoDevice { asked: 3, found: 0 });
        }
        "an-old-device" => {
            let why = unavailable(Which::Index(1)).to_string();
            let expected = "Emulated 1 is of compute capability 7.5, kernels need 8.0";
            assert_eq!(why, expected);
            assert_eq!(Cuda::devices().unwrap().len(), 2);
        }
        "a-full-device" => {
            let why = unavailable(Which::Index(0));
            let name = "Emulated 0".to_owned();
            assert_eq!(why, Unavailable::Full { name });
        }
        "devices-by-index-and-identifier" => devices(),
        "code" => code(log),
        "code-as-text" => {
            assert_eq!(open().code(), "sealed PTX for sm_90");
            nothing_is_left(log);
        }
        "code-that-does-not-load" => code_that_does_not_load(log),
        "operations" => operations(log),
        "copies" => copies(log),
        "memory-that-is-full" => memory_that_is_full(),
        "shared-memory" => shared_memory(log),
        "errors-of-kernels" => errors_of_kernels(),
        "steps" => steps(log, true),
        "steps-that-are-not-updated" => steps(log, false),
        "steps-that-change-in-part" => steps_that_change_in_part(log),
        "steps-without-graphs" => steps_without_graphs(log),
        "steps-that-end-early" => steps_that_end_early(log),
        "what-a-step-still-needs" => what_a_step_still_needs(log),
        "threads" => threads(log),
        other => super::linear::run(other, log),
    }
}

fn devices() {
    let found = Cuda::devices().unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(
        found[1].identifier(),
        "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
    );
    let which = found[1].identifier().parse().unwrap();
    let sealed = sealed();
    let options = Options {
        sealed: Some(&sealed),
        ..Options::default()
    };
    let device = Cuda::open(which, options).unwrap();
    assert_eq!(device.found().index, 1);
    assert_eq!(device.name(), "Emulated 1, sm_90");
    assert_eq!(device.multiprocessors(), 4);
    let absent = unavailable(Which::Uuid([7; 16])).to_string();
    assert!(
        absent.contains("GPU-07070707-0707-0707-0707-070707070707"),
        "{absent}"
    );
    assert!(absent.contains(&found[0].identifier()), "{absent}");
    let why = unavailable(Which::Index(2));
    assert_eq!(why, Unavailable::NoDevice { asked: 2, found: 2 });
    for text in [
        "",
        "GPU-",
        "GPU-1",
        "-1",
        "MIG-10111213",
        "GPU-g0111213-1415-1617-1819-1a1b1c1d1e1f",
    ] {
        assert!(text.parse::<Which>().is_err(), "{text}");
    }
}

fn code(log: &Path) {
    let device = open();
    assert_eq!(device.code(), "sealed cubin for sm_90");
    drop(device);
    nothing_is_left(log);
    let mut others = sealed();
    others.sources = Digest::of(b"others");
    let options = Options {
        sealed: Some(&others),
        ..Options::default()
    };
    if let Err(why) = Compiler::load() {
        assert_eq!(why, "NVRTC (libnvrtc) is not installed");
        let error = Cuda::open(Which::Index(0), options)
            .unwrap_err()
            .to_string();
        for part in [
            "no kernels for sm_90: the sealed ones were compiled from other sources",
            "--cuda-arch sm_90",
            "install NVRTC",
        ] {
            assert!(error.contains(part), "{error}");
        }
        nothing_is_left(log);
    }
}

fn code_that_does_not_load(log: &Path) {
    if Compiler::load().is_ok() {
        return;
    }
    let error = open_with(|_| ()).unwrap_err().to_string();
    for part in [
        "the cubin for sm_90 does not load",
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "the PTX for sm_90 does not load",
        "unsupported version",
    ] {
        assert!(error.contains(part), "{error}");
    }
    nothing_is_left(log);
}

/// The operations give what the emulation gives, bit by bit.
fn operations(log: &Path) {
    fn of<D: Device>(device: &D) -> Vec<f32> {
        let x: Vec<f32> = (0..2 * 300).map(|i| (i as f32 * 0.37).sin()).collect();
        let weight: Vec<f32> = (0..300).map(|i| 1.0 + i as f32 / 300.0).collect();
        let [x, weight] = [&x, &weight].map(|numbers| put(device, numbers));
        let out = device.allocate(4 * 600).unwrap();
        let (rows, width) = (2, 300);
        let shape = ops::RowsShape { rows, width };
        ops::rms_norm(device, shape, &x, &weight, 1e-5, &out).unwrap();
        ops::add(device, 600, &out, &x).unwrap();
        ops::softcap(device, 600, &out, 3.0).unwrap();
        // What was launched still reads it.
        drop((x, weight));
        get(device, &out, 600)
    }
    let device = open();
    assert_eq!(of(&device), of(&Emulated::new(1)));
    device.wait().unwrap();
    drop(device);
    nothing_is_left(log);
}

/// More than the buffers hold, by ways that the buffers are used again on.
fn copies(log: &Path) {
    let device = open();
    let bytes: Vec<u8> = (0..40_000_001_usize)
        .map(|i| ((i * i) >> 7) as u8)
        .collect();
    let [a, b] = [0, 1].map(|_| device.allocate(bytes.len() + 5).unwrap());
    device.upload(&bytes, &a, 5).unwrap();
    device.copy((&a, 5), (&b, 2), bytes.len()).unwrap();
    device.upload(&[9; 3], &a, 5).unwrap();
    let mut found = vec![0; bytes.len()];
    device.download(&b, 2, &mut found).unwrap();
    assert!(found == bytes);
    device.download(&a, 5, &mut found[..4]).unwrap();
    assert_eq!(found[..4], [9, 9, 9, bytes[3]]);
    device.upload(&[], &a, 0).unwrap();
    device.copy((&a, 0), (&b, 0), 0).unwrap();
    assert!(device.upload(&[0; 2], &a, a.bytes() - 1).is_err());
    assert!(device.download(&a, a.bytes(), &mut [0]).is_err());
    assert!(device.copy((&a, 6), (&b, 0), bytes.len()).is_err());
    drop((a, b, device));
    nothing_is_left(log);
}

fn memory_that_is_full() {
    let device = open();
    assert_eq!(device.room().unwrap(), [1_000_000, 1_000_000]);
    let first = device.allocate(600_000).unwrap();
    let error = device.allocate(600_000).unwrap_err();
    let expected = DeviceError::OutOfMemory {
        needed: 600_000,
        free: 400_000,
        total: 1_000_000,
    };
    assert_eq!(error, expected);
    // What was freed behind a launch is there once that has ended.
    drop(first);
    assert_eq!(device.allocate(600_000).unwrap().bytes(), 600_000);
}

fn shared_memory(log: &Path) {
    let device = open();
    let size = 1 << 14;
    let numbers: Vec<f32> = (0..size).map(|i| i as f32).collect();
    let x = put(&device, &numbers);
    ops::hadamard(&device, size, size, &x).unwrap();
    let sum: f32 = numbers.iter().sum::<f32>() / (size as f32).sqrt();
    assert!((get(&device, &x, 1)[0] / sum - 1.0).abs() < 1e-4);
    ops::hadamard(&device, size, size, &x).unwrap();
    let found = get(&device, &x, size);
    assert!(found.iter().zip(&numbers).all(|(a, b)| (a - b).abs() < 0.1));
    // Asked for once.
    let asked = |line: &&String| line.as_str() == "shared memory of hadamard: 65536";
    assert_eq!(called(log).iter().filter(asked).count(), 1);
    let arguments = Trial {
        to: x.span("to", 0, 256).unwrap(),
        what: 0,
        unused: 0,
    };
    let error = unsafe { device.launch(&TRIAL, [1, 1, 1], 300 << 10, &arguments) };
    let error = error.unwrap_err().to_string();
    assert_eq!(
        error,
        "kernel trial: 307200 bytes of shared memory, this device has 232448"
    );
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Trial {
    to: Span,
    what: u32,
    unused: u32,
}

unsafe impl Arguments for Trial {}

const TRIAL: Kernel<Trial> = Kernel::new("trial", 64);

fn trial(device: &Cuda, to: &CudaMemory, what: u32) -> Result<(), DeviceError> {
    let arguments = Trial {
        to: to.span("to", 0, 256)?,
        what,
        unused: 0,
    };
    unsafe { device.launch(&TRIAL, [1, 1, 1], 0, &arguments) }
}

fn errors_of_kernels() {
    let device = open();
    let to = device.allocate(256).unwrap();
    let absent = Kernel::<Trial>::new("absent", 64);
    let many = Kernel::<Trial>::new("trial", 128);
    let arguments = Trial {
        to: to.span("to", 0, 256).unwrap(),
        what: 0,
        unused: 0,
    };
    let error = unsafe { device.launch(&absent, [1, 1, 1], 0, &arguments) }.unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel absent: there is no kernel of this name"
    );
    let error = unsafe { device.launch(&many, [1, 1, 1], 0, &arguments) }.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("1 x 1 x 1 blocks of 128 threads"), "{error}");
    // A barrier that half the threads do not reach: found when it runs, which is later.
    trial(&device, &to, 1).unwrap();
    let error = device.wait().unwrap_err();
    let expected = "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS), noticed when waiting for the device";
    let kernel = DeviceError::Kernel {
        kernel: "trial",
        message: expected.to_owned(),
    };
    assert_eq!(error, kernel);
    let error = device.upload(&[1], &to, 0).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Kernel {
                kernel: "trial",
                ..
            }
        ),
        "{error}"
    );
    let error = trial(&device, &to, 0).unwrap_err().to_string();
    assert!(error.contains("noticed when launching trial"), "{error}");
}

pub fn counts(device: &Cuda) -> [u64; 5] {
    let StepCounts {
        replayed,
        updated,
        changed: _,
        made,
        plain,
        interrupted,
    } = device.steps();
    [replayed, updated, made, plain, interrupted]
}

/// `x += y`, `x += y` and, where there is one, a copy of `x`.
fn step(
    device: &Cuda,
    [x, y]: [&CudaMemory; 2],
    numbers: usize,
    copy: Option<&CudaMemory>,
) -> Result<(), DeviceError> {
    device.begin_step()?;
    ops::add(device, numbers, x, y)?;
    ops::add(device, numbers, x, y)?;
    if let Some(copy) = copy {
        device.copy((x, 0), (copy, 0), 4 * numbers)?;
    }
    device.end_step()
}

fn steps(log: &Path, updates: bool) {
    let device = open();
    let [x, y, z] = [1.0, 10.0, 0.0].map(|value| put(&device, &[value; 600]));
    let first = |memory| get(&device, memory, 600)[0];
    step(&device, [&x, &y], 600, Some(&z)).unwrap();
    assert_eq!((first(&x), first(&z)), (21.0, 21.0));
    assert_eq!(counts(&device), [0, 0, 1, 0, 0]);
    step(&device, [&x, &y], 600, Some(&z)).unwrap();
    assert_eq!((first(&x), first(&z)), (41.0, 41.0));
    assert_eq!(counts(&device), [1, 0, 1, 0, 0]);
    // Other arguments and another grid.
    step(&device, [&y, &z], 1, Some(&x)).unwrap();
    assert_eq!((first(&y), first(&x)), (92.0, 92.0));
    assert_eq!(get(&device, &y, 2)[1], 10.0);
    let [updated, made] = if updates { [1, 1] } else { [0, 2] };
    assert_eq!(counts(&device), [1, updated, made, 0, 0]);
    assert_eq!(device.steps().changed, 3 * updated);
    // Other launches; both are kept.
    step(&device, [&y, &z], 1, None).unwrap();
    step(&device, [&y, &z], 1, Some(&x)).unwrap();
    step(&device, [&y, &z], 1, None).unwrap();
    assert_eq!(first(&y), 92.0 + 6.0 * 41.0);
    assert_eq!(counts(&device), [3, updated, made + 1, 0, 0]);
    // A step without anything, and one that was not begun.
    device.begin_step().unwrap();
    device.end_step().unwrap();
    device.end_step().unwrap();
    assert_eq!(counts(&device), [3, updated, made + 1, 0, 0]);
    assert_eq!(
        called(log)
            .iter()
            .filter(|l| l.starts_with("launch add"))
            .count(),
        0
    );
    drop((x, y, z, device));
    nothing_is_left(log);
}

/// Of a step like one before, what is as it was is not told to the driver again.
fn steps_that_change_in_part(log: &Path) {
    let device = open();
    let [x, y, z] = [1.0, 10.0, 100.0].map(|value| put(&device, &[value; 600]));
    let copies = [0.0, 0.0].map(|value| put(&device, &[value; 600]));
    let step = |second: (&CudaMemory, usize), copy: &CudaMemory| {
        device.begin_step().unwrap();
        ops::add(&device, 600, &x, &y).unwrap();
        ops::add(&device, second.1, &x, second.0).unwrap();
        device.copy((&x, 0), (copy, 0), 2400).unwrap();
        device.end_step().unwrap();
        let changes = called(log).into_iter().filter(|l| l == "change a node");
        let found = get(&device, copy, 600);
        (found[0], found[599], changes.count() as u64)
    };
    assert_eq!(step((&y, 600), &copies[0]), (21.0, 21.0, 0));
    // The copy; the second launch, by its arguments and by its grid; both; nothing.
    assert_eq!(step((&y, 600), &copies[1]), (41.0, 41.0, 1));
    assert_eq!(step((&z, 600), &copies[1]), (151.0, 151.0, 2));
    assert_eq!(step((&z, 1), &copies[1]), (261.0, 161.0, 3));
    assert_eq!(step((&y, 600), &copies[0]), (281.0, 181.0, 5));
    assert_eq!(step((&y, 600), &copies[0]), (301.0, 201.0, 5));
    assert_eq!(counts(&device), [1, 4, 1, 0, 0]);
    assert_eq!(device.steps().changed, 5);
    drop((x, y, z, copies, device));
    nothing_is_left(log);
}

fn steps_without_graphs(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| put(&device, &[value; 600]));
    for _ in 0..2 {
        step(&device, [&x, &y], 600, None).unwrap();
    }
    assert_eq!(get(&device, &x, 1), [41.0]);
    assert_eq!(counts(&device), [0, 0, 0, 2, 0]);
    let device = open_with(|options| options.graphs = false).unwrap();
    let [x, y] = [1.0, 10.0].map(|value| put(&device, &[value; 600]));
    step(&device, [&x, &y], 600, None).unwrap();
    assert_eq!(counts(&device), [0, 0, 0, 1, 0]);
    let device = open_with(|options| options.waiting = true).unwrap();
    let to = device.allocate(256).unwrap();
    // The kernel that did it is told, at once.
    let error = trial(&device, &to, 1).unwrap_err().to_string();
    assert!(error.starts_with("kernel trial: "), "{error}");
    assert!(error.ends_with("noticed when waiting for it"), "{error}");
    assert!(!called(log).iter().any(|line| line.starts_with("make")));
}

fn steps_that_end_early(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| put(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    // It sees what was kept, and what follows sees it.
    assert_eq!(get(&device, &x, 1), [11.0]);
    ops::add(&device, 600, &x, &y).unwrap();
    device.end_step().unwrap();
    assert_eq!(get(&device, &x, 1), [21.0]);
    assert_eq!(counts(&device), [0, 0, 0, 0, 1]);
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    device.upload(&[0; 4], &x, 0).unwrap();
    device.end_step().unwrap();
    assert_eq!(get(&device, &x, 2), [0.0, 31.0]);
    // A launch that is at fault is told by its name, and the next step is one again.
    let absent = Kernel::<Trial>::new("absent", 64);
    let arguments = Trial {
        to: x.span("to", 0, 256).unwrap(),
        what: 0,
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
    nothing_is_left(log);
}

/// Memory that is dropped before the step ends is freed behind it, and what is allocated meanwhile is not its.
fn what_a_step_still_needs(log: &Path) {
    let device = open();
    let [x, y] = [1.0, 10.0].map(|value| put(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    drop(y);
    let z = device.allocate(2400).unwrap();
    device.copy((&x, 0), (&z, 0), 2400).unwrap();
    device.end_step().unwrap();
    assert_eq!(get(&device, &z, 600), [11.0; 600]);
    // A step that never ends leaves nothing, either.
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &z).unwrap();
    drop((x, z, device));
    nothing_is_left(log);
}

/// A device is used by any thread, and by several.
fn threads(log: &Path) {
    let device = open();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let [x, y] = [i as f32, 10.0].map(|value| put(&device, &[value; 600]));
                    if round % 2 == 0 {
                        step(&device, [&x, &y], 600, None).unwrap();
                    } else {
                        ops::add(&device, 600, &x, &y).unwrap();
                        ops::add(&device, 600, &x, &y).unwrap();
                    }
                    assert_eq!(get(&device, &x, 600), [i as f32 + 20.0; 600]);
                }
            });
        }
    });
    drop(device);
    nothing_is_left(log);
}
