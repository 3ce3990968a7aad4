//! Source weights in an artifact (format 1.13).

use std::fs;

use crate::htz_common::{
    Choice, Model, data_offset, forged, hyper, mixed, model, sealed, with_source,
};
use htc_formats::DType;
use htc_formats::htz::{Htz, HtzError, HtzWriter, Section, SourceRecord};
use htc_formats::model::Role;
use htc_formats::source::{Container, ModelFile};
use serde_json::{Value, json};

fn refused(change: impl FnOnce(&mut Value)) -> String {
    let file = forged(&sealed().bytes(), change);
    let message = Htz::parse(&file)
        .expect_err("the fault is found")
        .to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

fn tensor<'a>(json: &'a mut Value, role: &str) -> &'a mut Value {
    let table = json["source"]["tensors"].as_array_mut().unwrap();
    table.iter_mut().find(|of| of["role"] == role).unwrap()
}

fn section<'a>(json: &'a mut Value, name: &str) -> &'a mut Value {
    let table = json["sections"].as_array_mut().unwrap();
    table.iter_mut().find(|of| of["name"] == name).unwrap()
}

#[test]
fn the_source_is_a_model_in_the_same_mapping() {
    let model = sealed();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    let artifact = ModelFile::from_htz(&htz).unwrap();
    let source = artifact.embedded_source().unwrap().unwrap();
    assert!(std::ptr::eq(&**source.files[0], &***htz.map()));
    let sha256 = model.manifest.provenance.source_sha256;
    assert_eq!(source.container, Container::EmbeddedSource { sha256 });
    assert_eq!(source.digest(), sha256);
    assert_eq!(source.hyper, artifact.hyper);
    assert_eq!(source.vocabulary, artifact.vocabulary);
    assert!(source.embedded_source().unwrap().is_none());
    assert_eq!(model.source.len(), 9);
    for (role, bytes) in &model.source {
        assert_eq!(source.bytes(source.tensor(*role).unwrap()), bytes, "{role}");
    }
    let record = model.manifest.source.as_ref().unwrap();
    assert_eq!(source.tensors.len(), record.tensors.len());
    let shared: Vec<Role> = record
        .tensors
        .iter()
        .filter(|t| t.shared)
        .map(|t| t.role)
        .collect();
    let norm = Role::AttentionNorm { layer: 0 };
    assert_eq!(
        shared,
        [Role::TokenEmbedding, Role::RopeFactors, norm, Role::Output]
    );
    for role in shared {
        let [own, other] =
            [&artifact, &source].map(|of| of.bytes(of.tensor(role).unwrap()).as_ptr());
        assert_eq!(own, other, "{role}");
    }
    let own: u64 = model
        .source
        .iter()
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    assert_eq!(htz.manifest().source_bytes(), own);
    assert_eq!(artifact.size(), htz.bytes_without_source());
    assert!(htz.bytes_without_source() + own <= htz.map().len() as u64);
    assert_eq!(
        source.size(),
        record
            .entries()
            .iter()
            .map(|entry| entry.length)
            .sum::<u64>()
    );
}

#[test]
fn equal_tensors_are_shared() {
    let model = sealed();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    let artifact = ModelFile::from_htz(&htz).unwrap();
    let source = artifact.embedded_source().unwrap().unwrap();
    let found = SourceRecord::new(&source, &htz);
    assert_eq!(Some(&found), model.manifest.source.as_ref());
    let role = |of: &ModelFile| of.tensors.iter().find(|t| t.name.contains(".k.")).cloned();
    let [own, other] = [&artifact, &source].map(|of| role(of).unwrap());
    assert_eq!((own.dtype, own.rows), (other.dtype, other.rows));
    assert_ne!(artifact.bytes(&own), source.bytes(&other));
}

#[test]
fn readers_may_ignore_the_source() {
    let (with, without) = (sealed().bytes(), mixed().bytes());
    let overlooked = forged(&with, |json| {
        json.as_object_mut().unwrap().remove("source");
    });
    let [with, overlooked, without] =
        [&with, &overlooked, &without].map(|file| Htz::parse(file).unwrap());
    assert_eq!(with.manifest().requires, without.manifest().requires);
    assert_eq!(with.manifest().plan, without.manifest().plan);
    let sections = &with.manifest().sections;
    assert!(sections[1..].iter().all(|section| !section.required));
    assert_eq!(overlooked.manifest().sections, *sections);
    assert_eq!(
        overlooked.bytes_without_source(),
        overlooked
            .manifest()
            .sections
            .last()
            .map(|s| s.offset + s.length)
            .unwrap()
    );
    overlooked.verify_all(|_| {}).unwrap();
    for (a, b) in with
        .manifest()
        .tensors
        .iter()
        .zip(&without.manifest().tensors)
    {
        assert_eq!((a.role, a.sha256), (b.role, b.sha256));
    }
    let typed = with_source(mixed(), DType::IQ4NL);
    assert_eq!(typed.manifest.requires, ["types"]);
    let file = forged(&typed.bytes(), |json| json["requires"] = json!([]));
    let fault = Htz::parse(&file).unwrap_err();
    assert!(matches!(fault, HtzError::FeatureNotRequired { feature } if feature == "types"));
}

#[test]
fn damage_in_the_source_is_detected_by_name() {
    let mut file = sealed().bytes();
    let place = {
        let htz = Htz::parse(&file).unwrap();
        let entry = htz
            .manifest()
            .section("source.blk.0.ffn_down.weight")
            .unwrap();
        (entry.offset + entry.length - 1) as usize
    };
    file[place] ^= 1;
    let htz = Htz::parse(&file).unwrap();
    let mut damaged = Vec::new();
    let first = htz.verify_all(|item| {
        if item.error.is_some() {
            damaged.push(item.item.to_owned());
        }
    });
    assert!(first.is_err());
    assert_eq!(damaged, ["section source.blk.0.ffn_down.weight"]);
}

#[test]
fn contradictions_to_the_artifact_are_refused_by_name() {
    let message = refused(|json| {
        let table = json["source"]["tensors"].as_array_mut().unwrap();
        table.retain(|of| of["role"] != "blk.0.attn_output.weight");
    });
    assert!(
        message.starts_with("source: ") && message.contains("blk.0.attn_output.weight"),
        "{message}"
    );
    let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["rows"] = json!(17));
    assert!(
        message.starts_with("source: ") && message.contains("shape"),
        "{message}"
    );
    let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["cols"] = json!(33));
    assert!(message.contains("a multiple of 32"), "{message}");
    let message = refused(|json| tensor(json, "blk.0.ffn_norm")["dtype"] = json!("q8_0"));
    assert!(message.contains("f32, f16 or bf16"), "{message}");
    let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["dtype"] = json!("bands"));
    assert!(message.contains("blk.0.attn_k.weight"), "{message}");
    let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["dtype"] = json!("q4_0"));
    assert!(message.contains("length of a section"), "{message}");
    let message = refused(|json| {
        let table = json["source"]["tensors"].as_array_mut().unwrap();
        table.swap(3, 4);
    });
    assert!(message.contains("tensor table"), "{message}");
    for role in [
        "blk.0.attn_qkv.basis",
        "blk.0.attn_q.a",
        "output.a",
        "blk.0.key_basis",
    ] {
        let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["role"] = json!(role));
        assert!(
            message.contains("not compressed") && message.contains(role),
            "{message}"
        );
    }
    let message = refused(|json| tensor(json, "blk.0.attn_v.weight")["shared"] = json!(true));
    assert!(
        message.contains("blk.0.attn_v.weight: tensor that it shares is none"),
        "{message}"
    );
    let message = refused(|json| tensor(json, "blk.0.attn_k.weight")["dtype"] = json!("f32"));
    assert!(message.contains("length of a section"), "{message}");
    let message = refused(|json| {
        let of = tensor(json, "token_embd.weight");
        of["dtype"] = json!("bf16");
    });
    assert!(
        message.contains("token_embd.weight: tensor that it shares"),
        "{message}"
    );
}

#[test]
fn mismatched_source_sections_are_refused() {
    let message = refused(|json| {
        tensor(json, "blk.0.attn_norm")["shared"] = json!(false);
    });
    assert!(message.contains("source.blk.0.attn_norm"), "{message}");
    let message = refused(|json| {
        section(json, "source.blk.0.attn_k.weight")["name"] = json!("source.blk.1.attn_k.weight");
    });
    assert!(
        message.contains("blk.0.attn_k.weight: section is"),
        "{message}"
    );
    let message = refused(|json| {
        let of = section(json, "source.blk.0.attn_k.weight");
        (of["encoding"], of["decoded_length"]) = (json!("zstd"), json!(100));
    });
    assert!(message.contains("raw"), "{message}");
    let message = refused(|json| {
        json["sections"].as_array_mut().unwrap().pop();
    });
    assert!(message.contains("section is missing"), "{message}");
    let message = refused(|json| {
        let of = section(json, "source.output_norm");
        (of["length"], of["decoded_length"]) = (json!(124), json!(124));
    });
    assert!(
        message.contains("length of a section is 124, expected 128"),
        "{message}"
    );
    let extra = Section::new("source.notes", false, b"x").unwrap();
    let fault = mixed().bytes_with(std::slice::from_ref(&extra));
    assert!(
        Htz::parse(&fault).is_ok(),
        "without a source that is a name like any other"
    );
    let folder = tempfile::tempdir().unwrap();
    let fault = sealed().write(&folder.path().join("x.htz"), &[extra]);
    let message = fault.unwrap_err().to_string();
    assert!(message.contains("source.notes"), "{message}");
    let message = refused(|json| {
        let first = json["source"]["tensors"].as_array_mut().unwrap();
        let last = first.last_mut().unwrap();
        assert_eq!(last["role"], "output.weight");
        first.pop();
        let table = json["sections"].as_array_mut().unwrap();
        let mut more = table.last().unwrap().clone();
        (more["name"], more["length"], more["decoded_length"]) =
            (json!("notes"), json!(0), json!(0));
        table.push(more);
    });
    assert!(message.contains("\"notes\": place"), "{message}");
}

#[test]
fn source_tensors_are_written_in_order() {
    let model = sealed();
    let folder = tempfile::tempdir().unwrap();
    let begin = |name: &str| {
        let sections = vec![Section::tokenizer(&model.vocabulary).unwrap()];
        let path = folder.path().join(name);
        HtzWriter::create(path, model.manifest.clone(), sections, false).unwrap()
    };
    let mut writer = begin("a.htz");
    let (first, bytes) = &model.source[0];
    let fault = writer.write_source(*first, bytes).unwrap_err().to_string();
    assert!(fault.contains("turn of token_embd.weight"), "{fault}");
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
    assert_eq!(
        writer.next_source_tensor().map(|tensor| tensor.role),
        Some(*first)
    );
    let fault = writer.write_source(Role::TokenEmbedding, &model.data[0].1);
    assert!(matches!(fault, Err(HtzError::OutOfOrder { .. })));
    let fault = writer.write_source(*first, &bytes[1..]);
    assert!(matches!(fault, Err(HtzError::Source { .. })));
    writer.write_source(*first, bytes).unwrap();
    let fault = writer.finish(|_| {}).unwrap_err().to_string();
    assert!(fault.contains("of the source"), "{fault}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut writer = begin("b.htz");
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
    for (role, bytes) in &model.source {
        writer.write_source(*role, bytes).unwrap();
    }
    let (last, bytes) = model.source.last().unwrap();
    assert!(matches!(
        writer.write_source(*last, bytes),
        Err(HtzError::OutOfOrder { .. })
    ));
    writer.finish(|_| {}).unwrap();
}

#[test]
fn predicted_length_includes_the_source() {
    let Model {
        manifest,
        vocabulary,
        ..
    } = sealed();
    let sections = [Section::tokenizer(&vocabulary).unwrap()];
    let length = HtzWriter::predict_length(manifest, &sections).unwrap();
    assert_eq!(length, sealed().bytes().len() as u64);
}

#[test]
fn long_tensor_spans_contiguous_sections() {
    let rows = (1 << 20) + 1;
    let hyper = htc_formats::model::HyperParameters {
        vocabulary: rows,
        ..hyper(1)
    };
    let mut artifact = model(hyper, false, None, (DType::F32, 6), |_, _| {
        Choice::Dense(DType::Q4_0)
    });
    let mut sealed = with_source(artifact.clone(), DType::Q8_0);
    let embedding = Role::TokenEmbedding;
    let record = sealed.manifest.source.as_mut().unwrap();
    (record.tensors[0].dtype, record.tensors[0].shared) = (DType::F64, false);
    let bytes: Vec<u8> = (0..rows as u32 * 64).flat_map(u32::to_le_bytes).collect();
    sealed.source.insert(0, (embedding, bytes));
    sealed.manifest.requires = vec!["types".to_owned()];
    artifact.source = sealed.source;
    artifact.manifest = sealed.manifest;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.htz");
    let mut writer = HtzWriter::create(&path, artifact.manifest, Vec::new(), false).unwrap();
    for (role, bytes) in &artifact.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
    for (role, bytes) in &artifact.source {
        writer.write_source(*role, bytes).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let htz = Htz::open(&path).unwrap();
    let names: Vec<&str> = htz
        .manifest()
        .sections
        .iter()
        .map(|of| of.name.as_str())
        .collect();
    assert_eq!(
        names[..2],
        ["source.token_embd.weight", "source.token_embd.weight.1"]
    );
    assert_eq!(htz.manifest().sections[1].length, 256);
    let source = ModelFile::from_htz(&htz)
        .unwrap()
        .embedded_source()
        .unwrap()
        .unwrap();
    assert!(source.bytes(source.tensor(embedding).unwrap()) == artifact.source[0].1);
    htz.verify_section(&htz.manifest().sections[1]).unwrap();
}

#[test]
fn wrong_manifest_bytes_never_panic() {
    let whole = sealed().bytes();
    let end = data_offset(&whole);
    let source = String::from_utf8_lossy(&whole[128..end])
        .find("\"source\"")
        .unwrap()
        + 128;
    for at in source..end {
        for change in [1, 4, 16] {
            let mut file = whole.clone();
            file[at] ^= change;
            crate::htz_common::reseal(&mut file);
            if let Ok(htz) = Htz::parse(&file) {
                assert!(
                    htz.bytes_without_source() + htz.manifest().source_bytes() <= file.len() as u64
                );
            }
        }
    }
}
