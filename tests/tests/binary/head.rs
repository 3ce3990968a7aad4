use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use htc_formats::gguf::{Gguf, Writer};
use htc_tests::material::{demo, words};
use htc_tests::{Htc, Scratch, TinyModel, htc, reference};
use serde_json::Value;

use super::{compile, eval, list, number, text};

const DEMO: &str = "reference-7m-f16.gguf";

fn untied() -> Vec<u8> {
    let source = Gguf::open(demo(DEMO)).unwrap();
    let mut writer = Writer::new();
    for (key, value) in source.metadata() {
        writer.metadata(key, value.clone());
    }
    let embedding = source.tensor("token_embd.weight").unwrap();
    assert!(source.tensor("output.weight").is_none());
    for tensor in source.tensors() {
        writer.tensor(
            &tensor.name,
            tensor.ggml_type,
            &tensor.dims,
            source.bytes(tensor),
        );
    }
    let (kind, dims) = (embedding.ggml_type, &embedding.dims);
    writer.tensor("output.weight", kind, dims, source.bytes(embedding));
    writer.to_bytes().unwrap()
}

fn plan(scratch: &Scratch, said: &str) -> PathBuf {
    let said = format!(
        "{{\"format\": \"htc-plan\", \"version\": 2, \"method\": \"gp\", \"factor_type\": \"f16\", {said}, \"units\": []}}"
    );
    scratch.file("plan.json", said)
}

const FACTORS: &str =
    r#""head": {"form": "low_rank", "rank": 64, "types": {"a": "f16", "b": "f16"}}"#;

fn calibrated(scratch: &Scratch, model: &Path, plan: &Path, options: &[&str]) -> Htc {
    htc![
        "compile",
        model,
        "-o",
        scratch.path("out.htz"),
        "--plan",
        plan,
        "--calibration",
        demo("alice.txt"),
        "--calibration-tokens",
        "4096",
        "--cache",
        scratch.path("cache"),
        "--force"
    ]
    .args(options)
}

fn gauge_options<'a>(gauge: &'a str, bias: &'a str) -> [&'a str; 6] {
    ["--gauge", gauge, "--bias", bias, "--report", "json"]
}

fn cached(scratch: &Scratch) -> PathBuf {
    let mut found = fs::read_dir(scratch.path("cache")).unwrap();
    found.next().unwrap().unwrap().path()
}

/// Count, mean and lower triangle of the second moment.
fn stored_moment(bytes: &[u8], width: usize) -> (u64, Vec<f64>, Vec<f64>) {
    const HEADER: usize = 8 + 32 + 8 + 32;
    let (count, rest) = bytes[HEADER..bytes.len() - 32].split_at(8);
    let (mean, second) = rest.split_at(8 * width);
    let (mean, _) = mean.as_chunks::<8>();
    let (second, _) = second.as_chunks::<4>();
    assert_eq!(second.len(), width * (width + 1) / 2);
    (
        u64::from_le_bytes(count.try_into().unwrap()),
        mean.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        second
            .iter()
            .map(|b| f32::from_le_bytes(*b).into())
            .collect(),
    )
}

#[test]
fn head_moments_equal_a_float64_forward_pass() {
    const CONTEXT: usize = 16;
    let scratch = Scratch::new();
    for output in [true, false] {
        let tiny = TinyModel {
            output,
            ..TinyModel::default()
        };
        let width = tiny.width;
        let model = scratch.file("model.gguf", tiny.bytes());
        let texts = [
            (words(260), 1.0),
            ("the cat sat on a hat. ".repeat(12), 0.25),
        ];
        let files = [0, 1].map(|i| scratch.file(&format!("{i}.txt"), &texts[i].0));
        let cache = scratch.path(&format!("cache-{output}"));
        let weighted = format!("{}=0.25", files[1].display());
        let options = [
            "--projections",
            "q",
            "--rank",
            "8",
            "--gauge",
            "none",
            "--context",
            "16",
            "--force",
            "--cache",
            cache.to_str().unwrap(),
            "--calibration",
            files[0].to_str().unwrap(),
            "--calibration",
            &weighted,
        ];
        let (_, report) = compile(&scratch, &model, "out.htz", &options);
        let (mut mean, mut second) = (vec![0.0; width], vec![0.0; width * (width + 1) / 2]);
        let (mut sum, mut tokens) = (0.0, 0);
        for ((file, (_, weight)), said) in files
            .iter()
            .zip(&texts)
            .zip(list(&report, "/calibration/texts"))
        {
            let ids = htc!["tokenize", &model, "--text", file, "--json"].run();
            let ids = ids.json();
            let ids = list(&ids, "/tokens").iter();
            let ids: Vec<u32> = ids.map(|id| id.as_u64().unwrap() as u32).collect();
            let used = number(said, "/tokens") as usize;
            assert!(used >= 2 * CONTEXT && used.is_multiple_of(CONTEXT));
            assert_eq!(number(said, "/weight"), *weight);
            for window in ids[..used].chunks_exact(CONTEXT) {
                let window = [&[1], &window[1..]].concat();
                for x in reference::head_inputs(&tiny, &window) {
                    let mut at = second.iter_mut();
                    for i in 0..width {
                        mean[i] += weight * x[i];
                        for j in 0..=i {
                            *at.next().unwrap() += weight * x[i] * x[j];
                        }
                    }
                    sum += weight;
                }
            }
            tokens += used;
        }
        let entry = fs::read_dir(&cache).unwrap().next().unwrap().unwrap();
        let file = fs::read(entry.path().join("head")).unwrap();
        let (count, found_mean, found_second) = stored_moment(&file, width);
        assert_eq!(count, tokens as u64);
        for (found, expected) in [(found_mean, mean), (found_second, second)] {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected.iter().map(|x| x / sum)) {
                assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
            }
        }
    }
}

fn head_of(report: &Value) -> Value {
    let all = list(report, "/measured_matrices");
    assert_eq!(all.len(), 1, "{all:?}");
    let only = all[0].clone();
    assert_eq!(
        number(report, "/calibration/head/error"),
        number(&only, "/output_error")
    );
    assert_eq!(
        text(report, "/calibration/head/matrix"),
        text(&only, "/matrix")
    );
    only
}

#[test]
fn gauges_lower_the_logit_error_of_a_head() {
    let scratch = Scratch::new();
    let model = scratch.file("untied.gguf", untied());
    let plan = plan(&scratch, FACTORS);
    let mut found = Vec::new();
    for (gauge, norm) in [
        ("none", "frobenius"),
        ("activation", "activation"),
        ("whiten", "output"),
    ] {
        let mut same = Vec::new();
        for bias in ["off", "on"] {
            let run = calibrated(&scratch, &model, &plan, &gauge_options(gauge, bias));
            let report = run.run().json();
            let head = head_of(&report);
            assert_eq!(text(&head, "/norm"), norm);
            same.push((number(&head, "/error"), number(&head, "/output_error")));
        }
        assert_eq!(same[0], same[1]);
        let path = scratch.path("out.htz");
        htc!["verify", &path].run().assert_ok();
        let reference = ["--chunks", "4", "--reference", model.to_str().unwrap()];
        let text = demo("time_machine.txt");
        let measured = eval(&path, &text, &reference).run().json();
        let (error, outputs) = same[0];
        found.push((error, outputs, number(&measured, "/kl")));
    }
    let [none, activation, whiten] = found[..] else {
        panic!("{found:?}");
    };
    assert!(none.0 < activation.0 && none.0 < whiten.0, "{found:?}");
    assert!(activation.1 < none.1, "{found:?}");
    assert!(whiten.1 < 0.9 * activation.1.min(none.1), "{found:?}");
    assert!(whiten.2 < 0.9 * none.2, "{found:?}");
}

#[test]
fn dense_heads_report_the_logit_error() {
    let scratch = Scratch::new();
    let own = scratch.file("untied.gguf", untied());
    let dense = |matrix: &str| {
        let form = format!(r#""{matrix}": {{"form": "dense", "types": {{"weight": "q4_k"}}}}"#);
        plan(&scratch, &form)
    };
    let run = |model: &Path, matrix: &str| {
        let plan = dense(matrix);
        let run = calibrated(&scratch, model, &plan, &gauge_options("whiten", "on"));
        run.run().json()
    };
    let head = head_of(&run(&own, "head"));
    let tied = head_of(&run(&demo(DEMO), "embedding"));
    assert_eq!(
        [&head, &tied].map(|m| text(m, "/matrix")),
        ["output", "token_embd"]
    );
    for (key, more) in [("/error", 0.7..1.0), ("/output_error", 1.0..1.3)] {
        let ratio = number(&tied, key) / number(&head, key);
        assert!(more.contains(&ratio), "{key}: {ratio}");
    }
    let error = number(&head, "/output_error");
    assert!(error > 0.005 && error < 0.2, "{error}");
    let shown = calibrated(&scratch, &own, &dense("head"), &["--gauge", "whiten"]);
    let shown = shown.run().assert_ok();
    let line = format!("error (rms) head {error:.4}");
    assert!(shown.stderr.contains(&line), "{}", shown.stderr);
    let looked_up = run(&own, "embedding");
    assert_eq!(looked_up["measured_matrices"][0]["matrix"], "token_embd");
    assert!(looked_up["measured_matrices"][0]["output_error"].is_null());
    assert!(looked_up["calibration"]["head"].is_null());
}

#[test]
fn head_statistics_are_cached_like_layers() {
    let scratch = Scratch::new();
    let model = scratch.file("untied.gguf", untied());
    let plan = plan(&scratch, FACTORS);
    let run = || calibrated(&scratch, &model, &plan, &gauge_options("whiten", "on"));
    let artifact = || fs::read(scratch.path("out.htz")).unwrap();
    run().run().assert_ok();
    let expected = artifact();
    let folder = cached(&scratch);
    let names = || {
        let mut names = htc_tests::scratch::names_in(&folder);
        names.retain(|name| name != "lock");
        names
    };
    let complete = names();
    assert_eq!(complete.len(), 9, "{complete:?}");
    let head = folder.join("head");
    let good = fs::read(&head).unwrap();

    let found = run().run().assert_ok().json();
    assert_eq!(number(&found, "/calibration/found_layers"), 8.0);
    assert!(artifact() == expected);

    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [&flipped[..], &good[..good.len() - 1], b""] {
        fs::write(&head, bad).unwrap();
        let outcome = run().run().assert_ok();
        for said in ["head: ", "made again", "begins anew"] {
            assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
        }
        assert!(artifact() == expected);
        assert!(fs::read(&head).unwrap() == good);
        assert_eq!(names(), complete);
    }

    let killed_in_time = (0..20).any(|_| {
        fs::remove_dir_all(&folder).unwrap();
        let mut child = run().spawn();
        let begun = Instant::now();
        while !folder.join("layer-0007").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        !head.exists()
    });
    assert!(killed_in_time, "killed too late, every time");
    let last = fs::read(folder.join("layer-0007")).unwrap();
    let outcome = run().run().assert_ok();
    assert!(!outcome.stderr.contains("anew"), "{}", outcome.stderr);
    let report = outcome.json();
    assert_eq!(number(&report, "/calibration/found_layers"), 8.0);
    assert!(fs::read(folder.join("layer-0007")).unwrap() == last);
    assert!(fs::read(&head).unwrap() == good && artifact() == expected);
    assert_eq!(names(), complete);
}
