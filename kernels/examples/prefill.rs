//! Benchmarks products with many vectors against f16 weights: `cargo run --release -p htc-kernels
//! --example prefill [THREADS [ROWS COLS]]` prints GFLOP/s for every format and number of vectors.

use std::time::Instant;

use htc_formats::DType;
use htc_kernels::Matrix;
use htc_kernels::cpu::{Cpu, Scratch};

const ROUNDS: usize = 7;

const FORMATS: [DType; 6] = [
    DType::F16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let threads = match arguments.first() {
        Some(&threads) => threads,
        None => std::thread::available_parallelism()?.get(),
    };
    let (rows, cols) = match arguments.get(1..3) {
        Some(&[rows, cols]) => (rows, cols),
        _ => (2048, 2048),
    };
    let cpu = Cpu::with_threads(threads)?;
    println!(
        "{} on {threads} threads, {rows} rows of {cols}: GFLOP/s (ratio to f16)",
        cpu.instruction_set()
    );
    let bytes = vec![0x2c_u8; DType::F16.matrix_bytes(rows, cols).ok_or("blocks")?];
    let mut scratch = Scratch::new();
    for n in [2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512] {
        let x: Vec<f32> = (0..n * cols).map(|i| (i as f32).sin()).collect();
        let mut y = vec![0.0; n * rows];
        let mut best = [f64::MAX; FORMATS.len()];
        for _ in 0..ROUNDS {
            for (best, dtype) in best.iter_mut().zip(FORMATS) {
                let size = dtype.matrix_bytes(rows, cols).ok_or("blocks")?;
                let w = Matrix::new(dtype, rows, cols, &bytes[..size])?;
                let begin = Instant::now();
                cpu.matmul(w, n, &x, &mut y, &mut scratch)?;
                *best = best.min(begin.elapsed().as_secs_f64());
            }
        }
        let mut line = format!("{n:>5}");
        for (time, dtype) in best.iter().zip(FORMATS) {
            let rate = 2.0 * (n * rows * cols) as f64 / time / 1e9;
            line += &format!("  {dtype} {rate:.0} ({:.2})", best[0] / time);
        }
        println!("{line}");
    }
    Ok(())
}
