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
