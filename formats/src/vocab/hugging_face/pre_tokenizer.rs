//! Recognition of the `pre_tokenizer` of a `tokenizer.json`.

use serde_json::{Value, json};

use super::json::{Component, ComponentStep, Never, Pattern};
use super::unsupported_json;
use crate::vocab::{PreTokenizer, VocabularyError};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step<'a> {
    /// Splits at matches of a regular expression and isolates them.
    Split(&'a str),
    /// Split at digits, individually if true.
    Digits(bool),
    /// Byte-level mapping, after splitting by GPT-2's expression if true.
    ByteLevel(bool),
}

use Step::{ByteLevel, Digits, Split};

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Expression of DeepSeek V3, the last of three.
const DEEP_SEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Characters of Chinese, Korean and ranges between.
const CJK: &str = "[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";
const DEEP_SEEK_LETTERS: &str = "\\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\
     \u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\
     \u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\
     \u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\
     \u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\
     \u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\
     \u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}\
     -\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\
     \u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\
     \u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\
     \u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\
     \u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\
     \u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\
     \u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+";

/// Known steps, whether vocabularies ignore merges, and the pre-tokenizer.
const KNOWN_SEQUENCES: &[(&[Step], bool, PreTokenizer)] = &[
    (&[ByteLevel(true)], false, PreTokenizer::Gpt2),
    (
        &[Digits(true), ByteLevel(true)],
        false,
        PreTokenizer::StarCoder,
    ),
    (
        &[Split(LLAMA_3), ByteLevel(false)],
        true,
        PreTokenizer::Llama3,
    ),
    (
        &[Split(LLAMA_3), ByteLevel(false)],
        false,
        PreTokenizer::Dbrx,
    ),
    (
        &[Split(QWEN_2), ByteLevel(false)],
        false,
        PreTokenizer::Qwen2,
    ),
    (
        &[Split(GPT_4O), ByteLevel(false)],
        false,
        PreTokenizer::Gpt4o,
    ),
    (
        &[Split(TEKKEN), ByteLevel(false)],
        true,
        PreTokenizer::Tekken,
    ),
    (
        &[
            Split(r"[\r\n]"),
            Split(DEEP_SEEK_LETTERS),
            Split(
                "\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            ),
            Split(r"\s+$"),
            Split(CJK),
            Digits(false),
            ByteLevel(false),
        ],
        false,
        PreTokenizer::DeepSeekLlm,
    ),
    (
        &[
            Split(r"[\r\n]"),
            Split(r"\s?\p{L}+"),
            Split(r"\s?\p{P}+"),
            Split(CJK),
            Digits(true),
            ByteLevel(false),
        ],
        false,
        PreTokenizer::DeepSeekCoder,
    ),
    (
        &[
            Split(r"\p{N}{1,3}"),
            Split("[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"),
            Split(DEEP_SEEK_V3),
            ByteLevel(false),
        ],
        false,
        PreTokenizer::DeepSeekV3,
    ),
];

pub(super) fn byte_level(
    component: &Component,
    ignore_merges: bool,
) -> Result<PreTokenizer, VocabularyError> {
    // A line end may be literal or escaped.
    let patterns: Vec<String> = map_steps(component, pattern, pattern)
        .into_iter()
        .map(|pattern| pattern.replace('\r', r"\r").replace('\n', r"\n"))
        .collect();
    let mut patterns = patterns.iter().map(String::as_str);
    let steps = map_steps(component, step_of, step_of)
        .into_iter()
        .map(|step| match (step?, patterns.next().unwrap_or_default()) {
            (Split(_), r"\p{N}") => Some(Digits(true)),
            (Split(_), r"\p{N}+") => Some(Digits(false)),
            (Split(_), pattern) => Some(Split(pattern)),
            (step, _) => Some(step),
        })
        .collect::<Option<Vec<_>>>();
    let known = KNOWN_SEQUENCES.iter().find(|(known, ignoring, _)| {
        *ignoring == ignore_merges && steps.as_deref() == Some(*known)
    });
    match known {
        Some((.., pre)) => Ok(*pre),
        None => {
            let mut found = map_steps(component, describe, describe).join(", ");
            if ignore_merges {
                found += " with ignore_merges";
            }
            let supported = "the pre-tokenizers of GPT-2, StarCoder, Llama 3, Qwen 2, GPT-4o, Mistral NeMo and DeepSeek";
            Err(unsupported_json("pre_tokenizer", found, supported))
        }
    }
}

/// Returns the `tokenizer.json` form of a pre-tokenizer, and true if the model ignores merges with
/// it.
pub(super) fn to_json(pre: PreTokenizer) -> (Value, bool) {
    let known = KNOWN_SEQUENCES.iter().find(|(.., known)| *known == pre);
    let (steps, ignoring) =
        known.map_or((&[][..], false), |(steps, ignoring, _)| (steps, *ignoring));
    let step = |step: &Step| match *step {
        Split(pattern) => json!({
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": false,
        }),
        Digits(individual) => json!({"type": "Digits", "individual_digits": individual}),
        ByteLevel(regex) => json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": regex,
        }),
    };
    let mut steps: Vec<Value> = steps.iter().map(step).collect();
    let component = match steps.len() {
        1 => steps.swap_remove(0),
        _ => json!({"type": "Sequence", "pretokenizers": steps}),
    };
    (component, ignoring)
}

pub(super) fn is_byte_level(component: &Component) -> bool {
    let is = |kind: &str| kind == "ByteLevel";
    map_steps(component, |part| is(&part.kind), |part| is(&part.kind)).contains(&true)
}

pub(super) fn describe_component(component: Option<&Component>) -> String {
    component.map_or_else(
        || "none".to_owned(),
        |component| map_steps(component, describe, describe).join(", "),
    )
}

/// Returns `part` of every step of a sequence, or `whole` of a single component.
pub(super) fn map_steps<T>(
    component: &Component,
    whole: impl Fn(&Component) -> T,
    part: impl Fn(&ComponentStep<Never>) -> T,
) -> Vec<T> {
    match &component.parts {
        Some(parts) if component.kind == "Sequence" => parts.0.iter().map(part).collect(),
        _ => vec![whole(component)],
    }
}

fn pattern<P>(part: &ComponentStep<P>) -> String {
    match &part.pattern {
        Some(Pattern::Regex(pattern)) => pattern.clone(),
        _ => String::new(),
    }
}

fn step_of<P>(part: &ComponentStep<P>) -> Option<Step<'static>> {
    match part.kind.as_str() {
        "Split" => {
            let behavior = part.behavior.as_deref().unwrap_or_default();
            // The second form drops the text between matches; the expressions match everything.
            let isolated = matches!(
                (behavior, part.invert.unwrap_or(false)),
                ("Isolated", false) | ("Removed", true)
            );
            (isolated && matches!(part.pattern, Some(Pattern::Regex(_)))).then_some(Split(""))
        }
        "Digits" => Some(Digits(part.individual_digits.unwrap_or(false))),
        "ByteLevel" if part.add_prefix_space != Some(true) => {
            Some(ByteLevel(part.use_regex.unwrap_or(true)))
        }
        _ => None,
    }
}

fn describe<P>(part: &ComponentStep<P>) -> String {
    let mut text = part.kind.clone();
    match &part.pattern {
        Some(Pattern::Regex(pattern) | Pattern::String(pattern)) => {
            text += &format!(" {pattern:?}")
        }
        None => {}
    }
    for (name, value) in [
        ("add_prefix_space", part.add_prefix_space),
        ("individual_digits", part.individual_digits),
        ("invert", part.invert),
        ("split", part.split),
        ("strip_left", part.strip_left),
        ("strip_right", part.strip_right),
    ] {
        if value == Some(true) {
            text += " ";
            text += name;
        }
    }
    for value in [
        &part.behavior,
        &part.prepend_scheme,
        &part.content,
        &part.prepend,
        &part.replacement,
    ]
    .into_iter()
    .flatten()
    {
        text += &format!(" {value:?}");
    }
    text
}
