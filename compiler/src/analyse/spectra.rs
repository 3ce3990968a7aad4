//! Singular values of every projection, and the cost of shared bases.

use htc_formats::model::{InputGroup, ProjectionKind};
use htc_formats::source::ModelFile;

use super::record::{
    SharedBasisSpectrum, SharedMember, SinkCoverage, Spectra, Spectrum, Tails, rounded,
};
use crate::calibrate::Calibration;
use crate::math::{
    FactoriseError, Host, SharedComponents, coverage, random_coverage, relative_tail,
};
use crate::options::{GaugeKind, Treatment};
use crate::order::PermutedSource;
use crate::plan::allocate::lost_energy;
use crate::plan::{ModelFileTypes, Unit, UnitMatrix};
use crate::unit::MakeError;
use crate::unit::{ModelTreatment, spectrum};

pub(super) const ENERGIES: [f64; 5] = [0.5, 0.75, 0.9, 0.95, 0.99];

pub(super) const FRACTIONS: [f64; 8] = [
    1.0 / 16.0,
    1.0 / 8.0,
    1.0 / 4.0,
    3.0 / 8.0,
    1.0 / 2.0,
    5.0 / 8.0,
    3.0 / 4.0,
    7.0 / 8.0,
];

const COVERAGE_FRACTIONS: [f64; 2] = [1.0 / 4.0, 1.0 / 2.0];

const STEPS: usize = 32;

/// Rounding of the eigenvalues of a Gram matrix.
const ROUNDING: f64 = 1e-12;

pub(super) fn empty() -> Spectra {
    Spectra {
        energies: ENERGIES.to_vec(),
        fractions: FRACTIONS.to_vec(),
        projections: Vec::new(),
        groups: Vec::new(),
    }
}

/// Returns the projections of every layer grouped by common input, in execution order.
pub(super) fn units(source: &ModelFile) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for projection in source.spec().projections() {
        let (layer, types) = (projection.layer, ModelFileTypes(source));
        let Some(member) = UnitMatrix::new(projection.matrix(), &source.hyper, &types) else {
            continue;
        };
        match units.last_mut() {
            Some(unit)
                if unit.layer == layer
                    && unit.members.iter().all(|m| {
                        let group = m.projection().and_then(ProjectionKind::group);
                        group.is_some() && group == projection.kind.group()
                    }) =>
            {
                unit.members.push(member);
                unit.outs += member.rows;
                unit.rank_limit = unit.outs.min(member.cols);
            }
            _ => units.push(single_member_unit(layer, member)),
        }
    }
    units
}

fn single_member_unit(layer: usize, member: UnitMatrix) -> Unit {
    Unit {
        layer,
        members: vec![member],
        outs: member.rows,
        cols: member.cols,
        rank_limit: member.rows.min(member.cols),
    }
}

pub(super) struct Gauges<'a> {
    none: ModelTreatment<'a>,
    calibrated: Option<[ModelTreatment<'a>; 2]>,
}

impl<'a> Gauges<'a> {
    pub(super) fn new(calibration: Option<&'a Calibration>) -> Self {
        let of = |kind| ModelTreatment::new(Treatment::with_gauge(kind), calibration, &Host);
        Gauges {
            none: of(GaugeKind::None),
            calibrated: calibration.map(|_| [GaugeKind::Activation, GaugeKind::Whiten].map(of)),
        }
    }
}

pub(super) struct UnitSpectra {
    pub(super) projections: Vec<Spectrum>,
    pub(super) group: Option<SharedBasisSpectrum>,
    pub(super) coverage: Vec<SinkCoverage>,
}

/// Computes the spectra of a unit's projections and the cost of a shared basis; for Q, K and V also
/// the coverage of `sink`.
pub(super) fn unit_spectra(
    source: &ModelFile,
    unit: &Unit,
    gauges: &Gauges,
    sink: Option<&[f64]>,
) -> Result<UnitSpectra, MakeError> {
    let source = &PermutedSource::new(source, None);
    let mut values = Vec::with_capacity(unit.members.len());
    let mut projections = Vec::with_capacity(unit.members.len());
    for member in &unit.members {
        let Some(projection) = member.projection() else {
            continue;
        };
        let single = single_member_unit(unit.layer, *member);
        let of = |treatment| spectrum::unit_singular_values(source, &single, false, treatment);
        let own = of(&gauges.none)?;
        let mut found = spectrum_of(unit.layer, projection, member, &own);
        if let Some([activation, whiten]) = &gauges.calibrated {
            found.tails.activation = Some(tails(&of(activation)?));
            found.tails.whiten = Some(tails(&of(whiten)?));
        }
        projections.push(found);
        values.push(own);
    }
    let group = unit
        .members
        .first()
        .and_then(|member| member.projection()?.group());
    let Some(group) = group else {
        return Ok(UnitSpectra {
            projections,
            group: None,
            coverage: Vec::new(),
        });
    };
    let components = spectrum::shared_basis_components(source, unit, &Host)?;
    let coverage = match sink.filter(|_| group == InputGroup::Qkv) {
        None => Vec::new(),
        Some(direction) => sink_coverage(&components, direction)
            .map_err(|error| MakeError::of_tensor(&unit.label(), error))?,
    };
    Ok(UnitSpectra {
        projections,
        group: Some(shared_basis_cost(unit, group, &components, &values)),
        coverage,
    })
}

pub(super) fn rank_at(fraction: f64, full: usize) -> usize {
    ((fraction * full as f64).round() as usize).max(1)
}

fn spectrum_of(
    layer: usize,
    projection: ProjectionKind,
    member: &UnitMatrix,
    values: &[f64],
) -> Spectrum {
    let lost = lost_energy(values);
    let largest = values.first().copied().unwrap_or_default();
    let relative: f64 = if largest > 0.0 {
        values.iter().rev().map(|v| (v / largest).powi(2)).sum()
    } else {
        0.0
    };
    let full = values.len();
    let points = STEPS.min(full).max(1);
    let at = |step: usize| step * full / points;
    Spectrum {
        layer,
        projection,
        rows: member.rows,
        cols: member.cols,
        norm: rounded(largest * relative.sqrt()),
        largest: rounded(largest),
        stable_rank: rounded(relative),
        ranks: ENERGIES
            .iter()
            .map(|energy| lost.partition_point(|lost| *lost > 1.0 - energy))
            .collect(),
        tails: Tails {
            none: tails(values),
            activation: None,
            whiten: None,
        },
        curve: (0..=points)
            .map(|step| (at(step), rounded(1.0 - lost[at(step)])))
            .collect(),
    }
}

fn tails(values: &[f64]) -> Vec<f64> {
    let at = |fraction| rounded(relative_tail(values, rank_at(fraction, values.len())));
    FRACTIONS.into_iter().map(at).collect()
}

fn shared_basis_cost(
    unit: &Unit,
    group: InputGroup,
    components: &SharedComponents,
    values: &[Vec<f64>],
) -> SharedBasisSpectrum {
    let ranks: Vec<usize> = FRACTIONS.map(|f| rank_at(f, unit.cols)).to_vec();
    let energies = unit.members.iter().zip(&components.energies).zip(values);
    let members = energies.filter_map(|((member, energies), values)| {
        let from = |k: usize| energies[k.min(energies.len())..].iter().rev().sum::<f64>();
        let own = |k: usize| -> f64 {
            let left = values[k.min(values.len())..].iter().rev();
            left.map(|v| v * v).sum()
        };
        let total = from(0);
        let error = |&k: &usize| {
            if total > 0.0 {
                rounded((from(k) / total).sqrt())
            } else {
                0.0
            }
        };
        let excess = |&k: &usize| {
            let own = own(k);
            (own > ROUNDING * total).then(|| rounded(from(k) / own))
        };
        Some(SharedMember {
            projection: member.projection()?,
            errors: ranks.iter().map(error).collect(),
            excess: ranks.iter().map(excess).collect(),
        })
    });
    SharedBasisSpectrum {
        layer: unit.layer,
        group,
        members: members.collect(),
        ranks,
    }
}

fn sink_coverage(
    components: &SharedComponents,
    direction: &[f64],
) -> Result<Vec<SinkCoverage>, FactoriseError> {
    let d = direction.len();
    let at = |fraction| {
        let rank = rank_at(fraction, d);
        let rows = (rank * d).min(components.basis.len());
        let found = coverage(&components.basis[..rows], direction)?;
        Ok(SinkCoverage {
            fraction,
            rank,
            norm: rounded(found.norm),
            largest: rounded(found.largest),
            random: rounded(random_coverage(rank, d)),
        })
    };
    COVERAGE_FRACTIONS.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests;
