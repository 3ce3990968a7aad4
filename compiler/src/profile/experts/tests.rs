use super::*;

#[test]
fn an_expert_costs_as_often_as_it_is_used() {
    let inputs = [
        (ActivationPoint::Attention, 640),
        (ActivationPoint::Ffn, 640),
        (ActivationPoint::ExpertInput(0), 640),
        (ActivationPoint::ExpertHidden(0), 640),
        (ActivationPoint::ExpertInput(1), 0),
        (ActivationPoint::ExpertHidden(1), 0),
        (ActivationPoint::ExpertInput(2), 480),
        (ActivationPoint::ExpertInput(3), 160),
    ];
    let share = |expert| {
        let counts = inputs.map(|(point, rows)| (BlockInput { point, width: 8 }, rows));
        share_of_expert(counts.into_iter(), expert)
    };
    let shares = [0, 1, 2, 3].map(share);
    let common = 0.5 / 16.0;
    let expected = [1.0, 0.0, 0.75, 0.25].map(|used| used * 15.0 / 16.0 + common);
    assert_eq!(shares, expected);
    assert_eq!(shares.iter().sum::<f64>(), 2.0);
    assert_eq!(share_of_expert(std::iter::empty(), 0), 1.0);
}
