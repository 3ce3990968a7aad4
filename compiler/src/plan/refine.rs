//! Allocates bytes to refinements.

use std::collections::HashMap;

use htc_formats::bands::{CodeLayout, Codes};
use htc_formats::model::MatrixId;

use super::form::MatrixForm;
use super::knapsack::{Candidate, core, pareto_front, solve};
use super::unit::UnitMatrix;
use super::{LossCurve, PlanError};

/// Refinement of a matrix, added to its base.
#[derive(Clone, Debug, PartialEq)]
pub struct Refinement {
    /// Refined matrix.
    pub member: UnitMatrix,
    /// Code of each column group.
    pub codes: Codes,
    /// Size in bytes.
    pub bytes: u64,
    /// Estimated reduction of the KL divergence from the source, nats per token.
    pub gain: f64,
}

/// Returns the refinements with the least total loss in at most `budget` bytes, highest gain per
/// byte first. `curves` give the loss of each member with a refinement and, as
/// [`MatrixForm::Unchanged`], without one.
///
/// # Errors
/// [`PlanError::NoMeasurement`] for a matrix without a curve.
pub fn choose_refinements(
    members: &[UnitMatrix],
    curves: &[LossCurve],
    budget: u64,
) -> Result<Vec<Refinement>, PlanError> {
    let curves: HashMap<MatrixId, &LossCurve> =
        curves.iter().map(|curve| (curve.matrix, curve)).collect();
    let mut choices = Vec::with_capacity(members.len());
    for member in members {
        let of = curves
            .get(&member.matrix)
            .map(|curve| candidate_refinements(member, curve))
            .filter(|of| !of.is_empty());
        choices.push(of.ok_or(PlanError::NoMeasurement {
            needs: "what each matrix loses without a refinement",
            remedy: "calibrate with `calibration`",
        })?);
    }
    // The empty refinement always fits.
    let (chosen, _) = solve(&core(choices.clone(), budget), budget).unwrap_or_default();
    let mut found: Vec<Refinement> = Vec::new();
    for ((member, of), choice) in members.iter().zip(&choices).zip(chosen) {
        let alone = of.first().map_or(0.0, |choice| choice.loss);
        if let MatrixForm::ColumnGroups {
            codes: CodeLayout::Uniform(codes),
        } = choice.form
        {
            found.push(Refinement {
                member: *member,
                codes,
                bytes: choice.bytes,
                gain: alone - choice.loss,
            });
        }
    }
    let per_byte = |of: &Refinement| of.gain / of.bytes.max(1) as f64;
    found.sort_by(|a, b| per_byte(b).total_cmp(&per_byte(a)));
    Ok(found)
}

fn candidate_refinements(member: &UnitMatrix, curve: &LossCurve) -> Vec<Candidate> {
    let members = std::slice::from_ref(member);
    let points = curve.points.iter().filter(|point| point.loss.is_finite());
    let all = points.filter_map(|point| {
        let bytes = match &point.form {
            MatrixForm::Unchanged => 0,
            form @ MatrixForm::ColumnGroups { .. } => form.bytes(members),
            _ => return None,
        };
        Some(Candidate {
            form: point.form.clone(),
            bytes,
            loss: point.loss.max(0.0),
        })
    });
    pareto_front(all.collect())
}

/// Returns the matrices that accept a refinement: dense, and read completely for every token.
pub fn refinable_matrices<'a>(
    members: impl Iterator<Item = (&'a UnitMatrix, &'a MatrixForm)>,
    tied: bool,
) -> Vec<UnitMatrix> {
    let dense = members.filter(|(member, form)| {
        let looked_up = member.matrix == MatrixId::Embedding && !tied;
        matches!(
            form,
            MatrixForm::Dense { .. } | MatrixForm::ColumnGroups { .. }
        ) && !looked_up
    });
    dense.map(|(member, _)| *member).collect()
}

#[cfg(test)]
mod tests;
