//! Products of matrices in [bands](htc_formats::bands) and vectors.
//!
//! The integers of a band's weights are unpacked into the first-level cache, 64 at a time in the order in
//! which they are multiplied: sixteen rows of four columns, with one broadcast of four of the vector's
//! codes (see [`activations`](super::activations)), into sixteen sums. The sum of a row over the 32
//! columns of a band is exact; it is multiplied by the vector's scale, and in a band of levels by that
//! of the row and band, and added up in `f32`, band after band, so that a row's result depends on nothing
//! but that row and the vector. The scales of a trellis' columns are multiplied into the vector before it
//! is quantised, those of rows into the result.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
pub(super) mod scalar;

use std::ops::Range;

use htc_formats::bands::{
    BAND, Bands, CHUNK, Code, GROUP_ROWS, Kind, LEVEL_UNIT, QUADS, SCALE_BYTES, STRIP_ROWS,
    level_scales,
};

use super::Cpu;
use super::activations::{self, BLOCKS, Strip, quantise_rows};
use super::gemm::{Target, for_each_block};
use super::scratch::Scratch;
use crate::error::{ShapeError, expect, product};

/// Groups of a whole strip.
pub(super) const GROUPS: usize = STRIP_ROWS / GROUP_ROWS;

/// The integers of a group's rows in a band.
pub(super) type Group = [[i8; CHUNK]; QUADS];

/// What one instruction set offers for bands; each function runs on one thread.
#[derive(Clone, Copy)]
pub(crate) struct BandKernels {
    /// The integers of some groups of a band, whose bytes in a strip are given, as
    /// [`Bands::unpack`] orders them; as many as there is room for, from the first of the range on.
    pub unpack: fn(Code, &[u8], Range<usize>, &mut [Group]),
    /// Adds a band's products: `sums[r] += scale · factors[r] · Σ integers · codes`.
    pub add: fn(&[Group], &Products<'_>, &mut [[f32; GROUP_ROWS]]),
}

/// What the sums of integers of a band are made of and multiplied with.
pub(crate) struct Products<'a> {
    /// The vector's codes.
    pub codes: &'a [i8; BAND],
    /// The vector's scale.
    pub scale: f32,
    /// The scales of rows in a band of levels; ones in a trellis.
    pub factors: &'a [[f32; GROUP_ROWS]],
}

/// `N` bytes from `at` on.
#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let (parts, _) = bytes[at..at + N].as_chunks::<N>();
    &parts[0]
}

/// Tasks that every thread should find in a product.
const TASKS_PER_THREAD: usize = 4;

impl Cpu {
    /// `y = x Wᵀ` for a matrix in bands, `x [n, cols]` and `y [n, rows]`. The vectors are quantised to
    /// eight bits in blocks of 32, where a trellis reads them after its columns' scales.
    ///
    /// # Errors
    /// When `x` or `y` has another length.
    pub fn bands(
        &self,
        w: Bands<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let (rows, cols) = (w.rows(), w.cols());
        expect("x (numbers)", product("x (numbers)", &[n, cols])?, x.len())?;
        expect("y (numbers)", product("y (numbers)", &[n, rows])?, y.len())?;
        if n == 0 || rows == 0 {
            return Ok(());
        }
        let (kernels, pool) = (self.kernels, &*self.pool);
        // A power of two, so that no task reaches into a second strip.
        let groups = rows.div_ceil(GROUP_ROWS * TASKS_PER_THREAD * pool.threads());
        let groups = groups.next_power_of_two().min(GROUPS);
        let strips = activations::strips(cols);
        let room = [n * cols, n * strips, 2 * n * groups * pool.threads()];
        let (scaled, vectors, sums) = scratch.bands(room);
        let x = scaled_columns(&w, x, scaled);
        quantise_rows(kernels, pool, cols, x, vectors);
        let vectors = &*vectors;
        let task = groups * GROUP_ROWS;
        for_each_block(pool, y, [n, rows], [n, task], sums, |[_, row], y, sums| {
            let count = task.min(rows - row);
            let rows = Rows { w, row, count };
            rows.multiply(&kernels.bands, vectors, n, sums, y);
        });
        Ok(())
    }

    /// One row of a matrix in bands as numbers: the embedding of `token`, `out [cols]`.
    ///
    /// # Errors
    /// When there is no such row or `out` has another length.
    pub fn embed_bands(
        &self,
        w: Bands<'_>,
        token: usize,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        expect("out (numbers)", w.cols(), out.len())?;
        w.row(token, out).map_err(|_| ShapeError {
            what: "matrix (rows, at most)",
            expected: w.rows(),
            found: token.saturating_add(1),
        })
    }
}

/// The vectors with the scales of the trellises' columns in them; as they are where there are none.
fn scaled_columns<'a>(w: &Bands<'_>, x: &'a [f32], out: &'a mut [f32]) -> &'a [f32] {
    if !w.codes().has(Kind::Trellis) {
        return x;
    }
    out.copy_from_slice(x);
    for band in 0..w.codes().len() {
        if let Some(scales) = w.column_scales(band) {
            for row in out.chunks_exact_mut(w.cols()) {
                for (x, scale) in row[band * BAND..].iter_mut().zip(scales) {
                    *x *= scale;
                }
            }
        }
    }
    out
}

/// Rows of one strip, the first of them that of a group.
struct Rows<'a> {
    w: Bands<'a>,
    row: usize,
    count: usize,
}

impl Rows<'_> {
    /// Their products with all vectors, `[n, strips]`. In `sums [n, kinds, groups]` those of levels come
    /// before those of trellises.
    fn multiply(
        &self,
        kernels: &BandKernels,
        vectors: &[Strip],
        n: usize,
        sums: &mut [[f32; GROUP_ROWS]],
        mut y: Target<'_>,
    ) {
        let groups = self.count.div_ceil(GROUP_ROWS);
        let first = self.row % STRIP_ROWS / GROUP_ROWS;
        let strips = vectors.len() / n;
        let sums = &mut sums[..2 * n * groups];
        sums.fill([0.0; GROUP_ROWS]);
        let mut integers = [[[0; CHUNK]; QUADS]; GROUPS];
        let integers = &mut integers[..groups];
        for (band, &code) in self.w.codes().iter().enumerate() {
            let bytes = self.w.band(self.row / STRIP_ROWS, band);
            (kernels.unpack)(code, bytes, first..first + groups, integers);
            let levels = code.kind() == Kind::Levels;
            let mut factors = [[1.0; GROUP_ROWS]; GROUPS];
            let factors = &mut factors[..groups];
            if levels {
                let (packed, _) = bytes.as_chunks::<SCALE_BYTES>();
                for (factors, packed) in factors.iter_mut().zip(&packed[first..]) {
                    *factors = level_scales(packed).map(f32::from);
                }
            }
            for (t, sums) in sums.chunks_exact_mut(2 * groups).enumerate() {
                let strip = &vectors[t * strips + band / BLOCKS];
                let products = Products {
                    codes: &strip.codes[band % BLOCKS],
                    scale: strip.scales[band % BLOCKS],
                    factors,
                };
                let kind = if levels { 0 } else { groups };
                (kernels.add)(integers, &products, &mut sums[kind..][..groups]);
            }
        }
        let scales: Vec<[f32; 2]> = (self.row..self.row + self.count)
            .map(|row| [Kind::Levels, Kind::Trellis].map(|kind| self.w.row_scale(kind, row)))
            .collect();
        for (t, sums) in sums.chunks_exact(2 * groups).enumerate() {
            let (levels, trellis) = sums.split_at(groups);
            let (levels, trellis) = (levels.as_flattened(), trellis.as_flattened());
            let y = y.row_mut(t).iter_mut();
            for (i, (y, [of_levels, of_trellis])) in y.zip(&scales).enumerate() {
                *y = levels[i] * (of_levels * LEVEL_UNIT) + trellis[i] * of_trellis;
            }
        }
    }
}
