use htc_formats::vocab::PreTokenizer;
use proptest::prelude::*;
use serde_json::Value;

use super::for_each_word;

const ALL: [PreTokenizer; 10] = [
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

fn words(pre: PreTokenizer, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for_each_word(pre, text, &mut |word| words.push(word.to_owned()));
    words
}

#[test]
fn words_match_the_published_expressions() {
    let fixture: Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/words.json")).unwrap();
    let texts = fixture["texts"].as_array().unwrap();
    let names = fixture["words"].as_object().unwrap();
    assert_eq!(names.len(), ALL.len() - 1, "all but DBRX, which is Llama 3");
    for (name, expected) in names {
        let pre = PreTokenizer::from_name(name).unwrap();
        for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
            let found = words(pre, text.as_str().unwrap());
            assert_eq!(serde_json::json!(found), *expected, "{name}: {text}");
        }
    }
}

#[test]
fn runs_take_linear_time() {
    let runs = [
        "a", "A", " ", "\n", "1", "!", "\u{301}", "日", "\t ", "Aa", "A\u{301}", "\u{1}", "'s",
    ];
    for pre in ALL {
        for run in runs {
            for end in ["", "x", "X", "\n", "9", "."] {
                let text = run.repeat(50_000) + end;
                assert_eq!(words(pre, &text).concat(), text);
            }
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ \\t\\r\\n'sSlLeErRaAbBéÉǅʰª日\u{301}\u{3000}09½.,!/$^<>\u{1}\u{378}]{0,40}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn words_are_non_empty_and_concatenate_to_the_text(text in text()) {
        for pre in ALL {
            let words = words(pre, &text);
            prop_assert!(words.iter().all(|word| !word.is_empty()));
            prop_assert_eq!(words.concat(), text.as_str());
        }
    }
}
