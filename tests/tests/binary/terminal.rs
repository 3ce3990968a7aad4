//! Behaviour on a terminal, provided by `script`.

use std::path::Path;
use std::process::{Command, Stdio};

use htc_formats::gguf::{Array, Value};
use htc_tests::material::demo;
use htc_tests::model::vocabulary;
use htc_tests::{Scratch, TinyModel, binary, htc};

fn on_terminal(arguments: &[&Path]) -> Option<(String, Option<i32>)> {
    let quoted = |path: &Path| format!("'{}'", path.display());
    let command: Vec<String> = std::iter::once(binary::path().as_path())
        .chain(arguments.iter().copied())
        .map(quoted)
        .collect();
    let run = Command::new("script")
        .args(["-q", "-e", "-c", &command.join(" "), "/dev/null"])
        .stdin(Stdio::null())
        .output();
    match run {
        Ok(run) => Some((String::from_utf8(run.stdout).unwrap(), run.status.code())),
        Err(error) => {
            eprintln!("skipped: script: {error}");
            None
        }
    }
}

#[test]
fn compile_shows_progress_by_projection() {
    let scratch = Scratch::new();
    let (model, output) = (demo("reference-7m-f16.gguf"), scratch.path("out.htz"));
    let arguments = [
        "compile".as_ref(),
        model.as_path(),
        "-o".as_ref(),
        output.as_path(),
        "--method".as_ref(),
        "low-rank".as_ref(),
    ];
    let Some((shown, code)) = on_terminal(&arguments) else {
        return;
    };
    assert_eq!(code, Some(0), "{shown}");
    // The display is refreshed some times a second.
    let layers = (0..8).filter(|layer| shown.contains(&format!("layer {layer}:")));
    assert!(layers.count() >= 1, "{shown}");
}

#[test]
fn run_does_not_wait_for_a_prompt() {
    let model = demo("reference-7m-f16.gguf");
    let Some((shown, code)) = on_terminal(&["run".as_ref(), model.as_path()]) else {
        return;
    };
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("-p") && shown.contains("-f FILE"), "{shown}");
}

const HOSTILE: &str = "x\u{1b}[2J\u{9b}1m\u{202e}y\u{7f}";

fn controls_terminal(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\r' | '\t')) || c == '\u{202e}'
}

fn hostile_model() -> TinyModel {
    let mut tokens = vocabulary();
    for (id, token) in tokens
        .iter_mut()
        .enumerate()
        .skip(htc_tests::model::FIRST_PIECE)
    {
        *token = format!("{HOSTILE}{id}");
    }
    TinyModel::default()
        .with("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)))
        .with("general.name", Value::String(HOSTILE.to_owned()))
        .with(&format!("key {HOSTILE}"), Value::Bool(true))
        .with(
            "tokenizer.chat_template",
            Value::String(format!("{{{{ raise_exception('{HOSTILE}') }}}}")),
        )
}

#[test]
fn file_contents_cannot_control_the_terminal() {
    let scratch = Scratch::new();
    let model = scratch.file(&format!("a{HOSTILE}\n.gguf"), hostile_model().bytes());
    let text = scratch.file("text.txt", "the cat\u{1b}[2J");
    let output = scratch.path(&format!("b{HOSTILE}.htz"));
    let prompt = [
        "run".as_ref(),
        model.as_os_str(),
        "-p".as_ref(),
        "the".as_ref(),
    ];
    let short = ["-n", "8", "--temp", "2", "--seed", "0", "--ignore-eos"];
    for run in [
        htc!["inspect", &model],
        htc!["inspect", &model, "--json"],
        htc!["inspect", scratch.path(&format!("no{HOSTILE}"))],
        htc!["tokenize", &model, "--text", &text],
        htc![
            "tokenize",
            &model,
            "--text",
            scratch.path(&format!("no{HOSTILE}"))
        ],
        htc!["eval", &model, "--text", &text, "--context", "4"],
        htc!["compile", &model, "-o", &output, "--rank", "8"],
        htc!["verify", &output],
        htc!["inspect", &output],
        htc!["compile", &model, "-o", &output, "--rank", "8"],
        htc!["run", &model, "-p", "the", "--chat"],
        htc!["report", &model, "-o", scratch.path("page.html")],
        htc![HOSTILE],
    ] {
        let outcome = run.run();
        assert!(!outcome.stderr.contains(controls_terminal), "{outcome:?}");
        assert!(!outcome.text().contains(controls_terminal), "{outcome:?}");
    }
    let piped = htc_tests::Htc::new()
        .args(prompt)
        .args(short)
        .run()
        .assert_ok();
    assert!(piped.text().contains(HOSTILE), "{}", piped.text());
    let plain = scratch.file("plain.gguf", hostile_model().bytes());
    let arguments: Vec<&Path> = [
        "run".as_ref(),
        plain.as_path(),
        "-p".as_ref(),
        "the".as_ref(),
    ]
    .into_iter()
    .chain(short.iter().map(Path::new))
    .collect();
    let Some((shown, code)) = on_terminal(&arguments) else {
        return;
    };
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains(controls_terminal), "{shown:?}");
    assert!(
        shown.contains("\\u{1b}[2J\\u{9b}1m\\u{202e}y\\u{7f}"),
        "{shown:?}"
    );
}
