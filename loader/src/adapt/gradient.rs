//! Low-rank correction of the head's input, `h + B A h`, by gradient descent on the divergence from
//! the model.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Most likely tokens of draft and of model that a gradient considers, each.
pub(super) const LIKELIEST: usize = 32;

/// `A [rank, width]`, random, and `B [width, rank]`, initially zero.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LowRankCorrection {
    pub width: usize,
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

impl LowRankCorrection {
    pub fn new(width: usize, rank: usize) -> LowRankCorrection {
        let mut random = Pcg64Mcg::seed_from_u64(0x0a11);
        let scale = 1.0 / (width.max(1) as f32).sqrt();
        let mut number = || match random.next_u64() >> 63 {
            0 => scale,
            _ => -scale,
        };
        LowRankCorrection {
            width,
            a: (0..rank * width).map(|_| number()).collect(),
            b: vec![0.0; width * rank],
        }
    }

    pub fn rank(&self) -> usize {
        self.a.len() / self.width.max(1)
    }

    /// Returns `‖B A‖_F`.
    pub fn norm(&self) -> f64 {
        let rank = self.rank();
        let mut squares = 0.0;
        for b in self.b.chunks_exact(rank.max(1)) {
            let mut row = vec![0.0_f64; self.width];
            for (&b, a) in b.iter().zip(self.a.chunks_exact(self.width)) {
                for (out, &a) in row.iter_mut().zip(a) {
                    *out += f64::from(b) * f64::from(a);
                }
            }
            squares += row.iter().map(|x| x * x).sum::<f64>();
        }
        squares.sqrt()
    }

    /// Takes one step for the input `h [width]` and the gradient `g [width]` of the loss: Polyak's
    /// step, which to first order lowers the loss by the fraction `rate`.
    pub fn update(&mut self, h: &[f32], g: &[f32], loss: f64, rate: f64) {
        let rank = self.rank();
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            let products = a.iter().zip(b);
            products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
        };
        let inner: Vec<f64> = self.a.chunks_exact(self.width).map(|a| dot(a, h)).collect();
        let mut back = vec![0.0_f64; rank];
        for (row, &g) in self.b.chunks_exact(rank).zip(g) {
            for (back, &b) in back.iter_mut().zip(row) {
                *back += f64::from(b) * f64::from(g);
            }
        }
        let squares = |numbers: &[f64]| numbers.iter().map(|x| x * x).sum::<f64>();
        let all = dot(g, g) * squares(&inner) + squares(&back) * dot(h, h);
        if !(all > 0.0 && all.is_finite() && loss.is_finite()) {
            return;
        }
        let step = rate * loss / all;
        for (row, &g) in self.b.chunks_exact_mut(rank).zip(g) {
            for (b, u) in row.iter_mut().zip(&inner) {
                *b -= (step * f64::from(g) * u) as f32;
            }
        }
        for (row, back) in self.a.chunks_exact_mut(self.width).zip(&back) {
            for (a, &h) in row.iter_mut().zip(h) {
                *a -= (step * back * f64::from(h)) as f32;
            }
        }
    }
}

/// Returns the divergence of `draft` from `model`, both logits, in nats, and its derivatives by the
/// draft's likeliest logits.
pub(super) fn divergence(model: &[f32], draft: &[f32]) -> (f64, Vec<(u32, f64)>) {
    let [p, q] = [model, draft].map(log_softmax);
    let kl = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    let mut tokens: Vec<u32> = [&p, &q]
        .into_iter()
        .flat_map(|l| likeliest_tokens(l))
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    let of = |token: u32| (token, q[token as usize].exp() - p[token as usize].exp());
    (kl, tokens.into_iter().map(of).collect())
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = || logits.iter().map(|&l| f64::from(l) - f64::from(max));
    let sum: f64 = shifted().map(f64::exp).sum();
    shifted().map(|l| l - sum.ln()).collect()
}

fn likeliest_tokens(logarithms: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..logarithms.len() as u32).collect();
    let count = LIKELIEST.min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, |&a, &b| {
            let at = |token: u32| logarithms[token as usize];
            at(b).total_cmp(&at(a)).then(a.cmp(&b))
        });
    }
    order.truncate(count);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 6;

    fn logits(correction: &LowRankCorrection, head: &[f32], h: &[f32]) -> Vec<f32> {
        let rank = correction.rank();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let inner: Vec<f32> = correction
            .a
            .chunks_exact(WIDTH)
            .map(|a| dot(a, h))
            .collect();
        let rows = correction.b.chunks_exact(rank).zip(h);
        let corrected: Vec<f32> = rows.map(|(b, h)| h + dot(b, &inner)).collect();
        head.chunks_exact(WIDTH)
            .map(|w| dot(w, &corrected))
            .collect()
    }

    fn gradient(head: &[f32], derivatives: &[(u32, f64)]) -> Vec<f32> {
        let mut out = vec![0.0; WIDTH];
        for &(token, d) in derivatives {
            for (out, w) in out.iter_mut().zip(&head[token as usize * WIDTH..]) {
                *out += (d * f64::from(*w)) as f32;
            }
        }
        out
    }

    #[test]
    fn derivatives_match_finite_differences() {
        let (model, draft) = ([0.3, -1.0, 2.0, 0.5], [1.0, 0.2, 1.5, -0.4]);
        let (kl, derivatives) = divergence(&model, &draft);
        assert!(kl > 0.0);
        for (token, derivative) in derivatives {
            let moved = |by: f32| {
                let mut draft = draft;
                draft[token as usize] += by;
                divergence(&model, &draft).0
            };
            let found = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((found - derivative).abs() < 1e-4, "{found} {derivative}");
        }
        assert!(divergence(&model, &model).0.abs() < 1e-12);
    }

    #[test]
    fn steps_reduce_the_divergence() {
        let head: Vec<f32> = (0..4 * WIDTH)
            .map(|i| (i * 37 % 11) as f32 / 5.0 - 1.0)
            .collect();
        let h = [0.5, -1.0, 0.3, 0.8, -0.2, 1.1];
        let model = [1.0, -0.5, 0.7, 2.0];
        let mut correction = LowRankCorrection::new(WIDTH, 3);
        let (first, _) = divergence(&model, &logits(&correction, &head, &h));
        let mut last = first;
        for step in 0..60 {
            let draft = logits(&correction, &head, &h);
            let (loss, derivatives) = divergence(&model, &draft);
            if step < 5 {
                assert!(loss <= last, "{loss} {last}");
            }
            last = loss;
            correction.update(&h, &gradient(&head, &derivatives), loss, 0.2);
        }
        assert!(last < 0.01 * first, "{first} {last}");
    }

    #[test]
    fn zero_or_invalid_gradients_change_nothing() {
        let mut correction = LowRankCorrection::new(WIDTH, 2);
        let before = correction.clone();
        correction.update(&[1.0; WIDTH], &[0.0; WIDTH], 0.0, 0.1);
        correction.update(&[1.0; WIDTH], &[f32::NAN; WIDTH], 1.0, 0.1);
        assert_eq!(correction, before);
    }
}
