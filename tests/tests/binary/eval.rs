use std::fs;
use std::path::Path;
use std::sync::Arc;

use htc_loader::kv::KvType;
use htc_loader::{Cpu, Model, Session};
use htc_tests::material::{demo, shared, words};
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::{assert_close, compile, eval, number};

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn json_has_the_documented_keys() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let words = scratch.file("words.txt", words(200));
    let options = ["--context", "64"];
    let result = eval(&model, &words, &options).run().json();
    for key in ["perplexity", "perplexity_all", "stderr", "tokens"] {
        assert!(result[key].is_number(), "{key} in {result}");
    }
    assert!(result["tokens"].is_u64());
    for key in ["kl", "kl_stderr", "top1"] {
        assert!(!keys(&result).contains(&key), "{key} without a reference");
    }
    let options = [&options[..], &["--reference", model.to_str().unwrap()]].concat();
    let result = eval(&model, &words, &options).run().json();
    for key in [
        "perplexity",
        "perplexity_all",
        "stderr",
        "tokens",
        "kl",
        "kl_stderr",
        "top1",
    ] {
        assert!(result[key].is_number(), "{key} in {result}");
    }
}

#[test]
fn single_window_has_no_interval() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let words = scratch.file("words.txt", words(200));
    let reference = model.to_str().unwrap();
    let options = ["--context", "64", "--chunks", "1", "--reference", reference];
    let result = eval(&model, &words, &options).run().json();
    for key in [
        "stderr",
        "stderr_all",
        "kl_stderr",
        "top1_stderr",
        "perplexity_interval",
        "kl_interval",
        "perplexity_ratio_interval",
    ] {
        assert!(result[key].is_null(), "{key} in {result}");
    }
    let shown = htc!["eval", &model, "--text", &words, "--context", "64"];
    let shown = shown.args(["--chunks", "1"]).run().assert_ok();
    assert!(shown.text().contains("a single window"), "{}", shown.text());
}

#[test]
fn without_json_the_result_is_shown() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let words = scratch.file("words.txt", words(100));
    let outcome = htc!["eval", &model, "--text", &words, "--context", "32"]
        .run()
        .assert_ok();
    assert!(outcome.stderr.is_empty() && outcome.text().contains("perplexity"));
}

#[test]
fn infinite_perplexity_is_refused() {
    let scratch = Scratch::new();
    let tiny = TinyModel::default();
    let mut tensors = tiny.tensors();
    for tensor in tensors
        .iter_mut()
        .filter(|t| t.name == "output_norm.weight")
    {
        tensor.values.iter_mut().for_each(|value| *value *= 1e5);
    }
    let model = scratch.file("model.gguf", tiny.bytes_with_tensors(&tensors));
    let words = scratch.file("words.txt", words(200));
    for options in [&["--context", "64"][..], &["--context", "64", "--json"]] {
        let outcome = htc!["eval", &model, "--text", &words].args(options).run();
        outcome.assert_refused(
            1,
            &[
                "model.gguf",
                "perplexity is inf",
                "expected a finite number",
            ],
        );
    }
}

#[test]
fn hidden_characters_of_a_text_are_reported() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let plain = words(200);
    let lines = plain.matches('\n').count();
    assert!(lines > 1);
    let measured = |name: &str, text: &str| {
        let text = scratch.file(name, text);
        let outcome = eval(&model, &text, &["--context", "64"]).run().assert_ok();
        let said = outcome.stderr.clone();
        (number(&outcome.json(), "/perplexity"), said)
    };
    let (expected, said) = measured("plain.txt", &plain);
    assert!(!said.contains("note"), "{said}");
    let (found, said) = measured("mark.txt", &format!("\u{feff}{plain}"));
    assert_eq!(found, expected);
    assert!(
        said.contains("mark.txt: removed the byte order mark"),
        "{said}"
    );
    let (found, said) = measured("crlf.txt", &plain.replace('\n', "\r\n"));
    assert_ne!(found, expected);
    assert!(
        said.contains(&format!("crlf.txt: {lines} lines with CR LF")),
        "{said}"
    );
}

struct TokenScore {
    loss: f64,
    distribution: Vec<f64>,
}

fn score(model: &Arc<Model>, window: &[u32]) -> Vec<TokenScore> {
    let (model, cpu) = (Arc::clone(model), Cpu::with_threads(1).unwrap());
    let session = Session::with_kv_type(model, cpu, window.len(), KvType::F32);
    let mut session = session.unwrap();
    let targets = window[1..].iter();
    targets
        .zip(window)
        .map(|(&target, &token)| {
            session.forward(&[token]).unwrap();
            let logits = session.last_logits().unwrap();
            let largest = logits.iter().copied().fold(f32::MIN, f32::max);
            let largest = f64::from(largest);
            let sum: f64 = logits.iter().map(|&l| (f64::from(l) - largest).exp()).sum();
            let log = |logit: f32| f64::from(logit) - largest - sum.ln();
            let distribution: Vec<f64> = logits.iter().map(|&l| log(l)).collect();
            let loss = -distribution[target as usize];
            TokenScore { loss, distribution }
        })
        .collect()
}

/// Each window is one observation.
fn mean_and_error(values: &[f64], windows: usize) -> (f64, f64) {
    let mean_of = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let mean = mean_of(values);
    let means = values.chunks(values.len() / windows).map(mean_of);
    let squares: f64 = means.map(|m| (m - mean).powi(2)).sum();
    let n = windows as f64;
    (mean, (squares / (n - 1.0) / n).sqrt())
}

fn best(distribution: &[f64]) -> usize {
    let mut best = 0;
    for (token, value) in distribution.iter().enumerate() {
        if *value > distribution[best] {
            best = token;
        }
    }
    best
}

/// The first token of each window becomes BOS if the model adds one, and positions from half of the
/// window on count (or all).
fn assert_definitions(add_bos: bool) {
    let scratch = Scratch::new();
    let text = scratch.file("words.txt", words(150));
    let add = htc_formats::gguf::Value::Bool(add_bos);
    let tiny = TinyModel::default().with("tokenizer.ggml.add_bos_token", add);
    let model = scratch.file("model.gguf", tiny.bytes());
    let (other, _) = compile(&scratch, &model, "other.htz", &["--rank", "8"]);
    let result = htc!["tokenize", &model, "--text", &text, "--json"]
        .run()
        .json();
    let tokens: Vec<u32> = super::list(&result, "/tokens")
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    let (context, chunks) = (48, 3);
    assert!(tokens.len() > 4 * context, "{}", tokens.len());
    assert_eq!(tokens[0] == 1, add_bos);
    let open = |path: &Path| Arc::new(Model::open(path).unwrap());
    let (source, artifact) = (open(&model), open(&other));
    let (mut all, mut half, mut divergence, mut same) = (vec![], vec![], vec![], vec![]);
    let mut more = vec![];
    for window in tokens.chunks_exact(context).take(chunks) {
        let mut window = window.to_vec();
        if add_bos {
            window[0] = 1;
        }
        let scored = score(&artifact, &window).into_iter();
        for (position, (own, theirs)) in scored.zip(score(&source, &window)).enumerate() {
            all.push(own.loss);
            more.push(own.loss - theirs.loss);
            if position >= context / 2 {
                half.push(own.loss);
                let terms = theirs.distribution.iter().zip(&own.distribution);
                divergence.push(terms.map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
                let agree = best(&own.distribution) == best(&theirs.distribution);
                same.push(f64::from(u8::from(agree)));
            }
        }
    }
    let reference = model.to_str().unwrap();
    let options = [
        &["--context", "48", "--chunks", "3", "--reference", reference][..],
        &["--kv-type", "f32"],
    ]
    .concat();
    let found = eval(&other, &text, &options).run().json();
    let (mean, error) = mean_and_error(&half, chunks);
    assert_close(number(&found, "/perplexity"), mean.exp(), 1e-5);
    assert_close(number(&found, "/stderr"), mean.exp() * error, 1e-3);
    let half_width = 4.302_652_73 * error;
    let (low, high) = ((mean - half_width).exp(), (mean + half_width).exp());
    assert_close(number(&found, "/perplexity_interval/0"), low, 1e-3);
    assert_close(number(&found, "/perplexity_interval/1"), high, 1e-3);
    assert_eq!(number(&found, "/tokens"), half.len() as f64);
    let all = mean_and_error(&all, chunks).0.exp();
    assert_close(number(&found, "/perplexity_all"), all, 1e-5);
    let (mean, error) = mean_and_error(&more, chunks);
    assert_close(number(&found, "/perplexity_ratio_all"), mean.exp(), 1e-5);
    let upper = (mean + 4.302_652_73 * error).exp();
    assert_close(
        number(&found, "/perplexity_ratio_all_interval/1"),
        upper,
        1e-3,
    );
    let (mean, error) = mean_and_error(&divergence, chunks);
    assert_close(number(&found, "/kl"), mean, 1e-4);
    assert_close(number(&found, "/kl_stderr"), error, 1e-3);
    let upper = mean + 4.302_652_73 * error;
    assert_close(number(&found, "/kl_interval/1"), upper, 1e-3);
    assert_close(
        number(&found, "/top1"),
        mean_and_error(&same, chunks).0,
        1e-9,
    );
}

#[test]
fn perplexity_and_divergence_follow_their_definitions() {
    assert_definitions(true);
}

#[test]
fn without_bos_windows_keep_their_first_token() {
    assert_definitions(false);
}

#[test]
fn divergence_from_itself_is_zero() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(200));
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &["--rank", "8"]);
    for model in [model, artifact] {
        let options = ["--context", "64", "--reference", model.to_str().unwrap()];
        let result = eval(&model, &words, &options).run().json();
        assert!(number(&result, "/kl").abs() < 1e-9, "{result}");
        assert_eq!(number(&result, "/top1"), 1.0);
    }
}

#[test]
fn divergence_from_another_model_is_positive() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(200));
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let other = TinyModel {
        seed: 2,
        ..TinyModel::default()
    };
    let other = scratch.file("other.gguf", other.bytes());
    let options = ["--context", "64", "--reference", other.to_str().unwrap()];
    let result = eval(&model, &words, &options).run().json();
    assert!(number(&result, "/kl") > 0.1, "{result}");
    assert!(number(&result, "/top1") < 0.5, "{result}");
}

#[test]
fn chunks_bound_the_windows() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(400));
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let tokens = |chunks: &[&str]| {
        let options = [&["--context", "64"], chunks].concat();
        number(&eval(&model, &words, &options).run().json(), "/tokens")
    };
    assert_eq!(tokens(&["--chunks", "1"]), 31.0);
    assert_eq!(tokens(&["--chunks", "3"]), 93.0);
    let all = tokens(&[]);
    assert!(all > 93.0 && all % 31.0 == 0.0, "{all}");
    assert_eq!(tokens(&["--chunks", "100000"]), all);
}

#[test]
fn threads_do_not_change_the_numbers() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(300));
    let tiny = scratch.file("model.gguf", TinyModel::default().bytes());
    let (artifact, _) = compile(&scratch, &tiny, "out.htz", &["--rank", "16"]);
    let protocol = ["--context", "128", "--chunks", "2"];
    for (model, text) in [
        (&tiny, &words),
        (&artifact, &words),
        (&demo("reference-7m-f16.gguf"), &demo("alice.txt")),
    ] {
        let result = |threads| {
            let options = [&protocol[..], &["--threads", threads]].concat();
            eval(model, text, &options).run().json()
        };
        assert_eq!(result("1"), result("2"), "{}", model.display());
    }
}

#[test]
fn windows_longer_than_a_batch_are_one_window() {
    let scratch = Scratch::new();
    let words = scratch.file("words.txt", words(1200));
    let tiny = TinyModel {
        context: 2048,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let options = ["--context", "1200", "--chunks", "1"];
    let result = eval(&model, &words, &options).run().json();
    assert_eq!(number(&result, "/tokens"), 599.0);
}

/// One test per line, so that they run in parallel.
mod llama_cpp {
    use super::*;

    fn compare(model: &str, context: u64) {
        let Some(reference) = shared("reference/perplexity.json") else {
            return;
        };
        let cases: Value = serde_json::from_slice(&fs::read(reference).unwrap()).unwrap();
        let of = |case: &&Value| {
            let name = case["model"].as_str().unwrap();
            name.ends_with(&format!("/{model}.gguf")) && case["context"] == context
        };
        let case = cases.as_array().unwrap().iter().find(of).unwrap();
        let path = |key: &str| shared(case[key].as_str().unwrap()).unwrap();
        let (context, chunks) = (context.to_string(), case["chunks"].to_string());
        let options = ["--context", &context, "--chunks", &chunks, "--threads", "1"];
        let result = eval(&path("model"), &path("text"), &options).run().json();
        let tolerance = number(case, "/tolerance");
        assert_close(
            number(&result, "/perplexity"),
            number(case, "/perplexity"),
            tolerance,
        );
    }

    macro_rules! cases {
        ($($name:ident $model:literal $context:literal;)*) => {
            $(
                #[test]
                fn $name() {
                    compare($model, $context);
                }
            )*

            #[test]
            fn every_case_is_tested() {
                let Some(reference) = shared("reference/perplexity.json") else {
                    return;
                };
                let cases: Value = serde_json::from_slice(&fs::read(reference).unwrap()).unwrap();
                let tested = [$(($model, $context)),*];
                assert_eq!(cases.as_array().unwrap().len(), tested.len());
            }
        };
    }

    cases! {
        stories260k_f32_512 "stories260K-f32" 512;
        stories260k_f32_256 "stories260K-f32" 256;
        babyllama105_f32 "babyllama105-f32" 256;
        reference_7m_f16 "reference-7m-f16" 512;
        reference_7m_q8_0 "reference-7m-q8_0" 512;
        reference_7m_q4_0 "reference-7m-q4_0" 512;
        reference_7m_q6_k "reference-7m-q6_k" 512;
        reference_7m_q5_k_m "reference-7m-q5_k_m" 512;
        reference_7m_q4_k_m "reference-7m-q4_k_m" 512;
    }
}
