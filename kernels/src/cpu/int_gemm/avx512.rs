//! The version for x86-64 with AVX-512 VNNI.
//!
//! `vpdpbusd` multiplies unsigned with signed bytes, so that 128 is added to every code of a
//! weight, and 128 times the sum of the vector's codes is taken off.

use std::arch::x86_64::*;

use htc_formats::DType;

use super::super::activations::Strip;
use super::super::blocks::prefetch;
use super::super::gemm::Target;
use super::formats::{Format, Q4_0, Q4K, Q5K, Q6K, Q8_0, Row, STRIP};
use super::panel::{BLOCKS, Block, LANES, Panel, STRIPS, Sums, VECTORS};
use super::{ROWS, Tiles};
use crate::matrix::Matrix;

/// Vectors multiplied together: as many as there are registers for their sums.
const TILE: usize = 6;

/// Where the processor has the instructions.
pub(super) fn tiles() -> Option<&'static Tiles> {
    (is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni"))
    .then_some(&TILES)
}

/// Private, so that [`tiles`] is the only way to the functions below.
static TILES: Tiles = Tiles {
    name: "avx512-vnni",
    multiply: |w, x, n, y, panel| {
        // SAFETY: see `TILES`: the processor has been asked.
        unsafe {
            match w.dtype() {
                DType::Q8_0 => multiply::<Q8_0>(w, x, n, y, panel),
                DType::Q4_0 => multiply::<Q4_0>(w, x, n, y, panel),
                DType::Q4K => multiply::<Q4K>(w, x, n, y, panel),
                DType::Q5K => multiply::<Q5K>(w, x, n, y, panel),
                DType::Q6K => multiply::<Q6K>(w, x, n, y, panel),
                // `takes` names the types above.
                _ => {}
            }
        }
    },
};

/// Asks for the weights that come next while those at hand are multiplied.
struct Ahead<'a> {
    w: Matrix<'a>,
    /// The first of the rows, and where in them.
    row: usize,
    byte: usize,
    /// Lines of a row, and of all that have been and are to be asked for.
    row_lines: usize,
    done: usize,
    lines: usize,
    /// Lines asked for at a time.
    step: usize,
}

impl<'a> Ahead<'a> {
    /// What follows the columns before `end` of the rows from `row` on, in so many steps.
    fn new<F: Format>(w: Matrix<'a>, row: usize, end: usize, steps: usize) -> Self {
        let (row, start) = if end < w.cols() { (row, end) } else { (row + ROWS, 0) };
        let count = w.cols().min(start + STRIPS * STRIP) - start;
        let row_lines = (count / F::LEN * F::BYTES).div_ceil(64) + 1;
        let lines = ROWS.min(w.rows().saturating_sub(row)) * row_lines;
        Ahead {
            w,
            row,
            byte: start / F::LEN * F::BYTES,
            row_lines,
            done: 0,
            lines,
            step: lines.div_ceil(steps.max(1)),
        }
    }

    #[inline(always)]
    fn fetch(&mut self) {
        let end = self.lines.min(self.done + self.step);
        for line in self.done..end {
            let row = self.w.row(self.row + line / self.row_lines);
            let byte = self.byte + line % self.row_lines * 64;
            prefetch(row.as_ptr().wrapping_add(byte));
        }
        self.done = end;
    }
}

macro_rules! avx512 {
    ($($item:item)*) => {
        $(
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
            $item
        )*
    };
}

avx512! {
    fn load(x: &[f32; LANES]) -> __m512 {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    fn load_bytes(x: &[u8; 4 * LANES]) -> __m512i {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    fn load_256(x: &[u8; 32]) -> __m256i {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    fn load_sums(x: &[i32; 8]) -> __m256i {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
    }

    fn store_sums(out: &mut [i32; 8], x: __m256i) {
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), x) }
    }

    fn store_bytes(out: &mut [u8; 4 * LANES], x: __m512i) {
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
    }

    fn store(out: &mut [f32; LANES], x: __m512) {
        // SAFETY: the array has the bytes that are written.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    /// Asks for the lines of a row of results, to write them.
    fn prefetch_to_write(y: &mut [f32]) {
        for part in y.chunks_mut(LANES).take(VECTORS) {
            _mm_prefetch::<_MM_HINT_ET0>(part.as_ptr().cast());
        }
    }

    /// The results of one vector, as many as there is room for.
    fn store_row(y: &mut [f32], sums: &Sums) {
        if let Some(y) = y.first_chunk_mut::<ROWS>() {
            let parts = y.as_chunks_mut::<LANES>().0;
            for v in 0..VECTORS {
                store(&mut parts[v], load(&sums.0[v]));
            }
        } else {
            let len = y.len();
            y.copy_from_slice(&sums.0.as_flattened()[..len]);
        }
    }

    /// `y [n, rows] = x Wᵀ`.
    fn multiply<F: Format>(
        w: Matrix<'_>,
        x: &[Strip],
        stride: usize,
        y: &mut Target<'_>,
        panel: &mut Panel,
    ) {
        let n = y.rows();
        let cols = w.cols();
        if panel.sums.len() < n {
            panel.sums.resize(n, Sums::ZERO);
        }
        if cols == 0 {
            (0..n).for_each(|t| y.row_mut(t).fill(0.0));
        }
        for first in (0..w.rows()).step_by(ROWS) {
            for start in (0..cols).step_by(STRIPS * STRIP) {
                let count = cols.min(start + STRIPS * STRIP) - start;
                fill::<F>(w, first, start, count, panel);
                let mut ahead = Ahead::new::<F>(w, first, start + count, n.div_ceil(TILE));
                let blocks = &panel.blocks[..count / 32];
                let x = &x[start / STRIP * stride..];
                let (add, last) = (start > 0, start + count == cols);
                for t in (0..n).step_by(TILE) {
                    ahead.fetch();
                    let sums = &mut panel.sums[t..n.min(t + TILE)];
                    let x = &x[t..];
                    if last {
                        for t in t + TILE..n.min(t + 2 * TILE) {
                            prefetch_to_write(&mut y.row_mut(t)[first..]);
                        }
                    }
                    match sums.len() {
                        1 => tile::<F, 1>(blocks, x, stride, sums, add),
                        2 => tile::<F, 2>(blocks, x, stride, sums, add),
                        3 => tile::<F, 3>(blocks, x, stride, sums, add),
                        4 => tile::<F, 4>(blocks, x, stride, sums, add),
                        5 => tile::<F, 5>(blocks, x, stride, sums, add),
                        _ => tile::<F, TILE>(blocks, x, stride, sums, add),
                    }
                    if last {
                        for (i, sums) in sums.iter().enumerate() {
                            store_row(&mut y.row_mut(t + i)[first..], sums);
                        }
                    }
                }
            }
        }
    }

    /// The products of the rows of `weights` and `T` vectors, added to `sums` or in their place.
    #[inline(never)]
    fn tile<F: Format, const T: usize>(
        weights: &[Block],
        x: &[Strip],
        stride: usize,
        totals: &mut [Sums],
        add: bool,
    ) {
        let totals = &mut totals.as_chunks_mut::<T>().0[0];
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; T];
        if add {
            for t in 0..T {
                for v in 0..VECTORS {
                    sums[t][v] = load(&totals[t].0[v]);
                }
            }
        }
        for (s, weights) in weights.chunks(BLOCKS).enumerate() {
            let x = &x[s * stride..].as_chunks::<T>().0[0];
            let (taken_off, scaled) = sums_of_codes::<F, T>(x);
            for (b, w) in weights.iter().enumerate() {
                // The same place in the vectors that come next.
                for strip in x {
                    let next = (&raw const *strip).wrapping_add(T).cast::<u8>();
                    prefetch(next.wrapping_add(64 * b.min(5)));
                }
                for h in 0..F::SCALES {
                    let place = if F::SCALES == 1 { b } else { b / 4 * 8 + 4 * h + b % 4 };
                    let mut products = [[_mm512_setzero_si512(); VECTORS]; T];
                    for t in 0..T {
                        products[t] = [_mm512_set1_epi32(taken_off[t][place]); VECTORS];
                    }
                    for k in h * 8 / F::SCALES..(h + 1) * 8 / F::SCALES {
                        let mut columns = [_mm512_setzero_si512(); VECTORS];
                        for v in 0..VECTORS {
                            columns[v] = load_bytes(&w.codes[k][v]);
                        }
                        for t in 0..T {
                            let four = x[t].codes[b].as_chunks::<4>().0[k];
                            let four = four.map(i8::cast_unsigned);
                            let four = _mm512_set1_epi32(i32::from_le_bytes(four));
                            for v in 0..VECTORS {
                                products[t][v] =
                                    _mm512_dpbusd_epi32(products[t][v], columns[v], four);
                            }
                        }
                    }
                    for t in 0..T {
                        let scale = _mm512_set1_ps(x[t].scales[b]);
                        for v in 0..VECTORS {
                            let product = _mm512_cvtepi32_ps(products[t][v]);
                            let product = _mm512_mul_ps(product, load(&w.scales[h][v]));
                            sums[t][v] = _mm512_fmadd_ps(product, scale, sums[t][v]);
                            if F::MINIMA {
                                let sum = _mm512_set1_ps(scaled[t][place]);
                                sums[t][v] = _mm512_fnmadd_ps(load(&w.minima[h][v]), sum, sums[t][v]);
                            }
                        }
                    }
                }
            }
        }
        for t in 0..T {
            for v in 0..VECTORS {
                store(&mut totals[t].0[v], sums[t][v]);
            }
        }
    }

    /// What is taken off the sums of products for the 128 that were added to the weights, and the
    /// sums of the vectors' numbers; either per block or per half of one, as the strip has them.
    fn sums_of_codes<F: Format, const T: usize>(x: &[Strip; T]) -> ([[i32; 16]; T], [[f32; 16]; T]) {
        let mut taken_off = [[0; 16]; T];
        let mut scaled = [[0.0; 16]; T];
        for t in 0..T {
            let parts = taken_off[t].as_chunks_mut::<8>().0;
            for i in 0..F::SCALES {
                let sums = load_sums(if F::SCALES == 1 { &x[t].sums } else { &x[t].half_sums[i] });
                let zero = _mm256_setzero_si256();
                store_sums(&mut parts[i], _mm256_sub_epi32(zero, _mm256_slli_epi32::<7>(sums)));
            }
            if F::MINIMA {
                for b in 0..8 {
                    if F::SCALES == 1 {
                        scaled[t][b] = x[t].scales[b] * x[t].sums[b] as f32;
                    } else {
                        for h in 0..2 {
                            let place = b / 4 * 8 + 4 * h + b % 4;
                            let sum = x[t].half_sums[b / 4][4 * h + b % 4];
                            scaled[t][place] = x[t].scales[b] * sum as f32;
                        }
                    }
                }
            }
        }
        (taken_off, scaled)
    }

    #[inline(never)]
    /// Brings `count` columns from `start` on into the order of a panel.
    fn fill<F: Format>(w: Matrix<'_>, first: usize, start: usize, count: usize, panel: &mut Panel) {
        let bytes = |cols: usize| cols / F::LEN * F::BYTES;
        let bias = _mm512_set1_epi8((128 - F::CENTRE).cast_signed());
        for (s, blocks) in panel.blocks.chunks_mut(BLOCKS).enumerate() {
            let from = start + s * STRIP;
            let to = (start + count).min(from + STRIP);
            if from >= to {
                break;
            }
            for v in 0..VECTORS {
                for r in 0..LANES.min(w.rows().saturating_sub(first + v * LANES)) {
                    let row = &w.row(first + v * LANES + r)[bytes(from)..bytes(to)];
                    F::unpack(row, &mut panel.rows[r]);
                }
                for b in 0..(to - from) / 32 {
                    let codes = transposed(&panel.rows, |row| part_of(&row.codes, b));
                    for k in 0..8 {
                        let biased = _mm512_add_epi8(codes[k], bias);
                        store_bytes(&mut blocks[b].codes[k][v], biased);
                    }
                }
                for h in 0..F::SCALES {
                    let scales = transposed(&panel.rows, |row| floats(&row.scales, h));
                    for b in 0..8 {
                        store(&mut blocks[b].scales[h][v], _mm512_castsi512_ps(scales[b]));
                    }
                    if F::MINIMA {
                        let minima = transposed(&panel.rows, |row| floats(&row.minima, h));
                        for b in 0..8 {
                            store(&mut blocks[b].minima[h][v], _mm512_castsi512_ps(minima[b]));
                        }
                    }
                }
            }
        }
    }

    fn part_of(codes: &[u8; STRIP], b: usize) -> __m256i {
        load_256(&codes.as_chunks::<32>().0[b])
    }

    fn floats(numbers: &[f32; 16], h: usize) -> __m256i {
        // SAFETY: the array has the bytes that are read.
        unsafe { _mm256_loadu_si256(numbers.as_chunks::<8>().0[h].as_ptr().cast()) }
    }

    /// Eight words of sixteen rows each, as sixteen rows of eight words each.
    fn transposed(rows: &[Row; LANES], words: impl Fn(&Row) -> __m256i) -> [__m512i; 8] {
        let mut quarters = [[_mm512_setzero_si512(); 4]; 2];
        for half in 0..2 {
            let mut pairs = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                let low = _mm512_castsi256_si512(words(&rows[8 * half + i]));
                pairs[i] = _mm512_inserti64x4::<1>(low, words(&rows[8 * half + 4 + i]));
            }
            // In every 128 bits a matrix of 4 by 4 words.
            let a = _mm512_unpacklo_epi32(pairs[0], pairs[1]);
            let b = _mm512_unpackhi_epi32(pairs[0], pairs[1]);
            let c = _mm512_unpacklo_epi32(pairs[2], pairs[3]);
            let d = _mm512_unpackhi_epi32(pairs[2], pairs[3]);
            quarters[half] = [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(b, d),
            ];
        }
        let mut out = [_mm512_setzero_si512(); 8];
        for k in 0..4 {
            let (a, b) = (quarters[0][k], quarters[1][k]);
            out[k] = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
            out[4 + k] = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        }
        out
    }
}
