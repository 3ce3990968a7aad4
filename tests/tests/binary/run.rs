//! `htc run`: generated text, its destination, and stopping.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use htc_formats::gguf::Value;
use htc_tests::binary::wait;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::{Htc, Outcome, Scratch, TinyModel, htc};

use super::compile;

fn tiny(scratch: &Scratch) -> PathBuf {
    scratch.file("model.gguf", TinyModel::default().bytes())
}

fn written(run: Htc) -> Vec<u8> {
    let outcome = run.run().assert_ok();
    assert!(outcome.stdout.len() > 1, "nothing is written");
    outcome.stdout
}

#[test]
fn greedy_is_deterministic_on_any_number_of_threads() {
    let scratch = Scratch::new();
    let tiny = tiny(&scratch);
    let (artifact, _) = compile(&scratch, &tiny, "out.htz", &["--rank", "16"]);
    for model in [tiny, artifact, demo_of_layers(2)] {
        let greedy = |threads| {
            let run = htc!["run", &model, "-p", "the cat sat on a", "-n", "48"];
            written(run.args(["--temp", "0", "--ignore-eos", "--threads", threads]))
        };
        let first = greedy("1");
        assert_eq!(first, greedy("1"), "{}", model.display());
        assert_eq!(first, greedy("2"), "{}", model.display());
    }
}

#[test]
fn demo_model_generates_english() {
    let model = demo("reference-7m-f16.gguf");
    let run = htc![
        "run",
        &model,
        "-p",
        "He was the king of",
        "-n",
        "40",
        "--temp",
        "0"
    ];
    let outcome = run.run().assert_ok();
    let text = outcome.text();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.len() > 15, "{text}");
    assert!(words.contains(&"the"), "{text}");
    assert!(outcome.stderr.contains("40 tokens"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("tokens/s"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("memory: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("KV cache"), "{}", outcome.stderr);
}

#[test]
fn seed_determines_the_text() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let sample = |seed: &str, threads: &str| {
        let run = htc![
            "run",
            &model,
            "-p",
            "the",
            "-n",
            "24",
            "--temp",
            "1",
            "--ignore-eos"
        ];
        written(run.args(["--seed", seed, "--threads", threads]))
    };
    let first = sample("7", "2");
    assert_eq!(first, sample("7", "2"));
    assert_eq!(first, sample("7", "1"));
    assert_ne!(first, sample("8", "2"));
    assert_ne!(first, sample("18446744073709551615", "2"));
}

#[test]
fn single_candidate_equals_greedy() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let with = |options: &[&str]| {
        let run = htc!["run", &model, "-p", "the dog", "-n", "32", "--ignore-eos"];
        written(run.args(options))
    };
    let greedy = with(&["--temp", "0"]);
    assert_eq!(
        greedy,
        with(&["--temp", "1.5", "--top-k", "1", "--seed", "5"])
    );
    assert_eq!(
        greedy,
        with(&["--temp", "1", "--top-p", "0.0001", "--top-k", "0"])
    );
    assert_ne!(
        greedy,
        with(&["--temp", "2", "--top-k", "0", "--top-p", "1"])
    );
}

#[test]
fn prompt_can_come_from_an_option_a_file_or_a_pipe() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let prompt = "the cat and the red hat";
    let file = scratch.file("prompt.txt", prompt);
    let options = ["-n", "16", "--temp", "0", "--ignore-eos"];
    let typed = written(htc!["run", &model, "-p", prompt].args(options));
    let long = written(htc!["run", &model, "--prompt", prompt].args(options));
    let from_file = written(htc!["run", &model, "--file", &file].args(options));
    let piped = written(htc!["run", &model].args(options).stdin(prompt));
    let echoed = written(
        htc!["run", &model]
            .args(options)
            .stdin(format!("{prompt}\n")),
    );
    assert_eq!(typed, long);
    assert_eq!(typed, from_file);
    assert_eq!(typed, piped);
    assert_eq!(typed, echoed);
    let other = written(htc!["run", &model, "-p", "she ran in the sand"].args(options));
    assert_ne!(typed, other, "the prompt matters");
}

#[test]
fn empty_prompt_starts_from_bos() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let options = ["-n", "4", "--temp", "0", "--ignore-eos"];
    let typed = written(htc!["run", &model, "-p", ""].args(options));
    assert!(!typed.is_empty());
}

#[test]
fn empty_input_and_empty_files_are_refused() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let file = scratch.file("prompt.txt", "");
    for input in ["", "\n"] {
        let outcome = htc!["run", &model, "-n", "4"].stdin(input).run();
        outcome.assert_refused(2, &["standard input is empty", "-p"]);
    }
    let outcome = htc!["run", &model, "-n", "4", "--file", &file].run();
    outcome.assert_refused(2, &["prompt.txt is empty", "-p"]);
}

#[test]
fn empty_prompt_without_bos_is_refused() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default().with("tokenizer.ggml.add_bos_token", Value::Bool(false));
    let model = scratch.file("model.gguf", tiny.bytes());
    let outcome = htc!["run", &model, "-p", "", "-n", "4"].run();
    outcome.assert_refused(1, &["model.gguf", "prompt", "empty"]);
}

#[test]
fn token_limit_is_met() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    for limit in [0, 1, 2, 17] {
        let run = htc!["run", &model, "-p", "the", "-n", limit.to_string()];
        let outcome = run.args(["--ignore-eos", "--temp", "0"]).run().assert_ok();
        let plural = if limit == 1 { "" } else { "s" };
        let said = format!("written: {limit} token{plural},");
        assert!(outcome.stderr.contains(&said), "{}", outcome.stderr);
    }
    let greedy = |limit| {
        let run = htc![
            "run",
            &model,
            "-p",
            "the",
            "-n",
            limit,
            "--ignore-eos",
            "--temp",
            "0"
        ];
        let text = String::from_utf8(written(run)).unwrap();
        text.trim_end_matches(['\n', char::REPLACEMENT_CHARACTER])
            .to_owned()
    };
    assert!(greedy("40").starts_with(&greedy("20")));
}

#[test]
fn generation_stops_at_the_end_of_the_context() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        context: 24,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let run = htc!["run", &model, "-p", "the cat", "-n", "1000", "--ignore-eos"];
    let outcome = run.run().assert_ok();
    assert!(outcome.stderr.contains("context"), "{}", outcome.stderr);
    let run = htc!["run", &model, "-p", "the cat", "--ignore-eos"].run();
    assert!(run.assert_ok().stderr.contains("context"));
}

#[test]
fn long_rope_does_not_depend_on_the_token_limit() {
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures/phi3/model.gguf");
    let run = |options: &[&str]| {
        let run = htc!["run", &model, "-p", "a b", "--temp", "0", "--ignore-eos"];
        run.args(options).run().assert_ok()
    };
    let some = run(&["-n", "8"]);
    let all = run(&[]);
    assert!(
        all.stdout.starts_with(some.stdout.trim_ascii_end()),
        "{some:?}\n{all:?}"
    );
    assert!(
        all.stderr.contains("LongRoPE") && all.stderr.contains("-c or -n"),
        "{all:?}"
    );
    assert!(!some.stderr.contains("LongRoPE"), "{some:?}");
    // A requested context is used in full.
    let written = |outcome: &Outcome| outcome.stdout.len();
    for (context, more) in [("24", false), ("64", true)] {
        let asked = run(&["-c", context]);
        assert!(!asked.stderr.contains("LongRoPE"), "{asked:?}");
        assert_eq!(written(&asked) > written(&all), more, "{asked:?}");
    }
}

#[test]
fn prompt_longer_than_the_context_is_refused() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let prompt = "the cat ".repeat(200);
    let outcome = htc!["run", &model, "-p", prompt, "-n", "4"].run();
    outcome.assert_refused(1, &["model.gguf", "256", "shorten"]);
}

#[test]
fn streamed_text_is_valid_utf8() {
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    for seed in 0..8 {
        let run = htc!["run", &model, "-p", "häuser", "-n", "200", "--ignore-eos"];
        let run = run.args(["--temp", "3", "--top-k", "0", "--top-p", "1"]);
        let outcome = run.arg("--seed").arg(seed.to_string()).run().assert_ok();
        assert!(
            outcome.text().contains(char::REPLACEMENT_CHARACTER),
            "bytes are drawn"
        );
    }
}

#[test]
fn end_of_sequence_ends_the_text() {
    let scratch = Scratch::new();
    let greedy = |model: &PathBuf, options: &[&str]| {
        let run = htc!["run", model, "-p", "the", "-n", "12", "--temp", "0"];
        run.args(options).run().assert_ok()
    };
    let model = tiny(&scratch);
    let mut tiny = TinyModel::default();
    let first = first_token(&model);
    tiny = tiny.with("tokenizer.ggml.eos_token_id", Value::U32(first));
    let model = scratch.file("ends.gguf", tiny.bytes());
    let ended = greedy(&model, &[]);
    assert_eq!(ended.text().trim(), "");
    assert!(ended.stderr.contains(" 0 tokens"), "{}", ended.stderr);
    let ignored = greedy(&model, &["--ignore-eos"]);
    assert!(ignored.stderr.contains(" 12 tokens"), "{}", ignored.stderr);
}

fn first_token(model: &Path) -> u32 {
    use htc_loader::{Cpu, Model, Session};
    let model = Model::open(model).unwrap();
    let mut session = Session::new(model, Cpu::with_threads(1).unwrap(), 2).unwrap();
    let prompt = [1, htc_tests::model::token("▁the")];
    let logits = session.step(&prompt).unwrap();
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap() as u32
}

#[test]
fn closed_pipe_is_not_an_error() {
    let model = demo("reference-7m-f16.gguf");
    let run = htc!["run", &model, "-p", "the", "-n", "400", "--ignore-eos"];
    let mut child = run.spawn();
    let mut first = [0; 4];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let status = wait(&mut child, Duration::from_secs(60), "htc run");
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(status.success(), "{status}: {said}");
    assert!(
        !said.contains("panicked") && !said.contains("error"),
        "{said}"
    );
}

#[test]
fn text_is_streamed() {
    let model = demo("reference-7m-f16.gguf");
    let run = htc!["run", &model, "-p", "the", "-n", "400", "--ignore-eos"];
    let mut child = run.spawn();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 16];
    stdout.read_exact(&mut first).unwrap();
    let running = child.try_wait().unwrap().is_none();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert!(wait(&mut child, Duration::from_secs(60), "htc run").success());
    assert!(running, "the first characters came only with the last");
    assert!(rest.len() > 300, "{}", rest.len());
}

#[test]
fn unwritable_output_is_an_error() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        eprintln!("skipped: there is no /dev/full");
        return;
    };
    let scratch = Scratch::new();
    let model = tiny(&scratch);
    let run = htc!["run", &model, "-p", "the", "-n", "8", "--ignore-eos"];
    let outcome = run.stdout(full.try_clone().unwrap()).run();
    outcome.assert_refused(1, &["standard output", "space"]);
    let outcome = htc!["inspect", &model, "--json"].stdout(full).run();
    outcome.assert_refused(1, &["standard output", "space"]);
}

/// The prompt counts, and the text ends at the requested size of the context.
#[test]
fn context_size_limits_prompt_and_text() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let run = |options: &[&str]| {
        let run = htc!["run", &model, "-p", "the cat sat", "--ignore-eos", "--json"];
        run.args(["--temp", "0"]).args(options).run()
    };
    let whole = run(&["-n", "40"]).json();
    let read = whole["prompt_tokens"].as_u64().unwrap();
    for more in [&[][..], &["--draft", "1", "--draft-length", "3"]] {
        let limited = run(&[&["-c", "20"], more].concat()).json();
        assert_eq!(limited["stop"], "context", "{limited}");
        // The last token is written and not read.
        assert_eq!(
            limited["tokens"].as_u64().unwrap(),
            20 - read + 1,
            "{limited}"
        );
        let text = limited["text"].as_str().unwrap();
        assert!(whole["text"].as_str().unwrap().starts_with(text));
    }
    run(&["-c", "2"]).assert_refused(1, &["model.gguf", "2"]);
    run(&["-c", "0"]).assert_refused(2, &["--ctx-size"]);
}
