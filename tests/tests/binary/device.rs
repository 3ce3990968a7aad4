//! Where a model is executed: by its name, or wherever there is something.

use htc_formats::htz::Htz;
use htc_tests::material::{demo, words};
use htc_tests::{Outcome, Scratch, TinyModel, htc};

use super::number;

fn run_on(device: &str, model: &std::path::Path) -> Outcome {
    let run = htc!["run", model, "-p", "the cat", "-n", "8", "--temp", "0"];
    run.args(["--ignore-eos", "--device", device]).run()
}

#[test]
fn float64_writes_what_the_processor_writes() {
    let model = demo("reference-7m-f16.gguf");
    let expected = run_on("cpu", &model).ok().stdout;
    assert_eq!(run_on("reference", &model).ok().stdout, expected);
}

#[test]
fn without_a_gpu_the_choice_is_the_processor_and_says_why() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let auto = run_on("auto", &model).ok();
    let why: Vec<&str> = auto
        .stderr
        .lines()
        .filter(|line| line.contains("on the processor"))
        .collect();
    assert_eq!(why.len(), 1, "{}", auto.stderr);
    assert!(
        why[0].starts_with("on the processor: no CUDA device: "),
        "{}",
        why[0]
    );
    let cpu = run_on("cpu", &model).ok();
    assert_eq!(auto.stdout, cpu.stdout);
    assert!(!cpu.stderr.contains("on the processor"), "{}", cpu.stderr);
    for device in ["cuda", "cuda:3"] {
        run_on(device, &model).refused(1, &["no CUDA device: "]);
    }
    for device in ["gpu", "cuda:", "cuda:x", ""] {
        run_on(device, &model).refused(2, &["a device is auto, cpu, cuda, cuda:N"]);
    }
}

#[test]
fn a_device_that_was_not_built_is_named() {
    let model = demo("reference-7m-f16.gguf");
    if cfg!(feature = "emulated") {
        eprintln!("skipped: this build has an emulated device");
        return;
    }
    run_on("emulated", &model).refused(2, &["build it with the feature emulated"]);
}

/// Everything that a run and a measurement do, on a GPU that the processor emulates.
#[cfg(feature = "emulated")]
#[test]
fn an_emulated_gpu_writes_and_measures_as_the_processor_does() {
    let scratch = Scratch::new();
    let model = demo("reference-7m-f16.gguf");
    assert_eq!(
        run_on("emulated", &model).ok().stdout,
        run_on("cpu", &model).ok().stdout
    );
    // An artifact in bands with what it lacks beside it, a part of it, a draft.
    super::planes::elastic(&scratch, "e.htz", &["--tune", "0"])
        .run()
        .ok();
    let (artifact, text) = (scratch.path("e.htz"), scratch.path("words.txt"));
    let measured = |device: &str| {
        let eval = htc![
            "eval",
            &artifact,
            "--text",
            &text,
            "--context",
            "32",
            "--chunks",
            "2"
        ];
        let eval = eval.args(["--fraction", "0.8", "--json", "--device", device]);
        let json = eval.run().ok().json();
        json["perplexity"].as_f64().unwrap()
    };
    let (cpu, emulated) = (measured("cpu"), measured("emulated"));
    assert!((emulated / cpu - 1.0).abs() < 5e-3, "{emulated} {cpu}");
    // Its sums have another order: it was not the processor that computed them.
    assert_ne!(emulated.to_bits(), cpu.to_bits());
    let drafted = |device: &str| {
        let run = htc![
            "run",
            &artifact,
            "-p",
            "the cat",
            "-n",
            "12",
            "--temp",
            "0",
            "--ignore-eos"
        ];
        let run = run.args([
            "--speculate",
            "0.7",
            "--draft-length",
            "3",
            "--json",
            "--device",
            device,
        ]);
        run.run().ok().json()
    };
    let (cpu, emulated) = (drafted("cpu"), drafted("emulated"));
    assert_eq!(cpu["text"], emulated["text"]);
    assert!(emulated["drafted"].as_u64().unwrap() > 0, "{emulated}");
}

/// A model that is calibrated on and measured elsewhere: as good an artifact, which says where, and whose bytes are the same on
/// any number of threads of the host.
#[test]
fn a_compilation_executes_where_it_is_told() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("words.txt", words(4_000));
    let compile = |device: &str, threads: &str| {
        let compile = htc!["compile", &model, "-o", scratch.path(device), "--force"];
        let compile = compile.args(["--context", "16", "--calibration-tokens", "256"]);
        let compile = compile.args(["--file-size", "155kB", "--tune", "0", "--compare", "off"]);
        let compile = compile.args(["--calibration".as_ref(), text.as_os_str()]);
        let compile = compile.args(["--cache".into(), scratch.path("cache")]);
        let compile = compile.args(["--report", "json", "--threads", threads]);
        compile.args(["--device", device])
    };
    let made = |device: &str| {
        let report = compile(device, "2").run().ok().json();
        let bytes = std::fs::read(scratch.path(device)).unwrap();
        (number(&report, "/quality/evaluation/kl"), bytes)
    };
    let (expected, of_processor) = made("cpu");
    assert!(expected > 0.0);
    let emulated = cfg!(feature = "emulated").then_some("emulated");
    for device in ["reference"].into_iter().chain(emulated) {
        let (kl, bytes) = made(device);
        // So near the source that much of it is rounding to eight bits of what either reads, which float64 has none of.
        assert!(
            (0.2..1.3).contains(&(kl / expected)),
            "{device}: {kl} {expected}"
        );
        // It was not the processor that computed.
        assert_ne!(kl, expected, "{device}");
        assert_ne!(bytes, of_processor, "{device}");
        assert!(bytes.len() <= 155_000, "{device}: {}", bytes.len());
        let artifact = Htz::open(scratch.path(device)).unwrap();
        let provenance = &artifact.manifest().provenance;
        let on = &provenance.instruction_set;
        assert!(on.contains("; models on "), "{device}: {on}");
        // Statistics of another device are not found under the same name, and what is made again is the same.
        std::fs::remove_dir_all(scratch.path("cache")).unwrap();
        compile(device, "1").run().ok();
        assert_eq!(
            std::fs::read(scratch.path(device)).unwrap(),
            bytes,
            "{device}"
        );
    }
    compile("cuda:7", "2")
        .run()
        .refused(1, &["--device: no CUDA device: "]);
    assert!(!scratch.path("cuda:7").exists());
    // Where nothing is executed, that is said.
    let plain = htc![
        "compile",
        &model,
        "-o",
        scratch.path("plain"),
        "--rank",
        "8"
    ];
    let said = plain.args(["--device", "reference"]).run().ok().stderr;
    assert!(
        said.contains("the device reference has nothing to do"),
        "{said}"
    );
}

#[test]
fn kernels_are_compiled_for_architectures_that_there_are() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let out = scratch.path("out.htz");
    let compile = |architectures: &str| {
        htc!["compile", &model, "-o", &out, "--cuda-arch", architectures].run()
    };
    for architecture in ["sm_", "90", "hopper", ""] {
        compile(architecture).refused(2, &["--cuda-arch"]);
    }
    compile("sm_70").refused(1, &["sm_80 at the least"]);
    assert!(!out.exists(), "nothing is left under the name");
    let sealed = compile("sm_80,sm_90,sm_80");
    if sealed.code() != Some(0) {
        sealed.refused(1, &["NVRTC"]);
        assert!(!out.exists(), "nothing is left under the name");
        eprintln!("skipped: NVRTC, which compiles kernels, is not there");
        return;
    }
    sealed.ok();
    let shown = htc!["inspect", &out].run().ok();
    let shown = format!("{}{}", shown.text(), shown.stderr);
    assert!(
        shown.contains("sm_80") && shown.contains("sm_90"),
        "{shown}"
    );
    htc!["verify", &out].run().ok();
    run_on("cpu", &out).ok();
}
