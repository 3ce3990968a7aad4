use htc_kernels::reference::nearest_f16;

use super::*;
use crate::ExecError;
use crate::kv_bases;

const SHAPE: KvShape = KvShape {
    layers: 2,
    kv_heads: 3,
    head_size: 32,
};

fn parse(text: &str) -> Result<KvKind, ExecError> {
    text.parse()
}

#[test]
fn kind_names_round_trip() {
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
    assert!(hybrid.has_exemptions() && !parse("static:0.5").unwrap().has_exemptions());
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
        let message = error.to_string();
        assert!(message.contains("static-hybrid:R"), "{text}: {message}");
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
        assert!(
            matches!(error, ExecError::KvFractionRange { .. }),
            "{text}: {error}"
        );
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
fn energy_rank_is_the_maximum_over_heads() {
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
fn options_that_do_not_fit_the_model_are_refused() {
    let mut random = Random(3);
    let bases = random_bases(&mut random, SHAPE);
    for (head_size, fits) in [(1, false), (24, false), (80, false), (32, true), (96, true)] {
        let shape = KvShape { head_size, ..SHAPE };
        for kind in ["q8_0", "q4_0-rotated"] {
            let options = KvOptions::new(parse(kind).unwrap());
            let plan = KvPlan::new(shape, &options, None);
            assert_eq!(plan.is_ok(), fits);
            if let Err(error) = plan {
                assert!(matches!(error, ExecError::KvHeadSize { .. }));
                assert!(error.to_string().ends_with("use f16"), "{error}");
            }
        }
        assert!(KvPlan::uncompressed(shape, KvType::F16).is_ok());
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
        assert!(matches!(error, ExecError::KvBasesShape { .. }), "{error}");
    }
    let with = |change: fn(&mut KvOptions)| {
        let mut options = oja;
        change(&mut options);
        KvPlan::new(SHAPE, &options, Some(&bases)).unwrap_err()
    };
    assert!(matches!(
        with(|o| o.max_pass_positions = Some(0)),
        ExecError::OptionRange { .. }
    ));
    assert!(matches!(
        with(|o| o.importance_window = 0),
        ExecError::OptionRange { .. }
    ));
    assert!(matches!(
        with(|o| o.oja.period = 0),
        ExecError::OptionRange { .. }
    ));
    let rate = with(|o| o.oja.decode_rate = f32::NAN);
    assert!(matches!(rate, ExecError::OptionRange { .. }), "{rate}");
    let error = with(|o| o.max_prompt_positions = Some(96));
    assert!(
        matches!(error, ExecError::KeepTooSmall { least: 97, .. }),
        "{error}"
    );
    let mut plain = KvOptions::new(KvType::F16);
    plain.max_prompt_positions = Some(33);
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
    assert!(matches!(error, ExecError::KvBasesShape { .. }), "{error}");
    let error = refused(&|sides| sides[0].energies.push(0.0));
    assert!(matches!(error, ExecError::KvBasesShape { .. }), "{error}");
    // Head 1 of layer 1 is the fifth of six.
    let at = 4 * 32 * 32 + 70;
    for bad in [f32::NAN, f32::INFINITY, 2.0] {
        let error = refused(&|sides| sides[1].components[at] = bad);
        let ExecError::KvBases {
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
                ExecError::KvBases {
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

fn stored(bases: &KvBases) -> kv_bases::StoredKvBases {
    let (shape, sides) = (bases.shape(), bases.sides());
    let size = shape.head_size;
    let basis = |side: usize, head: usize| {
        let components = &sides[side].components[head * size * size..][..size * size];
        let energies = &sides[side].energies[head * size..][..size];
        let total: f32 = energies.iter().sum();
        kv_bases::Basis {
            components: components
                .iter()
                .map(|&x| nearest_f16(x.into()) as f32)
                .collect(),
            energies: energies.iter().map(|energy| energy / total).collect(),
        }
    };
    let layer = |layer: usize| {
        let heads = (0..shape.kv_heads).map(|head| layer * shape.kv_heads + head);
        let bases = heads.map(|head| kv_bases::HeadBases {
            keys: basis(0, head),
            values: basis(1, head),
        });
        bases.collect()
    };
    kv_bases::StoredKvBases {
        head_size: size,
        layers: (0..shape.layers).map(layer).collect(),
    }
}

#[test]
fn bases_of_an_artifact_become_orthonormal_again() {
    let exact = random_bases(&mut Random(5), SHAPE);
    let size = SHAPE.head_size;
    let rounded = stored(&exact);
    let found = KvBases::try_from(&rounded).unwrap();
    assert_eq!(found.shape(), SHAPE);
    for (side, exact) in found.sides().iter().zip(exact.sides()) {
        let heads = side.components.chunks(size * size);
        for (head, exact) in heads.zip(exact.components.chunks(size * size)) {
            let rows = || head.chunks(size).enumerate();
            for ((i, a), (j, b)) in rows().flat_map(|a| rows().map(move |b| (a, b))) {
                let products = a.iter().zip(b).map(|(a, b)| f64::from(a * b));
                let expected = f64::from(u8::from(i == j));
                assert!((products.sum::<f64>() - expected).abs() < 1e-6);
            }
            let differences = head.iter().zip(exact).map(|(a, b)| (a - b).abs());
            assert!(differences.fold(0.0, f32::max) < 2e-3);
        }
    }
    // Relative energies are rounded differently; the ranks are the same.
    let ranks = |bases: &KvBases| {
        let plan = KvPlan::new(SHAPE, &KvOptions::new(oja("e0.9")), Some(bases)).unwrap();
        (0..SHAPE.layers)
            .map(move |layer| plan.ranks(layer))
            .collect::<Vec<_>>()
    };
    assert_eq!(ranks(&found), ranks(&exact));
}

#[test]
fn inconsistent_bases_of_an_artifact_are_refused() {
    let good = stored(&random_bases(&mut Random(6), SHAPE));
    let refused = |change: &dyn Fn(&mut kv_bases::StoredKvBases)| {
        let mut stored = good.clone();
        change(&mut stored);
        KvBases::try_from(&stored).unwrap_err()
    };
    let ragged = refused(&|stored| drop(stored.layers[1].pop()));
    assert!(
        matches!(
            ragged,
            ExecError::KvBasesShape {
                what: "kv heads",
                ..
            }
        ),
        "{ragged}"
    );
    let short = refused(&|stored| {
        let number = stored.layers[0][0].keys.components.pop().unwrap();
        stored.layers[0][1].keys.components.push(number);
    });
    assert!(
        matches!(short, ExecError::KvBasesShape { found: 1023, .. }),
        "{short}"
    );
    let size = refused(&|stored| stored.head_size = usize::MAX);
    assert!(matches!(size, ExecError::KvBasesShape { .. }), "{size}");
    let twice = refused(&|stored| stored.layers[1][2].values.components[..64].fill(0.125));
    assert!(
        matches!(
            twice,
            ExecError::KvBases {
                layer: 1,
                head: 2,
                ..
            }
        ),
        "{twice}"
    );
    let model = KvShape {
        layers: SHAPE.layers + 1,
        ..SHAPE
    };
    let bases = KvBases::try_from(&good).unwrap();
    let error = KvPlan::new(model, &KvOptions::new(oja("0.5")), Some(&bases)).unwrap_err();
    assert!(
        matches!(error, ExecError::KvBasesShape { what: "layers", .. }),
        "{error}"
    );
}

fn oja(rank: &str) -> KvKind {
    parse(&format!("oja:{rank}")).unwrap()
}
