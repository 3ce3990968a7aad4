//! Result of an analysis, as written to JSON.
//!
//! Values that were not measured are absent; others have six significant digits. Layers, positions,
//! channels and heads count from 0.

use htc_formats::htz::Digest;
use htc_formats::model::{InputGroup, ProjectionKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the record that this program writes.
pub const VERSION: u32 = 3;

/// Kind of a JSON file; the first entry of an [`Analysis`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An [`Analysis`].
    #[default]
    Analysis,
}

/// Result of `htc analyse`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Analysis {
    /// `"analysis"`.
    pub kind: Kind,
    /// [`VERSION`].
    pub version: u32,
    /// Name of the model's file or folder, without its parent.
    pub model: String,
    /// Digest of the model, as in the manifest of an artifact.
    pub source_sha256: Digest,
    /// Shape of the model.
    pub shape: Shape,
    /// Calibration data; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationInfo>,
    /// Singular values of the weights.
    pub spectra: Spectra,
    /// Phases over the depth; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseProfiles>,
    /// Sink directions and massive channels; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sinks: Option<Sinks>,
    /// Depth sink; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<DepthSink>,
    /// Intrinsic dimensions; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimension: Option<Dimension>,
    /// Symmetry, curvature and axioms of the residual stream; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifold: Option<Manifold>,
}

/// Shape of a model.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Shape {
    /// Name of the architecture, for example `llama`.
    pub architecture: String,
    /// Number of blocks `L`.
    pub layers: usize,
    /// Width `d` of the residual stream.
    pub width: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Width of the feed-forward hidden layer.
    pub ffn: usize,
}

/// Description of the calibration data.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct CalibrationInfo {
    /// File name of the text.
    pub text: String,
    /// Text digest.
    pub text_sha256: Digest,
    /// Tokens processed.
    pub tokens: usize,
    /// Tokens per window.
    pub context: usize,
}

/// Spectra of all projections and of the groups that may share a basis.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Spectra {
    /// Energy fractions of `Σ σ²` for [`Spectrum::ranks`]: 0.5, 0.75, 0.9, 0.95, 0.99.
    pub energies: Vec<f64>,
    /// Fractions of the full rank for [`Spectrum::tails`], and of the width `d` for
    /// [`SharedBasisSpectrum`].
    pub fractions: Vec<f64>,
    /// One entry per layer and projection, in execution order.
    pub projections: Vec<Spectrum>,
    /// One entry per layer and group.
    pub groups: Vec<SharedBasisSpectrum>,
}

/// Spectrum of one projection.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Spectrum {
    /// Block index.
    pub layer: usize,
    /// Projection.
    pub projection: ProjectionKind,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `‖W‖_F`.
    pub norm: f64,
    /// Largest singular value `σ₁`.
    pub largest: f64,
    /// `‖W‖_F² / σ₁²`; 0 for a zero weight.
    pub stable_rank: f64,
    /// Smallest ranks that keep [`Spectra::energies`].
    pub ranks: Vec<usize>,
    /// Truncation errors.
    pub tails: Tails,
    /// Up to 33 points `[rank, fraction of the energy kept]`.
    pub curve: Vec<(usize, f64)>,
}

/// Truncation errors `(Σ_{i>r} σ_i² / Σ_i σ_i²)^½` (Eckart and Young 1936), at `r = max(1, round(f
/// · min(rows, cols)))` for each of [`Spectra::fractions`] `f`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Tails {
    /// Errors of the weight itself.
    pub none: Vec<f64>,
    /// Errors under the gauge `activation`; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Vec<f64>>,
    /// Under the gauge `whiten`, i.e. of the outputs; absent if uncalibrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten: Option<Vec<f64>>,
}

/// Cost of a shared basis, without a gauge and with equal weights.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SharedBasisSpectrum {
    /// Block index.
    pub layer: usize,
    /// Group.
    pub group: InputGroup,
    /// Ranks `k = max(1, round(f · d))` of the basis for each of [`Spectra::fractions`] `f`.
    pub ranks: Vec<usize>,
    /// Projections of the group.
    pub members: Vec<SharedMember>,
}

/// Cost of a shared basis `P [d, k]` for one projection, by [`SharedBasisSpectrum::ranks`].
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SharedMember {
    /// Projection.
    pub projection: ProjectionKind,
    /// `‖W − W P Pᵀ‖_F / ‖W‖_F`.
    pub errors: Vec<f64>,
    /// `ρ_k = ‖W − W P Pᵀ‖_F² / Σ_{i>k} σ_i²`, at least 1; null if undefined.
    pub excess: Vec<Option<f64>>,
}

/// Variance of the residual stream after each layer, and its phases.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PhaseProfiles {
    /// Profile without the first position of every window (massive activations); the default.
    pub without_first: Profile,
    /// Profile over all positions.
    pub with_first: Profile,
}

/// One profile.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Profile {
    /// `σ²_ℓ = E‖h_ℓ − E[h_ℓ]‖² / d`, by layer.
    pub variance: Vec<f64>,
    /// Mean over three layers, by layer.
    pub smoothed: Vec<f64>,
    /// `mix`, `compress` or `refine`, by layer; absent without phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<String>>,
    /// Reason why there are no phases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Attention sinks, by layer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Sinks {
    /// Threshold for outlier norms, in standard deviations above the mean.
    pub deviations: f64,
    /// One entry per layer.
    pub layers: Vec<SinkLayer>,
}

/// Attention sink of a layer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkLayer {
    /// Block index.
    pub layer: usize,
    /// Fraction of `E‖h₀‖²` along the sink direction `ŝ`, the top eigenvector of `E[h₀ h₀ᵀ]` at the
    /// first positions.
    pub share: f64,
    /// Mean over the positions of a window of `E‖h‖` after the layer.
    pub norm_mean: f64,
    /// Standard deviation of these norms.
    pub norm_deviation: f64,
    /// First 16 positions with outlier norms.
    pub positions: Vec<SinkPosition>,
    /// Number of such positions.
    pub positions_found: usize,
    /// Tokens with outlier norms; absent from version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<SinkTokens>,
    /// Coverage of the sink direction by the shared basis of Q, K and V; empty at layer 0.
    pub coverage: Vec<SinkCoverage>,
    /// Channels of largest `E[x_i²]` at the input of attention, largest first.
    pub channels: Vec<Channel>,
}

/// Position with an outlier norm.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkPosition {
    /// Position in the window.
    pub position: usize,
    /// `E‖h‖` at the position.
    pub norm: f64,
    /// Token at the position, as in [`SinkToken::text`], if all windows have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Outlier tokens after a layer, first positions left out.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkTokens {
    /// Mean of `‖h‖` over those positions.
    pub norm_mean: f64,
    /// Standard deviation of these norms.
    pub norm_deviation: f64,
    /// Number of such tokens.
    pub found: usize,
    /// The largest of them, at most 16, largest first.
    pub largest: Vec<SinkToken>,
}

/// Token with an outlier norm.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkToken {
    /// Index of the window in the calibration.
    pub window: usize,
    /// Position in the window.
    pub position: usize,
    /// `‖h‖` of the token.
    pub norm: f64,
    /// Token text, unescaped; truncated to 64 characters and `…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Coverage of a direction by a basis.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SinkCoverage {
    /// Rank of the basis relative to the width.
    pub fraction: f64,
    /// Rank of the basis.
    pub rank: usize,
    /// `‖V ŝ‖`.
    pub norm: f64,
    /// `max_k |⟨ŝ, v_k⟩|`, the form of the literature.
    pub largest: f64,
    /// `(k/d)^½`, the expected coverage by a random basis of that rank. 0 in version 1.
    #[serde(default)]
    pub random: f64,
}

/// Channel with a large share of the energy.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Channel {
    /// Index of the channel.
    pub channel: usize,
    /// `E[x_i²] / E‖x‖²`.
    pub share: f64,
}

/// Depth sink: the layer after which the residual stream gains no dimensions.
///
/// With `C_ℓ` the covariance of the stream after layer ℓ (first positions left out), `A_ℓ = Σ_{j≤ℓ}
/// C_j / tr C_j`. The curve is the fraction of the variance of `A_{L−1}` that the
/// [`rank`](Self::rank) leading eigenvectors of `A_ℓ` explain. No subspace explains more than that
/// of `A_{L−1}` itself (Ky Fan), so the last value is the plateau. The tolerance is relative to the
/// curve's slope, since with few layers every step exceeds a fixed tolerance.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct DepthSink {
    /// Explained fraction, by layer.
    pub curve: Vec<f64>,
    /// `1 / tr C_ℓ`, the weight of each layer; 0 for a constant stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f64>,
    /// Fewest eigenvectors of `A_{L−1}` with 95 % of its trace.
    pub rank: usize,
    /// Tolerance of the plateau: the mean step `(last − first) / (L−1)`, at least 1e-3.
    pub tolerance: f64,
    /// First layer ℓ* within the tolerance, if later layers add little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// `ℓ*/L`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<f64>,
    /// Reason why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Layer by the two-thirds rule, `round(2L/3)`.
    pub two_thirds: usize,
    /// True if the two are at most one layer apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agrees: Option<bool>,
}

/// Intrinsic dimensions of the residual stream after each layer, first positions left out.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Dimension {
    /// Confidence level of the intervals: 0.95.
    pub confidence: f64,
    /// Bootstrap replicates for TwoNN.
    pub replicates: usize,
    /// Bootstrap replicates for PCA; 0 in version 1.
    #[serde(default)]
    pub pca_replicates: usize,
    /// Random seed.
    pub seed: u64,
    /// One entry per layer.
    pub layers: Vec<DimensionLayer>,
}

/// Intrinsic dimension of the stream after one layer, by two estimators.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct DimensionLayer {
    /// Block index.
    pub layer: usize,
    /// Fewest principal components with 95 % of the variance.
    pub pca: Pca,
    /// Estimate from the two nearest neighbours (Facco et al. 2017); absent for fewer than three
    /// distinct vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twonn: Option<TwoNn>,
    /// Agreement of small samples; absent if there are too few vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stability: Option<Stability>,
}

/// PCA at 95 %.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Pca {
    /// `k_int`, of the second moment of the whole calibration.
    pub value: usize,
    /// `k_int / d`.
    pub relative: f64,
    /// Number of vectors.
    pub samples: u64,
    /// Value of the stored sample alone.
    pub sample_value: usize,
    /// Vectors of the sample.
    pub sample_samples: usize,
    /// Windows of the sample; 0 in version 1.
    #[serde(default)]
    pub windows: usize,
    /// Median of the bootstrap replicates; absent with [`interval`](Self::interval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicates_median: Option<usize>,
    /// Bootstrap interval of [`value`](Self::value) by resampling windows (Künsch 1989); absent for
    /// fewer than 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(usize, usize)>,
}

/// TwoNN estimate.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct TwoNn {
    /// The dimension.
    pub value: f64,
    /// The dimension over the width.
    pub relative: f64,
    /// Number of distinct vectors with a ratio of distances.
    pub samples: usize,
    /// Percentile bootstrap interval by resampling windows; absent for fewer than 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
}

/// Agreement of small samples.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Stability {
    /// Vectors of a small sample: 64.
    pub samples: usize,
    /// PCA at 95 % of each.
    pub pca: Vec<usize>,
    /// True if all are within 1 of their median.
    pub pca_stable: bool,
    /// TwoNN of each.
    pub twonn: Vec<f64>,
    /// True if all are within 1 of their median.
    pub twonn_stable: bool,
}

/// Manifold of the residual stream in four phases: sampling, symmetry, curvature, axioms.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Manifold {
    /// Comparison of heads.
    pub symmetry: SymmetryRule,
    /// Estimator of the curvature.
    pub curvature: CurvatureRule,
    /// Test of axioms.
    pub axioms: AxiomRule,
    /// One entry per layer.
    pub layers: Vec<ManifoldLayer>,
}

/// Criterion for nearly equal subspaces of two heads.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct SymmetryRule {
    /// Fraction of a head's energy that its subspace holds: 0.9.
    pub energy: f64,
    /// Minimum mean cosine of the principal angles for a pair to be listed.
    pub threshold: f64,
}

/// Estimator of the curvature.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct CurvatureRule {
    /// `forman_augmented`: `4 − deg u − deg v + 3 · triangles` of an edge.
    pub estimator: String,
    /// Nearest neighbours per vector in the graph.
    pub neighbours: usize,
}

/// Test of axioms.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AxiomRule {
    /// Variance that the principal directions of the first part hold: 0.95.
    pub energy: f64,
    /// Maximum missed fraction of a survivor, relative to a random subspace.
    pub missed: f64,
    /// Fraction of the sample held out for the rebuild: 0.5.
    pub held_out: f64,
}

/// Manifold of one layer.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ManifoldLayer {
    /// Block index.
    pub layer: usize,
    /// Phase 1, sampling: distinct vectors of the stored sample.
    pub samples: usize,
    /// Phase 2, symmetry: one entry each for queries, keys and values.
    pub symmetry: Vec<Symmetry>,
    /// Phase 3, curvature; absent if the sample is too small for the graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curvature: Option<Curvature>,
    /// Phase 4, axioms; absent if the sample is too small to be halved, or its directions fill the
    /// space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axioms: Option<Axioms>,
}

/// Similarity of the heads of a layer; queries are grouped by kv head.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Symmetry {
    /// `queries` and `keys` after the rotary embedding, or `values`.
    pub of: String,
    /// Dimension of every kv head's subspace.
    pub dimensions: Vec<usize>,
    /// Pairs of heads.
    pub pairs: usize,
    /// Pairs for which random subspaces of the same dimensions reach the threshold.
    pub undecided: usize,
    /// Pairs that are nearly equal.
    pub near_equal: usize,
    /// The closest of them, at most 16.
    pub closest: Vec<HeadPair>,
}

/// Two heads with nearly equal subspaces.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct HeadPair {
    /// First head.
    pub a: usize,
    /// Second head.
    pub b: usize,
    /// Mean cosine of the principal angles between their subspaces.
    pub cosine: f64,
    /// Upper bound on the mean cosine of random subspaces of the same dimensions.
    pub chance: f64,
}

/// Curvature of the neighbourhood graph.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Curvature {
    /// Mean over the edges.
    pub mean: f64,
    /// Standard deviation over the edges.
    pub deviation: f64,
    /// Fraction of edges with negative curvature.
    pub negative: f64,
    /// Number of edges.
    pub edges: usize,
}

/// Principal directions that both parts of the sample have.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Axioms {
    /// Principal directions of the first part.
    pub candidates: usize,
    /// Directions that survive.
    pub survived: usize,
    /// `survived / candidates`.
    pub consistency: f64,
    /// Vectors of the first part and of the held-out part.
    pub samples: (usize, usize),
}

/// Rounds a finite number to six significant digits.
pub fn rounded(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}
