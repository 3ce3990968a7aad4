use super::*;
use crate::plan::allocate::{Allocation, Allocator, Floor};
use crate::plan::{Evidence, Method, Request, make};

fn hyper() -> HyperParameters {
    HyperParameters {
        architecture: "llama".into(),
        name: None,
        vocabulary: 512,
        context: 512,
        width: 256,
        layers: 3,
        heads: 8,
        kv_heads: 4,
        head_size: 32,
        ffn: 768,
        norm_epsilon: 1e-5,
        rope_theta: 10000.0,
        rope_dimensions: 32,
        rope_linear_scale: 1.0,
        forward: htc_formats::model::Forward::default(),
    }
}

fn source() -> Digest {
    Digest::of(b"a model")
}

fn source_type(layer: usize, _: Slot) -> DType {
    [DType::F32, DType::F16, DType::Q8_0][layer % 3]
}

fn parsed(text: &str) -> Result<Plan, PlanFileError> {
    parse(
        Path::new("plan.json"),
        text.as_bytes(),
        &hyper(),
        source,
        source_type,
    )
}

fn plan(method: Method, budget: Budget, allocation: Allocation) -> Plan {
    let request = Request {
        method,
        budget,
        allocation,
        slots: method.default_slots().to_vec(),
        factor_type: DType::Q8_0,
    };
    let evidence = Evidence {
        cache: Some(1 << 18),
        variance: Some(vec![1.0, 4.0, 9.0]),
        ..Evidence::default()
    };
    make(&hyper(), request, &evidence, source_type).unwrap()
}

fn plans() -> Vec<Plan> {
    let bounded = |allocator, floor, cap| Allocation {
        allocator,
        floor,
        cap,
    };
    let mut plans = Vec::new();
    for method in [Method::PerSlot, Method::SharedBasis] {
        for (budget, allocation) in [
            (Budget::FullRank, Allocation::default()),
            (Budget::Rank(100), Allocation::default()),
            (Budget::Ratio(0.1 + 0.2), Allocation::default()),
            (
                Budget::Bytes(900_000),
                bounded(Allocator::Curvature, None, None),
            ),
            (
                Budget::Parameters(900_000),
                bounded(Allocator::Phase, Some(Floor::Rank(40)), None),
            ),
            (
                Budget::MeanRank(70.5),
                bounded(Allocator::CacheFit, Some(Floor::Fraction(0.0625)), Some(96)),
            ),
        ] {
            plans.push(plan(method, budget, allocation));
        }
    }
    plans
}

#[test]
fn a_plan_survives_its_text() {
    for plan in plans() {
        for digest in [None, Some(source())] {
            let text = write(&plan, digest).unwrap();
            assert_eq!(parsed(&text).unwrap(), plan, "{text}");
            // One unit to a line, and the same text again.
            assert!(text.lines().count() >= plan.units.len() + 8);
            assert_eq!(write(&parsed(&text).unwrap(), digest).unwrap(), text);
            let spread: serde_json::Value = serde_json::from_str(&text).unwrap();
            let spread = serde_json::to_string_pretty(&spread).unwrap();
            assert_eq!(parsed(&spread).unwrap(), plan);
        }
    }
}

/// The plan by hand that the misfits below are made of; its lines count from 1.
const GOOD: &str = r#"{
  "format": "htc-plan",
  "version": 1,
  "method": "gp",
  "factor_type": "q8_0",
  "units": [
    {"layer": 2, "slots": ["up"], "form": "dense"},
    {"layer": 0, "slots": ["q"], "form": "low_rank", "rank": 64, "types": {"a": "q8_0", "b": "q8_0"}},
    {"layer": 0, "slots": ["k"], "form": "low_rank", "rank": 20, "types": {"a": "q8_0", "b": "f16"}, "notes": ["by hand"]}
  ]
}
"#;

#[test]
fn what_is_left_out_has_a_meaning() {
    let plan = parsed(GOOD).unwrap();
    let labels: Vec<_> = plan.units.iter().map(UnitPlan::label).collect();
    assert_eq!(labels, ["layer 0: q", "layer 0: k", "layer 2: up"]);
    assert_eq!(plan.request.slots, [Slot::Q, Slot::K, Slot::Up]);
    assert_eq!(plan.request.budget, Budget::Ratio(plan.ratio()));
    assert_eq!(plan.request.allocation, Allocation::default());
    assert_eq!(plan.units[1].notes, ["by hand"]);
    assert!(plan.notes.is_empty());
}

#[test]
fn factors_that_are_larger_than_the_matrix_are_taken_and_said() {
    let large = GOOD.replace("\"rank\": 64", "\"rank\": 256");
    let plan = parsed(&large.replace(
        "\"a\": \"q8_0\", \"b\": \"q8_0\"",
        "\"a\": \"f32\", \"b\": \"f32\"",
    ));
    let plan = plan.unwrap();
    assert_eq!(plan.units[0].rank(), Some(256));
    assert!(plan.units[0].notes[0].starts_with("grows: "));
    assert!(plan.units[1].notes == ["by hand"]);
}

/// The misfits of the good plan with one text replaced by another.
fn misfits(from: &str, to: &str) -> Misfits {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    match parsed(&text) {
        Err(PlanFileError::Misfits { misfits, .. }) => misfits,
        other => panic!("{from} -> {to}: {other:?}"),
    }
}

#[test]
fn every_misfit_has_its_line() {
    for (from, to, line, said) in [
        (
            "htc-plan",
            "htc",
            2,
            "format: expected \"htc-plan\", found \"htc\"",
        ),
        (
            "  \"format\": \"htc-plan\",\n",
            "",
            1,
            "the key format is missing",
        ),
        ("\"version\": 1", "\"version\": 2", 3, "version: expected 1"),
        (
            "\"version\": 1",
            "\"version\": \"1\"",
            3,
            "version: expected 1",
        ),
        ("  \"version\": 1,\n", "", 1, "the key version is missing"),
        (
            "\"method\": \"gp\"",
            "\"method\": \"svd\"",
            4,
            "method: expected gp or grc",
        ),
        (
            "  \"method\": \"gp\",\n",
            "",
            1,
            "the key method is missing",
        ),
        (
            "\"factor_type\": \"q8_0\"",
            "\"factor_type\": \"q2_k\"",
            5,
            "factor_type: expected one of f32",
        ),
        (
            "\"factor_type\": \"q8_0\"",
            "\"factor_type\": 8",
            5,
            "found 8",
        ),
        (
            "  \"units\"",
            "  \"gauge\": \"axiom\", \"units\"",
            6,
            "unknown key \"gauge\"",
        ),
        (
            "  \"units\"",
            "  \"method\": \"gp\",\n  \"units\"",
            6,
            "the key method stands twice",
        ),
        (
            "  \"units\"",
            "  \"source_sha256\": \"0\", \"units\"",
            6,
            "the digest of this model",
        ),
        (
            "  \"units\"",
            "  \"notes\": [\"a\\nb\"], \"units\"",
            6,
            "notes: expected",
        ),
        (
            "  \"units\"",
            "  \"request\": 3, \"units\"",
            6,
            "request: expected an object",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": {\"ratio\": -1}}, \"units\"",
            6,
            "a finite number above 0",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": {\"rank\": 0}}, \"units\"",
            6,
            "a whole number from 1",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": {\"x\": 0}}, \"units\"",
            6,
            "found \"x\"",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": \"all\"}, \"units\"",
            6,
            "found \"all\"",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"allocator\": \"best\"}, \"units\"",
            6,
            "found \"best\"",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"rank_floor\": \"0\"}, \"units\"",
            6,
            "request.rank_floor",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"rank_cap\": 0}, \"units\"",
            6,
            "request.rank_cap",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"seed\": 0}, \"units\"",
            6,
            "unknown key \"seed\"",
        ),
        (
            "\"layer\": 2",
            "\"layer\": 3",
            7,
            "layer: expected a whole number from 0 to 2, found 3",
        ),
        ("\"layer\": 2", "\"layer\": -1", 7, "found -1"),
        ("\"layer\": 2", "\"layer\": 0.5", 7, "found 0.5"),
        ("\"layer\": 2, ", "", 7, "the key layer is missing"),
        (
            "[\"up\"]",
            "[\"gap\"]",
            7,
            "slots: expected a list of slots",
        ),
        ("[\"up\"]", "[]", 7, "found a list of 0"),
        ("[\"up\"]", "\"up\"", 7, "found \"up\""),
        (
            "[\"up\"]",
            "[\"gate\", \"up\"]",
            7,
            "one slot with the method gp, found gate, up",
        ),
        ("[\"up\"]", "[\"up\", \"up\"]", 7, "expected each once"),
        (
            "\"form\": \"dense\"",
            "\"form\": \"sparse\"",
            7,
            "form: expected dense or low_rank",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"shared_basis\"",
            7,
            "form: expected dense or low_rank",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"dense\", \"rank\": 8",
            7,
            "rank: a dense unit has none",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"dense\", \"types\": {}",
            7,
            "types: a dense unit has none",
        ),
        (", \"form\": \"dense\"", "", 7, "the key form is missing"),
        (
            "{\"layer\": 2, \"slots\": [\"up\"], \"form\": \"dense\"}",
            "7",
            7,
            "unit: expected an object, found 7",
        ),
        (
            "\"rank\": 64",
            "\"rank\": 257",
            8,
            "rank: expected a whole number from 1 to 256, found 257",
        ),
        ("\"rank\": 64", "\"rank\": 0", 8, "found 0"),
        ("\"rank\": 64", "\"rank\": 64.0", 8, "found 64"),
        ("\"rank\": 64", "\"rank\": null", 8, "found null"),
        ("\"rank\": 64, ", "", 8, "the key rank is missing"),
        (
            "\"rank\": 64",
            "\"rank\": 60",
            8,
            "types.b: rows of 60 numbers are not whole blocks of 32",
        ),
        (
            "\"a\": \"q8_0\", \"b\": \"q8_0\"",
            "\"a\": \"q8_0\"",
            8,
            "the key types.b is missing",
        ),
        (
            "\"a\": \"q8_0\", \"b\": \"q8_0\"",
            "\"a\": \"q9\", \"b\": \"q8_0\"",
            8,
            "types.a: expected one of",
        ),
        (
            "\"a\": \"q8_0\", \"b\": \"q8_0\"",
            "\"a\": \"i8\", \"b\": \"q8_0\"",
            8,
            "types.a: expected one of",
        ),
        (
            "\"b\": \"q8_0\"",
            "\"b\": \"q8_0\", \"c\": 1",
            8,
            "unknown key \"c\"",
        ),
        (
            "{\"a\": \"q8_0\", \"b\": \"q8_0\"}",
            "\"q8_0\"",
            8,
            "types: expected an object with a and b",
        ),
        (
            "\"slots\": [\"k\"]",
            "\"slots\": [\"q\"]",
            9,
            "q of this layer stands on line 8 already",
        ),
        ("\"rank\": 20", "\"rank\": 129", 9, "from 1 to 128"),
        ("[\"by hand\"]", "\"by hand\"", 9, "notes: expected"),
        ("[\"by hand\"]", "[1]", 9, "notes: expected"),
        (
            "\"notes\": [\"by hand\"]",
            "\"note\": 1",
            9,
            "unknown key \"note\"",
        ),
        (
            "\"notes\": [\"by hand\"]",
            "\"rank\": 20",
            9,
            "the key rank stands twice",
        ),
    ] {
        let misfits = misfits(from, to);
        assert_eq!(misfits.count, 1, "{misfits}");
        let misfit = &misfits.listed[0];
        assert_eq!(misfit.line, line, "{misfit}");
        let text = misfit.to_string();
        assert!(text.contains(said), "{text}: {said}");
        assert!(text.starts_with(&format!("line {line}, ")) && !text.contains('\n'));
    }
}

#[test]
fn slots_of_one_basis_read_one_input() {
    let text = write(
        &plan(Method::SharedBasis, Budget::Rank(64), Allocation::default()),
        None,
    );
    let text = text.unwrap();
    let slots = "[\"q\",\"k\",\"v\"]";
    assert!(text.contains(slots));
    for wrong in ["[\"q\",\"o\"]", "[\"down\"]", "[\"k\",\"gate\"]"] {
        let error = parsed(&text.replacen(slots, wrong, 1)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("line 9, unit 0: slots: expected some of"),
            "{text}"
        );
    }
    // In any order, and fewer.
    let fewer = parsed(&text.replacen(slots, "[\"v\",\"q\"]", 1)).unwrap();
    assert_eq!(fewer.units[0].label(), "layer 0: q+v");
    let error = parsed(&text.replace("\"grc\"", "\"gp\"")).unwrap_err();
    let PlanFileError::Misfits { misfits, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(misfits.count, 3);
}

#[test]
fn misfits_are_all_counted_and_the_first_are_listed() {
    let unit = "    {\"layer\": 9, \"slots\": [\"q\"], \"form\": \"dense\"},\n";
    let text = GOOD.replacen("    {", &format!("{}    {{", unit.repeat(1000)), 1);
    let error = parsed(&text).unwrap_err();
    let message = error.to_string();
    let told =
        "does not fit the model in 1000 places; the first is line 7, unit 0: layer: expected";
    assert!(
        message.contains(told) && !message.contains('\n'),
        "{message}"
    );
    let PlanFileError::Misfits { misfits, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((misfits.count, misfits.listed.len()), (1000, MAX_MISFITS));
    assert_eq!(misfits.listed[49].line, 56);
    assert_eq!(misfits.to_string().lines().last(), Some("and 950 more"));
    assert_eq!(misfits.to_string().lines().count(), MAX_MISFITS + 1);
}

#[test]
fn what_is_no_json_has_its_place() {
    for (text, line, said) in [
        ("", 1, "EOF"),
        ("[]", 1, "expected an object, found a list of 0"),
        ("{\"format\": NaN}", 1, "expected"),
        ("{\n\"format\": 1e999}", 2, "number out of range"),
        ("{\n\n\"format\": \"htc-plan\"", 3, "EOF"),
        ("{\"a\": 1} {}", 1, "trailing"),
    ] {
        let error = parsed(text).unwrap_err();
        let PlanFileError::Syntax {
            line: found, what, ..
        } = &error
        else {
            panic!("{text}: {error}");
        };
        assert_eq!(*found, line, "{error}");
        assert!(what.contains(said), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(parsed(&deep), Err(PlanFileError::Syntax { .. })));
    let bytes = b"{\n  \"\xff\": 1}";
    let error = parse(Path::new("p"), bytes, &hyper(), source, source_type).unwrap_err();
    assert!(error.to_string().contains("line 2, column 4"), "{error}");
}

#[test]
fn files_out_of_proportion_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, GOOD).unwrap();
    let from = |path: &Path| read(path, &hyper(), source, source_type);
    assert_eq!(from(&path).unwrap(), parsed(GOOD).unwrap());
    std::fs::write(&path, GOOD.to_owned() + &" ".repeat(MAX_BYTES as usize)).unwrap();
    assert!(matches!(from(&path), Err(PlanFileError::TooLarge { .. })));
    let missing = from(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, PlanFileError::Read { .. }));
}

#[test]
fn the_model_is_only_read_for_its_digest_where_the_plan_names_one() {
    let asked = std::cell::Cell::new(0);
    let digest = || {
        asked.set(asked.get() + 1);
        source()
    };
    let from = |text: &str| {
        let path = Path::new("plan.json");
        parse(path, text.as_bytes(), &hyper(), digest, source_type)
    };
    assert!(from(GOOD).is_ok() && asked.get() == 0);
    let named = |digest: Digest| {
        let key = format!("\"source_sha256\": \"{digest}\",\n  \"method\"");
        GOOD.replacen("\"method\"", &key, 1)
    };
    assert!(from(&named(source())).is_ok() && asked.get() == 1);
    let error = from(&named(Digest::of(b"another")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 4, the plan: source_sha256: expected"),
        "{error}"
    );
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Whatever stands in a file, it is a plan that fits or an error of one line.
#[test]
fn no_text_is_too_strange() {
    let pieces: [&str; 24] = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "0",
        "-1",
        "1e308",
        "18446744073709551616",
        "null",
        "true",
        "\"q\"",
        "\"rank\"",
        "\"units\"",
        "\"types\"",
        "\"grc\"",
        "\"q4_k\"",
        "\n",
        "\u{0}",
        "ü",
        "\"layer\": 1",
    ];
    let mut state = 8;
    let mut texts: Vec<String> = plans().iter().map(|p| write(p, None).unwrap()).collect();
    texts.push(GOOD.to_owned());
    let (mut fit, mut refused) = (0, 0);
    for _ in 0..6000 {
        let text = &texts[random(&mut state) as usize % texts.len()];
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + random(&mut state) % 3 {
            let at = random(&mut state) as usize % bytes.len();
            let end = (at + random(&mut state) as usize % 12).min(bytes.len());
            match random(&mut state) % 4 {
                0 => bytes[at] = random(&mut state) as u8,
                1 => {
                    let piece = pieces[random(&mut state) as usize % pieces.len()];
                    bytes.splice(at..end, piece.bytes());
                }
                2 => bytes[at] = b"0123456789"[random(&mut state) as usize % 10],
                _ => {
                    let copy = bytes[at..end].to_vec();
                    let to = random(&mut state) as usize % bytes.len();
                    bytes.splice(to..to, copy);
                }
            }
            bytes.truncate(MAX_BYTES as usize);
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
        match parse(Path::new("p"), &bytes, &hyper(), source, source_type) {
            Ok(plan) => {
                let again = write(&plan, None).unwrap();
                assert_eq!(parsed(&again).unwrap(), plan);
                fit += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                assert!(error.to_string().len() < 2000, "{error}");
                refused += 1;
            }
        }
    }
    assert!(fit > 100 && refused > 1000, "{fit} {refused}");
}
