//! A token drawn from all logits, so that the host reads that and not them.

use super::{F32, bytes, count};
use crate::cuda::device::{Arguments, Device, DeviceError, Kernel, Memory, Span};

/// How a token is drawn: of the `top_k` largest logits those that together weigh `top_p`, and of these by their weights at a
/// temperature. Of equal logits those of lower tokens count first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides logits, only behind what counts; more than 0.
    pub temperature: f32,
    /// How many count; 0 for all.
    pub top_k: usize,
    /// What part of their weight counts; 1 for all.
    pub top_p: f32,
    /// The number of `[0, 1)` that decides, among those that count in the order of their places.
    pub uniform: f64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DrawArgument {
    x: Span,
    out: Span,
    uniform: f64,
    numbers: u32,
    top_k: u32,
    top_p: f32,
    temperature: f32,
}

// SAFETY: as `draw.cu` declares it, without padding.
unsafe impl Arguments for DrawArgument {}

/// Numbers that a token is drawn from at most: sums of their weights have 64 bits.
pub const MOST_DRAWN: usize = 1 << 22;

/// A place that is none.
const NO_PLACE: u32 = u32::MAX;

/// Where a token is drawn.
#[derive(Debug)]
pub struct Drawing<D: Device> {
    out: Option<D::Memory>,
}

impl<D: Device> Default for Drawing<D> {
    fn default() -> Self {
        Drawing { out: None }
    }
}

impl<D: Device> Drawing<D> {
    /// Begins to draw from the first `numbers` numbers of `x`. The weights are whole parts of 2^-40 of the largest: tokens that
    /// weigh less are never drawn, and the same numbers give the same token.
    ///
    /// # Errors
    /// [`DeviceError::Range`] for no number at all, more than [`MOST_DRAWN`] and fewer than these, or of the device.
    pub fn begin(
        &mut self,
        device: &D,
        (x, numbers): (&D::Memory, usize),
        draw: &Draw,
    ) -> Result<(), DeviceError> {
        const KERNEL: Kernel<DrawArgument> = Kernel::new("draw_token", 1024);
        let out = match self.out.take() {
            Some(out) => out,
            None => device.allocate(2 * F32)?,
        };
        let out = self.out.insert(out);
        if !(1..=MOST_DRAWN).contains(&numbers) {
            return Err(super::misfit("numbers to draw from", numbers, MOST_DRAWN));
        }
        let arguments = DrawArgument {
            x: bytes(x, "numbers", 0, &[numbers], F32)?,
            out: out.span("what is drawn", 0, 2 * F32)?,
            uniform: draw.uniform,
            numbers: count("numbers", numbers)?,
            top_k: count("numbers", draw.top_k.min(numbers))?,
            top_p: draw.top_p,
            temperature: draw.temperature,
        };
        // SAFETY: a block reads the numbers and writes two words, for which the spans have room.
        unsafe { device.launch(&KERNEL, [1, 1, 1], 0, &arguments) }
    }

    /// The token, when all before is done; nothing where a number is not finite.
    ///
    /// # Errors
    /// Of anything before.
    pub fn take(&self, device: &D) -> Result<Option<u32>, DeviceError> {
        let Some(out) = &self.out else {
            return Ok(None);
        };
        let mut words = [0; 2 * F32];
        device.download(out, 0, &mut words)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| words[4 * at + i]));
        Ok((word(1) == NO_PLACE).then(|| word(0)))
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;
    use crate::cuda::{Emulated, ops};

    const ALL: Draw = Draw {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        uniform: 0.0,
    };

    fn drawn(device: &Emulated, x: &[f32], draw: Draw) -> Option<u32> {
        let memory = ops::put(device, x).unwrap();
        let mut drawing = Drawing::default();
        drawing.begin(device, (&memory, x.len()), &draw).unwrap();
        drawing.take(device).unwrap()
    }

    /// Tokens that count, in their order, with their weights, which add up to 1.
    fn kept(x: &[f32], draw: Draw) -> Vec<(u32, f64)> {
        let mut ranked: Vec<(u32, f32)> = (0..).zip(x.iter().copied()).collect();
        ranked.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if draw.top_k > 0 {
            ranked.truncate(draw.top_k);
        }
        let best = f64::from(ranked[0].1);
        let weight = |logit: f32, temperature: f64| ((f64::from(logit) - best) / temperature).exp();
        let wanted: f64 = ranked.iter().map(|&(_, x)| weight(x, 1.0)).sum();
        let wanted = wanted * f64::from(draw.top_p);
        let mut reached = 0.0;
        let enough = ranked.iter().position(|&(_, x)| {
            reached += weight(x, 1.0);
            reached >= wanted
        });
        if draw.top_p < 1.0 {
            ranked.truncate(enough.unwrap() + 1);
        }
        ranked.sort_by_key(|&(token, _)| token);
        let weights = ranked
            .iter()
            .map(|&(_, x)| weight(x, f64::from(draw.temperature)));
        let sum: f64 = weights.clone().sum();
        let tokens = ranked.iter().map(|&(token, _)| token);
        tokens.zip(weights.map(|weight| weight / sum)).collect()
    }

    /// Wherever the number that decides falls in the middle of a token's part, that token is drawn: of few and of many, with ties
    /// at the end of what counts.
    #[test]
    fn each_token_that_counts_has_its_part() {
        let device = Emulated::new(11);
        let distinct = |i: usize| ((i * 7919 % 1009) as f32 - 500.0) * 0.01;
        let tied = |i: usize| (i * 7 % 5) as f32 * 0.5 - 2.0;
        for (numbers, of) in [
            (1, &distinct as &dyn Fn(usize) -> f32),
            (7, &distinct),
            (1000, &distinct),
            (1000, &tied),
            (2500, &tied),
        ] {
            let x: Vec<f32> = (0..numbers).map(of).collect();
            for (temperature, top_k, top_p) in [
                (1.0, 0, 1.0),
                (0.7, 0, 0.9),
                (2.0, 100, 1.0),
                (1.0, 333, 0.7),
                (1.0, 333, 0.999),
                (0.5, 1, 0.5),
                (1.0, usize::MAX, 0.01),
            ] {
                let draw = Draw {
                    temperature,
                    top_k,
                    top_p,
                    ..ALL
                };
                let kept = kept(&x, draw);
                let mut before = 0.0;
                let some = (kept.len() / 12).max(1);
                for (at, &(token, weight)) in kept.iter().enumerate() {
                    // What is close to the ends may be rounded to its neighbour.
                    if at % some == 0 || at + 1 == kept.len() {
                        let uniform = before + weight / 2.0;
                        let found = drawn(&device, &x, Draw { uniform, ..draw });
                        assert_eq!(found, Some(token), "{at} of {}: {draw:?}", kept.len());
                    }
                    before += weight;
                }
                for (uniform, token) in [
                    (0.0, kept[0].0),
                    (1.0 - f64::EPSILON / 2.0, kept[kept.len() - 1].0),
                ] {
                    assert_eq!(drawn(&device, &x, Draw { uniform, ..draw }), Some(token));
                }
            }
        }
    }

    #[test]
    fn extremes_are_no_obstacle() {
        let device = Emulated::new(12);
        let x = [f32::MIN, -0.0, f32::MAX, 0.0, f32::MIN];
        for temperature in [f32::from_bits(1), 1.0] {
            for top_p in [f32::from_bits(1), 0.5, 1.0] {
                for uniform in [0.0, 0.999] {
                    let draw = Draw {
                        temperature,
                        top_p,
                        uniform,
                        ..ALL
                    };
                    assert_eq!(drawn(&device, &x, draw), Some(2));
                }
            }
        }
        // Both zeros are alike: the first of two of three.
        let draw = |uniform| Draw {
            top_k: 2,
            uniform,
            ..ALL
        };
        assert_eq!(drawn(&device, &[0.0, -0.0, 0.0], draw(0.4)), Some(0));
        assert_eq!(drawn(&device, &[0.0, -0.0, 0.0], draw(0.6)), Some(1));
        // At a large temperature all have the same part.
        let hot = |uniform| Draw {
            temperature: f32::MAX,
            uniform,
            ..ALL
        };
        assert_eq!(drawn(&device, &[1.0, 0.0], hot(0.49)), Some(0));
        assert_eq!(drawn(&device, &[1.0, 0.0], hot(0.51)), Some(1));
    }

    #[test]
    fn what_is_not_finite_is_not_drawn_from() {
        let device = Emulated::new(13);
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1023, 3000] {
                let mut x = vec![1.0; 3001];
                x[at] = strange;
                assert_eq!(drawn(&device, &x, ALL), None, "{strange} at {at}");
            }
        }
        let x = ops::put(&device, &[1.0; 8]).unwrap();
        for numbers in [0, 9, MOST_DRAWN + 1] {
            let mut drawing = Drawing::default();
            assert!(drawing.begin(&device, (&x, numbers), &ALL).is_err());
        }
    }
}
