//! Tests of the emulation: reported errors and random order.

#![allow(clippy::unwrap_used, reason = "test code")]

use super::device::{Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, KernelArguments};
use super::{EmulatedDevice, EmulatedMemory, ops};

fn put(device: &EmulatedDevice, numbers: &[f32]) -> EmulatedMemory {
    ops::upload_floats(device, numbers).unwrap()
}

fn get(device: &EmulatedDevice, memory: &EmulatedMemory, numbers: usize) -> Vec<f32> {
    ops::download_floats(device, memory, numbers).unwrap()
}

#[test]
fn norm_is_independent_of_thread_order() {
    let x: Vec<f32> = (0..2 * 300).map(|i| (i as f32 * 0.37).sin()).collect();
    let weight: Vec<f32> = (0..300).map(|i| 1.0 + i as f32 / 300.0).collect();
    let mut found = Vec::new();
    for seed in 0..8 {
        let device = EmulatedDevice::new(seed);
        let [x, weight] = [&x, &weight].map(|numbers| put(&device, numbers));
        let out = device.allocate(4 * 600).unwrap();
        let shape = ops::RowsShape { rows: 2, cols: 300 };
        ops::rms_norm(&device, shape, &x, &weight, 1e-5, &out).unwrap();
        found.push(get(&device, &out, 600));
    }
    assert!(found.iter().all(|out| out == &found[0]));
    let mut expected = vec![0.0; 600];
    crate::reference::rms_norm(&x, &weight, 1e-5, &mut expected).unwrap();
    for (found, expected) in found[0].iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0));
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Trial {
    to: DeviceSpan,
    what: u32,
    unused: u32,
}

// SAFETY: layout as in `trial.cpp`, without padding.
unsafe impl KernelArguments for Trial {}

const TRIAL: Kernel<Trial> = Kernel::new("trial", 64);

fn trial(device: &EmulatedDevice, what: u32) -> Result<Vec<f32>, DeviceError> {
    let to = device.allocate(4 * 64).unwrap();
    let arguments = Trial {
        to: to.span("to", 0, 4 * 64)?,
        what,
        unused: 0,
    };
    // SAFETY: the kernel writes 64 numbers.
    unsafe { device.launch(&TRIAL, [1, 1, 1], 0, &arguments)? };
    Ok(get(device, &to, 64))
}

#[test]
fn undefined_behaviour_is_reported() {
    let device = EmulatedDevice::new(3);
    for (what, expected) in [
        (
            1,
            "is not reached by all: 32 threads wait, 32 of 64 have ended",
        ),
        (2, "barriers at lines"),
        (3, "waits for lane 31, which has ended"),
        (4, "the mask does not name its own lane"),
        (5, "meets __shfl_sync"),
        (6, "gives trial no shared memory"),
        (7, "reads lane 20, which its mask does not name"),
    ] {
        let error = trial(&device, what).unwrap_err().to_string();
        assert!(error.contains(expected), "{what}: {error}");
        assert!(error.starts_with("kernel trial: "), "{error}");
    }
    let sum = (0..32).sum::<i32>() as f32;
    assert_eq!(trial(&device, 0).unwrap(), vec![sum; 64]);
    let sum = trial(&device, 10).unwrap();
    assert!(sum[0] > 0.0 && sum.iter().all(|&x| x == sum[0]), "{sum:?}");
    assert!(trial(&device, 8).unwrap().iter().all(|x| x.is_nan()));
}

#[test]
fn grid_barrier_works_if_all_blocks_are_resident() {
    for seed in 0..4 {
        let device = EmulatedDevice::new(seed);
        let meet = |blocks| {
            let to = put(&device, &[0.0; 64]);
            let arguments = Trial {
                to: to.span("to", 0, 4 * 64).unwrap(),
                what: 11,
                unused: 0,
            };
            // SAFETY: the kernel changes two of 64 words.
            let launched = unsafe { device.launch(&TRIAL, [blocks, 1, 1], 0, &arguments) };
            launched.map(|()| {
                get(&device, &to, 2)
                    .iter()
                    .map(|x| x.to_bits())
                    .collect::<Vec<_>>()
            })
        };
        let resident = device.max_resident_blocks(&TRIAL, 0).unwrap() as u32;
        assert_eq!(meet(1).unwrap(), [0, 1]);
        assert_eq!(meet(resident).unwrap(), [0, 1]);
        let error = meet(resident + 1).unwrap_err().to_string();
        assert!(
            error.contains("8 blocks wait for others, and 1 find no room"),
            "{error}"
        );
    }
}

#[test]
fn data_races_depend_on_the_seed() {
    let winner = |seed| trial(&EmulatedDevice::new(seed), 9).unwrap()[0];
    let winners: Vec<f32> = (0..16).map(winner).collect();
    assert!(winners.iter().any(|&w| w != winners[0]), "{winners:?}");
    assert_eq!(winners, (0..16).map(winner).collect::<Vec<f32>>());
}

#[test]
fn invalid_launches_are_rejected() {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Short(u32);
    // SAFETY: one integer.
    unsafe impl KernelArguments for Short {}
    let device = EmulatedDevice::new(0);
    let launch = |name: &'static str, threads, grid| {
        // SAFETY: each launch is rejected before it starts.
        let found = unsafe { device.launch(&Kernel::new(name, threads), grid, 0, &Short(0)) };
        found.unwrap_err().to_string()
    };
    let error = launch("trial", 64, [1, 1, 1]);
    assert!(
        error.contains("takes 16 bytes of arguments, is given 4"),
        "{error}"
    );
    assert!(launch("nothing", 64, [1, 1, 1]).contains("no kernel of this name"));
    let to = device.allocate(256).unwrap();
    let arguments = Trial {
        to: to.span("to", 0, 256).unwrap(),
        what: 0,
        unused: 0,
    };
    for (threads, grid) in [(128, [1, 1, 1]), (64, [1, 65536, 1])] {
        let kernel = Kernel::new("trial", threads);
        // SAFETY: each launch is rejected before it starts.
        assert!(unsafe { device.launch(&kernel, grid, 0, &arguments) }.is_err());
    }
    assert!(to.span("to", 8, 249).is_err() && to.span("to", usize::MAX, 2).is_err());
}

fn write_behind(device: &EmulatedDevice) -> EmulatedMemory {
    let to = device.allocate(252).unwrap();
    let arguments = Trial {
        to: to.span("to", 0, 252).unwrap(),
        what: 0,
        unused: 0,
    };
    // SAFETY: the kernel writes 256 bytes, of which the last four are in the guard area.
    unsafe { device.launch(&TRIAL, [1, 1, 1], 0, &arguments).unwrap() };
    to
}

/// The violation to commit in a subprocess.
const FORBIDDEN: &str = "HTC_FORBIDDEN";

#[test]
fn what_the_environment_names_is_done() {
    let device = EmulatedDevice::new(0);
    match std::env::var(FORBIDDEN).as_deref() {
        Ok("behind an allocation") => drop(write_behind(&device)),
        Ok("behind a shared array") => drop(trial(&device, 12)),
        Ok("a misaligned load") => drop(trial(&device, 13)),
        _ => {}
    }
}

#[test]
fn sanitizers_abort_on_violations() {
    if !EmulatedDevice::is_sanitized() {
        let library = std::env::var_os(super::emulated::LIBRARY).filter(|path| !path.is_empty());
        assert!(
            library.is_none(),
            "{library:?} was built without sanitizers"
        );
        return;
    }
    for (what, said) in [
        ("behind an allocation", "heap-buffer-overflow"),
        ("behind a shared array", "heap-buffer-overflow"),
        ("a misaligned load", "misaligned address"),
        ("nothing", ""),
    ] {
        let program = std::env::current_exe().unwrap();
        let name = "cuda::tests::what_the_environment_names_is_done";
        let mut program = std::process::Command::new(program);
        let program = program.args(["--exact", name, "--nocapture"]);
        let found = program.env(FORBIDDEN, what).output().unwrap();
        let stderr = String::from_utf8_lossy(&found.stderr);
        assert_eq!(found.status.success(), said.is_empty(), "{what}: {stderr}");
        assert!(stderr.contains(said), "{what}: {stderr}");
    }
}

#[test]
fn write_past_the_end_is_detected() {
    if EmulatedDevice::is_sanitized() {
        return;
    }
    let to = write_behind(&EmulatedDevice::new(0));
    assert!(!to.is_intact());
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(to)));
    let message = dropped.unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("wrote behind the end of an allocation of 252 bytes"));
}

#[test]
fn step_is_recorded_until_its_end() {
    let device = EmulatedDevice::new(5);
    let [x, y, z] = [1.0, 10.0, 0.0].map(|value| put(&device, &[value; 600]));
    let step = |numbers| {
        device.begin_step().unwrap();
        ops::add(&device, numbers, &x, &y).unwrap();
        device.copy(x.at(0), z.at(0), 2400).unwrap();
        ops::add(&device, 600, &x, &y).unwrap();
    };
    step(600);
    assert_eq!(device.launch_count(), 0);
    device.end_step().unwrap();
    assert_eq!(device.launch_count(), 2);
    assert_eq!(
        (get(&device, &x, 1)[0], get(&device, &z, 1)[0]),
        (21.0, 11.0)
    );
    let last = device.last_step();
    let kernels: Vec<_> = last.iter().map(|node| node.kernel).collect();
    assert_eq!(kernels, [Some("add"), None, Some("add")]);
    assert_eq!((last[0].grid, last[0].shared), ([3, 1, 1], 0));
    assert_eq!(last[0].arguments[..3], [x.address(), y.address(), 600]);
    assert_eq!(last[1].arguments, [x.address(), z.address(), 2400]);
    for numbers in [1, 1] {
        step(numbers);
        device.end_step().unwrap();
    }
    device.copy(x.at(0), z.at(0), 0).unwrap();
    let counts = device.step_counts();
    assert_eq!((counts.created, counts.updated, counts.replayed), (1, 1, 1));
    assert_eq!(counts.changed_operations, 1);
    // A copy of no bytes is not counted.
    assert_eq!((counts.kernels, counts.copies), (6, 3));
}

#[test]
fn download_ends_a_step_early() {
    let device = EmulatedDevice::new(5);
    let [x, y] = [1.0, 10.0].map(|value| put(&device, &[value; 600]));
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    assert_eq!(get(&device, &x, 1), [11.0]);
    ops::add(&device, 600, &x, &y).unwrap();
    device.end_step().unwrap();
    assert_eq!(get(&device, &x, 1), [21.0]);
    assert_eq!(device.step_counts().interrupted, 1);
    device.begin_step().unwrap();
    ops::add(&device, 600, &x, &y).unwrap();
    drop(y);
    device.end_step().unwrap();
    assert_eq!(get(&device, &x, 1), [31.0]);
    let arguments = Trial {
        to: x.span("to", 0, 4 * 64).unwrap(),
        what: 1,
        unused: 0,
    };
    device.begin_step().unwrap();
    // SAFETY: the kernel writes 64 numbers.
    unsafe { device.launch(&TRIAL, [1, 1, 1], 0, &arguments).unwrap() };
    let error = device.end_step().unwrap_err().to_string();
    assert!(error.starts_with("kernel trial: "), "{error}");
    device.end_step().unwrap();
}

#[derive(Clone, Copy)]
#[repr(C)]
struct FragmentTrial {
    rows: DeviceSpan,
    columns: DeviceSpan,
    products: DeviceSpan,
    what: u32,
    unused: u32,
}

// SAFETY: layout as in `trial.cpp`, without padding.
unsafe impl KernelArguments for FragmentTrial {}

const FRAGMENT_TRIAL: Kernel<FragmentTrial> = Kernel::new("fragment_trial", 32);

/// Warp product of rows `[16, 32]` and columns `[32, 8]`.
fn add_fragments(
    device: &EmulatedDevice,
    rows: &[i8],
    columns: &[i8],
    before: &[i32],
    what: u32,
) -> Vec<i32> {
    let put = |bytes: Vec<u8>| {
        let memory = device.allocate(bytes.len()).unwrap();
        device.upload(&bytes, &memory, 0).unwrap();
        memory
    };
    let bytes = |numbers: &[i8]| {
        numbers
            .iter()
            .map(|x| x.cast_unsigned())
            .collect::<Vec<_>>()
    };
    let (rows, columns) = (put(bytes(rows)), put(bytes(columns)));
    let products = put(before.iter().flat_map(|x| x.to_le_bytes()).collect());
    let arguments = FragmentTrial {
        rows: rows.span("rows", 0, 512).unwrap(),
        columns: columns.span("columns", 0, 256).unwrap(),
        products: products.span("products", 0, 512).unwrap(),
        what,
        unused: 0,
    };
    // SAFETY: the kernel reads 16 by 32 and 32 by 8 bytes, and changes 16 by 8 integers.
    unsafe {
        device
            .launch(&FRAGMENT_TRIAL, [1, 1, 1], 0, &arguments)
            .unwrap()
    };
    let mut found = vec![0; 512];
    device.download(&products, 0, &mut found).unwrap();
    let words = found.as_chunks::<4>().0.iter();
    words.map(|&word| i32::from_le_bytes(word)).collect()
}

#[test]
fn integer_fragments_follow_the_ptx_layout() {
    let device = EmulatedDevice::new(9);
    let columns: Vec<i8> = (0..256).map(|i| (i as u8).cast_signed()).collect();
    let before: Vec<i32> = (0..128).map(|i| 1000 * i).collect();
    for place in 0..512 {
        let mut rows = [0; 512];
        rows[place] = 3;
        let (row, k) = (place / 32, place % 32);
        for what in 0..3 {
            let counts = [true, k < 16, k >= 16][what as usize];
            let mut expected = before.clone();
            for (column, sum) in expected[8 * row..][..8].iter_mut().enumerate() {
                *sum += i32::from(counts) * 3 * i32::from(columns[8 * k + column]);
            }
            let found = add_fragments(&device, &rows, &columns, &before, what);
            assert_eq!(found, expected, "row {row}, number {k}, {what}");
        }
    }
    let rows: Vec<i8> = (0..512)
        .map(|i| (i * 37 % 256) as u8)
        .map(u8::cast_signed)
        .collect();
    for what in 0..3 {
        let numbers = [0..32, 0..16, 16..32][what as usize].clone();
        let product = |place: usize| {
            let of = numbers.clone();
            let of = of.map(|k| {
                i32::from(rows[place / 8 * 32 + k]) * i32::from(columns[8 * k + place % 8])
            });
            before[place] + of.sum::<i32>()
        };
        let expected: Vec<i32> = (0..128).map(product).collect();
        assert_eq!(
            add_fragments(&device, &rows, &columns, &before, what),
            expected
        );
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct FloatFragmentTrial {
    rows: DeviceSpan,
    columns: DeviceSpan,
    products: DeviceSpan,
    bf16: u32,
    by_lanes: u32,
}

// SAFETY: layout as in `trial.cpp`, without padding.
unsafe impl KernelArguments for FloatFragmentTrial {}

const FLOAT_FRAGMENT_TRIAL: Kernel<FloatFragmentTrial> = Kernel::new("float_fragment_trial", 32);

/// Warp product of rows `[16, 16]` and columns `[16, 8]`.
fn add_float_fragments(
    device: &EmulatedDevice,
    [rows, columns]: [&[u16]; 2],
    before: &[f32],
    [bf16, by_lanes]: [bool; 2],
) -> Vec<f32> {
    let put = |numbers: &[u16]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let memory = device.allocate(bytes.len()).unwrap();
        device.upload(&bytes, &memory, 0).unwrap();
        memory
    };
    let (rows, columns) = (put(rows), put(columns));
    let products = super::ops::upload_floats(device, before).unwrap();
    let arguments = FloatFragmentTrial {
        rows: rows.span("rows", 0, 512).unwrap(),
        columns: columns.span("columns", 0, 256).unwrap(),
        products: products.span("products", 0, 512).unwrap(),
        bf16: bf16.into(),
        by_lanes: by_lanes.into(),
    };
    // SAFETY: the kernel reads 16 by 16 and 16 by 8 16-bit floats, and changes 16 by 8 floats.
    unsafe {
        device
            .launch(&FLOAT_FRAGMENT_TRIAL, [1, 1, 1], 0, &arguments)
            .unwrap()
    };
    super::ops::download_floats(device, &products, before.len()).unwrap()
}

#[test]
fn float_fragments_follow_the_ptx_layout() {
    let device = EmulatedDevice::new(10);
    let before: Vec<f32> = (0..128).map(|i| 1000.0 * i as f32).collect();
    for bf16 in [false, true] {
        let bits = |x: f32| {
            if bf16 {
                half::bf16::from_f32(x).to_bits()
            } else {
                half::f16::from_f32(x).to_bits()
            }
        };
        let of = |index: usize| (index * 37 % 101) as f32 - 50.0;
        let columns: Vec<u16> = (0..128).map(|i| bits(i as f32)).collect();
        for place in 0..256 {
            let mut rows = [0; 256];
            rows[place] = bits(3.0);
            let (row, k) = (place / 16, place % 16);
            let mut expected = before.clone();
            for (column, sum) in expected[8 * row..][..8].iter_mut().enumerate() {
                *sum += 3.0 * (8 * k + column) as f32;
            }
            for by_lanes in [false, true] {
                let how = [bf16, by_lanes];
                let found = add_float_fragments(&device, [&rows, &columns], &before, how);
                assert_eq!(found, expected, "row {row}, number {k}");
            }
        }
        let rows: Vec<u16> = (0..256).map(|i| bits(of(i))).collect();
        let product = |place: usize| {
            let of = |k: usize| of(place / 8 * 16 + k) * (8 * k + place % 8) as f32;
            before[place] + (0..16).map(of).sum::<f32>()
        };
        let expected: Vec<f32> = (0..128).map(product).collect();
        for by_lanes in [false, true] {
            let how = [bf16, by_lanes];
            let found = add_float_fragments(&device, [&rows, &columns], &before, how);
            assert_eq!(found, expected);
        }
        let rows: Vec<u16> = (0..256).map(|i| bits((i as f32).sin())).collect();
        let columns: Vec<u16> = (0..128).map(|i| bits((i as f32).cos())).collect();
        let [found, by_lanes] = [false, true].map(|by_lanes| {
            add_float_fragments(&device, [&rows, &columns], &before, [bf16, by_lanes])
        });
        assert_eq!(found, by_lanes);
    }
}
