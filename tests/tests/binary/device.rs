//! Selection of the device.

use htc_formats::htz::Htz;
use htc_tests::material::{demo, words};
use htc_tests::{Outcome, Scratch, TinyModel, htc};

use super::number;

fn run_on(device: &str, model: &std::path::Path) -> Outcome {
    let run = htc!["run", model, "-p", "the cat", "-n", "8", "--temp", "0"];
    run.args(["--ignore-eos", "--device", device]).run()
}

#[test]
fn float64_and_cpu_generate_the_same_text() {
    let model = demo("reference-7m-f16.gguf");
    let expected = run_on("cpu", &model).assert_ok().stdout;
    assert_eq!(run_on("reference", &model).assert_ok().stdout, expected);
}

#[test]
fn auto_falls_back_to_the_cpu_with_a_reason_if_there_is_a_driver() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let auto = run_on("auto", &model).assert_ok();
    let why: Vec<&str> = auto
        .stderr
        .lines()
        .filter(|line| line.contains("on the processor"))
        .collect();
    // A machine without a driver is the usual case, and no reason is given.
    let version = htc!["--version"].run().assert_ok();
    let has_driver = !version.text().contains("(libcuda) is not installed");
    assert_eq!(why.len(), usize::from(has_driver), "{}", auto.stderr);
    for line in why {
        assert!(line.starts_with("on the processor: no CUDA device: "));
    }
    let cpu = run_on("cpu", &model).assert_ok();
    assert_eq!(auto.stdout, cpu.stdout);
    assert!(!cpu.stderr.contains("on the processor"), "{}", cpu.stderr);
    for device in ["cuda", "cuda:3"] {
        run_on(device, &model).assert_refused(1, &["no CUDA device: "]);
    }
    for device in ["gpu", "cuda:", "cuda:x", ""] {
        run_on(device, &model).assert_refused(
            2,
            &["unknown device; this build has auto, cpu, cuda, cuda:N"],
        );
    }
}

#[test]
fn missing_device_feature_is_named() {
    let model = demo("reference-7m-f16.gguf");
    if cfg!(feature = "emulated") {
        eprintln!("skipped: this build has an emulated device");
        return;
    }
    run_on("emulated", &model).assert_refused(2, &["build it with the feature emulated"]);
}

#[cfg(feature = "emulated")]
#[test]
fn emulated_gpu_agrees_with_the_cpu() {
    let scratch = Scratch::new();
    let model = demo("reference-7m-f16.gguf");
    assert_eq!(
        run_on("emulated", &model).assert_ok().stdout,
        run_on("cpu", &model).assert_ok().stdout
    );
    super::planes::elastic(&scratch, "e.htz", &["--tune", "0"])
        .run()
        .assert_ok();
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
        let json = eval.run().assert_ok().json();
        json["perplexity"].as_f64().unwrap()
    };
    let (cpu, emulated) = (measured("cpu"), measured("emulated"));
    assert!((emulated / cpu - 1.0).abs() < 5e-3, "{emulated} {cpu}");
    // The order of its sums differs.
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
            "--draft",
            "0.7",
            "--draft-length",
            "3",
            "--json",
            "--device",
            device,
        ]);
        run.run().assert_ok().json()
    };
    let (cpu, emulated) = (drafted("cpu"), drafted("emulated"));
    assert_eq!(cpu["text"], emulated["text"]);
    assert!(emulated["drafted"].as_u64().unwrap() > 0, "{emulated}");
}

#[test]
fn compile_uses_the_selected_device() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let text = scratch.file("words.txt", words(4_000));
    let compile = |device: &str, threads: &str| {
        let compile = htc![
            "compile",
            &model,
            "-o",
            scratch.path(&format!("{device}.htz")),
            "--force"
        ];
        let compile = compile.args(["--context", "16", "--calibration-tokens", "256"]);
        let compile = compile.args(["--target-size", "155kB", "--tune", "0", "--compare", "off"]);
        let compile = compile.args(["--calibration".as_ref(), text.as_os_str()]);
        let compile = compile.args(["--cache".into(), scratch.path("cache")]);
        let compile = compile.args(["--report", "json", "--threads", threads]);
        compile.args(["--device", device])
    };
    let made = |device: &str| {
        let report = compile(device, "2").run().assert_ok().json();
        let bytes = std::fs::read(scratch.path(&format!("{device}.htz"))).unwrap();
        (number(&report, "/quality/evaluation/kl"), bytes)
    };
    let (expected, of_processor) = made("cpu");
    assert!(expected > 0.0);
    let emulated = cfg!(feature = "emulated").then_some("emulated");
    for device in ["reference"].into_iter().chain(emulated) {
        let (kl, bytes) = made(device);
        // The rest is 8-bit rounding of activations.
        assert!(
            (0.2..1.3).contains(&(kl / expected)),
            "{device}: {kl} {expected}"
        );
        assert_ne!(kl, expected, "{device}");
        assert_ne!(bytes, of_processor, "{device}");
        assert!(bytes.len() <= 155_000, "{device}: {}", bytes.len());
        let artifact = Htz::open(scratch.path(&format!("{device}.htz"))).unwrap();
        let provenance = &artifact.manifest().provenance;
        let on = &provenance.instruction_set;
        assert!(on.contains("; models on "), "{device}: {on}");
        std::fs::remove_dir_all(scratch.path("cache")).unwrap();
        compile(device, "1").run().assert_ok();
        assert_eq!(
            std::fs::read(scratch.path(&format!("{device}.htz"))).unwrap(),
            bytes,
            "{device}"
        );
    }
    compile("cuda:7", "2")
        .run()
        .assert_refused(1, &["--device: no CUDA device: "]);
    assert!(!scratch.path("cuda:7.htz").exists());
    let plain = htc![
        "compile",
        &model,
        "-o",
        scratch.path("plain.htz"),
        "--rank",
        "8"
    ];
    let said = plain
        .args(["--device", "reference"])
        .run()
        .assert_ok()
        .stderr;
    assert!(
        said.contains("the device reference has nothing to do"),
        "{said}"
    );
}

#[test]
fn kernels_are_compiled_for_valid_architectures() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let out = scratch.path("out.htz");
    let compile = |architectures: &str| {
        htc!["compile", &model, "-o", &out, "--cuda-arch", architectures].run()
    };
    for architecture in ["sm_", "90", "hopper", ""] {
        compile(architecture).assert_refused(2, &["--cuda-arch"]);
    }
    compile("sm_70").assert_refused(1, &["sm_80 at the least"]);
    assert!(!out.exists(), "nothing is left under the name");
    let sealed = compile("sm_80,sm_90,sm_80");
    if sealed.code() != Some(0) {
        sealed.assert_refused(1, &["NVRTC"]);
        assert!(!out.exists(), "nothing is left under the name");
        eprintln!("skipped: NVRTC, which compiles kernels, is not there");
        return;
    }
    sealed.assert_ok();
    let shown = htc!["inspect", &out].run().assert_ok();
    let shown = format!("{}{}", shown.text(), shown.stderr);
    assert!(
        shown.contains("sm_80") && shown.contains("sm_90"),
        "{shown}"
    );
    htc!["verify", &out].run().assert_ok();
    run_on("cpu", &out).assert_ok();
}
