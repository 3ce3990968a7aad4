//! Memory that a malicious manifest can take.

use crate::htz_common::{mixed, reseal};
use htc_formats::htz::{HEADER_BYTES, Htz, HtzError};

/// Returns the most bytes that the process had resident so far.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kibibytes.parse::<usize>().unwrap() << 10
}

/// The only test of the program, which would count the memory of others.
#[test]
fn column_groups_are_counted_without_keeping_the_tensors() {
    let mut text = "{\"requires\":[],\"sections\":[],\"tensors\":[{}".to_owned();
    (1..2 << 20).for_each(|_| text.push_str(",{}"));
    text.push_str("]}");
    let length = (HEADER_BYTES + text.len()).next_multiple_of(256) - HEADER_BYTES;
    text.extend(std::iter::repeat_n(' ', length - text.len()));
    let mut file = [&mixed().bytes()[..HEADER_BYTES], text.as_bytes()].concat();
    let end = file.len() as u64;
    file[24..32].copy_from_slice(&(length as u64).to_le_bytes());
    file[32..40].copy_from_slice(&end.to_le_bytes());
    reseal(&mut file);
    let before = peak_memory();
    let error = Htz::parse(&file).unwrap_err();
    let taken = peak_memory() - before;
    assert!(taken < 8 << 20, "{taken} bytes");
    assert!(matches!(error, HtzError::ManifestSyntax { .. }), "{error}");
    assert!(error.to_string().contains("missing field"), "{error}");
}
