//! Parses arbitrary bytes as a trained draft, also under a valid digest.

#![no_main]

use htc_formats::htz::Digest;
use htc_formats::learnt::{TrainedDraft, MAGIC};
use libfuzzer_sys::fuzz_target;

fn parse(bytes: &[u8]) {
    match TrainedDraft::parse(bytes) {
        Ok(learnt) => assert_eq!(learnt.to_bytes(), bytes),
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}

fuzz_target!(|bytes: &[u8]| {
    parse(bytes);
    let mut sealed = MAGIC.to_vec();
    sealed.extend([1, 0]);
    sealed.extend(bytes);
    let digest = Digest::of_bytes(&sealed);
    sealed.extend(digest.0);
    parse(&sealed);
});
