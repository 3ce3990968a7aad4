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
