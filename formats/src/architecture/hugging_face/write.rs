//! Writes hyper-parameters as `config.json`.
//!
//! All values are explicit, in keys that transformers 4 and 5 both read.

use serde_json::{Map, Value, json};

use super::rope::Llama3;
use crate::architecture::BindError;
use crate::architecture::error::Result;
use crate::architecture::model_type::{ModelType, RopeKinds, Window};
use crate::architecture::names::architecture;
use crate::dtype::DType;
use crate::model::{Activation, HyperParameters, LongRope, ProjectionKind, RopePairs};

/// Facts of a configuration beyond the hyper-parameters.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFacts<'a> {
    /// Whether the head is tied to the embedding.
    pub tied: bool,
    /// Projections with a bias in some layer.
    pub biases: &'a [ProjectionKind],
    /// Type in which transformers executes the model: f32, f16 or bf16.
    pub dtype: DType,
    /// Divisors of the rotary frequencies, if any.
    pub rope_factors: Option<&'a [f32]>,
    /// Divisors for long contexts, if any.
    pub long_rope_factors: Option<&'a [f32]>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
}

/// A configuration with its requirements on the weights.
#[derive(Clone, Debug)]
pub struct HuggingFaceConfig {
    /// The contents of `config.json`.
    pub json: Map<String, Value>,
    /// Projections that need a bias in every layer (zero if the model has none).
    pub biases: Vec<ProjectionKind>,
    /// Whether norm weights are stored minus one.
    pub norms_less_one: bool,
}

impl HuggingFaceConfig {
    /// Returns the configuration of a model whose rotary pairs are halves.
    ///
    /// # Errors
    /// [`BindError`] for values that the model type does not support.
    pub fn new(hyper: &HyperParameters, facts: &ConfigFacts<'_>) -> Result<Self> {
        let architecture = architecture(hyper)?;
        // Among the architecture's types, take the one with a window if the model has one.
        let windowed = hyper.forward.sliding_window.is_some();
        let types = architecture.model_types;
        let mut fitting = types
            .iter()
            .filter(|model| windowed != matches!(model.window, Window::Never));
        let model = fitting.next().or(types.first());
        let model = model.ok_or_else(|| BindError::Architecture {
            found: hyper.architecture.clone(),
        })?;
        let state = State {
            hyper,
            facts,
            model,
        };
        state.check_implied(architecture.traits.activation)?;
        let mut json = state.sizes();
        state.attention(&mut json)?;
        state.window(&mut json)?;
        state.experts(&mut json)?;
        state.rope(&mut json)?;
        let biases = state.biases(&mut json, architecture)?;
        Ok(HuggingFaceConfig {
            json,
            biases,
            norms_less_one: architecture.traits.norms_less_one,
        })
    }
}

struct State<'a> {
    hyper: &'a HyperParameters,
    facts: &'a ConfigFacts<'a>,
    model: &'static ModelType,
}

/// Returns a float32 with the fewest digits that identify it.
fn short(x: f32) -> Value {
    x.to_string()
        .parse::<f64>()
        .map_or(Value::Null, |x| json!(x))
}

impl State<'_> {
    fn refuse<T>(
        &self,
        what: &'static str,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Result<T> {
        Err(BindError::Inexpressible {
            what,
            found: found.to_string(),
            architecture: self.model.name,
            container: "config.json",
            expected: expected.into(),
        })
    }

    fn check_implied(&self, activation: Activation) -> Result<()> {
        let forward = &self.hyper.forward;
        if forward.activation != activation {
            let found = format!("{:?}", forward.activation);
            return self.refuse("the activation", found, format!("{activation:?}"));
        }
        if forward.rope_pairs != RopePairs::Halves {
            return self.refuse("the rotated pairs", "side by side", "halves");
        }
        Ok(())
    }

    fn sizes(&self) -> Map<String, Value> {
        let hyper = self.hyper;
        let activation = match hyper.forward.activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
        };
        let dtype = match self.facts.dtype {
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            _ => "float32",
        };
        let sizes = json!({
            "architectures": [self.model.class],
            "model_type": self.model.name,
            "vocab_size": hyper.vocabulary,
            "hidden_size": hyper.width,
            "intermediate_size": hyper.ffn,
            "num_hidden_layers": hyper.layers,
            "num_attention_heads": hyper.heads,
            "num_key_value_heads": hyper.kv_heads,
            "head_dim": hyper.head_size,
            "max_position_embeddings": hyper.context,
            "rms_norm_eps": short(hyper.norm_epsilon),
            "tie_word_embeddings": self.facts.tied,
            self.model.activation: activation,
            "bos_token_id": self.facts.bos,
            "eos_token_id": self.facts.eos,
            "pad_token_id": null,
            "attention_dropout": 0.0,
            "torch_dtype": dtype,
            "use_cache": true,
        });
        match sizes {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    fn attention(&self, json: &mut Map<String, Value>) -> Result<()> {
        let forward = &self.hyper.forward;
        match (forward.attention_scale, self.model.query_pre_attn_scalar) {
            (None, None) => {}
            (None, Some(_)) => {
                json.insert("query_pre_attn_scalar".into(), json!(self.hyper.head_size));
            }
            (Some(scale), Some(_)) => {
                json.insert("query_pre_attn_scalar".into(), divisor(scale));
            }
            (Some(scale), None) => {
                return self.refuse("the scale of attention", scale, "1 / sqrt(head size)");
            }
        }
        for (what, key, cap, known) in [
            (
                "the cap of attention",
                "attn_logit_softcapping",
                forward.attention_softcap,
                self.model.attn_logit_softcapping.is_some(),
            ),
            (
                "the cap of logits",
                "final_logit_softcapping",
                forward.logit_softcap,
                self.model.final_logit_softcapping.is_some(),
            ),
        ] {
            match (cap, known) {
                (Some(cap), false) => return self.refuse(what, cap, "none"),
                (cap, true) => {
                    json.insert(key.into(), cap.map_or(Value::Null, short));
                }
                (None, false) => {}
            }
        }
        Ok(())
    }

    fn window(&self, json: &mut Map<String, Value>) -> Result<()> {
        let layers = self.hyper.layers;
        let window = self.hyper.forward.sliding_window.as_ref();
        let kind = |layer| match self.hyper.window(layer) {
            Some(_) => "sliding_attention",
            None => "full_attention",
        };
        let kinds = || json!((0..layers).map(kind).collect::<Vec<_>>());
        let positions = window.map(|window| window.positions);
        match self.model.window {
            Window::Never => {
                if let Some(positions) = positions {
                    return self.refuse("the sliding window", positions, "none");
                }
            }
            Window::Every { .. } | Window::EveryIfUsed { .. } => {
                if window.is_some_and(|window| !window.full_layers.is_empty()) {
                    return self.refuse("the sliding window", "in some layers", "one in all");
                }
                if let Window::EveryIfUsed { .. } = self.model.window {
                    json.insert("use_sliding_window".into(), json!(window.is_some()));
                }
                json.insert("sliding_window".into(), json!(positions));
            }
            Window::Upper {
                default,
                max_window_layers,
            } => {
                let first = (0..layers).find(|&layer| self.hyper.window(layer).is_some());
                json.insert("use_sliding_window".into(), json!(window.is_some()));
                json.insert("sliding_window".into(), json!(positions.unwrap_or(default)));
                let first = first.unwrap_or(max_window_layers.max(layers));
                json.insert("max_window_layers".into(), json!(first));
                json.insert("layer_types".into(), kinds());
            }
            Window::Pattern { default, .. } => {
                json.insert("sliding_window".into(), json!(positions.unwrap_or(default)));
                json.insert("layer_types".into(), kinds());
            }
        }
        Ok(())
    }

    fn experts(&self, json: &mut Map<String, Value>) -> Result<()> {
        let (Some(experts), Some(defaults)) = (self.hyper.forward.experts, &self.model.experts)
        else {
            return Ok(());
        };
        let (ffn_key, ffn) = match defaults.moe_intermediate_size {
            Some(_) => ("moe_intermediate_size", self.hyper.ffn),
            None => ("intermediate_size", experts.ffn),
        };
        if defaults.norm_topk_prob.is_none() && !experts.normalised {
            return self.refuse("the normalisation of the experts' weights", false, "true");
        }
        json.insert("intermediate_size".into(), json!(ffn));
        json.insert(ffn_key.into(), json!(experts.ffn));
        if let Some(key) = defaults.count_keys.first() {
            json.insert((*key).into(), json!(experts.count));
        }
        json.insert("num_experts_per_tok".into(), json!(experts.used));
        if defaults.norm_topk_prob.is_some() {
            json.insert("norm_topk_prob".into(), json!(experts.normalised));
        }
        Ok(())
    }

    fn rope(&self, json: &mut Map<String, Value>) -> Result<()> {
        let (hyper, model) = (self.hyper, self.model);
        json.insert("rope_theta".into(), short(hyper.rope_theta));
        let window = hyper.forward.sliding_window.as_ref();
        let local = window.and_then(|window| window.rope_theta);
        match (model.rope, local) {
            (RopeKinds::PerLayer, Some(theta)) => {
                json.insert("rope_local_base_freq".into(), short(theta));
            }
            (RopeKinds::PerLayer, None) if window.is_none() => {
                json.insert("rope_local_base_freq".into(), short(hyper.rope_theta));
            }
            (_, None) if model.rope != RopeKinds::PerLayer => {}
            _ => {
                let what = "the rotary base of layers with a window";
                let found = local.map_or("that of the others".to_owned(), |x| x.to_string());
                let expected = match model.rope {
                    RopeKinds::PerLayer => "one of their own",
                    RopeKinds::Any | RopeKinds::PlainOrLong => "that of the others",
                };
                return self.refuse(what, found, expected);
            }
        }
        let (rotated, size) = (hyper.rope_dimensions, hyper.head_size);
        if rotated != size {
            let part = rotated as f64 / size as f64;
            if !model.rotates_partly || (size as f64 * part) as usize != rotated {
                let found = format!("{rotated} of {size}");
                return self.refuse("the rotated dimensions of a head", found, "all of them");
            }
            json.insert("partial_rotary_factor".into(), json!(part));
        }
        let scaling = self.rope_scaling(json)?;
        json.insert("rope_scaling".into(), scaling);
        Ok(())
    }

    /// Returns `rope_scaling`; also writes LongRoPE's original context to `json`.
    fn rope_scaling(&self, json: &mut Map<String, Value>) -> Result<Value> {
        let (hyper, facts) = (self.hyper, self.facts);
        let linear = hyper.rope_linear_scale;
        let factors = facts.rope_factors;
        let original = "original_max_position_embeddings";
        let scaled = linear != 1.0 || factors.is_some();
        let refuse = |found: &str, expected: &str| {
            self.refuse("the scaling of rotary frequencies", found, expected)
        };
        if let Some(long) = hyper.forward.long_rope {
            let both = factors.zip(facts.long_rope_factors);
            let (Some((short, long_factors)), false) = (both, linear != 1.0) else {
                return refuse("more than one kind", "one kind");
            };
            if self.model.rope == RopeKinds::PerLayer {
                return refuse("LongRoPE", "none, linear or Llama 3's");
            }
            json.insert(original.into(), json!(long.original_context));
            return Ok(self.long_rope(long, short, long_factors));
        }
        if self.model.original_max_position_embeddings.is_some() {
            json.insert(original.into(), json!(hyper.context));
        }
        match (factors, self.model.rope) {
            _ if !scaled => Ok(Value::Null),
            (_, RopeKinds::PlainOrLong) => refuse("neither LongRoPE nor none", "one of these"),
            (None, _) => Ok(json!({"rope_type": "linear", "factor": short(linear)})),
            (Some(_), _) if linear != 1.0 => refuse("more than one kind", "one kind"),
            (Some(factors), kinds) => {
                let found = Llama3::of_factors(factors, hyper.rope_theta, hyper.rope_dimensions);
                match (found, kinds) {
                    (Some(found), _) => Ok(found.json()),
                    // Arbitrary factors, in short contexts and in long ones.
                    (None, RopeKinds::Any) => {
                        json.insert(original.into(), json!(hyper.context));
                        let plain = LongRope {
                            original_context: hyper.context,
                            attention_factor: 1.0,
                        };
                        Ok(self.long_rope(plain, factors, factors))
                    }
                    (None, _) => refuse("other factors", "Llama 3's"),
                }
            }
        }
    }

    fn long_rope(&self, long: LongRope, short_factors: &[f32], long_factors: &[f32]) -> Value {
        let list = |factors: &[f32]| factors.iter().copied().map(short).collect::<Vec<_>>();
        // For Phi 3, transformers 4 accepts only these keys under this name.
        let kind = match self.model.rope {
            RopeKinds::PlainOrLong => "type",
            RopeKinds::Any | RopeKinds::PerLayer => "rope_type",
        };
        let mut scaling = json!({
            kind: "longrope",
            "short_factor": list(short_factors),
            "long_factor": list(long_factors),
        });
        let implied = super::rope::suggested_factor(self.hyper.context, long.original_context);
        if implied != long.attention_factor {
            scaling["attention_factor"] = short(long.attention_factor);
        }
        scaling
    }

    /// Writes the bias keys; returns the projections that then need a bias.
    fn biases(
        &self,
        json: &mut Map<String, Value>,
        architecture: &crate::architecture::Architecture,
    ) -> Result<Vec<ProjectionKind>> {
        let mut needed = Vec::new();
        let mut known = Vec::new();
        for (projections, key) in self.model.biases {
            let Some(key) = key else { continue };
            let has = projections
                .iter()
                .any(|projection| self.facts.biases.contains(projection));
            json.insert((*key).into(), json!(has));
            known.extend_from_slice(projections);
            if has {
                needed.extend_from_slice(projections);
            }
        }
        // Without a key, the architecture has them always or never.
        let always = architecture.always_biased();
        let ruled = self
            .model
            .biases
            .iter()
            .flat_map(|(projections, _)| projections.iter());
        let ruled: Vec<ProjectionKind> = ruled.copied().collect();
        needed.extend(
            always
                .iter()
                .filter(|projection| !ruled.contains(projection)),
        );
        known.extend(&always);
        match self
            .facts
            .biases
            .iter()
            .find(|projection| !known.contains(projection))
        {
            None => Ok(needed),
            Some(projection) => {
                self.refuse("a bias", format!("on projection {projection}"), "none")
            }
        }
    }
}

/// Returns the number whose inverse square root is the scale; an integer if that rounds to the
/// same.
fn divisor(scale: f32) -> Value {
    let exact = f64::from(scale).powi(-2);
    if exact.round().powf(-0.5) as f32 == scale {
        json!(exact.round() as u64)
    } else {
        json!(exact)
    }
}

#[cfg(test)]
mod tests;
