//! Damaged files: any change is detected, and truncated files do not open.

use crate::htz_common::{data_offset, json, mixed};
use htc_formats::CodecError;
use htc_formats::htz::{Htz, HtzError, Section};

fn detected_error(file: &[u8]) -> Option<HtzError> {
    match Htz::parse(&file) {
        Err(fault) => Some(fault),
        Ok(htz) => htz.verify_all(|_| {}).err(),
    }
}

#[test]
fn any_flipped_bit_is_detected() {
    let extra = Section::new("notes", false, b"raw, since it is short").unwrap();
    let mut file = mixed().bytes_with(&[extra]);
    assert!(detected_error(&file).is_none());
    for at in 0..file.len() {
        let bit = 1 << (at % 8);
        file[at] ^= bit;
        assert!(
            detected_error(&file).is_some(),
            "byte {at} of {}",
            file.len()
        );
        file[at] ^= bit;
    }
    assert!(detected_error(&file).is_none());
}

#[test]
fn flipped_bit_is_attributed_to_the_damaged_item() {
    let mut file = mixed().bytes();
    let manifest = json(&file);
    let place = |table: &str, index: usize| {
        let entry = &manifest[table][index];
        let get = |key: &str| entry[key].as_u64().unwrap() as usize;
        (get("offset"), get("length"))
    };
    let mut flipped = |at: usize| {
        file[at] ^= 0x10;
        let fault = detected_error(&file).unwrap();
        file[at] ^= 0x10;
        fault
    };
    assert!(matches!(flipped(0), HtzError::Magic { .. }));
    for at in (8..128).chain([40, 96]) {
        assert!(
            matches!(flipped(at), HtzError::Digest { item, .. } if item == "the header"),
            "{at}"
        );
    }
    let end = data_offset(&mixed().bytes());
    for at in [128, end - 1] {
        assert!(matches!(flipped(at), HtzError::Digest { item, .. } if item == "the manifest"));
    }
    let (offset, length) = place("tensors", 7);
    assert_ne!(length % 256, 0);
    for at in [offset, offset + length - 1] {
        let fault = flipped(at);
        assert!(
            matches!(&fault, HtzError::Digest { item, .. } if item == "tensor blk.0.attn_output.a")
        );
    }
    let at = offset + length;
    match flipped(at) {
        HtzError::Padding { offset, found } => assert_eq!((offset, found), (at as u64, 0x10)),
        other => panic!("{other}"),
    }
    let (offset, _) = place("sections", 0);
    let fault = flipped(offset);
    assert!(matches!(&fault, HtzError::Digest { item, .. } if item == "section tokenizer"));
}

#[test]
fn verification_reports_every_damaged_item() {
    let mut file = mixed().bytes();
    let manifest = json(&file);
    for index in [3, 5] {
        let offset = manifest["tensors"][index]["offset"].as_u64().unwrap();
        file[offset as usize] ^= 1;
    }
    let htz = Htz::parse(&file).unwrap();
    let (mut damaged, mut bytes) = (Vec::new(), 0);
    let first = htz.verify_all(|item| {
        bytes += item.bytes;
        if item.error.is_some() {
            damaged.push(item.item.to_owned());
        }
    });
    assert_eq!(
        damaged,
        ["tensor blk.0.attn_qkv.basis", "tensor blk.0.attn_k.weight"]
    );
    assert!(first.unwrap_err().to_string().contains("qkv.basis"));
    assert_eq!(bytes, (file.len() - data_offset(&file)) as u64);
}

#[test]
fn damaged_tokenizer_is_refused() {
    let mut file = mixed().bytes();
    *file.last_mut().unwrap() ^= 1;
    let htz = Htz::parse(&file).unwrap();
    let error = htz.vocabulary().unwrap_err();
    assert!(matches!(error, HtzError::Digest { item, .. } if item == "section tokenizer"));
}

#[test]
fn truncated_file_is_refused_at_any_length() {
    let file = mixed().bytes();
    for length in 0..file.len() {
        match Htz::parse(&&file[..length]) {
            Err(HtzError::Decode(CodecError::Truncated { .. })) => assert!(length < 128),
            Err(HtzError::FileLength { expected, found }) => {
                assert_eq!((expected, found), (file.len() as u64, length as u64));
            }
            other => panic!("{length} bytes: {other:?}"),
        }
    }
}

#[test]
fn trailing_bytes_are_refused() {
    let mut file = mixed().bytes();
    file.push(0);
    assert!(matches!(
        Htz::parse(&file),
        Err(HtzError::FileLength { .. })
    ));
}
