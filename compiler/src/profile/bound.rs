//! Cheap lower bound on the loss of low-rank factors, to select projections worth factorising.
//!
//! The best approximation of rank `k` of some rows loses at most the loss of the whole matrix's
//! best approximation on them (Eckart and Young 1936). With rows weighted by the root of their
//! error cost, half of the energy after the `k`-th singular value is nats per token. Rounding adds
//! at least `4^-b` of the components' energy per factor of `b` bits. Codes lose the value of the
//! curve, times `4^-d` for `d` more bits per weight. So a direction pays if its share of the energy
//! exceeds `1.386 b (m + n) / (m n)` of the loss.

use std::fmt;

use htc_formats::DType;

use super::curves::{Looked, Read, failed};
use crate::math::{Gauge, Weight, gauged_singular_values};
use crate::plan::{self, Form, Member};
use crate::request::Work;
use crate::unit::UnitError;

const TYPES: [DType; 5] = [
    DType::F16,
    DType::Q8_0,
    DType::Q6K,
    DType::Q5_0,
    DType::IQ4NL,
];

const MOST_ROWS: usize = 1024;

const MOST_PRODUCTS: usize = 1 << 34;

/// Fraction of the sampled rows up to which ranks can be bounded.
const TOLD: f64 = 0.8;

/// Multiplier for the loss of factors: components left out are missing for every token alike, so
/// losses add up to more than their sum.
pub(super) const TIMES: f64 = 2.0;

/// Factors are evaluated below this multiple of the codes' loss.
const MARGIN: f64 = 1.25;

/// Summary of the low-rank candidates.
#[derive(Debug, Default)]
pub(super) struct Closest {
    looked: usize,
    in_earnest: usize,
    closest: Option<(String, f64)>,
}

impl Closest {
    /// Adds a candidate with the ratio of its bound to the codes' loss, if known.
    pub fn add(&mut self, members: &[Member], found: Option<f64>) {
        let Some(found) = found else {
            return;
        };
        self.looked += 1;
        self.in_earnest += usize::from(found < MARGIN);
        if self
            .closest
            .as_ref()
            .is_none_or(|(_, least)| found < *least)
        {
            self.closest = Some((plan::label(members), found));
        }
    }
}

impl fmt::Display for Closest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Closest {
            looked, in_earnest, ..
        } = self;
        write!(
            f,
            "low rank: {in_earnest} of {looked} slots and groups of slots looked at in earnest"
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
    let wanted = (largest as f64 / TOLD).ceil() as usize;
    let most = MOST_PRODUCTS / (cols * cols).max(1);
    let most = most.min(MOST_ROWS).min(rows).min(cols.saturating_sub(1));
    wanted.min(most)
}

/// Energy of projections by component.
pub(super) struct Spectrum {
    /// Loss per component in nats per token, decreasing.
    energies: Vec<f64>,
    told: usize,
}

/// Result of the bound.
pub(super) struct Screened {
    /// Forms that may pay.
    pub forms: Vec<Form>,
    /// Smallest ratio of the bound to the loss of codes of equal size.
    pub closest: f64,
}

impl Screened {
    /// Returns the largest rank.
    pub fn largest(&self) -> usize {
        self.forms.iter().filter_map(Form::rank).max().unwrap_or(1)
    }
}

impl Spectrum {
    /// Computes the spectrum of projections with the same input; `None` if their costs are unknown.
    pub fn of(looked: Looked<'_>, reads: &[Read<'_>]) -> Result<Option<Spectrum>, UnitError> {
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
            let work = Work {
                sampled_rows,
                ..looked.treatment.effort().work()
            };
            let sample = read.sample(looked, work)?;
            values.extend(sample.weighed(&sample.values, cost));
            seen += sample.rows;
        }
        let weight = Weight {
            rows: seen,
            cols,
            values: &values,
        };
        let failed = |error| failed(first.tensor, error);
        // The loss is measured without shrinkage.
        let gauge = Gauge::whiten(moment, 0.0).map_err(failed)?;
        let values =
            gauged_singular_values(weight, &gauge, looked.treatment.algebra()).map_err(failed)?;
        let told = if seen >= outs {
            values.len()
        } else {
            (TOLD * seen as f64) as usize
        };
        Ok(Some(Spectrum {
            energies: values.iter().map(|value| 0.5 * value * value).collect(),
            told,
        }))
    }

    /// Returns the factors that may lose less than codes of equal size; `codes` is the Pareto front
    /// in bytes and nats. `None` if codes lose nothing.
    pub fn screen(&self, members: &[Member], codes: &[(u64, f64)]) -> Option<Screened> {
        let cols = members.first()?.cols;
        let outs: usize = members.iter().map(|member| member.rows).sum();
        let before: u64 = members.iter().map(Member::bytes).sum();
        let numbers = outs as f64 * cols as f64;
        let lossy: Vec<(u64, f64)> = codes.iter().copied().filter(|of| of.1 > 0.0).collect();
        let all: f64 = self.energies.iter().sum();
        let (mut closest, mut best) = (f64::INFINITY, Vec::new());
        let mut tail = all;
        let mut dropped = 0;
        lossy.first()?;
        for rank in ranks(outs.min(cols).min(self.told)) {
            tail -= self.energies[dropped..rank].iter().sum::<f64>();
            dropped = rank;
            for form in forms(members, rank) {
                let bytes = form.bytes(members);
                if bytes >= before {
                    continue;
                }
                let rounded: f64 = form.factor_types().map(rounding).iter().sum();
                let bound = tail.max(0.0) + rounded * (all - tail);
                let codes = lost_by_codes(&lossy, numbers, bytes);
                let found = TIMES * bound / codes;
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
        Some(Screened {
            forms: best.into_iter().map(|(_, _, form)| form).collect(),
            closest,
        })
    }
}

/// Returns the minimum fraction of a component's energy lost by rounding.
pub(super) fn rounding(dtype: DType) -> f64 {
    let block = dtype.block_len();
    let bits = 8.0 * dtype.row_bytes(block).unwrap_or(0) as f64 / block as f64;
    4f64.powf(-bits)
}

/// Loss of the largest plan that fits, or of the smallest, times a quarter per additional bit per
/// weight.
fn lost_by_codes(codes: &[(u64, f64)], numbers: f64, bytes: u64) -> f64 {
    let within = codes.iter().rev().find(|(of, _)| *of <= bytes);
    let Some((of, loss)) = within.or(codes.first()) else {
        return 0.0;
    };
    let bits = 8.0 * (bytes as f64 - *of as f64) / numbers;
    loss * 4f64.powf(-bits)
}

/// Candidate ranks: steps of 8 to 32, then 48 and 64, steps of 32 to 256, then eight per octave.
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

fn forms(members: &[Member], rank: usize) -> Vec<Form> {
    let cols = members.first().map_or(0, |member| member.cols);
    let mut forms: Vec<Form> = Vec::with_capacity(TYPES.len());
    for dtype in TYPES {
        let form = Form::of_factors(members.len() > 1, rank, (dtype, cols));
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;
    use htc_formats::model::{MatrixId, Slot};

    fn member(slot: Slot, rows: usize, cols: usize) -> Member {
        Member {
            matrix: MatrixId::Slot { layer: 1, slot },
            rows,
            cols,
            source_type: DType::F16,
        }
    }

    fn codes(members: &[Member], energy: f64) -> Vec<(u64, f64)> {
        let numbers: u64 = members.iter().map(Member::parameters).sum();
        let of = |bits: u64| (numbers * bits / 8, energy * 4f64.powi(-(bits as i32)));
        let kept = members.iter().map(Member::bytes).sum();
        (2..=8).map(of).chain([(kept, 0.0)]).collect()
    }

    fn screened(members: &[Member], energies: Vec<f64>, energy: f64) -> Screened {
        let told = energies.len();
        let spectrum = Spectrum { energies, told };
        spectrum.screen(members, &codes(members, energy)).unwrap()
    }

    #[test]
    fn only_low_rank_weights_pass_the_bound() {
        let one = [member(Slot::Q, 512, 512)];
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
        // Feedback compensates: the codes' energy is less than that of the outputs.
        let mut of_rank = vec![0.0; 512];
        of_rank[..32].fill(16.0);
        let found = screened(&one, of_rank.clone(), 512.0);
        let ranks: Vec<usize> = found.forms.iter().filter_map(Form::rank).collect();
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
            member(Slot::Q, 128, 512),
            member(Slot::K, 128, 512),
            member(Slot::V, 128, 512),
        ];
        let mut energies = vec![0.0; 384];
        energies[..96].fill(4.0);
        let together = screened(&group, energies.clone(), 384.0);
        assert!(!together.forms.is_empty());
        assert!(
            together
                .forms
                .iter()
                .all(|form| matches!(form, Form::SharedBasis { .. }))
        );
        let alone = screened(&group[..1], energies[..128].to_vec(), 384.0);
        assert!(alone.closest > together.closest);
    }

    #[test]
    fn energy_threshold_follows_the_formula() {
        let (m, n, bits) = (4096.0, 1024.0, 8.5);
        let one = [member(Slot::Q, 4096, 1024)];
        let all = codes(&one, 1.0);
        let lossy: Vec<(u64, f64)> = all.iter().copied().filter(|of| of.1 > 0.0).collect();
        let base = lossy[2];
        let more = (bits * (m + n) / 8.0) as u64;
        let gained = 1.0 - lost_by_codes(&lossy, m * n, base.0 + more) / base.1;
        let law = 1.386 * bits * (m + n) / (m * n);
        assert!((gained / law - 1.0).abs() < 0.02, "{gained} {law}");
        let less = lost_by_codes(&lossy, m * n, lossy[0].0 / 2);
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
        assert_eq!(rows_for_bound(4096, 4096), MOST_ROWS);
        assert!(rows_for_bound(4096, 14336) < 100);
        assert_eq!(rows_for_bound(8, 256), 8);
        assert!(rows_for_bound(4096, 64) < 64);
    }

    #[test]
    fn summary_names_the_closest_candidate() {
        let one = [member(Slot::Q, 64, 64)];
        let mut closest = Closest::default();
        closest.add(&one, None);
        closest.add(&one, Some(4.26));
        let text = closest.to_string();
        assert!(text.starts_with("low rank: 0 of 1 slots"), "{text}");
        assert!(
            text.contains("layer 1: q, loses at least 4.3 times"),
            "{text}"
        );
        closest.add(&one, Some(0.5));
        assert!(
            closest
                .to_string()
                .ends_with("1 of 2 slots and groups of slots looked at in earnest")
        );
    }
}
