//! Benchmarks attention on the CPU.
//!
//! `cargo run --release -p htc-kernels --example attention [THREADS]` prints, for the head shapes
//! of some models: the time of one layer's attention in a decoding step at several context lengths,
//! with the keys and values read per second; the time of a prefill of 512 positions, with its
//! arithmetic rate (visible query-key and weight-value products only); and decoding steps over
//! quantised and low-rank KV caches. Each number is the best of several rounds.

use std::time::Instant;

use htc_formats::DType;
use htc_kernels::cpu::{Attention, Cpu, KvNumbers, KvView, LowRankShape, LowRankView, Scratch};

const MODELS: [(&str, usize, usize, usize); 4] = [
    ("6 heads of 48", 6, 6, 48),
    ("32 heads of 64 on 8", 32, 8, 64),
    ("28 heads of 128 on 4", 28, 4, 128),
    ("8 heads of 256 on 4", 8, 4, 256),
];

const ROUNDS: usize = 20;

const BATCH: usize = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = match arguments.next() {
        Some(text) => text.parse()?,
        None => std::thread::available_parallelism()?.get(),
    };
    let cpu = Cpu::with_threads(threads)?;
    println!("{} on {threads} threads", cpu.instruction_set());
    let mut scratch = Scratch::new();
    for (name, heads, kv_heads, size) in MODELS {
        let capacity = 16 << 10;
        // Numbers between 0.25 and 1 of either sign.
        let stored: Vec<u16> = (0..kv_heads * capacity * size)
            .map(|i| 0x3400 + (i * 40_503 % 2048) as u16 + (((i * 7919 % 64) as u16 / 32) << 15))
            .collect();
        let kv = KvView::new(&stored, &stored, kv_heads, size, capacity)?;
        let q = vec![0.5; BATCH * heads * size];
        let mut out = vec![0.0; q.len()];
        compressed(&cpu, name, [heads, kv_heads, size], &q, &mut out)?;
        for (what, softcap, window) in [
            ("", None, None),
            (", capped", Some(50.0), None),
            (", window of 1024", None, Some(1024)),
        ] {
            let attention = Attention {
                scale: 1.0 / (size as f32).sqrt(),
                softcap,
                window,
            };
            println!("\n{name}{what}");
            for positions in [128, 512, 4096, capacity] {
                let (q, out) = (&q[..heads * size], &mut out[..heads * size]);
                let time = best(|| {
                    cpu.attention_decode(q, &kv, positions, &attention, &mut scratch, out)
                })?;
                let seen = positions.min(window.unwrap_or(usize::MAX));
                let bytes = (seen * kv_heads * size * 4) as f64;
                let (us, rate) = (time * 1e6, bytes / time / 1e9);
                println!("  decode at {positions:>5}: {us:8.1} us, {rate:6.1} GB/s");
            }
            for start in [0, 3584] {
                let time = best(|| {
                    cpu.attention_prefill(&q, BATCH, start, &kv, &attention, &mut scratch, &mut out)
                })?;
                let seen: usize = (start..start + BATCH)
                    .map(|p| (p + 1).min(window.unwrap_or(usize::MAX)))
                    .sum();
                let rate = (seen * heads * size * 4) as f64 / time / 1e9;
                let ms = time * 1e3;
                println!("  prefill behind {start:>4}: {ms:7.2} ms, {rate:6.1} GFLOP/s");
            }
        }
    }
    Ok(())
}

fn compressed(
    cpu: &Cpu,
    name: &str,
    [heads, kv_heads, size]: [usize; 3],
    q: &[f32],
    out: &mut [f32],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut scratch = Scratch::new();
    let attention = Attention {
        scale: 1.0 / (size as f32).sqrt(),
        softcap: None,
        window: None,
    };
    let capacity = 4096;
    println!("\n{name}, less than float16");
    let (q, out) = (&q[..heads * size], &mut out[..heads * size]);
    for dtype in [DType::Q8_0, DType::Q4_0] {
        let Some(bytes) = dtype.row_bytes(size) else {
            continue;
        };
        // Scales of 1 and arbitrary codes.
        let rows: Vec<u8> = (0..kv_heads * capacity * bytes)
            .map(|i| match i % dtype.block_bytes() {
                0 => 0x00,
                1 => 0x3C,
                _ => (i * 40_503 % 251) as u8,
            })
            .collect();
        let numbers = match dtype {
            DType::Q8_0 => KvNumbers::Q8_0(&rows),
            _ => KvNumbers::Q4_0(&rows),
        };
        let kv = KvView::from_numbers(numbers, numbers, kv_heads, size, capacity)?;
        for positions in [1024, 4096] {
            let time =
                best(|| cpu.attention_decode(q, &kv, positions, &attention, &mut scratch, out))?;
            println!("  {dtype} decode at {positions:>5}: {:8.1} us", time * 1e6);
        }
    }
    let rank = size * 3 / 5;
    let full = vec![0x3400; kv_heads * 96 * size];
    let low = vec![0x3400; kv_heads * capacity * rank];
    let basis: Vec<f32> = (0..kv_heads * rank * size)
        .map(|i| f32::from(u8::from(i / size % rank == i % size)))
        .collect();
    for positions in [1024, 4096] {
        let shape = LowRankShape {
            kv_heads,
            head_size: size,
            ranks: [rank; 2],
            capacity,
            positions: positions - 64,
            front: 32,
        };
        let low = LowRankView::new([&low; 2], [&basis; 2], shape)?;
        let kv = KvView::new(&full[..], &full, kv_heads, size, 96)?.with_low_rank(low)?;
        let time = best(|| cpu.attention_decode(q, &kv, positions, &attention, &mut scratch, out))?;
        println!(
            "  rank {rank} decode at {positions:>5}: {:8.1} us",
            time * 1e6
        );
    }
    Ok(())
}

fn best<E>(mut f: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut fastest = f64::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        f()?;
        fastest = fastest.min(begin.elapsed().as_secs_f64());
    }
    Ok(fastest)
}
