//! Bad input, one test per fault: each error is a single line that names the file, the tensor or
//! the option, and the remedy.

mod artifact;
mod container;
mod model;
mod options;
mod output;
mod planted;
mod text;

use std::path::PathBuf;

use htc_tests::material::words;
use htc_tests::{Htc, Outcome, Scratch, htc};

const THREADS: [&str; 2] = ["--threads", "2"];

struct BadModel {
    scratch: Scratch,
    model: PathBuf,
    text: PathBuf,
}

impl BadModel {
    fn new(bytes: impl AsRef<[u8]>) -> Self {
        let scratch = Scratch::new();
        let model = scratch.file("model.gguf", bytes);
        let text = scratch.file("text.txt", words(60));
        BadModel {
            scratch,
            model,
            text,
        }
    }

    fn inspect(&self) -> Outcome {
        htc!["inspect", &self.model].with_hostile_limits().run()
    }

    fn tokenize(&self) -> Outcome {
        let run = htc!["tokenize", &self.model, "--text", &self.text, "--json"];
        run.with_hostile_limits().run()
    }

    fn run(&self) -> Outcome {
        let run = htc!["run", &self.model, "-p", "the", "-n", "4"];
        run.args(THREADS).with_hostile_limits().run()
    }

    fn eval(&self) -> Outcome {
        let run = htc!["eval", &self.model, "--text", &self.text, "--context", "16"];
        run.args(THREADS).with_hostile_limits().run()
    }

    fn compile(&self) -> Outcome {
        self.compile_with(&[])
    }

    fn compile_with(&self, options: &[&str]) -> Outcome {
        let output = self.scratch.path("out.htz");
        let run = htc!["compile", &self.model, "-o", &output].args(options);
        let outcome = run.args(THREADS).with_hostile_limits().run();
        if outcome.code() != Some(0) {
            self.scratch.assert_only_files(&["model.gguf", "text.txt"]);
        }
        outcome
    }

    #[track_caller]
    fn assert_no_model(&self, words: &[&str]) {
        let words = [&["model.gguf"], words].concat();
        self.run().assert_refused(1, &words);
        self.eval().assert_refused(1, &words);
        self.compile().assert_refused(1, &words);
    }

    #[track_caller]
    fn assert_refused_by_all(&self, words: &[&str]) {
        self.assert_no_model(words);
        let words = [&["model.gguf"], words].concat();
        self.inspect().assert_refused(1, &words);
        htc!["inspect", &self.model, "--json"]
            .with_hostile_limits()
            .run()
            .assert_refused(1, &words);
        self.tokenize().assert_refused(1, &words);
    }
}

#[track_caller]
fn assert_refused(run: Htc, code: i32, words: &[&str]) {
    run.with_hostile_limits().run().assert_refused(code, words);
}
