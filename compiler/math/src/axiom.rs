//! The axiom gauge: a diagonal gauge of the residual stream that needs no calibration.
//!
//! For the projections of one block that read the residual stream (Q, K, V, gate, up) and those
//! that write to it (O, down), one factor `g_i > 0` per channel minimises `f(λ) = Σ_reads tail_r(W
//! diag(e^{−λ})) + Σ_writes tail_r(diag(e^{λ}) W)` for `λ = log g` and the planned ranks, where
//! `tail_r(X) = Σ_{i>r} σ_i(X)²`.
//!
//! With the present approximation, moving `λ` by `δ` loses `Σ_i (a_i e^{−2δ_i} + b_i e^{2δ_i})` for
//! tail energies `a_i` of the reads and `b_i` of the writes: an upper bound, so a step to its
//! minimum cannot raise `f`. A line search tries to go further.
//!
//! The tail falls, but the Frobenius error of the factors rises; only a measurement on text shows
//! the benefit.
//!
//! Takes about 20 evaluations of `f`, each with one eigendecomposition per projection, of the order
//! of its smaller side.

use faer::Mat;
use htc_formats::model::ProjectionKind;

use super::gauge::{Diagonal, Gauge};
use super::panels::Panels;
use super::{Algebra, FactoriseError, Weight, check_rank};

/// Limit of `|log g_i|`: an unused channel would absorb all of the scale.
const MAX_ABS_LOG_GAUGE: f64 = 2.772_588_722_239_781;

/// Fraction of the predicted decrease that a step has to deliver (Armijo 1966).
const ARMIJO_FRACTION: f64 = 1e-4;

const MAX_HALVINGS: usize = 6;

/// Maximum step length, in units of the step that minimises the quadratic bound.
const MAX_STEP: f64 = 4.0;

/// Floor of relative tail energies, so that untruncated channels do not follow rounding noise.
const TAIL_ENERGY_FLOOR: f64 = 1e-6;

/// Relation of a projection to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidualSide {
    /// Reads the channels: Q, K, V, gate, up.
    Read,
    /// Writes the channels: O, down.
    Write,
}

impl ResidualSide {
    /// Returns the side of a projection.
    pub const fn from_projection(projection: ProjectionKind) -> ResidualSide {
        match projection {
            ProjectionKind::Q
            | ProjectionKind::K
            | ProjectionKind::V
            | ProjectionKind::Gate
            | ProjectionKind::Up
            | ProjectionKind::Router
            | ProjectionKind::ExpertGate(_)
            | ProjectionKind::ExpertUp(_) => ResidualSide::Read,
            ProjectionKind::O | ProjectionKind::Down | ProjectionKind::ExpertDown(_) => {
                ResidualSide::Write
            }
        }
    }
}

/// Projection that takes part in the search.
#[derive(Clone, Copy, Debug)]
pub struct AxiomProjection<'a> {
    /// Weight of the projection.
    pub weight: Weight<'a>,
    /// Planned rank.
    pub rank: usize,
    /// Side on which the gauge acts.
    pub side: ResidualSide,
}

/// Stopping criteria of [`axiom_gauge`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxiomOptions {
    /// Maximum number of steps.
    pub iterations: usize,
    /// Maximum number of evaluations of `f`, including rejected steps.
    pub evaluations: usize,
    /// Relative decrease of the tail below which the search stops.
    pub tolerance: f64,
}

impl Default for AxiomOptions {
    fn default() -> Self {
        AxiomOptions {
            iterations: 20,
            evaluations: 40,
            tolerance: 1e-3,
        }
    }
}

/// Gauge of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct AxiomGauge {
    /// `g`, with geometric mean 1.
    pub entries: Vec<f64>,
    /// `f` before the first and after every step, never rising.
    pub trace: Vec<f64>,
    /// Number of evaluations of `f`.
    pub evaluations: usize,
}

impl AxiomGauge {
    /// Returns the gauge `1/g` at the inputs of the reads.
    pub fn input_gauge(&self) -> Result<Gauge, FactoriseError> {
        Diagonal::new(self.entries.iter().map(|g| 1.0 / g).collect()).map(Gauge::Diagonal)
    }

    /// Returns the gauge `g` at the outputs of the writes.
    pub fn output_gauge(&self) -> Result<Diagonal, FactoriseError> {
        Diagonal::new(self.entries.clone())
    }
}

/// Searches the gauge that minimises the tail energy of `projections` at their ranks.
pub fn axiom_gauge(
    projections: &[AxiomProjection<'_>],
    options: AxiomOptions,
    algebra: &dyn Algebra,
) -> Result<AxiomGauge, FactoriseError> {
    let objective = Objective::new(projections, algebra)?;
    let mut lambda = vec![0.0; objective.channels];
    let mut here = objective.evaluate(&lambda)?;
    let mut evaluations = 1;
    let mut trace = vec![here.tail];
    let mut step = 1.0;
    'steps: for _ in 0..options.iterations {
        let target = here.minimum_of_bound(&lambda);
        let gradient = here.gradient();
        let mut accepted = None;
        for _ in 0..=MAX_HALVINGS {
            if evaluations >= options.evaluations {
                break 'steps;
            }
            let there = interpolate(&lambda, &target, step);
            let promised: f64 = gradient
                .iter()
                .zip(there.iter().zip(&lambda))
                .map(|(g, (there, here))| g * (there - here))
                .sum();
            if promised < 0.0 {
                let found = objective.evaluate(&there)?;
                evaluations += 1;
                if found.tail <= here.tail + ARMIJO_FRACTION * promised {
                    accepted = Some((there, found));
                    break;
                }
            }
            step *= 0.5;
        }
        let Some((there, found)) = accepted else {
            break;
        };
        let gained = here.tail - found.tail;
        let enough = options.tolerance * here.tail;
        (lambda, here) = (there, found);
        trace.push(here.tail);
        if gained <= enough {
            break;
        }
        step = (2.0 * step).min(MAX_STEP);
    }
    Ok(AxiomGauge {
        entries: lambda.iter().map(|l| l.exp()).collect(),
        trace,
        evaluations,
    })
}

pub(super) struct Evaluation {
    pub tail: f64,
    reads: Vec<f64>,
    writes: Vec<f64>,
}

impl Evaluation {
    pub fn gradient(&self) -> Vec<f64> {
        self.reads
            .iter()
            .zip(&self.writes)
            .map(|(read, write)| 2.0 * (write - read))
            .collect()
    }

    /// Returns the minimum within [`MAX_ABS_LOG_GAUGE`], with mean zero.
    fn minimum_of_bound(&self, lambda: &[f64]) -> Vec<f64> {
        let largest = self
            .reads
            .iter()
            .zip(&self.writes)
            .fold(0.0f64, |m, (a, b)| m.max(*a).max(*b));
        if largest == 0.0 {
            return lambda.to_vec();
        }
        // The derivative of the bound in channel i, −2a e^{−2δ} + 2b e^{2δ}, equals a multiplier 2μ
        // where z = e^{2δ} solves b z² − μ z − a = 0. μ makes the mean zero.
        let channel = |i: usize, mu: f64| {
            let (a, b) = (self.reads[i] / largest, self.writes[i] / largest);
            let (a, b) = (a.max(TAIL_ENERGY_FLOOR), b.max(TAIL_ENERGY_FLOOR));
            let root = mu.hypot(2.0 * (a * b).sqrt());
            let z = if mu >= 0.0 {
                (mu + root) / (2.0 * b)
            } else {
                2.0 * a / (root - mu)
            };
            (lambda[i] + 0.5 * z.ln()).clamp(-MAX_ABS_LOG_GAUGE, MAX_ABS_LOG_GAUGE)
        };
        let n = lambda.len();
        let mut bounds = (-1e6, 1e6);
        for _ in 0..200 {
            let middle = 0.5 * (bounds.0 + bounds.1);
            let sum: f64 = (0..n).map(|i| channel(i, middle)).sum();
            if sum < 0.0 {
                bounds.0 = middle;
            } else {
                bounds.1 = middle;
            }
        }
        centre((0..n).map(|i| channel(i, bounds.1)).collect())
    }
}

fn interpolate(from: &[f64], to: &[f64], step: f64) -> Vec<f64> {
    let point = from
        .iter()
        .zip(to)
        .map(|(from, to)| from + step * (to - from));
    centre(point.collect())
}

fn centre(mut lambda: Vec<f64>) -> Vec<f64> {
    let shifted = |l: f64, by: f64| (l - by).clamp(-MAX_ABS_LOG_GAUGE, MAX_ABS_LOG_GAUGE);
    let (mut low, mut high) = (-2.0 * MAX_ABS_LOG_GAUGE, 2.0 * MAX_ABS_LOG_GAUGE);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if lambda.iter().map(|&l| shifted(l, middle)).sum::<f64>() > 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    lambda.iter_mut().for_each(|l| *l = shifted(*l, high));
    lambda
}

pub(super) struct Objective<'a> {
    channels: usize,
    projections: Vec<PreparedProjection<'a>>,
    algebra: &'a dyn Algebra,
}

struct PreparedProjection<'a> {
    projection: AxiomProjection<'a>,
    energy: ChannelEnergy,
}

enum ChannelEnergy {
    /// `[d, d]`, lower triangle, for few channels.
    Gram(Mat<f64>),
    /// Energy of each channel, for many channels.
    Energies(Vec<f64>),
}

impl<'a> Objective<'a> {
    pub fn new(
        projections: &[AxiomProjection<'a>],
        algebra: &'a dyn Algebra,
    ) -> Result<Self, FactoriseError> {
        let channels = projections
            .first()
            .ok_or(FactoriseError::NoWeights)?
            .channels();
        let projections = projections
            .iter()
            .enumerate()
            .map(|(index, &projection)| {
                projection.weight.check(index)?;
                if projection.channels() != channels {
                    return Err(FactoriseError::InputMismatch {
                        index,
                        expected: channels,
                        found: projection.channels(),
                    });
                }
                let order = projection.weight.rows.min(projection.weight.cols);
                check_rank(projection.rank, order)?;
                let form = if order == channels {
                    ChannelEnergy::Gram(projection.channels_as_columns(algebra).gram()?)
                } else {
                    let mut energies = Vec::with_capacity(channels);
                    projection
                        .channels_as_rows(None, algebra)
                        .for_each(|_, panel| {
                            energies.extend(panel.row_iter().map(|row| row.squared_norm_l2()));
                            Ok(())
                        })?;
                    ChannelEnergy::Energies(energies)
                };
                Ok(PreparedProjection {
                    projection,
                    energy: form,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Objective {
            channels,
            projections,
            algebra,
        })
    }

    pub fn evaluate(&self, lambda: &[f64]) -> Result<Evaluation, FactoriseError> {
        let mut reads = vec![0.0; self.channels];
        let mut writes = reads.clone();
        for prepared in &self.projections {
            let (sign, sums) = match prepared.projection.side {
                ResidualSide::Read => (-1.0, &mut reads),
                ResidualSide::Write => (1.0, &mut writes),
            };
            let scale: Vec<f64> = lambda.iter().map(|l| (sign * l).exp()).collect();
            let tails = prepared.tail_energies(&scale, self.algebra)?;
            sums.iter_mut().zip(tails).for_each(|(sum, t)| *sum += t);
        }
        Ok(Evaluation {
            tail: reads.iter().chain(&writes).sum(),
            reads,
            writes,
        })
    }
}

impl PreparedProjection<'_> {
    /// Channel `i` is multiplied by `scale[i]`.
    fn tail_energies(
        &self,
        scale: &[f64],
        algebra: &dyn Algebra,
    ) -> Result<Vec<f64>, FactoriseError> {
        let (mut tails, kept) = match &self.energy {
            ChannelEnergy::Gram(gram) => {
                let n = gram.nrows();
                let scaled = Mat::from_fn(n, n, |i, j| gram[(i, j)] * scale[i] * scale[j]);
                let energies: Vec<f64> = (0..n).map(|i| scaled[(i, i)]).collect();
                let found = algebra.eigen(scaled, self.projection.rank)?;
                let mut kept = vec![0.0; n];
                for (vector, value) in found.vectors.col_iter().zip(&found.values) {
                    for (sum, v) in kept.iter_mut().zip(vector.iter()) {
                        *sum += value.max(0.0) * v * v;
                    }
                }
                (energies, kept)
            }
            ChannelEnergy::Energies(energies) => {
                let panels = self.projection.channels_as_rows(Some(scale), algebra);
                let found = algebra.eigen(panels.gram()?, self.projection.rank)?;
                let mut kept = Vec::with_capacity(scale.len());
                panels.times(found.vectors.as_ref(), |_, panel| {
                    kept.extend(panel.row_iter().map(|row| row.squared_norm_l2()));
                })?;
                let energies = energies.iter().zip(scale).map(|(e, s)| e * s * s);
                (energies.collect(), kept)
            }
        };
        tails
            .iter_mut()
            .zip(kept)
            .for_each(|(tail, kept)| *tail = (*tail - kept).max(0.0));
        Ok(tails)
    }
}

impl<'a> AxiomProjection<'a> {
    fn channels(&self) -> usize {
        match self.side {
            ResidualSide::Read => self.weight.cols,
            ResidualSide::Write => self.weight.rows,
        }
    }

    fn channels_as_columns<'s>(&self, algebra: &'s dyn Algebra) -> Panels<'s>
    where
        'a: 's,
    {
        match self.side {
            ResidualSide::Read => Panels::new(self.weight, algebra),
            ResidualSide::Write => Panels::transposed_weight(self.weight, algebra),
        }
    }

    fn channels_as_rows<'s>(&self, scale: Option<&'s [f64]>, algebra: &'s dyn Algebra) -> Panels<'s>
    where
        'a: 's,
    {
        match self.side {
            ResidualSide::Read => {
                Panels::transposed_weight(self.weight, algebra).scaled(None, scale)
            }
            ResidualSide::Write => Panels::new(self.weight, algebra).scaled(scale, None),
        }
    }
}
