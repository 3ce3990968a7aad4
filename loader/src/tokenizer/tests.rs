use htc_formats::limits::{MAX_SPECIAL_BYTES, MAX_SPECIAL_TOKEN_BYTES};
use htc_formats::vocab::UnicodeForm;

use super::user_defined::{Fragment, TokenMatcher};
use super::*;
use proptest::prelude::*;

fn vocabulary(tokens: &[(&str, f32, TokenKind)]) -> Vocabulary {
    Vocabulary {
        model: "llama".to_owned(),
        tokens: tokens.iter().map(|&(text, ..)| text.to_owned()).collect(),
        scores: tokens.iter().map(|&(_, score, _)| score).collect(),
        kinds: tokens.iter().map(|&(.., kind)| kind).collect(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
        ..Vocabulary::default()
    }
}

fn letters() -> Vocabulary {
    vocabulary(&[
        ("<unk>", 0.0, TokenKind::Unknown),
        ("<s>", 0.0, TokenKind::Control),
        ("</s>", 0.0, TokenKind::Control),
        ("▁", 0.0, TokenKind::Normal),
        ("a", 0.0, TokenKind::Normal),
        ("b", 0.0, TokenKind::Normal),
    ])
}

fn encode(vocabulary: Vocabulary, text: &str) -> Vec<u32> {
    Tokenizer::new(vocabulary)
        .unwrap()
        .encode(text, AddSpecialTokens::TextOnly)
}

#[test]
fn special_tokens_follow_the_vocabulary_settings() {
    for (add_bos, add_eos, expected) in [
        (false, false, vec![3, 4]),
        (true, false, vec![1, 3, 4]),
        (false, true, vec![3, 4, 2]),
        (true, true, vec![1, 3, 4, 2]),
    ] {
        let tokenizer = Tokenizer::new(Vocabulary {
            add_bos,
            add_eos,
            ..letters()
        })
        .unwrap();
        assert_eq!(
            tokenizer.encode("a", AddSpecialTokens::AsConfigured),
            expected
        );
        assert_eq!(tokenizer.encode("a", AddSpecialTokens::TextOnly), [3, 4]);
        assert_eq!(tokenizer.decode(&expected), "a");
    }
}

#[test]
fn a_run_of_unknown_characters_is_one_unknown_token() {
    assert_eq!(encode(letters(), "a日本b\n\na"), [3, 4, 0, 5, 0, 4]);
    assert_eq!(
        encode(
            Vocabulary {
                unknown: None,
                ..letters()
            },
            "日"
        ),
        [3, 0]
    );
}

#[test]
fn partial_byte_coverage_gives_the_unknown_token() {
    let mut with_byte = letters();
    for (text, byte) in [("<0xC3>", 6), ("<0x0A>", 7)] {
        with_byte.tokens.push(text.to_owned());
        with_byte.scores.push(0.0);
        with_byte.kinds.push(TokenKind::Byte);
        assert_eq!(with_byte.tokens.len(), byte + 1);
    }
    assert_eq!(encode(with_byte, "é\na"), [3, 0, 7, 4]);
}

#[test]
fn merges_follow_scores_then_positions() {
    let merges = |ab: f32, ba: f32, aba: f32| {
        let mut vocabulary = letters();
        vocabulary.add_space_prefix = false;
        for (text, score) in [("ab", ab), ("ba", ba), ("aba", aba)] {
            vocabulary.tokens.push(text.to_owned());
            vocabulary.scores.push(score);
            vocabulary.kinds.push(TokenKind::Normal);
        }
        encode(vocabulary, "ababa")
    };
    assert_eq!(merges(-1.0, -2.0, -3.0), [6, 8]);
    assert_eq!(merges(-2.0, -1.0, -3.0), [8, 7]);
    assert_eq!(merges(-1.0, -1.0, 0.0), [8, 7]);
    assert_eq!(merges(-0.0, 0.0, -1.0), merges(0.0, 0.0, -1.0));
}

#[test]
fn space_prefix_is_stripped_once_at_the_start() {
    let tokenizer = Tokenizer::new(letters()).unwrap();
    assert_eq!(tokenizer.decode(&[1, 3, 4, 3, 5]), "a b");
    assert_eq!(tokenizer.decode(&[1, 2, 3, 3, 4]), " a");
    assert_eq!(tokenizer.decode(&[4, 1, 3, 5]), "a b");
    let without = Vocabulary {
        add_space_prefix: false,
        ..letters()
    };
    assert_eq!(Tokenizer::new(without).unwrap().decode(&[1, 3, 4]), " a");
}

#[test]
fn incomplete_characters_are_buffered() {
    let mut tokens = vec![
        ("<unk>", 0.0, TokenKind::Unknown),
        ("a", 0.0, TokenKind::Normal),
    ];
    for byte in ["<0xF0>", "<0x9F>", "<0x9A>", "<0x80>"] {
        tokens.push((byte, 0.0, TokenKind::Byte));
    }
    let tokenizer = Tokenizer::new(Vocabulary {
        bos: None,
        eos: None,
        add_bos: false,
        ..vocabulary(&tokens)
    })
    .unwrap();
    let pieces = |ids: &[u32]| {
        let mut decoder = tokenizer.decoder();
        let mut pieces: Vec<_> = ids.iter().map(|&id| decoder.push(id)).collect();
        pieces.push(decoder.finish());
        pieces
    };
    assert_eq!(pieces(&[2, 3, 4, 5]), ["", "", "", "🚀", ""]);
    assert_eq!(pieces(&[2, 3, 1]), ["", "", "\u{FFFD}a", ""]);
    assert_eq!(pieces(&[2, 3]), ["", "", "\u{FFFD}"]);
    assert_eq!(pieces(&[2, 2, 3, 4, 5]), ["", "\u{FFFD}", "", "", "🚀", ""]);
    assert_eq!(pieces(&[3, 1]), ["\u{FFFD}", "a", ""]);
    assert_eq!(pieces(&[2, 0, 3, 99, 4, 5]), ["", "", "", "", "", "🚀", ""]);
}

#[test]
fn control_tokens_are_recognised_by_name() {
    let tokenizer = Tokenizer::new(vocabulary(&[
        ("<unk>", 0.0, TokenKind::Unknown),
        ("<s>", 0.0, TokenKind::Control),
        ("<end>", 0.0, TokenKind::Control),
        ("<end_of_turn>", 0.0, TokenKind::UserDefined),
        ("▁<PRE>", 0.0, TokenKind::Normal),
        ("<b>", 0.0, TokenKind::UserDefined),
    ]))
    .unwrap();
    let ends: Vec<_> = (0..9).filter(|&id| tokenizer.is_end_token(id)).collect();
    assert_eq!(ends, [2, 3]);
    assert_eq!(tokenizer.decode(&[3, 4, 5]), "<b>");
    assert_eq!(
        tokenizer.encode("<end_of_turn><b>", AddSpecialTokens::TextOnly),
        [0, 5]
    );
}

#[test]
fn invalid_vocabularies_give_descriptive_errors() {
    let normal = TokenKind::Normal;
    let refuse = |vocabulary| Tokenizer::new(vocabulary).unwrap_err();

    let error = refuse(Vocabulary {
        model: "t5".to_owned(),
        ..letters()
    });
    assert!(error.to_string().contains("t5"), "{error}");
    let error = refuse(Vocabulary {
        scores: vec![0.0],
        ..letters()
    });
    assert!(matches!(error, VocabularyError::Length { .. }), "{error}");
    let error = refuse(Vocabulary {
        bos: None,
        ..letters()
    });
    assert!(
        matches!(error, VocabularyError::SpecialMissing { role: "BOS", .. }),
        "{error}"
    );
    let error = refuse(Vocabulary {
        eos: None,
        add_eos: true,
        ..letters()
    });
    assert!(
        matches!(error, VocabularyError::SpecialMissing { role: "EOS", .. }),
        "{error}"
    );

    let twice = [("a", 0.0, normal), ("b", 0.0, normal), ("a", 0.0, normal)];
    let error = refuse(vocabulary(&twice));
    assert_eq!(
        error,
        VocabularyError::DuplicateText {
            first: 0,
            second: 2,
            text: "a".to_owned()
        }
    );

    let no_unknown = [("a", 0.0, normal), ("b", 0.0, normal), ("c", 0.0, normal)];
    let error = refuse(Vocabulary {
        unknown: None,
        ..vocabulary(&no_unknown)
    });
    assert!(
        matches!(
            error,
            VocabularyError::SpecialMissing {
                role: "unknown",
                ..
            }
        ),
        "{error}"
    );

    for text in ["<0x4>", "<0x+4>", "<0x4G>", "<0x041>", "A", ""] {
        let byte = [
            ("a", 0.0, normal),
            ("b", 0.0, normal),
            (text, 0.0, TokenKind::Byte),
        ];
        let error = refuse(vocabulary(&byte));
        assert_eq!(
            error,
            VocabularyError::ByteToken {
                token: 2,
                text: text.to_owned()
            }
        );
    }

    let mut long = letters();
    long.tokens[4] = "x".repeat(MAX_SPECIAL_TOKEN_BYTES + 1);
    long.kinds[4] = TokenKind::UserDefined;
    let found = MAX_SPECIAL_TOKEN_BYTES + 1;
    assert_eq!(
        refuse(long),
        VocabularyError::SpecialTokenTooLong { bytes: found }
    );

    let mut many = letters();
    let mut found = 12;
    for i in 0..=MAX_SPECIAL_BYTES / MAX_SPECIAL_TOKEN_BYTES {
        let text = format!("{i:x>MAX_SPECIAL_TOKEN_BYTES$}");
        found += text.len();
        many.tokens.push(text);
        many.scores.push(0.0);
        many.kinds.push(TokenKind::UserDefined);
    }
    assert_eq!(
        refuse(many),
        VocabularyError::SpecialTextTooLong { bytes: found }
    );
}

#[test]
fn special_tokens_differ_and_are_short_in_a_normalised_text() {
    let with = |texts: &[&str]| {
        let mut vocabulary = Vocabulary {
            add_space_prefix: false,
            normalization: Some(UnicodeForm::Nfkc),
            ..letters()
        };
        for text in texts {
            let id = vocabulary.tokens.len() as u32;
            vocabulary.match_normalized.push(id);
            vocabulary.tokens.push((*text).to_owned());
            vocabulary.scores.push(0.0);
            vocabulary.kinds.push(TokenKind::UserDefined);
        }
        Tokenizer::new(vocabulary).err()
    };
    assert_eq!(with(&["A", "Ｂ"]), None);
    let first = letters().tokens.len() as u32;
    let found = VocabularyError::DuplicateNormalizedText {
        first,
        second: first + 1,
        text: "A".to_owned(),
    };
    assert_eq!(with(&["A", "Ａ"]), Some(found));
    // One character of 3 bytes becomes 18 of 33.
    let long = "\u{FDFA}".repeat(MAX_SPECIAL_TOKEN_BYTES / 3);
    let found = VocabularyError::SpecialTokenTooLong { bytes: 85 * 33 };
    assert_eq!(with(&[&long]), Some(found));
}

#[test]
fn empty_tokens_are_ignored() {
    let mut padded = letters();
    for _ in 0..2 {
        padded.tokens.push(String::new());
        padded.scores.push(0.0);
        padded.kinds.push(TokenKind::UserDefined);
    }
    assert_eq!(encode(padded, "ab"), [3, 4, 5]);
}

/// As in Gemma 3's `tokenizer.json`, where runs of spaces are added tokens with merges.
#[test]
fn merges_may_make_user_defined_runs_of_spaces() {
    let mut spaces = vocabulary(&[
        ("<unk>", 0.0, TokenKind::Unknown),
        ("<s>", 0.0, TokenKind::Control),
        ("</s>", 0.0, TokenKind::Control),
        ("▁", 0.0, TokenKind::Normal),
        ("a", 0.0, TokenKind::Normal),
        ("  ", 0.0, TokenKind::UserDefined),
        ("   ", 0.0, TokenKind::UserDefined),
        ("▁a", 0.0, TokenKind::Normal),
    ]);
    for byte in 0..=255_u8 {
        spaces.tokens.push(format!("<0x{byte:02X}>"));
        spaces.scores.push(0.0);
        spaces.kinds.push(TokenKind::Byte);
    }
    spaces.add_space_prefix = false;
    spaces.scores.clear();
    spaces.merges = vec![(3, 3), (5, 3), (3, 4)];
    assert_eq!(encode(spaces.clone(), "a a"), [4, 7]);
    assert_eq!(
        encode(spaces.clone(), "a  a   a    a"),
        [4, 5, 4, 6, 4, 6, 7]
    );
    // A run from merges alone.
    assert_eq!(encode(spaces.clone(), "▁▁a"), [5, 4]);
    spaces.add_space_prefix = true;
    assert_eq!(encode(spaces.clone(), " a"), [5, 4]);
    spaces.merges.push((7, 3));
    let error = Tokenizer::new(spaces).unwrap_err();
    assert!(error.to_string().contains("▁a▁"), "{error}");
}

#[test]
fn long_text_without_spaces_is_fast() {
    let mut vocabulary = letters();
    for (text, score) in [("aa", -1.0), ("aaaa", -2.0), ("aab", -3.0)] {
        vocabulary.tokens.push(text.to_owned());
        vocabulary.scores.push(score);
        vocabulary.kinds.push(TokenKind::Normal);
    }
    let text = "a".repeat(1 << 20);
    let mut expected = vec![3];
    expected.extend(std::iter::repeat_n(7, 1 << 18));
    assert_eq!(encode(vocabulary, &text), expected);
}

/// Quadratic time: merges the best pair of all, the left-most of ties.
fn merge_naively(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    let id = |text: &str| vocabulary.tokens.iter().position(|token| token == text);
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(usize, f32)> = None;
        for at in 1..symbols.len() {
            if let Some(id) = id(&[symbols[at - 1].as_str(), &symbols[at]].concat()) {
                let score = vocabulary.scores[id];
                if best.is_none_or(|(_, best)| score > best) {
                    best = Some((at, score));
                }
            }
        }
        let Some((at, _)) = best else { break };
        let right = symbols.remove(at);
        symbols[at - 1] += &right;
    }
    let mut ids = Vec::new();
    for symbol in symbols {
        match id(&symbol) {
            Some(id) => ids.push(id as u32),
            None if ids.last() != Some(&0) => ids.push(0),
            None => {}
        }
    }
    ids
}

fn split_naively<'a>(tokens: &[String], text: &'a str) -> Vec<Fragment<'a>> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&id| std::cmp::Reverse(tokens[id].len()));
    let mut fragments = vec![Fragment::Text(text)];
    for id in order {
        let mut cut = Vec::new();
        for fragment in fragments {
            let Fragment::Text(mut text) = fragment else {
                cut.push(fragment);
                continue;
            };
            while let Some(at) = text.find(&tokens[id]) {
                cut.extend([Fragment::Text(&text[..at]), Fragment::Token(id as u32)]);
                text = &text[at + tokens[id].len()..];
            }
            cut.push(Fragment::Text(text));
        }
        fragments = cut;
    }
    fragments.retain(|fragment| *fragment != Fragment::Text(""));
    fragments
}

fn distinct(texts: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    texts
        .into_iter()
        .filter(|text| seen.insert(text.clone()))
        .collect()
}

#[test]
fn long_symbols_are_fast() {
    const LONGEST: usize = 6000;
    let run = "a".repeat(LONGEST);
    let mut vocabulary = letters();
    vocabulary.tokens.truncate(4);
    for len in 1..=LONGEST {
        vocabulary.tokens.push(run[..len].to_owned());
        vocabulary.scores.push(len as f32);
        vocabulary.kinds.push(TokenKind::Normal);
    }
    vocabulary.scores = (0..vocabulary.tokens.len()).map(|id| id as f32).collect();
    vocabulary.kinds = vec![TokenKind::Normal; vocabulary.tokens.len()];
    vocabulary.kinds[0] = TokenKind::Unknown;
    vocabulary.add_space_prefix = false;
    let text = "a".repeat(500 * LONGEST);
    let started = std::time::Instant::now();
    let tokens = encode(vocabulary, &text);
    assert_eq!(tokens, vec![3 + LONGEST as u32; 500]);
    let elapsed = started.elapsed();
    assert!(elapsed.as_secs() < 20, "{elapsed:?}");
}

fn conversational(collapse_spaces: bool) -> Tokenizer {
    let mut vocabulary = letters();
    vocabulary.tokens.push("<b>".to_owned());
    vocabulary.scores.push(0.0);
    vocabulary.kinds.push(TokenKind::UserDefined);
    vocabulary.add_space_prefix = false;
    vocabulary.collapse_spaces = collapse_spaces;
    Tokenizer::new(vocabulary).unwrap()
}

#[test]
fn control_tokens_in_messages_are_text() {
    let tokenizer = conversational(false);
    let (start, end, unknown, b) = (1, 2, 0, 6);
    let encode = |parts: &[(&str, bool)]| {
        let (mut text, mut said) = (String::new(), Vec::new());
        for (part, by_somebody) in parts {
            let place = text.len()..text.len() + part.len();
            text += part;
            said.extend(by_somebody.then_some(place));
        }
        tokenizer.encode_conversation(&text, &said, AddSpecialTokens::TextOnly)
    };
    let template = |text| (text, false);
    let said = |text| (text, true);
    assert_eq!(encode(&[template("<s>a</s>")]), [start, 4, end]);
    assert_eq!(
        encode(&[template("<s>"), said("a</s>"), template("b</s>")]),
        [start, 4, unknown, 5, end]
    );
    assert_eq!(encode(&[template("<s>"), said("<b>a")]), [start, b, 4]);
    for parts in [
        [said("a</"), template("s>b")],
        [template("a</"), said("s>b")],
        [said("a</"), said("s>b")],
    ] {
        assert_eq!(encode(&parts), [4, unknown, 5], "{parts:?}");
    }
    assert_eq!(
        encode(&[template("<s>"), said(""), template("</s>")]),
        [start, end]
    );
    assert_eq!(encode(&[said("<s>"), template("</s>")]), [unknown, end]);
}

#[test]
fn control_in_finds_whole_and_partial_tokens() {
    let tokenizer = conversational(false);
    assert_eq!(tokenizer.find_control_token("a </s> b"), Some("</s>"));
    assert_eq!(tokenizer.find_control_token("a <b> b"), None);
    assert_eq!(tokenizer.find_control_token("a < b > c"), None);
    assert_eq!(tokenizer.find_control_token("a </"), Some("</s>"));
    assert_eq!(tokenizer.find_control_token("unk> a"), Some("<unk>"));
}

#[test]
fn ranges_are_adjusted_when_spaces_collapse() {
    let tokenizer = conversational(true);
    let text = "  <s>  a  </s>  </s>";
    let said = [8..16, 16..16];
    assert_eq!(
        tokenizer.encode_conversation(text, &said, AddSpecialTokens::TextOnly),
        tokenizer.encode_conversation(
            "<s> a </s> </s>",
            &[5..11, 11..11],
            AddSpecialTokens::TextOnly
        )
    );
    let ids = tokenizer.encode_conversation(text, &said, AddSpecialTokens::TextOnly);
    assert_eq!((ids.first(), ids.last()), (Some(&1), Some(&2)));
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn merging_matches_the_quadratic_reference(
        texts in proptest::collection::vec(("[abé]{1,5}", -3i8..1), 0..25),
        text in "[abéx]{0,40}",
    ) {
        let mut all: Vec<(&str, f32, TokenKind)> = vec![("<unk>", 0.0, TokenKind::Unknown)];
        for (text, score) in &texts {
            if all.iter().all(|token| token.0 != text) {
                all.push((text, f32::from(*score), TokenKind::Normal));
            }
        }
        let vocabulary = Vocabulary {
            bos: None,
            eos: None,
            add_bos: false,
            add_space_prefix: false,
            ..vocabulary(&all)
        };
        let expected = merge_naively(&vocabulary, &text);
        prop_assert_eq!(encode(vocabulary, &text), expected);
    }

    #[test]
    fn user_defined_tokens_are_found_longest_first(
        tokens in proptest::collection::vec("[ab<é]{1,6}", 0..12),
        text in "[ab<é]{0,60}",
    ) {
        let tokens = distinct(tokens);
        let automaton = TokenMatcher::new((0..).zip(tokens.iter().map(String::as_str)));
        prop_assert_eq!(automaton.split(&text), split_naively(&tokens, &text));
    }

    #[test]
    fn messages_never_encode_to_control_tokens(
        parts in proptest::collection::vec(("(<s>|</s>|<b>|[ab </>s]){0,4}", any::<bool>()), 0..5),
        collapse in any::<bool>(),
    ) {
        let tokenizer = conversational(collapse);
        let (mut text, mut said, mut own) = (String::new(), Vec::new(), 0);
        for (part, by_somebody) in &parts {
            let place = text.len()..text.len() + part.len();
            text += part;
            if *by_somebody {
                said.push(place);
            } else {
                own += part.matches("<s>").count() + part.matches("</s>").count();
            }
        }
        let control = |ids: &[u32]| ids.iter().filter(|&&id| id == 1 || id == 2).count();
        let ids = tokenizer.encode_conversation(&text, &said, AddSpecialTokens::TextOnly);
        let merged = parts.windows(2).any(|two| !two[0].1 && !two[1].1);
        prop_assert!(merged || control(&ids) <= own);
        let all = tokenizer.encode_with_special(&text, AddSpecialTokens::TextOnly);
        if control(&all) == control(&ids) {
            prop_assert_eq!(&all, &ids);
        }
        let whole = 0..text.len();
        let none = tokenizer.encode_conversation(&text, std::slice::from_ref(&whole), AddSpecialTokens::TextOnly);
        prop_assert_eq!(control(&none), 0);
    }
}
