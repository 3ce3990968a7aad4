use std::time::Instant;
use htc_formats::DType;
use htc_kernels::cpu::{self};
use htc_kernels::{Matrix, Pool};
fn best<T>(rounds: usize, repeats: usize, mut f: impl FnMut() -> T) -> f64 {
    (0..rounds).map(|_| {
        let b = Instant::now();
        for _ in 0..repeats { std::hint::black_box(f()); }
        b.elapsed().as_secs_f64() / repeats as f64
    }).fold(f64::MAX, f64::min)
}
fn main() {
    let pool = Pool::new(1).unwrap();
    // clock: dependent adds
    let mut a = std::hint::black_box(1u64);
    let t = best(20, 1, || { for _ in 0..1_000_000 { unsafe { std::arch::asm!("add {0}, {0}", inout(reg) a) }; } a });
    let ghz = 1e-3 / t;
    println!("~{ghz:.2} GHz");
    let bytes = vec![0x2c_u8; 1 << 20];
    for cols in [256usize, 512, 2048, 8192] {
        print!("{cols:>6}: B/cycle (weights/cycle)");
        for dtype in DType::ALL {
            let row = dtype.row_bytes(cols).unwrap();
            let rows = (300 << 10) / row;
            let w = Matrix::new(dtype, rows, cols, &bytes[..rows * row]).unwrap();
            let x = vec![0.5; cols];
            let mut y = vec![0.0; rows];
            let s = best(60, 10, || cpu::matvec(&pool, w, &x, &mut y).is_ok());
            print!("  {dtype} {:.1} ({:.1})", (rows * row) as f64 / s / ghz / 1e9, (rows * cols) as f64 / s / ghz / 1e9);
        }
        println!();
    }
}
