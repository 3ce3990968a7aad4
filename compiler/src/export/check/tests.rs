use htc_formats::vocab::SENTENCE_PIECE;

use super::*;

fn vocabulary() -> Vocabulary {
    Vocabulary {
        model: SENTENCE_PIECE.to_owned(),
        tokens: ["<s>", "a", "▁▁"].map(str::to_owned).into(),
        kinds: vec![
            TokenKind::Unknown,
            TokenKind::Normal,
            TokenKind::UserDefined,
        ],
        match_normalized: vec![2, 0],
        ..Vocabulary::default()
    }
}

fn said(change: impl Fn(&mut Vocabulary), container: Naming) -> Option<String> {
    let mut found = vocabulary();
    found.tokens = match container {
        Naming::Gguf => found.tokens_in_gguf(),
        Naming::HuggingFace => found.tokens,
    };
    found.kinds[0] = TokenKind::Control;
    found.match_normalized.sort_unstable();
    change(&mut found);
    let compared = compare_vocabularies(&vocabulary(), &found, container);
    compared.err().map(|error| error.to_string())
}

#[test]
fn differing_rules_are_named() {
    type Change = fn(&mut Vocabulary);
    let both: [(&str, Change); 5] = [
        ("token 1", |v| v.tokens[1] = "b".to_owned()),
        ("number of tokens of the vocabulary is 4, expected 3", |v| {
            v.tokens.push("b".to_owned());
            v.kinds.push(TokenKind::Normal);
        }),
        ("add_bos of the vocabulary is true, expected false", |v| {
            v.add_bos = true
        }),
        ("add_eos of the vocabulary is true, expected false", |v| {
            v.add_eos = true
        }),
        ("add_space_prefix of the vocabulary is true", |v| {
            v.add_space_prefix = true
        }),
    ];
    let of_folder: [(&str, Change); 5] = [
        ("space_prefix_once of the vocabulary is true", |v| {
            v.space_prefix_once = true
        }),
        ("space_prefix_if_absent of the vocabulary is true", |v| {
            v.space_prefix_if_absent = true
        }),
        ("split_before_spaces of the vocabulary is true", |v| {
            v.split_before_spaces = true
        }),
        (
            "normalization of the vocabulary is NFKC, expected none",
            |v| v.normalization = Some(UnicodeForm::Nfkc),
        ),
        (
            "match_normalized of the vocabulary is 2 ids, [1, 2], expected 2 ids, [0, 2]",
            |v| v.match_normalized = vec![1, 2],
        ),
    ];
    for container in [Naming::Gguf, Naming::HuggingFace] {
        assert_eq!(said(|_| (), container), None);
        for (words, change) in both {
            let said = said(change, container).unwrap();
            assert!(said.contains(words), "{said}");
        }
    }
    for (words, change) in of_folder {
        // Reported as lost.
        assert_eq!(said(change, Naming::Gguf), None);
        let said = said(change, Naming::HuggingFace).unwrap();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn long_lists_are_shortened() {
    let all = |v: &mut Vocabulary| v.match_normalized = (0..100_000).collect();
    let said = said(all, Naming::HuggingFace).unwrap();
    assert!(
        said.contains("100000 ids, [0, 1, ") && said.len() < 500,
        "{said}"
    );
}
