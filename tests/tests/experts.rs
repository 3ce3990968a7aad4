//! Mixtures of experts: logits compared with transformers and with dense models, and the program on them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use htc_formats::DType;
use htc_formats::gguf::Value;
use htc_formats::model::{ProjectionKind, Role};
use htc_loader::Model;
use htc_loader::backend::Reference;
use htc_loader::kv::KvType;
use htc_tests::artifact::Artifact;
use htc_tests::logits::{at_positions, largest_difference, last_logits, with_kv_type};
use htc_tests::material::{shared, words};
use htc_tests::model::Tensor;
use htc_tests::npy::Array;
use htc_tests::{Htc, Scratch, TinyExperts, TinyModel, htc};

fn tiny() -> TinyModel {
    TinyModel {
        experts: Some(TinyExperts {
            count: 6,
            used: 2,
            ffn: 48,
        }),
        ..TinyModel::default()
    }
}

fn tokens() -> Vec<u32> {
    (0..40).map(|i| 3 + i * 7 % 290).collect()
}

#[test]
fn mixtures_give_the_logits_of_transformers() {
    for name in ["qwen3moe", "mixtral"] {
        let Some(folder) = shared(&format!("reference/arch/{name}")) else {
            return;
        };
        let tokens = Array::read(&folder.join("tokens.npy")).tokens();
        let expected = Array::read(&folder.join("logits.npy")).f32();
        let scratch = Scratch::new();
        let saved = saved_by_transformers_5(&scratch, &folder);
        for path in [&folder.join("model.gguf"), &folder, &saved] {
            assert_gives(path, &tokens, &expected);
        }
    }
}

/// Returns a folder with the configuration as transformers 5 spells it.
fn saved_by_transformers_5(scratch: &Scratch, folder: &Path) -> PathBuf {
    let saved = scratch.path("saved");
    std::fs::create_dir(&saved).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".safetensors") || name.starts_with("tokenizer") {
            std::fs::copy(&path, saved.join(name)).unwrap();
        }
    }
    let config = folder.join("config.transformers5.json");
    std::fs::copy(config, saved.join("config.json")).unwrap();
    saved
}

fn assert_gives(path: &Path, tokens: &[u32], expected: &[f32]) {
    let model = Arc::new(Model::open(path).unwrap());
    for (kv_type, bound) in [(KvType::F32, 1e-3), (KvType::F16, 5e-3)] {
        for threads in [1, 2] {
            let positions = [0, 1, 31, 100, 159];
            for found in with_kv_type(&model, tokens, &positions, threads, kv_type) {
                let difference = largest_difference(&found, expected);
                assert!(difference < bound, "{}: {difference:.2e}", path.display());
            }
        }
    }
    let last = last_logits(path, tokens, Reference);
    let expected = &expected[expected.len() - last.len()..];
    let difference = largest_difference(&last, expected);
    assert!(difference < 1e-4, "{}: {difference:.2e}", path.display());
}

fn logits(scratch: &Scratch, name: &str, model: &TinyModel, tensors: &[Tensor]) -> Vec<f32> {
    let path = scratch.file(name, model.bytes_with_tensors(tensors));
    let model = Arc::new(Model::open(&path).unwrap());
    let [batched, single] = at_positions(&model, &tokens(), &[0, 7, 39], 2);
    assert!(largest_difference(&single, &batched) < 1e-4);
    batched
}

/// Weights that add up to 1 leave the output of experts that are all the same.
#[test]
fn identical_experts_equal_a_dense_network() {
    let scratch = Scratch::new();
    let dense = TinyModel {
        ffn: 48,
        ..TinyModel::default()
    };
    let mut of_dense = dense.tensors();
    let mut of_experts = tiny().tensors();
    for tensor in &mut of_experts {
        let found = of_dense.iter_mut().find(|dense| match tensor.stack {
            Some(_) => tensor.name.replace("_exps", "") == dense.name,
            None => tensor.name == dense.name,
        });
        match (found, tensor.stack) {
            (Some(dense), Some(count)) => tensor.values = dense.values.repeat(count),
            (Some(dense), None) => tensor.values.clone_from(&dense.values),
            (None, _) => {}
        }
    }
    let norms = of_experts.iter().filter(|tensor| {
        let name = tensor.name.as_str();
        name.ends_with("attn_q_norm.weight") || name.ends_with("attn_k_norm.weight")
    });
    of_dense.extend(norms.cloned());
    // qwen3 has the same attention and a dense network.
    let number = |n: usize| Value::U32(u32::try_from(n).unwrap());
    let dense = dense
        .with("general.architecture", Value::String("qwen3".to_owned()))
        .with("qwen3.context_length", number(256))
        .with("qwen3.embedding_length", number(64))
        .with("qwen3.block_count", number(2))
        .with("qwen3.feed_forward_length", number(48))
        .with("qwen3.attention.head_count", number(4))
        .with("qwen3.attention.head_count_kv", number(2))
        .with("qwen3.attention.key_length", number(16))
        .with("qwen3.attention.value_length", number(16))
        .with("qwen3.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let expected = logits(&scratch, "dense.gguf", &dense, &of_dense);
    let found = logits(&scratch, "experts.gguf", &tiny(), &of_experts);
    let difference = largest_difference(&found, &expected);
    assert!(difference < 1e-5, "{difference:.2e}");
    // Weights that are not divided by their sum make the output smaller.
    let raw = tiny().with("qwen3moe.expert_weights_norm", Value::Bool(false));
    let found = logits(&scratch, "raw.gguf", &raw, &of_experts);
    assert!(largest_difference(&found, &expected) > 1e-2);
}

#[test]
fn permuting_experts_with_their_scores_changes_nothing() {
    let scratch = Scratch::new();
    let model = tiny();
    let tensors = model.tensors();
    let expected = logits(&scratch, "model.gguf", &model, &tensors);
    let reversed = |values: &[f32], count: usize| -> Vec<f32> {
        let parts = values.chunks(values.len() / count);
        parts.rev().flatten().copied().collect()
    };
    let mut permuted = tensors.clone();
    for tensor in &mut permuted {
        if tensor.stack.is_some() || tensor.name.ends_with("ffn_gate_inp.weight") {
            tensor.values = reversed(&tensor.values, 6);
        }
    }
    let found = logits(&scratch, "permuted.gguf", &model, &permuted);
    let difference = largest_difference(&found, &expected);
    assert!(difference < 1e-5, "{difference:.2e}");
    // Without their scores the experts are others.
    let routers = tensors.iter().filter(|tensor| tensor.stack.is_none());
    let stacks = permuted.iter().filter(|tensor| tensor.stack.is_some());
    let mixed: Vec<Tensor> = routers.chain(stacks).cloned().collect();
    let found = logits(&scratch, "mixed.gguf", &model, &mixed);
    assert!(largest_difference(&found, &expected) > 1e-2);
}

#[test]
fn number_of_used_experts_is_followed() {
    let scratch = Scratch::new();
    let with_used = |used: u32| {
        let model = tiny().with("qwen3moe.expert_used_count", Value::U32(used));
        logits(&scratch, &format!("{used}.gguf"), &model, &tiny().tensors())
    };
    let [one, two, all] = [1, 2, 6].map(with_used);
    assert!(largest_difference(&one, &two) > 1e-2);
    assert!(largest_difference(&two, &all) > 1e-2);
}

#[test]
fn damaged_mixtures_are_refused() {
    let scratch = Scratch::new();
    let refused = |name: &str, model: &TinyModel, tensors: &[Tensor], expected: &str| {
        let path = scratch.file(name, model.bytes_with_tensors(tensors));
        let error = Model::open(&path).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains('\n'));
    };
    let tensors = tiny().tensors();
    let without = tiny().with("qwen3moe.expert_count", None);
    refused("count.gguf", &without, &tensors, "expert_count");
    let many = tiny().with("qwen3moe.expert_count", Value::U32(u32::MAX));
    refused("many.gguf", &many, &tensors, "experts.count is 4294967295");
    let used = tiny().with("qwen3moe.expert_used_count", Value::U32(7));
    refused(
        "used.gguf",
        &used,
        &tensors,
        "experts.used is 7, expected 1 to 6",
    );
    let other = tiny().with("qwen3moe.expert_count", Value::U32(5));
    refused("other.gguf", &other, &tensors, "expected shape");
    let mut flat = tensors.clone();
    for tensor in &mut flat {
        if let Some(count) = tensor.stack.take() {
            tensor.rows *= count;
        }
    }
    refused("flat.gguf", &tiny(), &flat, "expected shape [6, 48, 64]");
    let mut missing = tensors;
    missing.retain(|tensor| tensor.name != "blk.1.ffn_gate_inp.weight");
    refused(
        "router.gguf",
        &tiny(),
        &missing,
        "\"blk.1.ffn_gate_inp.weight\" is missing",
    );
}

/// A Mixtral with trained routers, evaluated by llama.cpp in the same windows.
#[test]
fn trained_mixture_has_the_perplexity_of_llama_cpp() {
    let model = shared("models/reference-moe/reference-moe-q8_0.gguf");
    let text = shared("text/wikitext2.test.raw.txt");
    let (Some(model), Some(text)) = (model, text) else {
        return;
    };
    let eval = htc!["eval", &model, "--text", &text, "--context", "512"];
    let report = eval.args(["--chunks", "40", "--json"]).run().json();
    let perplexity = report["perplexity"].as_f64().unwrap();
    assert!((perplexity / 50.84 - 1.0).abs() < 1e-3, "{perplexity}");
}

#[test]
fn program_executes_and_evaluates_experts() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny().bytes());
    let text = scratch.file("text.txt", words(400).into_bytes());
    let run = htc!["run", &model, "-p", "the cat", "-n", "8", "--temp", "0"];
    assert!(run.run().assert_ok().stdout.len() > 7);
    let report = htc!["eval", &model, "--text", &text, "--context", "32", "--json"];
    let report = String::from_utf8(report.run().assert_ok().stdout).unwrap();
    assert!(report.contains("perplexity"), "{report}");
}

/// Rows of experts are whole blocks.
fn wide() -> TinyModel {
    TinyModel {
        experts: Some(TinyExperts {
            count: 6,
            used: 2,
            ffn: 64,
        }),
        ..TinyModel::default()
    }
}

fn compile(scratch: &Scratch, model: &Path, output: &str, options: &[&str]) -> Htc {
    compile_on(scratch, model, output, "2048").args(options)
}

/// Compiles with statistics of this many tokens.
fn compile_on(scratch: &Scratch, model: &Path, output: &str, tokens: &str) -> Htc {
    let text = scratch.path("words.txt");
    if !text.exists() {
        scratch.file("words.txt", words(4000));
    }
    htc!["compile", model, "-o", scratch.path(output)]
        .args(["--calibration".into(), text])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--context", "32", "--calibration-tokens", tokens])
        .args(["--effort", "fast", "--tune", "0", "--report", "json"])
}

/// Tensors of the artifact, with their types.
fn types(path: &Path) -> Vec<(Role, DType)> {
    let manifest = Artifact::open(path).manifest;
    let tensors = manifest.tensors.iter();
    tensors.map(|tensor| (tensor.role, tensor.dtype)).collect()
}

#[test]
fn compiled_mixtures_give_the_logits_of_their_source() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", wide().bytes());
    let expected = last_logits(&model, &tokens(), Reference);
    let codes = ["--method", "quantise", "--bpw"];
    let factors = "--method low-rank --rank 48 --factor-type f32 --projections q,o,gate,up,down";
    let factors: Vec<&str> = factors.split(' ').collect();
    let mut before = f64::INFINITY;
    for (name, options, bound) in [
        ("small.htz", [&codes[..], &["4.5"]].concat(), 3.0),
        ("large.htz", [&codes[..], &["8.5"]].concat(), 1.0),
        (
            "permuted.htz",
            [&codes[..], &["8.5", "--order", "on"]].concat(),
            1.0,
        ),
        ("factors.htz", factors, 3.0),
    ] {
        compile(&scratch, &model, name, &options).run().assert_ok();
        let path = scratch.path(name);
        htc!["verify", &path].run().assert_ok();
        let found = last_logits(&path, &tokens(), Reference);
        let difference = largest_difference(&found, &expected);
        eprintln!("{name}: {difference:.3}");
        assert!(difference < bound, "{name}: {difference:.2e}");
        let artifact = Arc::new(Model::open(&path).unwrap());
        let [batched, single] = at_positions(&artifact, &tokens(), &[0, 7, 39], 2);
        assert!(largest_difference(&single, &batched) < 1e-3, "{name}");
        let last = &batched[batched.len() - found.len()..];
        assert!(largest_difference(last, &found) < 0.5, "{name}");
        for (option, to) in [("-o", "out.gguf"), ("--to-safetensors", "out")] {
            let to = scratch.path(to);
            let export = htc!["export", &path, "--type", "f32", "--force", option, &to];
            export.run().assert_ok();
            let exported = last_logits(&to, &tokens(), Reference);
            assert!(largest_difference(&exported, &found) < 1e-4, "{name}");
        }
        for (role, dtype) in types(&path) {
            let Role::Linear { projection, .. } = role else {
                continue;
            };
            if projection == ProjectionKind::Router {
                assert_eq!(dtype, DType::F32, "{name}: {role}");
            } else if projection.expert().is_some() && name != "factors.htz" {
                assert_ne!(dtype, DType::F32, "{name}: {role}");
            }
        }
        if name == "small.htz" {
            before = difference;
        }
        if name == "large.htz" {
            assert!(difference < before, "{difference} {before}");
        }
    }
}

#[test]
fn artifacts_do_not_depend_on_threads_or_interruptions() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", wide().bytes());
    let options = ["--method", "quantise", "--bpw", "4.5", "--threads"];
    let on = |scratch: &Scratch, threads| {
        let options = [&options[..], &[threads]].concat();
        compile(scratch, &model, "model.htz", &options)
    };
    on(&scratch, "1").run().assert_ok();
    let expected = std::fs::read(scratch.path("model.htz")).unwrap();
    let other = Scratch::new();
    // Killed ever later, until it ends by itself.
    let mut after = Duration::from_millis(40);
    while !other.path("model.htz").exists() {
        let mut child = on(&other, "2").spawn();
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
        after = after * 3 / 2;
    }
    assert!(std::fs::read(other.path("model.htz")).unwrap() == expected);
}

/// The text is too short for each expert to read as many rows as it has inputs.
#[test]
fn experts_that_read_few_rows_are_noted_and_compiled() {
    let scratch = Scratch::new();
    let model = TinyModel {
        experts: Some(TinyExperts {
            count: 16,
            used: 1,
            ffn: 64,
        }),
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", model.bytes());
    let compile = compile_on(&scratch, &model, "model.htz", "256");
    let found = compile.args(["--method", "quantise", "--bpw", "5"]).run();
    let said = found.stderr.clone();
    found.assert_ok();
    assert!(said.contains("of 32 experts read fewer rows"), "{said}");
    let expected = last_logits(&model, &tokens(), Reference);
    let found = last_logits(&scratch.path("model.htz"), &tokens(), Reference);
    let difference = largest_difference(&found, &expected);
    assert!(difference < 3.0, "{difference}");
}

#[test]
fn shared_bases_of_experts_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", wide().bytes());
    let options = ["--method", "shared-basis", "--projections", "gate,up"];
    compile(&scratch, &model, "model.htz", &options)
        .run()
        .assert_refused(2, &["cannot share a basis", "gate", "--method low-rank"]);
    assert!(!scratch.path("model.htz").exists());
}

/// A plan names the matrices of experts, and can be edited.
#[test]
fn plans_of_mixtures_are_read_again() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", wide().bytes());
    let plan = scratch.path("plan.json");
    let options = ["--method", "quantise", "--bpw", "4.5"];
    compile(&scratch, &model, "model.htz", &options)
        .run()
        .assert_ok();
    htc!["plan", &model, "-o", &plan]
        .args(options)
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--effort", "fast"])
        .run()
        .assert_ok();
    let text = std::fs::read_to_string(&plan).unwrap();
    assert!(text.contains("\"expert_down.5\""), "{text}");
    htc!["compile", &model, "-o", scratch.path("again.htz")]
        .args(["--plan".into(), plan])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--tune", "0"])
        .run()
        .assert_ok();
    assert_eq!(
        types(&scratch.path("again.htz")),
        types(&scratch.path("model.htz"))
    );
}

/// Half of the size of the source, compared with one block type of about that size.
#[test]
fn trained_mixture_compiles_to_half_of_its_size() {
    let Some(model) = shared("models/reference-moe/reference-moe-q8_0.gguf") else {
        return;
    };
    let (train, test) = (
        shared("text/wikitext2.train-head.raw.txt"),
        shared("text/wikitext2.test.raw.txt"),
    );
    let (Some(train), Some(test)) = (train, test) else {
        return;
    };
    let scratch = Scratch::new();
    let path = scratch.path("half.htz");
    let report = htc!["compile", &model, "-o", &path, "--calibration", &train]
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--target-size", "11.5MB", "--calibration-tokens", "16384"])
        .args(["--effort", "fast", "--tune", "0", "--report", "json"])
        .args(["--compare", "on"])
        .deadline(Duration::from_secs(1200))
        .run()
        .json();
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes <= 11_500_000, "{bytes}");
    let eval = htc!["eval", &path, "--text", &test, "--reference", &model];
    let found = eval.args(["--chunks", "8", "--json"]).run().json();
    assert!(found["kl"].as_f64().unwrap() < 0.1, "{found}");
    let kl = |measured: &serde_json::Value| measured["evaluation"]["kl"].as_f64().unwrap();
    let own = kl(&report["quality"]);
    let files = report["beside"].as_array().unwrap();
    let near = |file: &&serde_json::Value| file["bytes"].as_f64().unwrap() <= 1.1 * bytes as f64;
    let near: Vec<_> = files.iter().filter(near).collect();
    assert!(!near.is_empty(), "{report}");
    for file in near {
        eprintln!("{bytes} bytes: KL {own}; {file}");
        assert!(own < kl(file), "{own}; {file}");
    }
}
