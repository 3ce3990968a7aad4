//! `htc run --chat`: prompts from chat templates, and faulty templates.

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
