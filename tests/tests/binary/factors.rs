//! Checks stored factors against float64 computations made here.

use htc_formats::DType;
use htc_tests::artifact::{Artifact, id, place};
use htc_tests::float64::Matrix;
use htc_tests::model::{GGUF_PROJECTIONS, PROJECTION_NAMES};
use htc_tests::{Scratch, TinyModel};
use serde_json::Value;

use super::{FACTOR_TYPES, METHODS, assert_close, compile, list, number};

fn sources(tiny: &TinyModel) -> Vec<Matrix> {
    let tensors = tiny.tensors();
    GGUF_PROJECTIONS
        .iter()
        .map(|projection| {
            let name = format!("blk.0.{projection}.weight");
            let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
            Matrix::new(tensor.rows, tensor.cols, &tensor.values)
        })
        .collect()
}

fn record<'a>(report: &'a Value, projection: &str) -> &'a Value {
    let of = |record: &&Value| place(record) == (0, projection.to_owned());
    list(report, "/plan/projections").iter().find(of).unwrap()
}

#[test]
fn reported_errors_are_those_of_the_stored_factors() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let sources = sources(&tiny);
    for method in METHODS {
        for factor_type in FACTOR_TYPES {
            let options = ["--method", method, "--rank", "12", "--force"];
            let options = [&options[..], &["--factor-type", factor_type]].concat();
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let artifact = Artifact::open(&artifact);
            for (projection, source) in PROJECTION_NAMES.iter().zip(&sources) {
                let record = record(&report, projection);
                if record["form"] == "dense" {
                    continue;
                }
                let expected = source.relative_distance(&artifact.dense_projection(0, projection));
                assert_close(number(record, "/error"), expected, 1e-5);
            }
        }
    }
}

/// Eckart-Young: the squares of the dropped singular values are the smallest eigenvalues of `W Wᵀ`
/// (or `Wᵀ W`).
#[test]
fn per_projection_errors_are_the_eckart_young_tail() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let sources = sources(&tiny);
    for rank in [1, 8, 15] {
        let shown = rank.to_string();
        let options = ["--rank", &shown, "--factor-type", "f32", "--force"];
        let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
        let artifact = Artifact::open(&artifact);
        for (projection, source) in PROJECTION_NAMES.iter().zip(&sources) {
            let gram = if source.rows < source.cols {
                source.times(&source.transposed())
            } else {
                source.transposed().times(source)
            };
            let tail: f64 = gram.eigen().0[rank..].iter().sum();
            let expected = tail.sqrt() / source.norm();
            assert_close(
                number(record(&report, projection), "/error"),
                expected,
                1e-5,
            );
            assert_close(
                source.relative_distance(&artifact.dense_projection(0, projection)),
                expected,
                1e-5,
            );
        }
    }
}

#[test]
fn components_are_in_decreasing_order_of_importance() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let options = ["--rank", "12", "--factor-type", "f32"];
    let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
    let artifact = Artifact::open(&artifact);
    for (projection, source) in PROJECTION_NAMES.iter().zip(&sources(&tiny)) {
        let a = artifact.matrix(&format!("{}.a", id(0, projection)));
        let b = artifact
            .matrix(&format!("{}.b", id(0, projection)))
            .transposed();
        let gram = source.transposed().times(source);
        let eigenvalues = gram.eigen().0;
        for rank in [1, 5, 12] {
            let product = b
                .leading_rows(rank)
                .transposed()
                .times(&a.leading_rows(rank));
            let tail: f64 = eigenvalues[rank..].iter().sum();
            let expected = tail.sqrt() / source.norm();
            assert_close(source.relative_distance(&product), expected, 1e-5);
        }
    }
}

/// The shared basis consists of the leading eigenvectors of the sum of `Wᵀ W / ‖W‖²`, and
/// projections are `W P`.
#[test]
fn shared_bases_are_the_leading_eigenvectors() {
    let tiny = TinyModel::default();
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let sources = sources(&tiny);
    let rank = 16;
    let options = [
        "--method",
        "shared-basis",
        "--projections",
        "q,k,v,gate,up",
        "--rank",
        "16",
    ];
    let options = [&options[..], &["--factor-type", "f32"]].concat();
    let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
    let artifact = Artifact::open(&artifact);
    for (group, members) in [("attn_qkv", 0..3), ("ffn_gate_up", 4..6)] {
        let mut sum = Matrix::new(64, 64, &[0.0; 64 * 64]);
        for source in &sources[members.clone()] {
            let gram = source.transposed().times(source);
            sum.add(source.norm().powi(-2), &gram);
        }
        let (eigenvalues, vectors) = sum.eigen();
        assert!(
            eigenvalues[rank - 1] > 1.01 * eigenvalues[rank],
            "a gap at the rank"
        );
        let leading = vectors.leading_rows(rank);
        let projector = leading.transposed().times(&leading);
        let basis = artifact.matrix(&format!("blk.0.{group}.basis"));
        let stored = basis.transposed().times(&basis);
        assert!(projector.relative_distance(&stored) < 1e-5, "{group}");
        for row in basis.values.chunks_exact(64) {
            let largest = row
                .iter()
                .copied()
                .max_by(|a, b| a.abs().total_cmp(&b.abs()));
            assert!(largest.unwrap() > 0.0, "{group}");
        }
        for member in members {
            let (projection, source) = (PROJECTION_NAMES[member], &sources[member]);
            let expected = source.relative_distance(&source.times(&projector));
            assert_close(
                number(record(&report, projection), "/error"),
                expected,
                1e-5,
            );
        }
    }
}

#[test]
fn the_full_shared_basis_is_the_identity() {
    let tiny = TinyModel {
        dtype: DType::F16,
        ..TinyModel::default()
    };
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny.bytes());
    let options = [
        "--method",
        "shared-basis",
        "--rank",
        "full",
        "--factor-type",
        "f32",
    ];
    let (artifact, _) = compile(&scratch, &model, "out.htz", &options);
    let basis = Artifact::open(&artifact).matrix("blk.0.attn_qkv.basis");
    let mut identity = Matrix::new(64, 64, &[0.0; 64 * 64]);
    identity
        .values
        .iter_mut()
        .step_by(65)
        .for_each(|v| *v = 1.0);
    assert!(identity.relative_distance(&basis.transposed().times(&basis)) < 1e-6);
}
