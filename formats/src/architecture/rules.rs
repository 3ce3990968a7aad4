//! Rules of an architecture: its tensors, and properties that model files omit.

use crate::model::{Activation, BlockRole, HyperParameters, ProjectionKind, RopePairs};

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
    /// Whether programs cap the logits of the architecture if a GGUF file states a cap.
    pub caps_logits: bool,
    /// Whether the weights of the used experts are divided by their sum, unless a GGUF file states
    /// it.
    pub normalises_experts: bool,
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
    pub(crate) fn factor(self, width: usize) -> Option<f32> {
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

/// Tensors of a model.
#[derive(Debug)]
pub(super) enum Group {
    /// Once per model.
    Model(&'static [TensorRule]),
    /// Once per block; `{}` in the names stands for the block index.
    Block(&'static [TensorRule]),
    /// Once per expert of every block.
    Experts(&'static [ExpertRule]),
}

/// Names, roles and shape of a tensor.
#[derive(Debug)]
pub(super) struct TensorRule {
    pub gguf: &'static str,
    /// Empty if `config.json` states the values.
    pub hugging_face: &'static str,
    /// Roles and their rows, stacked in the tensor.
    pub holds: &'static [(BlockRole, Dim)],
    pub cols: Dim,
    pub required: bool,
}

/// Names, role and shape of a projection of experts, which is required.
#[derive(Debug)]
pub(super) struct ExpertRule {
    /// Name of the stack `[experts, rows, cols]` of all experts.
    pub gguf: &'static str,
    /// Name of the matrix of one expert; `{e}` stands for its index.
    pub hugging_face: &'static str,
    pub projection: fn(u16) -> ProjectionKind,
    pub rows: Dim,
    pub cols: Dim,
}

/// A length that depends on hyper-parameters.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dim {
    One,
    Vocabulary,
    Width,
    Queries,
    KeysValues,
    Head,
    Ffn,
    Experts,
    ExpertFfn,
    RotaryPairs,
}

impl Dim {
    pub fn length(self, hyper: &HyperParameters) -> usize {
        match self {
            Dim::One => 1,
            Dim::Vocabulary => hyper.vocabulary,
            Dim::Width => hyper.width,
            Dim::Queries => hyper.heads * hyper.head_size,
            Dim::KeysValues => hyper.kv_heads * hyper.head_size,
            Dim::Head => hyper.head_size,
            Dim::Ffn => hyper.ffn,
            Dim::Experts => hyper.experts(),
            Dim::ExpertFfn => hyper.forward.experts.map_or(0, |experts| experts.ffn),
            Dim::RotaryPairs => hyper.rope_dimensions / 2,
        }
    }
}
