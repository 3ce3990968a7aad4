//! Pre-tokenizers: splitting of a text into words before byte-level BPE.

use serde::{Deserialize, Serialize};

/// A pre-tokenizer, documented at its implementation in the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum PreTokenizer {
    /// GPT-2.
    Gpt2,
    /// StarCoder, SmolLM: individual digits, then GPT-2.
    StarCoder,
    /// Llama 3.
    Llama3,
    /// DBRX, Phi-4: Llama 3's expression with ordinary merging.
    Dbrx,
    /// Qwen 2 and 3: Llama 3's expression with individual digits.
    Qwen2,
    /// DeepSeek LLM.
    DeepSeekLlm,
    /// DeepSeek Coder.
    DeepSeekCoder,
    /// DeepSeek V3 and R1.
    DeepSeekV3,
    /// GPT-4o, Phi-4-mini.
    Gpt4o,
    /// Mistral NeMo.
    Tekken,
}

/// Names in GGUF (`tokenizer.ggml.pre`); the first name of each pre-tokenizer is written.
const NAMES: &[(&str, PreTokenizer)] = &[
    ("gpt-2", PreTokenizer::Gpt2),
    ("phi-2", PreTokenizer::Gpt2),
    ("mpt", PreTokenizer::Gpt2),
    ("olmo", PreTokenizer::Gpt2),
    ("starcoder", PreTokenizer::StarCoder),
    ("smollm", PreTokenizer::StarCoder),
    ("refact", PreTokenizer::StarCoder),
    ("command-r", PreTokenizer::StarCoder),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("falcon3", PreTokenizer::Llama3),
    ("pixtral", PreTokenizer::Llama3),
    ("dbrx", PreTokenizer::Dbrx),
    ("smaug-bpe", PreTokenizer::Dbrx),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
    ("megrez", PreTokenizer::Qwen2),
    ("deepseek-llm", PreTokenizer::DeepSeekLlm),
    ("deepseek-coder", PreTokenizer::DeepSeekCoder),
    ("deepseek-v3", PreTokenizer::DeepSeekV3),
    ("gpt-4o", PreTokenizer::Gpt4o),
    ("tekken", PreTokenizer::Tekken),
];

impl PreTokenizer {
    /// Returns the pre-tokenizer of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, pre) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*pre)
    }

    /// Returns the usual name.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, pre)| *pre == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns all names, for messages.
    pub fn names() -> String {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// Returns true if tokens take precedence over merging.
    pub fn ignores_merges(self) -> bool {
        matches!(self, PreTokenizer::Llama3 | PreTokenizer::Tekken)
    }

    pub(super) fn adds_bos(self) -> bool {
        matches!(self, PreTokenizer::Llama3 | PreTokenizer::Tekken)
    }
}

impl From<PreTokenizer> for &'static str {
    fn from(pre: PreTokenizer) -> &'static str {
        pre.name()
    }
}

impl TryFrom<String> for PreTokenizer {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::from_name(&name).ok_or_else(|| format!("unknown pre-tokenizer {name:?}"))
    }
}
