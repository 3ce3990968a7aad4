//! Reads models from folders in Hugging Face's format.
//!
//! Absent keys of `config.json` have the defaults of transformers 5. Rotary pairs are halves.
//! Gemma's norm weights are stored minus one, and divisors of rotary frequencies are in the
//! configuration: both become tensors computed when a model is opened.

mod config;
mod model_types;
mod rope;
mod tensors;
mod write;

use std::sync::Arc;

use serde_json::{Map, Value};

pub(super) use model_types::names as model_type_names;
pub use tensors::WeightFile;
pub use write::{ConfigFacts, HuggingFaceConfig};

use super::model_type::{ModelType, Window};
use super::{Architecture, BindError, ModelTensor, Place, check_layers};
use crate::architecture::error::Result;
use crate::dtype::DType;
use crate::escape::escape_truncated;
use crate::model::{Activation, Experts, Forward, HyperParameters, Role, RopePairs, SlidingWindow};
use config::Object;
use rope::{Rope, Scaling};

/// A configuration with the defaults of its model type.
struct Reader<'a> {
    config: Object<'a>,
    model: &'static ModelType,
    architecture: &'static Architecture,
}

/// Binds a folder: returns the hyper-parameters of its configuration and the tensors of its weight
/// files in the order of execution.
///
/// # Errors
/// [`BindError`].
pub fn bind_hugging_face(
    config: &[u8],
    files: &[WeightFile<'_>],
) -> Result<(HyperParameters, Vec<ModelTensor>)> {
    let map = config::parse(config)?;
    let reader = Reader::new(&map)?;
    reader.check_supported()?;
    let (hyper, rope) = reader.hyper_parameters()?;
    hyper.check()?;
    let mut bound = reader.bind(&hyper, files)?;
    // After the shape checks, so that computed tensors are in proportion to the files.
    bound.extend(rope_tensors(&rope, &hyper)?);
    bound.sort_by_key(|tensor| tensor.role.execution_order());
    Ok((hyper, bound))
}

impl<'a> Reader<'a> {
    fn new(map: &'a Map<String, Value>) -> Result<Self> {
        let config = Object::root(map);
        let (model, architecture) = model_types::lookup(&config)?;
        Ok(Reader {
            config,
            model,
            architecture,
        })
    }

    fn check_supported(&self) -> Result<()> {
        let Reader {
            config,
            model,
            architecture,
        } = self;
        if let Some(quantised) = config.object("quantization_config")? {
            let method = match quantised.optional::<&str>("quant_method")? {
                Some(method) => escape_truncated(method),
                None => "an unnamed method".to_owned(),
            };
            return Err(BindError::Quantised { method });
        }
        let names: &[&str] = match architecture.traits.activation {
            Activation::Silu => &["silu", "swish"],
            Activation::GeluTanh => &["gelu_pytorch_tanh"],
        };
        let key = model.activation;
        if !names.contains(&config.or(key, names[0])?) {
            return Err(config.refuse(key, format!("{:?}", names[0])));
        }
        for key in model.false_keys {
            if config.optional(key)?.unwrap_or(false) {
                let expected = format!("false for model type {:?}", model.name);
                return Err(config.refuse(key, expected));
            }
        }
        Ok(())
    }

    fn hyper_parameters(&self) -> Result<(HyperParameters, Rope)> {
        let Reader {
            config,
            model,
            architecture,
        } = self;
        let traits = &architecture.traits;
        let width = config.or("hidden_size", model.hidden_size)?;
        let layers = check_layers(config.or("num_hidden_layers", model.num_hidden_layers)?)?;
        let heads = config.or("num_attention_heads", model.num_attention_heads)?;
        let kv_heads = config.nullable("num_key_value_heads", model.num_key_value_heads)?;
        let head_size = match config.nullable("head_dim", model.head_dim)? {
            Some(head_size) => head_size,
            // Zero heads are refused with the other hyper-parameters.
            None => width.checked_div(heads).unwrap_or(0),
        };
        let context = config.or("max_position_embeddings", model.max_position_embeddings)?;
        let rope = self.read_rope(context)?;
        let forward = Forward {
            rope_pairs: RopePairs::Halves,
            activation: traits.activation,
            embedding_scale: traits.embedding_scale.factor(width),
            attention_scale: self.attention_scale(head_size)?,
            attention_softcap: self
                .softcap("attn_logit_softcapping", model.attn_logit_softcapping)?,
            logit_softcap: self
                .softcap("final_logit_softcapping", model.final_logit_softcapping)?,
            sliding_window: self.sliding_window(layers, &rope)?,
            long_rope: match &rope.scaling {
                Scaling::Long { rope, .. } => Some(*rope),
                _ => None,
            },
            experts: self.experts()?,
        };
        let hyper = HyperParameters {
            architecture: architecture.name.to_owned(),
            name: None,
            vocabulary: config.or("vocab_size", model.vocab_size)?,
            context,
            width,
            layers,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_size,
            ffn: config.or("intermediate_size", model.intermediate_size)?,
            norm_epsilon: config.or("rms_norm_eps", model.rms_norm_eps)?,
            rope_theta: rope.theta,
            // Rounded down, saturating for invalid values.
            rope_dimensions: (head_size as f64 * rope.part) as usize,
            rope_linear_scale: match rope.scaling {
                Scaling::Linear(factor) => factor,
                _ => 1.0,
            },
            forward,
        };
        Ok((hyper, rope))
    }

    /// Reads a mixture of experts in every layer; other choices of layers are refused.
    fn experts(&self) -> Result<Option<Experts>> {
        let Reader { config, model, .. } = self;
        let Some(defaults) = &model.experts else {
            return Ok(None);
        };
        if config.or("decoder_sparse_step", 1)? != 1 {
            return Err(config.refuse("decoder_sparse_step", "1, experts in every layer"));
        }
        let dense: &[Value] = config.optional("mlp_only_layers")?.unwrap_or(&[]);
        if !dense.is_empty() {
            return Err(config.refuse("mlp_only_layers", "none, experts in every layer"));
        }
        let mut keys = defaults.count_keys.iter();
        let key = keys.find(|key| config.has(key));
        Ok(Some(Experts {
            count: key.map_or(Ok(defaults.count), |key| config.required(key))?,
            used: config.or("num_experts_per_tok", defaults.num_experts_per_tok)?,
            ffn: match defaults.moe_intermediate_size {
                Some(default) => config.or("moe_intermediate_size", default)?,
                None => config.or("intermediate_size", model.intermediate_size)?,
            },
            normalised: match defaults.norm_topk_prob {
                Some(default) => config.flag("norm_topk_prob", default)?,
                None => true,
            },
        }))
    }

    /// Returns the attention scale if it is not the default.
    fn attention_scale(&self, head_size: usize) -> Result<Option<f32>> {
        let Reader { config, model, .. } = self;
        let Some(default) = model.query_pre_attn_scalar else {
            return Ok(None);
        };
        let scalar: f64 = config.or("query_pre_attn_scalar", default)?;
        Ok((scalar != head_size as f64).then(|| scalar.powf(-0.5) as f32))
    }

    fn softcap(&self, key: &str, default: Option<Option<f32>>) -> Result<Option<f32>> {
        match default {
            Some(default) => self.config.nullable(key, default),
            None => Ok(None),
        }
    }

    fn sliding_window(&self, layers: usize, rope: &Rope) -> Result<Option<SlidingWindow>> {
        let Reader { config, model, .. } = self;
        let key = "sliding_window";
        let positions: Option<usize> = match model.window {
            Window::Never => None,
            Window::Every { default } => config.nullable(key, default)?,
            Window::Upper { default, .. } | Window::EveryIfUsed { default }
                if config.flag("use_sliding_window", false)? =>
            {
                config.nullable(key, Some(default))?
            }
            Window::Upper { .. } | Window::EveryIfUsed { .. } => None,
            Window::Pattern { default, .. } => config.nullable(key, Some(default))?,
        };
        let listed = self.layer_types(layers)?;
        let full_layers = match &listed {
            Some(slides) => {
                let full = slides.iter().enumerate().filter(|(_, slides)| !**slides);
                full.map(|(layer, _)| layer).collect()
            }
            None => self.full_layers(layers, positions.is_some())?,
        };
        let types = "layer_types";
        let Some(positions) = positions else {
            return match (full_layers.len() < layers, listed.is_some()) {
                (false, _) => Ok(None),
                (true, true) => {
                    let expected = format!("full attention alone, as there is no {key:?}");
                    Err(config.refuse(types, expected))
                }
                (true, false) => {
                    let expected = "a number of positions, as layers slide";
                    Err(config.refuse(key, expected))
                }
            };
        };
        let every = matches!(
            model.window,
            Window::Every { .. } | Window::EveryIfUsed { .. }
        );
        if every && !full_layers.is_empty() {
            let expected = format!("sliding attention alone for model type {:?}", model.name);
            return Err(config.refuse(types, expected));
        }
        if full_layers.len() == layers {
            return Ok(None);
        }
        Ok(Some(SlidingWindow {
            positions,
            full_layers,
            rope_theta: rope.sliding_theta,
        }))
    }

    /// Returns for every layer whether it has a window, if the configuration lists them.
    fn layer_types(&self, layers: usize) -> Result<Option<Vec<bool>>> {
        let key = "layer_types";
        let Some(types) = self.config.optional::<&[Value]>(key)? else {
            return Ok(None);
        };
        if types.len() != layers {
            return Err(BindError::Pattern {
                layers,
                found: types.len(),
            });
        }
        let mut slides = Vec::with_capacity(layers);
        for kind in types {
            slides.push(match kind.as_str() {
                Some("sliding_attention") => true,
                Some("full_attention") => false,
                _ => {
                    return Err(BindError::KeyValue {
                        key: format!("{key}.{}", slides.len()),
                        expected: "\"full_attention\" or \"sliding_attention\"".to_owned(),
                        found: escape_truncated(&kind.to_string()),
                    });
                }
            });
        }
        Ok(Some(slides))
    }

    /// Returns the layers with full attention if they are not listed.
    fn full_layers(&self, layers: usize, window: bool) -> Result<Vec<usize>> {
        let Reader { config, model, .. } = self;
        let all = || (0..layers).collect();
        Ok(match model.window {
            Window::Every { .. } | Window::EveryIfUsed { .. } if window => Vec::new(),
            Window::Upper {
                max_window_layers, ..
            } if window => {
                let first = config.or("max_window_layers", max_window_layers)?;
                (0..first.min(layers)).collect()
            }
            Window::Never
            | Window::Every { .. }
            | Window::EveryIfUsed { .. }
            | Window::Upper { .. } => all(),
            Window::Pattern { keys, .. } => {
                let mut every = None;
                for key in keys {
                    every = every.or(config.optional(key)?);
                    if every == Some(0) {
                        return Err(config.refuse(key, "1 at least"));
                    }
                }
                self.architecture.traits.sliding.full_layers(layers, every)
            }
        })
    }
}

fn rope_tensors(rope: &Rope, hyper: &HyperParameters) -> Result<Vec<ModelTensor>> {
    let frequencies = hyper.rope_dimensions / 2;
    let tensor = |role, name: &str, values: &[f32]| computed(name.to_owned(), role, values);
    Ok(match &rope.scaling {
        Scaling::None | Scaling::Linear(_) => Vec::new(),
        Scaling::Llama3(llama3) => {
            let factors = llama3.factors(hyper.rope_theta, hyper.rope_dimensions);
            vec![tensor(Role::RopeFactors, &llama3.key, &factors)]
        }
        Scaling::Long { short, long, .. } => {
            short.check(frequencies)?;
            long.check(frequencies)?;
            vec![
                tensor(Role::RopeFactors, &short.key, &short.values),
                tensor(Role::LongRopeFactors, &long.key, &long.values),
            ]
        }
    })
}

fn computed(name: String, role: Role, values: &[f32]) -> ModelTensor {
    let bytes: Arc<[u8]> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    ModelTensor {
        name,
        role,
        dtype: DType::F32,
        rows: 1,
        cols: values.len(),
        codes: None,
        place: Place::Computed(bytes),
    }
}

#[cfg(test)]
mod tests;
