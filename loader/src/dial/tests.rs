use super::*;

fn dial() -> WeightBytes {
    WeightBytes {
        fixed: 500,
        factors: vec![(4, 80), (10, 20)],
        refinements: vec![200, 100, 100],
    }
}

#[test]
fn fraction_selects_the_largest_fitting_setting() {
    let dial = dial();
    assert_eq!(dial.active_bytes(ActiveSetting::FULL), 1000);
    let at = |fraction| {
        dial.setting_for(ActiveFraction::new(fraction).unwrap())
            .unwrap()
    };
    for (fraction, refinements) in [
        (1.0, 3),
        (0.998, 2),
        (0.9, 2),
        (0.899, 2),
        (0.898, 1),
        (0.8, 1),
        (0.6, 0),
    ] {
        assert_eq!(at(fraction).refinements, refinements, "{fraction}");
        assert_eq!(at(fraction).rank, RankFraction::FULL);
    }
    let mut before = 600;
    for percent in (53..60).rev() {
        let setting = at(f64::from(percent) / 100.0);
        let bytes = dial.active_bytes(setting);
        assert_eq!(setting.refinements, 0);
        assert!(
            bytes <= 10 * percent as u64 + 1 && bytes <= before,
            "{percent}: {bytes}"
        );
        before = bytes;
    }
    assert!(before <= 531);
    let fault = dial
        .setting_for(ActiveFraction::new(0.5).unwrap())
        .unwrap_err();
    assert!(fault.to_string().contains("0.522"), "{fault}");
}

#[test]
fn cut_factors_keep_the_most_components_that_fit() {
    let dial = WeightBytes {
        fixed: 500,
        factors: vec![(7, 700), (40, 333), (12, 90)],
        refinements: vec![50],
    };
    let least = dial.smallest_fraction();
    for thousandths in 1..=1000 {
        let fraction = f64::from(thousandths) / 1000.0;
        let allowed =
            (fraction + FRACTION_TOLERANCE) * dial.active_bytes(ActiveSetting::FULL) as f64;
        let fits = |setting: &ActiveSetting| dial.active_bytes(*setting) as f64 <= allowed;
        let all = (1..=40)
            .rev()
            .map(|components| dial.setting_with_components(components).unwrap());
        match (
            all.clone().find(fits),
            dial.setting_for(ActiveFraction(fraction)),
        ) {
            (Some(expected), Ok(found)) if found.refinements == 0 => {
                assert_eq!(
                    dial.active_bytes(found),
                    dial.active_bytes(expected),
                    "{fraction}"
                );
            }
            (Some(_), Ok(found)) => assert!(found.refinements > 0),
            (None, Err(ExecError::FractionBelow { smallest: said, .. })) => {
                assert_eq!(said, least);
                assert!(fraction < least);
            }
            other => panic!("{fraction}: {other:?}"),
        }
    }
}

#[test]
fn fractions_outside_0_to_1_are_refused() {
    for fraction in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
        assert!(ActiveFraction::new(fraction).is_err(), "{fraction}");
    }
    assert_eq!(ActiveFraction::new(1.0).unwrap(), ActiveFraction::FULL);
}
