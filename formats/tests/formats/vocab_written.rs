//! Round trips of vocabularies.

use std::path::{Path, PathBuf};

use htc_formats::gguf::{Contents, Gguf, Writer};
use htc_formats::vocab::{
    BYTE_LEVEL, HuggingFaceFiles, PreTokenizer, SENTENCE_PIECE, TokenKind, UnicodeForm, Vocabulary,
};

fn by_gguf(vocabulary: &Vocabulary) -> Vocabulary {
    let mut writer = Writer::new();
    for (key, value) in vocabulary.to_gguf() {
        writer.metadata(key, value);
    }
    let bytes = writer.to_bytes().unwrap();
    Vocabulary::from_gguf(&Contents::parse(&bytes).unwrap()).unwrap()
}

fn by_folder(vocabulary: &Vocabulary) -> Vocabulary {
    let config = format!("{{\"vocab_size\": {}}}", vocabulary.tokens.len());
    let files = HuggingFaceFiles {
        config: Some(config.into_bytes()),
        ..HuggingFaceFiles::from_vocabulary(vocabulary, 64).unwrap()
    };
    files.vocabulary().unwrap()
}

fn letters(model: &str) -> Vocabulary {
    let tokens = [
        "<unk>", "<s>", "</s>", "a", "b", "ab", "<sep>", "  ", "<eot>",
    ];
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    kinds[0] = TokenKind::Unknown;
    for special in [1, 2, 6, 8] {
        kinds[special] = TokenKind::Control;
    }
    kinds[7] = TokenKind::UserDefined;
    Vocabulary {
        model: model.to_owned(),
        tokens: tokens.map(str::to_owned).to_vec(),
        kinds,
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_bos: true,
        end_of_generation: vec![8],
        chat_template: Some("{{ messages }}".to_owned()),
        ..Vocabulary::default()
    }
}

fn synthetic_vocabularies() -> Vec<Vocabulary> {
    let mut all = Vec::new();
    for name in [
        "gpt-2",
        "starcoder",
        "llama-bpe",
        "dbrx",
        "qwen2",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "gpt-4o",
        "tekken",
    ] {
        let mut vocabulary = letters(BYTE_LEVEL);
        vocabulary.kinds[0] = TokenKind::Control;
        vocabulary.pre = PreTokenizer::from_name(name);
        assert!(vocabulary.pre.is_some(), "{name}");
        vocabulary.merges = vec![(3, 4)];
        vocabulary.strip_after = vec![6];
        vocabulary.strip_before = vec![8];
        all.push(vocabulary);
    }
    for (prefix, collapse, add_eos) in [(true, false, false), (false, true, true)] {
        let mut vocabulary = letters(SENTENCE_PIECE);
        vocabulary.scores = vec![0.0, 0.0, 0.0, -1.0, -2.0, -0.5, 0.0, 0.0, 0.0];
        vocabulary.add_space_prefix = prefix;
        vocabulary.collapse_spaces = collapse;
        vocabulary.add_eos = add_eos;
        all.push(vocabulary);
    }
    for (prefix, once, if_absent, split) in [
        (true, true, false, false),
        (true, false, false, false),
        (false, false, false, false),
        (true, false, true, false),
        (true, true, false, true),
        (true, false, true, true),
        (false, false, false, true),
    ] {
        let mut vocabulary = letters(SENTENCE_PIECE);
        vocabulary.merges = vec![(3, 4)];
        vocabulary.add_space_prefix = prefix;
        vocabulary.space_prefix_once = once;
        vocabulary.space_prefix_if_absent = if_absent;
        vocabulary.split_before_spaces = split;
        all.push(vocabulary);
    }
    for (form, normalized) in [(UnicodeForm::Nfc, vec![]), (UnicodeForm::Nfkd, vec![6])] {
        let mut bytes = letters(BYTE_LEVEL);
        bytes.kinds[0] = TokenKind::Control;
        bytes.pre = PreTokenizer::from_name("qwen2");
        bytes.merges = vec![(3, 4)];
        let mut characters = letters(SENTENCE_PIECE);
        characters.merges = vec![(3, 4)];
        characters.add_space_prefix = true;
        for mut vocabulary in [bytes, characters] {
            vocabulary.normalization = Some(form);
            vocabulary.match_normalized.clone_from(&normalized);
            all.push(vocabulary);
        }
    }
    let mut literal = letters(SENTENCE_PIECE);
    literal.tokens[7] = "▁▁".to_owned();
    literal.merges = vec![(3, 4)];
    all.push(literal);
    all
}

fn real() -> Vec<(PathBuf, Vocabulary)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("../assets/demo/reference-7m-f16.gguf")];
    let shared = match std::env::var_os("HTC_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => root.join("../../shared"),
    };
    for name in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"] {
        let path = shared.join(format!("models/gguf-vocab/ggml-vocab-{name}.gguf"));
        if path.exists() {
            paths.push(path)
        } else {
            eprintln!("skipped: {} is not there", path.display())
        }
    }
    let read = |path: PathBuf| {
        let gguf = Gguf::open(&path).unwrap();
        let vocabulary = Vocabulary::from_gguf(&gguf).unwrap();
        (path, vocabulary)
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn vocabulary_round_trips_through_gguf() {
    for vocabulary in synthetic_vocabularies() {
        let mut expected = vocabulary.clone();
        if !vocabulary.properties_lost_in_gguf().is_empty() {
            expected.strip_before.clear();
            expected.strip_after.clear();
            expected.collapse_spaces = false;
            expected.space_prefix_once = false;
            expected.space_prefix_if_absent = false;
            expected.split_before_spaces = false;
            expected.normalization = None;
            expected.match_normalized.clear();
            // The only user-defined token.
            if expected.tokens[7] == "▁▁" {
                expected.tokens[7] = "  ".to_owned();
            }
        }
        if vocabulary.model == SENTENCE_PIECE && !vocabulary.merges.is_empty() {
            expected.merges.clear();
            expected.scores = vec![-1.0, -1.0, -1.0, -1.0, -1.0, 0.0, -1.0, -1.0, -1.0];
        }
        assert_eq!(by_gguf(&vocabulary), expected);
    }
    for (path, mut vocabulary) in real() {
        vocabulary.strip_after.clear();
        assert!(by_gguf(&vocabulary) == vocabulary, "{}", path.display());
    }
}

#[test]
fn vocabulary_round_trips_through_a_folder() {
    for vocabulary in synthetic_vocabularies() {
        let mut found = by_folder(&vocabulary);
        if found.scores.is_empty() {
            // A folder marks an unknown token as any control token.
            assert_eq!(found.kinds[0], TokenKind::Control);
            found.kinds[0] = vocabulary.kinds[0];
        }
        assert_eq!(found, vocabulary);
    }
    for (path, vocabulary) in real() {
        let mut found = by_folder(&vocabulary);
        if vocabulary.model == BYTE_LEVEL {
            for (found, expected) in found.kinds.iter_mut().zip(&vocabulary.kinds) {
                if *expected == TokenKind::Unused {
                    *found = TokenKind::Unused;
                }
            }
        }
        let differs = found.kinds.iter().zip(&vocabulary.kinds);
        let differs = differs.enumerate().find(|(_, (one, other))| one != other);
        assert_eq!(differs, None, "{}", path.display());
        let parts = |of: &Vocabulary| {
            let ends = (of.bos, of.eos, of.unknown, of.end_of_generation.clone());
            let flags = (of.add_bos, of.add_eos, of.add_space_prefix, of.pre);
            (ends, flags, of.strip_after.clone(), of.merges.len())
        };
        assert_eq!(parts(&found), parts(&vocabulary), "{}", path.display());
        assert!(found == vocabulary, "{}", path.display());
    }
}

/// `tokenizers` refuses a merge whose result is not in its vocabulary.
#[test]
fn written_merges_make_tokens_of_the_written_vocabulary() {
    let mut runs = letters(SENTENCE_PIECE);
    for (text, kind) in [
        ("▁", TokenKind::Normal),
        ("▁a", TokenKind::Normal),
        ("   ", TokenKind::UserDefined),
    ] {
        runs.tokens.push(text.to_owned());
        runs.kinds.push(kind);
    }
    runs.merges = vec![(9, 9), (7, 9), (9, 3), (3, 4)];
    let written = HuggingFaceFiles::from_vocabulary(&runs, 64).unwrap();
    let written = written.tokenizer_json.unwrap();
    let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
    let merges = written["model"]["merges"].as_array().unwrap();
    let texts = |merge: &serde_json::Value| -> [String; 2] {
        [0, 1].map(|part| merge[part].as_str().unwrap().to_owned())
    };
    let merges: Vec<[String; 2]> = merges.iter().map(texts).collect();
    assert_eq!(merges, [["▁", "a"], ["a", "b"]]);
    for merge in merges {
        let result = merge.concat();
        assert!(written["model"]["vocab"].get(&result).is_some(), "{result}");
    }
}
