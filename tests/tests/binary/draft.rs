//! `htc run --speculate` and `--verifier`: the model's own text, whoever drafts it.

use std::path::{Path, PathBuf};

use htc_formats::DType;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::{compile, number};

/// The same weights, stored in a type.
fn tiny(scratch: &Scratch, name: &str, dtype: DType) -> PathBuf {
    let tiny = TinyModel {
        ffn: 192,
        dtype,
        ..TinyModel::default()
    };
    scratch.file(name, tiny.bytes())
}

fn run(model: &Path) -> Htc {
    let run = htc!["run", model, "-p", "the cat sat on a", "-n", "48"];
    run.args(["--temp", "0", "--ignore-eos", "--threads", "2"])
}

#[test]
fn a_draft_changes_nothing_of_a_greedy_text() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let other = tiny(&scratch, "other.gguf", DType::Q4_0);
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    let expected = run(&model).run().ok().stdout;
    assert!(expected.len() > 48);
    let of_artifact = run(&artifact).run().ok().stdout;
    assert_ne!(of_artifact, expected);
    for length in ["1", "5", "auto"] {
        let length = ["--draft-length", length];
        let outcome = run(&model).arg("--speculate").arg(&other).args(length);
        assert_eq!(outcome.run().ok().stdout, expected);
        let outcome = run(&artifact).arg("--verifier").arg(&model).args(length);
        assert_eq!(outcome.run().ok().stdout, expected);
        let outcome = run(&artifact).args(["--speculate", "0.7"]).args(length);
        let outcome = outcome.run().ok();
        assert_eq!(outcome.stdout, of_artifact);
        assert!(outcome.stderr.contains("draft: "), "{}", outcome.stderr);
    }
}

#[test]
fn json_says_what_was_drafted_and_kept() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let plain = run(&model).run().ok();
    let json = |run: Htc| run.arg("--json").run().ok().json();
    let found = json(run(&model));
    assert_eq!(
        format!("{}\n", found["text"].as_str().unwrap()),
        plain.text()
    );
    assert_eq!(number(&found, "/tokens"), 48.0);
    assert!(number(&found, "/tokens_per_second") > 0.0);
    assert!(found["acceptance"].is_null());
    assert_eq!(number(&found, "/fraction_min"), 1.0);
    // Keys and values of two layers with two heads of 16 numbers in float16.
    assert_eq!(number(&found, "/kv_bytes_per_token"), 256.0);
    let drafted = json(run(&model).args(["--speculate", "1", "--draft-length", "3"]));
    assert_eq!(drafted["text"], found["text"]);
    assert_eq!(number(&drafted, "/acceptance"), 1.0);
    assert_eq!(number(&drafted, "/drafted"), number(&drafted, "/accepted"));
    assert!(number(&drafted, "/drafted") >= 30.0);
}

#[test]
fn what_cannot_draft_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let other = tiny(&scratch, "other.gguf", DType::Q4_0);
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    let missing = scratch.path("none.gguf");
    let refused = |run: Htc, code: i32, says: &str| {
        run.run().refused(code, &[says]);
    };
    refused(run(&model).args(["--speculate", "0"]), 2, "a fraction");
    refused(run(&model).args(["--speculate", "1.5"]), 2, "a fraction");
    refused(run(&model).args(["--speculate", ""]), 2, "a fraction");
    let length = ["--speculate", "1", "--draft-length", "17"];
    refused(run(&model).args(length), 2, "1 to 16");
    refused(run(&model).arg("--speculate").arg(&missing), 1, "none.gguf");
    refused(run(&model).args(["--speculate", "0.1"]), 1, "fraction");
    refused(
        run(&artifact).arg("--verifier").arg(&other),
        1,
        "give that model",
    );
    refused(
        run(&other).arg("--verifier").arg(&model),
        2,
        "not an artifact",
    );
    let both = run(&artifact).arg("--verifier").arg(&model);
    refused(both.arg("--speculate").arg(&other), 2, "--verifier");
}
