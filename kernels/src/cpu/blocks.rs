//! Shared code of the vectorised versions: iteration over rows and blocks.
//!
//! An instruction set provides a register type, a few operations, and for each format a function
//! that unpacks a block into registers of decoded numbers. These macros generate the decoder and,
//! for floating-point formats, the matrix-vector product. Products with quantised weights are in
//! [`dot`](super::dot).

pub(super) use super::{six_bit_scales, subarray};

/// Integers, of which every bit is initialised.
#[cfg(target_arch = "x86_64")]
pub(super) trait Integer: Copy {}

#[cfg(target_arch = "x86_64")]
macro_rules! integers {
    ($($integer:ty),*) => { $(impl Integer for $integer {})* };
}
#[cfg(target_arch = "x86_64")]
integers!(u8, i8, i16, i32);

/// Defines the decoder of one format, `decode`, in a module.
///
/// The functions avoid the standard library's combinators, which are compiled without the
/// instruction set and would not be inlined around a closure that needs it.
///
/// `$unpack(block, each)` calls `each(i, numbers)` once for every register `i` of the block, with
/// the numbers rounded like those of the scalar decoder.
macro_rules! decoder {
    ($features:literal, $module:ident, $bytes:literal, $len:literal, $unpack:ident) => {
        mod $module {
            use super::*;

            block_decoder!($features, $bytes, $len, $unpack);
        }
    };
}
pub(super) use decoder;

macro_rules! block_decoder {
    ($features:literal, $bytes:literal, $len:literal, $unpack:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
            let (blocks, rest) = bytes.as_chunks::<$bytes>();
            let (numbers, out_rest) = out.as_chunks_mut::<$len>();
            for (block, numbers) in blocks.iter().zip(numbers) {
                let numbers = numbers.as_chunks_mut::<LANES>().0;
                $unpack(block, |i, w| store(&mut numbers[i], w));
            }
            if !rest.is_empty() {
                let mut numbers = [0.0; $len];
                let parts = numbers.as_chunks_mut::<LANES>().0;
                $unpack(&padded(rest), |i, w| store(&mut parts[i], w));
                out_rest.copy_from_slice(&numbers[..out_rest.len()]);
            }
        }
    };
}
pub(super) use block_decoder;

/// Defines `$function`, the matrix-vector product of one format, by groups of the rows that the
/// module's `rows` takes together.
///
/// The rows of a group are as far apart as possible, so that each is part of a separate long
/// stream. Neighbouring short rows would share a page of memory, in which the hardware prefetcher
/// follows only one stream.
macro_rules! row_groups {
    ($features:literal, $function:ident, $numbers:ty) => {
        /// Rows processed together, at most the four that are summed together: a part of `x` is
        /// read once for all of them.
        const ROWS: usize = 4;

        #[target_feature(enable = $features)]
        pub(super) fn $function(w: Matrix<'_>, x: &[$numbers], y: &mut [f32]) {
            let groups = y.len() / ROWS;
            // The same offset in the next row.
            let prefetch_distance = w.stride();
            for g in 0..groups {
                let mut group = [&[] as &[u8]; ROWS];
                for (r, row) in group.iter_mut().enumerate() {
                    *row = w.row(r * groups + g);
                }
                for (r, product) in rows(group, x, prefetch_distance).into_iter().enumerate() {
                    y[r * groups + g] = product;
                }
            }
            for i in groups * ROWS..y.len() {
                [y[i]] = rows([w.row(i)], x, prefetch_distance);
            }
        }
    };
}
pub(super) use row_groups;

/// Same as [`decoder`], with `matvec`, the matrix-vector product.
macro_rules! float_kernels {
    ($features:literal, $module:ident, $bytes:literal, $len:literal, $unpack:ident) => {
        mod $module {
            use super::*;

            block_decoder!($features, $bytes, $len, $unpack);
            row_groups!($features, matvec, f32);

            #[inline]
            #[target_feature(enable = $features)]
            fn rows<const R: usize>(
                rows: [&[u8]; R],
                x: &[f32],
                prefetch_distance: usize,
            ) -> [f32; R] {
                let (x_blocks, x_rest) = x.as_chunks::<$len>();
                let count = x_blocks.len();
                let mut blocks = [&[] as &[[u8; $bytes]]; R];
                for r in 0..R {
                    blocks[r] = &rows[r].as_chunks::<$bytes>().0[..count];
                }
                let mut sums = [[zero(); ACCUMULATORS]; R];
                for (b, x) in x_blocks.iter().enumerate() {
                    let x = x.as_chunks::<LANES>().0;
                    for r in 0..R {
                        let sums = &mut sums[r];
                        let next = blocks[r][b].as_ptr().wrapping_add(prefetch_distance);
                        for line in (0..$bytes).step_by(64) {
                            prefetch(next.wrapping_add(line));
                        }
                        $unpack(&blocks[r][b], |i, w| {
                            sums[i % ACCUMULATORS] = fma(w, load(&x[i]), sums[i % ACCUMULATORS]);
                        });
                    }
                }
                if !x_rest.is_empty() {
                    let mut numbers = [0.0; $len];
                    numbers[..x_rest.len()].copy_from_slice(x_rest);
                    let x = numbers.as_chunks::<LANES>().0;
                    for r in 0..R {
                        let sums = &mut sums[r];
                        $unpack(&padded(&rows[r][count * $bytes..]), |i, w| {
                            sums[i % ACCUMULATORS] = fma(w, load(&x[i]), sums[i % ACCUMULATORS]);
                        });
                    }
                }
                let mut totals = [zero(); 4];
                for r in 0..R {
                    totals[r] = sum_accumulators(sums[r]);
                }
                let mut results = [0.0; R];
                results.copy_from_slice(&horizontal_sums(totals)[..R]);
                results
            }
        }
    };
}
pub(super) use float_kernels;

/// Pads `bytes` with zeros: for the last block of a format with single-number blocks, which the
/// kernels take 32 at a time.
#[inline(always)]
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut block = [0; N];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

/// Columns of a row that [`small_batch_kernels`] decodes at a time, a multiple of every block
/// length: eight such row segments fit the L1 cache.
pub(super) const SEGMENT: usize = 512;

/// Cache line alignment, so that no register load crosses a line.
#[repr(align(64))]
pub(super) struct Aligned<T>(pub T);

/// Prefetches a cache line; unmapped addresses are harmless.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and cannot fault; it is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the intrinsic is not stable yet.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]",
            address = in(reg) address,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// Prefetches into the L2 cache, without displacing data in use from L1.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn prefetch_far<T>(address: *const T) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: as above.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
}

/// Defines the reduction of one row's partial sums and the product of many rows with several
/// vectors.
///
/// `ACCUMULATORS` is the number of independent accumulators of a row, to hide the latency of
/// additions. `TILE_ROWS` by `TILE_VECTORS` is the register tile of a product with several vectors.
macro_rules! small_batch_kernels {
    ($features:literal, $vector:ty) => {
        #[inline]
        #[target_feature(enable = $features)]
        fn sum_accumulators(mut accumulators: [$vector; ACCUMULATORS]) -> $vector {
            let mut count = ACCUMULATORS;
            while count > 1 {
                count /= 2;
                for i in 0..count {
                    accumulators[i] = add(accumulators[i], accumulators[i + count]);
                }
            }
            accumulators[0]
        }

        /// Computes `y [rows, n] = W xᵀ` for `x [n, cols]`.
        #[target_feature(enable = $features)]
        fn matmul_small_batch(w: Matrix<'_>, n: usize, x: &[f32], y: &mut [f32]) {
            let whole = w.rows() / TILE_ROWS * TILE_ROWS;
            for first in (0..whole).step_by(TILE_ROWS) {
                multiply_rows::<TILE_ROWS>(w, first, n, x, &mut y[first * n..][..TILE_ROWS * n]);
            }
            for first in whole..w.rows() {
                multiply_rows::<1>(w, first, n, x, &mut y[first * n..][..n]);
            }
        }

        #[target_feature(enable = $features)]
        fn multiply_rows<const R: usize>(
            w: Matrix<'_>,
            first: usize,
            n: usize,
            x: &[f32],
            y: &mut [f32],
        ) {
            let (dtype, cols) = (w.dtype(), w.cols());
            let bytes = |cols: usize| cols / dtype.block_len() * dtype.block_bytes();
            let mut numbers = Aligned([[0.0; SEGMENT]; R]);
            let numbers = &mut numbers.0;
            let mut sums = vec![[zero(); R]; n];
            for start in (0..cols).step_by(SEGMENT) {
                let count = SEGMENT.min(cols - start);
                for (r, numbers) in numbers.iter_mut().enumerate() {
                    let row = &w.row(first + r)[bytes(start)..bytes(start + count)];
                    decode(dtype, row, &mut numbers[..count]);
                    numbers[count..].fill(0.0);
                }
                let mut t = 0;
                let (tiles, rest) = sums.as_chunks_mut::<TILE_VECTORS>();
                for sums in tiles {
                    micro_kernel(numbers, &x[t * cols + start..], cols, count, sums);
                    t += TILE_VECTORS;
                }
                for sums in rest.as_chunks_mut::<1>().0 {
                    micro_kernel(numbers, &x[t * cols + start..], cols, count, sums);
                    t += 1;
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                for (r, sums) in sums.chunks(4).enumerate() {
                    let mut four = [zero(); 4];
                    four[..sums.len()].copy_from_slice(sums);
                    let four = horizontal_sums(four);
                    for (i, sum) in four[..sums.len()].iter().enumerate() {
                        y[(r * 4 + i) * n + t] = *sum;
                    }
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn micro_kernel<const R: usize, const T: usize>(
            rows: &[[f32; SEGMENT]; R],
            x: &[f32],
            stride: usize,
            count: usize,
            sums: &mut [[$vector; R]; T],
        ) {
            let steps = count / LANES;
            let mut vectors = [&[] as &[[f32; LANES]]; T];
            let mut numbers = [&[] as &[[f32; LANES]]; R];
            for t in 0..T {
                vectors[t] = &x[t * stride..][..count].as_chunks::<LANES>().0[..steps];
            }
            for r in 0..R {
                numbers[r] = &rows[r].as_chunks::<LANES>().0[..steps];
            }
            let mut local = *sums;
            for k in 0..steps {
                let mut x = [zero(); T];
                for t in 0..T {
                    x[t] = load(&vectors[t][k]);
                    // The same offset in the vectors of the next tile.
                    prefetch(vectors[t][k].as_ptr().wrapping_add(T * stride));
                }
                for r in 0..R {
                    let w = load(&numbers[r][k]);
                    for t in 0..T {
                        local[t][r] = fma(w, x[t], local[t][r]);
                    }
                }
            }
            if steps * LANES < count {
                for t in 0..T {
                    let x = load_first(&x[t * stride..][steps * LANES..count]);
                    for r in 0..R {
                        let w = load(&rows[r].as_chunks::<LANES>().0[steps]);
                        local[t][r] = fma(w, x, local[t][r]);
                    }
                }
            }
            *sums = local;
        }
    };
}
pub(super) use small_batch_kernels;

/// Defines `KERNELS`, the table of an instruction set, and the functions in it; `$field` are those
/// from other modules.
///
/// Besides floats, it decodes the formats listed: `$unpack` unpacks a block of `$bytes` bytes and
/// `$len` numbers. Other formats are decoded portably: products with them are computed in integers.
macro_rules! kernel_table {
    ($features:literal, $vector:ty, { $($field:ident: $value:expr,)* },
     $($dtype:ident $module:ident $bytes:literal $len:literal $unpack:ident,)*) => {
        use htc_formats::DType;

        use crate::cpu::blocks::{
            Aligned, SEGMENT, block_decoder, decoder, float_kernels, padded, row_groups,
            small_batch_kernels, supported,
        };
        use crate::cpu::heads::{
            AttentionKernels, ColumnOperands, attention_kernels, attention_table, decode_kernels,
        };
        use crate::cpu::kernels::Kernels;
        use crate::cpu::lanes::{self, Loops, loop_table, with_features};
        use crate::cpu::matvec::decoded_matvec;
        use crate::cpu::plain;
        use crate::matrix::Matrix;

        float_kernels!($features, f32, 128, 32, unpack_f32);
        float_kernels!($features, f16, 64, 32, unpack_f16);
        float_kernels!($features, bf16, 64, 32, unpack_bf16);
        $(decoder!($features, $module, $bytes, $len, $unpack);)*
        small_batch_kernels!($features, $vector);
        attention_kernels!([target_feature(enable = $features)], $vector);

        #[target_feature(enable = $features)]
        fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
            match dtype {
                DType::F32 => f32::decode(bytes, out),
                DType::F16 => f16::decode(bytes, out),
                DType::BF16 => bf16::decode(bytes, out),
                $(DType::$dtype => $module::decode(bytes, out),)*
                other => plain::decode(other, bytes, out),
            }
        }

        #[target_feature(enable = $features)]
        fn matvec(w: Matrix<'_>, x: &[f32], y: &mut [f32]) {
            match w.dtype() {
                DType::F32 => f32::matvec(w, x, y),
                DType::F16 => f16::matvec(w, x, y),
                DType::BF16 => bf16::matvec(w, x, y),
                _ => decoded_matvec::<true>(w, x, y),
            }
        }

        /// Private, so that [`kernels`] is the only access to functions that require the CPU
        /// features.
        const KERNELS: Kernels = Kernels {
            matvec: supported!(|w, x, y| matvec),
            matmul_small_batch: supported!(|w, n, x, y| matmul_small_batch),
            decode: supported!(|dtype, bytes, out| decode),
            loops: loop_table!($features),
            attention: attention_table!(),
            $($field: $value,)*
        };
    };
}
pub(super) use kernel_table;

/// Wraps a function of an instruction set for a table.
macro_rules! supported {
    (|$($argument:ident),*| $function:path) => {
        |$($argument),*| {
            // SAFETY: the table is returned only if the processor supports the instruction set.
            unsafe { $function($($argument),*) }
        }
    };
}
pub(super) use supported;

/// Compiles functions for an instruction set, to be inlined into its kernels.
macro_rules! compiled_for {
    ($features:literal; $($item:item)*) => {
        $(
            #[inline]
            #[target_feature(enable = $features)]
            $item
        )*
    };
}
pub(super) use compiled_for;
