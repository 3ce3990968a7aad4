use super::*;

#[test]
fn speed_up_is_relative_to_tokens_without_a_draft() {
    let ms = Duration::from_millis;
    let done = SpeculationStats {
        rounds: 2,
        drafted: 8,
        accepted: 6,
        without_draft: 4,
        draft_time: ms(10),
        verify_time: ms(60),
        without_draft_time: ms(40),
    };
    assert!((done.speed_up().unwrap() - 120.0 / 70.0).abs() < 1e-12);
    assert_eq!(done.acceptance(), Some(0.75));
    for unknown in [
        SpeculationStats {
            without_draft: 0,
            ..done
        },
        SpeculationStats { rounds: 0, ..done },
        SpeculationStats::default(),
    ] {
        assert_eq!(unknown.speed_up(), None);
    }
}
