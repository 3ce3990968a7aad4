//! Architectures as data, and the binding of a GGUF file to one of them.
//!
//! An architecture is a table: the name that `general.architecture` gives and that prefixes the
//! keys of the hyper-parameters, and a rule per tensor. Binding reads the hyper-parameters,
//! finds every tensor of the table, compares its shape, and refuses what is left over: a tensor
//! that nothing reads, a bias for example, would silently change what the model computes.

use std::collections::HashSet;
use std::ops::Range;

use crate::dtype::DType;
use crate::gguf::{Contents, FromValue, GgufError};
use crate::model::{HyperError, HyperParameters, Part, Role, Slot};

/// An architecture that this project executes.
#[derive(Debug)]
pub struct Architecture {
    /// Value of `general.architecture` and prefix of the hyper-parameters' keys.
    pub name: &'static str,
    /// Its tensors in the order of execution. Consecutive rules of blocks make up one block.
    rules: &'static [TensorRule],
}

/// What a tensor is called, what it does and what shape it has.
#[derive(Debug)]
struct TensorRule {
    /// Name in the file; `{}` stands for the index of the block.
    name: &'static str,
    role: RoleRule,
    rows: Dim,
    cols: Dim,
    required: bool,
}

#[derive(Debug)]
enum RoleRule {
    Model(Role),
    Block(fn(usize) -> Role),
}

/// A length in terms of the hyper-parameters.
#[derive(Clone, Copy, Debug)]
enum Dim {
    One,
    Vocabulary,
    Width,
    Queries,
    KeysValues,
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
            Dim::Ffn => hyper.ffn,
            Dim::RotaryPairs => hyper.rope_dimensions / 2,
        }
    }
}

const REQUIRED: bool = true;
const OPTIONAL: bool = false;

const fn model(name: &'static str, role: Role, rows: Dim, cols: Dim, required: bool) -> TensorRule {
    TensorRule {
        name,
        role: RoleRule::Model(role),
        rows,
        cols,
        required,
    }
}

const fn block(name: &'static str, role: fn(usize) -> Role, rows: Dim, cols: Dim) -> TensorRule {
    TensorRule {
        name,
        role: RoleRule::Block(role),
        rows,
        cols,
        required: true,
    }
}

const fn dense(layer: usize, slot: Slot) -> Role {
    Role::Linear {
        layer,
        slot,
        part: Part::Weight,
    }
}

/// Llama 1 to 3, Mistral and whatever else is converted under this name.
#[rustfmt::skip] // A table: one rule per line.
static LLAMA: Architecture = Architecture {
    name: "llama",
    rules: &[
        model("token_embd.weight", Role::TokenEmbedding, Dim::Vocabulary, Dim::Width, REQUIRED),
        model("rope_freqs.weight", Role::RopeFactors, Dim::One, Dim::RotaryPairs, OPTIONAL),
        block("blk.{}.attn_norm.weight", |layer| Role::AttentionNorm { layer }, Dim::One, Dim::Width),
        block("blk.{}.attn_q.weight", |layer| dense(layer, Slot::Q), Dim::Queries, Dim::Width),
        block("blk.{}.attn_k.weight", |layer| dense(layer, Slot::K), Dim::KeysValues, Dim::Width),
        block("blk.{}.attn_v.weight", |layer| dense(layer, Slot::V), Dim::KeysValues, Dim::Width),
        block("blk.{}.attn_output.weight", |layer| dense(layer, Slot::O), Dim::Width, Dim::Queries),
        block("blk.{}.ffn_norm.weight", |layer| Role::FfnNorm { layer }, Dim::One, Dim::Width),
        block("blk.{}.ffn_gate.weight", |layer| dense(layer, Slot::Gate), Dim::Ffn, Dim::Width),
        block("blk.{}.ffn_up.weight", |layer| dense(layer, Slot::Up), Dim::Ffn, Dim::Width),
        block("blk.{}.ffn_down.weight", |layer| dense(layer, Slot::Down), Dim::Width, Dim::Ffn),
        model("output_norm.weight", Role::OutputNorm, Dim::One, Dim::Width, REQUIRED),
        // Absent where the model ties it to the embedding.
        model("output.weight", Role::Output, Dim::Vocabulary, Dim::Width, OPTIONAL),
    ],
};

/// Every architecture that can be bound.
pub static SUPPORTED: &[&Architecture] = &[&LLAMA];

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
    /// Where its bytes are, from the start of the file.
    pub range: Range<usize>,
}

/// Why a GGUF file is not a model that this project executes.
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
    /// Positions scaled in another way.
    #[error("rope scaling {found:?} is not supported; supported: none, linear")]
    RopeScaling {
        /// Its name.
        found: String,
    },
    /// A tensor that the architecture needs.
    #[error("tensor {tensor:?} is missing; the file is incomplete (a vocabulary, or one shard?)")]
    MissingTensor {
        /// Its name.
        tensor: String,
    },
    /// A tensor of another shape than the hyper-parameters give.
    #[error("tensor {tensor:?}: expected shape {expected:?}, found {found:?} (row length first)")]
    TensorShape {
        /// Its name.
        tensor: String,
        /// The shape that the hyper-parameters give, in the order of the file.
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

/// Binds a GGUF file: its hyper-parameters, and its tensors in the order of execution.
///
/// # Errors
///
/// [`BindError`], whose variants are what is checked.
pub fn bind(gguf: &Contents) -> Result<(HyperParameters, Vec<ModelTensor>), BindError> {
    let name: &str = gguf.required("general.architecture")?;
    let architecture =
        SUPPORTED
            .iter()
            .find(|a| a.name == name)
            .ok_or_else(|| BindError::Architecture {
                found: name.to_owned(),
            })?;
    let hyper = hyper_parameters(gguf, architecture)?;
    let tensors = architecture.bind_tensors(gguf, &hyper)?;
    Ok((hyper, tensors))
}

impl Architecture {
    /// Names and rules of all tensors of a model of `layers` blocks, in the order of execution.
    fn expected(&self, layers: usize) -> Vec<(String, Role, &TensorRule)> {
        let mut expected = Vec::new();
        for part in self
            .rules
            .chunk_by(|a, b| a.is_of_block() == b.is_of_block())
        {
            let times = if part[0].is_of_block() { layers } else { 1 };
            for layer in 0..times {
                expected.extend(part.iter().map(|rule| {
                    let role = match rule.role {
                        RoleRule::Model(role) => role,
                        RoleRule::Block(role) => role(layer),
                    };
                    (rule.name.replace("{}", &layer.to_string()), role, rule)
                }));
            }
        }
        expected
    }

    fn bind_tensors(
        &self,
        gguf: &Contents,
        hyper: &HyperParameters,
    ) -> Result<Vec<ModelTensor>, BindError> {
        let mut bound = Vec::new();
        for (name, role, rule) in self.expected(hyper.layers) {
            let Some(tensor) = gguf.tensor(&name) else {
                if rule.required {
                    return Err(BindError::MissingTensor { tensor: name });
                }
                continue;
            };
            let (rows, cols) = (rule.rows.of(hyper), rule.cols.of(hyper));
            // Dimensions of length 1 behind the first may be written or left out.
            let written = tensor.dims.len();
            let mut expected = vec![cols as u64, rows as u64];
            expected.resize(written.max(2), 1);
            let mut found = tensor.dims.clone();
            found.resize(written.max(2), 1);
            if found != expected {
                return Err(BindError::TensorShape {
                    tensor: name,
                    expected,
                    found: tensor.dims.clone(),
                });
            }
            bound.push(ModelTensor {
                role,
                dtype: tensor.dtype()?,
                rows,
                cols,
                range: tensor.range.clone(),
                name,
            });
        }
        self.refuse_the_rest(gguf, &bound)?;
        Ok(bound)
    }

    fn refuse_the_rest(&self, gguf: &Contents, bound: &[ModelTensor]) -> Result<(), BindError> {
        let names: HashSet<&str> = bound.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut rest = gguf
            .tensors()
            .iter()
            .filter(|tensor| !names.contains(tensor.name.as_str()));
        match rest.next() {
            None => Ok(()),
            Some(first) => Err(BindError::UnexpectedTensors {
                architecture: self.name,
                count: 1 + rest.count(),
                tensor: first.name.clone(),
            }),
        }
    }
}

impl TensorRule {
    fn is_of_block(&self) -> bool {
        matches!(self.role, RoleRule::Block(_))
    }
}

/// Reads the hyper-parameters, with the defaults that llama.cpp has for absent keys.
fn hyper_parameters(
    gguf: &Contents,
    architecture: &Architecture,
) -> Result<HyperParameters, BindError> {
    let keys = Keys {
        gguf,
        prefix: architecture.name,
    };
    let experts: u64 = keys.or("expert_count", 0)?;
    if experts > 0 {
        return Err(BindError::Experts { experts });
    }
    let width: usize = keys.required("embedding_length")?;
    let heads: usize = keys.required("attention.head_count")?;
    // Where it does not divide, the width of a head must be stated; 0 is refused below.
    let divided = match width.checked_rem(heads) {
        Some(0) => width / heads,
        _ => 0,
    };
    let head_size = keys.or("attention.key_length", divided)?;
    let values = keys.or("attention.value_length", divided)?;
    if head_size != values {
        return Err(BindError::HeadSizes {
            keys: head_size,
            values,
        });
    }
    let hyper = HyperParameters {
        architecture: architecture.name.to_owned(),
        name: gguf.optional::<&str>("general.name")?.map(str::to_owned),
        vocabulary: vocabulary_rows(gguf)?,
        context: keys.required("context_length")?,
        width,
        layers: keys.required("block_count")?,
        heads,
        kv_heads: keys.or("attention.head_count_kv", heads)?,
        head_size,
        ffn: keys.required("feed_forward_length")?,
        norm_epsilon: keys.required("attention.layer_norm_rms_epsilon")?,
        rope_theta: keys.or("rope.freq_base", 10_000.0)?,
        rope_dimensions: keys.or("rope.dimension_count", head_size)?,
        rope_linear_scale: rope_scale(&keys)?,
    };
    hyper.check()?;
    Ok(hyper)
}

/// Rows of the embedding: the tensor is what is executed, so it decides.
fn vocabulary_rows(gguf: &Contents) -> Result<usize, BindError> {
    let name = "token_embd.weight";
    let embedding = gguf.tensor(name).ok_or_else(|| BindError::MissingTensor {
        tensor: name.to_owned(),
    })?;
    Ok(embedding.rows())
}

/// The divisor of positions. An absent type means linear with the factor given, and a factor of
/// 0 or none at all means 1.
fn rope_scale(keys: &Keys<'_>) -> Result<f32, BindError> {
    let kind: &str = keys.or("rope.scaling.type", "linear")?;
    match kind {
        "none" => Ok(1.0),
        "linear" => {
            let factor = keys.or("rope.scaling.factor", keys.or("rope.scale_linear", 0.0)?)?;
            Ok(if factor == 0.0 { 1.0 } else { factor })
        }
        other => Err(BindError::RopeScaling {
            found: other.to_owned(),
        }),
    }
}

/// The keys under an architecture's prefix.
struct Keys<'a> {
    gguf: &'a Contents,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    fn required<T: FromValue<'a>>(&self, key: &str) -> Result<T, GgufError> {
        self.gguf.required(&format!("{}.{key}", self.prefix))
    }

    fn or<T: FromValue<'a>>(&self, key: &str, default: T) -> Result<T, GgufError> {
        let found = self.gguf.optional(&format!("{}.{key}", self.prefix))?;
        Ok(found.unwrap_or(default))
    }
}
