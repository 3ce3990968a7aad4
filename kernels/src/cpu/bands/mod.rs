//! Products of matrices in [column groups](htc_formats::bands) and vectors.
//!
//! A single vector is multiplied while weights are decoded in registers, if the instruction set has
//! a kernel for it. For several vectors, the integers of a column group are unpacked into the L1
//! cache, 64 at a time in the order of multiplication: sixteen rows of four columns, with one
//! broadcast of four of the vector's codes (see [`activations`](super::activations)), into sixteen
//! sums.
//!
//! The sum of a row over the 32 columns of a group is exact. It is multiplied by the vector's scale
//! (for a codebook also by the scale of the row and column group) and accumulated in `f32`, group
//! after group, so a row's result depends on that row and the vector alone. If the matrix is
//! rotated, the vector is rotated first. Column scales of a trellis are multiplied into the vector
//! before quantisation, row scales into the result. A padded last column group is matched by zero
//! codes in the vector.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
mod classes;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(test)]
pub(super) mod tests;
#[cfg(any(target_arch = "x86_64", test))]
mod wide;

use std::ops::Range;

use htc_formats::DType;
use htc_formats::bands::{
    CHUNK, CODEBOOK_UNIT, Code, CodeKind, ColumnGroupMatrix, ColumnGroups, GROUP_COLS, GROUP_ROWS,
    QUADS_PER_GROUP, SCALE_BYTES, TILE_ROWS, unpack_codebook_scales,
};

use super::Cpu;
use super::activations::{self, BLOCKS, SuperBlock, quantise_rows};
use super::gemm::{MatrixMut, for_each_block};
use super::kernels::Kernels;
use super::scratch::Scratch;
use super::subarray;
use crate::error::{ShapeError, check_numbers, check_size};

/// Row groups of a whole tile.
pub(super) const GROUPS: usize = TILE_ROWS / GROUP_ROWS;

/// Integers of a row group in a column group.
pub(super) type GroupWeights = [[i8; CHUNK]; QUADS_PER_GROUP];

/// Column group kernels of one instruction set; each function runs on one thread.
#[derive(Clone, Copy)]
pub(crate) struct ColumnGroupKernels {
    /// Unpacks integers of the given row groups of a column group (bytes within a tile), quad
    /// by quad of columns; as many groups as the output holds, from the start of the range.
    pub unpack: fn(Code, &[u8], Range<usize>, &mut [GroupWeights]),
    /// Adds the products of row groups, with a factor per row, and several vectors: `sums[t][r] +=
    /// scale[t] · factors[r] · Σ integers · codes[t]`, with all row groups of one vector before the
    /// next.
    pub add: AddProducts,
    /// Adds the products of row groups of a packed column group and one vector.
    pub multiply: Multiply,
}

type AddProducts = fn(&[GroupWeights], &[RowValues], &[VectorGroup<'_>], &mut [RowValues]);

type Multiply =
    fn(Code, &[u8], Range<usize>, &VectorGroup<'_>, &mut GroupScratch, &mut [RowValues]);

/// Calls a function that is generic over the number of bits of a code.
#[cfg(any(target_arch = "x86_64", test))]
macro_rules! by_bits {
    ($code:ident: $trellis:ident $trellis_arguments:tt, $codebook:ident $codebook_arguments:tt) => {
        match ($code.kind(), $code.bits()) {
            (CodeKind::Trellis, 2) => $trellis::<2> $trellis_arguments,
            (CodeKind::Trellis, 3) => $trellis::<3> $trellis_arguments,
            (CodeKind::Trellis, 4) => $trellis::<4> $trellis_arguments,
            (CodeKind::Trellis, _) => $trellis::<5> $trellis_arguments,
            (CodeKind::Codebook, 2) => $codebook::<2> $codebook_arguments,
            (CodeKind::Codebook, 3) => $codebook::<3> $codebook_arguments,
            (CodeKind::Codebook, 4) => $codebook::<4> $codebook_arguments,
            (CodeKind::Codebook, 5) => $codebook::<5> $codebook_arguments,
            (CodeKind::Codebook, 6) => $codebook::<6> $codebook_arguments,
            (CodeKind::Codebook, 7) => $codebook::<7> $codebook_arguments,
            (CodeKind::Codebook, _) => $codebook::<8> $codebook_arguments,
        }
    };
}
#[cfg(any(target_arch = "x86_64", test))]
use by_bits;

/// Sums of the rows of a group.
pub(super) type RowValues = [f32; GROUP_ROWS];

/// Part of a vector in a column group.
#[derive(Clone, Copy)]
pub(crate) struct VectorGroup<'a> {
    /// Quantised values.
    pub codes: &'a [i8; GROUP_COLS],
    /// Scale of the codes.
    pub scale: f32,
    /// Sum of the codes.
    pub sum: i32,
}

impl<'a> VectorGroup<'a> {
    fn new(super_blocks: &'a [SuperBlock], column_group: usize) -> Self {
        let (super_block, b) = (&super_blocks[column_group / BLOCKS], column_group % BLOCKS);
        VectorGroup {
            codes: &super_block.codes[b],
            scale: super_block.scales[b],
            sum: super_block.sums[b],
        }
    }
}

/// Scratch space of a thread, for rearranged bytes of a column group.
#[repr(align(64))]
pub(crate) struct GroupScratch(pub [u8; GroupScratch::BYTES]);

impl GroupScratch {
    /// Bytes of a column group, including the overread after its parts.
    pub const BYTES: usize = 6 << 10;
}

fn factors(code: Code, column_group: &[u8], groups: &Range<usize>) -> [RowValues; GROUPS] {
    let mut factors = [[1.0; GROUP_ROWS]; GROUPS];
    if code.kind() == CodeKind::Codebook {
        let (packed, _) = column_group.as_chunks::<SCALE_BYTES>();
        for (factors, packed) in factors.iter_mut().zip(&packed[groups.clone()]) {
            *factors = unpack_codebook_scales(packed).map(f32::from);
        }
    }
    factors
}

#[inline(always)]
fn dot_unpacked(
    unpack: impl Fn(Code, &[u8], Range<usize>, &mut [GroupWeights]),
    add: impl Fn(&[GroupWeights], &[RowValues], &[VectorGroup<'_>], &mut [RowValues]),
    code: Code,
    column_group: &[u8],
    groups: Range<usize>,
    vector: &VectorGroup<'_>,
    sums: &mut [RowValues],
) {
    let mut integers = [[[0; CHUNK]; QUADS_PER_GROUP]; GROUPS];
    let integers = &mut integers[..groups.len()];
    let factors = &factors(code, column_group, &groups)[..groups.len()];
    unpack(code, column_group, groups, integers);
    add(integers, factors, &[*vector], sums);
}

const MAX_SUMS: usize = 2048;

const TASKS_PER_THREAD: usize = 4;

impl Cpu {
    /// Computes `y = x Wᵀ` for a matrix in column groups, `x [n, cols]` and `y [n, rows]`. The
    /// vectors are quantised to 8 bits in blocks of 32; for a trellis, after applying its column
    /// scales.
    ///
    /// # Errors
    /// When `x` or `y` has another length.
    pub fn matmul_uniform_groups(
        &self,
        w: ColumnGroups<'_>,
        n: usize,
        x: &[f32],
        y: &mut [f32],
        scratch: &mut Scratch,
    ) -> Result<(), ShapeError> {
        let (rows, cols) = (w.rows(), w.cols());
        check_numbers("x (numbers)", &[n, cols], x.len())?;
        check_numbers("y (numbers)", &[n, rows], y.len())?;
        if n == 0 || rows == 0 {
            return Ok(());
        }
        let (kernels, pool) = (self.kernels, &*self.pool);
        // A power of two, so that no task crosses a tile.
        let tasks = match pool.threads() {
            // A single thread needs no load balancing.
            1 => 1,
            threads => TASKS_PER_THREAD * threads,
        };
        let groups = rows.div_ceil(GROUP_ROWS * tasks);
        // Few enough that the sums of many vectors stay in the L2 cache.
        let most = (MAX_SUMS / n.next_power_of_two()).clamp(1, GROUPS);
        let groups = groups.next_power_of_two().min(most);
        let super_blocks = activations::super_blocks(cols);
        let lengths = [n * cols, n * super_blocks, 2 * n * groups * pool.threads()];
        let (scaled, vectors, sums) = scratch.column_group_buffers(lengths);
        let x = prepare_vectors(kernels, &w, x, scaled);
        quantise_rows(kernels, pool, cols, x, vectors);
        let vectors = &*vectors;
        let task_rows = groups * GROUP_ROWS;
        for_each_block(
            pool,
            y,
            [n, rows],
            [n, task_rows],
            sums,
            |[_, row], y, sums| {
                let count = task_rows.min(rows - row);
                let task = RowTask { w, row, count };
                task.multiply(kernels, vectors, n, sums, y);
            },
        );
        Ok(())
    }

    /// Decodes one row of a matrix in column groups: the embedding of `token`, `out [cols]`.
    ///
    /// # Errors
    /// When there is no such row or `out` has another length.
    pub fn embed_column_groups(
        &self,
        w: ColumnGroupMatrix<'_>,
        token: usize,
        out: &mut [f32],
    ) -> Result<(), ShapeError> {
        check_size("out (numbers)", w.cols(), out.len())?;
        let what = "matrix (rows, at most)";
        w.decode_row(token, out)
            .map_err(|_| ShapeError::new(what, w.rows(), token.saturating_add(1)))
    }
}

fn prepare_vectors<'a>(
    kernels: &Kernels,
    w: &ColumnGroups<'_>,
    x: &'a [f32],
    out: &'a mut [f32],
) -> &'a [f32] {
    let rotated = w.codes().is_rotated();
    if !w.codes().contains_kind(CodeKind::Trellis) && !rotated {
        return x;
    }
    out.copy_from_slice(x);
    if rotated {
        out.chunks_exact_mut(w.cols())
            .for_each(kernels.loops.rotate);
    }
    for (column_group, code) in w.codes().iter().enumerate() {
        if code.kind() == CodeKind::Trellis {
            let mut scales = [0.0; GROUP_COLS];
            (kernels.decode)(DType::F16, w.column_scale_bytes(column_group), &mut scales);
            for row in out.chunks_exact_mut(w.cols()) {
                // Scales beyond the last column are padding.
                for (x, scale) in row[column_group * GROUP_COLS..].iter_mut().zip(scales) {
                    *x *= scale;
                }
            }
        }
    }
    out
}

struct RowTask<'a> {
    w: ColumnGroups<'a>,
    row: usize,
    count: usize,
}

impl RowTask<'_> {
    /// Multiplies with all vectors into `[n, super_blocks]`. In `sums [kinds, n, groups]` codebook
    /// sums precede trellis sums.
    fn multiply(
        &self,
        kernels: &Kernels,
        vectors: &[SuperBlock],
        n: usize,
        sums: &mut [RowValues],
        y: MatrixMut<'_>,
    ) {
        let groups = self.count.div_ceil(GROUP_ROWS);
        let first = self.row % TILE_ROWS / GROUP_ROWS;
        let sums = &mut sums[..2 * n * groups];
        sums.fill([0.0; GROUP_ROWS]);
        if n == 1 {
            self.multiply_one(&kernels.column_groups, vectors, first..first + groups, sums);
        } else {
            self.multiply_several(
                &kernels.column_groups,
                vectors,
                n,
                first..first + groups,
                sums,
            );
        }
        self.write_results(kernels, n, sums, y);
    }

    fn multiply_one(
        &self,
        kernels: &ColumnGroupKernels,
        vectors: &[SuperBlock],
        groups: Range<usize>,
        sums: &mut [RowValues],
    ) {
        let mut scratch = GroupScratch([0; GroupScratch::BYTES]);
        let (codebook, trellis) = sums.split_at_mut(groups.len());
        for (column_group, &code) in self.w.codes().iter().enumerate() {
            let vector = VectorGroup::new(vectors, column_group);
            let bytes = self.w.tile_bytes(self.row / TILE_ROWS, column_group);
            let sums = match code.kind() {
                CodeKind::Codebook => &mut *codebook,
                CodeKind::Trellis => &mut *trellis,
            };
            (kernels.multiply)(code, bytes, groups.clone(), &vector, &mut scratch, sums);
        }
    }

    fn multiply_several(
        &self,
        kernels: &ColumnGroupKernels,
        vectors: &[SuperBlock],
        n: usize,
        range: Range<usize>,
        sums: &mut [RowValues],
    ) {
        let groups = range.len();
        let (codebook, trellis) = sums.split_at_mut(n * groups);
        let mut integers = [[[0; CHUNK]; QUADS_PER_GROUP]; GROUPS];
        let integers = &mut integers[..groups];
        let mut parts = Vec::with_capacity(n);
        for (column_group, &code) in self.w.codes().iter().enumerate() {
            let bytes = self.w.tile_bytes(self.row / TILE_ROWS, column_group);
            (kernels.unpack)(code, bytes, range.clone(), integers);
            let factors = &factors(code, bytes, &range)[..groups];
            let sums = match code.kind() {
                CodeKind::Codebook => &mut *codebook,
                CodeKind::Trellis => &mut *trellis,
            };
            let vectors = vectors.chunks_exact(vectors.len() / n);
            parts.clear();
            parts.extend(vectors.map(|vector| VectorGroup::new(vector, column_group)));
            (kernels.add)(integers, factors, &parts, sums);
        }
    }

    fn write_results(&self, kernels: &Kernels, n: usize, sums: &[RowValues], mut y: MatrixMut<'_>) {
        let groups = self.count.div_ceil(GROUP_ROWS);
        let mut scales = [[0.0; TILE_ROWS]; 2];
        for (scales, kind) in scales.iter_mut().zip(CodeKind::ALL) {
            let bytes = self.w.row_scale_bytes(kind);
            if let Some(bytes) = bytes.get(2 * self.row..2 * (self.row + self.count)) {
                (kernels.decode)(DType::F16, bytes, &mut scales[..self.count]);
            }
        }
        scales[0] = scales[0].map(|scale| scale * CODEBOOK_UNIT);
        let (codebook, trellis) = sums.split_at(n * groups);
        let sums = codebook
            .chunks_exact(groups)
            .zip(trellis.chunks_exact(groups));
        for (t, (codebook, trellis)) in sums.enumerate() {
            let codebook = codebook.as_flattened().iter().zip(&scales[0]);
            let trellis = trellis.as_flattened().iter().zip(&scales[1]);
            let y = y.row_mut(t).iter_mut();
            for ((y, (codebook, codebook_scale)), (trellis, trellis_scale)) in
                y.zip(codebook).zip(trellis)
            {
                *y = codebook * codebook_scale + trellis * trellis_scale;
            }
        }
    }
}
