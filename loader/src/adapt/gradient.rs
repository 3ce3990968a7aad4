//! Low-rank correction of the head's input, `h + B A h`, by gradient descent on the divergence from
//! the model.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::kv::oja::dot;

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
mod tests;
