//! Benchmark of the block encoders: `cargo run --release -p htc-formats --example encoding [FILE]`
//! prints the relative loss of energy and millions of numbers per second on one thread, for every
//! type with a scale search, on Gaussian noise or a file of f16.

use std::time::Instant;

use htc_formats::DType;
use htc_formats::block::{BlockFit, decode, encode};

const NUMBERS: usize = 1 << 14;

const ROUNDS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let values = match std::env::args().nth(1) {
        Some(path) => {
            let bytes = std::fs::read(path)?;
            let bytes = &bytes[..bytes.len() / 512 * 512];
            let mut values = vec![0.0; bytes.len() / 2];
            decode(DType::F16, bytes, &mut values)?;
            values
        }
        None => normal(NUMBERS),
    };
    let importance: Vec<f32> = normal(values.len()).iter().map(|x| x.exp()).collect();
    println!("type     lost of the energy   encode   search   codes   refit (10^6/s)");
    for &dtype in BlockFit::TYPES {
        let mut bytes = vec![0; dtype.row_bytes(values.len()).ok_or("blocks")?];
        let encoded = rate(values.len(), || Ok(encode(dtype, &values, &mut bytes)?))?;
        let mut back = vec![0.0; values.len()];
        decode(dtype, &bytes, &mut back)?;
        let len = dtype.block_len();
        let blocks = || values.chunks_exact(len).zip(importance.chunks_exact(len));
        let mut fits = Vec::new();
        let searched = rate(values.len(), || {
            fits.clear();
            for (values, importance) in blocks() {
                fits.push(BlockFit::search(dtype, values, Some(importance))?);
            }
            Ok(())
        })?;
        let mut codes = vec![0; values.len()];
        let mut left = 0.0;
        let coded = rate(values.len(), || {
            for ((fit, (values, _)), codes) in fits.iter().zip(blocks()).zip(codes.chunks_mut(len))
            {
                for (place, (code, value)) in codes.iter_mut().zip(values).enumerate() {
                    let nearest = fit.nearest(place, *value);
                    *code = nearest.0;
                    left += value - nearest.1;
                }
            }
            Ok(())
        })?;
        let refitted = rate(values.len(), || {
            for ((fit, (values, importance)), codes) in
                fits.iter().zip(blocks()).zip(codes.chunks(len))
            {
                left += fit
                    .refit(values, Some(importance), codes)?
                    .value(0, codes[0]);
            }
            Ok(())
        })?;
        assert!(left.is_finite());
        println!(
            "{:<8} {:>18.4e} {encoded:>8.1} {searched:>8.1} {coded:>7.0} {refitted:>7.1}",
            dtype.name(),
            lost(&values, &back)
        );
    }
    Ok(())
}

/// Sums of twelve outputs of Knuth's MMIX generator.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count)
        .map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
        .collect()
}

fn rate(
    count: usize,
    mut run: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<f64, Box<dyn std::error::Error>> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        run()?;
        least = least.min(begin.elapsed().as_secs_f64());
    }
    Ok(count as f64 / least / 1e6)
}

fn lost(values: &[f32], back: &[f32]) -> f64 {
    let missing = values
        .iter()
        .zip(back)
        .map(|(x, y)| f64::from(x - y).powi(2));
    let whole = values.iter().map(|x| f64::from(*x).powi(2));
    missing.sum::<f64>() / whole.sum::<f64>()
}
