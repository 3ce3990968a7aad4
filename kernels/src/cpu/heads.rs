//! Inner kernels of attention: products with f16 keys and values.

/// Attention kernels of one instruction set. Keys and values are the bits of f16 numbers; a kernel
/// runs on one thread, over shapes its caller has checked.
pub(crate) struct AttentionKernels {
    /// Numbers in a register.
    pub lanes: usize,
    /// Converts f16 to `f32`, exactly; the lengths are equal.
    pub f16_to_f32: fn(&[u16], &mut [f32]),
    /// Converts `f32` to f16, to nearest with ties to even; overflow gives infinity.
    pub f32_to_f16: fn(&[f32], &mut [u16]),
    /// Computes `scores[h, p] = scale * q[h] · keys[p]`: `q [heads, size]`, `keys [positions,
    /// size]`, the size, the scale, `scores [heads, positions]`.
    pub scores: fn(&[f32], &[u16], usize, f32, &mut [f32]),
    /// Computes `out[h] += Σ weights[h, p] values[p]`: `weights [heads, positions]`, `values
    /// [positions, size]`, the size, `out [heads, size]`.
    pub weighted_sum: fn(&[f32], &[u16], usize, &mut [f32]),
    /// Same as `scores` for keys decoded to `f32`.
    pub scores_f32: fn(&[f32], &[f32], usize, f32, &mut [f32]),
    /// Same as `weighted_sum` for values decoded to `f32`.
    pub weighted_sum_f32: fn(&[f32], &[f32], usize, &mut [f32]),
    /// Multiplies with a right side of short contiguous rows.
    pub gemm_columns: fn(ColumnOperands<'_>, &mut [f32]),
}

/// Operands of `c [rows, width] = keep * c + A b`, or `A b` without `keep`.
#[derive(Clone, Copy)]
pub(crate) struct ColumnOperands<'a> {
    /// `A [rows, depth]`; element `(i, k)` at `i * strides[0] + k * strides[1]`.
    pub a: &'a [f32],
    pub strides: [usize; 2],
    pub rows: usize,
    /// `[depth, width]`.
    pub b: &'a [f32],
    /// A multiple of [`AttentionKernels::lanes`].
    pub width: usize,
    /// `[width]`, one factor per column.
    pub keep: Option<&'a [f32]>,
}

/// Defines the single-query kernels of [`AttentionKernels`] for one type of keys and values in a
/// module; `$load` and `$load_first` read a register of them.
macro_rules! decode_kernels {
    ($module:ident, [$($attribute:tt)*], $vector:ty, $stored:ty, $load:ident, $load_first:ident) => {
        mod $module {
            use super::*;

            const HEADS_PER_PASS: usize = 4;

            #[$($attribute)*]
            pub(super) fn scores(q: &[f32], keys: &[$stored], size: usize, scale: f32, scores: &mut [f32]) {
                let count = keys.len() / size;
                let groups = q.chunks(HEADS_PER_PASS * size);
                for (q, scores) in groups.zip(scores.chunks_mut(HEADS_PER_PASS * count.max(1))) {
                    match q.len() / size {
                        1 => score_heads::<1>(q, keys, size, scale, scores),
                        2 => score_heads::<2>(q, keys, size, scale, scores),
                        3 => score_heads::<3>(q, keys, size, scale, scores),
                        _ => score_heads::<HEADS_PER_PASS>(q, keys, size, scale, scores),
                    }
                }
            }

            #[$($attribute)*]
            fn score_heads<const H: usize>(
                q: &[f32],
                keys: &[$stored],
                size: usize,
                scale: f32,
                scores: &mut [f32],
            ) {
                let count = keys.len() / size;
                let whole = size / LANES;
                let mut heads = [&[] as &[[f32; LANES]]; H];
                for h in 0..H {
                    heads[h] = &q[h * size..][..size].as_chunks::<LANES>().0[..whole];
                }
                for first in (0..count).step_by(4) {
                    let mut group = [&[] as &[$stored]; 4];
                    let mut parts = [&[] as &[[$stored; LANES]]; 4];
                    for p in 0..4 {
                        // Past the end the last key is repeated.
                        group[p] = &keys[(first + p).min(count - 1) * size..][..size];
                        parts[p] = &group[p].as_chunks::<LANES>().0[..whole];
                    }
                    let mut sums = [[zero(); 4]; H];
                    for i in 0..whole {
                        let mut key = [zero(); 4];
                        for p in 0..4 {
                            key[p] = $load(&parts[p][i]);
                        }
                        for h in 0..H {
                            let q = load(&heads[h][i]);
                            for p in 0..4 {
                                sums[h][p] = fma(q, key[p], sums[h][p]);
                            }
                        }
                    }
                    if whole * LANES < size {
                        for p in 0..4 {
                            let at = (first + p).min(count - 1) * size + whole * LANES;
                            let key = load_at(keys, at);
                            for h in 0..H {
                                let q = load_first(&q[h * size..][whole * LANES..size]);
                                sums[h][p] = fma(q, key, sums[h][p]);
                            }
                        }
                    }
                    for h in 0..H {
                        let sums = horizontal_sums(sums[h]);
                        let scores = &mut scores[h * count..][first..count];
                        for (score, sum) in scores.iter_mut().zip(sums) {
                            *score = sum * scale;
                        }
                    }
                }
            }

            #[$($attribute)*]
            pub(super) fn weighted_sum(weights: &[f32], values: &[$stored], size: usize, out: &mut [f32]) {
                let count = values.len() / size;
                let groups = weights.chunks(HEADS_PER_PASS * count.max(1));
                for (weights, out) in groups.zip(out.chunks_mut(HEADS_PER_PASS * size)) {
                    match out.len() / size {
                        1 => weighted_sum_heads::<1, 4, 2>(weights, values, size, out),
                        2 => weighted_sum_heads::<2, 4, 1>(weights, values, size, out),
                        3 => weighted_sum_heads::<3, VALUE_PARTS, 1>(weights, values, size, out),
                        _ => weighted_sum_heads::<HEADS_PER_PASS, VALUE_PARTS, 1>(weights, values, size, out),
                    }
                }
            }

            /// Loads a register of numbers from `at`, with zeros after the last. A row's end is
            /// followed by the beginning of the next row, whose numbers meet zeros or unused lanes.
            #[$($attribute)*]
            fn load_at(numbers: &[$stored], at: usize) -> $vector {
                match numbers[at..].first_chunk() {
                    Some(numbers) => $load(numbers),
                    None => $load_first(&numbers[at..]),
                }
            }

            #[$($attribute)*]
            fn weighted_sum_heads<const H: usize, const C: usize, const P: usize>(
                weights: &[f32],
                values: &[$stored],
                size: usize,
                out: &mut [f32],
            ) {
                let mut at = 0;
                while at + C * LANES <= size {
                    add_weighted_columns::<H, C, P>(weights, values, size, at, out);
                    at += C * LANES;
                }
                while at + LANES <= size {
                    add_weighted_columns::<H, 1, 2>(weights, values, size, at, out);
                    at += LANES;
                }
                if at < size {
                    let count = values.len() / size;
                    let mut sums = [zero(); H];
                    for p in 0..count {
                        let value = load_at(values, p * size + at);
                        for h in 0..H {
                            sums[h] = fma(broadcast(weights[h * count + p]), value, sums[h]);
                        }
                    }
                    for h in 0..H {
                        let mut numbers = [0.0; LANES];
                        store(&mut numbers, sums[h]);
                        for (out, number) in out[h * size..][at..size].iter_mut().zip(numbers) {
                            *out += number;
                        }
                    }
                }
            }

            #[$($attribute)*]
            fn add_weighted_columns<const H: usize, const C: usize, const P: usize>(
                weights: &[f32],
                values: &[$stored],
                size: usize,
                at: usize,
                out: &mut [f32],
            ) {
                let count = values.len() / size;
                let whole = count / P * P;
                let mut heads = [&[] as &[f32]; H];
                for h in 0..H {
                    heads[h] = &weights[h * count..][..count];
                }
                let mut sums = [[[zero(); C]; H]; P];
                for first in (0..whole).step_by(P) {
                    for p in 0..P {
                        let value = &values[(first + p) * size + at..][..C * LANES];
                        let value = value.as_chunks::<LANES>().0;
                        for c in 0..C {
                            let value = $load(&value[c]);
                            for h in 0..H {
                                let weight = broadcast(heads[h][first + p]);
                                sums[p][h][c] = fma(weight, value, sums[p][h][c]);
                            }
                        }
                    }
                }
                for p in whole..count {
                    let value = &values[p * size + at..][..C * LANES];
                    let value = value.as_chunks::<LANES>().0;
                    for c in 0..C {
                        let value = $load(&value[c]);
                        for h in 0..H {
                            sums[0][h][c] = fma(broadcast(heads[h][p]), value, sums[0][h][c]);
                        }
                    }
                }
                for h in 0..H {
                    let out = &mut out[h * size..][at..at + C * LANES];
                    for c in 0..C {
                        let out = &mut out.as_chunks_mut::<LANES>().0[c];
                        let mut total = load(out);
                        for p in 0..P {
                            total = add(total, sums[p][h][c]);
                        }
                        store(out, total);
                    }
                }
            }
        }
    };
}
pub(super) use decode_kernels;

/// Defines the kernels of [`AttentionKernels`] from the register operations of an instruction set:
/// `zero`, `add`, `mul`, `fma`, `broadcast`, `load`, `load_first`, `store`, `load_halves`,
/// `load_first_halves` and `horizontal_sums`.
///
/// The register tiles are `COLUMN_ROWS` rows by `REGISTERS` registers for
/// [`AttentionKernels::gemm_columns`], and `VALUE_PARTS` registers of a value for four heads.
macro_rules! attention_kernels {
    ([$($attribute:tt)*], $vector:ty) => {
        decode_kernels!(
            f16_heads, [$($attribute)*], $vector, u16, load_halves, load_first_halves
        );
        decode_kernels!(f32_heads, [$($attribute)*], $vector, f32, load, load_first);

        #[$($attribute)*]
        fn gemm_columns(operands: ColumnOperands<'_>, c: &mut [f32]) {
            let mut at = 0;
            while at + REGISTERS * LANES <= operands.width {
                gemm_column_panel::<REGISTERS>(operands, at, c);
                at += REGISTERS * LANES;
            }
            if REGISTERS > 2 && at + 2 * LANES <= operands.width {
                gemm_column_panel::<2>(operands, at, c);
                at += 2 * LANES;
            }
            while at + LANES <= operands.width {
                gemm_column_panel::<1>(operands, at, c);
                at += LANES;
            }
        }

        #[$($attribute)*]
        fn gemm_column_panel<const N: usize>(operands: ColumnOperands<'_>, at: usize, c: &mut [f32]) {
            let rows = operands.rows;
            let mut first = 0;
            while first + COLUMN_ROWS <= rows {
                gemm_micro_kernel::<COLUMN_ROWS, N>(operands, first, at, c);
                first += COLUMN_ROWS;
            }
            if first + 4 <= rows {
                gemm_micro_kernel::<4, N>(operands, first, at, c);
                first += 4;
            }
            while first < rows {
                gemm_micro_kernel::<1, N>(operands, first, at, c);
                first += 1;
            }
        }

        #[$($attribute)*]
        fn gemm_micro_kernel<const M: usize, const N: usize>(
            ColumnOperands { a, strides: [down, along], b, width, keep, .. }: ColumnOperands<'_>,
            first: usize,
            at: usize,
            c: &mut [f32],
        ) {
            let depth = b.len() / width;
            let columns = at..at + N * LANES;
            let mut sums = [[zero(); N]; M];
            if let Some(keep) = keep {
                let keep = keep[columns.clone()].as_chunks::<LANES>().0;
                for m in 0..M {
                    let c = c[(first + m) * width..][columns.clone()].as_chunks::<LANES>().0;
                    for n in 0..N {
                        sums[m][n] = mul(load(&c[n]), load(&keep[n]));
                    }
                }
            }
            if depth > 0 {
                let a = &a[first * down..];
                assert!((M - 1) * down + (depth - 1) * along < a.len());
                for k in 0..depth {
                    let b = b[k * width..][columns.clone()].as_chunks::<LANES>().0;
                    let mut x = [zero(); N];
                    for n in 0..N {
                        x[n] = load(&b[n]);
                    }
                    for m in 0..M {
                        // SAFETY: the index is at most the one that the assertion checks against
                        // the length.
                        let y = broadcast(unsafe { *a.get_unchecked(m * down + k * along) });
                        for n in 0..N {
                            sums[m][n] = fma(y, x[n], sums[m][n]);
                        }
                    }
                }
            }
            for m in 0..M {
                let c = c[(first + m) * width..][columns.clone()].as_chunks_mut::<LANES>().0;
                for n in 0..N {
                    store(&mut c[n], sums[m][n]);
                }
            }
        }

        #[$($attribute)*]
        fn f16_to_f32_slice(halves: &[u16], numbers: &mut [f32]) {
            let (halves, rest) = halves.as_chunks::<LANES>();
            let (numbers, numbers_rest) = numbers.as_chunks_mut::<LANES>();
            for (halves, numbers) in halves.iter().zip(numbers) {
                store(numbers, load_halves(halves));
            }
            let mut last = [0.0; LANES];
            store(&mut last, load_first_halves(rest));
            for (number, last) in numbers_rest.iter_mut().zip(last) {
                *number = last;
            }
        }

        #[$($attribute)*]
        fn f32_to_f16_slice(numbers: &[f32], halves: &mut [u16]) {
            let (numbers, rest) = numbers.as_chunks::<LANES>();
            let (halves, halves_rest) = halves.as_chunks_mut::<LANES>();
            for (numbers, halves) in numbers.iter().zip(halves) {
                store_halves(halves, load(numbers));
            }
            let mut last = [0; LANES];
            store_halves(&mut last, load_first(rest));
            for (half, last) in halves_rest.iter_mut().zip(last) {
                *half = last;
            }
        }

        #[$($attribute)*]
        fn load_first_halves(halves: &[u16]) -> $vector {
            let mut first = [0; LANES];
            for (first, half) in first.iter_mut().zip(halves) {
                *first = *half;
            }
            load_halves(&first)
        }
    };
}
pub(super) use attention_kernels;

/// Returns the table of the kernels that [`attention_kernels`] defines.
macro_rules! attention_table {
    () => {
        AttentionKernels {
            lanes: LANES,
            f16_to_f32: supported!(|halves, numbers| f16_to_f32_slice),
            f32_to_f16: supported!(|numbers, halves| f32_to_f16_slice),
            scores: supported!(|q, keys, size, scale, out| f16_heads::scores),
            weighted_sum: supported!(|weights, values, size, out| f16_heads::weighted_sum),
            scores_f32: supported!(|q, keys, size, scale, out| f32_heads::scores),
            weighted_sum_f32: supported!(|weights, values, size, out| f32_heads::weighted_sum),
            gemm_columns: supported!(|operands, c| gemm_columns),
        }
    };
}
pub(super) use attention_table;
