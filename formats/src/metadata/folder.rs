//! Metadata of a source as files of a folder for transformers.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value as Json, json};

use super::card::{self, README};
use super::gguf::{
    PAD_TOKEN_ID, SAMPLING, SPECIAL_TOKENS, TEMPLATE, TEMPLATE_NAMES, architecture_prefix,
    is_of_file,
};
use super::{Object, SourceMetadata, object};
use crate::gguf::{FromValue as _, Value};
use crate::vocab::{END_KEYS, Vocabulary};

pub(super) const CONFIG: &str = "config.json";
pub(super) const GENERATION_CONFIG: &str = "generation_config.json";
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(super) const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";

/// Files that are JSON objects.
pub(super) const CONFIG_FILES: [&str; 4] = [
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
];

/// Texts that a model is published with.
pub(super) const TEXT_FILES: [&str; 11] = [
    README,
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "LICENCE",
    "LICENCE.md",
    "LICENCE.txt",
    "NOTICE",
    "NOTICE.md",
    "NOTICE.txt",
    "USE_POLICY.md",
];

/// Folder of further chat templates, a file each.
pub(super) const TEMPLATES: &str = "additional_chat_templates";

/// Key of a `config.json` that names the program which exported the folder.
pub const EXPORTED_BY: &str = "exported_by";

/// Keys of configurations that a folder or a GGUF states from the hyper-parameters and the
/// vocabulary of an artifact, under these names or others.
const STATED: [&str; 68] = [
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "added_tokens_decoder",
    "architectures",
    "attention_bias",
    "attn_logit_softcapping",
    "bos_token",
    "bos_token_id",
    "clean_up_tokenization_spaces",
    "decoder_sparse_step",
    "dtype",
    "eos_token",
    "eos_token_id",
    "final_logit_softcapping",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "mlp_only_layers",
    "model_max_length",
    "model_type",
    "moe_intermediate_size",
    "moe_num_experts",
    "n_routed_experts",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "qkv_bias",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "text_config",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "unk_token",
    "use_sliding_window",
    "vocab_size",
    // The program that wrote the file.
    EXPORTED_BY,
    "_attn_implementation_autoset",
    "_from_model_config",
    "_name_or_path",
    "backend",
    "is_local",
    "name_or_path",
    "tokenizer_version",
    "transformers.js_config",
    "transformers_version",
    "use_bfloat16",
    "transformers_weights",
];

/// Keys that refer to code or files that are not exported, or to how the weights were stored.
const OF_OTHER_FILES: [&str; 8] = [
    "auto_map",
    "from_slow",
    "merges_file",
    "quantization_config",
    "slow_tokenizer_class",
    "tokenizer_file",
    "vision_config",
    "vocab_file",
];

/// Keys that name tokens, which must be in the vocabulary.
const TOKEN_LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// Defaults in a configuration that the source may replace.
const REPLACEABLE: [&str; 3] = ["attention_dropout", PAD_TOKEN_ID, "use_cache"];

/// Longest value in the table of a model card.
const MAX_CARD_VALUE_BYTES: usize = 4096;

/// Files of a folder that state the metadata of a source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FolderFiles {
    /// `config.json`.
    pub config: Object,
    /// `generation_config.json`.
    pub generation_config: Object,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Object,
    /// Other files, by name.
    pub texts: BTreeMap<String, String>,
    /// Entries of the source, or its files and their keys, that are left out.
    pub left_out: Vec<String>,
}

/// Returns true for a key that hyper-parameters and vocabulary state.
pub(super) fn is_config_key_of_artifact(key: &str) -> bool {
    STATED.contains(&key)
}

/// Returns true for a file that is neither a configuration nor a chat template.
pub(super) fn is_text(name: &str) -> bool {
    !CONFIG_FILES.contains(&name) && template_name(name).is_none()
}

/// Returns the name of the chat template in a file.
pub(super) fn template_name(file: &str) -> Option<&str> {
    let file = file.strip_prefix(TEMPLATES)?.strip_prefix('/')?;
    let name = file.strip_suffix(".jinja")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
}

/// Returns the chat templates other than the default one, by name.
pub(super) fn named_templates(
    files: &BTreeMap<String, String>,
    tokenizer_config: &Object,
) -> BTreeMap<String, String> {
    let list = tokenizer_config.get("chat_template");
    let list = list.and_then(Json::as_array).into_iter().flatten();
    let listed = list.filter_map(|template| {
        let text = |key: &str| template.get(key)?.as_str().map(str::to_owned);
        Some((text("name")?, text("template")?))
    });
    let files = files.iter();
    let of_files =
        files.filter_map(|(file, text)| Some((template_name(file)?.to_owned(), text.clone())));
    let all = listed.chain(of_files);
    all.filter(|(name, _)| name != "default").collect()
}

/// Ids of the tokens that a configuration refers to. A configuration may have thousands.
pub(super) struct TokenIds<'a> {
    tokens: usize,
    ids: HashMap<&'a str, u32>,
}

impl<'a> TokenIds<'a> {
    pub(super) fn new(vocabulary: Option<&'a Vocabulary>) -> Self {
        let tokens = vocabulary.map_or(&[][..], |vocabulary| &vocabulary.tokens);
        let mut ids = HashMap::with_capacity(tokens.len());
        for (text, id) in tokens.iter().zip(0..) {
            ids.entry(text.as_str()).or_insert(id);
        }
        let tokens = tokens.len();
        TokenIds { tokens, ids }
    }

    /// Returns the id of a token that is named by its text or as an object.
    pub(super) fn of_name(&self, name: &Json) -> Option<u32> {
        let text = name.as_str().or_else(|| name.get("content")?.as_str())?;
        self.ids.get(text).copied()
    }

    /// Returns an id that is stated as a number; `None` if there is no such token.
    pub(super) fn of_number(&self, id: &Json) -> Option<u32> {
        let id = u32::try_from(id.as_u64()?).ok()?;
        ((id as usize) < self.tokens).then_some(id)
    }
}

impl SourceMetadata {
    /// Returns the files `own` of an export with the metadata of the source. `stated` are keys of a
    /// GGUF that its hyper-parameters state.
    pub fn to_folder(
        &self,
        own: FolderFiles,
        vocabulary: Option<&Vocabulary>,
        stated: &[String],
    ) -> FolderFiles {
        match self {
            SourceMetadata::Folder(source) => from_files(own, source, vocabulary),
            SourceMetadata::Gguf(entries) => EntryConverter {
                files: own,
                vocabulary,
            }
            .convert(entries, stated),
        }
    }
}

fn from_files(
    own: FolderFiles,
    source: &BTreeMap<String, String>,
    vocabulary: Option<&Vocabulary>,
) -> FolderFiles {
    let mut files = own;
    let ids = TokenIds::new(vocabulary);
    let mut tokenizer = object(source, TOKENIZER_CONFIG);
    let templates = named_templates(source, &tokenizer);
    for (key, value) in object(source, SPECIAL_TOKENS_MAP) {
        tokenizer.entry(key).or_insert(value);
    }
    for (name, config, target) in [
        (CONFIG, object(source, CONFIG), &mut files.config),
        (
            GENERATION_CONFIG,
            object(source, GENERATION_CONFIG),
            &mut files.generation_config,
        ),
        (TOKENIZER_CONFIG, tokenizer, &mut files.tokenizer_config),
    ] {
        for (key, value) in config {
            let unknown = || !names_known_tokens(&key, &value, &ids);
            if REPLACEABLE.contains(&key.as_str()) && !value.is_null() {
                // transformers fails for an id beyond the vocabulary.
                if key == PAD_TOKEN_ID && ids.of_number(&value).is_none() {
                    files.left_out.push(format!("{name}: {key}"));
                } else {
                    target.insert(key, value);
                }
            } else if target.contains_key(&key)
                || is_config_key_of_artifact(&key)
                || key == "chat_template"
            {
                continue;
            } else if OF_OTHER_FILES.contains(&key.as_str()) || unknown() {
                files.left_out.push(format!("{name}: {key}"));
            } else {
                target.insert(key, value);
            }
        }
    }
    put_templates(&mut files.tokenizer_config, templates);
    for (name, text) in source.iter().filter(|(name, _)| is_text(name)) {
        // A name of an artifact may be any path.
        if TEXT_FILES.contains(&name.as_str()) {
            files.texts.insert(name.clone(), text.clone());
        } else {
            files.left_out.push(name.clone());
        }
    }
    files
}

/// Returns false if a key names a token that the vocabulary does not have; transformers would add
/// it.
fn names_known_tokens(key: &str, value: &Json, ids: &TokenIds<'_>) -> bool {
    let known = |name: &Json| ids.of_name(name).is_some();
    match value {
        Json::Null => true,
        Json::Array(names) if TOKEN_LISTS.contains(&key) => names.iter().all(known),
        Json::Object(names) if TOKEN_LISTS.contains(&key) => names.values().all(known),
        name if key.ends_with("_token") && !name.is_boolean() => known(name),
        _ => true,
    }
}

/// Adds named templates to a configuration whose template is the default one.
fn put_templates(config: &mut Object, templates: BTreeMap<String, String>) {
    if templates.is_empty() {
        return;
    }
    let default = config.remove("chat_template");
    let default = default.and_then(|text| text.as_str().map(str::to_owned));
    let default = default.map(|text| ("default".to_owned(), text));
    let all = default.into_iter().chain(templates);
    let list = all.map(|(name, template)| json!({"name": name, "template": template}));
    config.insert("chat_template".to_owned(), list.collect());
}

/// Converts the entries of a GGUF to files.
struct EntryConverter<'a> {
    files: FolderFiles,
    vocabulary: Option<&'a Vocabulary>,
}

impl EntryConverter<'_> {
    /// Converts all entries but those of keys that are `stated`.
    fn convert(mut self, entries: &[(String, Value)], stated: &[String]) -> FolderFiles {
        let facts = card::facts_of_entries(entries);
        let others: HashSet<&str> = facts.others.iter().map(String::as_str).collect();
        let stated: HashSet<&str> = stated.iter().map(String::as_str).collect();
        let mut table = String::new();
        let mut templates = BTreeMap::new();
        let architecture = architecture_prefix(entries);
        let of_model = |key: &str| {
            let mut prefixes = architecture
                .iter()
                .map(String::as_str)
                .chain(["tokenizer."]);
            prefixes.any(|prefix| key.starts_with(prefix))
        };
        for (key, value) in entries {
            // In the head of the model card.
            let is_fact = key.starts_with("general.") && !others.contains(key.as_str());
            let is_stated = stated.contains(key.as_str()) || END_KEYS.contains(&key.as_str());
            if is_fact || is_stated || key == TEMPLATE_NAMES {
                continue;
            }
            let template = key.strip_prefix(TEMPLATE).zip(<&str>::from_value(value));
            if let Some((name, text)) = template {
                templates.insert(name.to_owned(), text.to_owned());
            } else if self.sampling(key, value) || self.special_token(key, value) {
                continue;
            } else if let (Some(text), false) = (card_value(key, value), of_model(key)) {
                table += &format!("| {} | {text} |\n", one_line(key));
            } else {
                self.files.left_out.push(key.clone());
            }
        }
        put_templates(&mut self.files.tokenizer_config, templates);
        self.put_card(&facts.front_matter(), entries, &table);
        self.files
    }

    fn sampling(&mut self, key: &str, value: &Value) -> bool {
        let Some((name, ..)) = SAMPLING.iter().find(|(_, entry, _)| *entry == key) else {
            return false;
        };
        let number = match value {
            // With the fewest digits that identify it.
            Value::F32(x) => x.to_string().parse::<f64>().ok().map(|x| json!(x)),
            Value::F64(x) => Some(json!(x)),
            value => u64::from_value(value).map(|x| json!(x)),
        };
        let Some(number) = number.filter(|number| !number.is_null()) else {
            return false;
        };
        let config = &mut self.files.generation_config;
        config.insert((*name).to_owned(), number);
        // Without it, transformers ignores these values.
        config.insert("do_sample".to_owned(), json!(true));
        true
    }

    fn special_token(&mut self, key: &str, value: &Value) -> bool {
        let Some((name, _)) = SPECIAL_TOKENS.iter().find(|(_, entry)| *entry == key) else {
            return false;
        };
        let id = u32::from_value(value);
        let text = id.and_then(|id| self.vocabulary?.tokens.get(id as usize));
        let (Some(id), Some(text)) = (id, text) else {
            return false;
        };
        let config = &mut self.files.tokenizer_config;
        config.insert((*name).to_owned(), json!(text));
        if *name == "pad_token" {
            for config in [&mut self.files.config, &mut self.files.generation_config] {
                config.insert(PAD_TOKEN_ID.to_owned(), json!(id));
            }
        }
        true
    }

    fn put_card(&mut self, head: &str, entries: &[(String, Value)], table: &str) {
        let name = entries.iter().find(|(key, _)| key == "general.name");
        let name = name.and_then(|(_, value)| <&str>::from_value(value));
        let mut card = head.to_owned();
        if let Some(name) = name {
            card += &format!("\n# {}\n", one_line(name));
        }
        if !table.is_empty() {
            card += "\nMetadata of the GGUF that this model was made from:\n\n";
            card += &format!("| key | value |\n|---|---|\n{table}");
        }
        if !card.is_empty() {
            self.files.texts.insert(README.to_owned(), card);
        }
    }
}

/// Returns the text of an entry in the table of a model card; `None` for an entry that describes the
/// source's file, for an array and for a long text.
fn card_value(key: &str, value: &Value) -> Option<String> {
    if is_of_file(key) || key.len() > MAX_CARD_VALUE_BYTES {
        return None;
    }
    let text = match value {
        Value::Array(_) => return None,
        Value::String(text) => text.clone(),
        Value::Bool(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::I8(value) => value.to_string(),
        Value::I16(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        value => u64::from_value(value)?.to_string(),
    };
    (text.len() <= MAX_CARD_VALUE_BYTES).then(|| one_line(&text))
}

/// Returns a text as a cell of a table.
fn one_line(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
