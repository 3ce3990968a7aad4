//! What the versions of all instruction sets have in common.

use std::arch::x86_64::*;

use super::super::activations::Strip;
use super::formats::Shape;

/// What is taken off sums of products where `offset` was added to the weights' codes, and the sums
/// of the vectors' numbers. Either is per block or per half of one, where [`place`] says.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn sums_of_codes<S: Shape, const T: usize>(
    x: &[Strip; T],
    offset: i32,
) -> ([[[i32; 8]; 2]; T], [[[f32; 8]; 2]; T]) {
    let mut taken_off = [[[0; 8]; 2]; T];
    let mut sums = [[[0.0; 8]; 2]; T];
    for t in 0..T {
        for i in 0..S::SCALES {
            let codes = if S::SCALES == 1 { &x[t].sums } else { &x[t].half_sums[i] };
            // SAFETY: the array has the bytes that are read.
            let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
            let product = _mm256_mullo_epi32(codes, _mm256_set1_epi32(-offset));
            // SAFETY: the array has the bytes that are written.
            unsafe { _mm256_storeu_si256(taken_off[t][i].as_mut_ptr().cast(), product) };
            if S::MINIMA {
                let scales = &x[t].scales;
                // SAFETY: the array has the bytes that are read, from its half in the second case.
                let scales = unsafe {
                    if S::SCALES == 1 {
                        _mm256_loadu_ps(scales.as_ptr())
                    } else {
                        _mm256_broadcast_ps(&_mm_loadu_ps(scales.as_chunks::<4>().0[i].as_ptr()))
                    }
                };
                let product = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), scales);
                // SAFETY: the array has the bytes that are written.
                unsafe { _mm256_storeu_ps(sums[t][i].as_mut_ptr(), product) };
            }
        }
    }
    (taken_off, sums)
}

/// Where the sums of half `h` of block `b` are, as a [`Strip`] has them.
#[inline(always)]
pub(super) fn place<S: Shape>(b: usize, h: usize) -> usize {
    if S::SCALES == 1 { b } else { b / 4 * 8 + 4 * h + b % 4 }
}

/// The product, from an instruction set's operations on registers of `LANES` rows: `VECTORS` of
/// them are multiplied with up to `TILE` vectors at a time.
macro_rules! tiles {
    ($features:literal) => {
        /// The product for every format.
        ///
        /// # Safety
        /// The processor must have the instructions.
        unsafe fn multiply(
            w: Matrix<'_>,
            x: &[Strip],
            stride: usize,
            y: &mut Target<'_>,
            panel: &mut Panel,
        ) {
            // SAFETY: the caller's.
            unsafe {
                match w.dtype() {
                    DType::Q8_0 => product::<Q8_0>(w, x, stride, y, panel),
                    DType::Q4_0 => product::<Q4_0>(w, x, stride, y, panel),
                    DType::Q4_1 => product::<Q4_1>(w, x, stride, y, panel),
                    DType::Q5_0 => product::<Q5_0>(w, x, stride, y, panel),
                    DType::Q5_1 => product::<Q5_1>(w, x, stride, y, panel),
                    DType::Q2K => product::<Q2K>(w, x, stride, y, panel),
                    DType::Q3K => product::<Q3K>(w, x, stride, y, panel),
                    DType::Q4K => product::<Q4K>(w, x, stride, y, panel),
                    DType::Q5K => product::<Q5K>(w, x, stride, y, panel),
                    DType::Q6K => product::<Q6K>(w, x, stride, y, panel),
                    DType::IQ4NL => product::<Iq4Nl>(w, x, stride, y, panel),
                    DType::IQ4XS => product::<Iq4Xs>(w, x, stride, y, panel),
                    // `takes` names the types above.
                    _ => {}
                }
            }
        }

        #[target_feature(enable = $features)]
        fn product<F: Format>(
            w: Matrix<'_>,
            x: &[Strip],
            stride: usize,
            y: &mut Target<'_>,
            panel: &mut Panel,
        ) {
            let (n, cols) = (y.rows(), w.cols());
            let panels = w.rows().div_ceil(ROWS);
            if panel.sums.len() < panels * n {
                panel.sums.resize(panels * n, Sums([0.0; ROWS]));
            }
            if cols == 0 {
                (0..n).for_each(|t| y.row_mut(t).fill(0.0));
            }
            // The vectors' part of a range of columns stays in the second-level cache for all rows.
            for start in (0..cols).step_by(STRIPS * STRIP) {
                let count = cols.min(start + STRIPS * STRIP) - start;
                let x = &x[start / STRIP * stride..];
                let last = start + count == cols;
                for p in 0..panels {
                    let first = p * ROWS;
                    fill::<F>(w, first, start, count, panel);
                    let blocks = &panel.blocks[..count / 32];
                    let sums = &mut panel.sums[p * n..(p + 1) * n];
                    let mut ahead = Ahead::new::<F>(w, first, start, n.div_ceil(TILE));
                    for (i, sums) in sums.chunks_mut(TILE).enumerate() {
                        ahead.fetch();
                        let t = i * TILE;
                        if last {
                            for t in t + TILE..n.min(t + 2 * TILE) {
                                prefetch_to_write(&y.row_mut(t)[first..]);
                            }
                        }
                        tile::<F>(blocks, &x[t..], stride, sums, start > 0);
                        if last {
                            for (i, sums) in sums.iter().enumerate() {
                                let y = &mut y.row_mut(t + i)[first..];
                                match y.first_chunk_mut::<ROWS>() {
                                    Some(y) => *y = sums.0,
                                    None => y.copy_from_slice(&sums.0[..y.len()]),
                                }
                            }
                        }
                    }
                }
            }
        }

        /// The products of a panel's rows and as many vectors as there are `sums`, at most `TILE`;
        /// added to the sums or in their place.
        #[target_feature(enable = $features)]
        fn tile<F: Format>(
            blocks: &[Block],
            x: &[Strip],
            stride: usize,
            sums: &mut [Sums],
            add: bool,
        ) {
            let offset = if BIASED { 128 } else { i32::from(F::CENTRE) };
            for first in (0..ROWS).step_by(VECTORS * LANES) {
                let mut t = 0;
                while t < sums.len() {
                    let (x, sums) = (&x[t..], &mut sums[t..]);
                    t += if let Some(sums) = sums.first_chunk_mut() {
                        products::<F::Shape, TILE>(blocks, first, x, stride, offset, sums, add)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        products::<F::Shape, MIDDLE>(blocks, first, x, stride, offset, sums, add)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        products::<F::Shape, 2>(blocks, first, x, stride, offset, sums, add)
                    } else if let Some(sums) = sums.first_chunk_mut() {
                        products::<F::Shape, 1>(blocks, first, x, stride, offset, sums, add)
                    } else {
                        1
                    };
                }
            }
        }

        /// [`tile`] for `T` vectors and the rows that are multiplied together, from `first` on;
        /// `T` again. `offset` is what lies between a code and what it stands for.
        #[target_feature(enable = $features)]
        fn products<S: Shape, const T: usize>(
            blocks: &[Block],
            first: usize,
            x: &[Strip],
            stride: usize,
            offset: i32,
            totals: &mut [Sums; T],
            add: bool,
        ) -> usize {
            // As it is anyway: now the compiler knows that no access leaves the panel.
            let first = first.min(ROWS - VECTORS * LANES);
            let mut sums = [[broadcast(0.0); VECTORS]; T];
            if add {
                for t in 0..T {
                    for v in 0..VECTORS {
                        sums[t][v] = load(&totals[t].0, first + v * LANES);
                    }
                }
            }
            for (s, blocks) in blocks.chunks(BLOCKS).enumerate() {
                let x = &x[s * stride..].as_chunks::<T>().0[0];
                let (taken_off, sums_of_numbers) = sums_of_codes::<S, T>(x, offset);
                for (b, block) in blocks.iter().enumerate() {
                    // The same place in the vectors that come next.
                    for strip in x {
                        let next = (&raw const *strip).wrapping_add(T).cast::<u8>();
                        prefetch(next.wrapping_add(64 * b));
                    }
                    for h in 0..S::SCALES {
                        let place = place::<S>(b, h);
                        let mut products = [[zero(); VECTORS]; T];
                        for t in 0..T {
                            products[t] = [broadcast_integer(taken_off[t].as_flattened()[place]); VECTORS];
                        }
                        add_products::<S, T>(block, first, x, b, h, &mut products);
                        for t in 0..T {
                            let scale = broadcast(x[t].scales[b]);
                            for v in 0..VECTORS {
                                let at = first + v * LANES;
                                let product = mul(to_floats(products[t][v]), load(&block.scales[h], at));
                                sums[t][v] = fma(product, scale, sums[t][v]);
                                if S::MINIMA {
                                    let sum = broadcast(sums_of_numbers[t].as_flattened()[place]);
                                    sums[t][v] = fma(load(&block.minima[h], at), sum, sums[t][v]);
                                }
                            }
                        }
                    }
                }
            }
            for t in 0..T {
                for v in 0..VECTORS {
                    store(&mut totals[t].0, first + v * LANES, sums[t][v]);
                }
            }
            T
        }

        /// Brings `count` columns from `start` on of the rows from `first` on into a panel.
        #[target_feature(enable = $features)]
        fn fill<F: Format>(
            w: Matrix<'_>,
            first: usize,
            start: usize,
            count: usize,
            panel: &mut Panel,
        ) {
            let bytes = |cols: usize| cols / F::LEN * F::BYTES;
            let bias = if BIASED { 128 - F::CENTRE } else { 0 };
            for (s, blocks) in panel.blocks.chunks_mut(BLOCKS).enumerate() {
                let from = start + s * STRIP;
                let to = (start + count).min(from + STRIP);
                if from >= to {
                    break;
                }
                let blocks = &mut blocks[..(to - from) / 32];
                for at in (0..ROWS).step_by(LANES) {
                    let mut scales = [[[0; 2]; LANES]; BLOCKS];
                    let mut minima = [[[0; 2]; LANES]; BLOCKS];
                    // Rows that there are not keep what was there before, and are not looked at.
                    for r in 0..LANES.min(w.rows().saturating_sub(first + at)) {
                        let row = &w.row(first + at + r)[bytes(from)..bytes(to)];
                        for (b, block) in row.chunks_exact(F::BYTES).take(BLOCKS).enumerate() {
                            scales[b][r] = *part(block, F::SCALE);
                            if F::Shape::MINIMA {
                                minima[b][r] = *part(block, F::MINIMUM);
                            }
                        }
                        F::unpack(row, &mut panel.rows[r]);
                    }
                    let rows = &panel.rows[..LANES];
                    for (b, block) in blocks.iter_mut().enumerate() {
                        let mut words = [no_words(); LANES];
                        for r in 0..LANES {
                            words[r] = load_words(&rows[r].codes.as_chunks().0[b]);
                        }
                        let columns = transposed(words);
                        for k in 0..8 {
                            let codes = match F::LEVELS {
                                Some(levels) => look_up(&levels, columns[k]),
                                None => columns[k],
                            };
                            store_codes(&mut block.codes[k], at, add_bytes(codes, bias));
                        }
                        if F::LEN == 32 {
                            store(&mut block.scales[0], at, widen(&scales[b]));
                            if F::Shape::MINIMA {
                                store(&mut block.minima[0], at, widen(&minima[b]));
                            }
                        }
                    }
                    if F::LEN == 256 {
                        let (scale, minimum) = (widen(&scales[0]), negated(widen(&minima[0])));
                        for h in 0..F::Shape::SCALES {
                            let mut words = [no_words(); LANES];
                            for r in 0..LANES {
                                words[r] = sign_extended(&rows[r].scales.as_chunks().0[h]);
                            }
                            let factors = transposed(words);
                            for (factor, block) in factors.iter().zip(&mut *blocks) {
                                store(&mut block.scales[h], at, mul(to_floats(*factor), scale));
                            }
                            if F::Shape::MINIMA {
                                for r in 0..LANES {
                                    words[r] = sign_extended(&rows[r].minima.as_chunks().0[h]);
                                }
                                let factors = transposed(words);
                                for (factor, block) in factors.iter().zip(&mut *blocks) {
                                    store(&mut block.minima[h], at, mul(to_floats(*factor), minimum));
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}
pub(super) use tiles;

/// The operations on bytes of an instruction set whose `dot` multiplies unsigned with signed bytes
/// and adds four products to a sum: the codes of weights lie 128 above what they stand for.
macro_rules! vnni {
    ($features:literal) => {
        const BIASED: bool = true;

        /// Adds the products of half `h` of block `b`, or all of it where it has one scale.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_products<S: Shape, const T: usize>(
            block: &Block,
            first: usize,
            x: &[Strip; T],
            b: usize,
            h: usize,
            products: &mut [[Integers; VECTORS]; T],
        ) {
            let steps = 8 / S::SCALES;
            for k in h * steps..(h + 1) * steps {
                let mut columns = [zero(); VECTORS];
                for v in 0..VECTORS {
                    columns[v] = load_codes(&block.codes[k], first + v * LANES);
                }
                for t in 0..T {
                    let four = broadcast_integer(four(x[t].codes[b].as_chunks().0[k]));
                    for v in 0..VECTORS {
                        products[t][v] = dot(products[t][v], columns[v], four);
                    }
                }
            }
        }
    };
}
pub(super) use vnni;

/// Four codes as a word.
#[inline(always)]
pub(super) fn four(codes: [i8; 4]) -> i32 {
    i32::from_le_bytes(codes.map(i8::cast_unsigned))
}
