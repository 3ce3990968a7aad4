//! `htc bench` without checks of actual speeds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_tests::binary::wait;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{assert_close, compile, list, number, text};

pub(super) fn tiny(scratch: &Scratch, name: &str, seed: u64) -> PathBuf {
    let model = TinyModel {
        context: 1024,
        seed,
        ..TinyModel::default()
    };
    scratch.file(name, model.bytes())
}

pub(super) fn bench(model: &Path) -> Htc {
    let htc = htc!["bench", model, "--tokens", "4,6", "--threads", "1"];
    htc.arg("--json")
}

/// Supports `--help` and else runs `does`.
pub(super) fn fake_llama_bench(scratch: &Scratch, does: &str) -> PathBuf {
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --help ]; then echo '  -p, --n-prompt <n>  -n, --n-gen  -d, --n-depth <n>  -o, --output'; exit 0; fi\n{does}\n"
    );
    let path = scratch.file("llama-bench", script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A valid result for arguments `-m MODEL -p P -n N ...`.
pub(super) const RESULT: &str = "printf '[{\"build_commit\": \"abc\", \"backends\": \"CPU\", \"n_prompt\": %s, \"n_gen\": %s, \"avg_ts\": 50.0}]\\n' \"$4\" \"$6\"";

pub(super) fn llama_cpp_argument(program: &Path) -> String {
    format!("llama.cpp:{}", program.display())
}

#[test]
fn device_option_selects_the_device() {
    let scratch = Scratch::new();
    let (model, other) = (tiny(&scratch, "a.gguf", 1), tiny(&scratch, "b.gguf", 2));
    let text_file = scratch.file("words.txt", words(3_000));
    let on = |device: &str| {
        let run = bench(&model).arg("--against").arg(&other);
        let run = run.args(["--pairs", "1", "--warm-up", "0", "--prompts", "factual"]);
        let run = run.arg("--text").arg(&text_file);
        run.args(["--chunks", "1", "--device", device]).run()
    };
    let ratio = |found: &Value| number(found, "/quality/perplexity_ratio");
    let expected = on("cpu").assert_ok().json();
    assert!(text(&expected, "/device").starts_with("the processor ("));
    let emulated = cfg!(feature = "emulated").then_some(("emulated", "emulated"));
    let float64 = ("reference", "the processor in float64");
    for (device, name) in [float64].into_iter().chain(emulated) {
        let found = on(device).assert_ok().json();
        assert_eq!(text(&found, "/device"), name);
        assert_close(ratio(&found), ratio(&expected), 0.01);
        assert_ne!(ratio(&found), ratio(&expected), "{device}");
    }
    on("cuda:7").assert_refused(1, &["no CUDA device: "]);
}

#[test]
fn pairs_and_statistics_are_reported() {
    let scratch = Scratch::new();
    let (model, other) = (tiny(&scratch, "a.gguf", 1), tiny(&scratch, "b.gguf", 2));
    let page = scratch.path("page.html");
    let run = bench(&model).arg("--against").arg(&other);
    let run = run.args(["--contexts", "32,64"]).arg("-o").arg(&page);
    let found = run.run().json();
    assert_eq!(text(&found, "/kind"), "benchmark");
    assert_eq!(found["schema"], "htc-benchmark-1");
    for key in [
        "/program",
        "/date",
        "/kv_type",
        "/subject/engine",
        "/machine/system",
    ] {
        assert!(!text(&found, key).is_empty(), "{key}");
    }
    assert_eq!(text(&found, "/subject/name"), "a.gguf");
    assert_eq!(text(&found, "/baseline/name"), "b.gguf");
    assert_eq!(number(&found, "/threads"), 1.0);
    assert!(list(&found, "/command").iter().any(|word| word == "bench"));
    let pairs = list(&found, "/pairs");
    assert_eq!(pairs.len(), 8);
    let tasks: Vec<(&str, u64)> = pairs
        .iter()
        .map(|pair| (text(pair, "/prompt"), pair["tokens"].as_u64().unwrap()))
        .collect();
    let kinds = ["coding", "reasoning", "factual", "creative"];
    let expected: Vec<(&str, u64)> = [4, 6]
        .into_iter()
        .flat_map(|n| kinds.map(|kind| (kind, n)))
        .collect();
    assert_eq!(tasks, expected);
    for (phase, at) in [("prefill", 1), ("decode", 2), ("end_to_end", 3)] {
        let ratios = pairs.iter().map(|pair| {
            number(pair, &format!("/subject/{phase}")) / number(pair, &format!("/baseline/{phase}"))
        });
        let mean = ratios.sum::<f64>() / 8.0;
        let comparison = &found[phase]["comparison"];
        assert_close(number(comparison, "/ratio"), mean, 1e-12);
        let (low, high) = (
            number(comparison, "/interval/0"),
            number(comparison, "/interval/1"),
        );
        assert!(low <= mean && mean <= high, "{at}: {comparison}");
        assert_eq!(number(comparison, "/paired_t/degrees"), 7.0);
        let sums = number(comparison, "/wilcoxon/plus") + number(comparison, "/wilcoxon/minus");
        assert_eq!(sums, 36.0);
        assert!(number(comparison, "/variance/threshold") > 8.0);
    }
    let run = pairs[0]["subject"].as_object().unwrap();
    for absent in [
        "joules",
        "tokens_per_joule",
        "power_watts",
        "temperature_celsius",
    ] {
        assert!(!run.contains_key(absent), "{absent}");
    }
    assert!(found.get("energy").is_none() && found.get("sensor").is_none());
    let lengths: Vec<u64> = list(&found, "/context")
        .iter()
        .map(|c| c["length"].as_u64().unwrap())
        .collect();
    assert_eq!(lengths, [32, 64]);
    for swept in list(&found, "/context") {
        assert_eq!(list(swept, "/pairs").len(), 8);
        assert_eq!(
            swept["pairs"][0]["subject"]["prompt_tokens"],
            swept["length"]
        );
        assert!(number(swept, "/decode/comparison/ratio") > 0.0);
    }
    let html = fs::read_to_string(&page).unwrap();
    for words in [
        "a.gguf against b.gguf",
        "Ratios to the baseline",
        "By length of context",
        "Wilcoxon",
        "coding, 4 tokens",
    ] {
        assert!(html.contains(words), "no {words}");
    }
    assert_eq!(html.matches("<svg ").count(), 8);
}

#[test]
fn without_baseline_only_speeds_are_reported() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let page = scratch.path("page.html");
    let run = bench(&model).args(["--pairs", "3", "--prompts", "creative,coding"]);
    let outcome = run.arg("-o").arg(&page).run().assert_ok();
    assert!(outcome.stderr.contains("tokens/s"), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("no turn for coding/6"),
        "{}",
        outcome.stderr
    );
    let found = outcome.json();
    assert_eq!(list(&found, "/pairs").len(), 3);
    assert_eq!(text(&found, "/pairs/0/prompt"), "creative");
    assert!(found.get("baseline").is_none() && found["decode"].get("comparison").is_none());
    assert_eq!(number(&found, "/decode/subject/count"), 3.0);
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .contains("Speed of a.gguf")
    );
}

#[test]
fn active_fraction_is_compared_with_the_whole() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let (artifact, _) = compile(
        &scratch,
        &model,
        "a.htz",
        &["--method", "low-rank", "--rank", "16"],
    );
    let text_file = scratch.file("words.txt", words(1500));
    let gates = scratch.file(
        "gates.json",
        "[{\"metric\": \"perplexity_increase\", \"at_most\": 1e9, \"rank\": 16},\n{\"metric\": \"decode_speed\", \"at_least\": 1e-9, \"rank\": 99}]",
    );
    let run = bench(&artifact).args(["--fraction", "0.8", "--pairs", "2"]);
    let run = run
        .arg("--against")
        .arg(&artifact)
        .arg("--text")
        .arg(&text_file);
    let found = run.arg("--gates").arg(&gates).run().json();
    let fraction = number(&found, "/subject/fraction");
    assert!(fraction < 0.81 && fraction > 0.1, "{fraction}");
    assert!(found["baseline"].get("fraction").is_none());
    assert!(number(&found, "/quality/perplexity_ratio_all") != 1.0);
    assert_eq!(text(&found, "/gates/0/outcome"), "passed");
    assert_eq!(text(&found, "/gates/1/outcome"), "other_rank");
}

#[test]
fn failed_gate_fails_after_the_report() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let page = scratch.path("page.html");
    for (bound, code) in [("\"at_most\": 1e-9", 1), ("\"at_least\": 1e-9", 0)] {
        let gates = format!("[{{\"metric\": \"decode_speed\", {bound}}}]");
        let gates = scratch.file("gates.json", gates);
        let run = bench(&model)
            .args(["--pairs", "2"])
            .arg("--gates")
            .arg(&gates);
        let outcome = run.arg("-o").arg(&page).arg("--force").run();
        assert_eq!(outcome.code(), Some(code), "{}", outcome.stderr);
        let found: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        let word = if code == 0 { "passed" } else { "failed" };
        assert_eq!(text(&found, "/gates/0/outcome"), word);
        assert!(fs::read_to_string(&page).unwrap().contains(word));
        let reported = outcome
            .stderr
            .contains("htc: 1 of 1 gates failed, the first: decode_speed");
        assert_eq!(reported, code == 1, "{}", outcome.stderr);
    }
}

#[test]
fn invalid_gates_are_refused_early() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let with = |gates: &Path| bench(&model).arg("--gates").arg(gates).run();
    let gates = scratch.file("gates.json", "[\n{\"metric\": \"text\", \"at_least\": 1}]");
    with(&gates).assert_refused(1, &["gates.json", "line 2", "\"text\"", "decode_ratio"]);
    let gates = scratch.file(
        "gates.json",
        "[{\"metric\": \"decode_ratio\", \"text\": 1}]",
    );
    with(&gates).assert_refused(1, &["line 1", "`text`"]);
    with(&scratch.path("no.json")).assert_refused(1, &["no.json", "paper"]);
    with(Path::new("paper")).assert_refused(2, &["--gates", "--against"]);
    let gates = scratch.file(
        "gates.json",
        "[{\"metric\": \"decode_speed\", \"at_least\": 1, \"rank\": 7}]",
    );
    with(&gates).assert_refused(2, &["--gates", "rank 7"]);
    let run = bench(&model)
        .arg("--against")
        .arg(&model)
        .args(["--gates", "paper"]);
    run.run()
        .assert_refused(2, &["perplexity_increase", "--text"]);
}

#[test]
fn invalid_values_are_refused_with_their_option() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let run = |options: &[&str]| htc!["bench", &model, "--threads", "1"].args(options).run();
    run(&["--tokens", "1000"]).assert_refused(2, &["a.gguf", "--tokens", "1024"]);
    run(&["--contexts", "64,1025", "--tokens", "4"])
        .assert_refused(2, &["--contexts", "1025", "1024"]);
    for (option, value) in [
        ("--tokens", "1"),
        ("--tokens", "4,4"),
        ("--tokens", "4,,6"),
        ("--tokens", "-4"),
        ("--prompts", "coding,poetry"),
        ("--prompts", ""),
        ("--contexts", "0"),
        ("--contexts", "many"),
        ("--pairs", "0"),
        ("--pairs", "-1"),
        ("--cool-down", "nan"),
        ("--cool-down", "-1"),
        ("--warm-up", "101"),
        ("--time-limit", "0"),
        ("--fraction", "0"),
        ("--threads", "0"),
        ("--kv", "f64"),
        ("--seed", "x"),
    ] {
        run(&[option, value]).assert_refused(2, &[option]);
    }
    run(&["--text", "t"]).assert_refused(2, &["--against"]);
    run(&["--force"]).assert_refused(2, &["--output"]);
    let path = model.to_str().unwrap();
    run(&["--against", path, "--against-model", path])
        .assert_refused(2, &["--against-model", "llama.cpp:BIN"]);
    run(&["--against", "no.gguf"]).assert_refused(1, &["no.gguf"]);
}

#[test]
fn full_context_has_no_decode_speed() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let run = bench(&model).args(["--pairs", "2", "--warm-up", "0", "--contexts", "all"]);
    let outcome = run.run().assert_ok();
    assert!(
        outcome.stderr.contains("after a context of 1024 tokens"),
        "{}",
        outcome.stderr
    );
    let found = outcome.json();
    let swept = list(&found, "/context");
    let lengths: Vec<u64> = swept
        .iter()
        .map(|c| c["length"].as_u64().unwrap())
        .collect();
    assert_eq!(lengths, [128, 256, 512, 1024]);
    assert!(swept[2].get("decode").is_some());
    assert!(swept[3].get("decode").is_none() && swept[3].get("prefill").is_some());
}

#[test]
fn page_is_not_overwritten_without_force() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let taken = scratch.file("page.html", "mine");
    bench(&model)
        .arg("-o")
        .arg(&taken)
        .run()
        .assert_refused(1, &["page.html", "--force"]);
    bench(&model)
        .arg("-o")
        .arg(&model)
        .arg("--force")
        .run()
        .assert_refused(2, &["a.gguf", "-o"]);
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
}

#[test]
fn llama_cpp_is_measured_in_the_same_pairs() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let log = scratch.path("log");
    let does = format!("echo \"$@\" >> '{}'\n{RESULT}", log.display());
    let program = fake_llama_bench(&scratch, &does);
    for place in [program.as_path(), scratch.folder()] {
        fs::write(&log, "").unwrap();
        let run = bench(&model).args(["--pairs", "2", "--contexts", "32", "--kv", "f32"]);
        let found = run
            .arg("--against")
            .arg(llama_cpp_argument(place))
            .run()
            .json();
        assert_eq!(text(&found, "/baseline/engine"), "llama.cpp abc (CPU)");
        for pair in list(&found, "/pairs") {
            assert_close(number(pair, "/baseline/decode"), 50.0, 1e-6);
            assert_close(number(pair, "/baseline/prefill"), 50.0, 1e-6);
            let prompt = number(pair, "/baseline/prompt_tokens");
            assert_eq!(prompt, number(pair, "/subject/prompt_tokens"));
            let tokens = number(pair, "/tokens");
            let expected = tokens / ((prompt + tokens - 1.0) / 50.0);
            assert_close(number(pair, "/baseline/end_to_end"), expected, 1e-6);
        }
        let asked = fs::read_to_string(&log).unwrap();
        let lines: Vec<&str> = asked.lines().collect();
        assert_eq!(lines.len(), 12, "{asked}");
        let of_context = [
            "-p 32 -n 0 -r 1 -o json -t 1 -ngl 0 -ctk f32 -ctv f32",
            "-p 0 -n 32 -d 32 -r 1 -o json -t 1 -ngl 0 -ctk f32 -ctv f32",
        ];
        assert!(
            lines[10].ends_with(of_context[0]) && lines[11].ends_with(of_context[1]),
            "{asked}"
        );
    }
}

#[test]
fn llama_cpp_requires_a_gguf() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let (artifact, _) = compile(&scratch, &model, "a.htz", &["--rank", "16"]);
    let program = llama_cpp_argument(&fake_llama_bench(&scratch, RESULT));
    let with = |other: &[&Path]| {
        let run = bench(&artifact).args(["--pairs", "2", "--against", &program]);
        other
            .iter()
            .fold(run, |run, path| run.arg("--against-model").arg(path))
            .run()
    };
    with(&[]).assert_refused(2, &["a.htz", "no GGUF", "--against-model"]);
    with(&[&artifact]).assert_refused(2, &["a.htz", "no GGUF"]);
    with(&[scratch.folder()]).assert_refused(2, &["no GGUF"]);
    let found = with(&[&model]).json();
    assert_eq!(text(&found, "/baseline/name"), "a.gguf");
}

#[test]
fn llama_cpp_failures_give_one_line_errors() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let with = |program: &Path| {
        let run = bench(&model).args(["--pairs", "2", "--time-limit", "2", "--against"]);
        run.arg(llama_cpp_argument(program)).run()
    };
    with(&scratch.path("no")).assert_refused(1, &["no llama-bench there"]);
    for (does, words) in [
        (
            "echo oops >&2; echo 'bad\u{1b}[31m model' >&2; exit 3",
            &["3", "bad", "by itself"][..],
        ),
        ("kill -9 $$", &["signal", "9"]),
        ("exit 0", &["found nothing"]),
        ("echo '[{\"n_prompt\": 1'", &["JSON"]),
        ("echo '{}'", &["JSON"]),
        (
            "echo '[{\"n_prompt\": 3, \"n_gen\": 9, \"avg_ts\": 5.0}]'",
            &["something else"],
        ),
        (
            "printf '[{\"n_prompt\": %s, \"n_gen\": %s, \"avg_ts\": 0.0}]' \"$4\" \"$6\"",
            &["0 tokens/s"],
        ),
        (
            "printf '[{\"n_prompt\": %s, \"n_gen\": %s, \"avg_ts\": -1e400}]' \"$4\" \"$6\"",
            &["JSON"],
        ),
        ("yes", &["not finished after 2 s", "--time-limit"]),
        ("sleep 100", &["not finished after 2 s"]),
        ("sleep 5 & exit 0", &["not finished after 2 s"]),
    ] {
        with(&fake_llama_bench(&scratch, does)).assert_refused(1, words);
    }
    let other = scratch.file("llama-bench", "#!/bin/sh\necho 'usage: other'\n");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    with(&other).assert_refused(1, &["its help knows no -p"]);
    fs::write(&other, "neither a script nor a program").unwrap();
    with(&other).assert_refused(1, &["cannot be started"]);
}

fn wait_for(path: &Path) {
    let started = Instant::now();
    while !path.exists() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{} was not made",
            path.display()
        );
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn interrupt_ends_bench_and_its_children() {
    let scratch = Scratch::new();
    let model = tiny(&scratch, "a.gguf", 1);
    let pids = scratch.path("pids");
    let does = format!(
        "sleep 100 & echo $! $$ > '{0}.new'; mv '{0}.new' '{0}'; wait",
        pids.display()
    );
    let program = fake_llama_bench(&scratch, &does);
    let mut child = bench(&model)
        .arg("--against")
        .arg(llama_cpp_argument(&program))
        .spawn();
    wait_for(&pids);
    let signal = |of: &str, signal: &str| {
        Command::new("kill")
            .args([signal, of])
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(signal(&child.id().to_string(), "-INT"));
    let status = wait(&mut child, Duration::from_secs(10), "interrupted htc bench");
    assert_eq!(status.code(), Some(130));
    let started = Instant::now();
    for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
        // An orphan remains a zombie until it is reaped.
        let alive = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            signal(pid, "-0") && !stat.contains(") Z")
        };
        while alive() {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{pid} is still there"
            );
            sleep(Duration::from_millis(10));
        }
    }
    let waiting = htc!["bench", &model, "--tokens", "4", "--cool-down", "600"];
    let mut child = waiting.spawn();
    sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none());
    assert!(signal(&child.id().to_string(), "-INT"));
    let status = wait(&mut child, Duration::from_secs(10), "interrupted htc bench");
    assert_eq!(status.code(), Some(130));
}
