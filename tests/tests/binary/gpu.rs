//! The program on a simulated GPU.

use std::path::Path;

use htc_formats::htz::Htz;
use htc_tests::artifact::Artifact;
use htc_tests::machine::{BLAS, COMPILER, FakeGpuMachine, SOLVER};
use htc_tests::material::{demo_of_layers, words};
use htc_tests::{TinyModel, htc};

use super::number;

#[test]
fn run_and_eval_work_on_a_simulated_driver() {
    let machine = FakeGpuMachine::new();
    let model = demo_of_layers(2);
    let run = |device: &str| {
        let run = htc!["run", &model, "-p", "the cat", "-n", "6", "--temp", "0"];
        let run = run.args(["--ignore-eos", "--device", device]);
        machine.configure(run).run().assert_ok()
    };
    let (expected, found) = (run("cpu"), run("cuda"));
    assert_eq!(found.stdout, expected.stdout);
    let left = run("auto");
    assert_eq!(left.stdout, expected.stdout);
    assert!(!left.stderr.contains("on the processor"), "{}", left.stderr);
    let text = machine.scratch().file("words.txt", words(400));
    let perplexity = |device: &str| {
        let eval = htc!["eval", &model, "--text", &text, "--context", "32"];
        let eval = eval.args(["--chunks", "1", "--json", "--device", device]);
        number(
            &machine.configure(eval).run().assert_ok().json(),
            "/perplexity",
        )
    };
    let (cpu, cuda) = (perplexity("cpu"), perplexity("cuda"));
    assert!((cuda / cpu - 1.0).abs() < 5e-3, "{cuda} {cpu}");
    assert_ne!(cuda.to_bits(), cpu.to_bits());
    let run = htc!["run", &model, "-p", "the cat", "-n", "6", "--temp", "0"];
    let run = run.args(["--ignore-eos", "--device", "cuda"]);
    let run = run.env("HTC_FAKE", Some(Path::new("no-graphs")));
    let one_by_one = machine.configure(run).run().assert_ok();
    assert_eq!(one_by_one.stdout, expected.stdout);
    let told = one_by_one.stderr.matches("makes no graph").count();
    assert_eq!(told, 1, "{}", one_by_one.stderr);
    assert!(!found.stderr.contains("makes no graph"), "{}", found.stderr);
    let run = htc!["run", &model, "-p", "the cat", "-n", "2", "--temp", "0"];
    let run = run.args(["--ignore-eos", "--device", "cuda", "--thermal", "65,85"]);
    let hot = machine.configure(run).run().assert_ok();
    let known = ["NVML cannot be used", "there is no GPU GPU-"];
    let tells = known.iter().any(|known| hot.stderr.contains(known));
    assert!(
        tells && hot.stderr.contains("nothing is followed"),
        "{}",
        hot.stderr
    );
    let run = htc!["run", &model, "-p", "the cat", "-n", "1", "--device"];
    let run = run.args(["cuda:GPU-00000000-0000-0000-0000-000000000000"]);
    machine
        .configure(run)
        .run()
        .assert_refused(1, &["GPU-00000000-0000-0000-0000-000000000000"]);
    let run = htc![
        "run", &model, "-p", "the cat", "-n", "1", "--device", "cuda:9"
    ];
    let refused = machine.configure(run).run();
    refused.assert_refused(1, &["no CUDA device: device 9 asked for"]);
    machine.assert_all_released();
}

#[test]
fn cusolver_decomposes_weights() {
    let machine = FakeGpuMachine::new();
    let scratch = &machine.scratch();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let compile = |method: &str, out: &str, device: &str, threads: &str| {
        let compile = htc!["compile", &model, "-o", scratch.path(out), "--force"];
        let compile = compile.args(["--method", method, "--rank", "8", "--factor-type", "f32"]);
        let compile = compile.args(["--projections", "q,k,v,gate,up", "--report", "json"]);
        machine.configure(compile.args(["--device", device, "--threads", threads]))
    };
    // A system library might be found without the file.
    machine.install(BLAS, "libcublas.cpp", &[]);
    machine.install(SOLVER, "libcusolver.cpp", &["-DHTC_SHORT"]);
    let said = compile("low-rank", "plain.htz", "cuda", "2")
        .run()
        .assert_ok();
    let warned = "weights are decomposed by the processor: cuSOLVER has no cusolver";
    assert!(said.stderr.contains(warned), "{}", said.stderr);
    assert!(said.stderr.contains("; install cuSOLVER and cuBLAS"));
    let plain = std::fs::read(scratch.path("plain.htz")).unwrap();

    machine.install(SOLVER, "libcusolver.cpp", &[]);
    for method in super::METHODS {
        let made = |device, threads| {
            let out = format!("{method}-{device}.htz");
            let run = compile(method, &out, device, threads).run().assert_ok();
            let report = run.stdout.clone();
            (scratch.path(&out), run.stderr, report)
        };
        let (cpu, _, _) = made("cpu", "2");
        let (cuda, said, _) = made("cuda", "2");
        let told = "weights are decomposed by cuSOLVER ";
        assert!(said.contains(told), "{said}");
        let name = |path: &Path| {
            let artifact = Htz::open(path).unwrap();
            let provenance = &artifact.manifest().provenance;
            provenance.linear_algebra.clone()
        };
        assert!(name(&cuda).starts_with("cuSOLVER "), "{}", name(&cuda));
        assert!(name(&cuda).contains(", cuBLAS "), "{}", name(&cuda));
        // The best approximation of a rank is unique.
        let [expected, found] = [&cpu, &cuda].map(|path| Artifact::open(path));
        for layer in 0..2 {
            for projection in ["q", "k", "v", "gate", "up"] {
                let expected = expected.dense_projection(layer, projection);
                let distance = found
                    .dense_projection(layer, projection)
                    .relative_distance(&expected);
                assert!(distance < 1e-6, "{method} {layer} {projection}: {distance}");
            }
        }
        let bytes = std::fs::read(&cuda).unwrap();
        if method == "low-rank" {
            assert_eq!(std::fs::read(&cpu).unwrap(), plain, "made by the processor");
        }
        let (again, _, _) = made("cuda", "1");
        assert_eq!(std::fs::read(again).unwrap(), bytes, "{method}: threads");
    }
    let called = machine.call_log();
    for operation in ["eigenvectors of ", "product of ", "sums of "] {
        assert!(called.contains(operation), "{operation}");
    }
    let failing = compile("low-rank", "failing.htz", "cuda", "2");
    let failing = failing.env("HTC_FAKE", Some(Path::new("no-convergence")));
    let failed = failing.run();
    assert_eq!(failed.code(), Some(1), "{}", failed.stderr);
    let told =
        "tensor blk.0.attn_q.weight: the decomposition of a matrix of order 64 did not converge";
    assert!(failed.stderr.contains(told), "{}", failed.stderr);
    assert!(!scratch.path("failing.htz").exists());
    machine.assert_all_released();
}

#[test]
fn whole_compilation_runs_on_the_device() {
    let machine = FakeGpuMachine::new();
    machine.install(BLAS, "libcublas.cpp", &[]);
    machine.install(SOLVER, "libcusolver.cpp", &[]);
    let scratch = &machine.scratch();
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
        let compile = compile.args(["--method", "low-rank", "--rank", "12", "--gauge", "whiten"]);
        let compile = compile.arg("--kv-bases");
        let compile = compile.args(["--calibration".as_ref(), text.as_os_str()]);
        let compile = compile.args(["--cache".into(), scratch.path("cache")]);
        let compile = compile.args(["--report", "json", "--threads", threads]);
        machine.configure(compile.args(["--device", device]))
    };
    let kl = |device: &str| {
        let made = compile(device, "2").run().assert_ok();
        number(&made.json(), "/quality/evaluation/kl")
    };
    let (cpu, cuda) = (kl("cpu"), kl("cuda"));
    assert!((cuda / cpu - 1.0).abs() < 0.02, "{cuda} {cpu}");
    let called = machine.call_log();
    for summed in ["sums of 16 x 64\n", "sums of 16 x 172\n"] {
        assert!(called.contains(summed), "{called}");
    }
    for decomposed in [
        "eigenvectors of 64\n",
        "eigenvalues of 64\n",
        "eigenvectors of 16\n",
    ] {
        assert!(called.contains(decomposed), "{decomposed}: {called}");
    }
    let bytes = std::fs::read(scratch.path("cuda.htz")).unwrap();
    let artifact = Htz::open(scratch.path("cuda.htz")).unwrap();
    let on = &artifact.manifest().provenance.instruction_set;
    assert!(
        on.contains("; models on ") && on.contains("; sums by cuSOLVER "),
        "{on}"
    );
    std::fs::remove_dir_all(scratch.path("cache")).unwrap();
    compile("cuda", "1").run().assert_ok();
    assert_eq!(std::fs::read(scratch.path("cuda.htz")).unwrap(), bytes);
    machine.assert_all_released();
    let with = |device: &str, bytes: &'static str| {
        let compile = compile(device, "2").arg("--dry-run");
        compile.env("HTC_FAKE_MEMORY", Some(Path::new(bytes))).run()
    };
    let said = with("cuda", "5000000").assert_ok().stderr;
    let told = "second moments are summed and weights decomposed by the processor: that takes ";
    assert!(said.contains(told), "{said}");
    with("cuda", "100000").assert_refused(
        1,
        &["--device: out of device memory: need ", "100000 are free"],
    );
    let said = with("auto", "100000").assert_ok().stderr;
    assert!(
        said.contains("on the processor: out of device memory: need "),
        "{said}"
    );
}

#[test]
fn sealed_or_cached_kernels_need_no_compiler() {
    let machine = FakeGpuMachine::new();
    let scratch = &machine.scratch();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let sealed = scratch.path("sealed.htz");
    let compile = htc!["compile", &model, "-o", &sealed, "--rank", "8"];
    machine
        .configure(compile.args(["--cuda-arch", "sm_90"]))
        .run()
        .assert_ok();
    let with = |model: &Path, device: &str, tensor_cores: bool| {
        let run = htc!["run", model, "-p", "the cat", "-n", "4", "--temp", "0"];
        let run = machine.configure(run.args(["--ignore-eos", "--device", device]));
        run.env("HTC_PLAIN_MMA", (!tensor_cores).then(|| "1".as_ref()))
            .run()
    };
    let run = |model: &Path, device: &str| with(model, device, true);
    let expected = run(&model, "cpu").assert_ok().stdout;
    let kept = || {
        let folder = std::fs::read_dir(scratch.path("user/htc/kernels")).unwrap();
        folder.count()
    };
    assert_eq!(run(&model, "cuda").assert_ok().stdout, expected);
    assert_eq!(kept(), 1);
    let (compiler, away) = (machine.libraries().join(COMPILER), scratch.path("away"));
    std::fs::rename(&compiler, &away).unwrap();
    assert_eq!(run(&model, "cuda").assert_ok().stdout, expected);
    std::fs::rename(&away, &compiler).unwrap();
    assert_eq!(with(&model, "cuda", false).assert_ok().stdout, expected);
    assert_eq!(kept(), 2);
    std::fs::remove_file(&compiler).unwrap();
    assert_eq!(with(&model, "cuda", false).assert_ok().stdout, expected);
    std::fs::remove_dir_all(scratch.path("user")).unwrap();
    let known = std::process::Command::new("/sbin/ldconfig")
        .arg("-p")
        .output();
    let known = known.map_or_else(|_| Vec::new(), |output| output.stdout);
    if !String::from_utf8_lossy(&known).contains("libnvrtc") {
        let remedies = ["no kernels for sm_90", "install NVRTC", "--cuda-arch sm_90"];
        run(&model, "cuda").assert_refused(1, &remedies);
        let why = "none are sealed without tensor cores";
        with(&sealed, "cuda", false).assert_refused(1, &[why]);
    }
    let [expected, found] = ["cpu", "cuda"].map(|device| run(&sealed, device).assert_ok().stdout);
    assert_eq!(found, expected);
    machine.assert_all_released();
}
