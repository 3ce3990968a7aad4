use super::*;

#[test]
fn every_accepted_value_is_inside_its_scale() {
    let cases: [&[f64]; 12] = [
        &[],
        &[0.0],
        &[5.0],
        &[-5.0],
        &[3.0, 3.0, 3.0],
        &[f64::MAX, f64::MIN],
        &[LARGEST, -LARGEST],
        &[f64::MIN_POSITIVE, f64::MAX],
        &[5e-324, 0.0],
        &[1.0, 1.0 + 1e-15],
        &[f64::NAN, f64::INFINITY, 2.0],
        &[1e18, 1e18 + 1000.0],
    ];
    for kind in [Kind::Linear, Kind::Log, Kind::Whole, Kind::Bytes] {
        for values in cases {
            let scale = Scale::covering(kind, values.iter().copied());
            assert!(scale.low < scale.high, "{kind:?} {values:?}: {scale:?}");
            assert!(scale.low.is_finite() && scale.high.is_finite());
            assert!(scale.ticks().len() <= 12, "{kind:?} {values:?}: {scale:?}");
            for &value in values {
                assert!((0.0..=1.0).contains(&scale.fraction(value)));
            }
        }
    }
}

#[test]
fn scales_start_near_the_data_with_distinct_labels() {
    let labels = |kind, values: &[f64]| -> Vec<String> {
        let scale = Scale::covering(kind, values.iter().copied());
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    };
    assert_eq!(labels(Kind::Whole, &[0.0, 9.0]), ["0", "2", "4", "6", "8"]);
    let log = labels(Kind::Log, &[1e-4, 1.0]);
    assert_eq!(log, ["0.0001", "0.001", "0.01", "0.1", "1"]);
    let ratios = labels(Kind::Linear, &[1.0041, 1.0044]);
    assert_eq!(ratios, ["1.0041", "1.0042", "1.0043", "1.0044"]);
    let sizes = labels(Kind::Bytes, &[3_010_000.0, 3_040_000.0]);
    assert_eq!(sizes, ["3.01 MB", "3.02 MB", "3.03 MB", "3.04 MB"]);
    assert_eq!(labels(Kind::Linear, &[0.01, 0.8])[0], "0.0");
    assert_eq!(labels(Kind::Linear, &[0.2, 0.8])[0], "0.2");
}
