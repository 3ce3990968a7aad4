//! Mixtures of experts.

use htc_formats::model::Experts;

use super::*;

fn mixture() -> HyperParameters {
    let mut hyper = small();
    hyper.forward.experts = Some(Experts {
        count: 4,
        used: 2,
        ffn: 384,
        normalised: true,
    });
    hyper
}

#[test]
fn losses_of_an_expert_are_proportional_to_the_positions_that_it_reads() {
    let mut rng = Rng(11);
    let asked = request(Allocator::Whitened, Budget::Ratio(0.5));
    let units = units(&mixture(), &asked, |_, _| DType::F16).unwrap();
    let mut evidence = evidence(&mut rng, &units, 6);
    let losses = |evidence: &Evidence| {
        let (_, ladders) = prepare(&mixture(), &asked, &units, evidence).unwrap();
        waterfill::losses(&asked, &units, &ladders, evidence, 6)
    };
    let whole = losses(&evidence).unwrap();
    let share = |unit: &Unit| match unit.members[0].projection().and_then(|p| p.expert()) {
        Some(expert) => [0.75, 0.03125, 0.5, 0.25][usize::from(expert)],
        None => 1.0,
    };
    let reads: Vec<f64> = units.iter().map(share).collect();
    assert!(reads.contains(&1.0) && reads.contains(&0.03125));
    evidence.position_shares = Some(reads.clone());
    let weighed = losses(&evidence).unwrap();
    for ((whole, weighed), share) in whole.iter().zip(&weighed).zip(&reads) {
        let expected: Vec<f64> = whole.iter().map(|loss| loss * share).collect();
        assert_eq!(*weighed, expected);
    }
    for (at, value) in [(0, 1.5), (1, f64::NAN), (2, -0.5)] {
        let mut wrong = reads.clone();
        wrong[at] = value;
        evidence.position_shares = Some(wrong);
        let error = losses(&evidence).unwrap_err().to_string();
        assert!(error.contains(&units[at].label()), "{error}");
    }
    evidence.position_shares = Some(reads[1..].to_vec());
    assert!(losses(&evidence).is_err());
}

#[test]
fn cachefit_names_the_expert_that_does_not_fit() {
    let mut asked = request(Allocator::CacheFit, Budget::Ratio(1.0));
    asked.projections = vec![ProjectionKind::Gate];
    let evidence = Evidence {
        l2_bytes: Some(1000),
        ..Evidence::default()
    };
    let made = compute(&mixture(), asked, &evidence, |_, _| DType::F16);
    let error = made.unwrap_err().to_string();
    assert!(error.contains("layer 0: expert_gate.0"), "{error}");
}
