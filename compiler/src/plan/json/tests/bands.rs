//! Column groups in plan files.

use super::*;

const BANDS: &str = r#"{
  "format": "htc-plan",
  "version": 2,
  "method": "low-rank",
  "factor_type": "q8_0",
  "embedding": {"form": "dense", "types": {"weight": "100*2:t4x8;412*2:t2x7,l3x1"}},
  "head": {"form": "dense", "types": {"weight": "2:t4x8"}},
  "units": [
    {"layer": 0, "projections": ["q"], "form": "dense", "types": {"weight": "trellis3"}},
    {"layer": 0, "projections": ["k"], "form": "dense", "types": {"weight": "1:t3x8"}},
    {"layer": 0, "projections": ["v"], "form": "dense", "types": {"weight": "2r:t3x8"}}
  ]
}
"#;

#[test]
fn codes_of_column_groups_round_trip() {
    let plan = parsed(BANDS).unwrap();
    let text = write(&plan, None).unwrap();
    assert_eq!(parsed(&text).unwrap(), plan, "{text}");
    let codes = plan.units.iter().map(|unit| match &unit.form {
        MatrixForm::ColumnGroups { codes } => codes.to_string(),
        other => panic!("{other:?}"),
    });
    let expected = [
        "100*2:t4x8;412*2:t2x7,l3x1",
        "2:t3x8",
        "1:t3x8",
        "2r:t3x8",
        "2:t4x8",
    ];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
    for (from, to, said) in [
        (
            "\"trellis3\"",
            "\"56*2:t3x8;200*2:t2x8\"",
            "expected codes without classes of rows for blk.0.attn_q",
        ),
        (
            "412*",
            "413*",
            "expected classes of 512 rows together for token_embd",
        ),
        ("t2x7,l3x1", "t2x7", "classes of 256 and 224 columns"),
        ("1:t3x8", "1:t3x7", "256 columns, 7 bands"),
        ("1:t3x8", "3:t3x8", "tables of version \"3\""),
    ] {
        assert!(BANDS.contains(from), "{from}");
        let error = parsed(&BANDS.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(said) && !error.contains('\n'),
            "{to}: {error}"
        );
    }
}

#[test]
fn padding_note_appears_once() {
    let hyper = HyperParameters {
        ffn: 172,
        ..hyper()
    };
    let parsed = |text: &str| {
        let path = Path::new("plan.json");
        parse(path, text.as_bytes(), &hyper, source, Source)
    };
    let text = |down: &str, notes: &str| {
        format!(
            r#"{{
  "format": "htc-plan", "version": 2, "method": "low-rank", "factor_type": "q8_0",
  "notes": [{notes}],
  "units": [
    {{"layer": 0, "projections": ["down"], "form": "dense", "types": {{"weight": "{down}"}}}},
    {{"layer": 1, "projections": ["q"], "form": "dense", "types": {{"weight": "levels4"}}}},
    {{"layer": 1, "projections": ["down"], "form": "dense", "types": {{"weight": "trellis3"}}}}
  ]
}}"#
        )
    };
    let said = |matrices: &str| {
        format!("padded to whole bands of 32 columns: down ({matrices} of 172 columns) by 20")
    };
    let stale = format!("\"{}\", \"by hand\"", said("7 matrices"));
    let plan = parsed(&text("2:t3x5,l4x1-20", &stale)).unwrap();
    assert_eq!(plan.notes(), ["by hand".to_owned(), said("2 matrices")]);
    let codes = plan.units.iter().map(|unit| match &unit.form {
        MatrixForm::ColumnGroups { codes } => codes.to_string(),
        other => panic!("{other:?}"),
    });
    let expected = ["2:t3x5,l4x1-20", "1:l4x8", "2:t3x6-20"];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
    // Six column groups of 64 rows, as with 192 columns.
    let bytes = plan.units[2].bytes_after();
    let whole: Codes = "2:t3x6".parse().unwrap();
    assert_eq!(bytes, whole.bytes(256));
    let written = write(&plan, None).unwrap();
    assert_eq!(parsed(&written).unwrap(), plan, "{written}");
    for (codes, found) in [
        ("2:t3x5", "172 columns, 5 bands"),
        ("2:t3x7-20", "172 columns, 7 bands"),
        (
            "2:t3x6",
            "0 columns of padding behind 172 columns, expected 20",
        ),
        (
            "2:t3x6-21",
            "21 columns of padding behind 172 columns, expected 20",
        ),
        ("2:t3x6-00", "1 to 31 columns of padding"),
    ] {
        let error = parsed(&text(codes, "")).unwrap_err().to_string();
        assert!(
            error.contains(found) && !error.contains('\n'),
            "{codes}: {error}"
        );
    }
}
