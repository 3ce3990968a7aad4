use std::fs;

use super::*;
use crate::calibrate::tests::hyper;
use crate::options::TextSource;

#[test]
fn long_texts_fill_the_requested_tokens_and_short_ones_what_they_have() {
    let hyper = HyperParameters {
        context: 2048,
        ..hyper()
    };
    let size = |options: &CalibrationOptions| {
        let TextSize {
            context,
            tokens,
            held_out,
        } = TextSize::predict(options, &hyper);
        (context, tokens, held_out)
    };
    let mut options = CalibrationOptions::new(TextSource::Shipped);
    // 162 windows of about three bytes a token.
    assert_eq!(size(&options), (512, 65_536, 34));
    options.tokens = Some(8192);
    options.context = Some(128);
    assert_eq!(size(&options), (128, 8192, 32));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    // About 8 windows of 128 tokens: 6 of them for the calibration.
    fs::write(&path, "a".repeat(3 * 128 * 8)).unwrap();
    let mut options = CalibrationOptions::new(path.as_path());
    options.context = Some(128);
    assert_eq!(size(&options), (128, 768, 2));
    options.held_out = Some(path);
    assert_eq!(size(&options), (128, 1024, 8));
}
