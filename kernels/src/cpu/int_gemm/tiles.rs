//! Shared code of the instruction sets.

use std::arch::x86_64::*;

use super::formats::{Format, QuantLayout};
use super::panel::{PANEL_ROWS, PANEL_SUPER_BLOCKS, PackedBlock};
use crate::cpu::activations::{SUPER_BLOCK_LEN, SuperBlock};
use crate::matrix::Matrix;

/// Prefetches the next weights during multiplication.
pub(super) struct PanelPrefetch<'a> {
    w: Matrix<'a>,
    row: usize,
    byte: usize,
    lines_of_row: usize,
    lines: usize,
    done: usize,
    lines_per_step: usize,
}

impl<'a> PanelPrefetch<'a> {
    /// Plans the prefetch of the next panel in `steps` steps: the next rows, or the first rows of
    /// the next columns.
    pub fn new<F: Format>(w: Matrix<'a>, row: usize, start: usize, steps: usize) -> Self {
        let (row, start) = if row + PANEL_ROWS < w.rows() {
            (row + PANEL_ROWS, start)
        } else {
            (
                0,
                w.cols().min(start + PANEL_SUPER_BLOCKS * SUPER_BLOCK_LEN),
            )
        };
        let bytes = |cols: usize| cols / F::LEN * F::BYTES;
        let count = w.cols().min(start + PANEL_SUPER_BLOCKS * SUPER_BLOCK_LEN) - start;
        // One more, because rows do not begin on line boundaries.
        let lines_of_row = bytes(count).div_ceil(64) + 1;
        let lines = PANEL_ROWS.min(w.rows() - row) * lines_of_row * usize::from(count > 0);
        PanelPrefetch {
            w,
            row,
            byte: bytes(start),
            lines_of_row,
            lines,
            done: 0,
            lines_per_step: lines.div_ceil(steps.max(1)),
        }
    }

    /// Executes one step.
    #[inline(always)]
    pub fn step(&mut self) {
        let end = self.lines.min(self.done + self.lines_per_step);
        for line in self.done..end {
            let row = self.w.row(self.row + line / self.lines_of_row);
            let byte = self.byte + line % self.lines_of_row * 64;
            let address = row.as_ptr().wrapping_add(byte).cast();
            // SAFETY: a prefetch has no effect on the program and cannot fault; it is part of
            // x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(address) };
        }
        self.done = end;
    }
}

/// Columns of a panel and multiplication parameters.
#[derive(Clone, Copy)]
pub(super) struct PanelColumns<'a> {
    pub blocks: &'a [PackedBlock],
    /// Vectors between one super-block of a vector and the next.
    pub stride: usize,
    /// Offset of the codes.
    pub centre: i32,
    /// True if results are added to those of earlier columns.
    pub add: bool,
}

/// Corrections from the sums of the vectors' codes.
pub(super) struct ActivationSums<const T: usize> {
    /// Corrections for the offset of the weights' codes.
    offsets: [[[i32; 8]; 2]; T],
    /// Sums of the vectors' numbers.
    numbers: [[[f32; 8]; 2]; T],
}

impl<const T: usize> ActivationSums<T> {
    /// Prepares the sums for codes with offset `centre`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub fn new<S: QuantLayout>(x: &[SuperBlock; T], centre: i32) -> Self {
        let mut out = ActivationSums {
            offsets: [[[0; 8]; 2]; T],
            numbers: [[[0.0; 8]; 2]; T],
        };
        for (t, x) in x.iter().enumerate() {
            for i in 0..S::SCALES {
                let whole = S::SCALES == 1;
                let sums = if whole { &x.sums } else { &x.half_sums[i] };
                // SAFETY: in bounds.
                let sums = unsafe { _mm256_loadu_si256(sums.as_ptr().cast()) };
                let offsets = _mm256_mullo_epi32(sums, _mm256_set1_epi32(-centre));
                // SAFETY: in bounds.
                unsafe { _mm256_storeu_si256(out.offsets[t][i].as_mut_ptr().cast(), offsets) };
                if S::MINIMA {
                    let four = x.scales.as_chunks::<4>().0[i].as_ptr();
                    // SAFETY: in bounds.
                    let scales = unsafe {
                        if whole {
                            _mm256_loadu_ps(x.scales.as_ptr())
                        } else {
                            _mm256_broadcast_ps(&_mm_loadu_ps(four))
                        }
                    };
                    let numbers = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scales);
                    // SAFETY: in bounds.
                    unsafe { _mm256_storeu_ps(out.numbers[t][i].as_mut_ptr(), numbers) };
                }
            }
        }
        out
    }

    /// Returns the correction for vector `t` and half `h` of block `b`, or all of it.
    #[inline(always)]
    pub fn offset<S: QuantLayout>(&self, t: usize, b: usize, h: usize) -> i32 {
        self.offsets[t].as_flattened()[sum_index::<S>(b, h)]
    }

    /// Returns the sum of the numbers of vector `t` there.
    #[inline(always)]
    pub fn numbers<S: QuantLayout>(&self, t: usize, b: usize, h: usize) -> f32 {
        self.numbers[t].as_flattened()[sum_index::<S>(b, h)]
    }
}

/// Index of the sums of half `h` of block `b` in a [`SuperBlock`].
#[inline(always)]
fn sum_index<S: QuantLayout>(b: usize, h: usize) -> usize {
    if S::SCALES == 1 {
        b
    } else {
        b / 4 * 8 + 4 * h + b % 4
    }
}

/// Defines the product from an instruction set's operations on registers of `LANES` rows:
/// `ROW_REGISTERS` of them are multiplied with up to `TILE_VECTORS` vectors at a time.
macro_rules! int_gemm_kernel {
    ($features:literal) => {
        use std::arch::x86_64::*;

        use htc_formats::DType;

        use crate::cpu::activations::{BLOCKS, SUPER_BLOCK_LEN, SuperBlock};
        use crate::cpu::blocks::{prefetch, subarray};
        use crate::cpu::gemm::MatrixMut;
        use crate::cpu::int_gemm::IntGemm;
        use crate::cpu::int_gemm::formats::*;
        use crate::cpu::int_gemm::panel::{
            PANEL_ROWS, PANEL_SUPER_BLOCKS, PackedBlock, Panel, RowSums,
        };
        use crate::cpu::int_gemm::tiles::{
            ActivationSums, PanelColumns, PanelPrefetch, four_codes,
        };
        use crate::matrix::Matrix;

        /// Used only in kernel tables for processors with these instructions.
        pub(in crate::cpu) const INT_GEMM: IntGemm = |w, x, stride, y, panel| {
            // SAFETY: see above.
            unsafe {
                by_format!(
                    w.dtype(),
                    multiply(w, x, stride, y, panel),
                    (0..y.rows()).for_each(|t| y.row_mut(t).fill(f32::NAN))
                )
            }
        };

        #[target_feature(enable = $features)]
        fn multiply<F: Format>(
            w: Matrix<'_>,
            x: &[SuperBlock],
            stride: usize,
            y: &mut MatrixMut<'_>,
            panel: &mut Panel,
        ) {
            let (n, cols) = (y.rows(), w.cols());
            let panels = w.rows().div_ceil(PANEL_ROWS);
            if panel.sums.len() < panels * n {
                panel.sums.resize(panels * n, RowSums([0.0; PANEL_ROWS]));
            }
            if cols == 0 {
                (0..n).for_each(|t| y.row_mut(t).fill(0.0));
            }
            // The vectors' part of a range of columns stays in the L2 cache for all rows.
            for start in (0..cols).step_by(PANEL_SUPER_BLOCKS * SUPER_BLOCK_LEN) {
                let count = cols.min(start + PANEL_SUPER_BLOCKS * SUPER_BLOCK_LEN) - start;
                let x = &x[start / SUPER_BLOCK_LEN * stride..];
                let last = start + count == cols;
                for p in 0..panels {
                    let first = p * PANEL_ROWS;
                    pack_panel::<F>(w, first, start, count, panel);
                    let columns = PanelColumns {
                        blocks: &panel.blocks[..count / 32],
                        stride,
                        centre: if BIASED { 128 } else { F::CENTRE.into() },
                        add: start > 0,
                    };
                    let sums = &mut panel.sums[p * n..(p + 1) * n];
                    let mut next_panel =
                        PanelPrefetch::new::<F>(w, first, start, n.div_ceil(TILE_VECTORS));
                    for (i, sums) in sums.chunks_mut(TILE_VECTORS).enumerate() {
                        next_panel.step();
                        let t = i * TILE_VECTORS;
                        if last {
                            for t in t + TILE_VECTORS..n.min(t + 2 * TILE_VECTORS) {
                                for line in y.row_mut(t)[first..].chunks(16).take(PANEL_ROWS / 16) {
                                    prefetch(line.as_ptr());
                                }
                            }
                        }
                        multiply_tile::<F::Layout>(columns, &x[t..], sums);
                        if last {
                            for (i, sums) in sums.iter().enumerate() {
                                let y = &mut y.row_mut(t + i)[first..];
                                match y.first_chunk_mut::<PANEL_ROWS>() {
                                    Some(y) => *y = sums.0,
                                    None => y.copy_from_slice(&sums.0[..y.len()]),
                                }
                            }
                        }
                    }
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn zero_words() -> __m256i {
            _mm256_setzero_si256()
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load_words(bytes: &[u8; 32]) -> __m256i {
            // SAFETY: in bounds.
            unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn widen_i8(bytes: &[i8; 8]) -> __m256i {
            let bytes = i64::from_le_bytes(bytes.map(i8::cast_unsigned));
            _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes))
        }

        /// Multiplies a panel's rows with `sums.len()` vectors, at most `TILE_VECTORS`.
        #[target_feature(enable = $features)]
        fn multiply_tile<S: QuantLayout>(
            columns: PanelColumns<'_>,
            x: &[SuperBlock],
            sums: &mut [RowSums],
        ) {
            for first in (0..PANEL_ROWS).step_by(ROW_REGISTERS * LANES) {
                let mut t = 0;
                while t < sums.len() {
                    let (x, sums) = (&x[t..], &mut sums[t..]);
                    t += if let Some(sums) = sums.first_chunk_mut() {
                        micro_kernel::<S, TILE_VECTORS>(columns, first, x, sums)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        micro_kernel::<S, MIDDLE_TILE_VECTORS>(columns, first, x, sums)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        micro_kernel::<S, 2>(columns, first, x, sums)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        micro_kernel::<S, 1>(columns, first, x, sums)
                    } else {
                        1
                    };
                }
            }
        }

        #[target_feature(enable = $features)]
        fn micro_kernel<S: QuantLayout, const T: usize>(
            columns: PanelColumns<'_>,
            first: usize,
            x: &[SuperBlock],
            totals: &mut [RowSums; T],
        ) -> usize {
            // A no-op that tells the compiler that no access leaves the panel.
            let first = first.min(PANEL_ROWS - ROW_REGISTERS * LANES);
            let mut sums = [[broadcast(0.0); ROW_REGISTERS]; T];
            for (s, blocks) in columns.blocks.chunks(BLOCKS).enumerate() {
                let x = &x[s * columns.stride..].as_chunks::<T>().0[0];
                let activation_sums = ActivationSums::new::<S>(x, columns.centre);
                for (b, block) in blocks.iter().enumerate() {
                    // The same offset in the next vectors.
                    for super_block in x {
                        let next = (&raw const *super_block).wrapping_add(T).cast::<u8>();
                        prefetch(next.wrapping_add(64 * b));
                    }
                    for h in 0..S::SCALES {
                        let mut products = [[zero(); ROW_REGISTERS]; T];
                        for t in 0..T {
                            let offset = broadcast_integer(activation_sums.offset::<S>(t, b, h));
                            products[t] = [offset; ROW_REGISTERS];
                        }
                        add_products::<S, T>(block, first, x, b, h, &mut products);
                        for t in 0..T {
                            let scale = broadcast(x[t].scales[b]);
                            for v in 0..ROW_REGISTERS {
                                let at = first + v * LANES;
                                let product =
                                    mul(to_floats(products[t][v]), load(&block.scales[h], at));
                                sums[t][v] = fma(product, scale, sums[t][v]);
                                if S::MINIMA {
                                    let sum = broadcast(activation_sums.numbers::<S>(t, b, h));
                                    sums[t][v] = fma(load(&block.minima[h], at), sum, sums[t][v]);
                                }
                            }
                        }
                    }
                }
            }
            for t in 0..T {
                for v in 0..ROW_REGISTERS {
                    let at = first + v * LANES;
                    let mut total = sums[t][v];
                    if columns.add {
                        total = add(load(&totals[t].0, at), total);
                    }
                    store(&mut totals[t].0, at, total);
                }
            }
            T
        }

        /// Packs `count` columns from `start` of the rows from `first` into a panel.
        #[target_feature(enable = $features)]
        fn pack_panel<F: Format>(
            w: Matrix<'_>,
            first: usize,
            start: usize,
            count: usize,
            panel: &mut Panel,
        ) {
            let bytes = |cols: usize| cols / F::LEN * F::BYTES;
            let bias = if BIASED { 128 - F::CENTRE } else { 0 };
            for (s, blocks) in panel.blocks.chunks_mut(BLOCKS).enumerate() {
                let from = start + s * SUPER_BLOCK_LEN;
                let to = (start + count).min(from + SUPER_BLOCK_LEN);
                if from >= to {
                    break;
                }
                let blocks = &mut blocks[..(to - from) / 32];
                for at in (0..PANEL_ROWS).step_by(LANES) {
                    let mut scales = [[[0; 2]; LANES]; BLOCKS];
                    let mut minima = [[[0; 2]; LANES]; BLOCKS];
                    // Missing rows keep stale content, which is never read.
                    for r in 0..LANES.min(w.rows().saturating_sub(first + at)) {
                        let row = &w.row(first + at + r)[bytes(from)..bytes(to)];
                        for (b, block) in row.chunks_exact(F::BYTES).take(BLOCKS).enumerate() {
                            scales[b][r] = *subarray(block, F::SCALE);
                            if F::Layout::MINIMA {
                                minima[b][r] = *subarray(block, F::MINIMUM);
                            }
                        }
                        F::unpack(row, &mut panel.rows[r]);
                    }
                    let rows = &panel.rows[..LANES];
                    for (b, block) in blocks.iter_mut().enumerate() {
                        let mut words = [zero_words(); LANES];
                        for r in 0..LANES {
                            words[r] = load_words(&rows[r].codes.as_chunks().0[b]);
                        }
                        let columns = transpose_words(words);
                        for k in 0..8 {
                            let codes = match F::CODEBOOK {
                                Some(codebook) => look_up(&codebook, columns[k]),
                                None => columns[k],
                            };
                            store_codes(&mut block.codes[k], at, add_bytes(codes, bias));
                        }
                        if F::LEN == 32 {
                            store(&mut block.scales[0], at, f16_to_f32(&scales[b]));
                            if F::Layout::MINIMA {
                                store(&mut block.minima[0], at, f16_to_f32(&minima[b]));
                            }
                        }
                    }
                    if F::LEN == 256 {
                        let (scale, minimum) =
                            (f16_to_f32(&scales[0]), negate(f16_to_f32(&minima[0])));
                        for h in 0..F::Layout::SCALES {
                            let mut words = [zero_words(); LANES];
                            for r in 0..LANES {
                                words[r] = widen_i8(&rows[r].scales.as_chunks().0[h]);
                            }
                            let factors = transpose_words(words);
                            for (factor, block) in factors.iter().zip(&mut *blocks) {
                                store(&mut block.scales[h], at, mul(to_floats(*factor), scale));
                            }
                            if F::Layout::MINIMA {
                                for r in 0..LANES {
                                    words[r] = widen_i8(&rows[r].minima.as_chunks().0[h]);
                                }
                                let factors = transpose_words(words);
                                for (factor, block) in factors.iter().zip(&mut *blocks) {
                                    store(
                                        &mut block.minima[h],
                                        at,
                                        mul(to_floats(*factor), minimum),
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}
pub(super) use int_gemm_kernel;

/// Byte operations for instruction sets whose `dot` multiplies unsigned with signed bytes and adds
/// four products to a sum: the codes of weights are raised by 128.
macro_rules! vnni_products {
    ($features:literal) => {
        const BIASED: bool = true;

        #[inline]
        #[target_feature(enable = $features)]
        fn add_products<S: QuantLayout, const T: usize>(
            block: &PackedBlock,
            first: usize,
            x: &[SuperBlock; T],
            b: usize,
            h: usize,
            products: &mut [[Integers; ROW_REGISTERS]; T],
        ) {
            let steps = 8 / S::SCALES;
            for k in h * steps..(h + 1) * steps {
                let mut columns = [zero(); ROW_REGISTERS];
                for v in 0..ROW_REGISTERS {
                    columns[v] = load_codes(&block.codes[k], first + v * LANES);
                }
                for t in 0..T {
                    let four = broadcast_integer(four_codes(x[t].codes[b].as_chunks().0[k]));
                    for v in 0..ROW_REGISTERS {
                        products[t][v] = dot(products[t][v], columns[v], four);
                    }
                }
            }
        }
    };
}
pub(super) use vnni_products;

#[inline(always)]
pub(super) fn four_codes(codes: [i8; 4]) -> i32 {
    i32::from_le_bytes(codes.map(i8::cast_unsigned))
}
