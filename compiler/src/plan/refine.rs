//! Allocates bytes to refinements.

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
    let mut choices = Vec::with_capacity(members.len());
    for member in members {
        let curve = curves.iter().find(|curve| curve.matrix == member.matrix);
        let of = curve
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
mod tests {
    use htc_formats::DType;
    use htc_formats::bands::Code;

    use super::super::LossPoint;
    use super::*;

    fn member(layer: usize) -> UnitMatrix {
        UnitMatrix {
            matrix: MatrixId::Projection {
                layer,
                projection: htc_formats::model::ProjectionKind::Q,
            },
            rows: 64,
            cols: 64,
            source_type: DType::F16,
        }
    }

    fn curve(layer: usize, alone: f64) -> LossCurve {
        let with = |bits: u8| LossPoint {
            form: MatrixForm::ColumnGroups {
                codes: Codes::uniform(Code::codebook(bits).unwrap(), 64)
                    .unwrap()
                    .into(),
            },
            loss: alone * 4f64.powi(-i32::from(bits)),
        };
        let kept = LossPoint {
            form: MatrixForm::Unchanged,
            loss: alone,
        };
        LossCurve {
            matrix: member(layer).matrix,
            points: [2, 3, 4].map(with).into_iter().chain([kept]).collect(),
            intermediate: Vec::new(),
        }
    }

    #[test]
    fn refinements_are_chosen_and_sorted_by_gain_per_byte() {
        let members: Vec<UnitMatrix> = (0..3).map(member).collect();
        let curves = [curve(0, 0.001), curve(1, 1.0), curve(2, 0.3)];
        let all = |budget| choose_refinements(&members, &curves, budget).unwrap();
        assert!(all(0).is_empty());
        let bytes = |found: &[Refinement]| found.iter().map(|of| of.bytes).sum::<u64>();
        let two = all(1 << 20)[0].bytes * 2;
        let found = all(two);
        assert!(bytes(&found) <= two);
        let layers: Vec<_> = found.iter().map(|of| of.member.matrix.layer()).collect();
        assert_eq!(layers[..2], [Some(1), Some(2)]);
        for pair in found.windows(2) {
            let per_byte = |of: &Refinement| of.gain / of.bytes as f64;
            assert!(per_byte(&pair[0]) >= per_byte(&pair[1]));
        }
        let found = all(1 << 20);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|of| of.codes.mean_bits() > 3.9));
        assert!(choose_refinements(&members, &curves[..2], 100).is_err());
    }

    #[test]
    fn untied_embedding_is_not_refined() {
        let embedding = UnitMatrix {
            matrix: MatrixId::Embedding,
            ..member(0)
        };
        let projection = member(1);
        let dense = MatrixForm::Dense { weight: DType::Q4K };
        let all = [
            (&embedding, &dense),
            (&projection, &dense),
            (&projection, &MatrixForm::Unchanged),
        ];
        let of = |tied| refinable_matrices(all.into_iter(), tied).len();
        assert_eq!((of(true), of(false)), (2, 1));
    }
}
