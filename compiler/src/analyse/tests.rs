//! The record as it is written and read.

use std::path::Path;
use std::sync::Arc;

use htc_loader::Model;

use super::record::rounded;
use super::*;
use crate::calibrate::{CalibrationOptions, calibrate};

#[test]
fn numbers_are_rounded_to_six_digits() {
    for (number, expected) in [
        (0.0, 0.0),
        (1.0 / 3.0, 0.333333),
        (-123_456.789, -123_457.0),
        (6.022e23, 6.022e23),
        (1e-300, 1e-300),
    ] {
        assert_eq!(rounded(number), expected);
    }
}

/// The demo model, with and without a calibration: what is written reads back as it was.
#[test]
fn a_record_reads_back_as_it_was_written() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let source = ModelFile::open(demo.join("reference-7m-f16.gguf")).unwrap();
    let digest = source.digest();
    let cache = tempfile::tempdir().unwrap();
    let options = CalibrationOptions {
        tokens: 2048,
        context: 128,
        cache: Some(cache.path().to_owned()),
        ..CalibrationOptions::new(demo.join("alice.txt"))
    };
    let model = Arc::new(Model::bind(source.clone()).unwrap());
    let found = calibrate(&model, digest, &options, 2, Watch::nobody()).unwrap();
    for calibration in [None, Some(&found)] {
        let subject = Subject {
            source: &source,
            digest,
            calibration,
        };
        let analysis = analyse(subject, 2, Watch::nobody()).unwrap();
        let text = serde_json::to_string(&analysis).unwrap();
        assert!(text.starts_with(r#"{"kind":"analysis","version":2,"#));
        let read: Analysis = serde_json::from_str(&text).unwrap();
        assert_eq!(read, analysis);
        assert_eq!(analysis.calibration.is_some(), calibration.is_some());
        assert!(analysis.to_string().lines().count() <= 30);
        assert!(text.len() < 200_000, "{}", text.len());
    }
}
