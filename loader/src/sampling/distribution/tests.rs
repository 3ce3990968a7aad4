use super::super::SamplingOptions;
use super::*;

fn sampler(temperature: f32, top_k: usize) -> Sampler {
    let options = SamplingOptions {
        temperature,
        top_k,
        top_p: 1.0,
        seed: 11,
    };
    Sampler::new(options).unwrap()
}

fn distribution_of(sampler: &mut Sampler, logits: &[f32]) -> Distribution {
    let mut out = Distribution::default();
    sampler.distribution(logits, &mut out).unwrap();
    out
}

#[test]
fn distribution_is_the_softmax_of_the_kept_tokens() {
    let logits = [0.5, 2.0, -1.0, 1.0];
    let found = distribution_of(&mut sampler(0.5, 3), &logits);
    let weights = [0.5_f64, 2.0, 1.0].map(|l| (l / 0.5).exp());
    let total: f64 = weights.iter().sum();
    for (token, weight) in [0, 1, 3].into_iter().zip(weights) {
        assert!((found.probability(token) - weight / total).abs() < 1e-12);
    }
    assert_eq!((found.probability(2), found.tokens().len()), (0.0, 3));
    let greedy = distribution_of(&mut sampler(0.0, 0), &logits);
    assert_eq!(greedy.tokens(), [(1, 1.0)]);
}

/// Pearson's statistic, below the quantile that one sampler in a million exceeds.
#[test]
fn judged_tokens_follow_the_target_distribution() {
    let own_logits = [1.0, 0.0, -1.0, 2.0, 0.5, -0.5];
    for (draft_logits, top_k) in [
        ([0.9, 0.2, -1.0, 1.8, 0.4, -0.4], 0),
        ([-2.0, 3.0, 1.0, -1.0, 0.0, 0.0], 0),
        ([-2.0, 3.0, 1.0, -1.0, 0.0, 0.0], 2),
    ] {
        let mut judge = sampler(1.0, 0);
        let mut drafter = sampler(1.0, top_k);
        let own = distribution_of(&mut judge, &own_logits);
        let draft = distribution_of(&mut drafter, &draft_logits);
        let draws = 200_000;
        let mut counts = [0_u32; 6];
        let mut accepted = 0;
        for _ in 0..draws {
            let token = drafter.draw_from(&draft);
            let token = match judge.verify_token(&own, &draft, token) {
                DraftVerdict::Accepted => {
                    accepted += 1;
                    token
                }
                DraftVerdict::Replaced(token) => token,
            };
            counts[token as usize] += 1;
        }
        let statistic: f64 = (0..6)
            .map(|token| {
                let expected = own.probability(token) * f64::from(draws);
                (f64::from(counts[token as usize]) - expected).powi(2) / expected
            })
            .sum();
        assert!(statistic < 35.9, "{statistic} {draft_logits:?}");
        // The probability of acceptance is Σ min(p, q).
        let expected: f64 = (0..6)
            .map(|t| own.probability(t).min(draft.probability(t)))
            .sum();
        let found = f64::from(accepted) / f64::from(draws);
        assert!((found - expected).abs() < 0.005, "{found} {expected}");
    }
}

#[test]
fn greedy_drafts_are_accepted_only_if_equal() {
    let mut greedy = sampler(0.0, 0);
    let own = distribution_of(&mut greedy, &[0.0, 1.0, 0.5]);
    let other = distribution_of(&mut greedy, &[2.0, 1.0, 0.5]);
    assert_eq!(greedy.verify_token(&own, &own, 1), DraftVerdict::Accepted);
    assert_eq!(
        greedy.verify_token(&own, &other, 0),
        DraftVerdict::Replaced(1)
    );
}
