//! Tests of the command line: all suites here run the binary.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

mod analyse;
mod bad_input;
mod bench;
mod beside;
mod budgets;
mod calibrate;
mod chat;
mod coded;
mod compile;
mod default;
mod device;
mod draft;
mod dry_run;
mod energy;
mod eval;
mod exempt;
mod export;
mod factors;
mod forms;
mod goal;
#[cfg(all(feature = "emulated", target_os = "linux"))]
mod gpu;
mod head;
mod inspect;
mod interrupt;
mod killed;
mod kv;
mod kv_bases;
mod live;
mod outliers;
mod padding;
mod plan;
mod planes;
mod probe;
mod quality;
mod quantise;
mod rank;
mod report;
mod rotation;
mod run;
mod schema;
mod store;
mod terminal;
mod texts;
mod tokenize;
mod trained;
mod treatment;
mod tune;
mod usage;
mod verify;
mod with_source;

use std::path::{Path, PathBuf};

use htc_tests::{Htc, Scratch, htc};
use serde_json::Value;

const METHODS: [&str; 2] = ["low-rank", "shared-basis"];

const FACTOR_TYPES: [&str; 4] = ["f32", "f16", "bf16", "q8_0"];

#[track_caller]
fn compile(scratch: &Scratch, input: &Path, name: &str, options: &[&str]) -> (PathBuf, Value) {
    let output = scratch.path(name);
    let report = htc!["compile", input, "-o", &output, "--report", "json"]
        .args(options)
        .run()
        .json();
    (output, report)
}

fn compile_calibrated(scratch: &Scratch, model: &Path, output: &str, text: &Path) -> Htc {
    htc![
        "compile",
        model,
        "-o",
        scratch.path(output),
        "--calibration",
        text,
        "--cache",
        scratch.path("cache"),
        "--report",
        "json",
        "--force"
    ]
}

fn eval(model: &Path, text: &Path, options: &[&str]) -> Htc {
    htc!["eval", model, "--text", text, "--json"].args(options)
}

#[track_caller]
fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| missing("number", value, pointer))
}

#[track_caller]
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| missing("text", value, pointer))
}

#[track_caller]
fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.unwrap_or_else(|| missing("list", value, pointer))
}

#[track_caller]
fn missing(kind: &str, value: &Value, pointer: &str) -> ! {
    panic!("no {kind} at {pointer} in {:.2000}", value.to_string())
}

#[track_caller]
fn assert_close(found: f64, expected: f64, tolerance: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(
        off <= tolerance,
        "{found} differs from {expected} by {off:.2e} of it, {tolerance:.0e} is allowed"
    );
}
