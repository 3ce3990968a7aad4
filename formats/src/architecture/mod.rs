//! Supported architectures, and the binding of a model's tensors to them.
//!
//! An architecture is a table in a module of its own: its names, a rule per tensor, and traits that
//! model files omit. Binding reads the hyper-parameters, finds every tensor of the table, checks
//! its shape, and refuses unused tensors: ignoring a bias, for example, would silently change the
//! model's output.

mod error;
mod gemma2;
mod gemma3;
mod gguf;
mod hugging_face;
mod llama;
mod mixtral;
mod model_type;
mod names;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3moe;
mod rules;
mod shared;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::bands::CodeLayout;
use crate::dtype::DType;
use crate::escape::escape_truncated;
use crate::gguf::Contents;
use crate::limits;
use crate::model::{HyperError, HyperParameters, Part, ProjectionKind, Role};

use error::Result;
pub use error::{BindError, Remedy};
pub use gguf::{gguf_metadata, gguf_rope_pairs};
pub use hugging_face::{ConfigFacts, HuggingFaceConfig, WeightFile, bind_hugging_face};
use model_type::ModelType;
pub use names::{NamedTensor, tensor_names};
use rules::{Dim, ExpertRule, Group};
pub(crate) use rules::{Sliding, Traits};

/// All supported architectures.
pub static SUPPORTED: &[&Architecture] = &[
    &llama::ARCHITECTURE,
    &mixtral::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen3moe::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &phi3::ARCHITECTURE,
];

/// A supported architecture: its names, tensors and properties, each in a module of its own.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` in GGUF, and prefix of the hyper-parameter keys.
    pub name: &'static str,
    /// Its models in Hugging Face folders.
    pub(crate) model_types: &'static [ModelType],
    /// Tensors apart from embedding, first norm of a block and output.
    groups: &'static [&'static Group],
    pub(crate) traits: Traits,
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
pub(crate) struct ContainerTensor {
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

/// Returns true if only some layers of an architecture have a sliding window, by a fixed pattern.
pub fn has_window_pattern(name: &str) -> bool {
    let mut named = SUPPORTED.iter().filter(|a| a.name == name);
    named.any(|a| matches!(a.traits.sliding, Sliding::AllBut { .. }))
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

/// Returns the architecture of a model with this many experts in a block: a name may stand for dense models
/// and for mixtures of experts.
fn named(name: &str, experts: u64) -> Result<&'static Architecture> {
    let mut named = SUPPORTED.iter().filter(|a| a.name == name).peekable();
    if named.peek().is_none() {
        let found = escape_truncated(name);
        return Err(BindError::Architecture { found });
    }
    let found = named.find(|a| a.has_experts() == (experts > 0));
    found.copied().ok_or(BindError::Experts { experts })
}

/// Binds a GGUF file: returns its hyper-parameters, and its tensors in the order of execution.
///
/// # Errors
/// [`BindError`].
pub fn bind(gguf: &Contents) -> Result<(HyperParameters, Vec<ModelTensor>)> {
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
) -> Result<(HyperParameters, Vec<ModelTensor>)> {
    let parts = gguf::Parts::new(first, others);
    let name: &str = first.required("general.architecture")?;
    let experts: u64 = first
        .optional(&format!("{name}.expert_count"))?
        .unwrap_or(0);
    let architecture = named(name, experts)?;
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
        find: impl Fn(&str) -> Result<Option<ContainerTensor>>,
    ) -> Result<Vec<ModelTensor>> {
        let mut bound: Vec<ModelTensor> = Vec::new();
        let mut used = HashSet::new();
        for tensor in self.expected(hyper.layers, hyper.experts(), naming) {
            match find(&tensor.name)? {
                Some(found) => {
                    bind_tensor(&tensor, &found, hyper, &mut bound)?;
                    used.insert(tensor.name);
                }
                None if tensor.required => {
                    return Err(BindError::MissingTensor {
                        tensor: tensor.name,
                        remedy: match naming {
                            Naming::Gguf => Remedy::Gguf,
                            Naming::HuggingFace => Remedy::Folder,
                        },
                    });
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

    /// Returns the projections that have a bias in every model.
    fn always_biased(&self) -> Vec<ProjectionKind> {
        let roles = self
            .expected(1, 1, Naming::Gguf)
            .filter(|tensor| tensor.required)
            .flat_map(|tensor| tensor.holds);
        roles
            .filter_map(|(role, _)| match role {
                Role::Linear {
                    projection,
                    part: Part::Bias,
                    ..
                } => Some(projection),
                _ => None,
            })
            .collect()
    }

    /// Returns true if the models of the architecture are mixtures of experts.
    fn has_experts(&self) -> bool {
        self.groups
            .iter()
            .any(|group| matches!(group, Group::Experts(_)))
    }

    /// Returns the tensors that a model of `layers` blocks with `experts` experts each may have.
    fn expected(
        &self,
        layers: usize,
        experts: usize,
        naming: Naming,
    ) -> impl Iterator<Item = ExpectedTensor> {
        let groups = [&shared::EMBEDDING, &shared::ATTENTION_NORM].into_iter();
        let groups = groups.chain(self.groups.iter().copied());
        groups.chain([&shared::OUTPUT]).flat_map(move |group| {
            let layers = match group {
                Group::Model(_) => 1,
                Group::Block(_) | Group::Experts(_) => layers,
            };
            (0..layers).flat_map(move |layer| group.expected(layer, experts, naming))
        })
    }
}

/// A tensor that a model may have.
struct ExpectedTensor {
    name: String,
    /// Roles and their rows, stacked in the tensor.
    holds: Vec<(Role, Dim)>,
    cols: Dim,
    required: bool,
    /// Whether each role is a matrix of its own, so that the tensor has three dimensions.
    is_stack: bool,
}

impl ExpectedTensor {
    /// Returns the shape with these lengths, rows first.
    fn shape(&self, hyper: &HyperParameters) -> Vec<u64> {
        let cols = self.cols.length(hyper) as u64;
        let mut rows = self.holds.iter().map(|(_, rows)| rows.length(hyper) as u64);
        if self.is_stack && self.holds.len() > 1 {
            vec![self.holds.len() as u64, rows.next().unwrap_or(0), cols]
        } else {
            vec![rows.sum(), cols]
        }
    }
}

impl Group {
    /// Returns the tensors of one block, or of the model.
    fn expected(
        &self,
        layer: usize,
        experts: usize,
        naming: Naming,
    ) -> Box<dyn Iterator<Item = ExpectedTensor> + '_> {
        match self {
            Group::Model(rules) | Group::Block(rules) => {
                Box::new(rules.iter().filter_map(move |rule| {
                    let name = match naming {
                        Naming::Gguf => rule.gguf,
                        Naming::HuggingFace => rule.hugging_face,
                    };
                    let holds = rule.holds.iter();
                    (!name.is_empty()).then(|| ExpectedTensor {
                        name: name.replace("{}", &layer.to_string()),
                        holds: holds.map(|(role, rows)| (role(layer), *rows)).collect(),
                        cols: rule.cols,
                        required: rule.required,
                        is_stack: false,
                    })
                }))
            }
            Group::Experts(rules) => Box::new(
                rules
                    .iter()
                    .flat_map(move |rule| rule.expected(layer, experts, naming)),
            ),
        }
    }
}

impl ExpertRule {
    /// Returns one tensor for all experts of a block, or one for each.
    fn expected(&self, layer: usize, experts: usize, naming: Naming) -> Vec<ExpectedTensor> {
        let holds = (0..experts).map(|expert| {
            // Lossless: the number of experts is limited.
            let projection = (self.projection)(expert as u16);
            let part = Part::Weight;
            (
                Role::Linear {
                    layer,
                    projection,
                    part,
                },
                self.rows,
            )
        });
        let tensor = |name: &str, holds| ExpectedTensor {
            name: name.replace("{}", &layer.to_string()),
            holds,
            cols: self.cols,
            required: true,
            is_stack: true,
        };
        match naming {
            Naming::Gguf => vec![tensor(self.gguf, holds.collect())],
            Naming::HuggingFace => holds
                .enumerate()
                .map(|(expert, held)| {
                    let name = self.hugging_face.replace("{e}", &expert.to_string());
                    tensor(&name, vec![held])
                })
                .collect(),
        }
    }
}

/// Checks the shape of a tensor and splits it into its roles.
fn bind_tensor(
    expected: &ExpectedTensor,
    found: &ContainerTensor,
    hyper: &HyperParameters,
    bound: &mut Vec<ModelTensor>,
) -> Result<()> {
    let cols = expected.cols.length(hyper);
    let (shape, vector) = (expected.shape(hyper), vec![cols as u64]);
    let is_vector = shape[0] == 1;
    let row_bytes = found.dtype.row_bytes(cols);
    let (true, Some(row_bytes)) = (
        found.shape == shape || (is_vector && found.shape == vector),
        row_bytes,
    ) else {
        return Err(BindError::TensorShape {
            tensor: expected.name.clone(),
            expected: if is_vector { vector } else { shape },
            found: found.shape.clone(),
        });
    };
    let mut start = found.range.start;
    for (role, rows) in &expected.holds {
        let rows = rows.length(hyper);
        let end = start + rows * row_bytes;
        bound.push(ModelTensor {
            name: expected.name.clone(),
            role: *role,
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
