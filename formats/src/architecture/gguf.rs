//! Reads hyper-parameters and tensors of GGUF files.

mod write;

use std::collections::HashMap;

pub use write::{gguf_metadata, gguf_rope_pairs};

use super::{Architecture, BindError, ContainerTensor, Remedy, Sliding, check_layers};
use crate::architecture::error::Result;
use crate::gguf::{Array, Contents, FromValue, GgufError, TensorInfo, Value};
use crate::model::{Experts, Forward, HyperParameters, LongRope, SlidingWindow};

pub(super) struct Parts<'a> {
    first: &'a Contents,
    others: &'a [&'a Contents],
    /// Tensors by name, with the index of their file.
    tensors: HashMap<&'a str, (usize, &'a TensorInfo)>,
}

impl<'a> Parts<'a> {
    pub fn new(first: &'a Contents, others: &'a [&'a Contents]) -> Self {
        let mut parts = Parts {
            first,
            others,
            tensors: HashMap::new(),
        };
        for (file, contents) in parts.files().enumerate() {
            for tensor in contents.tensors() {
                parts.tensors.insert(tensor.name.as_str(), (file, tensor));
            }
        }
        parts
    }

    fn files(&self) -> impl Iterator<Item = &'a Contents> + use<'a> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Returns all tensor names in file order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let tensors = self.files().flat_map(Contents::tensors);
        tensors.map(|tensor| tensor.name.as_str())
    }

    pub fn find(&self, name: &str) -> Result<Option<ContainerTensor>> {
        let Some(&(file, tensor)) = self.tensors.get(name) else {
            return Ok(None);
        };
        // GGUF writes the row length first, with or without trailing dimensions of length 1.
        let mut shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
        while shape.len() > 2 && shape[0] == 1 {
            shape.remove(0);
        }
        Ok(Some(ContainerTensor {
            shape,
            dtype: tensor.dtype()?,
            file,
            range: tensor.range.clone(),
        }))
    }
}

/// Reads the hyper-parameters, with llama.cpp's defaults for absent keys.
pub(super) fn hyper_parameters(
    parts: &Parts<'_>,
    architecture: &Architecture,
) -> Result<HyperParameters> {
    let gguf = parts.first;
    let keys = Keys { gguf, architecture };
    let traits = &architecture.traits;
    if !keys.or("attention.causal", true)? {
        return Err(BindError::NotCausal);
    }
    let width: usize = keys.required("embedding_length")?;
    let layers = check_layers(keys.required("block_count")?)?;
    let heads: usize = keys.required("attention.head_count")?;
    // If it does not divide, the head size must be stated; 0 is refused below.
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
    let context: usize = keys.required("context_length")?;
    let ffn = keys.required("feed_forward_length")?;
    let forward = Forward {
        rope_pairs: traits.gguf_rope_pairs,
        activation: traits.activation,
        embedding_scale: traits.embedding_scale.factor(width),
        attention_scale: traits.attention_scale(layers, width, heads),
        attention_softcap: keys
            .optional("attn_logit_softcapping")?
            .or(traits.attention_softcap),
        logit_softcap: keys
            .optional("final_logit_softcapping")?
            .or(traits.logit_softcap),
        sliding_window: keys.sliding_window(layers)?,
        long_rope: keys.long_rope(parts, context)?,
        experts: keys.experts(ffn)?,
    };
    let hyper = HyperParameters {
        architecture: architecture.name.to_owned(),
        name: gguf.optional::<&str>("general.name")?.map(str::to_owned),
        vocabulary: vocabulary_rows(parts)?,
        context,
        width,
        layers,
        heads,
        kv_heads: keys.or("attention.head_count_kv", heads)?,
        head_size,
        ffn,
        norm_epsilon: keys.required("attention.layer_norm_rms_epsilon")?,
        rope_theta: keys.or("rope.freq_base", traits.rope_theta)?,
        rope_dimensions: keys.or("rope.dimension_count", head_size)?,
        rope_linear_scale: keys.rope_scale()?,
        forward,
    };
    hyper.check()?;
    Ok(hyper)
}

/// Returns the rows of the embedding, which define the vocabulary size.
fn vocabulary_rows(parts: &Parts<'_>) -> Result<usize> {
    let name = "token_embd.weight";
    match parts.tensors.get(name) {
        Some((_, embedding)) => Ok(embedding.rows()),
        None => Err(BindError::MissingTensor {
            tensor: name.to_owned(),
            remedy: Remedy::Gguf,
        }),
    }
}

/// LongRoPE factors for contexts up to the original one, and beyond.
const LONG_ROPE_TENSORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];

struct Keys<'a> {
    gguf: &'a Contents,
    architecture: &'a Architecture,
}

impl<'a> Keys<'a> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.gguf.get(&self.name(key))
    }

    fn required<T: FromValue<'a>>(&self, key: &str) -> Result<T, GgufError> {
        self.gguf.required(&self.name(key))
    }

    fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, GgufError> {
        self.gguf.optional(&self.name(key))
    }

    fn or<T: FromValue<'a>>(&self, key: &str, default: T) -> Result<T, GgufError> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// Returns the mixture of experts of an architecture that has one.
    fn experts(&self, ffn: usize) -> Result<Option<Experts>> {
        if !self.architecture.has_experts() {
            return Ok(None);
        }
        Ok(Some(Experts {
            count: self.required("expert_count")?,
            used: self.required("expert_used_count")?,
            ffn: self.or("expert_feed_forward_length", ffn)?,
            normalised: self.or(
                "expert_weights_norm",
                self.architecture.traits.normalises_experts,
            )?,
        }))
    }

    /// Returns the divisor of positions. An absent type means linear; a factor of 0 or none means 1.
    /// LongRoPE has tensors of factors instead.
    fn rope_scale(&self) -> Result<f32> {
        let kind: &str = self.or("rope.scaling.type", "linear")?;
        match kind {
            "none" | "longrope" => Ok(1.0),
            "linear" => {
                let factor = self.or("rope.scaling.factor", self.or("rope.scale_linear", 0.0)?)?;
                Ok(if factor == 0.0 { 1.0 } else { factor })
            }
            other => Err(BindError::RopeScaling {
                found: other.to_owned(),
            }),
        }
    }

    /// Returns the window (0 is none) and its layers: from a list of flags, the period of a pattern, or
    /// the architecture.
    fn sliding_window(&self, layers: usize) -> Result<Option<SlidingWindow>> {
        let traits = &self.architecture.traits;
        let default = match traits.sliding {
            Sliding::Every => None,
            Sliding::AllBut { positions, .. } => positions,
        };
        let positions = self.optional("attention.sliding_window")?.or(default);
        let Some(positions) = positions.filter(|&positions| positions > 0) else {
            return Ok(None);
        };
        let key = "attention.sliding_window_pattern";
        let full_layers = match self.get(key) {
            Some(Value::Array(Array::Bool(slides))) => {
                if slides.len() != layers {
                    return Err(BindError::Pattern {
                        layers,
                        found: slides.len(),
                    });
                }
                let full = slides.iter().enumerate().filter(|(_, slides)| !**slides);
                full.map(|(layer, _)| layer).collect()
            }
            _ => traits.sliding.full_layers(layers, self.optional(key)?),
        };
        let rope_theta = match traits.sliding_rope_theta {
            Some(theta) => Some(self.or("rope.freq_base_swa", theta)?),
            None => self.optional("rope.freq_base_swa")?,
        };
        Ok(Some(SlidingWindow {
            positions,
            full_layers,
            rope_theta,
        }))
    }

    /// Reads LongRoPE if the scaling type or one of its tensors is present; both tensors are then
    /// required.
    fn long_rope(&self, parts: &Parts<'_>, context: usize) -> Result<Option<LongRope>> {
        let kind: Option<&str> = self.optional("rope.scaling.type")?;
        let has = |name: &&str| parts.tensors.contains_key(*name);
        if kind != Some("longrope") && !LONG_ROPE_TENSORS.iter().any(has) {
            return Ok(None);
        }
        if let Some(missing) = LONG_ROPE_TENSORS.iter().find(|name| !has(name)) {
            return Err(BindError::MissingTensor {
                tensor: (*missing).to_owned(),
                remedy: Remedy::LongRope,
            });
        }
        Ok(Some(LongRope {
            original_context: self.or("rope.scaling.original_context_length", context)?,
            attention_factor: self.or("rope.scaling.attn_factor", 1.0)?,
        }))
    }
}
