//! Format of artifacts: round trips, layout, unknown keys and sections.

use crate::htz_common::{
    Choice, allocated, data_offset, forged, formed, hyper, json, kernels, mixed, model, probed,
    treated, varied, with_kernels,
};
use htc_formats::htz::{ALIGNMENT, Encoding, HEADER_BYTES, Htz, MAGIC, Section};
use htc_formats::model::{Form, MatrixId, ProjectionKind, Role};
use htc_formats::{DType, htz};

#[test]
fn treatment_is_read_back_and_optional() {
    let model = treated();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().provenance, model.manifest.provenance);
    let short = forged(&file, |json| {
        json["provenance"]["treatment"] = serde_json::json!({"gauge": "axiom"});
    });
    let short = Htz::parse(&short).unwrap();
    let record = short.manifest().provenance.treatment.clone().unwrap();
    assert_eq!((record.sink, record.bias), (None, false));
    let without = forged(&file, |json| {
        json["provenance"]
            .as_object_mut()
            .unwrap()
            .remove("treatment");
    });
    let provenance = Htz::parse(&without).unwrap().manifest().provenance.clone();
    assert_eq!(provenance.treatment, None);
    assert_eq!(
        provenance.calibration,
        htz.manifest().provenance.calibration
    );
}

#[test]
fn geometry_is_read_back_and_optional() {
    let model = probed();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().geometry, model.manifest.geometry);
    let record = json(&file)["geometry"].clone();
    assert_eq!(
        record["depth_sink"],
        serde_json::json!({"layer": 0, "origin": "guessed"})
    );
    assert_eq!(
        record["spectra"][3],
        serde_json::json!({"id": "blk.0.attn_output", "components": 5, "largest": 2.5, "energy": 21.75})
    );
    let measured = forged(&file, |json| {
        json["geometry"]["depth_sink"]["origin"] = "measured".into();
    });
    let measured = Htz::parse(&measured).unwrap().manifest().geometry.clone();
    assert_eq!(
        measured.unwrap().depth_sink.origin,
        htz::DepthSinkOrigin::Measured
    );
    let mut asked = probed();
    let record = asked.manifest.geometry.as_mut().unwrap();
    record.depth_sink.origin = htz::DepthSinkOrigin::Asked;
    let read = |requires: &[String]| {
        let file = forged(&file, |json| {
            json["geometry"]["depth_sink"]["origin"] = "asked".into();
            json["requires"] = serde_json::json!(requires);
        });
        Htz::parse(&file).map(|_| ())
    };
    let fault = read(&asked.manifest.requires);
    assert!(matches!(
        fault,
        Err(htz::HtzError::FeatureNotRequired { .. })
    ));
    let feature = htz::Manifest::PROBE.to_owned();
    asked.manifest.requires.push(feature);
    read(&asked.manifest.requires).unwrap();
    Htz::parse(&asked.bytes()).unwrap();
    let without = forged(&file, |json| {
        json.as_object_mut().unwrap().remove("geometry");
    });
    assert_eq!(Htz::parse(&without).unwrap().manifest().geometry, None);
}

#[test]
fn allocation_is_read_back_and_optional() {
    let model = allocated();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(
        htz.manifest().plan.allocation,
        model.manifest.plan.allocation
    );
    let without = forged(&file, |json| {
        json["plan"].as_object_mut().unwrap().remove("allocation");
    });
    let plan = Htz::parse(&without).unwrap().manifest().plan.clone();
    assert_eq!(plan.allocation, None);
    assert_eq!(plan.projections, htz.manifest().plan.projections);
    let short = forged(&file, |json| {
        json["plan"]["allocation"] = serde_json::json!({"allocator": "phase"});
    });
    let short = Htz::parse(&short).unwrap();
    let record = short.manifest().plan.allocation.clone().unwrap();
    assert_eq!((record.rank_cap, record.notes.len()), (None, 0));
}

#[test]
fn forms_are_required_and_read_back() {
    let model = formed();
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().requires, ["roles", "forms"]);
    assert_eq!(
        htz.manifest().plan.matrices,
        model.manifest.plan.matrices,
        "{}",
        json(&file)["plan"]["matrices"]
    );
    assert_eq!(json(&file)["plan"]["matrices"][1]["id"], "output");
    assert_eq!(htz.manifest().plan.projections[3].form, Form::Residual);
    let without = forged(&file, |json| {
        json["plan"].as_object_mut().unwrap().remove("matrices");
    });
    let without = Htz::parse(&without).unwrap();
    assert!(without.manifest().plan.matrices.is_empty());
    let silent = forged(&file, |json| {
        json["requires"] = serde_json::json!(["roles"]);
    });
    let error = Htz::parse(&silent).unwrap_err().to_string();
    assert!(error.contains("\"forms\""), "{error}");
    let mut told = mixed();
    let mut record = model.manifest.plan.matrices[0].clone();
    record.id = MatrixId::Head;
    record.bytes_after = told
        .manifest
        .tensor(Role::Output)
        .unwrap()
        .stored_bytes()
        .unwrap();
    told.manifest.plan.matrices = vec![record];
    let told = Htz::parse(Box::new(told.bytes())).unwrap();
    assert!(told.manifest().requires.is_empty());
}

#[test]
fn features_in_use_are_required() {
    let file = varied().bytes();
    for feature in ["forward", "roles", "types"] {
        let bad = forged(&file, |manifest| {
            let requires = manifest["requires"].as_array_mut().unwrap();
            let before = requires.len();
            requires.retain(|name| name != feature);
            assert_eq!(requires.len(), before - 1);
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.htz");
        std::fs::write(&path, bad).unwrap();
        let error = Htz::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("feature {feature:?}")), "{error}");
    }
}

#[test]
fn new_vocabulary_features_are_required() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let mut model = mixed();
    model.vocabulary.collapse_spaces = true;
    let error = model.write(&path, &[]).unwrap_err().to_string();
    assert!(error.contains("\"vocabulary\""), "{error}");
    model.manifest.requires.push("vocabulary".to_owned());
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    assert_eq!(htz.vocabulary().unwrap(), model.vocabulary);
}

#[test]
fn unknown_forward_field_is_refused() {
    let bad = forged(&varied().bytes(), |manifest| {
        let forward = &mut manifest["hyper"]["forward"];
        let caps = forward.as_object_mut().unwrap();
        caps.remove("attention_softcap").unwrap();
        caps.insert("alibi".to_owned(), true.into());
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.htz");
    std::fs::write(&path, bad).unwrap();
    let error = Htz::open(&path).unwrap_err().to_string();
    assert!(error.contains("alibi"), "{error}");
}

#[test]
fn written_artifact_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    model.write(&path, &[]).unwrap();
    let htz = Htz::open(&path).unwrap();
    let read = htz.manifest();
    assert_eq!(read.hyper, model.manifest.hyper);
    assert_eq!(read.provenance, model.manifest.provenance);
    assert_eq!(read.plan.bases, model.manifest.plan.bases);
    for (index, (read, written)) in read
        .plan
        .projections
        .iter()
        .zip(&model.manifest.plan.projections)
        .enumerate()
    {
        let mut written = written.clone();
        written.error = Some(index as f64 / 16.0);
        assert_eq!(*read, written);
    }
    assert_eq!(read.tensors.len(), model.data.len());
    for (entry, (role, bytes)) in read.tensors.iter().zip(&model.data) {
        assert_eq!(entry.role, *role);
        assert_eq!(htz.tensor_bytes(entry), bytes);
        assert_eq!(
            htz.tensor_bytes(entry).as_ptr() as usize % ALIGNMENT as usize,
            0
        );
        assert_eq!(entry.sha256, htz::Digest::of_bytes(bytes));
        htz.verify_tensor(entry).unwrap();
    }
    assert_eq!(htz.vocabulary().unwrap(), model.vocabulary);
    assert_eq!(htz.map().path(), path);
}

/// The numbers are those of the specification.
#[test]
fn layout_follows_the_specification() {
    let file = mixed().bytes();
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!(file[..8], [0x89, 0x48, 0x54, 0x5A, 0x0D, 0x0A, 0x1A, 0x0A]);
    assert_eq!(file[8..12], [2, 0, 0, 0]);
    assert_eq!(file[12..16], [128, 0, 0, 0]);
    assert_eq!(u64_at(16), 128);
    assert_eq!(u64_at(32), file.len() as u64);
    assert_eq!(file[72..96], [0; 24]);
    assert_eq!(htz::Digest::of_bytes(&file[..96]).0, file[96..128]);
    let data = 128 + u64_at(24) as usize;
    assert_eq!(data % 256, 0);
    assert_eq!(htz::Digest::of_bytes(&file[128..data]).0, file[40..72]);

    let manifest = json(&file);
    assert_eq!(file[data - 1], b' ');
    let mut end = data as u64;
    for table in ["tensors", "sections"] {
        for entry in manifest[table].as_array().unwrap() {
            let offset = entry["offset"].as_u64().unwrap();
            assert_eq!(offset, end.div_ceil(256) * 256);
            assert!(
                file[end as usize..offset as usize]
                    .iter()
                    .all(|&byte| byte == 0)
            );
            end = offset + entry["length"].as_u64().unwrap();
        }
    }
    assert_eq!(end, file.len() as u64);
}

#[test]
fn tensors_are_in_the_order_of_execution() {
    let htz = Htz::parse(Box::new(mixed().bytes())).unwrap();
    let roles: Vec<String> = htz
        .manifest()
        .tensors
        .iter()
        .map(|entry| entry.role.to_string())
        .collect();
    let expected = [
        "token_embd.weight",
        "rope_freqs",
        "blk.0.attn_norm",
        "blk.0.attn_qkv.basis",
        "blk.0.attn_q.projected",
        "blk.0.attn_k.weight",
        "blk.0.attn_v.projected",
        "blk.0.attn_output.a",
        "blk.0.attn_output.b",
        "blk.0.ffn_norm",
        "blk.0.ffn_gate.weight",
        "blk.0.ffn_up.a",
        "blk.0.ffn_up.b",
        "blk.0.ffn_down.a",
        "blk.0.ffn_down.b",
        "output_norm",
        "output.weight",
    ];
    assert_eq!(roles, expected);
}

#[test]
fn a_dense_model_without_output_and_factors_is_an_artifact() {
    let choose = |_, _: ProjectionKind| Choice::Dense(DType::F32);
    let file = model(hyper(2), false, None, (DType::F32, 1), choose).bytes();
    let htz = Htz::parse(&file).unwrap();
    assert!(htz.manifest().tensor(Role::Output).is_none());
    assert!(htz.manifest().tensor(Role::RopeFactors).is_none());
    htz.verify_all(|_| {}).unwrap();
}

#[test]
fn a_basis_may_have_the_full_width_and_serve_both_groups() {
    let choose = |_, projection: ProjectionKind| match projection.group() {
        Some(_) => Choice::Shared(DType::F32),
        None => Choice::LowRank(DType::F32, 32),
    };
    let file = model(hyper(1), false, None, (DType::F32, 32), choose).bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().plan.bases.len(), 2);
}

#[test]
fn a_later_minor_with_unknown_keys_and_optional_sections_is_read() {
    let notes = b"what 2.7 added".repeat(20);
    let extra = [
        Section::new("notes", false, &notes).unwrap(),
        Section::new("empty", false, b"").unwrap(),
    ];
    let mut file = mixed().bytes_with(&extra);
    file[10] = 7;
    let file = forged(&file, |json| {
        json["claims"] = serde_json::json!({"perplexity": 7.5});
        json["plan"]["projections"][0]["weighting"] = "whiten".into();
    });
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.format(), (2, 7));
    htz.verify_all(|_| {}).unwrap();
    let section = |name| htz.manifest().section(name).unwrap();
    assert_eq!(section("notes").encoding, Encoding::Zstd);
    assert_eq!(htz.section(section("notes")).unwrap(), notes);
    assert_eq!(section("empty").encoding, Encoding::Raw);
    assert_eq!(htz.section(section("empty")).unwrap(), b"");
}

#[test]
fn numbers_round_trip_through_json() {
    let mut model = mixed();
    // Shortest forms that an inexact parser rounds to a neighbour.
    model.manifest.hyper.norm_epsilon = 1.000_000_1e-5;
    model.manifest.hyper.rope_theta = 499_999.97;
    let mut state = 1_u32;
    for score in &mut model.vocabulary.scores {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        *score = f32::from_bits((state & 0x00ff_ffff) | 0x4100_0000);
    }
    let file = model.bytes();
    let htz = Htz::parse(&file).unwrap();
    assert_eq!(htz.manifest().hyper, model.manifest.hyper);
    let bits = |scores: &[f32]| scores.iter().map(|s| s.to_bits()).collect::<Vec<_>>();
    assert_eq!(
        bits(&htz.vocabulary().unwrap().scores),
        bits(&model.vocabulary.scores)
    );
}

#[test]
fn magic_is_not_valid_text() {
    assert!(std::str::from_utf8(&MAGIC).is_err());
    assert_eq!(HEADER_BYTES, 128);
    assert_eq!(data_offset(&mixed().bytes()) % 256, 0);
}

#[test]
fn kernels_are_read_and_damage_is_detected() {
    let model = with_kernels();
    let file = model.bytes();
    let htz = Htz::parse(Box::new(file.clone())).unwrap();
    assert_eq!(htz.kernels().unwrap(), Some(kernels()));
    let without = Htz::parse(Box::new(mixed().bytes())).unwrap();
    assert_eq!(without.kernels().unwrap(), None);
    let entry = htz.manifest().section(htz::KERNELS).unwrap().clone();
    assert!(!entry.required && htz.manifest().requires.is_empty());
    let mut damaged = file;
    damaged[entry.offset as usize + 40] ^= 1;
    let damaged = Htz::parse(Box::new(damaged)).unwrap();
    let error = damaged.kernels().unwrap_err().to_string();
    assert!(error.contains("section kernels"), "{error}");
    assert!(damaged.verify_all(|_| {}).is_err());
}

#[test]
fn invalid_kernels_section_is_refused() {
    let mut model = mixed();
    model.manifest.requires.clear();
    let sections = [
        Section::tokenizer(&model.vocabulary).unwrap(),
        Section::new(htz::KERNELS, false, b"something else").unwrap(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.htz");
    let mut writer =
        htz::HtzWriter::create(&path, model.manifest, sections.to_vec(), false).unwrap();
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let htz = Htz::open(&path).unwrap();
    htz.verify_all(|_| {}).unwrap();
    let error = htz.kernels().unwrap_err().to_string();
    assert!(error.contains("expected compiled kernels"), "{error}");
}
