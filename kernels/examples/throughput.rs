//! Benchmarks the CPU kernels against the memory bandwidth of the machine.
//!
//! `cargo run --release -p htc-kernels --example throughput [THREADS [NAME]...]` prints, for every
//! format and every column group code (including read-only ones), the bytes and weights read per
//! second by a matrix-vector product, for weights that fit the L2 cache, the L3 cache and neither,
//! each with the ratio to a loop that only reads the same bytes. Then it prints the arithmetic rate
//! of products with several vectors and the cost of a fork-join. NAMEs (`q4_k`, `trellis3`)
//! restrict the forms; the name of an instruction set (`x86-64-v3`) selects its kernels. Each
//! number is the best of interleaved rounds.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use htc_formats::DType;
use htc_formats::bands::{Code, Codes, ColumnGroups};
use htc_formats::map::MappedFile;
use htc_kernels::cpu::{Cpu, Scratch};
use htc_kernels::{Matrix, Pool, ShapeError};

const SIZES: [(&str, usize); 3] = [("L2", 384 << 10), ("L3", 24 << 20), ("memory", 256 << 20)];

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

const ROUNDS: usize = 8;

#[derive(Clone, Copy)]
enum WeightForm {
    Blocks(DType),
    ColumnGroups(Code),
}

impl WeightForm {
    fn all() -> Vec<WeightForm> {
        let blocks = FORMATS.into_iter().map(WeightForm::Blocks);
        let codes = Code::all().chain(Code::legacy());
        blocks.chain(codes.map(WeightForm::ColumnGroups)).collect()
    }

    fn name(self) -> String {
        match self {
            WeightForm::Blocks(dtype) => dtype.to_string(),
            WeightForm::ColumnGroups(code) => code.to_string(),
        }
    }

    fn rows(self, cols: usize, size: usize) -> Result<(usize, usize), Box<dyn Error>> {
        match self {
            WeightForm::Blocks(dtype) => {
                let row = dtype.row_bytes(cols).ok_or("blocks")?;
                Ok((size / row, size / row * row))
            }
            WeightForm::ColumnGroups(code) => {
                let codes = Codes::uniform(code, cols)?;
                let rows = size / (codes.bytes(1 << 16) >> 16) as usize;
                let rows = if rows < 256 { rows & !15 } else { rows & !255 };
                Ok((rows, codes.bytes(rows) as usize))
            }
        }
    }
}

struct Weights<'a> {
    form: WeightForm,
    codes: Codes,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl<'a> Weights<'a> {
    fn new(
        form: WeightForm,
        rows: usize,
        cols: usize,
        bytes: &'a [u8],
    ) -> Result<Weights<'a>, Box<dyn Error>> {
        let code = match form {
            WeightForm::ColumnGroups(code) => code,
            WeightForm::Blocks(_) => Code::codebook(8)?,
        };
        Ok(Weights {
            form,
            codes: Codes::uniform(code, cols)?,
            rows,
            cols,
            bytes,
        })
    }

    fn multiply(
        &self,
        cpu: &Cpu,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> bool {
        let mut product = || -> Result<(), ShapeError> {
            match self.form {
                WeightForm::Blocks(dtype) => {
                    let w = Matrix::new(dtype, self.rows, self.cols, self.bytes)?;
                    match n {
                        1 => cpu.matvec(w, x, y, scratch),
                        _ => cpu.matmul(w, n, x, y, scratch),
                    }
                }
                WeightForm::ColumnGroups(_) => {
                    match ColumnGroups::new(&self.codes, self.rows, self.bytes) {
                        Ok(w) => cpu.matmul_uniform_groups(w, n, x, y, scratch),
                        Err(_) => Ok(()),
                    }
                }
            }
        };
        product().is_ok()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = match arguments.next() {
        Some(text) => text.parse()?,
        None => std::thread::available_parallelism()?.get(),
    };
    let (names, cpu) = parse_names(arguments.collect(), threads)?;
    let mut forms = WeightForm::all();
    let unknown = |name: &&String| forms.iter().all(|form| form.name() != **name);
    if let Some(name) = names.iter().find(unknown) {
        return Err(format!("{name} is no format, nor kernels that this processor has").into());
    }
    forms.retain(|form| names.is_empty() || names.contains(&form.name()));
    let pool = cpu.pool();
    println!("{} on {threads} threads", cpu.instruction_set());

    let rounds = 20_000;
    let begin = Instant::now();
    (0..rounds).for_each(|_| pool.run(threads.max(2), |_| ()));
    let each = begin.elapsed().as_secs_f64() / f64::from(rounds);
    println!("fork-join {:.2} us", each * 1e6);

    // Moderate numbers in every format: the byte 0x2c makes f16, bf16 and f32 near 0.06 or less.
    // Mapped from a file, like the weights of a model: the system may use larger pages than for
    // other memory.
    let path = std::env::temp_dir().join(format!("htc-throughput-{}", std::process::id()));
    let written = std::fs::write(&path, vec![0x2c_u8; 264 << 20]);
    let mapped = written.map(|()| MappedFile::open(&path));
    std::fs::remove_file(&path)?;
    let bytes = mapped??;
    one_vector(&cpu, &forms, &bytes)?;
    several_vectors(&cpu, &forms, &bytes)
}

/// Splits the arguments into names of formats and the kernels of a named instruction set (default:
/// the best).
fn parse_names(
    mut names: Vec<String>,
    threads: usize,
) -> Result<(Vec<String>, Cpu), Box<dyn Error>> {
    let mut each = Cpu::each(&Arc::new(Pool::new(threads)?));
    let asked = each
        .iter()
        .position(|cpu| names.iter().any(|name| name == cpu.instruction_set()));
    let cpu = each.swap_remove(asked.unwrap_or(0));
    names.retain(|name| name != cpu.instruction_set());
    Ok((names, cpu))
}

fn one_vector(cpu: &Cpu, forms: &[WeightForm], bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut scratch = Scratch::new();
    for cols in [2048, 8192] {
        println!("\none vector, rows of {cols}: GB/s, 10^9 weights/s (ratio to reading)");
        for (name, size) in SIZES {
            println!("{name}");
            for &form in forms {
                let (rows, size) = form.rows(cols, size)?;
                let bytes = &bytes[..size];
                let w = Weights::new(form, rows, cols, bytes)?;
                let x = vec![0.5; cols];
                let mut y = vec![0.0; rows];
                let repeats = ((4 << 20) / size).max(1);
                let (mut reads, mut products) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    reads.push(seconds(repeats, || read_bytes(cpu.pool(), bytes)));
                    products.push(seconds(repeats, || {
                        w.multiply(cpu, 1, &x, &mut y, &mut scratch)
                    }));
                }
                let (read, product) = (max_rate(reads), max_rate(products));
                println!(
                    "{:>10} {:6.1} {:6.1} ({:.2})",
                    form.name(),
                    size as f64 / product / 1e9,
                    (rows * cols) as f64 / product / 1e9,
                    read / product
                );
            }
        }
    }
    Ok(())
}

fn several_vectors(cpu: &Cpu, forms: &[WeightForm], bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let (rows, cols) = (4096, 4096);
    println!("\nseveral vectors, {rows} rows of {cols}: GFLOP/s");
    let mut scratch = Scratch::new();
    for n in [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512] {
        let mut line = format!("{n:>7}");
        for &form in forms {
            let size = match form {
                WeightForm::Blocks(dtype) => dtype.matrix_bytes(rows, cols).ok_or("blocks")?,
                WeightForm::ColumnGroups(code) => Codes::uniform(code, cols)?.bytes(rows) as usize,
            };
            let w = Weights::new(form, rows, cols, &bytes[..size])?;
            let x = vec![0.5; n * cols];
            let mut y = vec![0.0; n * rows];
            let times =
                (0..ROUNDS).map(|_| seconds(1, || w.multiply(cpu, n, &x, &mut y, &mut scratch)));
            let flops = 2.0 * (n * rows * cols) as f64;
            line += &format!(
                "  {} {:.0}",
                form.name(),
                flops / max_rate(times.collect()) / 1e9
            );
        }
        println!("{line}");
    }
    Ok(())
}

fn seconds<T>(repeats: usize, mut f: impl FnMut() -> T) -> f64 {
    let begin = Instant::now();
    for _ in 0..repeats {
        std::hint::black_box(f());
    }
    begin.elapsed().as_secs_f64() / repeats as f64
}

fn max_rate(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::MAX, f64::min)
}

fn read_bytes(pool: &Pool, bytes: &[u8]) -> u64 {
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
