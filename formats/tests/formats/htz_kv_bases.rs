//! Bases of a KV cache (format 1.12): invalid contents under valid digests.

use crate::htz_common::{based, forged, mixed, planes_behind_kv_bases};
use htc_formats::DType;
use htc_formats::htz::{Htz, Manifest};
use htc_formats::model::{KvSide, Role};
use htc_formats::source::ModelFile;
use serde_json::{Value, json};

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let file = forged(&based().bytes(), change);
    let message = Htz::parse(&file)
        .expect_err("the fault is found")
        .to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn place(table: &[Value], role: &str) -> usize {
    let found = table.iter().position(|of| of["role"] == role);
    found.unwrap()
}

fn entry<'a>(json: &'a mut Value, role: &str) -> &'a mut Value {
    let table = json["tensors"].as_array_mut().unwrap();
    let at = place(table, role);
    &mut table[at]
}

#[test]
fn bases_are_read_back_and_required() {
    let model = based();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().requires, ["kv_bases"]);
    let found: Vec<String> = htz.manifest().tensors[21..]
        .iter()
        .map(|tensor| tensor.role.to_string())
        .collect();
    let of_layer = |layer: usize| {
        ["key_basis", "key_energies", "value_basis", "value_energies"]
            .map(|name| format!("blk.{layer}.{name}"))
    };
    assert_eq!(found, [of_layer(0), of_layer(1)].concat());
    for (role, bytes) in &model.data {
        assert_eq!(role.to_string().parse(), Ok(*role));
        let entry = htz.manifest().tensor(*role).unwrap();
        assert_eq!(htz.tensor_bytes(entry), bytes);
    }
    let message = refused(|json| json["requires"] = json!([]));
    assert!(message.contains("feature \"kv_bases\""), "{message}");
    let without = Htz::parse(Box::new(mixed().bytes())).unwrap();
    assert!(without.manifest().requires.is_empty());
}

#[test]
fn bases_have_any_plain_type_and_precede_refinements() {
    let mut model = based();
    let role = Role::KvBasis {
        layer: 1,
        side: KvSide::Value,
    };
    let tensors = &mut model.manifest.tensors;
    let entry = tensors.iter_mut().find(|entry| entry.role == role).unwrap();
    entry.dtype = DType::BF16;
    let htz = Htz::parse(Box::new(model.bytes())).unwrap();
    assert_eq!(htz.manifest().tensor(role).unwrap().dtype, DType::BF16);

    let model = planes_behind_kv_bases();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    let features = ["bands", "planes", "kv_bases"];
    assert_eq!(htz.manifest().requires, features);
    let file = ModelFile::from_htz(&htz).unwrap();
    let order: Vec<Role> = file.tensors.iter().map(|tensor| tensor.role).collect();
    let kv = order
        .iter()
        .position(|role| matches!(role, Role::KvBasis { .. }));
    let plane = order
        .iter()
        .position(|role| matches!(role, Role::Refinement { .. }));
    assert!(kv.unwrap() < plane.unwrap(), "{order:?}");
    let required = Manifest::required_features(&model.manifest.hyper, &model.manifest.tensors);
    assert_eq!(required, features);
}

#[test]
fn bases_of_wrong_shape_or_type_are_refused_by_name() {
    for (role, key, value, length) in [
        ("blk.0.key_basis", "rows", 16, 16 * 16 * 2),
        ("blk.1.value_basis", "cols", 8, 32 * 8 * 2),
        ("blk.0.value_energies", "rows", 1, 64),
        ("blk.1.key_energies", "cols", 32, 2 * 32 * 4),
    ] {
        let message = refused(|json| {
            let of = entry(json, role);
            of[key] = json!(value);
            of["length"] = json!(length);
        });
        let named = message.contains(role) && message.contains("shape");
        assert!(named, "{role}: {message}");
    }
    let message = refused(|json| {
        let of = entry(json, "blk.0.key_basis");
        of["dtype"] = json!("q8_0");
        of["cols"] = json!(32);
        of["rows"] = json!(16);
        of["length"] = json!(16 * 34);
    });
    assert!(message.contains("blk.0.key_basis"), "{message}");
    let message = refused(|json| {
        let of = entry(json, "blk.0.key_energies");
        of["dtype"] = json!("i32");
        json["requires"] = json!(["types", "kv_bases"]);
    });
    let said = message.contains("f32, f16 or bf16") && message.contains("key_energies");
    assert!(said, "{message}");
}

#[test]
fn incomplete_or_misplaced_bases_are_refused() {
    for role in [
        "blk.0.key_basis",
        "blk.0.key_energies",
        "blk.0.value_basis",
        "blk.0.value_energies",
        "blk.1.key_basis",
        "blk.1.value_energies",
    ] {
        let message = refused(|json| {
            let table = json["tensors"].as_array_mut().unwrap();
            let at = place(table, role);
            table.remove(at);
        });
        let said = match role {
            "blk.0.key_basis" => "the end of the table",
            role => role,
        };
        assert!(message.contains(said), "{role}: {message}");
    }
    let message = refused(|json| entry(json, "blk.1.key_basis")["role"] = json!("blk.2.key_basis"));
    assert!(message.contains("blk.1.key_basis"), "{message}");
    let message = refused(|json| entry(json, "blk.1.key_basis")["role"] = json!("blk.0.key_basis"));
    assert!(message.contains("blk.1.key_basis"), "{message}");
    let message = refused(|json| {
        let table = json["tensors"].as_array_mut().unwrap();
        let at = place(table, "blk.0.key_basis");
        table.swap(at, at + 2);
    });
    assert!(message.contains("blk.0.value_basis"), "{message}");
    let message = refused(|json| {
        let table = json["tensors"].as_array_mut().unwrap();
        let at = place(table, "output.weight");
        table.swap(at, at + 1);
    });
    assert!(message.contains("blk.0.key_energies"), "{message}");
}
