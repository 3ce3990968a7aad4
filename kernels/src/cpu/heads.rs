//! The inner kernels of attention for wide registers.

/// What a decoding step of attention does with the keys and the values of one head.
macro_rules! attention_kernels {
    ($features:literal, $vector:ty) => {
        /// `scores[p] = scale * q · keys[p]`, four positions at a time.
        #[target_feature(enable = $features)]
        fn scores(q: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
            let size = q.len();
            let (q, q_rest) = q.as_chunks::<LANES>();
            let last = scores.len().saturating_sub(1);
            for (g, scores) in scores.chunks_mut(4).enumerate() {
                // Past the end the last key stands in.
                let [a, b, c, d] = [
                    &keys[(g * 4).min(last) * size..][..size],
                    &keys[(g * 4 + 1).min(last) * size..][..size],
                    &keys[(g * 4 + 2).min(last) * size..][..size],
                    &keys[(g * 4 + 3).min(last) * size..][..size],
                ];
                let (a, a_rest) = a.as_chunks::<LANES>();
                let (b, b_rest) = b.as_chunks::<LANES>();
                let (c, c_rest) = c.as_chunks::<LANES>();
                let (d, d_rest) = d.as_chunks::<LANES>();
                let mut sums = [zero(); 4];
                for i in 0..q.len().min(a.len()).min(b.len()).min(c.len()).min(d.len()) {
                    let q = load(&q[i]);
                    sums[0] = fma(q, load(&a[i]), sums[0]);
                    sums[1] = fma(q, load(&b[i]), sums[1]);
                    sums[2] = fma(q, load(&c[i]), sums[2]);
                    sums[3] = fma(q, load(&d[i]), sums[3]);
                }
                if !q_rest.is_empty() {
                    let q = load_first(q_rest);
                    sums[0] = fma(q, load_first(a_rest), sums[0]);
                    sums[1] = fma(q, load_first(b_rest), sums[1]);
                    sums[2] = fma(q, load_first(c_rest), sums[2]);
                    sums[3] = fma(q, load_first(d_rest), sums[3]);
                }
                let sums = sums_of_four(sums);
                for (score, sum) in scores.iter_mut().zip(sums) {
                    *score = sum * scale;
                }
            }
        }

        /// `out += Σ weights[p] values[p]`.
        #[target_feature(enable = $features)]
        fn weighted_sum(weights: &[f32], values: &[f32], out: &mut [f32]) {
            let size = out.len();
            let mut at = 0;
            while at + 4 * LANES <= size {
                columns::<4, 2>(weights, &values[at..], size, &mut out[at..]);
                at += 4 * LANES;
            }
            while at + 2 * LANES <= size {
                columns::<2, 4>(weights, &values[at..], size, &mut out[at..]);
                at += 2 * LANES;
            }
            while at + LANES <= size {
                columns::<1, 8>(weights, &values[at..], size, &mut out[at..]);
                at += LANES;
            }
            if at < size {
                let mut sums = [zero(); 4];
                for (p, weight) in weights.iter().enumerate() {
                    let value = load_first(&values[p * size + at..(p + 1) * size]);
                    sums[p % 4] = fma(broadcast(*weight), value, sums[p % 4]);
                }
                let sums = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
                let mut numbers = [0.0; LANES];
                store(&mut numbers, sums);
                for (out, number) in out[at..].iter_mut().zip(numbers) {
                    *out += number;
                }
            }
        }

        /// [`weighted_sum`] of the first `C` registers of each value, over `P` positions side by
        /// side; values lie `stride` apart.
        #[inline]
        #[target_feature(enable = $features)]
        fn columns<const C: usize, const P: usize>(
            weights: &[f32],
            values: &[f32],
            stride: usize,
            out: &mut [f32],
        ) {
            let mut sums = [[zero(); C]; P];
            let (groups, rest) = weights.as_chunks::<P>();
            for (g, weights) in groups.iter().enumerate() {
                for p in 0..P {
                    let value = &values[(g * P + p) * stride..][..C * LANES];
                    for c in 0..C {
                        let value = load(&value.as_chunks::<LANES>().0[c]);
                        sums[p][c] = fma(broadcast(weights[p]), value, sums[p][c]);
                    }
                }
            }
            for (p, weight) in rest.iter().enumerate() {
                let value = &values[(groups.len() * P + p) * stride..][..C * LANES];
                for c in 0..C {
                    let value = load(&value.as_chunks::<LANES>().0[c]);
                    sums[p][c] = fma(broadcast(*weight), value, sums[p][c]);
                }
            }
            for c in 0..C {
                let out = &mut out.as_chunks_mut::<LANES>().0[c];
                let mut total = load(out);
                for p in 0..P {
                    total = add(total, sums[p][c]);
                }
                store(out, total);
            }
        }
    };
}
pub(super) use attention_kernels;
