//! Shares bytes out among what the matrices of an artifact lack: which of them get a refinement, in which codes, and in
//! which order refinements come into use.

use htc_formats::bands::{Codes, Layout};
use htc_formats::model::MatrixId;

use super::form::Form;
use super::knapsack::{Choice, best, core, unbeaten};
use super::unit::Member;
use super::{Curve, PlanError};

/// What a matrix gets beside its base.
#[derive(Clone, Debug, PartialEq)]
pub struct Refinement {
    /// The matrix.
    pub member: Member,
    /// The code of each band.
    pub codes: Codes,
    /// Bytes that it takes.
    pub bytes: u64,
    /// What it is expected to take off the KL divergence from the source, nats per token.
    pub gain: f64,
}

/// The refinements that lose least together in at most so many bytes, from the one of which a byte gains most on.
/// `curves` say what each of the `members` loses with a refinement, and without one as [`Form::Kept`].
///
/// # Errors
/// [`PlanError::NoMeasurement`] for a matrix without a curve.
pub fn refinements(
    members: &[Member],
    curves: &[Curve],
    budget: u64,
) -> Result<Vec<Refinement>, PlanError> {
    let mut choices = Vec::with_capacity(members.len());
    for member in members {
        let curve = curves.iter().find(|curve| curve.matrix == member.matrix);
        let of = curve
            .map(|curve| forms(member, curve))
            .filter(|of| !of.is_empty());
        choices.push(of.ok_or(PlanError::NoMeasurement {
            needs: "what each matrix loses without a refinement",
            remedy: "calibrate with `calibration`",
        })?);
    }
    // Nothing takes no bytes, so that something always fits.
    let (chosen, _) = best(&core(choices.clone(), budget), budget).unwrap_or_default();
    let mut found: Vec<Refinement> = Vec::new();
    for ((member, of), choice) in members.iter().zip(&choices).zip(chosen) {
        let alone = of.first().map_or(0.0, |choice| choice.loss);
        // What a base lacks has the same codes in all rows.
        if let Form::Bands {
            codes: Layout::Whole(codes),
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

/// What a matrix may get: nothing first.
fn forms(member: &Member, curve: &Curve) -> Vec<Choice> {
    let members = std::slice::from_ref(member);
    let points = curve.points.iter().filter(|point| point.loss.is_finite());
    let all = points.filter_map(|point| {
        let bytes = match &point.form {
            Form::Kept => 0,
            form @ Form::Bands { .. } => form.bytes(members),
            _ => return None,
        };
        Some(Choice {
            form: point.form.clone(),
            bytes,
            loss: point.loss.max(0.0),
        })
    });
    unbeaten(all.collect())
}

/// The matrices of a plan that a refinement can be added to: what is dense, and read as a whole for every token.
pub fn refinable<'a>(
    members: impl Iterator<Item = (&'a Member, &'a Form)>,
    tied: bool,
) -> Vec<Member> {
    let dense = members.filter(|(member, form)| {
        let looked_up = member.matrix == MatrixId::Embedding && !tied;
        matches!(form, Form::Dense { .. } | Form::Bands { .. }) && !looked_up
    });
    dense.map(|(member, _)| *member).collect()
}

#[cfg(test)]
mod tests {
    use htc_formats::DType;
    use htc_formats::bands::Code;

    use super::super::Point;
    use super::*;

    fn member(layer: usize) -> Member {
        Member {
            matrix: MatrixId::Slot {
                layer,
                slot: htc_formats::model::Slot::Q,
            },
            rows: 64,
            cols: 64,
            source_type: DType::F16,
        }
    }

    fn curve(layer: usize, alone: f64) -> Curve {
        let with = |bits: u8| Point {
            form: Form::Bands {
                codes: Codes::uniform(Code::levels(bits).unwrap(), 64)
                    .unwrap()
                    .into(),
            },
            loss: alone * 4f64.powi(-i32::from(bits)),
        };
        let kept = Point {
            form: Form::Kept,
            loss: alone,
        };
        Curve {
            matrix: member(layer).matrix,
            points: [2, 3, 4].map(with).into_iter().chain([kept]).collect(),
            between: Vec::new(),
        }
    }

    #[test]
    fn bytes_go_where_they_gain_and_come_into_use_by_what_a_byte_gains() {
        let members: Vec<Member> = (0..3).map(member).collect();
        let curves = [curve(0, 0.001), curve(1, 1.0), curve(2, 0.3)];
        let all = |budget| refinements(&members, &curves, budget).unwrap();
        assert!(all(0).is_empty());
        let bytes = |found: &[Refinement]| found.iter().map(|of| of.bytes).sum::<u64>();
        // As much as two take: the third has least to gain.
        let two = all(1 << 20)[0].bytes * 2;
        let found = all(two);
        assert!(bytes(&found) <= two);
        let layers: Vec<_> = found.iter().map(|of| of.member.matrix.layer()).collect();
        assert_eq!(layers[..2], [Some(1), Some(2)]);
        for pair in found.windows(2) {
            let per_byte = |of: &Refinement| of.gain / of.bytes as f64;
            assert!(per_byte(&pair[0]) >= per_byte(&pair[1]));
        }
        // With room for everything, everything.
        let found = all(1 << 20);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|of| of.codes.mean_bits() > 3.9));
        assert!(refinements(&members, &curves[..2], 100).is_err());
    }

    #[test]
    fn an_embedding_that_is_looked_up_is_not_refined() {
        let embedding = Member {
            matrix: MatrixId::Embedding,
            ..member(0)
        };
        let slot = member(1);
        let dense = Form::Dense { weight: DType::Q4K };
        let all = [(&embedding, &dense), (&slot, &dense), (&slot, &Form::Kept)];
        let of = |tied| refinable(all.into_iter(), tied).len();
        assert_eq!((of(true), of(false)), (2, 1));
    }
}
