use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::DType;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::{compile, number};

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
fn drafts_do_not_change_greedy_text() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let other = tiny(&scratch, "other.gguf", DType::Q4_0);
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    let expected = run(&model).run().assert_ok().stdout;
    assert!(expected.len() > 48);
    let of_artifact = run(&artifact).run().assert_ok().stdout;
    assert_ne!(of_artifact, expected);
    for length in ["1", "5", "auto"] {
        let length = ["--draft-length", length];
        let outcome = run(&model).arg("--draft").arg(&other).args(length);
        assert_eq!(outcome.run().assert_ok().stdout, expected);
        let outcome = run(&artifact).arg("--verifier").arg(&model).args(length);
        assert_eq!(outcome.run().assert_ok().stdout, expected);
        let outcome = run(&artifact).args(["--draft", "0.7"]).args(length);
        let outcome = outcome.run().assert_ok();
        assert_eq!(outcome.stdout, of_artifact);
        assert!(outcome.stderr.contains("draft: "), "{}", outcome.stderr);
    }
}

#[test]
fn learning_drafts_do_not_change_the_text() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let grc = [
        "--method",
        "shared-basis",
        "--rank",
        "4",
        "--factor-type",
        "f16",
    ];
    let (artifact, _) = compile(&scratch, &model, "grc.htz", &grc);
    let (other, _) = compile(&scratch, &model, "gp.htz", &["--rank", "16"]);
    let expected = run(&model).run().assert_ok().stdout;
    for kind in ["oja", "gradient"] {
        let state = scratch.path(kind);
        let learning = |draft: &Path| {
            let run = run(draft).arg("--verifier").arg(&model);
            run.args(["--draft-length", "3", "--adapt", kind])
        };
        let outcome = learning(&artifact).run().assert_ok();
        assert_eq!(outcome.stdout, expected, "{kind}");
        let learnt = outcome.stderr.lines().find(|l| l.starts_with("learnt: "));
        let updates = learnt.and_then(|line| line.split(" in ").nth(1)).unwrap();
        let updates: u32 = updates.split(' ').next().unwrap().parse().unwrap();
        assert!(updates > 0, "{}", outcome.stderr);
        let with_state = || learning(&artifact).arg("--adapt-state").arg(&state);
        for _ in 0..2 {
            assert_eq!(with_state().run().assert_ok().stdout, expected, "{kind}");
        }
        let kept = fs::read(&state).unwrap();
        let foreign = learning(&other).arg("--adapt-state").arg(&state);
        let says = if kind == "oja" {
            "no basis"
        } else {
            "another draft"
        };
        foreign.run().assert_refused(1, &[says]);
        fs::write(&state, &kept[..kept.len() / 2]).unwrap();
        with_state().run().assert_refused(1, &["damaged"]);
        fs::write(&state, "somebody's notes").unwrap();
        with_state()
            .run()
            .assert_refused(1, &["not a trained draft"]);
        assert_eq!(fs::read_to_string(&state).unwrap(), "somebody's notes");
    }
}

#[test]
fn json_reports_drafted_and_accepted_tokens() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let plain = run(&model).run().assert_ok();
    let json = |run: Htc| run.arg("--json").run().assert_ok().json();
    let found = json(run(&model));
    assert_eq!(
        format!("{}\n", found["text"].as_str().unwrap()),
        plain.text()
    );
    assert_eq!(number(&found, "/tokens"), 48.0);
    assert!(number(&found, "/tokens_per_second") > 0.0);
    assert!(found["acceptance"].is_null() && found["speed_up"].is_null());
    assert_eq!(
        (&found["stop"], number(&found, "/slides")),
        (&"limit".into(), 0.0)
    );
    let by_itself = json(run(&model).args(["--draft", "1"]));
    assert!(number(&by_itself, "/speed_up") > 0.0);
    assert_eq!(number(&found, "/fraction_min"), 1.0);
    assert_eq!(number(&found, "/kv_bytes_per_token"), 256.0);
    let drafted = json(run(&model).args(["--draft", "1", "--draft-length", "3"]));
    assert_eq!(drafted["text"], found["text"]);
    assert_eq!(number(&drafted, "/acceptance"), 1.0);
    assert_eq!(number(&drafted, "/drafted"), number(&drafted, "/accepted"));
    assert!(number(&drafted, "/drafted") >= 30.0);
}

#[test]
fn invalid_drafts_are_refused_in_one_line() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let other = tiny(&scratch, "other.gguf", DType::Q4_0);
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "16"]);
    let missing = scratch.path("none.gguf");
    let refused = |run: Htc, code: i32, says: &str| {
        run.run().assert_refused(code, &[says]);
    };
    refused(run(&model).args(["--draft", "0"]), 2, "a fraction");
    refused(run(&model).args(["--draft", "1.5"]), 2, "a fraction");
    refused(run(&model).args(["--draft", ""]), 2, "a fraction");
    let length = ["--draft", "1", "--draft-length", "17"];
    refused(run(&model).args(length), 2, "1 to 16");
    refused(run(&model).arg("--draft").arg(&missing), 1, "none.gguf");
    refused(run(&model).args(["--draft", "0.1"]), 1, "fraction");
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
    refused(run(&model).args(["--adapt", "oja"]), 2, "--draft");
    let learning = ["--draft", "1", "--adapt", "oja"];
    refused(run(&model).args(learning), 1, "--method shared-basis");
    refused(run(&model).args(["--adapt", "much"]), 2, "--adapt");
    let state = ["--draft", "1", "--adapt-state", "x"];
    refused(run(&model).args(state), 2, "--adapt oja");
    let both = run(&artifact).arg("--verifier").arg(&model);
    refused(both.arg("--draft").arg(&other), 2, "--verifier");
}

#[test]
fn unwritable_adaptation_state_is_refused_early() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "model.gguf", DType::F32);
    let other = tiny(&scratch, "other.gguf", DType::Q4_0);
    let learning = run(&model).arg("--draft").arg(&other);
    let learning = learning.args(["--adapt", "gradient", "--json", "--adapt-state"]);
    let outcome = learning.arg(scratch.path("no/where")).run();
    assert!(outcome.stdout.is_empty());
    outcome.assert_refused(1, &["where"]);
    let outcome = run(&model).args(["--draft-length", "4"]).run();
    outcome.assert_refused(2, &["--draft-length", "--draft"]);
}
