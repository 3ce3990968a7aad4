//! What holds for every text and every sequence of ids.

#![allow(clippy::unwrap_used)] // Helpers outside `#[test]` functions fail as those do.

use htc_formats::vocab::{TokenKind, Vocabulary};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use proptest::prelude::*;

/// Byte fallback, merges within and across words, and, at the end, the tokens that are no text.
fn vocabulary(add_space_prefix: bool) -> Vocabulary {
    let mut tokens: Vec<(String, TokenKind)> = vec![
        ("<unk>".to_owned(), TokenKind::Unknown),
        ("<s>".to_owned(), TokenKind::Control),
        ("</s>".to_owned(), TokenKind::Control),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte)));
    let texts = "▁ a b c d é 日 ▁a ▁b ab bc ca ab▁ ▁▁ ▁▁▁▁ abc dé éé d▁a ▁abc aa aaaa 日日 c日";
    tokens.extend(
        texts
            .split(' ')
            .map(|text| (text.to_owned(), TokenKind::Normal)),
    );
    tokens.push(("unused".to_owned(), TokenKind::Unused));
    let (tokens, kinds): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    Vocabulary {
        model: "llama".to_owned(),
        // Few distinct scores, so that ties are common.
        scores: (0..tokens.len()).map(|id| -((id % 5) as f32)).collect(),
        tokens,
        kinds,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_bos: true,
        add_eos: true,
        add_space_prefix,
        ..Vocabulary::default()
    }
}

fn tokenizer(add_space_prefix: bool) -> Tokenizer {
    Tokenizer::new(vocabulary(add_space_prefix)).unwrap()
}

/// Any text, or one that the vocabulary has many ways to write. U+2581 is left out: it is how a
/// space is written and comes back as one.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ abcdé日\n<s>]{0,60}", any::<String>()]
        .prop_map(|text: String| text.replace('\u{2581}', ""))
}

/// The bytes of every token by itself, put together and only then read as UTF-8.
fn bytes_of(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    let vocabulary = tokenizer.vocabulary();
    let mut bytes = Vec::new();
    let mut at_start = vocabulary.add_space_prefix;
    for &id in ids {
        let Some(piece) = tokenizer.piece(id) else {
            continue;
        };
        match vocabulary.kinds[id as usize] {
            TokenKind::Byte => bytes.push((id - 3) as u8),
            TokenKind::Normal => {
                let text = piece.replace('\u{2581}', " ");
                bytes.extend(match text.strip_prefix(' ') {
                    Some(rest) if at_start => rest.bytes(),
                    _ => text.bytes(),
                });
            }
            _ => continue,
        }
        at_start = false;
    }
    bytes
}

fn ids() -> impl Strategy<Value = Vec<u32>> {
    let lead = [0xC3, 0xE6, 0x97, 0xA5, 0xF0, 0x9F, 0xED, 0xA0, 0xFF];
    let id = prop_oneof![
        0u32..290,
        // Bytes that begin, continue and break characters.
        proptest::sample::select(lead.map(|byte| byte + 3).to_vec()),
        any::<u32>(),
    ];
    proptest::collection::vec(id, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn text_comes_back(text in text(), prefix: bool) {
        let tokenizer = tokenizer(prefix);
        let alone = tokenizer.encode(&text, AddSpecial::Nothing);
        prop_assert_eq!(tokenizer.decode(&alone), text.as_str());
        let whole = tokenizer.encode(&text, AddSpecial::AsVocabulary);
        prop_assert_eq!(&whole, &[&[1], alone.as_slice(), &[2]].concat());
        prop_assert_eq!(tokenizer.decode(&whole), text);
    }

    #[test]
    fn any_ids_stream_as_they_decode(ids in ids(), prefix: bool) {
        let tokenizer = tokenizer(prefix);
        let mut decoder = tokenizer.decoder();
        let mut streamed: String = ids.iter().map(|&id| decoder.push(id)).collect();
        streamed += &decoder.finish();
        let expected = String::from_utf8_lossy(&bytes_of(&tokenizer, &ids)).into_owned();
        prop_assert_eq!(&streamed, &expected);
        prop_assert_eq!(tokenizer.decode(&ids), expected);
        for id in ids {
            prop_assert_eq!(tokenizer.piece(id).is_some(), (id as usize) < tokenizer.vocabulary().tokens.len());
            prop_assert_eq!(tokenizer.is_end(id), id == 2);
        }
    }
}
