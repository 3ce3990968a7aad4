//! Architectures as data, and the binding of a model's tensors to one of them.
//!
//! An architecture is a table: its names, a rule per tensor, and traits that the files
//! of such models do not state. Binding reads the hyper-parameters, finds every tensor of the
//! table, compares its shape, and refuses what is left over: a tensor that nothing reads, a bias
//! for example, would silently change what the model computes.

mod gguf;
mod hugging_face;
mod names;
mod tables;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::bands::CodeLayout;
use crate::block::BlockError;
use crate::dtype::DType;
use crate::gguf::{Contents, GgufError};
use crate::limits;
use crate::model::{
    Activation, BlockRole, HyperError, HyperParameters, Part, ProjectionKind, Role, RopePairs,
};
use crate::safetensors::SafetensorsError;

pub use gguf::{gguf_metadata, gguf_rope_pairs};
pub use hugging_face::{
    ConfigError, ConfigFacts, HuggingFaceConfig, WeightFile, bind_hugging_face,
};
pub use names::{NamedTensor, StateError, tensor_names};
pub use tables::SUPPORTED;

/// An architecture that this project executes.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` in GGUF and prefix of the hyper-parameters' keys.
    pub name: &'static str,
    /// Values of `model_type` in Hugging Face's `config.json`.
    pub model_types: &'static [&'static str],
    /// Its tensors.
    groups: &'static [&'static Group],
    pub(crate) traits: Traits,
}

/// What models of an architecture have in common and their files do not state, or not always.
#[derive(Debug)]
pub(crate) struct Traits {
    /// The rotated pairs in GGUF, whose converter reorders queries and keys for some
    /// architectures; in Hugging Face's folders they are always halves.
    pub gguf_rope_pairs: RopePairs,
    pub activation: Activation,
    pub embedding_scale: EmbeddingScale,
    /// Hugging Face's folders hold the weights of the norms less one.
    pub norms_less_one: bool,
    pub sliding: Sliding,
    /// Base of the rotary embedding in layers with a window, where it is another.
    pub sliding_rope_theta: Option<f32>,
    /// Base of the rotary embedding where the file states none.
    pub rope_theta: f32,
    /// Soft cap of attention where the file states none.
    pub attention_softcap: Option<f32>,
    /// Soft cap of the logits where the file states none.
    pub logit_softcap: Option<f32>,
    /// The number of layers of the one size whose attention is scaled by
    /// `1 / sqrt(width / heads)`.
    pub layers_scaled_by_width: Option<usize>,
}

/// Factor of the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingScale {
    One,
    RootOfWidth,
}

/// Which layers have the window that a file states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sliding {
    /// Every layer.
    Every,
    /// All but every so manieth, where a file does not list them.
    AllBut {
        every: usize,
        /// The window where the file states none.
        positions: Option<usize>,
    },
}

impl Traits {
    /// Factor of the products of queries and keys, where it is not `1 / sqrt(head_size)`.
    pub(crate) fn attention_scale(&self, layers: usize, width: usize, heads: usize) -> Option<f32> {
        (self.layers_scaled_by_width == Some(layers)).then(|| (heads as f32 / width as f32).sqrt())
    }
}

impl EmbeddingScale {
    /// The factor; `None` is 1.
    pub(crate) fn of(self, width: usize) -> Option<f32> {
        match self {
            EmbeddingScale::One => None,
            EmbeddingScale::RootOfWidth => Some((width as f32).sqrt()),
        }
    }
}

impl Sliding {
    /// The layers without a window, where a file does not list them; `every` is what it states
    /// instead, 0 and 1 meaning that all layers have one or none.
    pub(crate) fn full_layers(self, layers: usize, every: Option<usize>) -> Vec<usize> {
        let every = every.unwrap_or(match self {
            Sliding::Every => 0,
            Sliding::AllBut { every, .. } => every,
        });
        match every {
            0 => Vec::new(),
            every => (0..layers).filter(|l| l % every == every - 1).collect(),
        }
    }
}

/// Tensors that stand together in the tables.
#[derive(Debug)]
enum Group {
    /// One of each in a model.
    Model(&'static [TensorRule]),
    /// One of each in a block; `{}` in their names stands for its index.
    Block(&'static [TensorRule]),
}

/// What a tensor is called, what it holds and what shape it has.
#[derive(Debug)]
struct TensorRule {
    gguf: &'static str,
    /// Empty where the folder states the numbers in its configuration.
    hugging_face: &'static str,
    /// The roles it plays and how many rows each has, one under the other.
    holds: &'static [(BlockRole, Dim)],
    cols: Dim,
    /// Whether a model without it is incomplete.
    required: bool,
}

/// A length in terms of the hyper-parameters.
#[derive(Clone, Copy, Debug)]
enum Dim {
    One,
    Vocabulary,
    Width,
    Queries,
    KeysValues,
    Head,
    Ffn,
    RotaryPairs,
}

impl Dim {
    fn of(self, hyper: &HyperParameters) -> usize {
        match self {
            Dim::One => 1,
            Dim::Vocabulary => hyper.vocabulary,
            Dim::Width => hyper.width,
            Dim::Queries => hyper.heads * hyper.head_size,
            Dim::KeysValues => hyper.kv_heads * hyper.head_size,
            Dim::Head => hyper.head_size,
            Dim::Ffn => hyper.ffn,
            Dim::RotaryPairs => hyper.rope_dimensions / 2,
        }
    }
}

/// A tensor with its place in the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTensor {
    /// Name in the file.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// How its numbers are stored.
    pub dtype: DType,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// The codes of its bands, where it is in [`DType::Bands`].
    pub codes: Option<CodeLayout>,
    /// Where its bytes are.
    pub place: Place,
}

/// Where the bytes of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In a file of the model.
    File {
        /// Which of the model's files.
        index: usize,
        /// Where, from the start of the file.
        range: Range<usize>,
    },
    /// Computed when the model was opened, from what a file states in another form.
    Computed(Arc<[u8]>),
}

impl Place {
    /// Bytes of the tensor.
    pub fn len(&self) -> usize {
        match self {
            Place::File { range, .. } => range.len(),
            Place::Computed(bytes) => bytes.len(),
        }
    }

    /// Whether the tensor has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor as a container describes it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Lengths, rows first: `[rows, cols]`, or `[cols]` of a vector. Further dimensions of
    /// length 1 are left out.
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Index of the file.
    pub file: usize,
    pub range: Range<usize>,
}

/// How a container names tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// As llama.cpp does.
    Gguf,
    /// As the classes of transformers do.
    HuggingFace,
}

/// Why a file or a folder is not a model that this project executes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BindError {
    /// Another architecture.
    #[error("architecture {found:?} is not supported; supported: {}", supported())]
    Architecture {
        /// Its name.
        found: String,
    },
    /// A metadata entry is missing or of another type, or a tensor's type is not supported.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A configuration says something that is not executed, or not what it should.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor's type is not supported.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The numbers of a tensor, which have to be known when the model is opened, are not read.
    #[error("tensor {tensor:?}: {error}")]
    Numbers {
        /// Its name.
        tensor: String,
        /// Why not.
        error: BlockError,
    },
    /// Hyper-parameters that no model can have.
    #[error(transparent)]
    Hyper(#[from] HyperError),
    /// A mixture of experts.
    #[error(
        "the model is a mixture of {experts} experts, which is not supported; \
         supported are dense models of {}",
        supported()
    )]
    Experts {
        /// Experts per block.
        experts: u64,
    },
    /// Keys and values of different widths.
    #[error("keys have {keys} dimensions per head and values {values}; they must agree")]
    HeadSizes {
        /// `attention.key_length`.
        keys: usize,
        /// `attention.value_length`.
        values: usize,
    },
    /// Attention that sees what follows.
    #[error(
        "attention.causal is false; only models whose positions see what precedes them are supported"
    )]
    NotCausal,
    /// Positions scaled in another way.
    #[error(
        "rope scaling {found:?} is not supported; supported: none, linear, longrope, and llama3's tensor of factors"
    )]
    RopeScaling {
        /// Its name.
        found: String,
    },
    /// A window for another number of layers.
    #[error(
        "the pattern of sliding windows is for {found} layers, the model has {layers}; \
         the file is damaged"
    )]
    Pattern {
        /// Blocks of the model.
        layers: usize,
        /// Entries of the pattern.
        found: usize,
    },
    /// A tensor that the architecture needs.
    #[error(
        "tensor {tensor:?} is missing; the model is incomplete (a vocabulary, or one file of several?)"
    )]
    MissingTensor {
        /// Its name.
        tensor: String,
    },
    /// A tensor of another shape than the hyper-parameters give.
    #[error("tensor {tensor:?}: expected shape {expected:?}, found {found:?} (rows first)")]
    TensorShape {
        /// Its name.
        tensor: String,
        /// The shape that the hyper-parameters give.
        expected: Vec<u64>,
        /// The shape in the file.
        found: Vec<u64>,
    },
    /// Tensors that the architecture has no place for.
    #[error(
        "{count} tensors have no place in architecture {architecture:?}, the first is {tensor:?}; \
         leaving them out would change what the model computes"
    )]
    UnexpectedTensors {
        /// The architecture.
        architecture: &'static str,
        /// How many.
        count: usize,
        /// The first of them in the order of the file.
        tensor: String,
    },
}

fn supported() -> String {
    let names: Vec<&str> = SUPPORTED.iter().map(|a| a.name).collect();
    names.join(", ")
}

impl BindError {
    /// The tensor concerned, where it is one.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            BindError::MissingTensor { tensor }
            | BindError::TensorShape { tensor, .. }
            | BindError::UnexpectedTensors { tensor, .. }
            | BindError::Numbers { tensor, .. }
            | BindError::Safetensors(SafetensorsError::UnsupportedType { tensor, .. })
            | BindError::Gguf(GgufError::UnsupportedType { tensor, .. })
            | BindError::Config(ConfigError::Bias { tensor, .. }) => Some(tensor),
            BindError::Config(ConfigError::Tied { output, .. }) => Some(output),
            _ => None,
        }
    }
}

/// Refuses a number of blocks beyond [`limits`], before anything is made for every block.
fn check_layers(found: usize) -> Result<usize, HyperError> {
    let limit = limits::MAX_LAYERS;
    if (1..=limit).contains(&found) {
        return Ok(found);
    }
    Err(HyperError {
        name: "layers",
        expected: format!("1 to {limit}"),
        found: found.to_string(),
    })
}

/// Binds a GGUF file: its hyper-parameters, and its tensors in the order of execution.
///
/// # Errors
///
/// [`BindError`], whose variants are what is checked.
pub fn bind(gguf: &Contents) -> Result<(HyperParameters, Vec<ModelTensor>), BindError> {
    bind_parts(gguf, &[])
}

/// Binds a model in several GGUF files, of which the first has the metadata and no two have a
/// tensor of the same name. Tensors are in the files by this order.
///
/// # Errors
///
/// [`BindError`], whose variants are what is checked.
pub fn bind_parts(
    first: &Contents,
    others: &[&Contents],
) -> Result<(HyperParameters, Vec<ModelTensor>), BindError> {
    let parts = gguf::Parts::new(first, others);
    let name: &str = first.required("general.architecture")?;
    let architecture =
        SUPPORTED
            .iter()
            .find(|a| a.name == name)
            .ok_or_else(|| BindError::Architecture {
                found: name.to_owned(),
            })?;
    let hyper = gguf::hyper_parameters(&parts, architecture)?;
    let find = |name: &str| parts.find(name);
    let tensors = architecture.bind_tensors(&hyper, Naming::Gguf, parts.names(), find)?;
    Ok((hyper, tensors))
}

impl Architecture {
    /// Finds the tensors of a model of this architecture: `names` are all that the container
    /// has, `find` describes one of them. In the order of execution.
    pub(crate) fn bind_tensors<'a>(
        &self,
        hyper: &HyperParameters,
        naming: Naming,
        names: impl Iterator<Item = &'a str>,
        find: impl Fn(&str) -> Result<Option<Found>, BindError>,
    ) -> Result<Vec<ModelTensor>, BindError> {
        let mut bound: Vec<ModelTensor> = Vec::new();
        let mut used = HashSet::new();
        for (name, layer, rule) in self.expected(hyper.layers, naming) {
            match find(&name)? {
                Some(found) => {
                    bind_rule(rule, layer, &name, &found, hyper, &mut bound)?;
                    used.insert(name);
                }
                None if rule.required => {
                    return Err(BindError::MissingTensor { tensor: name });
                }
                None => {}
            }
        }
        bound.sort_by_key(|tensor| tensor.role.execution_order());
        let mut rest = names.filter(|name| !used.contains(*name));
        match rest.next() {
            None => Ok(bound),
            Some(first) => Err(BindError::UnexpectedTensors {
                architecture: self.name,
                tensor: first.to_owned(),
                count: 1 + rest.count(),
            }),
        }
    }

    /// The slots whose bias every model has.
    fn always_biased(&self) -> Vec<ProjectionKind> {
        let required = self.expected(1, Naming::Gguf);
        let required = required.filter(|(_, _, rule)| rule.required);
        let roles = required.flat_map(|(_, layer, rule)| {
            let roles = rule.holds.iter();
            roles.map(move |(role, _)| role(layer))
        });
        roles
            .filter_map(|role| match role {
                Role::Linear {
                    slot,
                    part: Part::Bias,
                    ..
                } => Some(slot),
                _ => None,
            })
            .collect()
    }

    /// Names of all tensors of a model of `layers` blocks, with the roles they play.
    fn names(&self, layers: usize, naming: Naming) -> impl Iterator<Item = (String, Role)> {
        self.expected(layers, naming)
            .flat_map(|(name, layer, rule)| {
                let roles = rule.holds.iter();
                roles.map(move |(role, _)| (name.clone(), role(layer)))
            })
    }

    /// Names, blocks and rules of all tensors of a model of `layers` blocks; a tensor outside
    /// of blocks has block 0.
    fn expected(
        &self,
        layers: usize,
        naming: Naming,
    ) -> impl Iterator<Item = (String, usize, &'static TensorRule)> {
        self.groups.iter().flat_map(move |group| {
            let (rules, layers) = match group {
                Group::Model(rules) => (rules, 1),
                Group::Block(rules) => (rules, layers),
            };
            (0..layers).flat_map(move |layer| {
                rules.iter().filter_map(move |rule| {
                    let name = match naming {
                        Naming::Gguf => rule.gguf,
                        Naming::HuggingFace => rule.hugging_face,
                    };
                    let name = name.replace("{}", &layer.to_string());
                    (!name.is_empty()).then_some((name, layer, rule))
                })
            })
        })
    }
}

/// Compares the shape of a tensor with its rule and takes it apart into the roles it plays.
fn bind_rule(
    rule: &TensorRule,
    layer: usize,
    name: &str,
    found: &Found,
    hyper: &HyperParameters,
    bound: &mut Vec<ModelTensor>,
) -> Result<(), BindError> {
    let cols = rule.cols.of(hyper);
    let rows: usize = rule.holds.iter().map(|(_, rows)| rows.of(hyper)).sum();
    // A vector is a matrix of one row.
    let (expected, vector) = (vec![rows as u64, cols as u64], vec![cols as u64]);
    let row_bytes = found.dtype.row_bytes(cols);
    let (true, Some(row_bytes)) = (
        found.shape == expected || (rows == 1 && found.shape == vector),
        row_bytes,
    ) else {
        return Err(BindError::TensorShape {
            tensor: name.to_owned(),
            expected: if rows == 1 { vector } else { expected },
            found: found.shape.clone(),
        });
    };
    let mut start = found.range.start;
    for (role, rows) in rule.holds {
        let rows = rows.of(hyper);
        let end = start + rows * row_bytes;
        bound.push(ModelTensor {
            name: name.to_owned(),
            role: role(layer),
            dtype: found.dtype,
            rows,
            cols,
            codes: None,
            place: Place::File {
                index: found.file,
                range: start..end,
            },
        });
        start = end;
    }
    Ok(())
}
