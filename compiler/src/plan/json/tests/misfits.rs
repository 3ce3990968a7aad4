//! Mismatches have the right lines.

use super::*;

fn misfits(from: &str, to: &str) -> PlanFileMismatches {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    match parsed(&text) {
        Err(PlanError::FileMisfits { misfits, .. }) => misfits,
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
        ("\"version\": 2", "\"version\": 1", 3, "version: expected 2"),
        (
            "\"version\": 2",
            "\"version\": \"2\"",
            3,
            "version: expected 2",
        ),
        ("  \"version\": 2,\n", "", 1, "the key version is missing"),
        (
            "\"method\": \"low-rank\"",
            "\"method\": \"svd\"",
            4,
            "method: expected low-rank, shared-basis or quantise",
        ),
        (
            "  \"method\": \"low-rank\",\n",
            "",
            1,
            "the key method is missing",
        ),
        (
            "\"factor_type\": \"q8_0\"",
            "\"factor_type\": \"iq2_xs\"",
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
            "  \"method\": \"low-rank\",\n  \"units\"",
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
            "request.budget: unknown variant `x`",
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
            "projections: expected a list of projections",
        ),
        ("[\"up\"]", "[]", 7, "found a list of 0"),
        ("[\"up\"]", "\"up\"", 7, "found \"up\""),
        (
            "[\"up\"]",
            "[\"gate\", \"up\"]",
            7,
            "one projection with the method low-rank, found gate, up",
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
            "the key types.weight is missing",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"dense\", \"types\": {\"weight\": \"iq2_xs\"}",
            7,
            "types.weight: expected one of f32",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"dense\", \"types\": {\"a\": \"f16\", \"weight\": \"f16\"}",
            7,
            "unknown key \"a\"",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"residual\", \"types\": {\"base\": \"q4_0\", \"a\": \"f16\", \"b\": \"f16\"}",
            7,
            "the key rank is missing",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"residual\", \"rank\": 8, \"types\": {\"a\": \"f16\", \"b\": \"f16\"}",
            7,
            "the key types.base is missing",
        ),
        (
            "\"form\": \"dense\"",
            "\"form\": \"residual\", \"rank\": 8, \"types\": {\"base\": \"q4_0\", \"a\": \"f16\", \"b\": \"q4_0\"}",
            7,
            "types.b: rows of 8 numbers",
        ),
        (
            "  \"units\"",
            "  \"embedding\": {\"form\": \"low_rank\"}, \"units\"",
            6,
            "embedding: form: expected dense, since rows of an embedding are looked up",
        ),
        (
            "  \"units\"",
            "  \"head\": {\"form\": \"shared_basis\"}, \"units\"",
            6,
            "head: form: expected dense or low_rank or residual",
        ),
        (
            "  \"units\"",
            "  \"head\": \"q8_0\", \"units\"",
            6,
            "head: head: expected an object",
        ),
        (
            "  \"units\"",
            "  \"head\": {\"layer\": 0, \"form\": \"dense\"}, \"units\"",
            6,
            "head: unknown key \"layer\"",
        ),
        (
            "  \"units\"",
            "  \"head\": {\"form\": \"low_rank\", \"rank\": 257, \"types\": {\"a\": \"f16\", \"b\": \"f16\"}}, \"units\"",
            6,
            "head: rank: expected a whole number from 1 to 256",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"dense_type\": \"iq2_xs\"}, \"units\"",
            6,
            "request.dense_type: expected one of",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"projections\": [\"x\"]}, \"units\"",
            6,
            "request.projections: expected a list of projections",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"projections\": [\"router\"]}, \"units\"",
            6,
            "request.projections: expected a list of projections",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"projections\": []}, \"units\"",
            6,
            "q, k, v, o, gate, up, down, found a list of 0",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"projections\": [\"q\", \"q\"]}, \"units\"",
            6,
            "request.projections: expected each once, found q, q",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": {\"rank\": 4, \"rank\": 5}}, \"units\"",
            6,
            "request.budget: expected an object of one key, found an object of 2 keys",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"budget\": {\"rank\": 0}}, \"units\"",
            6,
            "found {\"rank\": 0}",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"allocator\": null}, \"units\"",
            6,
            "request.allocator: expected a value; leave the key out",
        ),
        (
            "  \"units\"",
            "  \"request\": {\"seed\": 0}, \"units\"",
            6,
            "expected an option of htc plan",
        ),
        (", \"form\": \"dense\"", "", 7, "the key form is missing"),
        (
            "{\"layer\": 2, \"projections\": [\"up\"], \"form\": \"dense\"}",
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
            "\"projections\": [\"k\"]",
            "\"projections\": [\"q\"]",
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
fn projections_of_a_basis_must_share_their_input() {
    let text = write(
        &plan(Method::SharedBasis, Budget::Rank(64), Allocation::default()),
        None,
    );
    let text = text.unwrap();
    let projections = "[\"q\",\"k\",\"v\"]";
    assert!(text.contains(projections));
    for wrong in ["[\"q\",\"o\"]", "[\"down\"]", "[\"k\",\"gate\"]"] {
        let error = parsed(&text.replacen(projections, wrong, 1)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("line 9, unit 0: projections: expected some of"),
            "{text}"
        );
    }
    let fewer = parsed(&text.replacen(projections, "[\"v\",\"q\"]", 1)).unwrap();
    assert_eq!(fewer.units[0].label(), "layer 0: q+v");
    let error = parsed(&text.replace("\"shared-basis\"", "\"low-rank\"")).unwrap_err();
    let PlanError::FileMisfits { misfits, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(misfits.count, 3);
}

#[test]
fn all_misfits_are_counted_and_the_first_listed() {
    let unit = "    {\"layer\": 9, \"projections\": [\"q\"], \"form\": \"dense\"},\n";
    let text = GOOD.replacen("    {", &format!("{}    {{", unit.repeat(1000)), 1);
    let error = parsed(&text).unwrap_err();
    let message = error.to_string();
    let told =
        "does not fit the model in 1000 places; the first is line 7, unit 0: layer: expected";
    assert!(
        message.contains(told) && !message.contains('\n'),
        "{message}"
    );
    let PlanError::FileMisfits { misfits, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(
        (misfits.count, misfits.listed.len()),
        (1000, MAX_LISTED_MISMATCHES)
    );
    assert_eq!(misfits.listed[49].line, 56);
    assert_eq!(misfits.to_string().lines().last(), Some("and 950 more"));
    assert_eq!(
        misfits.to_string().lines().count(),
        MAX_LISTED_MISMATCHES + 1
    );
}

/// A mixture of four experts.
struct Mixture;

impl SourceTypes for Mixture {
    fn dtype(&self, matrix: MatrixId) -> Option<DType> {
        let projection = matrix.projection()?;
        let is_dense = ProjectionKind::ALL[4..].contains(&projection);
        let is_stored = projection.expert().is_none_or(|expert| expert < 4);
        (!is_dense && is_stored).then_some(DType::F16)
    }
}

fn misfits_of_mixture(projections: &str) -> String {
    let text = GOOD.replacen("[\"up\"]", projections, 1);
    let found = parse(
        Path::new("plan.json"),
        text.as_bytes(),
        &hyper(),
        source,
        Mixture,
    );
    match found {
        Err(PlanError::FileMisfits { misfits, .. }) => misfits.to_string(),
        other => panic!("{projections}: {other:?}"),
    }
}

#[test]
fn absent_projections_are_named() {
    for (projections, said) in [
        (
            "[\"gate\"]",
            "projections: blk.2.ffn_gate: the model has none",
        ),
        (
            "[\"expert_gate.9\"]",
            "projections: blk.2.ffn_gate.9: the model has none",
        ),
    ] {
        let text = misfits_of_mixture(projections);
        let place = format!("line 7, unit 0: {said}");
        assert!(text.contains(&place) && !text.contains("form"), "{text}");
    }
}

#[test]
fn projections_of_experts_are_listed_with_their_index() {
    for (projections, said) in [
        (
            "[\"expert_gate\"]",
            "up, down, router, expert_gate.N, expert_up.N, expert_down.N, found",
        ),
        (
            "[\"expert_up.3\", \"expert_up.3\"]",
            "projections: expected each once, found expert_up.3, expert_up.3",
        ),
        (
            "[\"expert_gate.1\", \"expert_up.1\"]",
            "one projection with the method low-rank, found expert_gate.1, expert_up.1",
        ),
    ] {
        let text = misfits_of_mixture(projections);
        assert!(text.contains(said), "{text}");
    }
}
