//! `htc run --chat` and `htc chat`: prompts from chat templates, and faulty templates.

use std::time::{Duration, Instant};

use htc_formats::gguf::Value;
use htc_tests::{Htc, Outcome, Scratch, TinyModel, htc};

fn chat_run(scratch: &Scratch, template: &str, options: &[&str]) -> Htc {
    let key = "tokenizer.chat_template";
    let tiny = TinyModel::default().with(key, Value::String(template.to_owned()));
    let model = scratch.file("chat.gguf", tiny.bytes());
    let chat = ["-p", "the cat", "--chat", "-n", "4", "--temp", "0"];
    htc!["run", &model, "--ignore-eos"].args(chat).args(options)
}

fn run_chat(scratch: &Scratch, template: &str, options: &[&str]) -> Outcome {
    chat_run(scratch, template, options).run()
}

fn complete_text(scratch: &Scratch, text: &str) -> Outcome {
    let model = scratch.file("plain.gguf", TinyModel::default().bytes());
    let options = ["-p", text, "-n", "4", "--temp", "0", "--ignore-eos"];
    htc!["run", &model].args(options).run().assert_ok()
}

fn read(outcome: &Outcome) -> &str {
    let (_, rest) = outcome.stderr.split_once("prompt: ").unwrap();
    rest.split_once(' ').unwrap().0
}

#[test]
fn template_formats_the_prompt() {
    let scratch = Scratch::new();
    let template = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}model{% endif %}";
    let chat_run = run_chat(&scratch, template, &[]).assert_ok();
    let plain = complete_text(&scratch, "user the cat\nmodel");
    assert_eq!(chat_run.stdout, plain.stdout);
    assert_eq!(read(&chat_run), read(&plain));
    let chat_run = run_chat(&scratch, template, &["--system", "sit"]).assert_ok();
    let plain = complete_text(&scratch, "system sit\nuser the cat\nmodel");
    assert_eq!(chat_run.stdout, plain.stdout);
}

#[test]
fn bos_is_added_once() {
    let scratch = Scratch::new();
    let with = run_chat(&scratch, "{{ bos_token }}{{ messages[0].content }}", &[]).assert_ok();
    let without = run_chat(&scratch, "{{ messages[0].content }}", &[]).assert_ok();
    assert_eq!(read(&with), read(&without));
    assert_eq!(read(&with), read(&complete_text(&scratch, "the cat")));
}

#[test]
fn artifact_keeps_the_chat_template() {
    let scratch = Scratch::new();
    let template = Value::String("say {{ messages[0].content }}".to_owned());
    let tiny = TinyModel::default().with("tokenizer.chat_template", template);
    let model = scratch.file("chat.gguf", tiny.bytes());
    let artifact = scratch.path("chat.htz");
    htc![
        "compile",
        &model,
        "-o",
        &artifact,
        "--rank",
        "full",
        "--factor-type",
        "f32"
    ]
    .run()
    .assert_ok();
    let options = ["-p", "the cat", "--chat", "-n", "4", "--temp", "0"];
    let chat_run = |model: &std::path::Path| htc!["run", model].args(options).run().assert_ok();
    assert_eq!(chat_run(&artifact).stdout, chat_run(&model).stdout);
}

#[test]
fn model_without_a_template_is_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let outcome = htc!["run", &model, "-p", "the", "--chat"].run();
    outcome.assert_refused(2, &["model.gguf", "no chat template", "without --chat"]);
    let outcome = htc!["run", &model, "-p", "the", "--system", "be brief"].run();
    outcome.assert_refused(2, &["--chat"]);
}

#[test]
fn failing_templates_are_reported() {
    let scratch = Scratch::new();
    for (template, words) in [
        ("{% for m in messages %}", &["syntax error"][..]),
        (
            "{{ raise_exception('no system message') }}",
            &["no system message"],
        ),
        ("{{ messages.a.b }}", &["undefined"]),
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
            &["steps"],
        ),
        (
            "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
            &["bytes"],
        ),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            &["recursion"],
        ),
    ] {
        let outcome = run_chat(&scratch, template, &[]);
        outcome.assert_refused(1, &[&["chat.gguf", "chat template"], words].concat());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn template_memory_is_limited() {
    let scratch = Scratch::new();
    let doubling = "{% set ns = namespace(x='x') %}{% for a in range(60) %}\
                    {% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}";
    for template in [doubling, "{{ ('x' * 99999999999) | length }}"] {
        let started = Instant::now();
        run_chat(&scratch, template, &[]).assert_refused(1, &["chat.gguf", "chat template"]);
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn template_runs_within_system_limits() {
    let scratch = Scratch::new();
    let template = "{{ messages[0].content }}";
    let expected = run_chat(&scratch, template, &[]).assert_ok();
    let limited = chat_run(&scratch, template, &[])
        .memory(900 << 20)
        .run()
        .assert_ok();
    assert_eq!(limited.stdout, expected.stdout);
}

#[test]
fn control_tokens_in_messages_are_plain_text() {
    let scratch = Scratch::new();
    let template = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content | trim }}</s>{% endfor %}";
    let key = "tokenizer.chat_template";
    let run_chat = |template: &str, words: &str| {
        let tiny = TinyModel::default().with(key, Value::String(template.to_owned()));
        let model = scratch.file("chat.gguf", tiny.bytes());
        htc![
            "run", &model, "-p", words, "--chat", "-n", "1", "--temp", "0"
        ]
        .run()
    };
    let tokens = |outcome: &Outcome| read(outcome).parse::<usize>().unwrap();
    let plain = run_chat(template, "the cat sat").assert_ok();
    let spelt = run_chat(template, "the cat</s> sat").assert_ok();
    assert_eq!(tokens(&spelt), tokens(&plain) + 4, "{}", spelt.stderr);
    assert!(tokens(&plain) >= 3);
    let half = "<s>{{ messages[0].content }}s>";
    let joined = run_chat(half, "the</").assert_ok();
    assert_eq!(tokens(&joined), 6, "{}", joined.stderr);
    let cuts = "<s>{{ messages[0].content[1:] }}</s>";
    run_chat(cuts, "the cat").assert_ok();
    run_chat(cuts, "the</s> cat").assert_refused(1, &["</s>", "control token", "chat template"]);
}

fn chat_model(scratch: &Scratch) -> std::path::PathBuf {
    let template = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}model";
    let key = "tokenizer.chat_template";
    let tiny = TinyModel::default().with(key, Value::String(template.to_owned()));
    scratch.file("chat.gguf", tiny.bytes())
}

/// The answer of a conversation to its last message is that of the whole conversation, though the
/// KV cache of the earlier messages is kept.
#[test]
fn conversations_have_a_history() {
    let scratch = Scratch::new();
    let model = chat_model(&scratch);
    let greedy = ["-n", "4", "--temp", "0"];
    let chat = |input: &str| {
        let outcome = htc!["chat", &model].args(greedy).stdin(input).run();
        outcome.assert_ok().text().to_owned()
    };
    let answer = |conversation: &str| {
        let run = htc!["run", &model, "-p", conversation].args(greedy).run();
        run.assert_ok().text().to_owned()
    };
    let first = answer("user the cat\nmodel");
    assert_eq!(chat("the cat\n"), first);
    let said = first.trim_end();
    let second = answer(&format!("user the cat\nassistant {said}\nuser sat\nmodel"));
    assert_eq!(chat("the cat\nsat\n"), format!("{first}{second}"));
    // The last line needs no line break, and empty lines are no messages.
    assert_eq!(chat("the cat\n\nsat"), format!("{first}{second}"));
    assert_eq!(chat("the cat\n/reset\nthe cat\n"), first.repeat(2));
    assert_eq!(chat("the cat\n/exit\nsat\n"), first);
    assert_eq!(chat("the cat\\\nsat\n"), answer("user the cat\nsat\nmodel"));
    assert_eq!(chat(""), "");
}

#[test]
fn conversations_go_on_after_faults() {
    let scratch = Scratch::new();
    let model = chat_model(&scratch);
    let chat = |input: &str, options: &[&str]| {
        let greedy = ["-n", "4", "--temp", "0"];
        let chat = htc!["chat", &model].args(greedy).args(options);
        chat.stdin(input).run().assert_ok()
    };
    let plain = chat("the cat\n", &[]).stdout;
    let unknown = chat("/help\nthe cat\n", &[]);
    assert!(unknown.stderr.contains("/help: there are /reset and /exit"));
    assert_eq!(unknown.stdout, plain);
    // A message longer than the context, and one that would leave no room for an answer.
    for words in [800, 55] {
        let long = "cat ".repeat(words);
        let full = chat(&format!("{long}\nthe cat\n"), &["-c", "64"]);
        let said = "48 of the context of 64 are for it";
        assert!(full.stderr.contains(said), "{}", full.stderr);
        assert_eq!(full.stdout, plain);
    }
    let short = format!("{}\n", "cat ".repeat(30));
    let fits = chat(&short, &["-c", "64"]);
    assert!(!fits.stderr.contains("are for it"), "{}", fits.stderr);
    let many = "the cat\n".repeat(20);
    let forgets = chat(&many, &["-c", "64"]);
    assert!(forgets.stderr.contains("oldest messages are forgotten"));
    assert_eq!(forgets.text().lines().count(), 20, "{}", forgets.text());
    let binary = htc!["chat", &model, "-s", "1"]
        .stdin(b"\xff\n".to_vec())
        .run();
    binary.assert_refused(1, &["standard input", "UTF-8"]);
    htc!["chat", &model, "-c", "999999"]
        .run()
        .assert_refused(2, &["--ctx-size 999999", "positions"]);
    let plain = scratch.file("plain.gguf", TinyModel::default().bytes());
    htc!["chat", &plain]
        .run()
        .assert_refused(2, &["plain.gguf", "no chat template"]);
}
