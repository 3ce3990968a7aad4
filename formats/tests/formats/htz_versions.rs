//! Versions of the format: golden artifacts of both, and names that only one of them has.

use std::path::{Path, PathBuf};

use crate::htz_common::{
    Model, allocated, banded, based, classed, forged, formed, json, measured, mixed, padded,
    put_manifest, refined, reseal, reseal_header, rotated, sealed, tabled, treated, varied,
    with_experts, with_kernels, with_tokenizer_rules,
};
use htc_formats::htz::{HEADER_BYTES, Htz, HtzError, MAX_MANIFEST_1_BYTES, Manifest, Record};
use htc_formats::limits::MAX_VALUES_OF_MANIFEST_1;
use htc_formats::source::ModelFile;
use htc_formats::vocab::{TokenKind, UnicodeForm, Vocabulary};
use serde_json::{Value, json};

/// The artifact of each minor version of version 1, with its model and the items that a full
/// verification reports.
fn version_1() -> [(u16, Model, usize); 15] {
    [
        (0, mixed(), 17 + 1 + 1),
        (1, varied(), 22 + 1 + 1),
        (2, allocated(), 17 + 1 + 1),
        (3, treated(), 17 + 1 + 1),
        (4, formed(), 19 + 1 + 1),
        (5, measured(), 17 + 1 + 1),
        (6, banded(), 12 + 1 + 1),
        (7, refined(), 15 + 1 + 1),
        (8, classed(), 12 + 1 + 1),
        (9, tabled(), 12 + 1 + 1),
        (10, padded(), 13 + 1 + 1),
        (11, rotated(), 12 + 1 + 1),
        (12, based(), 29 + 1 + 1),
        (13, sealed(), 17 + 1 + 9 + 1),
        (14, with_kernels(), 17 + 1 + 1 + 1),
    ]
}

fn version_2() -> [(&'static str, Model); 17] {
    [
        ("forms", mixed()),
        ("roles", varied()),
        ("allocation", allocated()),
        ("records", treated()),
        ("head", formed()),
        ("quality", measured()),
        ("column_groups", banded()),
        ("refinements", refined()),
        ("classes", classed()),
        ("tables", tabled()),
        ("padding", padded()),
        ("rotation", rotated()),
        ("kv_bases", based()),
        ("source", sealed()),
        ("kernels", with_kernels()),
        ("experts", with_experts()),
        ("tokenizer_rules", with_tokenizer_rules()),
    ]
}

fn golden(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format!("{name}.htz"))
}

fn golden_1(minor: u16) -> PathBuf {
    golden(&format!("v1_{minor}"))
}

/// The manifest without what depends on its own length, and without the names of tensors that are
/// not named as in a GGUF: the name of those may be the role, which the versions write differently.
fn without_offsets(manifest: &Manifest) -> Manifest {
    let mut manifest = manifest.clone();
    for entry in &mut manifest.tensors {
        entry.offset = 0;
        if !entry.name.ends_with(".weight") {
            entry.name.clear();
        }
    }
    for entry in &mut manifest.sections {
        entry.offset = 0;
    }
    manifest
}

fn check_contents(htz: &Htz, model: &Model) {
    assert_eq!(htz.manifest().hyper, model.manifest.hyper);
    assert_eq!(htz.vocabulary().unwrap(), model.vocabulary);
    for (role, bytes) in &model.data {
        let entry = htz.manifest().tensor(*role).unwrap();
        assert_eq!(htz.tensor_bytes(entry), bytes, "{role}");
    }
}

#[test]
fn artifacts_of_version_1_have_the_contents_of_version_2() {
    for (minor, model, items) in version_1() {
        let htz = Htz::open(golden_1(minor)).unwrap();
        assert_eq!(htz.format(), (1, minor));
        let mut verified = Vec::new();
        htz.verify_all(|item| verified.push(item.item.to_owned()))
            .unwrap();
        assert_eq!(verified.len(), items, "{verified:?}");
        let file = model.bytes();
        let written = Htz::parse(&file).unwrap();
        assert_eq!(
            without_offsets(htz.manifest()),
            without_offsets(written.manifest())
        );
        check_contents(&htz, &model);
        let source = ModelFile::from_htz(&htz).unwrap().embedded_source();
        let source = source.unwrap();
        assert_eq!(source.is_some(), model.manifest.source.is_some());
        for (role, bytes) in &model.source {
            let source = source.as_ref().unwrap();
            assert_eq!(source.bytes(source.tensor(*role).unwrap()), &bytes[..]);
        }
    }
}

/// To regenerate artifacts after a change of the format, remove them and run `cargo test --release
/// -p htc-formats --test htz_versions`; the first run writes them and fails. Artifacts of released
/// versions are never regenerated. (A new release of zstd may change the compressed tokenizer.)
#[test]
fn artifacts_of_version_2_are_reproduced() {
    let mut absent = Vec::new();
    for (name, model) in version_2() {
        let bytes = model.bytes();
        let path = golden(&format!("v2_0_{name}"));
        match std::fs::read(&path) {
            Ok(golden) => assert!(golden == bytes, "the writer gives other bytes"),
            Err(_) => {
                std::fs::write(&path, &bytes).unwrap();
                absent.push(name);
            }
        }
        assert!(bytes.len() < 60_000, "{name}: {} bytes", bytes.len());
        let htz = Htz::open(&path).unwrap();
        assert_eq!(htz.format(), (2, 0));
        htz.verify_all(|_| {}).unwrap();
        check_contents(&htz, &model);
    }
    assert!(absent.is_empty(), "written: {absent:?}");
}

#[test]
fn every_tokenizer_rule_must_be_required() {
    type Change = fn(&mut Vocabulary);
    let literal: Change = |one| {
        one.scores.clear();
        one.merges = vec![(3, 4)];
        one.tokens[5] = "▁▁".to_owned();
        one.kinds[5] = TokenKind::UserDefined;
    };
    let changes: [(&str, Change); 5] = [
        ("form", |one| one.normalization = Some(UnicodeForm::Nfkd)),
        ("prefix", |one| one.space_prefix_if_absent = true),
        ("split", |one| one.split_before_spaces = true),
        ("normalised tokens", |one| one.match_normalized = vec![1]),
        ("literal spaces", literal),
    ];
    for (name, change) in changes {
        let mut model = mixed();
        change(&mut model.vocabulary);
        let features = [Manifest::VOCABULARY, Manifest::TOKENIZER_RULES];
        model.manifest.requires.extend(features.map(str::to_owned));
        let file = model.bytes();
        Htz::parse(&file).unwrap().vocabulary().unwrap();
        let fewer = forged(&file, |json| {
            let requires = json["requires"].as_array_mut().unwrap();
            requires.retain(|feature| feature != Manifest::TOKENIZER_RULES);
        });
        let fault = Htz::parse(&fewer).unwrap().vocabulary().unwrap_err();
        assert!(
            matches!(&fault, HtzError::FeatureNotRequired { feature } if feature == Manifest::TOKENIZER_RULES),
            "{name}: {fault}"
        );
    }
}

fn refused(file: &[u8], change: impl FnOnce(&mut Value)) -> String {
    let fault = Htz::parse(&forged(file, change)).expect_err("the fault is found");
    assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
    fault.to_string()
}

#[test]
fn version_1_refuses_names_of_version_2() {
    let file = std::fs::read(golden_1(4)).unwrap();
    let tensors = json(&file)["tensors"].as_array().unwrap().clone();
    assert_eq!(tensors[1]["role"], "layers.0.attention_norm");
    for (tensor, role) in [
        (0, "token_embd.weight"),
        (1, "blk.0.attn_norm"),
        (1, "layers.0.attn_norm"),
        (1, "layers.00.attention_norm"),
        (1, "layers.+0.attention_norm"),
        (1, "layers.4096.attention_norm"),
    ] {
        let message = refused(&file, |json| json["tensors"][tensor]["role"] = json!(role));
        assert!(
            message.contains(&format!("unknown role {role:?}")),
            "{message}"
        );
    }
    let message = refused(&file, |json| {
        json["plan"]["matrices"][0]["matrix"] = json!("token_embd");
    });
    assert!(
        message.contains("unknown matrix \"token_embd\""),
        "{message}"
    );
    let message = refused(&file, |json| {
        json["plan"]["slots"][0] = json!({"id": "blk.0.attn_q"});
    });
    assert!(message.contains("missing field `layer`"), "{message}");
    let message = refused(&file, |json| {
        let plan = json["plan"].as_object_mut().unwrap();
        let slots = plan.remove("slots").unwrap();
        plan.insert("projections".to_owned(), slots);
    });
    assert!(message.contains("missing field `slots`"), "{message}");
    let message = refused(&std::fs::read(golden_1(3)).unwrap(), |json| {
        let record = json["geometry"]["spectra"][2].as_object_mut().unwrap();
        record.remove("slot");
        record.insert("id".to_owned(), json!("blk.0.attn_v"));
    });
    assert!(message.contains("missing field `slot`"), "{message}");
}

#[test]
fn version_2_refuses_names_of_version_1() {
    let file = formed().bytes();
    for (tensor, role) in [(0, "token_embedding"), (1, "layers.0.attention_norm")] {
        let message = refused(&file, |json| json["tensors"][tensor]["role"] = json!(role));
        assert!(
            message.contains(&format!("unknown role {role:?}")),
            "{message}"
        );
    }
    let message = refused(&file, |json| {
        json["plan"]["matrices"][1]["id"] = json!("head")
    });
    assert!(message.contains("unknown matrix \"head\""), "{message}");
    let message = refused(&file, |json| {
        let record = json["plan"]["projections"][0].as_object_mut().unwrap();
        record.remove("id");
        record.insert("layer".to_owned(), json!(0));
        record.insert("slot".to_owned(), json!("q"));
    });
    assert!(message.contains("missing field `id`"), "{message}");
    let message = refused(&file, |json| {
        let plan = json["plan"].as_object_mut().unwrap();
        let projections = plan.remove("projections").unwrap();
        plan.insert("slots".to_owned(), projections);
    });
    assert!(message.contains("missing field `projections`"), "{message}");
}

#[test]
fn every_fault_of_version_1_is_found_after_translation() {
    let file = std::fs::read(golden_1(13)).unwrap();
    let fault = |change: &dyn Fn(&mut Value)| Htz::parse(&forged(&file, change)).unwrap_err();
    let renamed = fault(&|json| json["sections"][1]["name"] = json!("source.layers.7.q.weight"));
    assert!(
        renamed.to_string().contains("source.blk.7.attn_q.weight"),
        "{renamed}"
    );
    let slot = fault(&|json| json["plan"]["slots"][0]["slot"] = json!("v"));
    assert!(
        matches!(
            slot,
            HtzError::Property {
                record: Record::Plan(_),
                ..
            }
        ),
        "{slot}"
    );
    for key in ["tensors", "plan", "hyper", "provenance"] {
        for value in [Value::Null, json!(7), json!([7]), json!({"tensors": 7})] {
            fault(&|json| json[key] = value.clone());
        }
        fault(&|json| drop(json.as_object_mut().unwrap().remove(key)));
    }
    for role in [Value::Null, json!(7), json!({})] {
        fault(&|json| json["tensors"][0]["role"] = role.clone());
        fault(&|json| json["source"]["tensors"][0]["role"] = role.clone());
    }
}

#[test]
fn version_1_refuses_a_key_that_stands_twice() {
    let file = std::fs::read(golden_1(13)).unwrap();
    let text = json(&file).to_string();
    for (key, value) in [
        ("tensors", "[]"),
        ("plan", "{}"),
        ("provenance", "0"),
        ("slots", "[]"),
        ("role", "0"),
        ("slot", "\"q\""),
        ("shared", "0"),
    ] {
        let once = format!("\"{key}\":");
        let twice = text.replacen(&once, &format!("{once}{value},{once}"), 1);
        assert!(twice != text, "{key}");
        let mut file = file.clone();
        assert!(put_manifest(&mut file, twice.as_bytes()));
        let message = Htz::parse(&file).unwrap_err().to_string();
        let expected = format!("duplicate field `{key}`, expected every key once");
        assert!(message.contains(&expected), "{message}");
    }
    for (key, entry) in [
        ("y", "\"x\":{\"y\":0,\"y\":0}"),
        ("tensors", "\"tensors\":[]"),
    ] {
        let mut file = file.clone();
        let twice = format!("{{{entry},{}", &text[1..]);
        assert!(put_manifest(&mut file, twice.as_bytes()));
        let message = Htz::parse(&file).unwrap_err().to_string();
        let expected = format!("duplicate field `{key}`");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn manifests_of_version_1_are_bounded() {
    let file = std::fs::read(golden_1(0)).unwrap();
    let with_values = |count: usize| {
        let mut json = json(&file);
        json["x"] = json!(vec![0; count]);
        let mut text = json.to_string();
        let length = (HEADER_BYTES + text.len()).next_multiple_of(256) - HEADER_BYTES;
        text.extend(std::iter::repeat_n(' ', length - text.len()));
        let mut file = [&file[..HEADER_BYTES], text.as_bytes()].concat();
        let end = file.len() as u64;
        file[24..32].copy_from_slice(&(length as u64).to_le_bytes());
        file[32..40].copy_from_slice(&end.to_le_bytes());
        reseal(&mut file);
        Htz::parse(&file).unwrap_err()
    };
    let fault = with_values(MAX_VALUES_OF_MANIFEST_1);
    assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
    let expected = format!("expected at most {MAX_VALUES_OF_MANIFEST_1} values in all, found more");
    assert!(fault.to_string().contains(&expected), "{fault}");
    // The data behind the manifest are missing alone.
    let fault = with_values(MAX_VALUES_OF_MANIFEST_1 / 2);
    assert!(!matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
    let mut long = file.clone();
    let length = MAX_MANIFEST_1_BYTES + HEADER_BYTES as u64;
    long[24..32].copy_from_slice(&length.to_le_bytes());
    reseal_header(&mut long);
    let message = Htz::parse(&long).unwrap_err().to_string();
    assert!(message.contains("at most 16777216"), "{message}");
}
