use super::*;

#[test]
fn only_one_wide_input_is_cached() {
    let kept = InputCache::<usize>::default();
    let place = |layer, site| CalibratedInput::Site { layer, site };
    let sites = [ActivationPoint::Attention, ActivationPoint::FfnHidden];
    for layer in 0..3 {
        for site in sites {
            let made = cache_entry(&kept, place(layer, site));
            assert!(made.set(Ok(Arc::new(layer))).is_ok());
        }
    }
    let is_there = |layer, site| {
        let all = kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(of, _)| *of == place(layer, site))
    };
    assert_eq!(
        [0, 1, 2].map(|l| is_there(l, ActivationPoint::FfnHidden)),
        [false, false, true]
    );
    assert_eq!(
        [0, 1, 2].map(|l| is_there(l, ActivationPoint::Attention)),
        [true; 3]
    );
    let found = cache_entry(&kept, place(2, ActivationPoint::FfnHidden));
    assert!(found.get().is_some());
}

#[test]
fn hidden_units_of_one_expert_are_cached() {
    let kept = InputCache::<usize>::default();
    for expert in 0..8 {
        for site in [
            ActivationPoint::ExpertInput(expert),
            ActivationPoint::ExpertHidden(expert),
        ] {
            cache_entry(&kept, CalibratedInput::Site { layer: 0, site });
        }
    }
    let all = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let wide = all.iter().filter(|(of, _)| is_wide(*of));
    assert_eq!((wide.count(), all.len()), (1, CACHE_CAPACITY));
}

#[test]
fn bases_use_more_damping() {
    let embedding = Some(MatrixId::Embedding);
    for matrix in [None, embedding] {
        let of = |refined| {
            let treatment = ModelTreatment {
                is_base: refined,
                ..ModelTreatment::default()
            };
            treatment.damping(matrix)
        };
        assert_eq!(of(true), codes::DAMPING_OF_BASES * of(false));
    }
}
