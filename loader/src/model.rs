//! Roles bound to the places where the forward pass uses them.

use std::path::Path;

use htc_formats::model::{HyperParameters, InputGroup, Part, Role, Slot};
use htc_formats::source::ModelFile;

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
    pub(crate) o: Linear,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate_up_basis: Option<Tensor>,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Layer {
    /// A slot's linear map.
    pub fn slot(&self, slot: Slot) -> &Linear {
        match slot {
            Slot::Q => &self.q,
            Slot::K => &self.k,
            Slot::V => &self.v,
            Slot::O => &self.o,
            Slot::Gate => &self.gate,
            Slot::Up => &self.up,
            Slot::Down => &self.down,
        }
    }
}

/// A model whose weights lie in a mapped file: opening reads no weight but the norms.
pub struct Model {
    file: ModelFile,
    pub(crate) layers: Vec<Layer>,
    pub(crate) embedding: Tensor,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) output: Tensor,
    /// Rotary frequencies, radians per position, one per rotated pair.
    pub(crate) rope_frequencies: Vec<f64>,
}

impl Model {
    /// Opens a GGUF or a `.htz`.
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
        let factors = find(&file, Role::RopeFactors)
            .map(|t| t.to_f32())
            .transpose()?;
        let rope_frequencies = rope_frequencies(&file.hyper, factors.as_deref());
        Ok(Model {
            file,
            layers,
            embedding,
            output_norm,
            output,
            rope_frequencies,
        })
    }

    /// The numbers that define the forward pass.
    pub fn hyper(&self) -> &HyperParameters {
        &self.file.hyper
    }

    /// The blocks in order.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
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
    Ok(Layer {
        attention_norm: require(file, Role::AttentionNorm { layer })?.to_f32()?,
        qkv_basis: basis(InputGroup::Qkv),
        q: linear(Slot::Q)?,
        k: linear(Slot::K)?,
        v: linear(Slot::V)?,
        o: linear(Slot::O)?,
        ffn_norm: require(file, Role::FfnNorm { layer })?.to_f32()?,
        gate_up_basis: basis(InputGroup::GateUp),
        gate: linear(Slot::Gate)?,
        up: linear(Slot::Up)?,
        down: linear(Slot::Down)?,
    })
}

/// `theta^(-2i/d) / (linear scale · factor_i)`, in radians per position.
fn rope_frequencies(hyper: &HyperParameters, factors: Option<&[f32]>) -> Vec<f64> {
    let dimensions = hyper.rope_dimensions as f64;
    (0..hyper.rope_dimensions / 2)
        .map(|i| {
            let base = f64::from(hyper.rope_theta).powf(-2.0 * i as f64 / dimensions);
            let factor = factors.map_or(1.0, |f| f64::from(f[i]));
            base / (f64::from(hyper.rope_linear_scale) * factor)
        })
        .collect()
}
