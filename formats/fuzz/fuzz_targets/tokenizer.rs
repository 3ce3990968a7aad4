//! Parses arbitrary tokenizers and encodes arbitrary texts.
//!
//! The first byte selects the format of the tokenizer; the bytes after the last zero are the text.

#![no_main]

use htc_formats::vocab::{HuggingFaceFiles, Vocabulary};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use libfuzzer_sys::fuzz_target;

const TOKENIZER: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel"}}"#;

fn vocabulary(choice: u8, bytes: &[u8]) -> Option<Vocabulary> {
    let some = || Some(bytes.to_vec());
    let mut files = HuggingFaceFiles::default();
    match choice % 10 {
        0 => return serde_json::from_slice(bytes).ok(),
        1 => files.tokenizer_model = some(),
        2 => files.tokenizer_json = some(),
        choice => {
            files.tokenizer_json = Some(TOKENIZER.into());
            let file = match choice {
                3 => &mut files.tokenizer_config,
                4 => &mut files.special_tokens_map,
                5 => &mut files.added_tokens,
                6 => &mut files.config,
                7 => &mut files.generation_config,
                8 => &mut files.chat_template_jinja,
                _ => &mut files.chat_template_json,
            };
            *file = some();
        }
    }
    match files.vocabulary() {
        Ok(vocabulary) => Some(vocabulary),
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            None
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    let mut parts = rest.rsplitn(2, |&byte| byte == 0);
    let last = parts.next().unwrap_or_default();
    let (bytes, text) = match parts.next() {
        Some(bytes) => (bytes, last),
        None => (last, &b"Some text, 123  <0x41>\n"[..]),
    };
    let Some(vocabulary) = vocabulary(choice, bytes) else {
        return;
    };
    let tokens = vocabulary.tokens.len();
    let text = String::from_utf8_lossy(text);
    match Tokenizer::new(vocabulary) {
        Err(error) => assert!(!error.to_string().contains('\n')),
        Ok(tokenizer) => {
            let plain = tokenizer.encode(&text, AddSpecialTokens::AsConfigured);
            let special = tokenizer.encode_with_special(&text, AddSpecialTokens::Prompt);
            // Marks the second half of the text as spoken content.
            let half = (text.len() / 2..=text.len()).find(|&at| text.is_char_boundary(at));
            let said = half.unwrap_or(text.len())..text.len();
            let said = tokenizer.encode_conversation(&text, &[said], AddSpecialTokens::Prompt);
            for ids in [plain, special, said] {
                assert!(ids.iter().all(|&id| (id as usize) < tokens));
                tokenizer.decode(&ids);
            }
        }
    }
});
