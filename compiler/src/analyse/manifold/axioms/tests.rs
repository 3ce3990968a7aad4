use super::*;

fn sample(count: usize, deviations: &[f64]) -> Sample {
    let mut random = Rng(8);
    let mut values = Vec::new();
    for _ in 0..count {
        values.extend(
            deviations
                .iter()
                .map(|s| (s * random.normal() + 2.0) as f32),
        );
    }
    let windows = vec![0; values.len() / deviations.len()];
    Sample::new(&values, deviations.len(), &windows)
}

#[test]
fn a_planted_subspace_survives() {
    for width in [40, 600] {
        let mut deviations = vec![1e-3; width];
        deviations[..6].copy_from_slice(&[3.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
        let found = sample_axioms(0, &sample(300, &deviations))
            .unwrap()
            .unwrap();
        assert_eq!((found.candidates, found.survived), (6, 6));
        assert_eq!((found.consistency, found.samples), (1.0, (150, 150)));
    }
}

#[test]
fn isotropic_noise_has_no_axioms() {
    for width in [100, 500] {
        let found = sample_axioms(3, &sample(301, &vec![1.0; width]));
        let found = found.unwrap().unwrap();
        assert!(found.candidates > 20, "{found:?}");
        assert!(found.consistency < 0.1, "{found:?}");
        assert_eq!(found.samples, (151, 150));
    }
}

#[test]
fn small_samples_and_full_subspaces_give_none() {
    assert!(sample_axioms(0, &sample(3, &[1.0; 8])).unwrap().is_none());
    assert!(sample_axioms(0, &sample(40, &[1.0])).unwrap().is_none());
    assert!(
        sample_axioms(0, &Sample::new(&[], 8, &[]))
            .unwrap()
            .is_none()
    );
    assert!(sample_axioms(0, &sample(40, &[1.0; 2])).unwrap().is_none());
}
