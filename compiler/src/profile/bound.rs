//! Cheap lower bound on the loss of low-rank factors, to select projections worth factorising.
//!
//! The best approximation of rank `k` of some rows loses at most the loss of the whole matrix's
//! best approximation on them (Eckart and Young 1936). With rows weighted by the root of their
//! error cost, half of the energy after the `k`-th singular value is nats per token. Rounding adds
//! at least `4^-b` of the components' energy per factor of `b` bits. Codes lose the value of the
//! curve, times `4^-d` for `d` more bits per weight.

use std::fmt;

use htc_formats::DType;

use super::curves::{CurveInputs, MatrixCosts, factorise_error};
use crate::math::{Gauge, Weight, gauged_singular_values};
use crate::options::EffortSettings;
use crate::plan::{self, MatrixForm, UnitMatrix};
use crate::unit::UnitError;

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
        if self
            .closest
            .as_ref()
            .is_none_or(|(_, least)| found < *least)
        {
            self.closest = Some((plan::label(members), found));
        }
    }
}

impl fmt::Display for LowRankSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LowRankSummary {
            candidates: looked,
            evaluated: in_earnest,
            ..
        } = self;
        write!(
            f,
            "low rank: {in_earnest} of {looked} projections and groups of projections looked at in earnest"
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
    let wanted = (largest as f64 / COVERED_RANKS).ceil() as usize;
    let most = MAX_PRODUCTS / (cols * cols).max(1);
    let most = most.min(MAX_ROWS).min(rows).min(cols.saturating_sub(1));
    wanted.min(most)
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
        looked: CurveInputs<'_>,
        reads: &[MatrixCosts<'_>],
    ) -> Result<Option<EnergySpectrum>, UnitError> {
        let first = reads.first().and_then(|read| Some((read, read.moment()?)));
        let Some((first, moment)) = first else {
            return Ok(None);
        };
        let outs: usize = reads.iter().map(|read| read.member.rows).sum();
        let cols = first.member.cols;
        let wanted = rows_for_bound(outs, cols);
        let (mut seen, mut values) = (0, Vec::new());
        for read in reads {
            let [cost] = &read.costs[..] else {
                return Ok(None);
            };
            let sampled_rows = (wanted * read.member.rows / outs.max(1)).max(1);
            let work = EffortSettings {
                sampled_rows,
                ..looked.treatment.effort().settings()
            };
            let sample = read.sample(looked, work)?;
            values.extend(sample.weighted_rows(&sample.values, cost));
            seen += sample.rows;
        }
        let weight = Weight {
            rows: seen,
            cols,
            values: &values,
        };
        let failed = |error| factorise_error(first.tensor, error);
        // The loss is measured without shrinkage.
        let gauge = Gauge::whiten(moment, 0.0).map_err(failed)?;
        let values =
            gauged_singular_values(weight, &gauge, looked.treatment.algebra()).map_err(failed)?;
        let told = if seen >= outs {
            values.len()
        } else {
            (COVERED_RANKS * seen as f64) as usize
        };
        Ok(Some(EnergySpectrum {
            energies: values.iter().map(|value| 0.5 * value * value).collect(),
            covered_ranks: told,
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
        let mut least = f64::INFINITY;
        best.retain(|(_, bound, _)| {
            let better = *bound < least;
            least = least.min(*bound);
            better
        });
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
mod tests {
    use super::*;
    use htc_formats::model::{MatrixId, ProjectionKind};

    fn member(projection: ProjectionKind, rows: usize, cols: usize) -> UnitMatrix {
        UnitMatrix {
            matrix: MatrixId::Projection {
                layer: 1,
                projection,
            },
            rows,
            cols,
            source_type: DType::F16,
        }
    }

    fn codes(members: &[UnitMatrix], energy: f64) -> Vec<(u64, f64)> {
        let numbers: u64 = members.iter().map(UnitMatrix::parameters).sum();
        let of = |bits: u64| (numbers * bits / 8, energy * 4f64.powi(-(bits as i32)));
        let kept = members.iter().map(UnitMatrix::bytes).sum();
        (2..=8).map(of).chain([(kept, 0.0)]).collect()
    }

    fn screened(members: &[UnitMatrix], energies: Vec<f64>, energy: f64) -> LowRankCandidates {
        let told = energies.len();
        let spectrum = EnergySpectrum {
            energies,
            covered_ranks: told,
        };
        spectrum.screen(members, &codes(members, energy)).unwrap()
    }

    #[test]
    fn only_low_rank_weights_pass_the_bound() {
        let one = [member(ProjectionKind::Q, 512, 512)];
        let flat = screened(&one, vec![1.0; 512], 512.0);
        assert!(
            flat.forms.is_empty() && flat.closest > 1.3,
            "{}",
            flat.closest
        );
        let falls = |i: usize| (1.0 - i as f64 / 512.0).powi(2);
        let random: Vec<f64> = (0..512).map(falls).collect();
        let energy: f64 = random.iter().sum();
        assert!(screened(&one, random, energy).forms.is_empty());
        let mut of_rank = vec![0.0; 512];
        of_rank[..32].fill(16.0);
        let found = screened(&one, of_rank.clone(), 512.0);
        let ranks: Vec<usize> = found.forms.iter().filter_map(MatrixForm::rank).collect();
        assert!(found.closest < 0.01, "{}", found.closest);
        assert_eq!(ranks.last(), Some(&32));
        assert!(ranks.iter().filter(|rank| **rank == 32).count() >= 4);
        of_rank[32..].fill(1e-3);
        let tailed = screened(&one, of_rank, 512.0);
        assert!(tailed.largest() > 32 && tailed.largest() < 256);
    }

    #[test]
    fn shared_basis_can_pay_where_single_factors_do_not() {
        let group = [
            member(ProjectionKind::Q, 128, 512),
            member(ProjectionKind::K, 128, 512),
            member(ProjectionKind::V, 128, 512),
        ];
        let mut energies = vec![0.0; 384];
        energies[..96].fill(4.0);
        let together = screened(&group, energies.clone(), 384.0);
        assert!(!together.forms.is_empty());
        assert!(
            together
                .forms
                .iter()
                .all(|form| matches!(form, MatrixForm::SharedBasis { .. }))
        );
        let alone = screened(&group[..1], energies[..128].to_vec(), 384.0);
        assert!(alone.closest > together.closest);
    }

    #[test]
    fn energy_threshold_follows_the_formula() {
        let (m, n, bits) = (4096.0, 1024.0, 8.5);
        let one = [member(ProjectionKind::Q, 4096, 1024)];
        let all = codes(&one, 1.0);
        let lossy: Vec<(u64, f64)> = all.iter().copied().filter(|of| of.1 > 0.0).collect();
        let base = lossy[2];
        let more = (bits * (m + n) / 8.0) as u64;
        let gained = 1.0 - code_loss(&lossy, m * n, base.0 + more) / base.1;
        let law = 1.386 * bits * (m + n) / (m * n);
        assert!((gained / law - 1.0).abs() < 0.02, "{gained} {law}");
        let less = code_loss(&lossy, m * n, lossy[0].0 / 2);
        assert!((less / lossy[0].1 - 4.0).abs() < 1e-9);
    }

    #[test]
    fn candidate_ranks_are_few_and_block_aligned() {
        let found: Vec<usize> = ranks(1100).collect();
        let small = [8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288];
        assert_eq!(found[..13], small);
        assert!(found.len() < 32 && found.windows(2).all(|pair| pair[0] < pair[1]));
        let fits = |rank: &&usize| **rank > 48;
        assert!(found.iter().filter(fits).all(|rank| rank % 32 == 0));
        assert_eq!(ranks(7).count(), 0);
    }

    #[test]
    fn bound_samples_few_rows() {
        assert_eq!(rows_for_bound(256, 256), 160);
        assert_eq!(rows_for_bound(4096, 4096), MAX_ROWS);
        assert!(rows_for_bound(4096, 14336) < 100);
        assert_eq!(rows_for_bound(8, 256), 8);
        assert!(rows_for_bound(4096, 64) < 64);
    }

    #[test]
    fn summary_names_the_closest_candidate() {
        let one = [member(ProjectionKind::Q, 64, 64)];
        let mut closest = LowRankSummary::default();
        closest.add(&one, None);
        closest.add(&one, Some(4.26));
        let text = closest.to_string();
        assert!(text.starts_with("low rank: 0 of 1 projections"), "{text}");
        assert!(
            text.contains("layer 1: q, loses at least 4.3 times"),
            "{text}"
        );
        closest.add(&one, Some(0.5));
        assert!(
            closest
                .to_string()
                .ends_with("1 of 2 projections and groups of projections looked at in earnest")
        );
    }
}
