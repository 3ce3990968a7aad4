use htc_formats::DType;
use htc_kernels::cpu::{self, Scratch};
use htc_kernels::{Matrix, Pool};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let dtype: DType = a[1].parse().unwrap();
    let cols: usize = a[2].parse().unwrap();
    let size: usize = a[3].parse().unwrap();
    let reps: usize = a[4].parse().unwrap();
    let pool = Pool::new(1).unwrap();
    let row = dtype.row_bytes(cols).unwrap();
    let rows = size / row;
    let bytes = vec![0x2c_u8; rows * row];
    let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
    let x = vec![0.5; cols];
    let mut y = vec![0.0; rows];
    let mut s = Scratch::new();
    let mut best = f64::MAX;
    for _ in 0..reps {
        let t = std::time::Instant::now();
        cpu::matvec(&pool, w, &x, &mut y, &mut s).unwrap();
        best = best.min(t.elapsed().as_secs_f64());
    }
    println!("{dtype} {cols} {:.1} GB/s, {:.2} ns per 256", (rows * row) as f64 / best / 1e9, best * 1e9 / (rows * cols) as f64 * 256.0);
}
