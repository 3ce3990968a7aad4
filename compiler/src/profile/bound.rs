//! Cheap lower bound on the loss of low-rank factors, to select projections worth factorising.
//!
//! The best approximation of rank `k` of some rows loses at most the loss of the whole matrix's
//! best approximation on them (Eckart and Young 1936). With rows weighted by the root of their
//! error cost, half of the energy after the `k`-th singular value is nats per token. Rounding adds
//! at least `4^-b` of the components' energy per factor of `b` bits. Codes lose the value of the
//! curve, times `4^-d` for `d` more bits per weight.

use std::fmt;

use htc_formats::DType;

use super::curves::{CurveInputs, MatrixCosts};
use crate::math::{Gauge, Weight, gauged_singular_values};
use crate::options::EffortSettings;
use crate::plan::{self, MatrixForm, UnitMatrix};
use crate::unit::MakeError;

const FACTOR_TYPES: [DType; 5] = [
    DType::F16,
    DType::Q8_0,
    DType::Q6K,
    DType::Q5_0,
    DType::IQ4NL,
];

const MAX_ROWS: usize = 1024;

const MAX_PRODUCTS: usize = 1 << 34;

/// Ranks can be bounded up to it.
const COVERED_RANKS: f64 = 0.8;

/// Components left out are missing for every token alike.
pub(super) const FACTOR_LOSS_MULTIPLIER: f64 = 2.0;

/// Factors are evaluated below this multiple of the codes' loss.
const MARGIN: f64 = 1.25;

#[derive(Debug, Default)]
pub(super) struct LowRankSummary {
    candidates: usize,
    evaluated: usize,
    closest: Option<(String, f64)>,
}

impl LowRankSummary {
    /// Adds a candidate with the ratio of its bound to the codes' loss, if known.
    pub fn add(&mut self, members: &[UnitMatrix], found: Option<f64>) {
        let Some(found) = found else {
            return;
        };
        self.candidates += 1;
        self.evaluated += usize::from(found < MARGIN);
        let closest = self.closest.as_ref();
        if closest.is_none_or(|(_, least)| found < *least) {
            self.closest = Some((plan::label(members), found));
        }
    }
}

impl fmt::Display for LowRankSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (evaluated, candidates) = (self.evaluated, self.candidates);
        write!(
            f,
            "low rank: evaluated {evaluated} of {candidates} candidates"
        )?;
        match &self.closest {
            Some((label, found)) if *found >= MARGIN => write!(
                f,
                "; the closest, {label}, loses at least {found:.1} times what codes lose in as many bytes"
            ),
            _ => Ok(()),
        }
    }
}

/// Returns the number of sampled rows: enough for every rank at which factors pay, within the cost
/// limit, and less than the input width.
pub(crate) fn rows_for_bound(rows: usize, cols: usize) -> usize {
    let largest = rows * cols / (rows + cols).max(1);
    let target = (largest as f64 / COVERED_RANKS).ceil() as usize;
    let most = MAX_PRODUCTS / (cols * cols).max(1);
    let most = most.min(MAX_ROWS).min(rows).min(cols.saturating_sub(1));
    target.min(most)
}

/// Energy of projections by component.
pub(super) struct EnergySpectrum {
    /// In nats per token, decreasing.
    energies: Vec<f64>,
    covered_ranks: usize,
}

pub(super) struct LowRankCandidates {
    /// Forms that may pay.
    pub forms: Vec<MatrixForm>,
    /// Smallest ratio of the bound to the loss of codes.
    pub closest: f64,
}

impl LowRankCandidates {
    pub fn largest(&self) -> usize {
        self.forms
            .iter()
            .filter_map(MatrixForm::rank)
            .max()
            .unwrap_or(1)
    }
}

impl EnergySpectrum {
    /// Computes the spectrum of projections with the same input.
    pub fn of_projections(
        inputs: CurveInputs<'_>,
        reads: &[MatrixCosts<'_>],
    ) -> Result<Option<EnergySpectrum>, MakeError> {
        let first = reads.first().and_then(|read| Some((read, read.moment()?)));
        let Some((first, moment)) = first else {
            return Ok(None);
        };
        let outs: usize = reads.iter().map(|read| read.member.rows).sum();
        let cols = first.member.cols;
        let target = rows_for_bound(outs, cols);
        let (mut seen, mut values) = (0, Vec::new());
        for read in reads {
            let [cost] = &read.costs[..] else {
                return Ok(None);
            };
            let sampled_rows = (target * read.member.rows / outs.max(1)).max(1);
            let work = EffortSettings {
                sampled_rows,
                ..inputs.treatment.effort.settings()
            };
            let sample = read.sample(inputs, work)?;
            values.extend(sample.weighted_rows(&sample.values, cost));
            seen += sample.rows;
        }
        let weight = Weight {
            rows: seen,
            cols,
            values: &values,
        };
        let failed = |error| MakeError::of_tensor(&first.tensor.name, error);
        // The loss is measured without shrinkage.
        let gauge = Gauge::whiten(moment, 0.0).map_err(failed)?;
        let values =
            gauged_singular_values(weight, &gauge, inputs.treatment.algebra).map_err(failed)?;
        let covered_ranks = if seen >= outs {
            values.len()
        } else {
            (COVERED_RANKS * seen as f64) as usize
        };
        Ok(Some(EnergySpectrum {
            energies: values.iter().map(|value| 0.5 * value * value).collect(),
            covered_ranks,
        }))
    }

    /// Returns the factors that may lose less than codes of equal size; `codes` is the Pareto front
    /// in bytes and nats.
    pub fn screen(
        &self,
        members: &[UnitMatrix],
        codes: &[(u64, f64)],
    ) -> Option<LowRankCandidates> {
        let cols = members.first()?.cols;
        let outs: usize = members.iter().map(|member| member.rows).sum();
        let before: u64 = members.iter().map(UnitMatrix::bytes).sum();
        let numbers = outs as f64 * cols as f64;
        let lossy: Vec<(u64, f64)> = codes.iter().copied().filter(|of| of.1 > 0.0).collect();
        let all: f64 = self.energies.iter().sum();
        let (mut closest, mut best) = (f64::INFINITY, Vec::new());
        let mut tail = all;
        let mut dropped = 0;
        lossy.first()?;
        for rank in ranks(outs.min(cols).min(self.covered_ranks)) {
            tail -= self.energies[dropped..rank].iter().sum::<f64>();
            dropped = rank;
            for form in forms(members, rank) {
                let bytes = form.bytes(members);
                if bytes >= before {
                    continue;
                }
                let rounded: f64 = form.factor_types().map(rounding_loss).iter().sum();
                let bound = tail.max(0.0) + rounded * (all - tail);
                let codes = code_loss(&lossy, numbers, bytes);
                let found = FACTOR_LOSS_MULTIPLIER * bound / codes;
                closest = closest.min(found);
                if found < MARGIN {
                    best.push((bytes, bound, form));
                }
            }
        }
        best.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        plan::retain_falling(&mut best, |(_, bound, _)| *bound);
        Some(LowRankCandidates {
            forms: best.into_iter().map(|(_, _, form)| form).collect(),
            closest,
        })
    }
}

/// Returns the minimum fraction of a component's energy lost by rounding.
pub(super) fn rounding_loss(dtype: DType) -> f64 {
    let block = dtype.block_len();
    let bits = 8.0 * dtype.row_bytes(block).unwrap_or(0) as f64 / block as f64;
    4f64.powf(-bits)
}

/// Loss of the largest plan that fits, or of the smallest, times a quarter per additional bit per
/// weight.
fn code_loss(codes: &[(u64, f64)], numbers: f64, bytes: u64) -> f64 {
    let within = codes.iter().rev().find(|(of, _)| *of <= bytes);
    let Some((of, loss)) = within.or(codes.first()) else {
        return 0.0;
    };
    let bits = 8.0 * (bytes as f64 - *of as f64) / numbers;
    loss * 4f64.powf(-bits)
}

fn ranks(limit: usize) -> impl Iterator<Item = usize> {
    let mut rank = 0_usize;
    std::iter::from_fn(move || {
        rank += match rank {
            0..32 => 8,
            32..64 => 16,
            64..256 => 32,
            _ => 1 << (rank.ilog2() - 3),
        };
        (rank <= limit).then_some(rank)
    })
}

/// Returns the bytes of the smallest factors that are evaluated for matrices with the same input;
/// `None` if they are too small to have factors.
pub(crate) fn smallest_factor_bytes(members: &[UnitMatrix]) -> Option<u64> {
    let cols = members.first()?.cols;
    let outs: usize = members.iter().map(|member| member.rows).sum();
    let rank = ranks(outs.min(cols)).next()?;
    let forms = forms(members, rank);
    forms.iter().map(|form| form.bytes(members)).min()
}

fn forms(members: &[UnitMatrix], rank: usize) -> Vec<MatrixForm> {
    let cols = members.first().map_or(0, |member| member.cols);
    let mut forms: Vec<MatrixForm> = Vec::with_capacity(FACTOR_TYPES.len());
    for dtype in FACTOR_TYPES {
        let form = MatrixForm::with_factors(members.len() > 1, rank, dtype, cols);
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

#[cfg(test)]
mod tests;
