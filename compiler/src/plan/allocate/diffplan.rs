//! Allocator `diffplan`: a differentiable plan with an energy term, after the diffplan objective.
//!
//! Every unit has a softmax over rank levels. With the probabilities `p`, and the loss `E`, cost
//! `C` and rank `R` of each level, `r_soft = Σ p R`, gradient descent minimises
//!
//! `Σ_units  Σ p E  +  α Σ p C  +  λ ĉ r_soft`.
//!
//! With a budget, bisection finds the `α` at which the soft plan costs it. Soft ranks are rounded
//! to steps, and the budget is allocated in proportion to them. Without a budget `α` is zero; the
//! objective is linear in `p`, so the minimum is the level with the least `E + λ ĉ R`.
//!
//! With energy measured per byte, `ĉ R` is its slope times the bytes of a level. The term changes
//! the plan under a parameter budget if the dense form is more expensive per parameter than
//! factors, and cancels under a byte budget.

use super::ladder::{Currency, Ladder};
use super::{Allocator, waterfill};
use crate::options::MeasuredEnergy;
use crate::plan::unit::Unit;
use crate::plan::{Evidence, PlanError};

/// Weight `λ` of the energy term.
pub const ENERGY_WEIGHT: f64 = 0.005;

const FIXED_TOTAL_NOTE: &str = "diffplan: the budget decides the total, and the energy term nothing: it is in \
     proportion to parameters, and the price that meets the budget makes up for it; without a budget energy decides";

const ENERGY_BETWEEN_UNITS_NOTE: &str = "diffplan: the budget decides the total, and the energy term between units alone: it is in proportion \
     to bytes, of which the dense form has other ones for each number than factors have; without a budget energy decides";

pub(super) fn budget_note(evidence: &Evidence, currency: Currency) -> &'static str {
    match (&evidence.energy, currency) {
        (None, _) | (Some(_), Currency::Bytes) => FIXED_TOTAL_NOTE,
        (Some(_), Currency::Parameters | Currency::Rank) => ENERGY_BETWEEN_UNITS_NOTE,
    }
}

pub(super) fn energy_note(energy: &MeasuredEnergy) -> String {
    let interval = match energy.interval {
        Some((low, high)) if low > 0.0 => format!(" (95 % interval {low:.3e} to {high:.3e})"),
        Some((low, high)) => format!(
            " (95 % interval {low:.3e} to {high:.3e}: it may be none, and more pairs would tell)"
        ),
        None => " (of one pair, without an interval)".to_owned(),
    };
    format!(
        "diffplan: a token costs {:.3e} J for each byte that it touches{interval} and {:.3e} J beside, over {} pairs by {}; \
         records sha256 {}",
        energy.joules_per_byte, energy.joules_per_token, energy.pairs, energy.sensor, energy.digest
    )
}

pub(super) const ENERGY_TOTAL_NOTE: &str = "diffplan: without a budget the energy term decided the total, a joule per token \
     weighing as much as 0.005 of a matrix's energy lost";

/// Real machines take about 1e-10.
const MAX_JOULES_PER_BYTE: f64 = 1.0;

const RANK_LEVELS: usize = 16;
const ITERATIONS: usize = 64;
const LEARNING_RATE: f64 = 16.0;
/// Steps of a bisection over twelve powers of ten.
const BISECTION_STEPS: usize = 32;

pub(super) fn losses(
    units: &[Unit],
    ladders: &[Ladder],
    evidence: &Evidence,
) -> Result<Vec<Vec<f64>>, PlanError> {
    match evidence.whitened.as_ref().or(evidence.spectra.as_ref()) {
        Some(spectra) => waterfill::from_spectra(Allocator::DiffPlan, units, ladders, spectra),
        None => Err(PlanError::no_evidence(
            Allocator::DiffPlan,
            "the spectra of the weights or of the outputs",
            "give a text with `calibration`",
        )),
    }
}

/// Returns `ĉ R` of every unit at every rung in joules per token. Decoding reads every element
/// once. With energy measured per byte it is the bytes of the rung times the slope; otherwise the
/// dense model's energy per token is distributed by elements, `in + out` for a rank.
pub(super) fn joules(
    units: &[Unit],
    ladders: &[Ladder],
    evidence: &Evidence,
) -> Result<Vec<Vec<f64>>, PlanError> {
    let allocator = Allocator::DiffPlan;
    let wrong = |what: &str, expected: &str, found: String| {
        PlanError::invalid_evidence(allocator, what, expected, found)
    };
    match (&evidence.energy, evidence.tokens_per_joule) {
        (None, None) => Err(PlanError::no_evidence(
            allocator,
            "the tokens per joule of the dense model on the target, from which it estimates what a rank costs",
            "measure energy there and give `energy`, or `tokens_per_joule`",
        )),
        (Some(_), Some(_)) => Err(wrong(
            "energy",
            "either `energy` or `tokens_per_joule`",
            "both".into(),
        )),
        (Some(energy), None) => {
            let slope = energy.joules_per_byte;
            if !(slope > 0.0 && slope <= MAX_JOULES_PER_BYTE) {
                let expected = "a number above 0 and at most 1";
                return Err(wrong("joules per byte", expected, slope.to_string()));
            }
            let of = |ladder: &Ladder| {
                ladder
                    .rungs
                    .iter()
                    .map(|r| slope * r.bytes as f64)
                    .collect()
            };
            Ok(ladders.iter().map(of).collect())
        }
        (None, Some(tokens)) => {
            if !(tokens.is_finite() && tokens > 0.0) {
                let expected = "a finite number above 0";
                return Err(wrong("tokens per joule", expected, tokens.to_string()));
            }
            let all: f64 = units.iter().map(|u| u.parameters() as f64).sum();
            let of = |(unit, ladder): (&Unit, &Ladder)| {
                let rank = (unit.outs + unit.cols) as f64 / all / tokens;
                ladder.rungs.iter().map(|r| rank * r.level).collect()
            };
            Ok(units.iter().zip(ladders).map(of).collect())
        }
    }
}

/// Ties go to the lower rung.
pub(super) fn least_energy_rungs(
    ladders: &[Ladder],
    losses: &[Vec<f64>],
    joules: &[Vec<f64>],
) -> Vec<usize> {
    let units = ladders.iter().zip(losses).zip(joules);
    let least = units.map(|((ladder, losses), joules)| {
        let weight = |rung: usize| losses[rung] + ENERGY_WEIGHT * joules[rung];
        let rungs = 0..ladder.rungs.len();
        rungs
            .min_by(|&a, &b| weight(a).total_cmp(&weight(b)))
            .unwrap_or(0)
    });
    least.collect()
}

#[derive(Clone, Copy)]
struct RankLevel {
    loss: f64,
    /// Cost relative to the mean cost of all highest rungs.
    cost: f64,
    rank: f64,
    /// `λ ĉ R`.
    energy: f64,
}

/// Returns the soft rank of every unit at the price where the total cost equals the budget.
pub(super) fn soft_levels(
    ladders: &[Ladder],
    losses: &[Vec<f64>],
    joules: &[Vec<f64>],
    budget: u64,
) -> Vec<f64> {
    let highest = |l: &Ladder| l.cost(l.rungs.len() - 1) as f64;
    let scale = ladders.iter().map(highest).sum::<f64>() / ladders.len() as f64;
    let units: Vec<Vec<RankLevel>> = ladders
        .iter()
        .zip(losses)
        .zip(joules)
        .map(|((ladder, losses), joules)| {
            let last = ladder.rungs.len() - 1;
            let count = RANK_LEVELS.min(last + 1);
            let level = |n: usize| {
                let rung = if n == 0 { 0 } else { n * last / (count - 1) };
                RankLevel {
                    loss: losses[rung],
                    cost: ladder.cost(rung) as f64 / scale,
                    rank: ladder.rungs[rung].level,
                    energy: ENERGY_WEIGHT * joules[rung],
                }
            };
            (0..count).map(level).collect()
        })
        .collect();
    let soft = |price: f64| -> (Vec<f64>, f64) {
        let mut cost = 0.0;
        let ranks = units.iter().map(|levels| {
            let p = optimise_probabilities(levels, price);
            let mean = |of: fn(&RankLevel) -> f64| -> f64 {
                levels.iter().zip(&p).map(|(l, p)| p * of(l)).sum()
            };
            cost += mean(|l| l.cost);
            mean(|l| l.rank)
        });
        (ranks.collect(), cost)
    };
    let affordable = budget as f64 / scale;
    let (ranks, cost) = soft(0.0);
    if cost <= affordable {
        return ranks;
    }
    let (mut low, mut high) = (-6.0_f64, 6.0_f64);
    for _ in 0..BISECTION_STEPS {
        let middle = 0.5 * (low + high);
        if soft(10.0_f64.powf(middle)).1 > affordable {
            low = middle;
        } else {
            high = middle;
        }
    }
    soft(10.0_f64.powf(high)).0
}

fn optimise_probabilities(levels: &[RankLevel], price: f64) -> Vec<f64> {
    let objective: Vec<f64> = levels
        .iter()
        .map(|l| l.loss + price * l.cost + l.energy)
        .collect();
    let mut logits = vec![0.0; levels.len()];
    for _ in 0..ITERATIONS {
        let p = softmax(&logits);
        let mean: f64 = p.iter().zip(&objective).map(|(p, f)| p * f).sum();
        for ((logit, p), f) in logits.iter_mut().zip(&p).zip(&objective) {
            *logit -= LEARNING_RATE * p * (f - mean);
        }
    }
    softmax(&logits)
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut p: Vec<f64> = logits.iter().map(|z| (z - largest).exp()).collect();
    let sum: f64 = p.iter().sum();
    for p in &mut p {
        *p /= sum;
    }
    p
}

#[cfg(test)]
mod tests;
