use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use htc_formats::model::Role;
use htc_loader::dial::ActiveSetting;
use htc_loader::kv::{KvBases, KvKind, KvOptions};
use htc_loader::{Cpu, ExecError, Model, Session};
use htc_tests::artifact::Artifact;
use htc_tests::float64::Matrix;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};

use super::number;

fn compile_model(scratch: &Scratch, tiny: &TinyModel, name: &str, options: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        scratch.file("model.gguf", tiny.bytes());
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", &model, "-o", scratch.path(name), "--force"]
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(options)
}

fn compile(scratch: &Scratch, name: &str, options: &[&str]) -> Htc {
    compile_model(scratch, &TinyModel::default(), name, options)
}

const FACTORS: [&str; 8] = [
    "--method", "low-rank", "--ratio", "0.6", "--gauge", "none", "--bias", "off",
];

fn is_kv(role: Role) -> bool {
    matches!(role, Role::KvBasis { .. } | Role::KvEnergies { .. })
}

#[test]
fn bases_do_not_change_other_tensors() {
    let scratch = Scratch::new();
    let json = ["--report", "json"];
    let with = [&FACTORS[..], &["--kv-bases"]].concat();
    let plain = compile(&scratch, "plain.htz", &[&FACTORS[..], &json].concat());
    let plain = plain.run().json();
    let forecast = compile(
        &scratch,
        "kv.htz",
        &[&with[..], &json, &["--dry-run"]].concat(),
    );
    let forecast = forecast.run().json();
    let report = compile(&scratch, "kv.htz", &[&with[..], &json].concat());
    let report = report.run().json();
    let [path, without] = ["kv.htz", "plain.htz"].map(|name| scratch.path(name));
    htc!["verify", &path].run().assert_ok();

    let (kv, other) = (Artifact::open(&path), Artifact::open(&without));
    assert!(
        !other
            .manifest
            .requires
            .iter()
            .any(|name| name == "kv_bases")
    );
    let other_tensors = kv.manifest.tensors.len() - 8;
    assert_eq!(other_tensors, other.manifest.tensors.len());
    for (a, b) in kv.manifest.tensors.iter().zip(&other.manifest.tensors) {
        assert_eq!((a.role, a.sha256), (b.role, b.sha256));
    }
    assert!(
        kv.manifest.tensors[other_tensors..]
            .iter()
            .all(|t| is_kv(t.role))
    );
    assert_eq!(kv.manifest.plan, other.manifest.plan);

    let bytes = 2.0 * 2.0 * 2.0 * (2.0 * 256.0 + 4.0 * 16.0);
    assert_eq!(number(&report, "/kv_bases"), bytes);
    assert!(plain.get("kv_bases").is_none());
    assert_eq!(report["request"]["kv_bases"], "on");
    assert!(plain["request"].get("kv_bases").is_none());
    let length = fs::metadata(&path).unwrap().len() as f64;
    for said in [&forecast, &report] {
        assert_eq!(number(said, "/bytes/after"), length);
        assert_eq!(said["kv_bases"], report["kv_bases"]);
    }
    assert!(length >= number(&plain, "/bytes/after") + bytes);

    let said = htc!["inspect", &path].run().assert_ok().text().to_owned();
    let line = said
        .lines()
        .find(|line| line.starts_with("bases for an adaptive KV cache"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("of 16 components of keys"), "{line}");
    assert!(said.contains("artifact of format 2.1") && said.contains("blk.1.value_basis"));
    let said = htc!["inspect", &without]
        .run()
        .assert_ok()
        .text()
        .to_owned();
    assert!(!said.contains("KV cache"), "{said}");

    let models = [&path, &without].map(|path| Model::open(path).unwrap());
    let touched = models
        .each_ref()
        .map(|model| model.dial().active_bytes(ActiveSetting::FULL));
    assert_eq!(touched[0], touched[1]);
    assert!(models[1].kv_bases().unwrap().is_none());
}

#[test]
fn reader_returns_the_bases_of_every_head() {
    let scratch = Scratch::new();
    // The size is no power of two.
    let tiny = TinyModel {
        heads: 6,
        kv_heads: 3,
        head_size: 20,
        ..TinyModel::default()
    };
    let options = [&FACTORS[..], &["--kv-bases"]].concat();
    compile_model(&scratch, &tiny, "kv.htz", &options)
        .run()
        .assert_ok();
    let path = scratch.path("kv.htz");
    let artifact = Artifact::open(&path);
    let bases = Model::open(&path).unwrap().kv_bases().unwrap().unwrap();
    assert_eq!((bases.head_size, bases.layers.len()), (20, 2));
    for (layer, heads) in bases.layers.iter().enumerate() {
        assert_eq!(heads.len(), 3);
        for (side, of) in [("key", 0), ("value", 1)] {
            let stored = artifact.matrix(&format!("blk.{layer}.{side}_basis"));
            let energies = artifact.matrix(&format!("blk.{layer}.{side}_energies"));
            for (head, found) in heads.iter().enumerate() {
                let found = [&found.keys, &found.values][of];
                let basis = Matrix::new(20, 20, &found.components);
                for i in 0..20 {
                    assert_eq!(energies.at(head, i), f64::from(found.energies[i]));
                    for j in 0..20 {
                        assert_eq!(stored.at(20 * head + i, j), basis.at(i, j));
                        let product = basis.times(&basis.transposed()).at(i, j);
                        let expected = f64::from(u8::from(i == j));
                        assert!((product - expected).abs() < 1e-3, "{product}");
                    }
                }
                let sum: f32 = found.energies.iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            }
        }
    }
}

#[test]
fn cache_starts_with_the_artifacts_bases() {
    let scratch = Scratch::new();
    let options = [&FACTORS[..], &["--kv-bases"]].concat();
    compile(&scratch, "kv.htz", &options).run().assert_ok();
    let model = Arc::new(Model::open(scratch.path("kv.htz")).unwrap());
    let bases = KvBases::try_from(&model.kv_bases().unwrap().unwrap()).unwrap();
    let bases = Arc::new(bases);
    let session = |kind: &str, bases: Option<&Arc<KvBases>>| {
        let options = KvOptions::new(kind.parse::<KvKind>().unwrap());
        let cpu = Cpu::with_threads(2).unwrap();
        Session::with_kv(Arc::clone(&model), cpu, 256, &options, bases.cloned())
    };
    let tokens: Vec<u32> = (0..120).map(|i| 3 + i * 7 % 200).collect();
    let read = |kind: &str| {
        let mut session = session(kind, Some(&bases)).unwrap();
        session.read_prompt(&tokens[..100]).unwrap();
        let steps = tokens[100..].iter();
        let logits: Vec<f32> = steps
            .flat_map(|token| session.step(&[*token]).unwrap().to_vec())
            .collect();
        (logits, session.kv_usage())
    };
    let (exact, _) = read("f32");
    let error = |logits: &[f32]| {
        let differences = logits
            .iter()
            .zip(&exact)
            .map(|(a, b)| f64::from((a - b).abs()));
        differences.fold(0.0, f64::max)
    };
    let (logits, full) = read("f16");
    let rounding = error(&logits);
    for kind in ["static:1", "static-hybrid:1", "oja:1"] {
        let (found, usage) = read(kind);
        let (found, some) = (error(&found), error(&read(&kind.replace('1', "0.5")).0));
        assert!(
            found < 4.0 * rounding && 4.0 * found < some,
            "{kind}: {rounding:.1e}, {found:.1e}, {some:.1e}"
        );
        assert!(usage.compressed > 0, "{kind}");
    }
    let (_, half) = read("oja:0.5");
    assert_eq!(2 * half.bytes_per_position, full.bytes_per_position);
    assert!(half.used < full.used);
    let error = session("oja:0.5", None).map(drop).unwrap_err().to_string();
    assert!(error.contains("--kv-bases"), "{error}");
}

#[test]
fn invalid_bases_are_refused_by_name() {
    let scratch = Scratch::new();
    let options = [&FACTORS[..], &["--kv-bases"]].concat();
    compile(&scratch, "kv.htz", &options).run().assert_ok();
    let artifact = Artifact::open(&scratch.path("kv.htz"));
    let half = |number: u16| number.to_le_bytes().to_vec();
    for (role, at, bytes, said) in [
        ("blk.1.key_basis", 0, half(0x7e00), "finite"),
        ("blk.0.value_basis", 2 * 257, half(15 << 10), "orthonormal"),
        (
            "blk.0.key_energies",
            64,
            (-0.5f32).to_le_bytes().to_vec(),
            "from 0 to 1",
        ),
        (
            "blk.1.value_energies",
            60,
            0.9f32.to_le_bytes().to_vec(),
            "not increase",
        ),
    ] {
        let mut file = artifact.bytes.clone();
        let place = artifact.tensor_range(role).start + at;
        file[place..place + bytes.len()].copy_from_slice(&bytes);
        let path = scratch.file("bad.htz", file);
        let model = Model::open(&path).unwrap();
        let fault = model.kv_bases().unwrap_err();
        assert!(matches!(fault, ExecError::KvBasis { .. }), "{fault}");
        let message = fault.to_string();
        assert!(
            message.contains(role) && message.contains(said),
            "{message}"
        );
        htc!["verify", &path].run().assert_refused(1, &[role]);
    }
}

#[test]
fn file_size_includes_the_bases() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let fast = ["--effort", "fast", "--kv-bases"];
    for (name, size, more) in [
        ("kv.htz", 110_000, &["--tune", "2"][..]),
        ("planes.htz", 130_000, &["--planes", "2", "--tune", "2"]),
    ] {
        let bytes = size.to_string();
        let options = [&["--target-size", &bytes], &fast[..], more].concat();
        compile_model(&scratch, &tiny, name, &options)
            .run()
            .assert_ok();
        let path = scratch.path(name);
        htc!["verify", &path].run().assert_ok();
        let length = fs::metadata(&path).unwrap().len();
        assert!(length <= size && length > size - 8192, "{name}: {length}");
        let artifact = Artifact::open(&path);
        assert!(artifact.manifest.provenance.order.is_some());
        let roles: Vec<Role> = artifact.manifest.tensors.iter().map(|t| t.role).collect();
        let is_refinement = |role: &Role| matches!(role, Role::Refinement { .. });
        let refined = roles.iter().filter(|role| is_refinement(role)).count();
        assert_eq!(refined > 0, name == "planes.htz");
        let of_kv = &roles[roles.len() - refined - 8..roles.len() - refined];
        assert!(of_kv.iter().all(|&role| is_kv(role)), "{of_kv:?}");
        let bases = Model::open(&path).unwrap().kv_bases().unwrap();
        assert_eq!(bases.unwrap().layers.len(), 2);
    }
    let [one, other] = ["kv.htz", "planes.htz"].map(|name| Artifact::open(&scratch.path(name)));
    for role in ["blk.0.key_basis", "blk.1.value_basis"] {
        assert_eq!(one.tensor_bytes(role), other.tensor_bytes(role));
    }
}

#[test]
fn bases_require_a_calibration() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let output = scratch.path("out.htz");
    for (method, rank) in [("low-rank", "8"), ("shared-basis", "8")] {
        let run = htc!["compile", &model, "-o", &output, "--kv-bases"];
        let run = run.args(["--method", method, "--rank", rank]);
        run.run()
            .assert_refused(2, &["--kv-bases", "--calibration"]);
    }
    let plan = scratch.path("plan.json");
    htc!["plan", &model, "-o", &plan, "--rank", "8", "--kv-bases"]
        .run()
        .assert_ok();
    let said = fs::read_to_string(&plan).unwrap();
    assert!(said.contains(r#""kv_bases":"on""#), "{said}");
    let by_plan = || htc!["compile", &model, "-o", &output, "--plan", &plan];
    by_plan()
        .run()
        .assert_refused(2, &["--kv-bases", "--calibration"]);
    by_plan()
        .arg("--kv-bases")
        .run()
        .assert_refused(2, &["--plan", "--kv-bases"]);
    assert!(!output.exists());
    let words = scratch.file("words.txt", words(20_000));
    by_plan()
        .args(["--context", "32", "--calibration-tokens", "2048"])
        .args(["--calibration".into(), words])
        .args(["--cache".into(), scratch.path("cache")])
        .run()
        .assert_ok();
    assert!(Artifact::open(&output).has("blk.1.value_energies"));
    let bad = said.replace(r#""kv_bases":"on""#, r#""kv_bases":"yes""#);
    let bad = scratch.file("bad.json", bad);
    let run = htc![
        "compile",
        &model,
        "-o",
        scratch.path("x.htz"),
        "--plan",
        &bad
    ];
    run.run()
        .assert_refused(2, &["request.kv_bases", "on or off"]);
}

#[test]
fn exports_and_bits_per_weight_exclude_bases() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        kv_heads: 1,
        ..TinyModel::default()
    };
    let report = scratch.path("kv.json");
    let options = [
        &FACTORS[..],
        &["--kv-bases", "--report", report.to_str().unwrap()],
    ]
    .concat();
    compile_model(&scratch, &tiny, "kv.htz", &options)
        .run()
        .assert_ok();
    compile_model(&scratch, &tiny, "plain.htz", &FACTORS)
        .run()
        .assert_ok();
    let weights = ["kv.htz", "plain.htz"].map(|name| {
        let said = htc!["inspect", scratch.path(name), "--json"].run().json();
        8.0 * number(&said, "/bytes") / number(&said, "/bits_per_weight")
    });
    assert!((weights[0] - weights[1]).abs() < 0.5, "{weights:?}");
    let export = |name: &str, target: &str| {
        let to = scratch.path(target);
        let run = htc!["export", scratch.path(name), "-o", &to]
            .run()
            .assert_ok();
        (fs::read(&to).unwrap(), run.stderr)
    };
    let (kv, said) = export("kv.htz", "kv.gguf");
    assert!(said.contains("bases for a KV cache are left out"), "{said}");
    let (plain, said) = export("plain.htz", "plain.gguf");
    assert!(!said.contains("KV cache"), "{said}");
    assert!(kv == plain);
    let page = scratch.path("page.html");
    htc!["report", &report, scratch.path("kv.htz"), "-o", &page]
        .run()
        .assert_ok();
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .contains("KV cache bases")
    );
}

fn slow() -> TinyModel {
    TinyModel {
        layers: 6,
        heads: 4,
        kv_heads: 4,
        head_size: 256,
        ..TinyModel::default()
    }
}

fn journal(scratch: &Scratch) -> Option<PathBuf> {
    let entries = fs::read_dir(scratch.path(".kv.htz.htc-work")).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|e| e == "journal"))
}

fn tensors(journal: &Path) -> usize {
    let said = fs::read_to_string(journal).unwrap_or_default();
    said.matches("\"tensor\"").count()
}

#[test]
fn bases_are_identical_on_any_threads_and_after_a_kill() {
    let scratch = Scratch::new();
    let options = [
        "--method",
        "low-rank",
        "--rank",
        "4",
        "--gauge",
        "none",
        "--bias",
        "off",
        "--kv-bases",
    ];
    let run = |threads: &str| {
        let options = [&options[..], &["--threads", threads]].concat();
        compile_model(&scratch, &slow(), "kv.htz", &options)
    };
    let output = scratch.path("kv.htz");
    run("1").run().assert_ok();
    let expected = fs::read(&output).unwrap();
    let other_tensors = Artifact::open(&output).manifest.tensors.len() - 4 * slow().layers;
    fs::remove_file(&output).unwrap();
    fs::remove_dir_all(scratch.path("cache")).unwrap();
    run("2").run().assert_ok();
    assert!(fs::read(&output).unwrap() == expected);
    fs::remove_file(&output).unwrap();

    let mut child = run("2").spawn();
    let started = Instant::now();
    let enough = || journal(&scratch).is_some_and(|journal| tensors(&journal) > other_tensors + 4);
    while !enough() {
        assert!(child.try_wait().unwrap().is_none(), "finished too soon");
        assert!(started.elapsed() < Duration::from_secs(60), "no progress");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "finished too soon");
    let left = journal(&scratch).unwrap();
    let said = fs::read_to_string(&left).unwrap();
    assert!(tensors(&left) < other_tensors + 4 * slow().layers, "{said}");
    assert!(!output.exists());
    run("1").run().assert_ok();
    assert!(fs::read(&output).unwrap() == expected);
    assert!(journal(&scratch).is_none());
}
