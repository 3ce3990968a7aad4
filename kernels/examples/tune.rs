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
fn cpu_now() -> f64 { let mut ts = [0i64; 2]; unsafe { std::arch::asm!("syscall", inout("rax") 228i64 => _, in("rdi") 3, in("rsi") ts.as_mut_ptr(), out("rcx") _, out("r11") _); } ts[0] as f64 + ts[1] as f64 * 1e-9 }
fn best_cpu<T>(rounds: usize, mut f: impl FnMut() -> T) -> f64 {
    (0..rounds).map(|_| { let b = cpu_now(); std::hint::black_box(f()); cpu_now() - b }).fold(f64::MAX, f64::min)
}
fn main() {
    let pool = Pool::new(1).unwrap();
    // clock: dependent adds
    let mut a = std::hint::black_box(1u64);
    let t = best(20, 1, || { for _ in 0..1_000_000 { unsafe { std::arch::asm!("add {0}, {0}", inout(reg) a) }; } a });
    let ghz = 1e-3 / t;
    println!("~{ghz:.2} GHz");
    #[target_feature(enable="avx512f")]
    fn fmas() { use std::arch::x86_64::*;
        unsafe { std::arch::asm!("mov {i}, 10000", "2:",
          "vfmadd231ps zmm0, zmm31, zmm31","vfmadd231ps zmm1, zmm31, zmm31","vfmadd231ps zmm2, zmm31, zmm31","vfmadd231ps zmm3, zmm31, zmm31",
          "vfmadd231ps zmm4, zmm31, zmm31","vfmadd231ps zmm5, zmm31, zmm31","vfmadd231ps zmm6, zmm31, zmm31","vfmadd231ps zmm7, zmm31, zmm31",
          "vfmadd231ps zmm8, zmm31, zmm31","vfmadd231ps zmm9, zmm31, zmm31","vfmadd231ps zmm10, zmm31, zmm31","vfmadd231ps zmm11, zmm31, zmm31",
          "dec {i}", "jnz 2b", i = out(reg) _, out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _); }
        let _ = _mm512_setzero_ps(); }
    let ft = || best(30, 1, || unsafe { fmas() }) / 120000.0;
    println!("zmm uops per ns {:.2}", 1e-9 / ft());
    let bytes = vec![0x2c_u8; 1 << 20];
    if std::env::args().any(|a| a == "att") {
        let mut scratch = cpu::Scratch::new();
        for (heads, kvh, hs) in [(8, 4, 32), (8, 4, 16), (32, 8, 64), (32, 8, 128)] {
            for len in [16, 64, 256, 2048] {
                let kv = vec![0.1f32; kvh * len * hs];
                let view = cpu::KvView::new(&kv, &kv, kvh, hs, len).unwrap();
                let q = vec![0.1f32; heads * hs]; let mut out = q.clone();
                let u = ft();
                let s = best_cpu(50, || { for _ in 0..10 { cpu::attention_decode(&pool, &q, &view, len, 0.1, &mut scratch, &mut out).unwrap() } }) / 10.0;
                let flop = (heads * hs * len * 2) as f64 / 16.0;
                print!("  {heads}x{hs} len {len}: {:.1} us, {:.0}% of peak;", s * 1e6, 100.0 * flop * u / s);
            }
            let n = 512;
            let kv = vec![0.1f32; kvh * n * hs];
            let view = cpu::KvView::new(&kv, &kv, kvh, hs, n).unwrap();
            let q = vec![0.1f32; n * heads * hs]; let mut out = q.clone();
            let u = ft();
            let s = best_cpu(10, || cpu::attention_prefill(&pool, &q, n, 0, &view, 0.1, &mut scratch, &mut out).unwrap());
            let flop = (heads * hs * n * n) as f64 / 16.0;
            println!(" prefill {n}: {:.0} us, {:.0}% of (causal) peak", s * 1e6, 100.0 * flop * u / s);
        }
        let mut g = vec![0.3f32; 8192]; let up = g.clone();
        let s = best_cpu(200, || cpu::silu_mul(&pool, &mut g, &up).unwrap());
        let s2 = best_cpu(200, || cpu::rms_norm(&pool, &up, &up, 1e-5, &mut g).unwrap());
        let s3 = best_cpu(200, || cpu::softmax_in_place(&mut g));
        println!("8192: silu {:.2} us, rms {:.2} us softmax {:.2} us", s * 1e6, s2 * 1e6, s3 * 1e6);
        return;
    }
    if std::env::args().any(|a| a == "mm") {
        let (rows, cols) = (1536, 2048);
        let bytes = vec![0x2c_u8; rows * cols * 4];
        let mut scratch = cpu::Scratch::new();
        for n in [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512] {
            print!("{n:>4} % of peak:");
            for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4K] {
                let w = Matrix::new(dtype, rows, cols, &bytes[..dtype.matrix_bytes(rows, cols).unwrap()]).unwrap();
                let x = vec![0.5; n * cols];
                let mut y = vec![0.0; n * rows];
                let u = ft();
                let s = best_cpu(if n < 64 { 40 } else { 16 }, || cpu::matmul(&pool, w, n, &x, &mut y, &mut scratch).is_ok());
                print!("  {dtype} {:.0}", 100.0 * (n * rows * cols) as f64 / 16.0 * u / s);
            }
            println!();
        }
        return;
    }
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let big = vec![0x2c_u8; 40 << 20];
        print!("7m tokens/s t={threads}:");
        for dtype in [DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q5K, DType::Q6K] {
            let mut at = 0;
            let mut shapes = Vec::new();
            for _ in 0..8 { shapes.extend([(256, 256), (128, 256), (128, 256), (256, 256), (768, 256), (768, 256), (256, 768)]); }
            shapes.push((4096, 256));
            let mats: Vec<_> = shapes.into_iter().map(|(r, c)| { let n = dtype.matrix_bytes(r, c).unwrap(); at += n; Matrix::new(dtype, r, c, &big[at - n..at]).unwrap() }).collect();
            let cpu = || std::fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse::<f64>().unwrap() * 1e-9;
            let c0 = cpu();
            let x = vec![0.5f32; 768]; let mut y = vec![0f32; 4096];
            let b = Instant::now(); let mut n = 0; let mut bst = f64::MAX;
            while b.elapsed().as_secs_f64() < 1.0 { let t = Instant::now(); for w in &mats { let _ = cpu::matvec(&pool, *w, &x[..w.cols()], &mut y[..w.rows()]); } n += 1; bst = bst.min(t.elapsed().as_secs_f64()); }
            print!("  {dtype} {:.0} (best {:.0}, cpu {:.0})", n as f64 / b.elapsed().as_secs_f64(), 1.0 / bst, n as f64 / (cpu() - c0));
        }
        println!();
    }
    for cols in [256usize, 512, 2048, 8192] {
        print!("{cols:>6}: zmm uop slots per 32 weights (GB/s)");
        for dtype in DType::ALL {
            let row = dtype.row_bytes(cols).unwrap();
            let rows = (300 << 10) / row;
            let w = Matrix::new(dtype, rows, cols, &bytes[..rows * row]).unwrap();
            let x = vec![0.5; cols];
            let mut y = vec![0.0; rows];
            let s = best(100, 3, || cpu::matvec(&pool, w, &x, &mut y).is_ok());
            let u = ft(); print!("  {dtype} {:.1} ({:.1})", s / (rows * cols) as f64 * 32.0 / u, (rows * row) as f64 / s / 1e9);
        }
        println!();
    }
}
