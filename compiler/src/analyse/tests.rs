//! Tests of writing and reading the record.

use std::path::Path;
use std::sync::Arc;

use htc_loader::Model;

use super::record::rounded;
use super::*;
use crate::calibrate::CalibrationOptions;
use crate::calibrate::tests::calibrated;

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

fn demo() -> (ModelFile, Calibration) {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let source = ModelFile::open(demo.join("reference-7m-f16.gguf")).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = CalibrationOptions {
        tokens: Some(2048),
        context: Some(128),
        cache: Some(cache.path().to_owned()),
        ..CalibrationOptions::new(demo.join("alice.txt"))
    };
    let model = Arc::new(Model::bind(source.clone()).unwrap());
    let found = calibrated(&model, source.digest(), &options, 2, Progress::silent()).unwrap();
    (source, found)
}

#[test]
fn outlier_tokens_are_named() {
    let (source, found) = demo();
    let subject = AnalysisInput {
        source: &source,
        digest: source.digest(),
        calibration: Some(&found),
    };
    let mut analysis = analyse(subject, 2, Progress::silent()).unwrap();
    let vocabulary = source.vocabulary.as_ref().unwrap();
    let windows: Vec<&[u32]> = found.windows.iter().collect();
    let layers = &mut analysis.sinks.as_mut().unwrap().layers;
    let mut named = 0;
    for token in layers
        .iter()
        .flat_map(|l| &l.tokens.as_ref().unwrap().largest)
    {
        let id = windows[token.window][token.position] as usize;
        assert_eq!(token.text.as_ref(), Some(&vocabulary.tokens[id]));
        named += 1;
    }
    assert!(named > 0);
    for position in layers.iter().flat_map(|l| &l.positions) {
        let begins = (position.position == 0).then(|| "<s>".to_owned());
        assert_eq!(position.text, begins);
    }
    let token = &mut layers[0].tokens.as_mut().unwrap().largest[0];
    token.norm = 1e9;
    token.text = Some("\u{1b}]0;title\u{7}\n\u{202e}".to_owned());
    let shown = analysis.to_string();
    let escaped = r#""\u{1b}]0;title\u{7}\n\u{202e}" "#;
    assert!(shown.contains(escaped), "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']));
    assert!(shown.contains(r#"first position  "<s>""#), "{shown}");
}

#[test]
fn record_round_trips_through_json() {
    let (source, found) = demo();
    let digest = source.digest();
    for calibration in [None, Some(&found)] {
        let subject = AnalysisInput {
            source: &source,
            digest,
            calibration,
        };
        let analysis = analyse(subject, 2, Progress::silent()).unwrap();
        let text = serde_json::to_string(&analysis).unwrap();
        assert!(text.starts_with(r#"{"kind":"analysis","version":3,"#));
        let read: Analysis = serde_json::from_str(&text).unwrap();
        assert_eq!(read, analysis);
        assert_eq!(analysis.calibration.is_some(), calibration.is_some());
        assert!(analysis.to_string().lines().count() <= 30);
        assert!(text.len() < 200_000, "{}", text.len());
    }
}
