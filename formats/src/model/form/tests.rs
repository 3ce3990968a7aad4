use super::*;

const FORMS: [StoredForm; 4] = [
    StoredForm::Dense { weight: DType::Q4K },
    StoredForm::LowRank {
        rank: 32,
        a: DType::Q8_0,
        b: DType::F16,
    },
    StoredForm::SharedBasis {
        rank: 32,
        basis: DType::F32,
        projected: DType::Q8_0,
    },
    StoredForm::Residual {
        base: DType::Q4_0,
        rank: 32,
        a: DType::BF16,
        b: DType::Q8_0,
    },
];

fn projection() -> MatrixId {
    MatrixId::Projection {
        layer: 4,
        projection: ProjectionKind::Up,
    }
}

#[test]
fn form_is_detected_from_its_parts() {
    for (stored, form) in FORMS.into_iter().zip(Form::ALL) {
        assert_eq!(stored.form(), form);
        let tensors = stored.tensors(projection(), (768, 256));
        let has = |part| {
            tensors
                .iter()
                .any(|t| Some(t.role) == projection().role(part))
        };
        assert_eq!(Form::from_parts(has), Some(form));
        assert_eq!(tensors.len(), form.parts().len());
        let by_role = |a: &StoredTensor, b: &StoredTensor| {
            a.role.execution_order() < b.role.execution_order()
        };
        assert!(tensors.is_sorted_by(by_role), "{tensors:?}");
        for (tensor, &part) in tensors.iter().zip(form.parts()) {
            assert_eq!(MatrixId::from_role(tensor.role), Some((projection(), part)));
            assert!(tensor.bytes() > 0);
        }
    }
    assert_eq!(Form::from_parts(|_| false), None);
    assert_eq!(Form::from_parts(|part| part == Part::Bias), None);
}

#[test]
fn forms_give_shapes_and_bytes_of_their_tensors() {
    let of = |form: &StoredForm| -> Vec<_> {
        let tensors = form.tensors(projection(), (768, 256));
        tensors
            .iter()
            .map(|t| (t.rows, t.cols, t.bytes()))
            .collect()
    };
    assert_eq!(of(&FORMS[0]), [(768, 256, 768 * 144)]);
    assert_eq!(of(&FORMS[1]), [(32, 256, 32 * 8 * 34), (768, 32, 768 * 64)]);
    assert_eq!(of(&FORMS[2]), [(768, 32, 768 * 34)]);
    assert_eq!(
        of(&FORMS[3]),
        [
            (768, 256, 768 * 8 * 18),
            (32, 256, 32 * 512),
            (768, 32, 768 * 34)
        ]
    );
    let codes: CodeLayout = "1:t3x4,l4x4".parse().unwrap();
    let bytes = codes.bytes(768);
    let bands = StoredForm::Bands { codes };
    assert_eq!((bands.form(), bands.rank()), (Form::Dense, None));
    assert_eq!(of(&bands), [(768, 256, bytes)]);
    let basis = FORMS[2].basis(1, InputGroup::GateUp, 256).unwrap();
    assert_eq!((basis.rows, basis.cols, basis.bytes()), (32, 256, 32768));
    assert_eq!(FORMS[1].basis(1, InputGroup::GateUp, 256), None);
}

#[test]
fn matrix_ids_round_trip_through_text() {
    let of = |projection| MatrixId::Projection {
        layer: 12,
        projection,
    };
    let all = [
        (MatrixId::Embedding, "token_embd"),
        (projection(), "blk.4.ffn_up"),
        (of(ProjectionKind::Q), "blk.12.attn_q"),
        (of(ProjectionKind::O), "blk.12.attn_output"),
        (of(ProjectionKind::Gate), "blk.12.ffn_gate"),
        (of(ProjectionKind::Router), "blk.12.ffn_gate_inp"),
        (of(ProjectionKind::ExpertGate(0)), "blk.12.ffn_gate.0"),
        (of(ProjectionKind::ExpertUp(17)), "blk.12.ffn_up.17"),
        (
            of(ProjectionKind::ExpertDown(u16::MAX)),
            "blk.12.ffn_down.65535",
        ),
        (MatrixId::Head, "output"),
    ];
    assert!(all.is_sorted_by_key(|(matrix, _)| *matrix));
    for (matrix, text) in all {
        assert_eq!(matrix.to_string(), text);
        assert_eq!(text.parse(), Ok(matrix));
        assert_eq!(
            MatrixId::from_role(matrix.weight()),
            Some((matrix, Part::Weight))
        );
        assert_eq!(matrix.role(Part::Weight), Some(matrix.weight()));
    }
    for text in [
        "",
        "blk.3",
        "blk.3.",
        "blk.03.attn_q",
        "blk.+3.attn_q",
        "blk.4096.attn_q",
        "attn_q",
        "blk.3.q",
        "blk.0.attn_q.a",
        "blk.0.attn_q.weight",
        "blk.0.attn_q.1",
        "blk.0.ffn_gate.01",
        "blk.0.ffn_gate.65536",
        "blk.0.ffn_gate_inp.1",
        "blk.0.expert_gate.1",
        "layers.3.q",
        "embedding",
        "head",
        "output.weight",
    ] {
        assert!(text.parse::<MatrixId>().is_err(), "{text}");
    }
    assert_eq!(MatrixId::Embedding.role(Part::A), None);
    assert_eq!(MatrixId::Head.role(Part::Projected), None);
}
