//! What an analysis found, as it is written to JSON.
//!
//! Everything here can be read back. Numbers that were not measured are absent; measured ones are
//! rounded to six significant digits, far more than another text would leave unchanged. There is
//! no time and no count of threads in it: the same model and text give the same bytes.
//!
//! Slots are named `q k v o gate up down`; layers, positions, channels and heads count from 0.

use htc_formats::htz::Digest;
use htc_formats::model::{InputGroup, Slot};
use serde::{Deserialize, Serialize};

/// The version of the record that this program writes.
pub const VERSION: u32 = 2;

/// What a JSON file holds; the first entry of an [`Analysis`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An [`Analysis`].
    #[default]
    Analysis,
}

/// The result of `htc analyse`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysis {
    /// `"analysis"`.
    pub kind: Kind,
    /// [`VERSION`].
    pub version: u32,
    /// Name of the model's file or folder, without the folder it is in.
    pub model: String,
    /// Digest of the model, as in the manifest of an artifact made from it.
    pub source_sha256: Digest,
    /// The model's shapes.
    pub shape: Shape,
    /// What was calibrated on; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibratedOn>,
    /// Singular values of the weights.
    pub spectra: Spectra,
    /// The phases of the depth; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseProfiles>,
    /// Sink directions and massive channels; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sinks: Option<Sinks>,
    /// The depth sink; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<DepthSink>,
    /// Intrinsic dimensions; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimension: Option<Dimension>,
    /// Symmetry, curvature and axioms of the residual stream; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifold: Option<Manifold>,
}

/// The shapes of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Name of the architecture, for example `llama`.
    pub architecture: String,
    /// Blocks `L`.
    pub layers: usize,
    /// Width `d` of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Width of the feed-forward hidden layer.
    pub ffn: usize,
}

/// What was calibrated on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedOn {
    /// Name of the text, without its folder.
    pub text: String,
    /// Digest of the text.
    pub text_sha256: Digest,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Tokens of a window.
    pub context: usize,
}

/// The spectra of all slots, and of the groups that may share a basis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spectra {
    /// Parts of the energy `Σ σ²` that [`Spectrum::ranks`] are for: 0.5, 0.75, 0.9, 0.95, 0.99.
    pub energies: Vec<f64>,
    /// Parts of the full rank that [`Spectrum::tails`] are for, of the width `d` that [`Shared`] is
    /// for.
    pub fractions: Vec<f64>,
    /// One entry for each layer and slot, in the order of execution.
    pub slots: Vec<Spectrum>,
    /// One entry for each layer and group.
    pub groups: Vec<Shared>,
}

/// The spectrum of one slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spectrum {
    /// Index of the block.
    pub layer: usize,
    /// Which of the seven.
    pub slot: Slot,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `‖W‖_F`.
    pub norm: f64,
    /// The largest singular value `σ₁`.
    pub largest: f64,
    /// `‖W‖_F² / σ₁²`; 0 for a weight that is zero.
    pub stable_rank: f64,
    /// The smallest ranks that keep [`Spectra::energies`].
    pub ranks: Vec<usize>,
    /// What truncation loses.
    pub tails: Tails,
    /// At most 33 points `[rank, part of the energy kept]`, from rank 0 to the full rank, for
    /// drawing.
    pub curve: Vec<(usize, f64)>,
}

/// `(Σ_{i>r} σ_i² / Σ_i σ_i²)^½`, the smallest relative Frobenius error of a rank-`r` approximation
/// (Eckart and Young 1936), at `r = max(1, round(f · min(rows, cols)))` for each of
/// [`Spectra::fractions`] `f`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tails {
    /// Of the weight itself.
    pub none: Vec<f64>,
    /// Under the gauge `activation`; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Vec<f64>>,
    /// Under the gauge `whiten`, that is of the outputs; absent without a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten: Option<Vec<f64>>,
}

/// What a basis that a group of slots shares costs, without a gauge, each slot counting the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// Index of the block.
    pub layer: usize,
    /// Which group.
    pub group: InputGroup,
    /// Ranks `k = max(1, round(f · d))` of the basis for each of [`Spectra::fractions`] `f`.
    pub ranks: Vec<usize>,
    /// The slots of the group.
    pub members: Vec<SharedMember>,
}

/// What a shared basis `P [d, k]` costs one slot, by [`Shared::ranks`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedMember {
    /// Which of the seven.
    pub slot: Slot,
    /// `‖W − W P Pᵀ‖_F / ‖W‖_F`.
    pub errors: Vec<f64>,
    /// `ρ_k = ‖W − W P Pᵀ‖_F² / Σ_{i>k} σ_i²`, at least 1; null where a basis of the slot's own would
    /// lose nothing, because `k` is its full rank or what is left is rounding.
    pub excess: Vec<Option<f64>>,
}

/// The variance of the residual stream behind each layer, and the phases that show in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseProfiles {
    /// Without the first position of every window, where massive activations sit. The default.
    pub without_first: Profile,
    /// At all positions.
    pub with_first: Profile,
}

/// One profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// `σ²_ℓ = E‖h_ℓ − E[h_ℓ]‖² / d`, by layer.
    pub variance: Vec<f64>,
    /// The mean over three layers, by layer.
    pub smoothed: Vec<f64>,
    /// `mix`, `compress` or `refine`, by layer; absent where there are no phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<String>>,
    /// Why there are no phases; absent where there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Attention sinks, by layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sinks {
    /// A position is listed where its norm is more than this many standard deviations above the mean.
    pub deviations: f64,
    /// One entry for each layer.
    pub layers: Vec<SinkLayer>,
}

/// The sink of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkLayer {
    /// Index of the block.
    pub layer: usize,
    /// The part of `E‖h₀‖²` that lies along the sink direction `ŝ`, the top eigenvector of `E[h₀ h₀ᵀ]`
    /// behind the layer at the first position of a window.
    pub share: f64,
    /// Mean over the positions of a window of `E‖h‖` behind the layer.
    pub norm_mean: f64,
    /// Standard deviation of that.
    pub norm_deviation: f64,
    /// Positions whose norm stands out, in their order, at most 16.
    pub positions: Vec<SinkPosition>,
    /// How many there are.
    pub positions_found: usize,
    /// Single tokens that stand out wherever they are, but for the first position of a window; absent from
    /// records of version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<SinkTokens>,
    /// How much of the sink direction that this layer's attention reads lies in the basis that Q, K
    /// and V share, made from the weights alone. The direction is that of the stream in front of
    /// the layer, times the weights of the norm; empty at layer 0, in front of which no layer is.
    pub coverage: Vec<SinkCoverage>,
    /// The channels of largest `E[x_i²]` of what attention reads, the largest first, at most 8.
    pub channels: Vec<Channel>,
}

/// A position whose norm stands out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkPosition {
    /// Position in the window.
    pub position: usize,
    /// `E‖h‖` there.
    pub norm: f64,
    /// The token there, as [`SinkToken::text`], where every window has the same, such as the beginning of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Tokens whose norm behind a layer stands out among those of all positions but the first of each window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkTokens {
    /// Mean of `‖h‖` over those positions.
    pub norm_mean: f64,
    /// Standard deviation of that.
    pub norm_deviation: f64,
    /// Tokens whose norm is more than [`Sinks::deviations`] standard deviations above the mean.
    pub found: usize,
    /// The largest of them, the largest first, at most 16.
    pub largest: Vec<SinkToken>,
}

/// A token whose norm stands out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkToken {
    /// Index of the window in the calibration.
    pub window: usize,
    /// Position in the window.
    pub position: usize,
    /// `‖h‖` there.
    pub norm: f64,
    /// The token as the model's vocabulary writes it, as it is: whoever shows it to people escapes it. The first 64
    /// characters of a longer one, and `…`; absent from records of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// How much of a direction a basis holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkCoverage {
    /// The basis' rank as a part of the width.
    pub fraction: f64,
    /// The basis' rank.
    pub rank: usize,
    /// `‖V ŝ‖`.
    pub norm: f64,
    /// `max_k |⟨ŝ, v_k⟩|`, the form of the literature.
    pub largest: f64,
    /// `(k/d)^½`, what a basis of that rank in random directions holds of any direction: one below it
    /// avoids the direction, and a compilation completes it. 0 in records of version 1.
    #[serde(default)]
    pub random: f64,
}

/// A channel that carries much of the energy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its index.
    pub channel: usize,
    /// `E[x_i²] / E‖x‖²`.
    pub share: f64,
}

/// Where the residual stream stops growing dimensionally.
///
/// With `C_ℓ` the covariance of the stream behind layer ℓ (first positions left out), what is
/// cumulated over the layers is `A_ℓ = Σ_{j≤ℓ} C_j / tr C_j`, in which every layer counts the same.
/// The curve is the part of the variance of the whole depth, `A_{L−1}`, that the
/// [`rank`](Self::rank) leading eigenvectors of `A_ℓ` explain. No subspace explains more than that of
/// `A_{L−1}` itself (Ky Fan), so that the last value is the plateau: where it is
/// reached, the layers that follow use directions again that earlier ones made.
///
/// Reached is relative to the curve's own slope: with few layers every step is larger than any fixed
/// tolerance, and no trained model that was measured comes within 1e-3 of its end before it is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DepthSink {
    /// The part explained, by layer.
    pub curve: Vec<f64>,
    /// `1 / tr C_ℓ`, by layer: with what its covariance is weighted; 0 where the stream does not vary. Absent from
    /// records of version 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f64>,
    /// The fewest eigenvectors of `A_{L−1}` that hold 95 % of its trace.
    pub rank: usize,
    /// How near the last value counts as the plateau: what a layer adds on average, `(last − first) / (L−1)`,
    /// and at least 1e-3.
    pub tolerance: f64,
    /// The first layer ℓ* within that of the last, where the layers behind it add at most half as much each as
    /// a layer adds on average, or 1e-3; absent where the curve goes on rising to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// `ℓ*/L`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the two-thirds rule says, `round(2L/3)`.
    pub two_thirds: usize,
    /// Whether the two are at most one layer apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
}

/// Intrinsic dimensions of the residual stream behind each layer, first positions left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// What the intervals are of: 0.95.
    pub confidence: f64,
    /// Bootstrap replicates behind each interval of TwoNN.
    pub replicates: usize,
    /// Those behind each interval of PCA; 0 in records of version 1.
    #[serde(default)]
    pub pca_replicates: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// One entry for each layer.
    pub layers: Vec<DimensionLayer>,
}

/// The intrinsic dimension of the stream behind one layer, by two estimators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DimensionLayer {
    /// Index of the block.
    pub layer: usize,
    /// The fewest principal components with 95 % of the variance.
    pub pca: Pca,
    /// By the distances to the two nearest neighbours (Facco et al. 2017); absent where the sample
    /// has fewer than three different vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twonn: Option<TwoNn>,
    /// Whether small samples agree; absent where there are fewer vectors than in one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stability: Option<Stability>,
}

/// PCA at 95 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pca {
    /// `k_int`, of the second moment of the whole calibration.
    pub value: usize,
    /// `k_int / d`.
    pub relative: f64,
    /// Vectors behind it.
    pub samples: u64,
    /// The same of the stored sample alone, which cannot be more than its vectors.
    pub sample_value: usize,
    /// Vectors of the sample.
    pub sample_samples: usize,
    /// Windows that the sample is of; 0 in records of version 1.
    #[serde(default)]
    pub windows: usize,
    /// The median of the bootstrap replicates; absent with [`interval`](Self::interval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicates_median: Option<usize>,
    /// Bootstrap interval of [`value`](Self::value) by resampling the windows of the sample, each with all its
    /// vectors: vectors of one window depend on each other (Künsch 1989). Every replicate has
    /// eigenvectors of its own. Its few vectors need fewer components, and the interval is the replicates'
    /// spread in relation to their median, around the value; absent where there are fewer than 8
    /// windows. In records of version 1 vectors were resampled, in fixed components.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(usize, usize)>,
}

/// TwoNN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoNn {
    /// The dimension.
    pub value: f64,
    /// The same over the width.
    pub relative: f64,
    /// Vectors with a ratio of distances: those that are different from all before them.
    pub samples: usize,
    /// Percentile bootstrap interval, by resampling windows with the ratios of distances of their vectors; absent
    /// where there are fewer than 8. In records of version 1 ratios were resampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

/// What small samples say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stability {
    /// Vectors of a small sample: 64.
    pub samples: usize,
    /// PCA at 95 % of each.
    pub pca: Vec<usize>,
    /// Whether they are all within 1 of their median.
    pub pca_stable: bool,
    /// TwoNN of each.
    pub twonn: Vec<f64>,
    /// Whether they are all within 1 of their median.
    pub twonn_stable: bool,
}

/// The manifold that the residual stream lies on, in four phases: sampling, symmetry, curvature,
/// axioms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifold {
    /// How heads are compared.
    pub symmetry: SymmetryRule,
    /// How the curvature is estimated.
    pub curvature: CurvatureRule,
    /// How axioms are found and tried.
    pub axioms: AxiomRule,
    /// One entry for each layer.
    pub layers: Vec<ManifoldLayer>,
}

/// When the subspaces of two heads are nearly equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymmetryRule {
    /// The part of a head's energy that its subspace holds: 0.9.
    pub energy: f64,
    /// Mean cosine of the principal angles from which a pair is listed.
    pub threshold: f64,
}

/// How the curvature is estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvatureRule {
    /// `forman_augmented`: `4 − deg u − deg v + 3 · triangles` of an edge.
    pub estimator: String,
    /// Neighbours of a vector in the graph, which joins two where either is one of the other's.
    pub neighbours: usize,
}

/// How axioms are found and tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxiomRule {
    /// Variance that the principal directions of the first part hold: 0.95.
    pub energy: f64,
    /// A direction survives where the rebuilt subspace misses at most this part of what a random
    /// subspace of its dimension would miss.
    pub missed: f64,
    /// The part of the sample that is held out for the rebuild: 0.5.
    pub held_out: f64,
}

/// The manifold of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ManifoldLayer {
    /// Index of the block.
    pub layer: usize,
    /// Phase 1, sampling: different vectors of the stored sample.
    pub samples: usize,
    /// Phase 2, symmetry: one entry each for queries, keys and values.
    pub symmetry: Vec<Symmetry>,
    /// Phase 3, curvature; absent where the sample is too small for the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curvature: Option<Curvature>,
    /// Phase 4, axioms; absent where the sample is too small to be halved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axioms: Option<Axioms>,
}

/// What the heads of a layer have in common. Queries are those of all heads that share a key and
/// value head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Symmetry {
    /// `queries` and `keys` after the rotary embedding, or `values`.
    pub of: String,
    /// Dimension of every kv head's subspace.
    pub dimensions: Vec<usize>,
    /// Pairs of heads.
    pub pairs: usize,
    /// Pairs of which nothing can be said: random subspaces of their dimensions are as close as the
    /// threshold.
    pub undecided: usize,
    /// Pairs that are nearly equal.
    pub near_equal: usize,
    /// The closest of them, at most 16.
    pub closest: Vec<HeadPair>,
}

/// Two heads whose subspaces are nearly equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadPair {
    /// The one.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// Mean cosine of the principal angles between their subspaces.
    pub cosine: f64,
    /// What random subspaces of the same dimensions would have at most, in the mean.
    pub chance: f64,
}

/// The curvature of the neighbourhood graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curvature {
    /// Mean over the edges.
    pub mean: f64,
    /// Standard deviation over the edges.
    pub deviation: f64,
    /// The part of the edges with a curvature below zero.
    pub negative: f64,
    /// Edges.
    pub edges: usize,
}

/// Principal directions that are found again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axioms {
    /// Principal directions of the first part.
    pub candidates: usize,
    /// Those that survive.
    pub survived: usize,
    /// `survived / candidates`.
    pub consistency: f64,
    /// Vectors of the first part and of the held-out part.
    pub samples: (usize, usize),
}

/// Six significant digits of a finite number.
pub fn rounded(number: f64) -> f64 {
    // The shortest text of six digits reads back as the nearest number.
    format!("{number:.5e}").parse().unwrap_or(number)
}
