//! Opens, decodes and verifies arbitrary artifacts.
//!
//! Digests reject nearly every input, so each is also used as the body after a valid header of every
//! major version; its first byte is the number of 256-byte units of manifest.
#![no_main]

use htc_formats::htz::{ALIGNMENT, Digest, FORMAT_MAJOR, HEADER_BYTES, Htz, MAGIC, Section};
use htc_formats::metadata::FolderFiles;
use libfuzzer_sys::fuzz_target;

fn use_it(file: &[u8]) {
    let Ok(htz) = Htz::parse(&file) else {
        return;
    };
    for entry in &htz.manifest().tensors {
        assert_eq!(htz.tensor_bytes(entry).len() as u64, entry.length);
    }
    for entry in &htz.manifest().sections {
        let _ = htz.section(entry);
    }
    assert!(htz.bytes_without_source() + htz.manifest().source_bytes() <= file.len() as u64);
    for found in htz.manifest().quality.iter().flat_map(|q| [q.kl, q.perplexity_ratio]) {
        assert!(found.value.is_finite() && found.value >= 0.0);
        let (low, high) = found.interval.unwrap_or((0.0, f64::MAX));
        assert!(low <= found.value && found.value <= high);
    }
    let vocabulary = htz.vocabulary().ok();
    if let Ok(Some(metadata)) = htz.source_metadata() {
        let _ = metadata.summary();
        let _ = metadata.to_gguf(Vec::new(), vocabulary.as_ref());
        let _ = metadata.to_folder(FolderFiles::default(), vocabulary.as_ref(), &[]);
        let _ = Section::source_metadata(&metadata);
    }
    let _ = htz.verify_all(|_| {});
}

fn with_header(major: u16, units: u8, body: &[u8]) -> Vec<u8> {
    let length = (usize::from(units) + 1) * ALIGNMENT as usize - HEADER_BYTES;
    let mut manifest = body[..length.min(body.len())].to_vec();
    manifest.resize(length, b' ');
    let data = &body[length.min(body.len())..];
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&major.to_le_bytes());
    file.extend_from_slice(&0_u16.to_le_bytes());
    file.extend_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
    file.extend_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
    file.extend_from_slice(&(length as u64).to_le_bytes());
    let file_length = HEADER_BYTES + length + data.len();
    file.extend_from_slice(&(file_length as u64).to_le_bytes());
    file.extend_from_slice(&Digest::of_bytes(&manifest).0);
    file.resize(HEADER_BYTES - 32, 0);
    let digest = Digest::of_bytes(&file);
    file.extend_from_slice(&digest.0);
    file.extend_from_slice(&manifest);
    file.extend_from_slice(data);
    file
}

fuzz_target!(|input: &[u8]| {
    use_it(input);
    if let Some((&units, body)) = input.split_first() {
        for major in 1..=FORMAT_MAJOR {
            use_it(&with_header(major, units, body));
        }
    }
});
