//! Faults of plans that are not computed.

use super::*;

#[test]
fn check_reports_every_fault() {
    let hyper = hyper(256, 8, 4, 768);
    let asked = request(Method::PerProjection, Budget::Rank(64), DType::F16);
    let source = Whole(DType::F16);
    let good = compute(&hyper, asked, &Evidence::default(), Whole(DType::F16)).unwrap();
    let faults = |change: &dyn Fn(&mut Vec<UnitPlan>)| {
        let mut units = good.units.clone();
        change(&mut units);
        Plan::new(&hyper, good.request.clone(), units, Vec::new(), &source)
    };
    assert_eq!(faults(&|_| {}).unwrap().units, good.units);
    let (a, b) = (DType::Q8_0, DType::Q8_0);
    let head = |form| UnitPlan {
        members: vec![UnitMatrix::new(MatrixId::Head, &hyper, &source).unwrap()],
        form,
        notes: Vec::new(),
    };
    let low_rank = |rank| MatrixForm::LowRank { rank, a, b };
    assert!(faults(&|units| units.push(head(low_rank(32)))).is_ok());
    let residual = MatrixForm::Residual {
        base: DType::Q4K,
        rank: 64,
        a,
        b,
    };
    assert!(faults(&|units| units[3].form = residual.clone()).is_ok());
    type Change<'a> = &'a dyn Fn(&mut Vec<UnitPlan>);
    let changes: [(Change, &str); 10] = [
        (
            &|units| units[0].members.clear(),
            "projections: expected at least one",
        ),
        (
            &|units| units[0].members[0].rows += 1,
            "expected 256 x 256, found 257 x 256",
        ),
        (
            &|units| units.push(units[0].clone()),
            "belongs to two units",
        ),
        (
            &|units| units[0].form = low_rank(257),
            "rank: expected a whole number from 1 to 256",
        ),
        (&|units| units[0].form = low_rank(0), "rank: expected"),
        (&|units| units[0].form = low_rank(33), "types.b: rows of 33"),
        (
            &|units| {
                units[0].form = MatrixForm::Dense {
                    weight: DType::IQ2XS,
                }
            },
            "types.weight: expected a type that is written, found iq2_xs",
        ),
        (
            &|units| {
                let (rank, basis, projected) = (32, a, b);
                units[0].form = MatrixForm::SharedBasis {
                    rank,
                    basis,
                    projected,
                };
            },
            "form: expected dense or low_rank or residual with the method low-rank, found shared_basis",
        ),
        (
            &|units| {
                let mut embedding = head(low_rank(32));
                embedding.members[0].matrix = MatrixId::Embedding;
                units.push(embedding);
            },
            "form: expected dense, since rows of an embedding are looked up, found low_rank",
        ),
        (
            &|units| {
                let layer = 3;
                let projection = ProjectionKind::Q;
                units[0].members[0].matrix = MatrixId::Projection { layer, projection };
            },
            "blk.3.attn_q: the model has none",
        ),
    ];
    for (change, said) in changes {
        let found = faults(change).unwrap_err();
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(
            texts[0].contains(said) && !texts[0].contains('\n'),
            "{texts:?}: {said}"
        );
    }
    let error = Plan::new(
        &hyper,
        good.request.clone(),
        vec![head(MatrixForm::Unchanged)],
        Vec::new(),
        &Tied,
    );
    let said = error.unwrap_err()[0].to_string();
    assert!(said.contains("uses the embedding as head"), "{said}");
}
