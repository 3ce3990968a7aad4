//! Refinements and active-fraction points (format 1.7): invalid contents under valid digests.

use crate::htz_common::{banded, forged, json, refined};
use htc_formats::htz::Htz;
use htc_formats::model::{MatrixId, ProjectionKind, Role};
use htc_formats::source::ModelFile;
use serde_json::{Value, json};

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let file = forged(&refined().bytes(), change);
    let message = Htz::parse(&file)
        .expect_err("the fault is found")
        .to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn entry<'a>(json: &'a mut Value, role: &str) -> &'a mut Value {
    let table = json["tensors"].as_array_mut().unwrap();
    table.iter_mut().find(|of| of["role"] == role).unwrap()
}

#[test]
fn refinements_are_read_back_in_order_and_required() {
    let model = refined();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    assert_eq!(htz.manifest().requires, ["bands", "planes"]);
    assert_eq!(htz.manifest().dial, model.manifest.dial);
    let file = ModelFile::from_htz(&htz).unwrap();
    let found: Vec<Role> = file.tensors[12..]
        .iter()
        .map(|tensor| tensor.role)
        .collect();
    let projection = |projection| MatrixId::Projection {
        layer: 0,
        projection,
    };
    let expected = [
        projection(ProjectionKind::Down),
        MatrixId::Head,
        projection(ProjectionKind::Q),
    ];
    assert_eq!(found, expected.map(|matrix| Role::Refinement { matrix }));
    for role in found {
        assert_eq!(role.to_string().parse(), Ok(role));
    }
    let message = refused(|json| json["requires"] = json!(["bands"]));
    assert!(message.contains("feature \"planes\""), "{message}");
    let unknown = "blk.0.ffn_up.norm.refinement".parse::<Role>();
    assert!(unknown.is_err());
}

#[test]
fn refinements_without_a_base_are_refused_by_name() {
    let q = "blk.0.attn_q.refinement";
    for (role, said) in [
        ("token_embd.refinement", "token_embd.refinement"),
        ("blk.1.attn_q.refinement", "blk.1.attn_q.refinement"),
        ("output.refinement", "output.refinement"),
        ("blk.0.attn_q.weight", "blk.0.attn_q.weight"),
    ] {
        let message = refused(|json| entry(json, q)["role"] = json!(role));
        assert!(message.contains(said), "{role}: {message}");
    }
    let message = refused(|json| entry(json, q)["rows"] = json!(31));
    assert!(message.contains(q), "{message}");
    let message = refused(|json| {
        let of = entry(json, q);
        of["dtype"] = json!("q8_0");
        of["codes"] = Value::Null;
        of["length"] = json!(34 * 32);
    });
    assert!(
        message.contains(q) && message.contains("bands"),
        "{message}"
    );
    let message = refused(|json| {
        let table = json["tensors"].as_array_mut().unwrap();
        table.swap(11, 12);
    });
    assert!(message.contains("entry 12 is output"), "{message}");
    let message = refused(|json| entry(json, q)["codes"] = json!("1:l9x1"));
    assert!(message.contains("levels of 9 bits"), "{message}");
}

#[test]
fn mismatched_active_fraction_points_are_refused() {
    for (at, key, value, said) in [
        (0, "refinements", json!(1), "first and the last"),
        (2, "refinements", json!(4), "first and the last"),
        (1, "refinements", json!(0), "more than before"),
        (1, "refinements", json!(3), "more than before"),
        (1, "bytes", json!(9000), "more than before"),
        (1, "fraction", json!(0.5), "fraction is 0.5"),
        (1, "kl", json!(-0.1), "kl is -0.1"),
        (2, "perplexity_ratio", json!(0.0), "perplexity_ratio is 0"),
    ] {
        let message = refused(|json| json["dial"][at][key] = value.clone());
        assert!(
            message.contains("dial") && message.contains(said),
            "{message}"
        );
    }
    let message = refused(|json| json["dial"] = json!([json["dial"][0]]));
    assert!(message.contains("first and the last"), "{message}");
    let dial = json(&refined().bytes())["dial"].clone();
    let mut model = banded();
    model.manifest.quality = Some(crate::htz_common::quality());
    let plain = forged(&model.bytes(), |json| {
        json.as_object_mut().unwrap().remove("quality");
        json["dial"] = dial;
    });
    let message = Htz::parse(&plain).unwrap_err().to_string();
    assert!(message.contains("none without refinements"), "{message}");
}
