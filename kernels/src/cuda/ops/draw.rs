//! Sampling of a token on the device, so that the host does not read all logits.

use super::{F32_BYTES, byte_span, kernel_count};
use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan, Kernel, KernelArguments};

/// Sampling parameters: top-k, top-p, then softmax at a temperature; ties by token id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParameters {
    /// Temperature, above 0, applied after top-k and top-p.
    pub temperature: f32,
    /// Number of candidates for top-k; 0 for all.
    pub top_k: usize,
    /// Probability mass for top-p; 1 for all.
    pub top_p: f32,
    /// Uniform random number in `[0, 1)` that selects among the candidates in token order.
    pub uniform: f64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DrawArgument {
    x: DeviceSpan,
    out: DeviceSpan,
    uniform: f64,
    numbers: u32,
    top_k: u32,
    top_p: f32,
    temperature: f32,
}

// SAFETY: layout as in `draw.cu`, without padding.
unsafe impl KernelArguments for DrawArgument {}

/// Maximum number of logits; their weights are summed in 64 bits.
pub const MAX_SAMPLED_LOGITS: usize = 1 << 22;

const NO_INDEX: u32 = u32::MAX;

/// Output buffer of sampling.
#[derive(Debug)]
pub struct TokenSampler<D: Device> {
    out: Option<D::Memory>,
}

impl<D: Device> Default for TokenSampler<D> {
    fn default() -> Self {
        TokenSampler { out: None }
    }
}

impl<D: Device> TokenSampler<D> {
    /// Begins to sample from the first `numbers` elements of `x`. Weights are integer multiples of
    /// 2^-40 of the largest.
    ///
    /// # Errors
    /// [`DeviceError::OutOfBounds`] for no elements, more than [`MAX_SAMPLED_LOGITS`], or a short
    /// allocation.
    pub fn begin(
        &mut self,
        device: &D,
        x: &D::Memory,
        numbers: usize,
        draw: &SamplingParameters,
    ) -> Result<(), DeviceError> {
        const KERNEL: Kernel<DrawArgument> = Kernel::new("draw_token", 1024);
        let out = match self.out.take() {
            Some(out) => out,
            None => device.allocate(2 * F32_BYTES)?,
        };
        let out = self.out.insert(out);
        if !(1..=MAX_SAMPLED_LOGITS).contains(&numbers) {
            return Err(super::shape_mismatch(
                "numbers to draw from",
                numbers,
                MAX_SAMPLED_LOGITS,
            ));
        }
        let arguments = DrawArgument {
            x: byte_span(x, "numbers", 0, &[numbers], F32_BYTES)?,
            out: out.span("what is drawn", 0, 2 * F32_BYTES)?,
            uniform: draw.uniform,
            numbers: kernel_count("numbers", numbers)?,
            top_k: kernel_count("numbers", draw.top_k.min(numbers))?,
            top_p: draw.top_p,
            temperature: draw.temperature,
        };
        // SAFETY: a block reads the logits and writes two words, which the spans cover.
        unsafe { device.launch(&KERNEL, [1, 1, 1], 0, &arguments) }
    }

    /// Returns the token after all earlier operations; `None` if a logit is not finite.
    pub fn take(&self, device: &D) -> Result<Option<u32>, DeviceError> {
        let Some(out) = &self.out else {
            return Ok(None);
        };
        let mut words = [0; 2 * F32_BYTES];
        device.download(out, 0, &mut words)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| words[4 * at + i]));
        Ok((word(1) == NO_INDEX).then(|| word(0)))
    }
}

#[cfg(all(test, feature = "emulated"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;
    use crate::cuda::{EmulatedDevice, ops};

    const ALL: SamplingParameters = SamplingParameters {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        uniform: 0.0,
    };

    fn drawn(device: &EmulatedDevice, x: &[f32], draw: SamplingParameters) -> Option<u32> {
        let memory = ops::upload_floats(device, x).unwrap();
        let mut drawing = TokenSampler::default();
        drawing.begin(device, &memory, x.len(), &draw).unwrap();
        drawing.take(device).unwrap()
    }

    fn expected_candidates(x: &[f32], draw: SamplingParameters) -> Vec<(u32, f64)> {
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

    #[test]
    fn each_candidate_is_drawn_by_its_weight() {
        let device = EmulatedDevice::new(11);
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
                let draw = SamplingParameters {
                    temperature,
                    top_k,
                    top_p,
                    ..ALL
                };
                let kept = expected_candidates(&x, draw);
                let mut before = 0.0;
                let some = (kept.len() / 12).max(1);
                for (at, &(token, weight)) in kept.iter().enumerate() {
                    if at % some == 0 || at + 1 == kept.len() {
                        let uniform = before + weight / 2.0;
                        let found = drawn(&device, &x, SamplingParameters { uniform, ..draw });
                        assert_eq!(found, Some(token), "{at} of {}: {draw:?}", kept.len());
                    }
                    before += weight;
                }
                for (uniform, token) in [
                    (0.0, kept[0].0),
                    (1.0 - f64::EPSILON / 2.0, kept[kept.len() - 1].0),
                ] {
                    assert_eq!(
                        drawn(&device, &x, SamplingParameters { uniform, ..draw }),
                        Some(token)
                    );
                }
            }
        }
    }

    #[test]
    fn extreme_logits_and_temperatures_are_handled() {
        let device = EmulatedDevice::new(12);
        let x = [f32::MIN, -0.0, f32::MAX, 0.0, f32::MIN];
        for temperature in [f32::from_bits(1), 1.0] {
            for top_p in [f32::from_bits(1), 0.5, 1.0] {
                for uniform in [0.0, 0.999] {
                    let draw = SamplingParameters {
                        temperature,
                        top_p,
                        uniform,
                        ..ALL
                    };
                    assert_eq!(drawn(&device, &x, draw), Some(2));
                }
            }
        }
        let draw = |uniform| SamplingParameters {
            top_k: 2,
            uniform,
            ..ALL
        };
        assert_eq!(drawn(&device, &[0.0, -0.0, 0.0], draw(0.4)), Some(0));
        assert_eq!(drawn(&device, &[0.0, -0.0, 0.0], draw(0.6)), Some(1));
        let hot = |uniform| SamplingParameters {
            temperature: f32::MAX,
            uniform,
            ..ALL
        };
        assert_eq!(drawn(&device, &[1.0, 0.0], hot(0.49)), Some(0));
        assert_eq!(drawn(&device, &[1.0, 0.0], hot(0.51)), Some(1));
    }

    #[test]
    fn non_finite_logits_give_no_token() {
        let device = EmulatedDevice::new(13);
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1023, 3000] {
                let mut x = vec![1.0; 3001];
                x[at] = strange;
                assert_eq!(drawn(&device, &x, ALL), None, "{strange} at {at}");
            }
        }
        let x = ops::upload_floats(&device, &[1.0; 8]).unwrap();
        for numbers in [0, 9, MAX_SAMPLED_LOGITS + 1] {
            let mut drawing = TokenSampler::default();
            assert!(drawing.begin(&device, &x, numbers, &ALL).is_err());
        }
    }
}
