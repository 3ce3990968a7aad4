//! Scenarios that run in a separate process.

use std::path::Path;

use htc_formats::htz::{CodeFormat, CodeImage, Digest, KernelCode};
use htc_kernels::cuda::driver::{CudaOptions, DeviceSelector};
use htc_kernels::cuda::source::{UNITS, sources_digest};
use htc_kernels::cuda::{
    Cuda, CudaMemory, Device, DeviceError, DeviceMemory, DeviceSpan, EmulatedDevice, Kernel,
    KernelArguments, code::GpuArchitecture, compile::Compiler, ops,
};

use super::steps;

fn kernel_code() -> KernelCode {
    let forms = [
        (CodeFormat::Cubin, &b"\x7fELF"[..]),
        (CodeFormat::Ptx, b"// PTX\0"),
    ];
    let image = |unit: &str, (form, bytes): (CodeFormat, &[u8])| CodeImage {
        architecture: GpuArchitecture { major: 9, minor: 0 },
        form,
        unit: unit.to_owned(),
        bytes: bytes.to_vec(),
    };
    let images = UNITS
        .iter()
        .flat_map(|unit| forms.map(|form| image(unit.name, form)));
    KernelCode {
        sources: sources_digest(),
        compiler: "none".to_owned(),
        images: images.collect(),
    }
}

pub fn open_with(change: impl Fn(&mut CudaOptions<'_>)) -> Result<Cuda, DeviceError> {
    let sealed = kernel_code();
    let mut options = CudaOptions {
        precompiled: Some(&sealed),
        ..CudaOptions::default()
    };
    change(&mut options);
    Cuda::open(DeviceSelector::Index(0), options)
}

pub fn open() -> Cuda {
    open_with(|_| ()).unwrap()
}

fn unavailable(which: DeviceSelector) -> DeviceError {
    match Cuda::open(which, CudaOptions::default()) {
        Err(why) if why.is_unavailable() => why,
        other => panic!("{other:?}"),
    }
}

pub fn upload<D: Device>(device: &D, numbers: &[f32]) -> D::Memory {
    ops::upload_floats(device, numbers).unwrap()
}

pub fn download<D: Device>(device: &D, memory: &D::Memory, numbers: usize) -> Vec<f32> {
    ops::download_floats(device, memory, numbers).unwrap()
}

pub fn read_call_log(log: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

pub fn assert_all_freed(log: &Path) {
    let called = read_call_log(log);
    let left = "left: 0 allocations, 0 of the host, 0 modules, 0 streams, 0 events, 0 graphs, 0 handles of libraries";
    assert_eq!(called.last().map(String::as_str), Some(left));
    let bad = |line: &&String| {
        let parts = ["not there", "behind its end", "refused"];
        parts.iter().any(|part| line.contains(part))
    };
    assert_eq!(called.iter().find(bad), None);
}

pub fn run(name: &str, log: &Path) {
    let _ = std::fs::remove_file(log);
    match name {
        "no-library" => assert_eq!(
            unavailable(DeviceSelector::Index(0)),
            DeviceError::NoDriverLibrary
        ),
        "a-library-that-is-too-old" => {
            let why = unavailable(DeviceSelector::Index(0)).to_string();
            assert!(
                why.contains("has no cuCtxSetCurrent: a newer driver"),
                "{why}"
            );
        }
        "a-stub" => {
            let why = unavailable(DeviceSelector::Index(0)).to_string();
            let expected = "no CUDA device: the driver does not start: the library is a stub (CUDA_ERROR_STUB_LIBRARY)";
            assert_eq!(why, expected);
        }
        "a-driver-without-devices" | "no-devices" => {
            let why = unavailable(DeviceSelector::Index(3));
            assert_eq!(
                why,
                DeviceError::NoDevice {
                    requested: 3,
                    available: 0
                }
            );
        }
        "an-old-device" => {
            let why = unavailable(DeviceSelector::Index(1)).to_string();
            let expected =
                "no CUDA device: Emulated 1 is of compute capability 7.5, kernels need 8.0";
            assert_eq!(why, expected);
            assert_eq!(Cuda::devices().unwrap().len(), 2);
        }
        "a-full-device" => {
            let why = unavailable(DeviceSelector::Index(0));
            let name = "Emulated 0".to_owned();
            assert_eq!(why, DeviceError::DeviceFull { name });
        }
        "devices-by-index-and-identifier" => devices(),
        "code" => code(log),
        "code-as-text" => {
            assert_eq!(open().code_origin(), "sealed PTX for sm_90");
            assert_all_freed(log);
        }
        "code-that-does-not-load" => code_that_does_not_load(log),
        "operations" => operations(log),
        "copies" => copies(log),
        "copies-in-parts" => copies_in_parts(log),
        "memory-that-is-full" => out_of_memory(),
        "shared-memory" => shared_memory(log),
        "errors-of-kernels" => errors_of_kernels(),
        "steps" => steps::repeated_steps_are_replayed(log),
        "steps-that-are-not-updated" => steps::partly_changed_steps_are_updated(log, false),
        "steps-that-change-in-part" => steps::partly_changed_steps_are_updated(log, true),
        "steps-of-many-kinds" => steps::steps_of_many_kinds(log),
        "launches-that-begin-early" => steps::dependent_launches_begin_early(log, true),
        "launches-that-may-not" => steps::dependent_launches_begin_early(log, false),
        "steps-without-graphs" => steps::steps_without_graphs(log),
        "steps-that-end-early" => steps::steps_that_end_early(log),
        "what-a-step-still-needs" => steps::dropped_memory_survives_until_the_step_ends(log),
        "threads" => threads(log),
        other => super::linear::run(other, log),
    }
}

fn devices() {
    let found = Cuda::devices().unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(
        found[1].uuid_string(),
        "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"
    );
    let which = found[1].uuid_string().parse().unwrap();
    let sealed = kernel_code();
    let options = CudaOptions {
        precompiled: Some(&sealed),
        ..CudaOptions::default()
    };
    let device = Cuda::open(which, options).unwrap();
    assert_eq!(device.properties().index, 1);
    assert_eq!(device.name(), "Emulated 1, sm_90");
    assert_eq!(device.multiprocessors(), 4);
    let absent = unavailable(DeviceSelector::Uuid([7; 16])).to_string();
    assert!(
        absent.contains("GPU-07070707-0707-0707-0707-070707070707"),
        "{absent}"
    );
    assert!(absent.contains(&found[0].uuid_string()), "{absent}");
    let why = unavailable(DeviceSelector::Index(2));
    assert_eq!(
        why,
        DeviceError::NoDevice {
            requested: 2,
            available: 2
        }
    );
    for text in [
        "",
        "GPU-",
        "GPU-1",
        "-1",
        "MIG-10111213",
        "GPU-g0111213-1415-1617-1819-1a1b1c1d1e1f",
    ] {
        assert!(text.parse::<DeviceSelector>().is_err(), "{text}");
    }
}

fn code(log: &Path) {
    let device = open();
    assert_eq!(device.code_origin(), "sealed cubin for sm_90");
    drop(device);
    assert_all_freed(log);
    let mut others = kernel_code();
    others.sources = Digest::of_bytes(b"others");
    let options = CudaOptions {
        precompiled: Some(&others),
        ..CudaOptions::default()
    };
    if let Err(why) = Compiler::load() {
        assert_eq!(why, "NVRTC (libnvrtc) is not installed");
        let error = Cuda::open(DeviceSelector::Index(0), options)
            .unwrap_err()
            .to_string();
        for part in [
            "no kernels for sm_90: the sealed ones were compiled from other sources",
            "--cuda-arch sm_90",
            "install NVRTC",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert_all_freed(log);
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
    assert_all_freed(log);
}

fn operations(log: &Path) {
    fn of<D: Device>(device: &D) -> Vec<f32> {
        let x: Vec<f32> = (0..2 * 300).map(|i| (i as f32 * 0.37).sin()).collect();
        let weight: Vec<f32> = (0..300).map(|i| 1.0 + i as f32 / 300.0).collect();
        let [x, weight] = [&x, &weight].map(|numbers| upload(device, numbers));
        let out = device.allocate(4 * 600).unwrap();
        let (rows, width) = (2, 300);
        let shape = ops::RowsShape { rows, cols: width };
        ops::rms_norm(device, shape, &x, &weight, 1e-5, &out).unwrap();
        ops::add(device, 600, &out, &x).unwrap();
        ops::softcap(device, 600, &out, 3.0).unwrap();
        drop((x, weight));
        download(device, &out, 600)
    }
    let device = open();
    assert_eq!(of(&device), of(&EmulatedDevice::new(1)));
    device.synchronize().unwrap();
    drop(device);
    assert_all_freed(log);
}

fn copies_in_parts(log: &Path) {
    let device = open();
    let memory = device.allocate(64 << 20).unwrap();
    let byte = |at: usize| ((at * at) >> 9) as u8;
    let (threads, pieces) = (10, 6);
    let place = |thread, piece| (thread * pieces + piece) << 20;
    let all_write = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (device, memory, all_write) = (&device, &memory, &all_write);
            scope.spawn(move || {
                for piece in 0..pieces {
                    let at = place(thread, piece);
                    let parts = [(at + 700_000, 300_000), (at, 600_000), (at + 650_000, 0)];
                    let written = device.upload_parts(memory, &parts, &mut |bytes| {
                        assert_eq!(bytes.len(), 900_000);
                        all_write.wait();
                        let places = (700_000..1_000_000).chain(0..600_000);
                        for (to, place) in bytes.iter_mut().zip(places) {
                            *to = byte(at + place);
                        }
                        Ok(())
                    });
                    written.unwrap();
                }
            });
        }
    });
    // Eight, plus one for threads that find none free.
    let made = read_call_log(log)
        .into_iter()
        .filter(|l| l == "memory of the host");
    let made = made.count();
    assert!((8..=9).contains(&made), "{made}");
    let mut found = vec![0; 1 << 20];
    for (thread, piece) in [(0, 0), (1, 5), (9, 5), (7, 3)] {
        let first = place(thread, piece);
        device.download(&memory, first, &mut found).unwrap();
        for at in (0..600_000).chain(700_000..1_000_000) {
            assert_eq!(found[at], byte(first + at), "{thread} {piece} {at}");
        }
    }
    let fill = &mut |bytes: &mut [u8]| {
        bytes.fill(7);
        Ok(())
    };
    device
        .upload_parts(&memory, &[(3, 20 << 20)], fill)
        .unwrap();
    device.download(&memory, 0, &mut found[..4]).unwrap();
    assert_eq!(found[3], 7);
    let last = (20 << 20) + 2;
    device.download(&memory, last, &mut found[..1]).unwrap();
    assert_eq!(found[0], 7);
    device.upload_parts(&memory, &[], fill).unwrap();
    let beyond = device.upload_parts(&memory, &[(0, 4), ((64 << 20) - 3, 4)], fill);
    assert!(matches!(beyond, Err(DeviceError::OutOfBounds { .. })));
    let failed = device.upload_parts(&memory, &[(3, 100)], &mut |bytes| {
        bytes.fill(9);
        Err(DeviceError::Driver {
            operation: "trying",
            message: String::new(),
        })
    });
    assert!(failed.is_err());
    device.download(&memory, 3, &mut found[..1]).unwrap();
    assert_eq!(found[0], 7);
    drop((memory, device));
    assert_all_freed(log);
}

fn copies(log: &Path) {
    let device = open();
    let bytes: Vec<u8> = (0..40_000_001_usize)
        .map(|i| ((i * i) >> 7) as u8)
        .collect();
    let [a, b] = [0, 1].map(|_| device.allocate(bytes.len() + 5).unwrap());
    device.upload(&bytes, &a, 5).unwrap();
    device.copy(a.at(5), b.at(2), bytes.len()).unwrap();
    device.upload(&[9; 3], &a, 5).unwrap();
    let mut found = vec![0; bytes.len()];
    device.download(&b, 2, &mut found).unwrap();
    assert!(found == bytes);
    device.download(&a, 5, &mut found[..4]).unwrap();
    assert_eq!(found[..4], [9, 9, 9, bytes[3]]);
    device.upload(&[], &a, 0).unwrap();
    device.copy(a.at(0), b.at(0), 0).unwrap();
    assert!(device.upload(&[0; 2], &a, a.len() - 1).is_err());
    assert!(device.download(&a, a.len(), &mut [0]).is_err());
    assert!(device.copy(a.at(6), b.at(0), bytes.len()).is_err());
    drop((a, b, device));
    assert_all_freed(log);
}

fn out_of_memory() {
    let device = open();
    assert_eq!(device.memory_info().unwrap(), [1_000_000, 1_000_000]);
    let first = device.allocate(600_000).unwrap();
    let error = device.allocate(600_000).unwrap_err();
    let expected = DeviceError::OutOfMemory {
        needed: 600_000,
        free: 400_000,
        total: 1_000_000,
    };
    assert_eq!(error, expected);
    drop(first);
    assert_eq!(device.allocate(600_000).unwrap().len(), 600_000);
}

fn shared_memory(log: &Path) {
    let device = open();
    let size = 1 << 14;
    let numbers: Vec<f32> = (0..size).map(|i| i as f32).collect();
    let x = upload(&device, &numbers);
    ops::hadamard(&device, size, size, &x).unwrap();
    let sum: f32 = numbers.iter().sum::<f32>() / (size as f32).sqrt();
    assert!((download(&device, &x, 1)[0] / sum - 1.0).abs() < 1e-4);
    ops::hadamard(&device, size, size, &x).unwrap();
    let found = download(&device, &x, size);
    assert!(found.iter().zip(&numbers).all(|(a, b)| (a - b).abs() < 0.1));
    let asked = |line: &&String| line.as_str() == "shared memory of hadamard: 65536";
    assert_eq!(read_call_log(log).iter().filter(asked).count(), 1);
    let arguments = Trial {
        to: x.span("to", 0, 256).unwrap(),
        operation: 0,
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
pub struct Trial {
    pub to: DeviceSpan,
    pub operation: u32,
    pub unused: u32,
}

unsafe impl KernelArguments for Trial {}

pub const TRIAL: Kernel<Trial> = Kernel::new("trial", 64);

pub fn trial(device: &Cuda, to: &CudaMemory, what: u32) -> Result<(), DeviceError> {
    let arguments = Trial {
        to: to.span("to", 0, 256)?,
        operation: what,
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
        operation: 0,
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
    trial(&device, &to, 1).unwrap();
    let error = device.synchronize().unwrap_err();
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

fn threads(log: &Path) {
    let device = open();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let device = device.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let [x, y] = [i as f32, 10.0].map(|value| upload(&device, &[value; 600]));
                    if round % 2 == 0 {
                        steps::step(&device, [&x, &y], 600, None).unwrap();
                    } else {
                        ops::add(&device, 600, &x, &y).unwrap();
                        ops::add(&device, 600, &x, &y).unwrap();
                    }
                    assert_eq!(download(&device, &x, 600), [i as f32 + 20.0; 600]);
                }
            });
        }
    });
    drop(device);
    assert_all_freed(log);
}
