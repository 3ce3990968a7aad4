//! Rows, columns and single numbers far larger than the others of their matrix.

use htc_tests::material::words;
use htc_tests::model::Tensor;
use htc_tests::{Scratch, TinyModel, htc};

use super::{list, number};

/// Token of a byte that no text in UTF-8 has.
const UNUSED_TOKEN: usize = 3 + 0xf8;

const FAR: f32 = 1e5;

fn tensor<'a>(tensors: &'a mut [Tensor], name: &str) -> &'a mut Tensor {
    let mut all = tensors.iter_mut();
    all.find(|tensor| tensor.name == name).unwrap()
}

fn scale_row(tensor: &mut Tensor, row: usize, by: f32) {
    let row = &mut tensor.values[row * tensor.cols..][..tensor.cols];
    row.iter_mut().for_each(|w| *w *= by);
}

fn scale_column(tensor: &mut Tensor, col: usize, by: f32) {
    let cols = tensor.cols;
    let column = tensor.values.iter_mut().skip(col).step_by(cols);
    column.for_each(|w| *w *= by);
}

/// Compiles a changed model; returns the divergence and the notes of the plan.
fn compile(change: impl Fn(&mut [Tensor]), codes: &str) -> (f64, Vec<String>) {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        output: true,
        ..TinyModel::default()
    };
    let mut tensors = tiny.tensors();
    change(&mut tensors);
    let model = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    let text = scratch.file("words.txt", words(20_000));
    let report = htc!["compile", model, "-o", scratch.path("out.htz")]
        .args(["--bpw", "7", "--effort", "fast", "--codes", codes])
        .args(["--context", "32", "--calibration-tokens", "4096"])
        .args(["--calibration".into(), text])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--report", "json"])
        .run()
        .assert_ok()
        .json();
    let notes = list(&report, "/notes").iter();
    let notes = notes.map(|note| note.as_str().unwrap().to_owned());
    (number(&report, "/quality/evaluation/kl"), notes.collect())
}

fn assert_harmless(change: impl Fn(&mut [Tensor]), note: &str) {
    for codes in ["all", "trellis"] {
        let (clean, silent) = compile(|_| {}, codes);
        let (found, notes) = compile(&change, codes);
        // Where the outlier decides the other codes, it is nats.
        assert!(found < clean + 0.1, "{codes}: {found} against {clean}");
        let named = |notes: &[String]| notes.iter().any(|said| said.contains(note));
        assert!(named(&notes) && !named(&silent), "{notes:?} {silent:?}");
    }
}

#[test]
fn row_of_an_unused_token_leaves_the_other_rows_as_they_are() {
    let note = format!(
        "token_embd.weight: 1 of 299 rows more than 32 times as large as most others, the largest row {UNUSED_TOKEN}"
    );
    assert_harmless(
        |tensors| scale_row(tensor(tensors, "token_embd.weight"), UNUSED_TOKEN, FAR),
        &note,
    );
    assert_harmless(
        |tensors| {
            let embedding = tensor(tensors, "token_embd.weight");
            embedding.values[UNUSED_TOKEN * embedding.cols + 3] = FAR;
        },
        &note,
    );
}

/// The column is read from a channel as small as its weights are large.
#[test]
fn columns_beyond_the_others_are_not_rotated() {
    assert_harmless(
        |tensors| {
            scale_column(tensor(tensors, "blk.1.ffn_down.weight"), 5, FAR);
            scale_row(tensor(tensors, "blk.1.ffn_up.weight"), 5, 1.0 / FAR);
        },
        "blk.1.ffn_down.weight: columns are not rotated",
    );
}

/// Its error, times a channel of zeros, would be the largest logit.
#[test]
fn row_of_a_head_with_an_outlier_is_measured() {
    let change = |tensors: &mut [Tensor]| {
        tensor(tensors, "output_norm.weight").values[3] = 0.0;
        let head = tensor(tensors, "output.weight");
        head.values[UNUSED_TOKEN * head.cols + 3] = FAR;
    };
    let (found, notes) = compile(change, "all");
    assert!(found < 0.1, "{found}");
    let named = |note: &String| note.contains("output.weight: 1 of ");
    assert!(notes.iter().any(named), "{notes:?}");
}
