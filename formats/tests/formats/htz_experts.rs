//! Artifacts of mixtures of experts.

use crate::htz_common::{forged, json, with_experts};
use htc_formats::htz::Htz;
use htc_formats::model::{Part, ProjectionKind, Role};
use htc_formats::source::ModelFile;
use serde_json::Value;

#[test]
fn experts_round_trip_in_the_order_of_execution() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    with_experts().write(&path, &[]).unwrap();
    let file = ModelFile::open(&path).unwrap();
    let spec = file.spec();
    // Four projections of attention, the router, three of each expert.
    assert_eq!(spec.projections().count(), 2 * (4 + 1 + 9));
    for (layer, block) in spec.blocks.iter().enumerate() {
        for projection in block.projections() {
            let has = |part| {
                let projection = projection.kind;
                file.tensor(Role::Linear {
                    layer,
                    projection,
                    part,
                })
                .is_some()
            };
            let is_low_rank = projection.kind == ProjectionKind::ExpertUp(1);
            assert_eq!(has(Part::Weight), !is_low_rank, "{}", projection.kind);
            assert_eq!(has(Part::A) && has(Part::B), is_low_rank);
        }
    }
    let json = json(&with_experts().bytes());
    let roles = json["tensors"].as_array().unwrap().iter();
    let roles: Vec<&str> = roles.map(|entry| entry["role"].as_str().unwrap()).collect();
    let first = roles
        .iter()
        .position(|role| *role == "blk.0.ffn_gate_inp.weight");
    let expected = ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate.0.weight"];
    assert_eq!(roles[first.unwrap()..][..2], expected);
    assert_eq!(
        json["requires"].as_array().unwrap().last().unwrap(),
        "experts"
    );
}

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let message = Htz::parse(&forged(&with_experts().bytes(), change)).unwrap_err();
    message.to_string()
}

#[test]
fn experts_must_be_complete_and_required() {
    let message = refused(|json| {
        let features = json["requires"].as_array_mut().unwrap();
        features.retain(|feature| feature != "experts");
    });
    assert!(message.contains("experts"), "{message}");
    let message = refused(|json| {
        let tensors = json["tensors"].as_array_mut().unwrap();
        tensors.retain(|entry| entry["role"] != "blk.1.ffn_down.2.weight");
    });
    assert!(message.contains("blk.1.ffn_down.2"), "{message}");
    let message = refused(|json| json["hyper"]["forward"]["experts"]["used"] = 4.into());
    assert!(
        message.contains("experts.used is 4, expected 1 to 3"),
        "{message}"
    );
    // Records of two experts that are interchanged.
    let message = refused(|json| {
        let projections = json["plan"]["projections"].as_array_mut().unwrap();
        projections.swap(6, 9);
    });
    assert!(
        message.contains("id is blk.0.ffn_up.1, expected blk.0.ffn_up.0"),
        "{message}"
    );
}
