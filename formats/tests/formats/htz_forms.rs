//! Forms of format 1.4: invalid contents under valid digests.

use crate::htz_common::{forged, formed, json};
use htc_formats::htz::Htz;
use serde_json::{Value, json};

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let file = forged(&formed().bytes(), change);
    let message = Htz::parse(&file)
        .expect_err("the fault is found")
        .to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn index(role: &str) -> usize {
    let json = json(&formed().bytes());
    let table = json["tensors"].as_array().unwrap();
    let found = table.iter().position(|entry| entry["role"] == role);
    found.unwrap()
}

#[test]
fn ranks_of_residuals_and_heads_must_agree() {
    for (role, key, value, said) in [
        ("blk.0.attn_output.residual_b", "cols", 4, "[32, 3]"),
        ("blk.0.attn_output.residual_a", "rows", 4, "residual_b"),
        ("blk.0.attn_output.residual_a", "cols", 16, "[1 to 32, 32]"),
        ("output.b", "cols", 5, "[12, 4]"),
        ("output.a", "rows", 3, "[12, 3]"),
    ] {
        let message = refused(|json| {
            let entry = &mut json["tensors"][index(role)];
            let length = entry["length"].as_u64().unwrap() / entry[key].as_u64().unwrap();
            entry[key] = value.into();
            entry["length"] = (length * value).into();
        });
        assert!(
            message.contains("shape") && message.contains(said),
            "{message}"
        );
    }
}

#[test]
fn a_head_has_no_rank_above_its_tokens() {
    let mut model = formed();
    let a = index("output.a");
    model.manifest.tensors[a].rows = 13;
    model.manifest.tensors[a + 1].cols = 13;
    let folder = tempfile::tempdir().unwrap();
    let fault = model.write(&folder.path().join("x"), &[]).unwrap_err();
    let message = fault.to_string();
    assert!(
        message.contains("rank") && message.contains("at most 12"),
        "{message}"
    );
}

#[test]
fn parts_of_a_form_are_adjacent() {
    let without = |role: &str| {
        let at = index(role);
        refused(|json| {
            json["tensors"].as_array_mut().unwrap().remove(at);
        })
    };
    for (role, expected, found) in [
        (
            "blk.0.attn_output.residual_b",
            "blk.0.attn_output.residual_b",
            "blk.0.ffn_norm",
        ),
        (
            "blk.0.attn_output.residual_a",
            "blk.0.ffn_norm",
            "blk.0.attn_output.residual_b",
        ),
        (
            "blk.0.attn_output.weight",
            "blk.0.attn_output.weight or blk.0.attn_output.a",
            "blk.0.attn_output.residual_a",
        ),
        ("output.b", "output.b", "missing"),
        ("output.a", "end of the table", "output.b"),
    ] {
        let message = without(role);
        assert!(
            message.contains(expected) && message.contains(found),
            "{role}: {message}"
        );
    }
    let at = index("blk.0.attn_output.residual_a");
    let message = refused(|json| json["tensors"].as_array_mut().unwrap().swap(at, at + 1));
    assert!(
        message.contains("blk.0.attn_output.residual_a"),
        "{message}"
    );
}

#[test]
fn records_of_matrices_agree_with_the_tensors() {
    let changes: [(&str, Value, &[&str]); 8] = [
        (
            "id",
            json!("token_embd"),
            &["matrices", "each once", "id is token_embd"],
        ),
        (
            "id",
            json!("blk.0.attn_q"),
            &["matrices", "id is blk.0.attn_q"],
        ),
        (
            "form",
            json!("residual"),
            &["output", "form", "expected low_rank"],
        ),
        ("rank", json!(5), &["output", "rank", "expected 4"]),
        (
            "rows",
            json!(13),
            &["output", "number of rows", "expected 12"],
        ),
        (
            "parameters_after",
            json!(1),
            &["output", "parameters after", "expected 176"],
        ),
        (
            "bytes_after",
            json!(1),
            &["output", "bytes after", "expected 352"],
        ),
        ("error", json!(-0.5), &["output", "error", "not negative"]),
    ];
    for (key, value, said) in changes {
        let message = refused(|json| json["plan"]["matrices"][1][key] = value);
        for word in said {
            assert!(message.contains(word), "{key}: {word:?} in {message:?}");
        }
    }
    let message = refused(|json| json["plan"]["projections"][3]["form"] = json!("dense"));
    assert!(
        message.contains("blk.0.attn_output") && message.contains("expected residual"),
        "{message}"
    );
    let message = refused(|json| json["plan"]["matrices"].as_array_mut().unwrap().reverse());
    assert!(message.contains("token_embd, then output"), "{message}");
}
