//! Helpers for the tests of block fits.

use htc_formats::DType;
use htc_formats::block::BlockFit;

/// Knuth's MMIX.
pub struct Random(pub u64);

impl Random {
    pub fn unit(&mut self) -> f32 {
        let (factor, term) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(term);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }

    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub fn block(&mut self, dtype: DType) -> Vec<f32> {
        (0..dtype.block_len()).map(|_| self.normal()).collect()
    }

    pub fn importance(&mut self, dtype: DType) -> Vec<f32> {
        let one = |_| (1.5 * self.normal()).exp();
        (0..dtype.block_len()).map(one).collect()
    }
}

pub fn rounded(fit: &BlockFit, values: &[f32]) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    fit.quantise(values, &mut codes).unwrap();
    codes
}

pub fn weighted(values: &[f32], weights: &[f32], back: &[f32]) -> f64 {
    let pairs = values.iter().zip(back).zip(weights);
    pairs
        .map(|((&x, &y), &w)| f64::from(w) * (f64::from(x) - f64::from(y)).powi(2))
        .sum()
}

pub fn error(fit: &BlockFit, values: &[f32], weights: &[f32]) -> f64 {
    let codes = rounded(fit, values);
    let places = codes.iter().enumerate();
    let back: Vec<f32> = places
        .map(|(place, &code)| fit.value(place, code))
        .collect();
    weighted(values, weights, &back)
}
