use htc_formats::DType;
use htc_formats::model::ProjectionKind;

use super::*;

#[test]
fn dominated_forms_are_dropped() {
    let member = UnitMatrix {
        matrix: MatrixId::Embedding,
        rows: 4,
        cols: 256,
        source_type: DType::F16,
    };
    let point = |weight, loss| super::super::LossPoint {
        form: MatrixForm::Dense { weight },
        loss,
    };
    let curve = LossCurve {
        matrix: MatrixId::Embedding,
        points: vec![
            point(DType::Q5K, 0.5),
            point(DType::Q4K, 0.4),
            point(DType::Q8_0, 0.1),
            point(DType::BF16, 0.2),
            point(DType::F32, f64::NAN),
        ],
        intermediate: Vec::new(),
    };
    let dense = |weight| MatrixForm::Dense { weight };
    let curves = [curve];
    let found: Vec<MatrixForm> = pareto_forms(&member, &curves)
        .iter()
        .map(|c| c.form.clone())
        .collect();
    let all = candidate_forms(&member, &curves);
    assert!(all.iter().any(|c| c.form == dense(DType::Q5K)));
    assert_eq!(
        found,
        [dense(DType::Q4K), dense(DType::Q8_0), MatrixForm::Unchanged]
    );
}

#[test]
fn factors_and_shared_bases_compete_with_codes() {
    let projection = |projection, rows| UnitMatrix {
        matrix: MatrixId::Projection {
            layer: 0,
            projection,
        },
        rows,
        cols: 256,
        source_type: DType::F16,
    };
    let members = [
        projection(ProjectionKind::Q, 256),
        projection(ProjectionKind::K, 128),
        projection(ProjectionKind::V, 128),
        projection(ProjectionKind::O, 256),
        projection(ProjectionKind::Gate, 512),
    ];
    let q8 = DType::Q8_0;
    let low_rank = |rank| MatrixForm::LowRank { rank, a: q8, b: q8 };
    let curve = |member: &UnitMatrix| {
        let dense = [(DType::Q4K, 4e-3), (DType::Q8_0, 1e-4)];
        let dense = dense.map(|(weight, loss)| (MatrixForm::Dense { weight }, loss));
        let own = match member.projection() {
            Some(ProjectionKind::O) => vec![(low_rank(32), 1e-3)],
            Some(ProjectionKind::Gate) => vec![(low_rank(32), 9e-2)],
            _ => vec![(low_rank(64), 3e-3)],
        };
        let all = dense.into_iter().chain(own);
        LossCurve {
            matrix: member.matrix,
            points: all
                .map(|(form, loss)| super::super::LossPoint { form, loss })
                .collect(),
            intermediate: Vec::new(),
        }
    };
    let curves: Vec<LossCurve> = members.iter().map(curve).collect();
    let basis = |rank| MatrixForm::SharedBasis {
        rank,
        basis: q8,
        projected: q8,
    };
    let points = [(32, 2e-2), (64, 2e-3)];
    let shared = SharedLossCurve {
        members: members[..3].iter().map(|member| member.matrix).collect(),
        points: points
            .map(|(rank, loss)| super::super::SharedLossPoint {
                form: basis(rank),
                losses: vec![loss / 4.0, loss / 4.0, loss / 2.0],
            })
            .to_vec(),
    };
    let choices: Vec<Vec<Candidate>> = members
        .iter()
        .map(|member| pareto_forms(member, &curves))
        .collect();
    let finer = vec![Vec::new(); members.len()];
    let (mut in_common, mut of_low_rank) = (0, 0);
    for budget in (60_000..500_000).step_by(9_973) {
        let alone = solve(&choices, budget);
        let shared = std::slice::from_ref(&shared);
        let found = units_with_shared_bases(&members, &choices, &finer, shared, budget);
        let least = least_bytes(&members, &choices, shared);
        let Some((mut units, lost)) = found else {
            assert!(budget < least && alone.is_none(), "{budget} {least}");
            continue;
        };
        assert!(budget >= least);
        assert!(alone.is_none_or(|(_, other)| lost <= other + 1e-15));
        units.sort_by_key(|unit| unit.members[0].matrix);
        let bytes: u64 = units.iter().map(UnitPlan::bytes_after).sum();
        assert!(bytes <= budget);
        let named: Vec<MatrixId> = units
            .iter()
            .flat_map(|unit| unit.members.iter().map(|member| member.matrix))
            .collect();
        assert_eq!(named, members.map(|member| member.matrix));
        let is_common = units[0].form.to_stored(DType::F16).form().name() == "shared_basis";
        in_common += usize::from(is_common);
        let of_o = units.iter().find(|unit| unit.members[0] == members[3]);
        of_low_rank += usize::from(of_o.is_some_and(|unit| unit.rank() == Some(32)));
    }
    assert!(
        in_common > 3 && of_low_rank > 3,
        "{in_common} {of_low_rank}"
    );
    assert!(units_with_shared_bases(&members, &choices, &finer, &[], 1 << 20).is_none());
    let codes = pareto_sums_of(&members[..3], &curves);
    assert!(
        codes
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1)
    );
}
