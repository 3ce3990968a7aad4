//! Names, ranks, plans and what is refused.

use super::*;

const SHAPE: KvShape = KvShape {
    layers: 2,
    kv_heads: 3,
    head_size: 32,
};

fn parse(text: &str) -> Result<KvKind, KvError> {
    text.parse()
}

#[test]
fn kinds_are_spelt_as_they_are_read() {
    for text in [
        "f32",
        "f16",
        "q8_0",
        "q4_0",
        "q8_0-rotated",
        "q4_0-rotated",
        "static:0.6",
        "static-hybrid:1",
        "oja:0.25",
        "oja:e0.95",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    let hybrid = parse("static-hybrid:e0.9").unwrap();
    assert!(matches!(
        hybrid.rank(),
        Some(KvRank::Energy(part)) if part == 0.9
    ));
    assert!(hybrid.exempts() && !parse("static:0.5").unwrap().exempts());
    for text in [
        "",
        "F16",
        "q8",
        "q5_0",
        "static",
        "oja:",
        "oja:e",
        "f16:1",
        "static:x",
        "kv:0.5",
        "oja:0.5:1",
    ] {
        let error = parse(text).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("static-hybrid:R"), "{text}: {said}");
    }
    for text in [
        "oja:0",
        "static:1.5",
        "oja:-1",
        "oja:NaN",
        "oja:e2",
        "oja:inf",
    ] {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, KvError::Part { .. }), "{text}: {error}");
    }
}

#[test]
fn bytes_of_a_position_are_exact() {
    let mut random = Random(1);
    let bases = random_bases(&mut random, SHAPE);
    let bytes = |kind: &str| {
        let options = KvOptions::new(parse(kind).unwrap());
        let plan = KvPlan::new(SHAPE, &options, Some(&bases)).unwrap();
        [plan.bytes_per_position(), plan.full_bytes_per_position()]
    };
    // Two layers, two sides, three heads of 32 numbers.
    let numbers = 2 * 2 * 3 * 32;
    assert_eq!(bytes("f32"), [numbers * 4; 2]);
    assert_eq!(bytes("f16"), [numbers * 2; 2]);
    assert_eq!(bytes("q8_0-rotated"), [numbers / 32 * 34; 2]);
    assert_eq!(bytes("q4_0"), [numbers / 32 * 18; 2]);
    // 0.6 of 32 is 19.2.
    assert_eq!(bytes("oja:0.6"), [2 * 2 * 3 * 19 * 2, numbers * 2]);
    assert_eq!(bytes("static:1"), [numbers * 2; 2]);
    assert_eq!(bytes("static:0.001"), [2 * 2 * 3 * 2, numbers * 2]);
}

#[test]
fn a_rank_by_energy_is_the_most_that_a_head_needs() {
    let shape = KvShape {
        layers: 2,
        kv_heads: 2,
        head_size: 4,
    };
    let mut random = Random(2);
    let mut sides = random_bases(&mut random, shape).sides().clone();
    // Heads of a layer need 1 and 3, then 4 and 1, of 90 %.
    sides[0].energies = [
        [95.0, 5.0, 0.0, 0.0],
        [40.0, 40.0, 10.0, 10.0],
        [25.0, 25.0, 25.0, 25.0],
        [0.0; 4],
    ]
    .concat();
    sides[1].energies = vec![0.0; 16];
    let bases = KvBases::new(shape, sides).unwrap();
    let options = KvOptions::new(parse("static:e0.9").unwrap());
    let plan = KvPlan::new(shape, &options, Some(&bases)).unwrap();
    assert_eq!(
        [0, 1].map(|layer| plan.ranks(layer)),
        [Some([3, 1]), Some([4, 1])]
    );
}

#[test]
fn what_does_not_fit_a_model_is_refused() {
    let mut random = Random(3);
    let bases = random_bases(&mut random, SHAPE);
    for (head_size, fits) in [(1, false), (24, false), (80, false), (32, true), (96, true)] {
        let shape = KvShape { head_size, ..SHAPE };
        for kind in ["q8_0", "q4_0-rotated"] {
            let options = KvOptions::new(parse(kind).unwrap());
            let plan = KvPlan::new(shape, &options, None);
            assert_eq!(plan.is_ok(), fits);
            if let Err(error) = plan {
                assert!(matches!(error, KvError::HeadSize { .. }));
                assert!(error.to_string().ends_with("use f16"), "{error}");
            }
        }
        assert!(KvPlan::full(shape, KvType::F16).is_ok());
    }
    let oja = KvOptions::new(parse("oja:0.5").unwrap());
    let error = KvPlan::new(SHAPE, &oja, None).unwrap_err();
    assert!(
        error.to_string().contains("compile it with --kv-bases"),
        "{error}"
    );
    for other in [
        KvShape { layers: 3, ..SHAPE },
        KvShape {
            kv_heads: 1,
            ..SHAPE
        },
        KvShape {
            head_size: 16,
            ..SHAPE
        },
    ] {
        let error = KvPlan::new(other, &oja, Some(&bases)).unwrap_err();
        assert!(matches!(error, KvError::BasesShape { .. }), "{error}");
    }
    let with = |change: fn(&mut KvOptions)| {
        let mut options = oja;
        change(&mut options);
        KvPlan::new(SHAPE, &options, Some(&bases)).unwrap_err()
    };
    assert!(matches!(with(|o| o.step = Some(0)), KvError::Option { .. }));
    assert!(matches!(with(|o| o.window = 0), KvError::Option { .. }));
    assert!(matches!(with(|o| o.oja.period = 0), KvError::Option { .. }));
    let rate = with(|o| o.oja.decode_rate = f32::NAN);
    assert!(matches!(rate, KvError::Option { .. }), "{rate}");
    let error = with(|o| o.keep = Some(96));
    assert!(matches!(error, KvError::Keep { least: 97, .. }), "{error}");
    let mut plain = KvOptions::new(KvType::F16);
    plain.keep = Some(33);
    assert!(KvPlan::new(SHAPE, &plain, None).is_ok());
}

#[test]
fn damaged_bases_are_refused_with_their_head() {
    let mut random = Random(4);
    let good = random_bases(&mut random, SHAPE).sides().clone();
    let refused = |change: &dyn Fn(&mut [BasisSide; 2])| {
        let mut sides = good.clone();
        change(&mut sides);
        KvBases::new(SHAPE, sides).unwrap_err()
    };
    let error = refused(&|sides| sides[1].components.truncate(7));
    assert!(matches!(error, KvError::BasesShape { .. }), "{error}");
    let error = refused(&|sides| sides[0].energies.push(0.0));
    assert!(matches!(error, KvError::BasesShape { .. }), "{error}");
    // Head 1 of layer 1 is the fifth of six.
    let at = 4 * 32 * 32 + 70;
    for bad in [f32::NAN, f32::INFINITY, 2.0] {
        let error = refused(&|sides| sides[1].components[at] = bad);
        let KvError::Bases {
            layer, head, side, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*layer, *head, *side), (1, 1, "values"));
    }
    for bad in [f32::NAN, -1.0, 1e9] {
        let error = refused(&|sides| sides[0].energies[33] = bad);
        assert!(
            matches!(
                error,
                KvError::Bases {
                    layer: 0,
                    head: 1,
                    ..
                }
            ),
            "{error}"
        );
    }
    let huge = KvShape {
        layers: usize::MAX,
        ..SHAPE
    };
    assert!(KvBases::new(huge, good.clone()).is_err());
}
