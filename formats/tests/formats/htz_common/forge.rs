//! Modified artifacts.

use htc_formats::htz::{Digest, HEADER_BYTES, Htz, HtzError};
use serde_json::Value;

use super::mixed;

pub fn data_offset(file: &[u8]) -> usize {
    let length = u64::from_le_bytes(file[24..32].try_into().expect("eight bytes"));
    HEADER_BYTES + length as usize
}

pub fn reseal_header(file: &mut [u8]) {
    let digest = Digest::of_bytes(&file[..96]);
    file[96..128].copy_from_slice(&digest.0);
}

pub fn reseal(file: &mut [u8]) {
    let digest = Digest::of_bytes(&file[HEADER_BYTES..data_offset(file)]);
    file[40..72].copy_from_slice(&digest.0);
    reseal_header(file);
}

pub fn json(file: &[u8]) -> serde_json::Value {
    serde_json::from_slice(&file[HEADER_BYTES..data_offset(file)]).expect("the manifest is JSON")
}

/// Corrects the digests; returns `false` if the manifest does not fit.
pub fn put_manifest(file: &mut [u8], text: &[u8]) -> bool {
    let end = data_offset(file);
    let room = &mut file[HEADER_BYTES..end];
    if text.len() > room.len() {
        return false;
    }
    room.fill(b' ');
    room[..text.len()].copy_from_slice(text);
    reseal(file);
    true
}

pub fn forged(file: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut file = file.to_vec();
    let mut value = json(&file);
    change(&mut value);
    assert!(put_manifest(&mut file, value.to_string().as_bytes()));
    file
}

/// Returns the fault of an artifact with a changed manifest, and its message.
pub fn refused(change: impl FnOnce(&mut Value)) -> (HtzError, String) {
    refused_in(&mixed().bytes(), change)
}

/// The same of another artifact.
pub fn refused_in(file: &[u8], change: impl FnOnce(&mut Value)) -> (HtzError, String) {
    let file = forged(file, change);
    let fault = Htz::parse(&file).expect_err("the fault is found");
    let message = fault.to_string();
    assert!(!message.contains('\n'), "{message}");
    (fault, message)
}

macro_rules! refuses {
    ($variant:pat, $texts:expr, $change:expr) => {{
        let (fault, message) = refused($change);
        assert!(matches!(fault, $variant), "{message}");
        for text in $texts {
            assert!(message.contains(text), "{text:?} in {message:?}");
        }
    }};
}
pub(crate) use refuses;
