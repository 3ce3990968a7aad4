use super::*;

const GREEDY: SamplingOptions = SamplingOptions {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    seed: 7,
};

fn sampler(temperature: f32, top_k: usize, top_p: f32) -> Sampler {
    Sampler::new(SamplingOptions {
        temperature,
        top_k,
        top_p,
        ..GREEDY
    })
    .unwrap()
}

fn counts(sampler: &mut Sampler, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits).unwrap() as usize] += 1;
    }
    counts
}

fn scattered(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i * 7919 % len) as f32 * 8.0 / len as f32 - 4.0)
        .collect()
}

#[test]
fn greedy_takes_the_first_of_the_best() {
    let mut sampler = Sampler::new(GREEDY).unwrap();
    assert_eq!(sampler.sample(&[-1.0, 2.0, 0.5, 2.0]).unwrap(), 1);
    assert_eq!(sampler.sample(&[-0.0, 0.0]).unwrap(), 0);
    assert_eq!(sampler.sample(&[f32::MIN]).unwrap(), 0);
}

#[test]
fn top_k_of_one_is_greedy() {
    let logits = scattered(1000);
    let best = Sampler::new(GREEDY).unwrap().sample(&logits).unwrap();
    let mut sampler = sampler(5.0, 1, 1.0);
    for _ in 0..100 {
        assert_eq!(sampler.sample(&logits).unwrap(), best);
    }
}

#[test]
fn top_k_breaks_ties_by_index() {
    let counts = counts(&mut sampler(1.0, 3, 1.0), &[0.0, 1.0, 0.0, 0.0, 0.0], 1000);
    assert!(counts[..3].iter().all(|&count| count > 0), "{counts:?}");
    assert_eq!(counts[3..], [0, 0]);
}

/// Pearson's statistic of 100,000 draws, below the quantile that one sampler in a million
/// exceeds.
#[test]
fn draws_follow_the_closed_form() {
    let logits = [1.5f32, -0.5, 2.0, 0.0, 1.0, -3.0, 0.5];
    // Probabilities at temperature 1: 0.25, 0.03, 0.41, 0.06, 0.15, 0.003, 0.09.
    for (temperature, top_k, top_p, kept, quantile) in [
        (1.0, 0, 1.0, &[0, 1, 2, 3, 4, 5, 6][..], 38.3),
        (0.6, 0, 1.0, &[0, 1, 2, 3, 4, 5, 6], 38.3),
        (2.5, 4, 1.0, &[0, 2, 4, 6], 30.7),
        (1.0, 0, 0.7, &[0, 2, 4], 27.6),
        // Of the four best alone, 0.46 + 0.28 + 0.17 reach 0.85.
        (0.6, 4, 0.85, &[0, 2, 4], 27.6),
    ] {
        let weight = |token: usize| (f64::from(logits[token]) / f64::from(temperature)).exp();
        let total: f64 = kept.iter().map(|&token| weight(token)).sum();
        let draws = 100_000;
        let counts = counts(&mut sampler(temperature, top_k, top_p), &logits, draws);
        let mut statistic = 0.0;
        for &token in kept {
            let expected = weight(token) / total * draws as f64;
            statistic += (counts[token] as f64 - expected).powi(2) / expected;
        }
        assert_eq!(
            kept.iter().map(|&token| counts[token]).sum::<usize>(),
            draws,
            "{counts:?}"
        );
        assert!(
            statistic < quantile,
            "{statistic} for {temperature} {top_k} {top_p}"
        );
    }
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    let logits = scattered(5000);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let mut sizes = Vec::new();
    for top_p in [1e-6, 0.001, 0.05, 0.1, 0.3, 0.5, 0.9, 0.999] {
        let mut reached = 0.0;
        let mut expected = Vec::new();
        for &token in &order {
            expected.push(token as u32);
            reached += f64::from(logits[token]).exp() / total;
            if reached >= f64::from(top_p) {
                break;
            }
        }
        expected.sort_unstable();
        let mut sampler = sampler(100.0, 0, top_p);
        sampler.sample(&logits).unwrap();
        let kept: Vec<_> = sampler.candidates.iter().map(|kept| kept.token).collect();
        assert_eq!(kept, expected, "top-p {top_p}");
        sizes.push(kept.len());
    }
    assert!(sizes[0] == 1 && sizes[7] > 4000, "{sizes:?}");
}

#[test]
fn equal_seeds_give_equal_tokens() {
    let logits = scattered(300);
    let draw = |seed| {
        let options = SamplingOptions {
            temperature: 1.0,
            top_k: 50,
            top_p: 0.9,
            seed,
        };
        let mut sampler = Sampler::new(options).unwrap();
        Vec::from_iter((0..50).map(|_| sampler.sample(&logits).unwrap()))
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn extreme_options_and_logits_are_handled() {
    let logits = [f32::MAX, 0.0, f32::MIN];
    let tiny = f32::from_bits(1);
    assert_eq!(counts(&mut sampler(tiny, 0, tiny), &logits, 50), [50, 0, 0]);
    assert_eq!(counts(&mut sampler(tiny, 0, 1.0), &logits, 50), [50, 0, 0]);
    let flat = counts(&mut sampler(f32::MAX, 0, 1.0), &[1.0, 0.0], 1000);
    assert!(flat[0] > 400 && flat[1] > 400, "{flat:?}");
    assert_eq!(sampler(1.0, usize::MAX, 1.0).sample(&[0.0]).unwrap(), 0);
}

#[test]
fn refusals() {
    for temperature in [-1.0, f32::NAN, f32::INFINITY] {
        let error = Sampler::new(SamplingOptions {
            temperature,
            ..GREEDY
        })
        .unwrap_err();
        assert!(matches!(error, ExecError::Temperature { .. }), "{error}");
    }
    for top_p in [0.0, -0.5, 1.5, f32::NAN] {
        let error = Sampler::new(SamplingOptions { top_p, ..GREEDY }).unwrap_err();
        assert!(matches!(error, ExecError::TopP { .. }), "{error}");
    }
    for temperature in [0.0, 1.0] {
        let mut sampler = sampler(temperature, 0, 1.0);
        assert!(matches!(sampler.sample(&[]), Err(ExecError::NoLogits)));
        for found in [f32::INFINITY, f32::NEG_INFINITY] {
            let error = sampler.sample(&[0.0, found, found]).unwrap_err();
            assert!(
                matches!(error, ExecError::LogitNotFinite { token: 1, found: value } if value == found),
                "{error}"
            );
        }
        let error = sampler.sample(&[f32::NAN]);
        assert!(matches!(
            error,
            Err(ExecError::LogitNotFinite { token: 0, .. })
        ));
    }
}
