use super::*;

#[test]
fn state_round_trips_and_invalid_bytes_are_rejected() {
    let mut state = TuningState::new(3);
    state.record(0.1 + 0.2, None);
    state.descend([1.0, -1e-12, 0.0], 10);
    state.record(0.2, Some(1.0 / 3.0));
    let bytes = state.to_bytes();
    assert!(bytes.len() <= TuningState::max_bytes(3, 10));
    assert_eq!(TuningState::from_bytes(&bytes, 3), Some(state));
    assert_eq!(TuningState::from_bytes(&bytes, 2), None);
    assert_eq!(TuningState::from_bytes(&bytes[1..], 3), None);
    assert_eq!(TuningState::from_bytes(&bytes[..bytes.len() - 1], 3), None);
}

#[test]
fn descent_converges_for_any_gradient_scale() {
    for size in [1e-9, 1.0, 1e6] {
        let (goal, steps) = (0.02, 60);
        let mut state = TuningState::new(2);
        for _ in 0..steps {
            let gradients = [state.change[0], -state.change[1]];
            let of = gradients.map(|x| size * (f64::from(x) - goal));
            state.descend([of[0], -of[1]], steps);
        }
        assert!(
            (f64::from(state.change[0]) - goal).abs() < 2e-3,
            "{:?}",
            state.change
        );
        assert!(
            (f64::from(state.change[1]) + goal).abs() < 2e-3,
            "{:?}",
            state.change
        );
    }
}

#[test]
fn best_is_the_first_of_the_smallest_losses() {
    let mut state = TuningState::new(1);
    for (change, kl) in [(0.0, 0.5), (0.1, 0.4), (0.2, 0.4), (0.3, 0.6)] {
        state.change[0] = change;
        state.record(kl, None);
        state.step += 1;
    }
    assert_eq!(state.best, [0.1]);
    assert_eq!(
        state.best_point(),
        Some(TuningPoint {
            step: 1,
            kl: 0.4,
            bases: None
        })
    );
    assert_eq!(state.measurements_since_best(), 2);
}

#[test]
fn loss_includes_the_divergence_without_refinements() {
    let mut state = TuningState::new(1);
    state.record(0.4, Some(1.0));
    state.step = 1;
    state.record(0.3, Some(1.5));
    assert_eq!(state.best_point().map(|point| point.step), Some(0));
    state.step = 2;
    state.record(0.3, Some(1.2));
    assert_eq!(state.best_point().map(|point| point.step), Some(2));
}
