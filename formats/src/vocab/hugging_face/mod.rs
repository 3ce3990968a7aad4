//! Reader of vocabularies from folders of the Hugging Face hub.
//!
//! Tokens and rules are in `tokenizer.json`, of which every entry is applied as by PyPI's
//! `tokenizers` or refused by name. A `tokenizer.model` (SentencePiece) with the same merges adds
//! the scores; alone, it has all. Other files state special tokens and the chat template.

mod base;
mod json;
mod pre_tokenizer;
mod rules;
mod scores;
mod sentence_piece;
mod special;
mod write;

use std::io::Read as _;
use std::path::Path;

use serde::de::DeserializeOwned;

use base::VocabularyBuilder;
use json::{AddedToken, ChatTemplate, Config, Entries, TokenizerConfig, TokenizerJson};
use special::{SpecialTokenSources, post_process};

use super::{SENTENCE_PIECE, TokenKind, Vocabulary, VocabularyError};
use crate::limits;
use crate::open;
use crate::python_json;

const TOKENIZER_MODEL: &str = "tokenizer.model";
const TOKENIZER_JSON: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const CHAT_TEMPLATE_JINJA: &str = "chat_template.jinja";
const CHAT_TEMPLATE_JSON: &str = "chat_template.json";

/// Contents of the files of a folder that describe its vocabulary; `None` if missing.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are the files' names")]
pub struct HuggingFaceFiles {
    pub tokenizer_model: Option<Vec<u8>>,
    pub tokenizer_json: Option<Vec<u8>>,
    pub tokenizer_config: Option<Vec<u8>>,
    pub special_tokens_map: Option<Vec<u8>>,
    pub added_tokens: Option<Vec<u8>>,
    pub config: Option<Vec<u8>>,
    pub generation_config: Option<Vec<u8>>,
    pub chat_template_jinja: Option<Vec<u8>>,
    pub chat_template_json: Option<Vec<u8>>,
}

impl Vocabulary {
    /// Reads the vocabulary of a folder in Hugging Face's layout, from the files
    /// [`HuggingFaceFiles::NAMES`].
    ///
    /// If `config.json` states a vocabulary size, ids without a text are filled up, and added
    /// tokens beyond it are dropped.
    pub fn from_hugging_face(dir: &Path) -> Result<Self, VocabularyError> {
        HuggingFaceFiles::read(dir)?.vocabulary()
    }
}

impl HuggingFaceFiles {
    /// Names of the files.
    pub const NAMES: [&str; 9] = [
        TOKENIZER_MODEL,
        TOKENIZER_JSON,
        TOKENIZER_CONFIG,
        SPECIAL_TOKENS_MAP,
        ADDED_TOKENS,
        CONFIG,
        GENERATION_CONFIG,
        CHAT_TEMPLATE_JINJA,
        CHAT_TEMPLATE_JSON,
    ];

    /// Reads the files of a folder.
    pub fn read(dir: &Path) -> Result<Self, VocabularyError> {
        let tokenizer = |name| read(dir, name, limits::MAX_TOKENIZER_FILE_BYTES);
        let config = |name| read(dir, name, limits::MAX_CONFIG_FILE_BYTES);
        Ok(HuggingFaceFiles {
            tokenizer_model: tokenizer(TOKENIZER_MODEL)?,
            tokenizer_json: tokenizer(TOKENIZER_JSON)?,
            tokenizer_config: config(TOKENIZER_CONFIG)?,
            special_tokens_map: config(SPECIAL_TOKENS_MAP)?,
            added_tokens: config(ADDED_TOKENS)?,
            config: config(CONFIG)?,
            generation_config: config(GENERATION_CONFIG)?,
            chat_template_jinja: config(CHAT_TEMPLATE_JINJA)?,
            chat_template_json: config(CHAT_TEMPLATE_JSON)?,
        })
    }

    /// Returns the vocabulary described by the files.
    pub fn vocabulary(&self) -> Result<Vocabulary, VocabularyError> {
        let tokenizer_config: TokenizerConfig =
            parse(TOKENIZER_CONFIG, self.tokenizer_config.as_deref())?.unwrap_or_default();
        let map: TokenizerConfig = parse(
            "special_tokens_map.json",
            self.special_tokens_map.as_deref(),
        )?
        .unwrap_or_default();
        let config: Config = parse(CONFIG, self.config.as_deref())?.unwrap_or_default();
        let generation: Config =
            parse(GENERATION_CONFIG, self.generation_config.as_deref())?.unwrap_or_default();
        let model = self.tokenizer_model.as_deref();
        let model = model.filter(|bytes| sentence_piece::is_sentence_piece(bytes));
        let (base, processor) = match (&self.tokenizer_json, model) {
            (Some(bytes), model) => {
                let mut tokenizer: TokenizerJson = parse_one(TOKENIZER_JSON, bytes)?;
                let processor = tokenizer.post_processor.take();
                let pieces = model.map(sentence_piece::parse).transpose()?;
                let collapses = pieces.as_ref().is_some_and(|pieces| pieces.collapse_spaces);
                let configured = added_tokens(&tokenizer_config)?;
                let mut base = VocabularyBuilder::from_json(tokenizer, &configured, collapses)?;
                if let Some(pieces) = &pieces
                    && base.vocabulary.model == SENTENCE_PIECE
                {
                    scores::take(&mut base.vocabulary, pieces);
                }
                for token in &configured {
                    base.add_missing(token)?;
                }
                base.set_normalized_tokens()?;
                let Vocabulary { merges, scores, .. } = &base.vocabulary;
                if base.vocabulary.pre.is_none() && merges.is_empty() && scores.is_empty() {
                    let problem =
                        "model.merges is empty; copy the tokenizer's files again from their source";
                    return Err(file(TOKENIZER_JSON, problem));
                }
                (base, processor)
            }
            (None, Some(model)) => {
                let vocabulary = sentence_piece::parse(model)?;
                let base = self.sentence_piece_vocabulary(vocabulary, &tokenizer_config)?;
                (base, None)
            }
            (None, None) if self.tokenizer_model.is_some() => {
                let problem = "is no SentencePiece model, and there is no tokenizer.json beside it";
                return Err(file(TOKENIZER_MODEL, problem));
            }
            (None, None) => {
                let problem = "is not in the folder, and neither is tokenizer.model; copy the tokenizer's files";
                return Err(file(TOKENIZER_JSON, problem));
            }
        };
        let text_config = config.text_config.as_ref();
        let size = config
            .vocab_size
            .or_else(|| text_config.and_then(|text| text.vocab_size));
        let mut vocabulary = base.finish(size)?;

        let gemma = |kind: &String| kind.starts_with("gemma");
        if self.tokenizer_json.is_none() {
            if config.model_type.as_ref().is_some_and(gemma) {
                // They are not used with the SentencePiece model.
                vocabulary.add_space_prefix = false;
            } else if let Some(prefix) = tokenizer_config.add_prefix_space {
                vocabulary.add_space_prefix = prefix;
            }
        }
        let special = SpecialTokenSources {
            names: [&tokenizer_config, &map],
            ids: [
                (config.bos_token_id.as_ref(), config.eos_token_id.as_ref()),
                text_config.map_or((None, None), |text| {
                    (text.bos_token_id.as_ref(), text.eos_token_id.as_ref())
                }),
                (
                    generation.bos_token_id.as_ref(),
                    generation.eos_token_id.as_ref(),
                ),
            ],
        };
        special.set_special_tokens(&mut vocabulary)?;
        let (bos, eos) = match &processor {
            Some(processor) => post_process(processor, &mut vocabulary)?,
            None => (None, None),
        };
        let flag = |processed: Option<bool>, stated: Option<bool>, default| {
            let default = if processor.is_some() { false } else { default };
            processed.or(stated).unwrap_or(default)
        };
        vocabulary.add_bos = flag(bos, tokenizer_config.add_bos_token, vocabulary.add_bos);
        vocabulary.add_eos = flag(eos, tokenizer_config.add_eos_token, vocabulary.add_eos);
        vocabulary.chat_template = self.template(tokenizer_config)?;
        vocabulary.validate()?;
        Ok(vocabulary)
    }

    fn sentence_piece_vocabulary(
        &self,
        vocabulary: Vocabulary,
        config: &TokenizerConfig,
    ) -> Result<VocabularyBuilder, VocabularyError> {
        let added: Entries<u32> =
            parse(ADDED_TOKENS, self.added_tokens.as_deref())?.unwrap_or_default();
        let added = added.0.into_iter().map(|(content, id)| AddedToken {
            id,
            content,
            ..AddedToken::default()
        });
        let tokens: Vec<AddedToken> = added.chain(added_tokens(config)?).collect();
        let mut base = VocabularyBuilder::from_pieces(vocabulary, tokens.len());
        for mut token in tokens {
            if token.kind() == TokenKind::UserDefined {
                // As in the pieces.
                token.content = token.content.replace('\u{2581}', " ");
            }
            base.add(&token)?;
        }
        Ok(base)
    }

    fn template(&self, config: TokenizerConfig) -> Result<Option<String>, VocabularyError> {
        if let Some(bytes) = &self.chat_template_jinja {
            let text = String::from_utf8(bytes.clone());
            let text = text.map_err(|_| file(CHAT_TEMPLATE_JINJA, "is no UTF-8"))?;
            return Ok(Some(text));
        }
        if let Some(template) = config.chat_template {
            return Ok(template.text());
        }
        let beside: Option<ChatTemplate> =
            parse(CHAT_TEMPLATE_JSON, self.chat_template_json.as_deref())?;
        Ok(beside.and_then(|file| file.chat_template?.text()))
    }
}

/// Returns the added tokens that `tokenizer_config.json` lists.
fn added_tokens(config: &TokenizerConfig) -> Result<Vec<AddedToken>, VocabularyError> {
    let decoder = config.added_tokens_decoder.0.iter();
    let token = |(key, token): &(String, AddedToken)| {
        let id = key.parse().map_err(|_| {
            let problem = format!("added_tokens_decoder has the id {key:?}");
            file(TOKENIZER_CONFIG, &problem)
        })?;
        let token = token.clone();
        Ok(AddedToken { id, ..token })
    };
    decoder.map(token).collect()
}

fn file(name: &str, problem: &str) -> VocabularyError {
    VocabularyError::File {
        file: name.to_owned(),
        problem: problem.to_owned(),
    }
}

fn unsupported_json(
    what: &'static str,
    found: impl Into<String>,
    supported: impl Into<String>,
) -> VocabularyError {
    unsupported(TOKENIZER_JSON, what, found, supported)
}

fn unsupported(
    file: &'static str,
    what: &'static str,
    found: impl Into<String>,
    supported: impl Into<String>,
) -> VocabularyError {
    VocabularyError::Unsupported {
        file,
        what,
        found: found.into(),
        supported: supported.into(),
    }
}

fn read(dir: &Path, name: &str, most: u64) -> Result<Option<Vec<u8>>, VocabularyError> {
    let path = dir.join(name);
    let problem = |problem: String| VocabularyError::File {
        file: path.display().to_string(),
        problem,
    };
    let open = match open::open_inside(dir, name) {
        Ok(open) => open,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(VocabularyError::Open(error.to_string())),
    };
    let mut bytes = Vec::new();
    open.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| problem(error.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(problem(format!(
            "the file has more than {most} bytes, which no tokenizer has"
        )));
    }
    Ok(Some(bytes))
}

fn parse<T: DeserializeOwned>(
    name: &str,
    bytes: Option<&[u8]>,
) -> Result<Option<T>, VocabularyError> {
    bytes.map(|bytes| parse_one(name, bytes)).transpose()
}

fn parse_one<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, VocabularyError> {
    serde_json::from_slice(&python_json::standard(bytes))
        .map_err(|error| file(name, &error.to_string()))
}
