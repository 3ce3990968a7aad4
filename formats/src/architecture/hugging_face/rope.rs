//! Reads rotary embeddings of configurations.
//!
//! transformers 5 writes `rope_parameters`, for some models one object per kind of layer. Older
//! versions write `rope_theta` and `rope_scaling`, whose kind is `type` or `rope_type`. Kinds and
//! defaults follow its `modeling_rope_utils.py`.

use std::f64::consts::PI;

use serde_json::Value;

use super::Reader;
use super::config::{FromJson, Object};
use crate::architecture::BindError;
use crate::architecture::error::Result;
use crate::architecture::model_type::{ModelType, RopeKinds};
use crate::model::LongRope;

#[derive(Debug)]
pub(super) struct Rope {
    pub theta: f32,
    /// Base in layers with a window, if different.
    pub sliding_theta: Option<f32>,
    /// Rotated share of a head.
    pub part: f64,
    pub scaling: Scaling,
}

#[derive(Debug)]
pub(super) enum Scaling {
    None,
    /// Divisor of positions.
    Linear(f32),
    Llama3(Llama3),
    Long {
        rope: LongRope,
        short: Factors,
        long: Factors,
    },
}

#[derive(Debug)]
pub(super) struct Factors {
    pub key: String,
    pub values: Vec<f32>,
}

impl Factors {
    /// Checks the number of divisors.
    pub fn check(&self, frequencies: usize) -> Result<()> {
        if self.values.len() == frequencies {
            return Ok(());
        }
        Err(BindError::KeyValue {
            key: self.key.clone(),
            expected: format!("an array of {frequencies}, half the rotated dimensions"),
            found: format!("an array of {}", self.values.len()),
        })
    }
}

/// Scaling of Llama 3.1: stretches long wavelengths fully, medium ones partly, short ones not at
/// all.
#[derive(Debug)]
pub(super) struct Llama3 {
    /// Key of the object in the configuration.
    pub key: String,
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original_context: f64,
}

impl Llama3 {
    /// Recovers the scaling that gives exactly these factors, assuming wavelength factors 1 and 4
    /// and a power of two as the original context, as in all published models.
    pub fn of_factors(factors: &[f32], theta: f32, dimensions: usize) -> Option<Llama3> {
        let factor = factors.iter().copied().fold(1.0, f32::max);
        let scalings = (4..=20).map(|power| Llama3 {
            key: String::new(),
            factor: f64::from(factor),
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: f64::from(1u32 << power),
        });
        let mut scalings = scalings.filter(|scaling| scaling.factors(theta, dimensions) == factors);
        scalings.next()
    }

    pub fn json(&self) -> Value {
        serde_json::json!({
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": self.original_context as u64,
        })
    }

    /// Returns the divisors of the frequencies of `dimensions` rotated dimensions.
    pub fn factors(&self, theta: f32, dimensions: usize) -> Vec<f32> {
        let frequencies = (0..dimensions / 2).map(|i| {
            let exponent = -2.0 * i as f64 / dimensions as f64;
            f64::from(theta).powf(exponent)
        });
        frequencies
            .map(|frequency| self.factor(frequency))
            .collect()
    }

    fn factor(&self, frequency: f64) -> f32 {
        // Number of wavelengths in the original context.
        let waves = self.original_context * frequency / (2.0 * PI);
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - kept) / self.factor + kept)) as f32
    }
}

impl Reader<'_> {
    pub(super) fn read_rope(&self, context: usize) -> Result<Rope> {
        let Reader { config, model, .. } = self;
        let traits = &self.architecture.traits;
        let scaling = config.object("rope_scaling")?.filter(|o| !o.is_empty());
        let parameters = config.object("rope_parameters")?;
        let (stated, sliding) = match (model.rope, &parameters) {
            (RopeKinds::PerLayer, Some(parameters)) => {
                let (full, sliding) = per_layer(parameters)?;
                (Stated(scaling.into_iter().chain(full).collect()), sliding)
            }
            (RopeKinds::PerLayer, None) => (Stated(scaling.into_iter().collect()), None),
            // The older form takes precedence.
            _ => match scaling.or(parameters) {
                Some(stated) => (Stated(vec![for_all_layers(stated, self.model)?]), None),
                None => (Stated(Vec::new()), None),
            },
        };
        let theta = match stated.optional("rope_theta")? {
            Some(theta) => theta,
            None => config.or("rope_theta", model.rope_theta.unwrap_or(traits.rope_theta))?,
        };
        let sliding_theta = match traits.sliding_rope_theta {
            None => None,
            Some(default) => Some(self.sliding_theta(sliding, default)?),
        };
        Ok(Rope {
            theta,
            sliding_theta,
            part: self.part(&stated)?,
            scaling: self.read_scaling(&stated, context)?,
        })
    }

    /// Returns the base in layers with a window, which have no scaling.
    fn sliding_theta(&self, stated: Option<Object<'_>>, default: f32) -> Result<f32> {
        let stated = Stated(stated.into_iter().collect());
        for key in ["rope_type", "type"] {
            let Some(object) = stated.find(key) else {
                continue;
            };
            if object.required::<&str>(key)? != "default" {
                return Err(object.refuse(key, "\"default\""));
            }
        }
        match stated.optional("rope_theta")? {
            Some(theta) => Ok(theta),
            None => self.config.or("rope_local_base_freq", default),
        }
    }

    fn part(&self, stated: &Stated<'_>) -> Result<f64> {
        let Reader { config, model, .. } = self;
        let key = "partial_rotary_factor";
        let object = stated.find(key).unwrap_or(config);
        let part = object.optional(key)?.unwrap_or(1.0);
        if part != 1.0 && !model.rotates_partly {
            let expected = format!("1 for model type {:?}", model.name);
            return Err(object.refuse(key, expected));
        }
        Ok(part)
    }

    fn read_scaling(&self, stated: &Stated<'_>, context: usize) -> Result<Scaling> {
        let model = self.model;
        let key = ["rope_type", "type"]
            .into_iter()
            .find_map(|key| Some((stated.find(key)?, key)));
        let Some((object, key)) = key else {
            return Ok(Scaling::None);
        };
        let kind: &str = object.required(key)?;
        match (kind, model.rope) {
            ("default", _) => Ok(Scaling::None),
            ("linear", RopeKinds::Any | RopeKinds::PerLayer) => {
                // In range: `positive` has checked it as f32.
                Ok(Scaling::Linear(stated.positive("factor")? as f32))
            }
            ("llama3", RopeKinds::Any | RopeKinds::PerLayer) => {
                let original = self.original_context(stated, context)?;
                llama3(object, stated, original).map(Scaling::Llama3)
            }
            ("longrope", RopeKinds::Any | RopeKinds::PlainOrLong)
            | ("su" | "yarn", RopeKinds::PlainOrLong) => {
                let original = self.original_context(stated, context)?;
                Ok(Scaling::Long {
                    rope: LongRope {
                        original_context: original,
                        attention_factor: attention_factor(stated, context, original)?,
                    },
                    short: stated.factors("short_factor")?,
                    long: stated.factors("long_factor")?,
                })
            }
            _ => {
                let supported = match model.rope {
                    RopeKinds::Any => "default, linear, llama3 or longrope",
                    RopeKinds::PlainOrLong => "default or longrope",
                    RopeKinds::PerLayer => "default, linear or llama3",
                };
                let expected = format!("{supported} for model type {:?}", model.name);
                Err(object.refuse(key, expected))
            }
        }
    }

    /// Returns the original context, stated in the scaling or next to it.
    fn original_context(&self, stated: &Stated<'_>, context: usize) -> Result<usize> {
        let Reader { config, model, .. } = self;
        let key = "original_max_position_embeddings";
        let outer: Option<usize> = config.optional(key)?;
        let inner: Option<usize> = stated.optional(key)?;
        match (outer, inner, stated.find(key)) {
            (Some(outer), Some(inner), Some(object)) if outer != inner => {
                Err(object.refuse(key, format!("{outer} as outside of it")))
            }
            _ => {
                let default = model.original_max_position_embeddings.unwrap_or(context);
                Ok(outer.or(inner).unwrap_or(default))
            }
        }
    }
}

struct Stated<'a>(Vec<Object<'a>>);

impl<'a> Stated<'a> {
    fn find(&self, key: &str) -> Option<&Object<'a>> {
        self.0.iter().find(|object| object.has(key))
    }

    fn optional<T: FromJson<'a>>(&self, key: &str) -> Result<Option<T>> {
        match self.find(key) {
            Some(object) => object.optional(key),
            None => Ok(None),
        }
    }

    fn missing<T: FromJson<'a>>(&self, key: &str) -> BindError {
        BindError::MissingKey {
            key: self.0.first().map_or(key.to_owned(), |o| o.path(key)),
            expected: T::EXPECTED,
        }
    }

    /// Returns a number that is finite and positive, also as f32.
    fn positive(&self, key: &str) -> Result<f64> {
        let object = self.find(key).ok_or_else(|| self.missing::<f64>(key))?;
        let value: f64 = object.required(key)?;
        let rounded = value as f32;
        if !(rounded.is_finite() && rounded > 0.0) {
            return Err(object.refuse(key, "a finite positive number"));
        }
        Ok(value)
    }

    fn factors(&self, key: &str) -> Result<Factors> {
        let object = self
            .find(key)
            .ok_or_else(|| self.missing::<&[Value]>(key))?;
        let stated: &[Value] = object.required(key)?;
        let mut values = Vec::with_capacity(stated.len());
        for value in stated {
            match f32::from_json(value).filter(|x| x.is_finite() && *x > 0.0) {
                Some(value) => values.push(value),
                None => return Err(object.refuse(key, "an array of finite positive numbers")),
            }
        }
        Ok(Factors {
            key: object.path(key),
            values,
        })
    }
}

/// Keys of the parameters of layers without and with a window.
const LAYERS: [&str; 2] = ["full_attention", "sliding_attention"];

/// Returns the parameters of layers without and with a window.
fn per_layer<'a>(parameters: &Object<'a>) -> Result<(Option<Object<'a>>, Option<Object<'a>>)> {
    let [full, sliding] = LAYERS;
    if let Some(key) = parameters.keys().find(|key| !LAYERS.contains(key)) {
        return Err(parameters.refuse(key, format!("in {full:?} or {sliding:?}")));
    }
    Ok((parameters.object(full)?, parameters.object(sliding)?))
}

fn for_all_layers<'a>(stated: Object<'a>, model: &ModelType) -> Result<Object<'a>> {
    match LAYERS.into_iter().find(|key| stated.has(key)) {
        None => Ok(stated),
        Some(key) => {
            let expected = format!("absent for model type {:?}", model.name);
            Err(stated.refuse(key, expected))
        }
    }
}

fn llama3(object: &Object<'_>, stated: &Stated<'_>, original_context: usize) -> Result<Llama3> {
    let scaling = Llama3 {
        key: object.name().to_owned(),
        factor: stated.positive("factor")?,
        low_freq_factor: stated.positive("low_freq_factor")?,
        high_freq_factor: stated.positive("high_freq_factor")?,
        original_context: original_context as f64,
    };
    if scaling.high_freq_factor <= scaling.low_freq_factor {
        let key = "high_freq_factor";
        let object = stated.find(key).unwrap_or(object);
        return Err(object.refuse(key, "more than \"low_freq_factor\""));
    }
    Ok(scaling)
}

/// Returns the factor of rotated queries and keys: as stated, or as the LongRoPE authors suggest
/// for the context.
fn attention_factor(stated: &Stated<'_>, context: usize, original: usize) -> Result<f32> {
    if let Some(factor) = stated.optional("attention_factor")? {
        return Ok(factor);
    }
    let factor = match stated.optional::<f64>("factor")? {
        Some(factor) => factor,
        None => context as f64 / original as f64,
    };
    // Non-finite values are refused with the other hyper-parameters.
    Ok(suggested(factor, original))
}

/// Returns the default factor of rotated queries and keys.
pub(super) fn suggested_factor(context: usize, original: usize) -> f32 {
    suggested(context as f64 / original as f64, original)
}

fn suggested(factor: f64, original: usize) -> f32 {
    if factor <= 1.0 {
        1.0
    } else {
        (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32
    }
}
