//! The compiler as a library.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

#[path = "../examples/build_script.rs"]
mod build_script;

use std::fs;
use std::path::{Path, PathBuf};

use htc::calibrate::PassError;
use htc::options::{
    Allocator, BiasArg, Budget, FirstPositions, GaugeKind, Method, PlanSource, QualityPreset,
    RankFloor, SinkProtection, TextSource,
};
use htc::plan::PlanError;
use htc::{CancellationToken, CompileError, Compiler, Event};
use htc_formats::model::ProjectionKind;

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../assets/demo")
        .join(name)
}

#[test]
fn a_build_script_compiles_and_names_what_it_depends_on() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = fixtures.join("architectures/llama");
    let artifact = folder.path().join("m.htz");
    let lines = build_script::build(&model, &artifact).unwrap();
    let named = |name: &str| format!("cargo::rerun-if-changed={}", model.join(name).display());
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        assert!(lines.contains(&named(name)), "{name}: {lines:?}");
    }
    let after = fs::metadata(&artifact).unwrap().len();
    assert!(lines.iter().any(|line| line.contains(&after.to_string())));
}

#[test]
fn what_is_not_said_has_the_defaults_of_the_command_line() {
    let options = Compiler::new("a.gguf", "a.htz").options().unwrap();
    let PlanSource::Compute { request, .. } = options.planning else {
        panic!("a plan of a file");
    };
    assert_eq!(request.method, Method::Quantise);
    assert_eq!(options.limit, QualityPreset::Balanced.limit());
    let texts = options.calibration.unwrap().texts;
    assert_eq!(texts[0].source, TextSource::Shipped);
    assert!(!options.overwrite);
    let options = Compiler::new("a.gguf", "a.htz")
        .method(Method::PerProjection)
        .rank_floor(RankFloor::Rank(8));
    let options = options.options().unwrap();
    let PlanSource::Compute { request, .. } = options.planning else {
        panic!("a plan of a file");
    };
    assert_eq!(request.method, Method::PerProjection);
    assert_eq!(request.budget, Budget::Ratio(0.9));
    assert!(options.calibration.is_none() && options.limit.is_none());
}

#[test]
fn texts_and_plans_are_inputs_too() {
    let compiler = Compiler::new(demo("reference-7m-f16.gguf"), "a.htz")
        .calibration(demo("alice.txt"))
        .weighted_calibration("more.txt", 0.5)
        .calibration(TextSource::Shipped)
        .held_out(demo("time_machine.txt"))
        .plan("plan.json");
    let inputs = compiler.inputs().unwrap();
    assert_eq!(inputs.len(), 5, "{inputs:?}");
    for input in [
        demo("reference-7m-f16.gguf"),
        demo("alice.txt"),
        demo("time_machine.txt"),
        "more.txt".into(),
        "plan.json".into(),
    ] {
        assert!(inputs.contains(&input), "{}", input.display());
    }
}

#[test]
fn cancelled_compilation_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let artifact = folder.path().join("m.htz");
    let cancel = CancellationToken::default();
    let compiler = Compiler::new(demo("reference-7m-f16.gguf"), &artifact)
        .method(Method::PerProjection)
        .ratio(0.5)
        .cancelled_by(&cancel);
    let ended = compiler.run_with(|event| {
        if let Event::Done(_) = event {
            cancel.cancel();
        }
    });
    assert!(
        matches!(ended, Err(CompileError::Cancelled(_))),
        "{ended:?}"
    );
    assert!(!artifact.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let report = Compiler::new(demo("reference-7m-f16.gguf"), &artifact)
        .method(Method::PerProjection)
        .ratio(0.5)
        .run()
        .unwrap();
    assert_eq!(report.bytes.after, fs::metadata(&artifact).unwrap().len());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Configurations that the builder refuses, each with the method named in its message.
fn refusals(folder: &Path) -> Vec<(Compiler, &'static str)> {
    let plain = || {
        let compiler = Compiler::new(demo("reference-7m-f16.gguf"), folder.join("m.htz"));
        compiler.method(Method::PerProjection)
    };
    let on = |text: PathBuf| plain().calibration(text).cache(folder.join("cache"));
    let calibrated = || on(demo("alice.txt"));
    let (short, large, none) = (
        folder.join("a.txt"),
        folder.join("large"),
        folder.join("none"),
    );
    fs::write(&short, "Alice").unwrap();
    let (window, text) = (
        folder.join("window.txt"),
        fs::read_to_string(demo("alice.txt")).unwrap(),
    );
    fs::write(
        &window,
        text.split_inclusive(' ').take(40).collect::<String>(),
    )
    .unwrap();
    fs::write(&large, " ".repeat((32 << 20) + 1)).unwrap();
    vec![
        (plain().rank(0), "rank"),
        (plain().rank(1 << 20), "rank"),
        (plain().ratio(1e-9), "ratio"),
        (plain().ratio(1.5), "ratio"),
        (plain().parameters(1), "parameters"),
        (plain().bytes(1), "bytes"),
        (plain().mean_rank(0.001), "mean_rank"),
        (plain().mean_rank(f64::NAN), "mean_rank"),
        (
            plain()
                .method(Method::SharedBasis)
                .projections([ProjectionKind::Down]),
            "method",
        ),
        (plain().rank(8).allocator(Allocator::Waterfill), "allocator"),
        (plain().rank(8).rank_floor(RankFloor::Rank(4)), "rank_floor"),
        (plain().rank(8).rank_cap(4), "rank_cap"),
        (plain().rank_floor(RankFloor::Rank(0)), "rank_floor"),
        (
            plain().rank_floor(RankFloor::Rank(64)).rank_cap(32),
            "rank_cap",
        ),
        (plain().rank_cap(1), "rank_cap"),
        (plain().allocator(Allocator::Curvature), "calibration"),
        (plain().allocator(Allocator::Whitened), "calibration"),
        (plain().allocator(Allocator::DiffPlan), "tokens_per_joule"),
        (plain().allocator(Allocator::CacheFit), "gpu"),
        (plain().allocator(Allocator::CacheFit).gpu(1), "factor_type"),
        (plain().gauge(GaugeKind::Whiten), "calibration"),
        (plain().sink(SinkProtection::Append), "sink"),
        (plain().sink(SinkProtection::Channels(1 << 20)), "sink"),
        (plain().bias(BiasArg::On), "bias"),
        (plain().probe_layer(8), "probe_layer"),
        (
            plain().rank(8).first_positions(FirstPositions::Included),
            "first_positions",
        ),
        (plain().plan(none), "plan"),
        (plain().plan(large), "plan"),
        (
            Compiler::new(demo("reference-7m-f16.gguf"), demo("reference-7m-f16.gguf")),
            "output",
        ),
        (on(short), "context"),
        (calibrated().context(1 << 20), "context"),
        (
            calibrated().calibration_tokens(8).context(16),
            "calibration_tokens",
        ),
        (calibrated().held_out(demo("alice.txt")), "held_out"),
        (
            calibrated()
                .calibration(TextSource::Shipped)
                .weighted_calibration(TextSource::Shipped, 0.5),
            "calibration",
        ),
        (calibrated().cache(demo("alice.txt")), "cache"),
        (on(window).context(64).max_kl(0.1), "max_kl"),
    ]
}

#[test]
fn errors_name_methods_and_no_flags() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, method) in refusals(folder.path()) {
        let Err(error) = compiler.run() else {
            panic!("{method} is not refused");
        };
        let error = error.to_string();
        assert!(error.contains(&format!("`{method}`")), "{method}: {error}");
        assert!(!error.contains("--"), "{error}");
    }
    let (path, unit) = (PathBuf::from("m.gguf"), String::new);
    let rare: [CompileError; 6] = [
        CompileError::NoSpace {
            path: path.clone(),
            needed: 2,
            free: 1,
        },
        CompileError::NoMemory {
            needed: 2,
            available: 1,
        },
        PassError::NoSpace {
            path,
            needed: 2,
            free: 1,
        }
        .into(),
        PassError::NoCache.into(),
        PlanError::InputTooWide {
            group: unit(),
            cols: 1,
            outs: 1,
        }
        .into(),
        PlanError::Inconsistent(None).into(),
    ];
    for error in rare.map(|error| error.to_string()) {
        assert!(error.contains('`') && !error.contains("--"), "{error}");
    }
}

#[test]
fn no_message_in_the_source_has_a_flag() {
    let mut seen = 0;
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("src/app") && !path.ends_with("src/page") {
                    folders.push(path);
                }
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for message in text.split("#[error(").skip(1) {
                let message = message.split(")]").next().unwrap();
                assert!(!message.contains("--"), "{}: {message}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}
