//! Activations quantised to 8 bits for products with quantised weights.
//!
//! Thirty-two numbers share a scale `d = max|x| / 127`, stored as `f32`. The code of a number is `x
//! / d` rounded half away from zero, an integer of magnitude at most 127. A product of weights and
//! codes is then an exact integer sum times two scales: `Σ w x = Σ_blocks d_w d_x Σ codes_w
//! codes_x`. The error of a number is at most half a step, `max|x| / 254` of its block.
//!
//! A block with a non-finite number gets the scale NaN, and every product with it is NaN. A block
//! whose magnitudes are all below [`MIN_MAGNITUDE`] is stored as zero, because the reciprocal of
//! its scale would overflow `f32`.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use super::kernels::Kernels;
use crate::pool::Pool;

/// Numbers that share a scale.
pub(super) const BLOCK: usize = 32;

/// Blocks of a [`SuperBlock`].
pub(super) const BLOCKS: usize = 8;

/// Numbers of a [`SuperBlock`], the longest block of any format.
pub(super) const SUPER_BLOCK_LEN: usize = BLOCK * BLOCKS;

/// Magnitude below which a block counts as zero: 2⁻¹⁰⁰.
pub(super) const MIN_MAGNITUDE: f32 = f32::from_bits((127 - 100) << 23);

/// The largest number below 0.5. Adding it and truncating rounds half away from zero; adding 0.5
/// would also round up numbers just below a half.
const BELOW_HALF: f32 = 0.499_999_97;

/// Super-block of a row: eight blocks of 32 numbers, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct SuperBlock {
    /// Codes of the numbers.
    pub codes: [[i8; BLOCK]; BLOCKS],
    /// Scales of the blocks.
    pub scales: [f32; BLOCKS],
    /// Sums of the codes of each block.
    pub sums: [i32; BLOCKS],
    /// Sums of the codes of half blocks: half `h` of block `4 s + k` is in `[s][4 h + k]`, so that
    /// the same lane in both halves of a register belongs to one block.
    pub half_sums: [[i32; BLOCKS]; 2],
}

impl SuperBlock {
    /// All zeros.
    pub const ZERO: SuperBlock = SuperBlock {
        codes: [[0; BLOCK]; BLOCKS],
        scales: [0.0; BLOCKS],
        sums: [0; BLOCKS],
        half_sums: [[0; BLOCKS]; 2],
    };

    fn set(&mut self, b: usize, scale: f32, codes: [i8; BLOCK], halves: [i32; 2]) {
        self.codes[b] = codes;
        self.scales[b] = scale;
        self.sums[b] = halves[0] + halves[1];
        self.half_sums[b / 4][b % 4] = halves[0];
        self.half_sums[b / 4][4 + b % 4] = halves[1];
    }
}

/// Returns the number of super-blocks of a row of `cols` numbers.
pub(super) fn super_blocks(cols: usize) -> usize {
    cols.div_ceil(SUPER_BLOCK_LEN)
}

/// Quantises every row of `x [n, cols]` into `out [n, super_blocks(cols)]`. The result does not
/// depend on the number of threads.
pub(super) fn quantise_rows(
    kernels: &Kernels,
    pool: &Pool,
    cols: usize,
    x: &[f32],
    out: &mut [SuperBlock],
) {
    /// Below this size a second thread does not pay.
    const MAX_SINGLE_THREADED: usize = 1 << 14;
    let width = super_blocks(cols);
    if cols == 0 {
        return;
    }
    if x.len() <= MAX_SINGLE_THREADED {
        for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(width)) {
            (kernels.quantise)(x, out);
        }
        return;
    }
    let rows = (MAX_SINGLE_THREADED / 4).div_ceil(cols);
    pool.chunks_mut(out, rows * width, |index, out| {
        let x = &x[index * rows * cols..];
        for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(width)) {
            (kernels.quantise)(x, out);
        }
    });
}

/// Quantises one row into `out [super_blocks(x.len())]`. A partial last block is padded with zeros.
pub(super) fn quantise(x: &[f32], out: &mut [SuperBlock]) {
    for (x, super_block) in x.chunks(SUPER_BLOCK_LEN).zip(out) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        if blocks.len() < BLOCKS {
            *super_block = SuperBlock::ZERO;
        }
        for (b, x) in blocks.iter().enumerate() {
            quantise_block(x, b, super_block);
        }
        if !rest.is_empty() {
            let mut last = [0.0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            quantise_block(&last, blocks.len(), super_block);
        }
    }
}

fn quantise_block(x: &[f32; BLOCK], b: usize, super_block: &mut SuperBlock) {
    // Magnitudes compare like their bits, with infinity and NaN above all others.
    let mut largest = 0;
    for x in x {
        largest = largest.max((x.to_bits() & !(1 << 31)).cast_signed());
    }
    let largest = f32::from_bits(largest.cast_unsigned());
    if !(MIN_MAGNITUDE..f32::INFINITY).contains(&largest) {
        let scale = if largest < MIN_MAGNITUDE {
            0.0
        } else {
            f32::NAN
        };
        return super_block.set(b, scale, [0; BLOCK], [0; 2]);
    }
    let inverse = 127.0 / largest;
    let mut codes = [0; BLOCK];
    let mut halves = [0; 2];
    for (i, (code, x)) in codes.iter_mut().zip(x).enumerate() {
        let scaled = x * inverse;
        let whole = (scaled + BELOW_HALF.copysign(scaled)) as i32;
        halves[i / (BLOCK / 2)] += whole;
        *code = whole as i8;
    }
    super_block.set(b, largest / 127.0, codes, halves);
}

#[cfg(test)]
mod tests {
    use super::super::kernels::available;
    use super::super::tests::Random;
    use super::*;

    fn quantised(kernels: &Kernels, x: &[f32]) -> Vec<SuperBlock> {
        let mut out = vec![SuperBlock::ZERO; super_blocks(x.len())];
        (kernels.quantise)(x, &mut out);
        out
    }

    #[test]
    fn codes_round_half_away_from_zero_and_sums_match_codes() {
        let mut random = Random(31);
        for len in [1, 31, 32, 33, 64, 255, 256, 257, 1000] {
            let x: Vec<f32> = random.numbers(len).iter().map(|x| x * 1e-3).collect();
            for k in available() {
                let out = quantised(k, &x);
                for (b, x) in x.chunks(BLOCK).enumerate() {
                    let super_block = &out[b / BLOCKS];
                    let b = b % BLOCKS;
                    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                    assert_eq!(super_block.scales[b], largest / 127.0, "{}", k.name);
                    for (code, x) in super_block.codes[b].iter().zip(x) {
                        // Two roundings, of the reciprocal and of the product, precede this one.
                        let exact = f64::from(*x) / (f64::from(largest) / 127.0);
                        let error = (f64::from(*code) - exact).abs();
                        assert!(error <= 0.5 + 127.0 * 1.2e-7, "{} {exact}: {code}", k.name);
                    }
                    assert_eq!(super_block.codes[b][x.len()..], [0; BLOCK][x.len()..]);
                    let sum = |codes: &[i8]| codes.iter().map(|&c| i32::from(c)).sum::<i32>();
                    assert_eq!(super_block.sums[b], sum(&super_block.codes[b]));
                    for h in 0..2 {
                        let half = &super_block.codes[b][h * 16..][..16];
                        assert_eq!(super_block.half_sums[b / 4][h * 4 + b % 4], sum(half));
                    }
                }
                let last = x.len().div_ceil(BLOCK) % BLOCKS;
                if last > 0 {
                    let super_block = &out[out.len() - 1];
                    assert!(super_block.codes[last..].iter().all(|c| *c == [0; BLOCK]));
                    assert!(super_block.scales[last..].iter().all(|s| *s == 0.0));
                }
            }
        }
    }

    #[test]
    fn halves_round_away_from_zero_and_numbers_below_round_down() {
        let below = 0.5f32.next_down();
        let mut x = [0.0; BLOCK];
        x[..9].copy_from_slice(&[127.0, 0.5, -0.5, below, -below, 1.5, -2.5, 126.5, -126.5]);
        for k in available() {
            let codes = quantised(k, &x)[0].codes[0];
            assert_eq!(
                codes[..9],
                [127, 1, -1, 0, 0, 2, -3, 127, -127],
                "{}",
                k.name
            );
        }
    }

    #[test]
    fn all_instruction_sets_give_the_same_codes_for_any_bits() {
        let mut random = Random(32);
        for _ in 0..1000 {
            let x: Vec<f32> = (0..96)
                .map(|_| f32::from_bits(random.bits() as u32))
                .collect();
            let bits = |super_blocks: &[SuperBlock]| {
                let super_block = super_blocks[0];
                let scales = super_block.scales.map(f32::to_bits);
                (
                    super_block.codes,
                    scales,
                    super_block.sums,
                    super_block.half_sums,
                )
            };
            let expected = bits(&quantised(&super::super::plain::KERNELS, &x));
            for k in available() {
                assert_eq!(bits(&quantised(k, &x)), expected, "{}", k.name);
            }
        }
    }

    #[test]
    fn non_finite_numbers_give_nan_blocks_and_tiny_blocks_become_zero() {
        for k in available() {
            for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 17, 31] {
                    let mut x = [1.0; 2 * BLOCK];
                    x[at] = odd;
                    let super_block = quantised(k, &x)[0];
                    assert!(super_block.scales[0].is_nan(), "{} {odd} {at}", k.name);
                    assert_eq!(super_block.scales[1], 1.0 / 127.0);
                }
            }
            for tiny in [
                MIN_MAGNITUDE.next_down(),
                f32::MIN_POSITIVE,
                f32::from_bits(1),
            ] {
                let super_block = quantised(k, &[-tiny; BLOCK])[0];
                assert_eq!(super_block, SuperBlock::ZERO, "{} {tiny:e}", k.name);
            }
            for extreme in [MIN_MAGNITUDE, f32::MAX] {
                let super_block = quantised(k, &[-extreme; BLOCK])[0];
                assert_eq!(super_block.scales[0], extreme / 127.0);
                assert_eq!(
                    super_block.codes[0], [-127; BLOCK],
                    "{} {extreme:e}",
                    k.name
                );
            }
        }
    }

    #[test]
    fn rows_start_on_new_super_blocks_on_any_number_of_threads() {
        let mut random = Random(33);
        for (n, cols) in [(1, 0), (3, 32), (2, 288), (70, 512), (5, 20_000)] {
            let x = random.numbers(n * cols);
            let width = super_blocks(cols);
            for threads in [1, 3] {
                let pool = Pool::new(threads).unwrap();
                let k = available()[0];
                let mut out = vec![SuperBlock::ZERO; n * width];
                quantise_rows(k, &pool, cols, &x, &mut out);
                for t in 0..n {
                    let alone = quantised(k, &x[t * cols..][..cols]);
                    assert_eq!(out[t * width..][..width], alone);
                }
            }
        }
    }
}
