//! Errors of binding models.

use std::fmt;

use super::{SUPPORTED, hugging_face};
use crate::CodecError;
use crate::gguf::GgufError;
use crate::model::HyperError;
use crate::safetensors::SafetensorsError;

pub(crate) type Result<T, E = BindError> = std::result::Result<T, E>;

/// Error returned when a file or folder cannot be bound as a model, or a container cannot represent
/// one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "fields that the messages name")]
pub enum BindError {
    /// Unsupported architecture.
    #[error("architecture {found:?} is not supported; supported: {}", supported())]
    Architecture { found: String },
    /// A metadata entry is missing or has the wrong type, or a tensor type is unsupported.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Unsupported tensor type.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Values of a tensor needed to open the model cannot be decoded.
    #[error("tensor {tensor:?}: {error}")]
    Numbers { tensor: String, error: CodecError },
    /// Invalid hyper-parameters.
    #[error(transparent)]
    Hyper(#[from] HyperError),
    /// A mixture of experts.
    #[error(
        "{}",
        match experts {
            0 => "expert_count is 0 or missing, but the architecture is a mixture of experts; the file is damaged".to_owned(),
            count => format!("the model is a mixture of {count} experts; only dense models of its architecture are supported"),
        }
    )]
    Experts {
        /// Experts per block.
        experts: u64,
    },
    /// Keys and values of different head sizes.
    #[error("keys have {keys} dimensions per head and values {values}; they must agree")]
    HeadSizes {
        /// `attention.key_length`.
        keys: usize,
        /// `attention.value_length`.
        values: usize,
    },
    /// Attention that is not causal.
    #[error("attention.causal is false; only causal models are supported")]
    NotCausal,
    /// Unsupported position scaling.
    #[error(
        "rope scaling {found:?} is not supported; supported: none, linear, longrope, and llama3's tensor of factors"
    )]
    RopeScaling { found: String },
    /// A window pattern for another number of layers.
    #[error(
        "the pattern of sliding windows is for {found} layers, the model has {layers}; \
         the file is damaged"
    )]
    Pattern {
        /// Layers of the model.
        layers: usize,
        /// Entries of the pattern.
        found: usize,
    },
    /// Missing tensor.
    #[error("tensor {tensor:?} is missing; {remedy}")]
    MissingTensor {
        /// Tensor name.
        tensor: String,
        /// What to do about it.
        remedy: Remedy,
    },
    /// A tensor shape that contradicts the hyper-parameters.
    #[error("tensor {tensor:?}: expected shape {expected:?}, found {found:?} (rows first)")]
    TensorShape {
        /// Tensor name.
        tensor: String,
        /// Expected shape.
        expected: Vec<u64>,
        /// Actual shape.
        found: Vec<u64>,
    },
    /// Tensors unknown to the architecture.
    #[error(
        "{count} tensors are unknown to architecture {architecture:?}, the first is {tensor:?}; \
         leaving them out would change what the model computes"
    )]
    UnexpectedTensors {
        /// The architecture.
        architecture: &'static str,
        /// Number of tensors.
        count: usize,
        /// First of them in file order.
        tensor: String,
    },
    /// `config.json` is not a JSON object. Nested keys of it are written `outer.inner`.
    #[error("the configuration is unreadable: {error}")]
    ConfigJson { error: String },
    /// Missing key.
    #[error("{key:?} is missing, expected {expected}")]
    MissingKey {
        /// The key.
        key: String,
        /// Expected type.
        expected: &'static str,
    },
    /// Value of the wrong type.
    #[error("{key:?}: expected {expected}, found {found}")]
    WrongKeyType {
        /// The key.
        key: String,
        /// Expected type.
        expected: &'static str,
        /// Actual value.
        found: String,
    },
    /// Unsupported or contradictory value.
    #[error("{key:?} is {found}, expected {expected}")]
    KeyValue {
        /// The key.
        key: String,
        /// Expected values.
        expected: String,
        /// Actual value.
        found: String,
    },
    /// Unsupported model type.
    #[error(
        "model type {found:?} is not supported; supported: {}",
        hugging_face::model_type_names()
    )]
    ModelType { found: String },
    /// A mixture of experts.
    #[error(
        "model type {found:?}, a mixture of experts, is not supported; supported: {}",
        hugging_face::model_type_names()
    )]
    ExpertModel { found: String },
    /// A multimodal model.
    #[error(
        "model type {found:?} reads images (\"vision_config\"), which is not supported; \
         supported are models of text of type {}",
        hugging_face::model_type_names()
    )]
    Vision { found: String },
    /// Weights quantised by another program.
    #[error(
        "the weights are quantised by {method:?} (\"quantization_config\"), which is not \
         supported; compile the model they were made from"
    )]
    Quantised { method: String },
    /// A bias that contradicts the configuration.
    #[error(
        "tensor {tensor:?} is present, {}; remove the tensor or correct the configuration",
        key.map_or_else(
            || format!("models of type {model_type:?} have no such bias"),
            |key| format!("the configuration disables it ({key:?} is false or absent)"),
        )
    )]
    Bias {
        /// Tensor name.
        tensor: String,
        /// Model type.
        model_type: &'static str,
        /// Key that would allow it, if any.
        key: Option<&'static str>,
    },
    /// An output matrix that differs from the embedding although tied.
    #[error(
        "tensor {output:?} differs from {embedding:?} although \"tie_word_embeddings\" says that \
         they are one; set it to false to use both, or remove the tensor"
    )]
    Tied {
        /// Output matrix.
        output: &'static str,
        /// Embedding.
        embedding: &'static str,
    },
    /// A property that the container cannot express.
    #[error(
        "{what} is {found}; of an architecture {architecture:?}, {container} can only say {expected}"
    )]
    Inexpressible {
        /// Property of the model.
        what: &'static str,
        /// Its value in the model.
        found: String,
        /// The container's name for the architecture.
        architecture: &'static str,
        /// Container format.
        container: &'static str,
        /// Values that the container can express.
        expected: String,
    },
}

/// What to do about a missing tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A GGUF is incomplete.
    Gguf,
    /// A folder is incomplete.
    Folder,
    /// A folder without a head does not say that the head shares the embedding.
    Tie,
    /// The configuration of a folder states biases.
    Bias {
        /// Key of the configuration.
        key: &'static str,
    },
    /// A GGUF has only one of the two tensors of LongRoPE.
    LongRope,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Gguf => f.write_str(
                "the file is a vocabulary, or was not converted completely; convert the model again",
            ),
            Remedy::Folder => {
                f.write_str("the weights are incomplete; download or save the model again")
            }
            Remedy::Tie => f.write_str(
                "if the head shares the embedding, set tie_word_embeddings to true in config.json",
            ),
            Remedy::Bias { key } => write!(
                f,
                "if the model has no such bias, set {key} to false in config.json, else download or \
                 save it again"
            ),
            Remedy::LongRope => f.write_str(
                "LongRoPE takes the factors of short and of long contexts; convert the model again",
            ),
        }
    }
}

fn supported() -> String {
    let mut names: Vec<&str> = Vec::new();
    for architecture in SUPPORTED {
        if !names.contains(&architecture.name) {
            names.push(architecture.name);
        }
    }
    names.join(", ")
}

impl BindError {
    /// Returns the tensor concerned, if any.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            BindError::MissingTensor { tensor, .. }
            | BindError::TensorShape { tensor, .. }
            | BindError::UnexpectedTensors { tensor, .. }
            | BindError::Numbers { tensor, .. }
            | BindError::Safetensors(SafetensorsError::UnsupportedType { tensor, .. })
            | BindError::Gguf(GgufError::UnsupportedType { tensor, .. })
            | BindError::Bias { tensor, .. } => Some(tensor),
            BindError::Tied { output, .. } => Some(output),
            _ => None,
        }
    }
}
