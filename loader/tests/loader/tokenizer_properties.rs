//! Properties of every text and every sequence of ids.

use crate::tokenizer_common::{fixture, from_json};
use htc_formats::vocab::{PreTokenizer, TokenKind, UnicodeForm, Vocabulary};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use proptest::prelude::*;

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
        // Ties are common.
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

/// U+2581 would be decoded to a space.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ abcdé日\n<s>]{0,60}", any::<String>()]
        .prop_map(|text: String| text.replace('\u{2581}', ""))
}

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
        proptest::sample::select(lead.map(|byte| byte + 3).to_vec()),
        any::<u32>(),
    ];
    proptest::collection::vec(id, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decoding_inverts_encoding(text in text(), prefix: bool) {
        let tokenizer = tokenizer(prefix);
        let alone = tokenizer.encode(&text, AddSpecialTokens::TextOnly);
        prop_assert_eq!(tokenizer.decode(&alone), text.as_str());
        let whole = tokenizer.encode(&text, AddSpecialTokens::AsConfigured);
        prop_assert_eq!(&whole, &[&[1], alone.as_slice(), &[2]].concat());
        prop_assert_eq!(tokenizer.decode(&whole), text);
    }

    #[test]
    fn streaming_matches_decoding_of_any_ids(ids in ids(), prefix: bool) {
        let tokenizer = tokenizer(prefix);
        let mut decoder = tokenizer.decoder();
        let mut streamed: String = ids.iter().map(|&id| decoder.push(id)).collect();
        streamed += &decoder.finish();
        let expected = String::from_utf8_lossy(&bytes_of(&tokenizer, &ids)).into_owned();
        prop_assert_eq!(&streamed, &expected);
        prop_assert_eq!(tokenizer.decode(&ids), expected);
        for id in ids {
            prop_assert_eq!(tokenizer.piece(id).is_some(), (id as usize) < tokenizer.vocabulary().tokens.len());
            prop_assert_eq!(tokenizer.is_end_token(id), id == 2);
        }
    }
}

const PRE_TOKENIZERS: [PreTokenizer; 10] = [
    PreTokenizer::Gpt2,
    PreTokenizer::StarCoder,
    PreTokenizer::Llama3,
    PreTokenizer::Dbrx,
    PreTokenizer::Qwen2,
    PreTokenizer::DeepSeekLlm,
    PreTokenizer::DeepSeekCoder,
    PreTokenizer::DeepSeekV3,
    PreTokenizer::Gpt4o,
    PreTokenizer::Tekken,
];

fn byte_level() -> Vec<Tokenizer> {
    let small = from_json(&fixture("bpe_tokenizer.json"));
    let with = |pre| Vocabulary {
        pre: Some(pre),
        ..small.clone()
    };
    PRE_TOKENIZERS
        .map(|pre| Tokenizer::new(with(pre)).unwrap())
        .into()
}

fn arbitrary_vocabulary() -> impl Strategy<Value = Vocabulary> {
    let token = (
        prop_oneof![
            "[abĠé▁ <>]{0,4}",
            "<0x[0-9A-F]{2}>",
            "<\\|im_end\\|>",
            any::<String>()
        ],
        proptest::sample::select(vec![
            TokenKind::Normal,
            TokenKind::Unknown,
            TokenKind::Control,
            TokenKind::UserDefined,
            TokenKind::Unused,
            TokenKind::Byte,
        ]),
    );
    let tokens = proptest::collection::vec(token, 1..24);
    let merges = proptest::collection::vec((0u32..26, 0u32..26), 0..12);
    let ids = proptest::collection::vec(0u32..26, 0..3);
    let pre = proptest::sample::select(PRE_TOKENIZERS.to_vec());
    let flags = any::<[bool; 10]>();
    let form = proptest::sample::select(UnicodeForm::ALL.to_vec());
    let form = proptest::option::weighted(0.8, form);
    let lists = [ids.clone(), ids.clone(), ids.clone(), ids];
    (tokens, merges, lists, (pre, form), flags).prop_map(
        |(tokens, merges, [ends, before, after, normalized], (pre, form), flags)| {
            let [
                byte_level,
                joinable,
                add_bos,
                add_eos,
                prefix,
                once,
                collapse,
                named,
                if_absent,
                split,
            ] = flags;
            let len = tokens.len();
            let (mut tokens, kinds): (Vec<String>, Vec<_>) = tokens.into_iter().unzip();
            if joinable {
                // Otherwise hardly any list would be valid.
                for (at, &(left, right)) in merges.iter().enumerate() {
                    let text = |id: u32| tokens.get(id as usize).cloned().unwrap_or_default();
                    let joint = text(left) + &text(right);
                    if at < len && joint.len() < 100 {
                        tokens[at] = joint;
                    }
                }
            }
            Vocabulary {
                model: if byte_level { "gpt2" } else { "llama" }.to_owned(),
                pre: byte_level.then_some(pre),
                scores: if byte_level || !merges.is_empty() {
                    Vec::new()
                } else {
                    (0..len).map(|id| (id % 3) as f32).collect()
                },
                tokens,
                kinds,
                bos: named.then_some(0),
                eos: named.then_some(len as u32 - 1),
                unknown: named.then_some(0),
                add_bos,
                add_eos,
                add_space_prefix: prefix,
                space_prefix_once: once,
                collapse_spaces: collapse,
                merges,
                end_of_generation: ends,
                strip_before: before,
                strip_after: after,
                chat_template: None,
                normalization: form,
                space_prefix_if_absent: if_absent,
                split_before_spaces: split,
                match_normalized: normalized,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn byte_level_decoding_inverts_encoding(text in prop_oneof!["[ \\n'sab01.é日\u{301}]{0,60}", any::<String>()]) {
        for tokenizer in byte_level() {
            let ids = tokenizer.encode(&text, AddSpecialTokens::TextOnly);
            prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
            let mut decoder = tokenizer.decoder();
            let mut streamed: String = ids.iter().map(|&id| decoder.push(id)).collect();
            streamed += &decoder.finish();
            prop_assert_eq!(streamed, text.as_str());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_vocabulary_is_rejected_or_gives_valid_ids(
        vocabulary in arbitrary_vocabulary(),
        text in prop_oneof!["[abĠé▁ <>|im_end]{0,40}", any::<String>()],
        ids in proptest::collection::vec(any::<u32>().prop_map(|id| id % 40), 0..20),
    ) {
        let tokens = vocabulary.tokens.len() as u32;
        match Tokenizer::new(vocabulary) {
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{}", error),
            Ok(tokenizer) => {
                for add in [AddSpecialTokens::AsConfigured, AddSpecialTokens::Prompt, AddSpecialTokens::TextOnly] {
                    let plain = tokenizer.encode(&text, add);
                    let special = tokenizer.encode_with_special(&text, add);
                    let middle = text.char_indices().nth(text.chars().count() / 2);
                    let middle = middle.map_or(0, |(at, _)| at);
                    let said = [0..middle / 2 * usize::from(text.is_char_boundary(middle / 2)), middle..text.len()];
                    let chat = tokenizer.encode_conversation(&text, &said, add);
                    let all = plain.iter().chain(&special).chain(&chat);
                    prop_assert!(all.copied().all(|id| id < tokens));
                    tokenizer.decode(&special);
                }
                tokenizer.decode(&ids);
            }
        }
    }
}
