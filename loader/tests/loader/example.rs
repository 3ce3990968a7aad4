//! Runs the example on the demo model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use htc_loader::sampling::Sampler;
use htc_loader::tokenizer::AddSpecialTokens;
use htc_loader::{Cpu, Model, Session};

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo/reference-7m-f16.gguf")
}

fn example(arguments: &[&str]) -> Output {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples/generate");
    assert!(
        program.is_file(),
        "{} does not exist: build it with `cargo build --examples`",
        program.display()
    );
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn example_output_matches_the_library() {
    let model = Model::open(demo()).unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let mut session = Session::new(model, Cpu::with_threads(1).unwrap(), 64).unwrap();
    let mut sampler = Sampler::greedy();
    let prompt = tokenizer.encode("Alice was beginning", AddSpecialTokens::Prompt);
    let mut tokens = prompt.clone();
    let mut token = sampler.sample(session.step(&prompt).unwrap()).unwrap();
    for _ in 0..12 {
        tokens.push(token);
        token = sampler.sample(session.step(&[token]).unwrap()).unwrap();
    }
    let (before, all) = (tokenizer.decode(&prompt), tokenizer.decode(&tokens));
    let expected = all.strip_prefix(&before).unwrap();
    assert!(expected.trim().len() > 10, "{expected:?}");

    let path = demo();
    let path = path.to_str().unwrap();
    let output = example(&[path, "Alice was beginning", "12"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("{expected}\n")
    );
    assert_eq!(said, "12 tokens, Limit\n");
}

#[test]
fn errors_are_reported() {
    let output = example(&["/nowhere/model.htz", "the"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nowhere/model.htz"), "{said}");
}
