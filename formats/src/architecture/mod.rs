//! Supported architectures as tables, and the binding of a model's tensors to them.
//!
//! An architecture consists of its names, a rule per tensor, and traits that model files omit.
//! Binding reads the hyper-parameters, finds every tensor of the table, checks its shape, and
//! refuses unused tensors: ignoring a bias, for example, would silently change the model's output.

mod error;
mod gguf;
mod hugging_face;
mod names;
mod tables;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::bands::CodeLayout;
use crate::dtype::DType;
use crate::gguf::Contents;
use crate::limits;
use crate::model::{
    Activation, BlockRole, HyperError, HyperParameters, Part, ProjectionKind, Role, RopePairs,
};

pub use error::BindError;
pub use gguf::{gguf_metadata, gguf_rope_pairs};
pub use hugging_face::{ConfigFacts, HuggingFaceConfig, WeightFile, bind_hugging_face};
pub use names::{NamedTensor, tensor_names};
pub use tables::SUPPORTED;

/// A supported architecture.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` in GGUF, and prefix of the hyper-parameter keys.
    pub name: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    groups: &'static [&'static Group],
    pub(crate) traits: Traits,
}

/// Properties of an architecture that model files may omit.
#[derive(Debug)]
pub(crate) struct Traits {
    /// Rotary pairs in GGUF files; in Hugging Face folders they are always halves.
    pub gguf_rope_pairs: RopePairs,
    pub activation: Activation,
    pub embedding_scale: EmbeddingScale,
    /// Whether Hugging Face folders store norm weights minus one.
    pub norms_less_one: bool,
    pub sliding: Sliding,
    /// Rotary base of layers with a window, if different.
    pub sliding_rope_theta: Option<f32>,
    /// Default rotary base.
    pub rope_theta: f32,
    /// Default soft cap of attention.
    pub attention_softcap: Option<f32>,
    /// Default soft cap of the logits.
    pub logit_softcap: Option<f32>,
    /// Number of layers of the model size with attention scale `1 / sqrt(width / heads)`.
    pub layers_scaled_by_width: Option<usize>,
}

/// Factor of the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbeddingScale {
    One,
    RootOfWidth,
}

/// Layers that have a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sliding {
    /// Every layer.
    Every,
    /// All but every n-th layer, unless the file lists them.
    AllBut {
        every: usize,
        /// Default window.
        positions: Option<usize>,
    },
}

impl Traits {
    /// Returns the attention scale if it is not `1 / sqrt(head_size)`.
    pub(crate) fn attention_scale(&self, layers: usize, width: usize, heads: usize) -> Option<f32> {
        (self.layers_scaled_by_width == Some(layers)).then(|| (heads as f32 / width as f32).sqrt())
    }
}

impl EmbeddingScale {
    /// Returns the factor; `None` is 1.
    pub(crate) fn of(self, width: usize) -> Option<f32> {
        match self {
            EmbeddingScale::One => None,
            EmbeddingScale::RootOfWidth => Some((width as f32).sqrt()),
        }
    }
}

impl Sliding {
    /// Returns the layers with full attention if the file does not list them; `every` is the period
    /// in the file: 0 means a window in all layers, 1 in none.
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

#[derive(Debug)]
enum Group {
    /// Once per model.
    Model(&'static [TensorRule]),
    /// Once per block; `{}` in the names stands for the block index.
    Block(&'static [TensorRule]),
}

#[derive(Debug)]
struct TensorRule {
    gguf: &'static str,
    /// Empty if `config.json` states the values.
    hugging_face: &'static str,
    /// Roles and their rows, stacked in the tensor.
    holds: &'static [(BlockRole, Dim)],
    cols: Dim,
    required: bool,
}

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

/// A tensor of a model with its role and location.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTensor {
    /// Name in the file.
    pub name: String,
    /// Role in the model.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Codes of the column groups, for [`DType::Bands`].
    pub codes: Option<CodeLayout>,
    /// Location of the bytes.
    pub place: Place,
}

/// Location of a tensor's bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In a file of the model.
    File {
        /// Index of the file.
        index: usize,
        /// Byte range in the file.
        range: Range<usize>,
    },
    /// Computed when the model was opened.
    Computed(Arc<[u8]>),
}

impl Place {
    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Place::File { range, .. } => range.len(),
            Place::Computed(bytes) => bytes.len(),
        }
    }

    /// Returns true if the tensor has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor as described by its container.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Dimensions, rows first: `[rows, cols]`, or `[cols]` of a vector; further dimensions of
    /// length 1 are dropped.
    pub shape: Vec<u64>,
    pub dtype: DType,
    /// Index of the file.
    pub file: usize,
    pub range: Range<usize>,
}

/// Naming scheme of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// llama.cpp's names.
    Gguf,
    /// Names of the transformers classes.
    HuggingFace,
}

/// Checks the number of layers against [`limits`] before allocating per layer.
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

/// Binds a GGUF file: returns its hyper-parameters, and its tensors in the order of execution.
///
/// # Errors
/// [`BindError`].
pub fn bind(gguf: &Contents) -> Result<(HyperParameters, Vec<ModelTensor>), BindError> {
    bind_parts(gguf, &[])
}

/// Binds a model split over several GGUF files. The first has the metadata; tensor names are unique
/// across files, and [`Place::File`] refers to their order.
///
/// # Errors
/// [`BindError`].
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
    /// Binds the tensors `names` of a container, which `find` describes, in the order of execution.
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

    /// Returns the tensor names of a model of `layers` blocks with their roles.
    fn names(&self, layers: usize, naming: Naming) -> impl Iterator<Item = (String, Role)> {
        self.expected(layers, naming)
            .flat_map(|(name, layer, rule)| {
                let roles = rule.holds.iter();
                roles.map(move |(role, _)| (name.clone(), role(layer)))
            })
    }

    /// Returns name, block and rule of each tensor; tensors outside of blocks have block 0.
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

/// Checks the shape of a tensor and splits it into its roles.
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
