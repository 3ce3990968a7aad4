use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use htc_formats::DType;
use htc_formats::source::{Container, ModelFile};
use htc_loader::Model;
use htc_loader::dial::ActiveSetting;
use htc_tests::artifact::Artifact;
use htc_tests::logits::at_positions;
use htc_tests::material::{demo, words};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{compile, number};

const TOKENS: [u32; 12] = [1, 261, 297, 70, 280, 280, 5, 298, 264, 275, 3, 290];

const WITH: [&str; 3] = ["--with-source", "--rank", "16"];

fn tiny(dtype: DType) -> TinyModel {
    TinyModel {
        width: 256,
        heads: 8,
        kv_heads: 4,
        head_size: 32,
        ffn: 512,
        output: true,
        dtype,
        ..TinyModel::default()
    }
}

fn run(model: &Path) -> Htc {
    let run = htc!["run", model, "-p", "the cat sat on a", "-n", "48"];
    run.args(["--temp", "0", "--ignore-eos", "--threads", "2"])
}

fn bits(model: Model) -> [Vec<u32>; 2] {
    let positions: Vec<usize> = (0..TOKENS.len()).collect();
    let found = at_positions(&Arc::new(model), &TOKENS, &positions, 2);
    found.map(|logits| logits.into_iter().map(f32::to_bits).collect())
}

fn source_of(artifact: &Path) -> Model {
    Model::open(artifact).unwrap().source().unwrap().unwrap()
}

#[test]
fn embedded_source_equals_the_file() {
    let scratch = Scratch::new();
    for dtype in [
        DType::F32,
        DType::Q8_0,
        DType::Q4K,
        DType::Q4_0,
        DType::BF16,
    ] {
        let model = scratch.file("model.gguf", tiny(dtype).bytes());
        let (artifact, _) = compile(
            &scratch,
            &model,
            "out.htz",
            &[&WITH[..], &["--force"]].concat(),
        );
        let file = ModelFile::open(&model).unwrap();
        let source = source_of(&artifact);
        for tensor in &file.tensors {
            let found = source.file().tensor(tensor.role).unwrap();
            assert_eq!((found.dtype, &found.name), (tensor.dtype, &tensor.name));
            assert!(
                source.file().bytes(found) == file.bytes(tensor),
                "{}",
                tensor.name
            );
        }
        let expected = bits(Model::open(&model).unwrap());
        assert_eq!(bits(source), expected, "{dtype}");
        assert_ne!(bits(Model::open(&artifact).unwrap()), expected, "{dtype}");
    }
}

fn sharded(folder: &Path) -> usize {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let mut shards = [(); 2].map(|()| (serde_json::Map::new(), Vec::new()));
    let mut index = serde_json::Map::new();
    let name = |shard: usize| format!("model-{:05}-of-00002.safetensors", shard + 1);
    let tensors = header
        .into_iter()
        .filter(|(tensor, _)| tensor != "__metadata__");
    for (at, (tensor, mut entry)) in tensors.enumerate() {
        let offsets = &entry["data_offsets"];
        let [start, end] = [0, 1].map(|side| offsets[side].as_u64().unwrap() as usize);
        let (header, stored) = &mut shards[at % 2];
        entry["data_offsets"] = serde_json::json!([stored.len(), stored.len() + end - start]);
        stored.extend_from_slice(&data[start..end]);
        header.insert(tensor.clone(), entry);
        index.insert(tensor, name(at % 2).into());
    }
    for (at, (header, stored)) in shards.iter().enumerate() {
        let header = serde_json::to_vec(header).unwrap();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(
            folder.join(name(at)),
            [&length[..], &header, stored].concat(),
        )
        .unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": index });
    let path = folder.join("model.safetensors.index.json");
    fs::write(path, index.to_string()).unwrap();
    fs::remove_file(folder.join("model.safetensors")).unwrap();
    shards.len()
}

#[test]
fn sharded_source_is_embedded() {
    let scratch = Scratch::new();
    let gguf = scratch.file("model.gguf", tiny(DType::F32).bytes());
    let (plain, _) = compile(
        &scratch,
        &gguf,
        "plain.htz",
        &["--rank", "full", "--factor-type", "f32"],
    );
    let folder = scratch.path("folder");
    htc![
        "export",
        &plain,
        "--to-safetensors",
        &folder,
        "--type",
        "bf16"
    ]
    .run()
    .assert_ok();
    assert_eq!(sharded(&folder), 2);
    let (artifact, report) = compile(&scratch, &folder, "out.htz", &WITH);
    assert!(number(&report, "/with_source/source") > 0.0);
    let files = ModelFile::open(&folder).unwrap().container;
    assert_eq!(files, Container::Safetensors { shards: 2 });
    assert_eq!(
        bits(source_of(&artifact)),
        bits(Model::open(&folder).unwrap())
    );
    let expected = run(&folder).run().assert_ok().stdout;
    let found = run(&artifact).args(["--draft", "1", "--verifier", "source"]);
    assert_eq!(found.run().assert_ok().stdout, expected);
}

#[test]
fn split_gguf_source_is_embedded() {
    let scratch = Scratch::new();
    let tiny = tiny(DType::Q8_0);
    let whole = scratch.file("model.gguf", tiny.bytes());
    let parts = tiny.parts("split", 3);
    let parts: Vec<_> = parts
        .into_iter()
        .map(|(name, bytes)| scratch.file(&name, bytes))
        .collect();
    let files = &ModelFile::open(&parts[0]).unwrap().files;
    assert_eq!(files.len(), 3);
    let expected = bits(Model::open(&whole).unwrap());
    let (single, of_single) = compile(&scratch, &whole, "single.htz", &WITH);
    let mut artifacts = vec![Artifact::open(&single)];
    for (name, part) in [("first.htz", &parts[0]), ("last.htz", &parts[2])] {
        let (artifact, report) = compile(&scratch, part, name, &WITH);
        assert_eq!(report["with_source"], of_single["with_source"], "{name}");
        assert_eq!(bits(source_of(&artifact)), expected, "{name}");
        artifacts.push(Artifact::open(&artifact));
    }
    let stored = |artifact: &Artifact| {
        let sections = artifact.manifest.sections.iter();
        let of_source = sections.filter(|s| s.name.starts_with("source."));
        let of_source: Vec<_> = of_source.map(|s| (s.name.clone(), s.sha256)).collect();
        assert!(of_source.len() > 10, "{}", of_source.len());
        of_source
    };
    let [one, first, last] = &artifacts[..] else {
        panic!("three were compiled");
    };
    assert_eq!(stored(first), stored(one));
    assert_eq!(stored(last), stored(one));
    let text = run(&whole).run().assert_ok().stdout;
    for part in &parts {
        fs::remove_file(part).unwrap();
    }
    let found = run(&scratch.path("last.htz")).args(["--draft", "1", "--verifier", "source"]);
    assert_eq!(found.run().assert_ok().stdout, text);
}

#[test]
fn verifier_source_generates_the_sources_text() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny(DType::Q8_0).bytes());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &WITH);
    let (plain, _) = compile(&scratch, &model, "plain.htz", &["--rank", "16"]);
    let expected = run(&model).run().assert_ok().stdout;
    let of_artifact = run(&plain).run().assert_ok().stdout;
    assert_ne!(of_artifact, expected);
    assert_eq!(run(&artifact).run().assert_ok().stdout, of_artifact);
    fs::remove_file(&model).unwrap();
    let verified = || run(&artifact).args(["--verifier", "source"]);
    for options in [
        &[][..],
        &["--draft", "1"],
        &["--draft", "0.8", "--draft-length", "4"],
    ] {
        let outcome = verified().args(options).run().assert_ok();
        assert_eq!(outcome.stdout, expected, "{options:?}");
        assert!(outcome.stderr.contains("draft: "), "{}", outcome.stderr);
    }
    let json = verified()
        .args(["--draft", "1", "--json"])
        .run()
        .assert_ok()
        .json();
    assert!(number(&json, "/drafted") > 0.0);
    let own = run(&artifact).args(["--draft", "0.8"]).run().assert_ok();
    assert_eq!(own.stdout, of_artifact);
    let learning = || {
        let state = ["--adapt", "gradient", "--adapt-state"];
        verified().args(state).arg(scratch.path("state"))
    };
    for _ in 0..2 {
        assert_eq!(learning().run().assert_ok().stdout, expected);
    }
    let text = scratch.file("words.txt", words(4000));
    let eval = |model: &Path, reference: &Path| {
        let eval = htc![
            "eval",
            model,
            "--text",
            &text,
            "--context",
            "32",
            "--chunks",
            "4"
        ];
        eval.arg("--reference")
            .arg(reference)
            .arg("--json")
            .run()
            .assert_ok()
            .json()
    };
    scratch.file("model.gguf", tiny(DType::Q8_0).bytes());
    let (one, other) = (eval(&artifact, Path::new("source")), eval(&plain, &model));
    assert_eq!(one["evaluation"], other["evaluation"]);
    assert_eq!(one["kl"], other["kl"]);
    assert_eq!(one["reference"]["name"], "source");
}

#[test]
fn sizes_refer_to_the_compressed_part() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny(DType::F32).bytes());
    let (plain, without) = compile(&scratch, &model, "plain.htz", &["--rank", "16"]);
    let (path, report) = compile(&scratch, &model, "out.htz", &WITH);
    let (with, other) = (Artifact::open(&path), Artifact::open(&plain));
    assert_eq!(with.manifest.requires, other.manifest.requires);
    assert_eq!(with.manifest.plan, other.manifest.plan);
    assert_eq!(with.manifest.geometry, other.manifest.geometry);
    for (a, b) in with.manifest.tensors.iter().zip(&other.manifest.tensors) {
        assert_eq!((a.role, a.sha256), (b.role, b.sha256));
    }
    assert_eq!(with.manifest.tensors.len(), other.manifest.tensors.len());
    assert_eq!(report["bytes"], without["bytes"]);
    assert_eq!(
        number(&report, "/bytes/after"),
        fs::metadata(&plain).unwrap().len() as f64
    );
    assert!(without.get("with_source").is_none());
    let file = fs::metadata(&path).unwrap().len() as f64;
    assert_eq!(number(&report, "/with_source/file"), file);
    let (source, shared) = (
        number(&report, "/with_source/source"),
        number(&report, "/with_source/shared"),
    );
    let weights = ModelFile::open(&model).unwrap().tensor_bytes() as f64;
    assert_eq!(source + shared, weights);
    assert_eq!(source, with.manifest.source_bytes() as f64);
    assert!(shared >= 2.0 * 4.0 * 256.0 * 299.0, "{shared}");
    assert!(file - number(&report, "/bytes/after") - source < 16_384.0);

    let dry = htc![
        "compile",
        &model,
        "-o",
        scratch.path("dry.htz"),
        "--report",
        "json",
        "--dry-run"
    ];
    let dry = dry.args(WITH).run().assert_ok().json();
    assert_eq!(dry["bytes"], report["bytes"]);
    assert_eq!(number(&dry, "/with_source"), weights);

    let said = htc!["inspect", &path].run().assert_ok().text().to_owned();
    assert!(said.contains("artifact of format 2.1"), "{said}");
    assert!(said.contains("contains its source's weights"), "{said}");
    assert!(!said.contains("section source."), "{said}");
    let [json, plain_json] =
        [&path, &plain].map(|path| htc!["inspect", path, "--json"].run().assert_ok().json());
    assert_eq!(number(&json, "/source_bytes"), source);
    assert_eq!(number(&json, "/bytes"), file);
    assert!(plain_json.get("source_bytes").is_none());
    let ratio = number(&json, "/bits_per_weight") / number(&plain_json, "/bits_per_weight");
    assert!((1.0..1.05).contains(&ratio), "{ratio}");

    let [one, two] = [&path, &plain].map(|path| {
        Model::open(path)
            .unwrap()
            .dial()
            .active_bytes(ActiveSetting::FULL)
    });
    assert_eq!(one, two);

    let page = scratch.path("page.html");
    htc!["report", &path, &plain, "-o", &page].run().assert_ok();
    let exported = htc!["export", &path, "-o", scratch.path("out.gguf")]
        .run()
        .assert_ok();
    assert!(
        exported
            .stderr
            .contains("the source's weights in the artifact are left out"),
        "{}",
        exported.stderr
    );
    htc!["export", &plain, "-o", scratch.path("plain.gguf")]
        .run()
        .assert_ok();
    let [one, two] = ["out.gguf", "plain.gguf"].map(|name| fs::read(scratch.path(name)).unwrap());
    assert_eq!(one.len(), two.len());
}

#[test]
fn verify_finds_damage_in_the_source() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny(DType::Q8_0).bytes());
    let (artifact, _) = compile(&scratch, &model, "out.htz", &WITH);
    htc!["verify", &artifact].run().assert_ok();
    let found = Artifact::open(&artifact);
    let entry = found
        .manifest
        .section("source.blk.1.ffn_down.weight")
        .unwrap();
    let mut bytes = found.bytes.clone();
    bytes[(entry.offset + entry.length / 2) as usize] ^= 0x10;
    fs::write(&artifact, bytes).unwrap();
    let says = ["section source.blk.1.ffn_down.weight", "1 of"];
    htc!["verify", &artifact].run().assert_refused(1, &says);
    run(&artifact).run().assert_ok();
}

#[test]
fn bytes_do_not_depend_on_threads_or_runs() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny(DType::Q4K).bytes());
    let mut bytes = Vec::new();
    for (name, threads) in [("a.htz", "1"), ("b.htz", "2"), ("a.htz", "3")] {
        let options = [&WITH[..], &["--force", "--threads", threads]].concat();
        let (path, _) = compile(&scratch, &model, name, &options);
        bytes.push(fs::read(path).unwrap());
    }
    assert!(bytes[0] == bytes[1] && bytes[0] == bytes[2]);
    assert_eq!(fs::read_dir(scratch.path("")).unwrap().count(), 3);
}

#[test]
fn quality_and_active_fractions_are_preserved() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let text = scratch.file("words.txt", words(20_000));
    let elastic = |name: &str| {
        htc!["compile", &model, "-o", scratch.path(name), "--force"]
            .args(["--context", "32", "--calibration-tokens", "8192"])
            .args(["--calibration".into(), text.clone()])
            .args(["--cache".into(), scratch.path("cache")])
            .args(["--report", "json", "--effort", "fast", "--tune", "2"])
            .args(["--target-size", "110000", "--planes", "2"])
    };
    elastic("plain.htz").run().assert_ok();
    let report = elastic("out.htz")
        .arg("--with-source")
        .run()
        .assert_ok()
        .json();
    let [plain, path] = ["plain.htz", "out.htz"].map(|name| scratch.path(name));
    htc!["verify", &path].run().assert_ok();
    let [with, other] = [&path, &plain].map(|path| Artifact::open(path).manifest);
    assert!(other.quality.is_some() && other.dial.len() > 1);
    assert_eq!(with.quality, other.quality);
    assert_eq!(with.dial, other.dial);
    assert_eq!(with.provenance, other.provenance);
    assert_eq!(with.requires, other.requires);
    assert!(number(&report, "/bytes/after") <= 110e3);
    let expected = run(&model).run().assert_ok().stdout;
    for fraction in ["0.8", "1"] {
        let found = run(&path).args(["--verifier", "source", "--draft", fraction]);
        assert_eq!(found.run().assert_ok().stdout, expected, "{fraction}");
    }
    let whole = fs::read(&path).unwrap();
    for part in 1..4 {
        let mut child = elastic("killed.htz").arg("--with-source").spawn();
        sleep(Duration::from_millis(400 * part));
        _ = child.kill();
        child.wait().unwrap();
    }
    elastic("killed.htz").arg("--with-source").run().assert_ok();
    assert!(fs::read(scratch.path("killed.htz")).unwrap() == whole);
    assert!(!scratch.path(".killed.htz.htc-work").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn source_is_not_read_without_a_draft() {
    const AROUND: u64 = 256 << 10;
    let scratch = Scratch::new();
    let large = TinyModel {
        width: 512,
        heads: 8,
        kv_heads: 8,
        head_size: 64,
        ffn: 1536,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", large.bytes());
    let (path, _) = compile(&scratch, &model, "out.htz", &WITH);
    let resident = || -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split_once(&*path.to_string_lossy()).unwrap().1;
        let line = of_file
            .lines()
            .find(|line| line.starts_with("Rss:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10
    };
    let opened = Model::open(&path).unwrap();
    let _map = Arc::clone(&opened.file().files[0]);
    let source = opened.source().unwrap().unwrap();
    let own = opened.file().size();
    assert!(source.file().size() > 4 * own);
    assert!(resident() < own + AROUND, "{} of {own}", resident());
    bits(opened);
    assert!(resident() < own + 2 * AROUND, "{} of {own}", resident());
    bits(source);
    assert!(resident() > 4 * own, "{} of {own}", resident());
}

#[test]
fn missing_source_is_refused_in_one_line() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", tiny(DType::Q8_0).bytes());
    let (plain, _) = compile(&scratch, &model, "plain.htz", &["--rank", "16"]);
    let (with, _) = compile(&scratch, &model, "out.htz", &WITH);
    for model in [&plain, &model] {
        let refused = run(model).args(["--verifier", "source"]);
        refused
            .run()
            .assert_refused(2, &["--with-source", "its source's weights"]);
        let eval = htc![
            "eval",
            model,
            "--text",
            demo("alice.txt"),
            "--reference",
            "source"
        ];
        eval.run()
            .assert_refused(2, &["--with-source", "its source's weights"]);
    }
    let refused = run(&with).args(["--verifier", "./source"]);
    refused.run().assert_refused(1, &["./source"]);
    let both = run(&with).args(["--verifier", "source", "--draft"]);
    both.arg(&model).run().assert_refused(2, &["--verifier"]);
    let again = htc!["compile", &with, "-o", scratch.path("again.htz")].args(WITH);
    again.run().assert_refused(1, &["an artifact already"]);
}
