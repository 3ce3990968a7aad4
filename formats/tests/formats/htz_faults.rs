//! Invalid contents under valid digests, one test per fault.

use crate::htz_common::{
    Choice, forged, hyper, json, mixed, model, put_manifest, refused, refuses, reseal,
    reseal_header,
};
use htc_formats::htz::{Htz, HtzError, Record, Section};
use htc_formats::model::ProjectionKind;
use htc_formats::{CodecError, DType};
use serde_json::{Value, json};

fn index(role: &str) -> usize {
    let json = json(&mixed().bytes());
    let table = json["tensors"].as_array().unwrap();
    table
        .iter()
        .position(|entry| entry["role"] == role)
        .unwrap()
}

fn header(change: impl FnOnce(&mut [u8])) -> HtzError {
    let mut file = mixed().bytes();
    change(&mut file);
    reseal_header(&mut file);
    Htz::parse(&file).expect_err("the fault is found")
}

// Header.

#[test]
fn another_kind_of_file() {
    for text in [&b"GGUF\x03\0\0\0"[..], b"\x89PNG\r\n\x1a\n", b"PK", b"\n"] {
        let fault = Htz::parse(&text).unwrap_err();
        assert!(matches!(fault, HtzError::Magic { .. }), "{fault}");
        assert!(!fault.to_string().contains('\n'));
    }
    assert!(matches!(
        Htz::parse(&&b""[..]),
        Err(HtzError::Decode(CodecError::Truncated { .. }))
    ));
}

#[test]
fn another_major_version() {
    for (major, byte) in [(0, 0), (3, 3)] {
        let fault = header(|file| file[8] = byte);
        assert!(matches!(fault, HtzError::Major { found } if found == major));
        let message = fault.to_string();
        let expected = format!("format {major}.x is not supported, only 1.x and 2.x;");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn impossible_fields_of_the_header() {
    for (at, value, name) in [
        (12, 129, "length of the header"),
        (16, 136, "offset of the manifest"),
        (24, 1, "length of the manifest"),
        (24, 128 + 256 * 1_100_000, "length of the manifest"),
        (24, 128 + 256 * 1000, "length of the manifest"),
        (72, 1, "reserved byte"),
        (88, 1, "reserved byte"),
    ] {
        let fault = header(|file| file[at..at + 4].copy_from_slice(&i32::to_le_bytes(value)));
        assert!(
            matches!(fault, HtzError::Header { field, .. } if field == name),
            "{fault}"
        );
    }
    let fault = header(|file| file[31] = 0xff);
    assert!(matches!(fault, HtzError::Header { .. }), "{fault}");
    let fault = header(|file| file[39] = 0xff);
    assert!(matches!(fault, HtzError::FileLength { .. }), "{fault}");
}

// Manifest as text.

#[test]
fn a_manifest_that_is_no_json_object() {
    let file = mixed().bytes();
    for text in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"{} {}",
        b"\"\xff\"",
        b"{\"requires\":[],\"sections\":[],\"x\":\"\xff\"}",
        &b"[".repeat(5000),
        &b"{\"x\":".repeat(1000),
    ] {
        let mut file = file.clone();
        assert!(put_manifest(&mut file, text));
        let fault = Htz::parse(&file).unwrap_err();
        assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
        assert!(!fault.to_string().contains('\n'));
    }
}

#[test]
fn bytes_other_than_spaces_after_the_manifest() {
    let mut file = mixed().bytes();
    let end = crate::htz_common::data_offset(&file);
    file[end - 1] = b'\n';
    reseal(&mut file);
    let fault = Htz::parse(&file).unwrap_err();
    assert!(matches!(fault, HtzError::ManifestSyntax { .. }), "{fault}");
}

#[test]
fn a_key_that_is_missing_or_twice_or_of_another_type() {
    for key in [
        "requires",
        "hyper",
        "tensors",
        "sections",
        "plan",
        "provenance",
    ] {
        refuses!(HtzError::ManifestSyntax { .. }, [key], |json| {
            json.as_object_mut().unwrap().remove(key);
        });
        refuses!(HtzError::ManifestSyntax { .. }, [""], |json| json[key] =
            7.into());
    }
    let file = mixed().bytes();
    let text = json(&file).to_string();
    let twice = format!("{{\"requires\":[],{}", &text[1..]);
    let mut file = file;
    assert!(put_manifest(&mut file, twice.as_bytes()));
    assert!(matches!(
        Htz::parse(&file),
        Err(HtzError::ManifestSyntax { .. })
    ));
}

#[test]
fn numbers_that_do_not_fit() {
    for value in [json!(-1), json!(1.5), json!(1e300), json!("1"), Value::Null] {
        refuses!(HtzError::ManifestSyntax { .. }, [""], |json| {
            json["tensors"][0]["rows"] = value;
        });
    }
    refuses!(HtzError::ManifestSyntax { .. }, [""], |json| {
        json["hyper"]["norm_epsilon"] = Value::Null;
    });
}

#[test]
fn an_unknown_enum_name() {
    for (key, value) in [
        ("role", json!("blk.00.attn_q.weight")),
        ("role", json!("lm_head\n")),
        ("dtype", json!("nvfp4")),
        ("sha256", json!("00")),
    ] {
        refuses!(HtzError::ManifestSyntax { .. }, [""], |json| {
            json["tensors"][0][key] = value;
        });
    }
}

#[test]
fn a_feature_or_a_required_section_that_is_unknown() {
    refuses!(
        HtzError::Unsupported { .. },
        ["format 2.0", "\"bias\"", "update htc"],
        |json| json["requires"] = json!(["bias"])
    );
    refuses!(HtzError::Unsupported { .. }, ["\"bias\""], |json| {
        json["requires"] = json!(["bias"]);
        json["tensors"] = json!({});
    });
    let file = mixed().bytes_with(&[Section::new("signature", false, b"x").unwrap()]);
    let file = forged(&file, |json| json["sections"][1]["required"] = true.into());
    let fault = Htz::parse(&file).unwrap_err();
    assert!(matches!(&fault, HtzError::Unsupported { feature, .. } if feature == "signature"));
}

// Hyper-parameters.

#[test]
fn impossible_hyper_parameters() {
    for (key, value) in [
        ("layers", json!(0)),
        ("layers", json!(u64::MAX)),
        ("heads", json!(u64::MAX)),
        ("heads", json!(1 << 20)),
        ("kv_heads", json!(3)),
        ("rope_dimensions", json!(7)),
        ("rope_dimensions", json!(18)),
        ("norm_epsilon", json!(0.0)),
    ] {
        refuses!(HtzError::Hyper(_), [""], |json| json["hyper"][key] = value);
    }
}

#[test]
fn more_layers_than_tensors() {
    refuses!(
        HtzError::TensorOrder { .. },
        ["output_norm", "blk.1.attn_norm"],
        |json| json["hyper"]["layers"] = 4096.into()
    );
}

// Tensor table.

#[test]
fn a_tensor_that_is_missing() {
    for entry in json(&mixed().bytes())["tensors"].as_array().unwrap() {
        let role = entry["role"].as_str().unwrap();
        if ["rope_freqs", "output.weight"].contains(&role) {
            continue;
        }
        let at = index(role);
        refuses!(HtzError::TensorOrder { .. }, [""], |json| {
            json["tensors"].as_array_mut().unwrap().remove(at);
        });
    }
}

#[test]
fn a_tensor_that_is_there_twice() {
    for at in 0..17 {
        refuses!(
            HtzError::TensorOrder { .. }
                | HtzError::Property {
                    record: Record::Tensor(_),
                    ..
                },
            [""],
            |json| {
                let table = json["tensors"].as_array_mut().unwrap();
                let again = table[at].clone();
                table.insert(at, again);
            }
        );
    }
}

#[test]
fn tensors_out_of_order() {
    for at in 0..16 {
        refuses!(HtzError::TensorOrder { .. }, [""], |json| {
            json["tensors"].as_array_mut().unwrap().swap(at, at + 1);
        });
    }
}

#[test]
fn a_layer_that_does_not_exist() {
    refuses!(
        HtzError::TensorOrder { .. },
        ["blk.7.attn_k.weight", "blk.0.attn_k.weight"],
        |json| json["tensors"][index("blk.0.attn_k.weight")]["role"] = "blk.7.attn_k.weight".into()
    );
}

#[test]
fn a_projection_that_is_both_dense_and_factored() {
    refuses!(
        HtzError::TensorOrder { .. },
        ["blk.0.ffn_norm", "blk.0.attn_output.weight"],
        |json| {
            let table = json["tensors"].as_array_mut().unwrap();
            let mut dense = table[index("blk.0.attn_k.weight")].clone();
            dense["role"] = "blk.0.attn_output.weight".into();
            table.insert(index("blk.0.attn_output.b") + 1, dense);
        }
    );
}

#[test]
fn a_shared_basis_form_without_a_basis() {
    refuses!(
        HtzError::TensorOrder { .. },
        ["blk.0.attn_q.projected"],
        |json| {
            let at = index("blk.0.attn_qkv.basis");
            json["tensors"].as_array_mut().unwrap().remove(at);
        }
    );
}

#[test]
fn an_unused_basis() {
    let choose = |_, _: ProjectionKind| Choice::Dense(DType::F32);
    let file = model(hyper(1), false, None, (DType::F32, 1), choose).bytes();
    let file = forged(&file, |json| {
        let table = json["tensors"].as_array_mut().unwrap();
        let mut basis = table[1].clone();
        basis["role"] = "blk.0.attn_qkv.basis".into();
        table.insert(2, basis);
    });
    let fault = Htz::parse(&file).unwrap_err();
    assert!(
        matches!(&fault, HtzError::Property { record: Record::Tensor(_), property, .. } if property.contains("use it"))
    );
}

#[test]
fn ranks_that_do_not_agree() {
    for (role, key, value) in [
        ("blk.0.attn_output.b", "cols", 4),
        ("blk.0.attn_output.a", "rows", 4),
        ("blk.0.attn_v.projected", "cols", 5),
        ("blk.0.attn_qkv.basis", "rows", 5),
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            ["shape", "expected"],
            |json| {
                let entry = &mut json["tensors"][index(role)];
                let length = entry["length"].as_u64().unwrap() / entry[key].as_u64().unwrap();
                entry[key] = value.into();
                entry["length"] = (length * value).into();
            }
        );
    }
}

#[test]
fn a_rank_above_what_the_matrix_has() {
    let mut model = mixed();
    let down = index("blk.0.ffn_down.a");
    model.manifest.tensors[down].rows = 33;
    model.manifest.tensors[down + 1].cols = 33;
    let fault = model.write(&tempfile::tempdir().unwrap().path().join("x"), &[]);
    assert!(matches!(
        fault,
        Err(HtzError::Property {
            record: Record::Tensor(_),
            property: "rank",
            ..
        })
    ));
    model.manifest.tensors[down].rows = 65;
    let fault = model.write(&tempfile::tempdir().unwrap().path().join("x"), &[]);
    assert!(matches!(
        fault,
        Err(HtzError::Property {
            record: Record::Tensor(_),
            property: "shape",
            ..
        })
    ));
}

#[test]
fn a_shape_that_contradicts_the_hyper_parameters() {
    for (role, rows, cols) in [
        ("token_embd.weight", 6, 64),
        ("rope_freqs", 2, 4),
        ("blk.0.attn_norm", 2, 16),
        ("blk.0.ffn_gate.weight", 32, 64),
        ("output_norm", 32, 1),
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            [role, "shape"],
            |json| {
                let entry = &mut json["tensors"][index(role)];
                entry["rows"] = rows.into();
                entry["cols"] = cols.into();
            }
        );
    }
}

#[test]
fn dimensions_that_are_zero_or_huge() {
    for value in [0, u64::MAX, 1 << 40] {
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            ["number of rows"],
            |json| {
                json["tensors"][index("blk.0.attn_qkv.basis")]["rows"] = value.into();
            }
        );
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            ["number of columns"],
            |json| {
                json["tensors"][index("blk.0.attn_qkv.basis")]["cols"] = value.into();
            }
        );
    }
}

#[test]
fn a_length_that_contradicts_the_shape() {
    for value in [0, 1, u64::MAX] {
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            ["blk.0.attn_output.a", "length"],
            |json| {
                json["tensors"][index("blk.0.attn_output.a")]["length"] = value.into();
            }
        );
    }
}

#[test]
fn a_row_that_is_no_whole_number_of_blocks() {
    refuses!(
        HtzError::Property {
            record: Record::Tensor(_),
            ..
        },
        ["q4_k", "multiple of 256"],
        |json| {
            json["tensors"][index("blk.0.attn_k.weight")]["dtype"] = "q4_k".into();
        }
    );
}

#[test]
fn a_norm_in_a_block_format() {
    refuses!(
        HtzError::Property {
            record: Record::Tensor(_),
            ..
        },
        ["output_norm", "q8_0", "f32"],
        |json| {
            let entry = &mut json["tensors"][index("output_norm")];
            entry["dtype"] = "q8_0".into();
            entry["length"] = 34.into();
        }
    );
}

#[test]
fn a_name_that_is_too_long() {
    refuses!(
        HtzError::Property {
            record: Record::Tensor(_),
            ..
        },
        ["length of the name", "255"],
        |json| {
            json["tensors"][0]["name"] = "x".repeat(256).into();
        }
    );
}

// Offsets.

#[test]
fn a_tensor_that_is_misaligned_overlaps_or_leaves_a_gap() {
    let offset = json(&mixed().bytes())["tensors"][5]["offset"]
        .as_u64()
        .unwrap();
    for wrong in [
        offset + 1,
        offset - 256,
        offset + 256,
        0,
        128,
        u64::MAX,
        u64::MAX - 255,
    ] {
        refuses!(
            HtzError::Property {
                record: Record::Tensor(_),
                ..
            },
            ["blk.0.attn_k.weight", "offset"],
            |json| {
                json["tensors"][5]["offset"] = wrong.into();
            }
        );
    }
}

#[test]
fn a_section_that_is_misplaced_or_overlaps_the_end() {
    let entry = json(&mixed().bytes())["sections"][0].clone();
    let offset = entry["offset"].as_u64().unwrap();
    for wrong in [offset + 1, offset - 256, offset + 256, u64::MAX] {
        refuses!(
            HtzError::Property {
                record: Record::Section(_),
                ..
            },
            ["tokenizer", "offset"],
            |json| {
                json["sections"][0]["offset"] = wrong.into();
            }
        );
    }
    let length = entry["length"].as_u64().unwrap();
    for wrong in [length - 1, length + 1] {
        refuses!(HtzError::FileLength { .. }, [""], |json| {
            json["sections"][0]["length"] = wrong.into();
        });
    }
    refuses!(
        HtzError::Property {
            record: Record::Section(_),
            ..
        },
        ["one that fits"],
        |json| {
            json["sections"][0]["length"] = u64::MAX.into();
        }
    );
    refuses!(HtzError::FileLength { .. }, [""], |json| json["sections"] =
        json!([]));
}
