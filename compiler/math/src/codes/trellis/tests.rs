use super::*;

/// Numbers from -1 to 1.
fn random(state: &mut u64) -> f32 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(target_arch = "x86_64")]
#[test]
fn steps_of_every_instruction_set_have_the_same_bits() {
    fn check<const BITS: usize, const KEPT: usize>(state: &mut u64) {
        let mut values: Values = [[0.0; LANES]; STATES / LANES];
        values.as_flattened_mut().fill_with(|| random(state));
        let mut before = vec![0.0; KEPT];
        before.fill_with(|| match random(state) {
            // As at an end whose state is fixed.
            x if x > 0.5 => f32::INFINITY,
            x => x,
        });
        let terms = [random(state).abs(), random(state)];
        let run = |step: Step| {
            let mut after = vec![f32::NAN; KEPT];
            step(&values, terms, &before, &mut after);
            after.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = run(step::<BITS, KEPT>);
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            assert_eq!(run(step_avx2::<BITS, KEPT>), expected, "AVX2, {BITS} bits");
        }
        if is_x86_feature_detected!("avx512f") {
            assert_eq!(
                run(step_avx512::<BITS, KEPT>),
                expected,
                "AVX-512, {BITS} bits"
            );
        }
    }
    let mut state = 1;
    for _ in 0..20 {
        check::<2, { STATES >> 2 }>(&mut state);
        check::<3, { STATES >> 3 }>(&mut state);
        check::<4, { STATES >> 4 }>(&mut state);
        check::<5, { STATES >> 5 }>(&mut state);
    }
}
