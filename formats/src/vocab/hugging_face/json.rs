//! Schemas of the JSON files of a folder, typed, because a generic tree would take many times the
//! size of a file.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::base::looks_special;
use crate::bounded_json;
use crate::limits::{MAX_MERGES, MAX_VOCABULARY};
use crate::vocab::TokenKind;

/// `tokenizer.json`. Truncation and padding are left out: callers of `tokenizers` set them.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizerJson {
    pub(super) version: Option<String>,
    #[serde(
        default,
        deserialize_with = "bounded_json::list::<_, _, MAX_VOCABULARY>"
    )]
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Option<Component>,
    pub(super) pre_tokenizer: Option<Component>,
    pub(super) post_processor: Option<Component>,
    pub(super) decoder: Option<Component>,
    pub(super) model: Model,
}

/// An added token in `tokenizer.json`, or in `tokenizer_config.json` with its id as the key.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct AddedToken {
    #[serde(default)]
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    /// Matched in the normalised text.
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

impl AddedToken {
    /// Returns the kind as converters to GGUF assign it.
    pub(super) fn kind(&self) -> TokenKind {
        if self.special || looks_special(&self.content) {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Model {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) dropout: Option<f64>,
    pub(super) unk_token: Option<String>,
    // `fuse_unk` has no effect: a vocabulary that would use `unk_token` is refused.
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(default)]
    pub(super) vocab: Entries<u32>,
    #[serde(default, deserialize_with = "bounded_json::list::<_, _, MAX_MERGES>")]
    pub(super) merges: Vec<Merge>,
}

/// A component of the tokenizer, or a sequence of components.
pub(super) type Component = ComponentStep<ComponentStep<Never>>;

/// Missing fields are `None`.
#[derive(Debug, Deserialize)]
pub(super) struct ComponentStep<P> {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(
        alias = "normalizers",
        alias = "pretokenizers",
        alias = "processors",
        alias = "decoders"
    )]
    pub(super) parts: Option<ShortList<P>>,
    pub(super) pattern: Option<Pattern>,
    pub(super) behavior: Option<String>,
    pub(super) invert: Option<bool>,
    pub(super) content: Option<String>,
    pub(super) prepend: Option<String>,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) use_regex: Option<bool>,
    pub(super) individual_digits: Option<bool>,
    pub(super) replacement: Option<String>,
    pub(super) prepend_scheme: Option<String>,
    pub(super) split: Option<bool>,
    pub(super) single: Option<ShortList<TemplatePiece>>,
    pub(super) special_tokens: Option<Entries<TemplateToken>>,
    pub(super) strip_left: Option<bool>,
    pub(super) strip_right: Option<bool>,
    pub(super) start: Option<u64>,
    pub(super) stop: Option<u64>,
}

/// Uninhabited: sequences are not nested.
#[derive(Debug)]
pub(super) enum Never {}

impl<'de> Deserialize<'de> for Never {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("a sequence in a sequence"))
    }
}

#[derive(Debug, Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Debug, Deserialize)]
pub(super) enum TemplatePiece {
    SpecialToken { id: String },
    Sequence {},
}

/// Ids that a template inserts for a special token.
#[derive(Debug, Deserialize)]
pub(super) struct TemplateToken {
    pub(super) ids: ShortList<u32>,
}

/// `tokenizer_config.json`, `special_tokens_map.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) add_bos_token: Option<bool>,
    pub(super) add_eos_token: Option<bool>,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) bos_token: Option<TokenName>,
    pub(super) eos_token: Option<TokenName>,
    pub(super) unk_token: Option<TokenName>,
    #[serde(default)]
    pub(super) added_tokens_decoder: Entries<AddedToken>,
    pub(super) chat_template: Option<Template>,
}

/// `config.json`, `generation_config.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    pub(super) model_type: Option<String>,
    pub(super) vocab_size: Option<u64>,
    pub(super) bos_token_id: Option<TokenIds>,
    pub(super) eos_token_id: Option<TokenIds>,
    pub(super) text_config: Option<TextConfig>,
}

/// Text part of the `config.json` of a multimodal model.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TextConfig {
    pub(super) vocab_size: Option<u64>,
    pub(super) bos_token_id: Option<TokenIds>,
    pub(super) eos_token_id: Option<TokenIds>,
}

/// `chat_template.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatTemplate {
    pub(super) chat_template: Option<Template>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenName {
    Text(String),
    Token { content: String },
}

impl TokenName {
    pub(super) fn text(&self) -> &str {
        match self {
            TokenName::Text(text) | TokenName::Token { content: text } => text,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenIds {
    One(u32),
    Several(Vec<u32>),
}

impl TokenIds {
    pub(super) fn list(&self) -> &[u32] {
        match self {
            TokenIds::One(id) => std::slice::from_ref(id),
            TokenIds::Several(ids) => ids,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Template {
    One(String),
    Several(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    name: String,
    template: String,
}

impl Template {
    pub(super) fn text(self) -> Option<String> {
        match self {
            Template::One(text) => Some(text),
            Template::Several(templates) => {
                let mut templates = templates.into_iter();
                templates
                    .find(|template| template.name == "default")
                    .map(|template| template.template)
            }
        }
    }
}

/// A merge, written as two texts or, in older files, as one text with a space between them.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) text: String,
    /// End of the first part, start of the second.
    split: (usize, usize),
}

impl Merge {
    pub(super) fn pair(&self) -> (&str, &str) {
        (&self.text[..self.split.0], &self.text[self.split.1..])
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Merge;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a merge of two texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge {
                        text: text.to_owned(),
                        split: (left.len(), left.len() + 1),
                    }),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Merge, A::Error> {
                let mut text = String::new();
                let mut next = |at| {
                    let item = items.next_element::<String>()?;
                    item.ok_or_else(|| A::Error::invalid_length(at, &self))
                };
                text += &next(0)?;
                let at = text.len();
                text += &next(1)?;
                match items.next_element::<IgnoredAny>()? {
                    None => Ok(Merge {
                        text,
                        split: (at, at),
                    }),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// Entries of an object in file order; empty for a list.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Entries(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Entries<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MAX_VOCABULARY {
                        let found = MAX_VOCABULARY + 1;
                        let most = format!("at most {MAX_VOCABULARY} tokens");
                        return Err(A::Error::invalid_length(found, &most.as_str()));
                    }
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }

            /// Unigram models have a list here; they are refused later by name.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Entries::default())
            }
        }

        deserializer.deserialize_any(Reader(PhantomData))
    }
}

#[derive(Debug)]
pub(super) struct ShortList<T>(pub(super) Vec<T>);

const MAX_SHORT_LIST: usize = 16;

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ShortList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded_json::list::<_, _, MAX_SHORT_LIST>(deserializer).map(ShortList)
    }
}
