//! Plans and geometries that contradict the tensors, under valid digests.

use crate::htz_common::{forged, probed, refused, refused_in, refuses};
use htc_formats::htz::{Htz, HtzError, Record};
use serde_json::{Value, json};

#[test]
fn a_plan_that_contradicts_the_tensors() {
    for (key, value) in [
        ("id", json!("blk.0.attn_v")),
        ("id", json!("blk.1.attn_q")),
        ("form", json!("dense")),
        ("rank", json!(null)),
        ("rank", json!(7)),
        ("rows", json!(33)),
        ("cols", json!(33)),
        ("parameters_before", json!(0)),
        ("parameters_after", json!(0)),
        ("bytes_after", json!(0)),
        ("error", json!(-0.5)),
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Plan(_),
                ..
            },
            ["blk.0.attn_q"],
            |json| {
                json["plan"]["projections"][0][key] = value;
            }
        );
    }
    for (key, value) in [
        ("layer", json!(1)),
        ("group", json!("gate_up")),
        ("rank", json!(5)),
        ("parameters", json!(0)),
        ("bytes", json!(0)),
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Plan(_),
                ..
            },
            ["blk.0.attn_qkv"],
            |json| {
                json["plan"]["bases"][0][key] = value;
            }
        );
    }
    for key in ["projections", "bases"] {
        refuses!(
            HtzError::Property {
                record: Record::Plan(_),
                ..
            },
            [key],
            |json| json["plan"][key] = json!([])
        );
    }
    for budget in [
        json!({"rank": 0}),
        json!({"ratio": 0.0}),
        json!({"ratio": -1.0}),
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Plan(_),
                ..
            },
            ["the whole", "expected"],
            |json| json["plan"]["budget"] = budget
        );
    }
}

#[test]
fn a_geometry_that_contradicts_the_tensors_or_itself() {
    let file = probed().bytes();
    let check = |change: &dyn Fn(&mut Value), texts: [&str; 2]| {
        let (fault, message) = refused_in(&file, |json| change(&mut json["geometry"]));
        assert!(
            matches!(
                fault,
                HtzError::Property {
                    record: Record::Geometry(_),
                    ..
                }
            ),
            "{message}"
        );
        for text in texts {
            assert!(message.contains(text), "{text:?} in {message:?}");
        }
    };
    for layer in [1_u64, 1 << 40] {
        let change = |json: &mut Value| json["depth_sink"]["layer"] = layer.into();
        check(&change, ["depth sink", "below 1"]);
    }
    for (projection, key, value, texts) in [
        (
            0,
            "id",
            json!("blk.1.attn_q"),
            ["blk.0.attn_q", "id is blk.1.attn_q"],
        ),
        (
            1,
            "id",
            json!("blk.0.attn_v"),
            ["blk.0.attn_k", "id is blk.0.attn_v"],
        ),
        (0, "components", json!(5), ["blk.0.attn_q", "expected 6"]),
        (1, "components", json!(6), ["blk.0.attn_k", "expected 16"]),
        (
            3,
            "components",
            json!(32),
            ["blk.0.attn_output", "expected 5"],
        ),
        (6, "largest", json!(-0.5), ["blk.0.ffn_down", "largest"]),
        (6, "energy", json!(-1e-300), ["blk.0.ffn_down", "energy"]),
    ] {
        check(
            &|json| json["spectra"][projection][key] = value.clone(),
            texts,
        );
    }
    check(
        &|json| json["spectra"] = json!([]),
        ["number of spectra", "expected 7"],
    );
    for (key, value) in [
        ("depth_sink", json!({"layer": 0, "origin": "felt"})),
        ("depth_sink", json!({"layer": -1, "origin": "guessed"})),
        ("spectra", Value::Null),
        ("spectra", json!([{}])),
    ] {
        let file = forged(&file, |json| json["geometry"][key] = value);
        let fault = Htz::parse(&file).unwrap_err();
        assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
    }
}
