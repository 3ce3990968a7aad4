//! How fast the kernels are on this machine, beside what its memory allows.
//!
//! `cargo run --release -p htc-kernels --example throughput [THREADS]` prints, for every format,
//! the weights read per second by a product with one vector, for weights that fit the second-level
//! cache, the third and none, each with the ratio to a loop that only reads the same bytes; then
//! the arithmetic rate of products with several vectors and the cost of a fork-join.
//! Every number is the best of interleaved rounds, so that other work on the machine disturbs it
//! little.

use std::time::Instant;

use htc_formats::DType;
use htc_kernels::cpu::{Cpu, Scratch};
use htc_kernels::{Matrix, Pool};

/// Bytes of weights of the three cases.
const SIZES: [(&str, usize); 3] = [("L2", 1 << 20), ("L3", 24 << 20), ("memory", 1 << 30)];

/// The formats that have a kernel.
const FORMATS: [DType; 15] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2K,
    DType::Q3K,
    DType::IQ4NL,
    DType::IQ4XS,
];

/// Rounds of every measurement.
const ROUNDS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = match arguments.next() {
        Some(text) => text.parse()?,
        None => std::thread::available_parallelism()?.get(),
    };
    let cpu = Cpu::with_threads(threads)?;
    let pool = cpu.pool();
    println!("{} on {threads} threads", cpu.instruction_set());

    let rounds = 20_000;
    let begin = Instant::now();
    (0..rounds).for_each(|_| pool.run(threads.max(2), |_| ()));
    let each = begin.elapsed().as_secs_f64() / f64::from(rounds);
    println!("fork-join {:.2} us", each * 1e6);

    // Moderate numbers in every format: the byte 0x2c makes f16, bf16 and f32 near 0.06 or less.
    let bytes = vec![0x2c_u8; 1 << 30];
    let mut scratch = Scratch::new();
    for cols in [2048, 8192] {
        println!("\none vector, rows of {cols}: GB/s (ratio to reading)");
        for (name, size) in SIZES {
            let mut line = format!("{name:>7}");
            for dtype in FORMATS {
                let row = dtype.row_bytes(cols).ok_or("blocks")?;
                let rows = size / row;
                let w = Matrix::new(dtype, rows, cols, &bytes[..rows * row])?;
                let x = vec![0.5; cols];
                let mut y = vec![0.0; rows];
                let repeats = ((4 << 20) / size).max(1);
                let (mut reads, mut products) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    reads.push(seconds(repeats, || read(pool, &bytes[..rows * row])));
                    products.push(seconds(repeats, || {
                        cpu.matvec(w, &x, &mut y, &mut scratch).is_ok()
                    }));
                }
                let (read, product) = (best(reads), best(products));
                let rate = (rows * row) as f64 / product / 1e9;
                line += &format!("  {dtype} {rate:.1} ({:.2})", read / product);
            }
            println!("{line}");
        }
    }

    let (rows, cols) = (4096, 4096);
    println!("\nseveral vectors, {rows} rows of {cols}: GFLOP/s");
    let mut scratch = Scratch::new();
    for n in [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512] {
        let mut line = format!("{n:>7}");
        for dtype in FORMATS {
            let size = dtype.matrix_bytes(rows, cols).ok_or("blocks")?;
            let w = Matrix::new(dtype, rows, cols, &bytes[..size])?;
            let x = vec![0.5; n * cols];
            let mut y = vec![0.0; n * rows];
            let times = (0..ROUNDS)
                .map(|_| seconds(1, || cpu.matmul(w, n, &x, &mut y, &mut scratch).is_ok()));
            let flops = 2.0 * (n * rows * cols) as f64;
            line += &format!("  {dtype} {:.0}", flops / best(times.collect()) / 1e9);
        }
        println!("{line}");
    }
    Ok(())
}

/// Mean seconds of one call.
fn seconds<T>(repeats: usize, mut f: impl FnMut() -> T) -> f64 {
    let begin = Instant::now();
    for _ in 0..repeats {
        std::hint::black_box(f());
    }
    begin.elapsed().as_secs_f64() / repeats as f64
}

fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::MAX, f64::min)
}

/// Reads every byte and does next to nothing with it.
fn read(pool: &Pool, bytes: &[u8]) -> u64 {
    let total = std::sync::atomic::AtomicU64::new(0);
    let chunk = 64 << 10;
    pool.run(bytes.len().div_ceil(chunk), |index| {
        let end = bytes.len().min((index + 1) * chunk);
        let words = bytes[index * chunk..end].as_chunks::<64>().0;
        let mut sums = [0u64; 8];
        for word in words {
            for (sum, part) in sums.iter_mut().zip(word.as_chunks::<8>().0) {
                *sum ^= u64::from_le_bytes(*part);
            }
        }
        let sum = sums.iter().fold(0, |a, b| a ^ b);
        total.fetch_xor(sum, std::sync::atomic::Ordering::Relaxed);
    });
    total.into_inner()
}
