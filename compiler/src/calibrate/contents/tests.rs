use std::path::Path;

use htc_formats::source::ModelFile;

use super::*;
use crate::calibrate::windows::Windows;
use crate::options::{DEFAULT_CONTEXT, DEFAULT_TOKENS};

fn demo_tokenizer() -> Tokenizer {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let file = ModelFile::open(demo.join("reference-7m-f16.gguf")).unwrap();
    Tokenizer::new(file.vocabulary.unwrap()).unwrap()
}

#[test]
fn scripts_outside_the_vocabulary_are_skipped() {
    let tokenizer = demo_tokenizer();
    let contents = read(&TextSource::Shipped, &tokenizer).unwrap();
    let foreign = [
        "russian", "chinese", "japanese", "korean", "arabic", "hindi",
    ];
    assert_eq!(contents.left_out, foreign);
    assert_eq!(contents.sha256, shipped_digest());
    let without = shipped_text(|part| !foreign.contains(&part.name));
    assert_eq!(contents.text, without);
}

#[test]
fn shipped_text_fills_the_default_windows() {
    let tokenizer = demo_tokenizer();
    let text = read(&TextSource::Shipped, &tokenizer).unwrap().text;
    let windows = Windows::new(&tokenizer, &text, DEFAULT_CONTEXT, None).unwrap();
    for window in windows.iter() {
        let unlike: std::collections::BTreeSet<_> = window.iter().collect();
        assert!(unlike.len() > DEFAULT_CONTEXT / 8, "{}", unlike.len());
    }
    let (used, held_out) = windows.hold_out(DEFAULT_TOKENS / DEFAULT_CONTEXT);
    assert!(used.count() >= 110, "{}", used.count());
    assert!(held_out.unwrap().count() >= 27);
}
