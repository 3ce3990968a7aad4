mod bands;
mod misfits;

use htc_formats::bands::Codes;

use super::*;
use crate::options::{
    BiasArg, CodeKinds, CodeOptions, DenseType, DenseTypes, Effort, FirstPositions, GaugeKind,
    LayoutOptions, ShrinkageArg, SinkProtection, Switch, TreatmentOptions,
};
use crate::plan::MatrixForm;
use crate::plan::allocate::{Allocation, Allocator, RankFloor};
use crate::plan::{Budget, Evidence, Method, PlanRequest, compute};
use crate::system::random::Rng;

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
    Digest::of_bytes(b"a model")
}

#[derive(Clone, Copy)]
struct Source;

impl SourceTypes for Source {
    fn dtype(&self, matrix: MatrixId) -> Option<DType> {
        let layer = matrix.layer().unwrap_or(1);
        Some([DType::F32, DType::F16, DType::Q8_0][layer % 3])
    }
}

fn parsed(text: &str) -> Result<Plan, PlanError> {
    parse(
        Path::new("plan.json"),
        text.as_bytes(),
        &hyper(),
        source,
        Source,
    )
}

fn plan(method: Method, budget: Budget, allocation: Allocation) -> Plan {
    let request = PlanRequest {
        method,
        budget,
        allocation,
        projections: method.default_projections().to_vec(),
        factor_type: DType::Q8_0,
        dense_types: DenseTypes::default(),
        codes: CodeOptions::default(),
        layout: LayoutOptions::default(),
        treatment: TreatmentOptions::default(),
        effort: Effort::default(),
    };
    let evidence = Evidence {
        l2_bytes: Some(1 << 18),
        variance: Some(vec![1.0, 4.0, 9.0]),
        ..Evidence::default()
    };
    compute(&hyper(), request, &evidence, Source).unwrap()
}

fn plans() -> Vec<Plan> {
    let bounded = |allocator, floor, cap| Allocation {
        first_positions: match allocator {
            Allocator::Phase => FirstPositions::Included,
            _ => FirstPositions::Excluded,
        },
        allocator,
        floor,
        cap,
    };
    let mut plans = Vec::new();
    for method in [Method::PerProjection, Method::SharedBasis] {
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
                bounded(Allocator::Phase, Some(RankFloor::Rank(40)), None),
            ),
            (
                Budget::MeanRank(70.5),
                bounded(
                    Allocator::CacheFit,
                    Some(RankFloor::Fraction(0.0625)),
                    Some(96),
                ),
            ),
        ] {
            plans.push(plan(method, budget, allocation));
        }
    }
    for method in [Method::PerProjection, Method::SharedBasis] {
        for (projections, outside) in [
            (Some(DType::Q8_0), None),
            (None, Some(DType::Q4K)),
            (Some(DType::Q4K), Some(DType::Q8_0)),
        ] {
            let plain = plan(method, Budget::Rank(32), Allocation::default());
            let [projections, outside] =
                [projections, outside].map(|dtype| dtype.map(DenseType::from));
            let left = projections.or(outside);
            let dense = DenseTypes {
                projections,
                selected: left,
                embedding_and_head: outside,
            };
            let projections = plain.request.projections[..2].to_vec();
            let asked = PlanRequest {
                dense_types: dense,
                projections,
                ..plain.request
            };
            plans.push(compute(&hyper(), asked, &Evidence::default(), Source).unwrap());
        }
    }
    plans
}

const FORMS: &str = r#"{
  "format": "htc-plan",
  "version": 2,
  "method": "low-rank",
  "factor_type": "q8_0",
  "embedding": {"form": "dense", "types": {"weight": "q8_0"}},
  "head": {"form": "low_rank", "rank": 96, "types": {"a": "q8_0", "b": "q8_0"}, "notes": ["by hand"]},
  "units": [
    {"layer": 0, "projections": ["q"], "form": "residual", "rank": 32, "types": {"base": "q4_k", "a": "f16", "b": "q8_0"}},
    {"layer": 0, "projections": ["k"], "form": "dense", "types": {"weight": "q4_0"}},
    {"layer": 1, "projections": ["o"], "form": "dense"}
  ]
}
"#;

#[test]
fn every_form_is_read_and_written() {
    let plan = parsed(FORMS).unwrap();
    let forms: Vec<_> = plan
        .units
        .iter()
        .map(|unit| (unit.label(), unit.form.clone()))
        .collect();
    let low_rank = MatrixForm::LowRank {
        rank: 96,
        a: DType::Q8_0,
        b: DType::Q8_0,
    };
    let residual = MatrixForm::Residual {
        base: DType::Q4K,
        rank: 32,
        a: DType::F16,
        b: DType::Q8_0,
    };
    let dense = |weight| MatrixForm::Dense { weight };
    let expected = [
        ("embedding", dense(DType::Q8_0)),
        ("layer 0: q", residual),
        ("layer 0: k", dense(DType::Q4_0)),
        ("layer 1: o", MatrixForm::Unchanged),
        ("head", low_rank),
    ];
    let expected = expected.map(|(label, form)| (label.to_owned(), form));
    assert_eq!(forms, expected);
    assert_eq!(
        plan.request.projections,
        [ProjectionKind::Q, ProjectionKind::K, ProjectionKind::O]
    );
    let text = write(&plan, None).unwrap();
    assert_eq!(parsed(&text).unwrap(), plan, "{text}");
    let head = "  \"head\": {\"form\":\"low_rank\",\"rank\":96,\"types\":{\"a\":\"q8_0\",\"b\":\"q8_0\"},\"notes\":[\"by hand\"]},";
    assert!(text.lines().any(|line| line == head), "{text}");
    // With `shared-basis` a single projection may have a residual or be dense, but not plain factors.
    let shared = FORMS.replace("\"low-rank\"", "\"shared-basis\"");
    assert!(parsed(&shared).is_ok(), "{:?}", parsed(&shared).err());
}

const MIXED: &str = r#"{
  "format": "htc-plan",
  "version": 2,
  "method": "quantise",
  "factor_type": "q8_0",
  "request": {"budget":{"file_size":3200000},"allocator":"uniform","low_rank":"off"},
  "embedding": {"form": "dense", "types": {"weight": "trellis4"}},
  "head": {"form": "low_rank", "rank": 96, "types": {"a": "q8_0", "b": "q8_0"}},
  "units": [
    {"layer": 0, "projections": ["q", "k", "v"], "form": "shared_basis", "rank": 24, "types": {"basis": "q8_0", "projected": "f16"}},
    {"layer": 0, "projections": ["o"], "form": "low_rank", "rank": 32, "types": {"a": "q6_k", "b": "q8_0"}},
    {"layer": 1, "projections": ["q"], "form": "dense", "types": {"weight": "trellis3"}},
    {"layer": 1, "projections": ["down"], "form": "dense"}
  ]
}
"#;

#[test]
fn quantise_accepts_codes_and_factors_together() {
    let plan = parsed(MIXED).unwrap();
    let text = write(&plan, None).unwrap();
    assert_eq!(parsed(&text).unwrap(), plan, "{text}");
    assert_eq!(plan.request.codes.low_rank, Some(Switch::Off));
    let unit = &plan.units[1];
    assert_eq!(
        (unit.label().as_str(), unit.rank()),
        ("layer 0: q+k+v", Some(24))
    );
    for (from, to, said) in [
        (
            "\"projections\": [\"q\", \"k\", \"v\"]",
            "\"projections\": [\"q\", \"k\", \"o\"]",
            "expected some of q, k, v, or of gate, up, found q, k, o",
        ),
        (
            "\"embedding\": {\"form\": \"dense\", \"types\": {\"weight\": \"trellis4\"}}",
            "\"embedding\": {\"form\": \"low_rank\", \"rank\": 8, \"types\": {\"a\": \"f16\", \"b\": \"f16\"}}",
            "expected dense, since rows of an embedding are looked up",
        ),
        (
            "\"projections\": [\"o\"], \"form\": \"low_rank\", \"rank\": 32, \"types\": {",
            "\"projections\": [\"o\"], \"form\": \"residual\", \"rank\": 32, \"types\": {\"base\": \"q4_k\", ",
            "expected dense, low_rank or shared_basis with the method quantise",
        ),
        (
            "\"projections\": [\"q\"], \"form\": \"dense\"",
            "\"projections\": [\"q\", \"k\"], \"form\": \"dense\"",
            "expected one projection, unless it shares a basis, found q, k",
        ),
        (
            "\"low_rank\":\"off\"",
            "\"low_rank\":\"maybe\"",
            "request.low_rank: expected on or off",
        ),
    ] {
        let changed = MIXED.replace(from, to);
        assert_ne!(changed, MIXED, "{from}");
        let error = parsed(&changed).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn plan_with_only_an_embedding_is_valid() {
    let alone: String = FORMS
        .lines()
        .filter(|line| !line.contains("\"layer\"") && !line.contains("\"head\""))
        .collect();
    let plan = parsed(&alone).unwrap();
    assert_eq!((plan.units.len(), plan.request.projections.len()), (1, 0));
    assert_eq!(plan.request.budget, Budget::Ratio(1.0));
    assert_eq!(parsed(&write(&plan, None).unwrap()).unwrap(), plan);
}

#[test]
fn head_of_a_tied_model_is_rejected() {
    struct Tied;
    impl SourceTypes for Tied {
        fn dtype(&self, matrix: MatrixId) -> Option<DType> {
            (matrix != MatrixId::Head).then_some(DType::F32)
        }
    }
    let from = |text: &str| parse(Path::new("p"), text.as_bytes(), &hyper(), source, Tied);
    let said = from(FORMS).unwrap_err().to_string();
    assert!(
        said.contains("line 7, head: the model has none of its own"),
        "{said}"
    );
    let without: String = FORMS
        .lines()
        .filter(|line| !line.contains("\"head\""))
        .collect();
    assert!(from(&without).is_ok());
}

#[test]
fn treatment_round_trips() {
    let mut plan = plan(
        Method::PerProjection,
        Budget::Rank(8),
        Allocation::default(),
    );
    let silent = write(&plan, None).unwrap();
    for key in ["gauge", "sink", "bias", "shrinkage"] {
        assert!(!silent.contains(key), "{silent}");
    }
    for asked in [
        TreatmentOptions {
            gauge: Some(GaugeKind::Axiom),
            ..TreatmentOptions::default()
        },
        TreatmentOptions {
            gauge: Some(GaugeKind::Whiten),
            sink: Some(SinkProtection::Channels(8)),
            bias: Some(BiasArg::Auto),
            shrinkage: Some(ShrinkageArg::Auto),
            ..TreatmentOptions::default()
        },
        TreatmentOptions {
            shrinkage: "0.03".parse().ok(),
            ..TreatmentOptions::default()
        },
        TreatmentOptions {
            sink: Some(SinkProtection::Append),
            bias: Some(BiasArg::Off),
            ..TreatmentOptions::default()
        },
    ] {
        plan.request.treatment = asked;
        let text = write(&plan, None).unwrap();
        assert_eq!(parsed(&text).unwrap(), plan, "{text}");
    }
}

#[test]
fn plans_round_trip() {
    for plan in plans() {
        for digest in [None, Some(source())] {
            let text = write(&plan, digest).unwrap();
            assert_eq!(parsed(&text).unwrap(), plan, "{text}");
            assert!(text.lines().count() >= plan.units.len() + 8);
            assert_eq!(write(&parsed(&text).unwrap(), digest).unwrap(), text);
            let spread: serde_json::Value = serde_json::from_str(&text).unwrap();
            let spread = serde_json::to_string_pretty(&spread).unwrap();
            assert_eq!(parsed(&spread).unwrap(), plan);
        }
    }
}

const GOOD: &str = r#"{
  "format": "htc-plan",
  "version": 2,
  "method": "low-rank",
  "factor_type": "q8_0",
  "units": [
    {"layer": 2, "projections": ["up"], "form": "dense"},
    {"layer": 0, "projections": ["q"], "form": "low_rank", "rank": 64, "types": {"a": "q8_0", "b": "q8_0"}},
    {"layer": 0, "projections": ["k"], "form": "low_rank", "rank": 20, "types": {"a": "q8_0", "b": "f16"}, "notes": ["by hand"]}
  ]
}
"#;

#[test]
fn missing_keys_have_defaults() {
    let plan = parsed(GOOD).unwrap();
    let labels: Vec<_> = plan.units.iter().map(UnitPlan::label).collect();
    assert_eq!(labels, ["layer 0: q", "layer 0: k", "layer 2: up"]);
    assert_eq!(
        plan.request.projections,
        [ProjectionKind::Q, ProjectionKind::K, ProjectionKind::Up]
    );
    assert_eq!(plan.request.budget, Budget::Ratio(plan.ratio()));
    assert_eq!(plan.request.allocation, Allocation::default());
    assert_eq!(plan.units[1].notes, ["by hand"]);
    assert!(plan.notes.is_empty());
}

#[test]
fn factors_larger_than_the_matrix_are_accepted_with_a_note() {
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

#[test]
fn syntax_errors_have_a_position() {
    for (text, line, said) in [
        ("", 1, "EOF"),
        ("[]", 1, "expected an object, found a list of 0"),
        ("{\"format\": NaN}", 1, "expected"),
        ("{\n\"format\": 1e999}", 2, "number out of range"),
        ("{\n\n\"format\": \"htc-plan\"", 3, "EOF"),
        ("{\"a\": 1} {}", 1, "trailing"),
    ] {
        let error = parsed(text).unwrap_err();
        let PlanError::FileSyntax {
            line: found,
            message: what,
            ..
        } = &error
        else {
            panic!("{text}: {error}");
        };
        assert_eq!(*found, line, "{error}");
        assert!(what.contains(said), "{error}");
        assert!(!error.to_string().contains('\n'));
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(parsed(&deep), Err(PlanError::FileSyntax { .. })));
    let bytes = b"{\n  \"\xff\": 1}";
    let error = parse(Path::new("p"), bytes, &hyper(), source, Source).unwrap_err();
    assert!(error.to_string().contains("line 2, column 4"), "{error}");
}

#[test]
fn oversized_files_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, GOOD).unwrap();
    let from = |path: &Path| read(path, &hyper(), source, Source);
    assert_eq!(from(&path).unwrap(), parsed(GOOD).unwrap());
    std::fs::write(&path, GOOD.to_owned() + &" ".repeat(MAX_BYTES as usize)).unwrap();
    assert!(matches!(from(&path), Err(PlanError::FileTooLarge { .. })));
    let missing = from(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, PlanError::ReadFile { .. }));
}

#[test]
fn longer_texts_than_a_reader_accepts_are_not_written() {
    let longest = MAX_BYTES as usize;
    assert!(check_length(" ".repeat(longest)).is_ok());
    let error = check_length(" ".repeat(longest + 1)).unwrap_err();
    let expected = "the plan has 33554433 bytes, expected at most 33554432";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn digest_is_computed_only_if_the_plan_has_one() {
    let asked = std::cell::Cell::new(0);
    let digest = || {
        asked.set(asked.get() + 1);
        source()
    };
    let from = |text: &str| {
        let path = Path::new("plan.json");
        parse(path, text.as_bytes(), &hyper(), digest, Source)
    };
    assert!(from(GOOD).is_ok() && asked.get() == 0);
    let named = |digest: Digest| {
        let key = format!("\"source_sha256\": \"{digest}\",\n  \"method\"");
        GOOD.replacen("\"method\"", &key, 1)
    };
    assert!(from(&named(source())).is_ok() && asked.get() == 1);
    let error = from(&named(Digest::of_bytes(b"another")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 4, the plan: source_sha256: expected"),
        "{error}"
    );
}

#[test]
fn mutated_text_never_panics() {
    let pieces: [&str; 25] = [
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
        "\"shared-basis\"",
        "\"q4_k\"",
        "\"residual\"",
        "\n",
        "\u{0}",
        "ü",
        "\"layer\": 1",
    ];
    let mut random = Rng(8);
    let mut texts: Vec<String> = plans().iter().map(|p| write(p, None).unwrap()).collect();
    texts.push(GOOD.to_owned());
    texts.push(FORMS.to_owned());
    let (mut fit, mut refused) = (0, 0);
    for _ in 0..6000 {
        let text = &texts[random.below(texts.len())];
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            let end = (at + random.below(12)).min(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.next() as u8,
                1 => {
                    let piece = pieces[random.below(pieces.len())];
                    bytes.splice(at..end, piece.bytes());
                }
                2 => bytes[at] = b"0123456789"[random.below(10)],
                _ => {
                    let copy = bytes[at..end].to_vec();
                    let to = random.below(bytes.len());
                    bytes.splice(to..to, copy);
                }
            }
            bytes.truncate(MAX_BYTES as usize);
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
        match parse(Path::new("p"), &bytes, &hyper(), source, Source) {
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

#[test]
fn options_of_codes_layout_and_effort_round_trip() {
    let mut plan = parsed(MIXED).unwrap();
    plan.request.codes = CodeOptions {
        codes: Some(CodeKinds::Levels),
        low_rank: Some(Switch::Off),
        rotation: Some(Switch::Off),
    };
    plan.request.layout = LayoutOptions {
        order: Some(Switch::Off),
        kv_bases: Switch::On,
    };
    plan.request.effort = Effort::High;
    let text = write(&plan, None).unwrap();
    assert_eq!(parsed(&text).unwrap(), plan, "{text}");
}
