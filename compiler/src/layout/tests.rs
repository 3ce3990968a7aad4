use htc_formats::model::{Experts, Form, HyperParameters, ModelSpec, ProjectionKind};

use super::*;
use crate::calibrate::tests::hyper;

fn record(id: MatrixId) -> MatrixRecord {
    MatrixRecord {
        id,
        form: Form::Dense,
        rank: None,
        rows: 1,
        cols: 1,
        parameters_before: 1,
        parameters_after: 1,
        bytes_before: 4,
        bytes_after: 4,
        error: None,
        note: None,
    }
}

#[test]
fn every_matrix_has_its_error_field() {
    let mut mixture = hyper();
    mixture.forward.experts = Some(Experts {
        count: 4,
        used: 2,
        ffn: 32,
        normalised: true,
    });
    let ids = |hyper: &HyperParameters| -> Vec<MatrixId> {
        let spec = ModelSpec::new(hyper, []);
        spec.matrices().collect()
    };
    for hyper in [hyper(), mixture] {
        let mut plan = PlanRecord {
            method: "low-rank".into(),
            budget: BudgetRecord::Full,
            factor_type: DType::F16,
            projections: ids(&hyper).into_iter().map(record).collect(),
            bases: Vec::new(),
            matrices: [MatrixId::Embedding, MatrixId::Head].map(record).into(),
            allocation: None,
        };
        let all = [MatrixId::Embedding].into_iter().chain(ids(&hyper));
        let all: Vec<MatrixId> = all.chain([MatrixId::Head]).collect();
        for (index, &id) in all.iter().enumerate() {
            *error_field_mut(&mut plan, id).unwrap() = Some(index as f64);
        }
        let records = plan.projections.iter().chain(&plan.matrices);
        for MatrixRecord { id, error, .. } in records {
            let index = error.unwrap() as usize;
            assert_eq!(all[index], *id);
        }
        let absent = MatrixId::Projection {
            layer: hyper.layers,
            projection: ProjectionKind::Q,
        };
        assert_eq!(error_field_mut(&mut plan, absent), None);
    }
}
