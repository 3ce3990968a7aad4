//! Roles bound to the places where the forward pass uses them.

use std::path::Path;

use htc_formats::model::{HyperParameters, InputGroup, Part, Role, Slot};
use htc_formats::source::ModelFile;
use htc_kernels::cpu::Attention;

use crate::error::LoadError;
use crate::linear::Linear;
use crate::tensor::Tensor;

/// One transformer block.
pub struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) qkv_basis: Option<Tensor>,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) query_norm: Option<Vec<f32>>,
    pub(crate) key_norm: Option<Vec<f32>>,
    pub(crate) o: Linear,
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate_up_basis: Option<Tensor>,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) post_ffn_norm: Option<Vec<f32>>,
    /// What is added to each slot's result, by the slot's index.
    biases: [Option<Vec<f32>>; Slot::ALL.len()],
    pub(crate) attention: Attention,
    /// Whether the rotary embedding is that of layers with a window.
    pub(crate) local_rope: bool,
}

impl Layer {
    /// What is added to a slot's result, `[out]`.
    pub(crate) fn bias(&self, slot: Slot) -> Option<&[f32]> {
        self.biases[slot as usize].as_deref()
    }
}

/// A model whose weights lie in a mapped file: opening reads no weight but the norms.
pub struct Model {
    file: ModelFile,
    pub(crate) layers: Vec<Layer>,
    pub(crate) embedding: Tensor,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) output: Tensor,
    pub(crate) rope: Rope,
}

/// Rotary frequencies, radians per position, one per rotated pair.
pub(crate) struct Rope {
    /// In layers that see every position.
    frequencies: Vec<f64>,
    /// The same where the context is longer than so many positions.
    long: Option<(usize, Vec<f64>)>,
    /// In layers with a window, where they rotate otherwise.
    local: Option<Vec<f64>>,
    /// Factor of what is rotated.
    pub factor: f32,
}

impl Rope {
    /// The frequencies of a sequence of at most `context` positions, and how many it may have
    /// with them.
    pub fn global(&self, context: usize) -> (&[f64], usize) {
        match &self.long {
            Some((limit, long)) if context > *limit => (long, usize::MAX),
            Some((limit, _)) => (&self.frequencies, *limit),
            None => (&self.frequencies, usize::MAX),
        }
    }

    /// The frequencies of layers with a window.
    pub fn local(&self) -> Option<&[f64]> {
        self.local.as_deref()
    }
}

impl Model {
    /// Opens a GGUF, a `.htz` or a folder with safetensors.
    ///
    /// # Errors
    /// [`LoadError`] where the file is missing, damaged or not supported.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Model::bind(ModelFile::open(path)?)
    }

    /// Binds the tensors of an opened file.
    ///
    /// # Errors
    /// [`LoadError`] where a tensor is missing or does not decode.
    pub fn bind(file: ModelFile) -> Result<Self, LoadError> {
        let layers = (0..file.hyper.layers)
            .map(|layer| bind_layer(&file, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let embedding = require(&file, Role::TokenEmbedding)?;
        let output = find(&file, Role::Output).unwrap_or_else(|| embedding.clone());
        let output_norm = require(&file, Role::OutputNorm)?.to_f32()?;
        let rope = rope(&file)?;
        Ok(Model {
            file,
            layers,
            embedding,
            output_norm,
            output,
            rope,
        })
    }

    /// The numbers that define the forward pass.
    pub fn hyper(&self) -> &HyperParameters {
        &self.file.hyper
    }

    /// The opened file.
    pub fn file(&self) -> &ModelFile {
        &self.file
    }
}

fn find(file: &ModelFile, role: Role) -> Option<Tensor> {
    file.tensor(role).map(|tensor| Tensor::new(file, tensor))
}

fn require(file: &ModelFile, role: Role) -> Result<Tensor, LoadError> {
    find(file, role).ok_or(LoadError::Missing(role))
}

fn bind_layer(file: &ModelFile, layer: usize) -> Result<Layer, LoadError> {
    let linear = |slot: Slot| -> Result<Linear, LoadError> {
        let part = |part: Part| Role::Linear { layer, slot, part };
        if let Some(weight) = find(file, part(Part::Weight)) {
            return Ok(Linear::Dense(weight));
        }
        if let Some(projected) = find(file, part(Part::Projected)) {
            return Ok(Linear::SharedBasis { projected });
        }
        match find(file, part(Part::A)) {
            Some(a) => Ok(Linear::LowRank {
                a,
                b: require(file, part(Part::B))?,
            }),
            None => Err(LoadError::Missing(part(Part::Weight))),
        }
    };
    let basis = |group: InputGroup| find(file, Role::Basis { layer, group });
    let vector = |role: Role| find(file, role).map(|t| t.to_f32()).transpose();
    let mut biases = [const { None }; Slot::ALL.len()];
    for slot in Slot::ALL {
        let part = Part::Bias;
        biases[slot as usize] = vector(Role::Linear { layer, slot, part })?;
    }
    let hyper = &file.hyper;
    let window = hyper.window(layer);
    Ok(Layer {
        attention_norm: require(file, Role::AttentionNorm { layer })?.to_f32()?,
        qkv_basis: basis(InputGroup::Qkv),
        q: linear(Slot::Q)?,
        k: linear(Slot::K)?,
        v: linear(Slot::V)?,
        query_norm: vector(Role::QueryNorm { layer })?,
        key_norm: vector(Role::KeyNorm { layer })?,
        o: linear(Slot::O)?,
        post_attention_norm: vector(Role::PostAttentionNorm { layer })?,
        ffn_norm: require(file, Role::FfnNorm { layer })?.to_f32()?,
        gate_up_basis: basis(InputGroup::GateUp),
        gate: linear(Slot::Gate)?,
        up: linear(Slot::Up)?,
        down: linear(Slot::Down)?,
        post_ffn_norm: vector(Role::PostFfnNorm { layer })?,
        biases,
        attention: Attention {
            scale: hyper
                .forward
                .attention_scale
                .unwrap_or_else(|| 1.0 / (hyper.head_size as f32).sqrt()),
            softcap: hyper.forward.attention_softcap,
            window: window.map(|window| window.positions),
        },
        local_rope: window.is_some_and(|window| window.rope_theta.is_some()),
    })
}

fn rope(file: &ModelFile) -> Result<Rope, LoadError> {
    let hyper = &file.hyper;
    let factors = |role| find(file, role).map(|t| t.to_f32()).transpose();
    let short = factors(Role::RopeFactors)?;
    let frequencies = |factors: Option<&[f32]>| {
        let scale = hyper.rope_linear_scale;
        rope_frequencies(hyper.rope_theta, scale, hyper.rope_dimensions, factors)
    };
    let long = match hyper.forward.long_rope {
        None => None,
        Some(long) => {
            let factors = require(file, Role::LongRopeFactors)?.to_f32()?;
            Some((long.original_context, frequencies(Some(&factors))))
        }
    };
    let window = hyper.forward.sliding_window.as_ref();
    Ok(Rope {
        frequencies: frequencies(short.as_deref()),
        long,
        local: window
            .and_then(|window| window.rope_theta)
            .map(|theta| rope_frequencies(theta, 1.0, hyper.rope_dimensions, None)),
        factor: hyper
            .forward
            .long_rope
            .map_or(1.0, |long| long.attention_factor),
    })
}

/// `theta^(-2i/d) / (linear scale · factor_i)`, in radians per position.
fn rope_frequencies(
    theta: f32,
    linear_scale: f32,
    dimensions: usize,
    factors: Option<&[f32]>,
) -> Vec<f64> {
    (0..dimensions / 2)
        .map(|i| {
            let base = f64::from(theta).powf(-2.0 * i as f64 / dimensions as f64);
            let factor = factors.map_or(1.0, |f| f64::from(f[i]));
            base / (f64::from(linear_scale) * factor)
        })
        .collect()
}
