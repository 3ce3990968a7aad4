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
mod tests;
