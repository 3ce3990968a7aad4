use std::fs;
use std::path::{Path, PathBuf};

use htc_tests::artifact::place;
use htc_tests::material::{demo, demo_of_layers};
use htc_tests::{Htc, Scratch, TinyModel, htc};
use serde_json::Value;

use super::{METHODS, assert_close, compile, list, number, text};

/// Allocators that work without calibration, with their required options; phase falls back with a
/// note.
pub(super) const ALLOCATORS: [&[&str]; 5] = [
    &["--allocator", "uniform"],
    &["--allocator", "waterfill"],
    &["--allocator", "diffplan", "--tokens-per-joule", "3.5"],
    &["--allocator", "cachefit", "--gpu", "rtx-4090"],
    &["--allocator", "phase"],
];

pub(super) fn model(scratch: &Scratch) -> PathBuf {
    scratch.file("model.gguf", wide(3).bytes())
}

pub(super) fn wide(layers: usize) -> TinyModel {
    TinyModel {
        layers,
        width: 128,
        heads: 4,
        kv_heads: 4,
        head_size: 32,
        ffn: 256,
        ..TinyModel::default()
    }
}

pub(super) fn plan(model: &Path, options: &[&[&str]]) -> Htc {
    htc!["plan", model].args(options.concat())
}

#[test]
fn every_allocator_meets_every_budget_with_both_methods() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    for method in METHODS {
        for allocator in ALLOCATORS {
            for (option, value) in [
                ("--ratio", "0.6"),
                ("--parameters", "140000"),
                ("--bytes", "0.2MB"),
                ("--bytes", "200000"),
                ("--mean-rank", "40"),
            ] {
                let options = [
                    "--method",
                    method,
                    option,
                    value,
                    "--factor-type",
                    "f16",
                    "--force",
                ];
                let options = [&options, allocator].concat();
                let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
                let about = format!("{options:?}");
                let asked = match value {
                    "0.2MB" => 200_000.0,
                    value => value.parse().unwrap(),
                };
                let selected: Vec<&Value> = list(&report, "/plan/projections")
                    .iter()
                    .filter(|s| method == "low-rank" || ["q", "k", "v"].contains(&&*place(s).1))
                    .collect();
                let sum = |key: &str| selected.iter().map(|s| number(s, key)).sum::<f64>();
                let bases = |key: &str| -> f64 {
                    list(&report, "/plan/bases")
                        .iter()
                        .map(|b| number(b, key))
                        .sum()
                };
                let parameters = sum("/parameters_after") + bases("/parameters");
                let met = match option {
                    "--ratio" => parameters / sum("/parameters_before"),
                    "--parameters" => parameters,
                    "--bytes" => sum("/bytes_after") + bases("/bytes"),
                    _ => {
                        let rank = |s: &&Value| match s["rank"].as_f64() {
                            Some(rank) => rank,
                            None => number(s, "/rows").min(number(s, "/cols")),
                        };
                        selected.iter().map(rank).sum::<f64>() / selected.len() as f64
                    }
                };
                assert!(met <= asked, "{about}: {met}");
                assert!(met > 0.7 * asked, "{about}: only {met}");
                let key = match option {
                    "--mean-rank" => "/request/budget/mean_rank".to_owned(),
                    option => option.replace("--", "/request/budget/"),
                };
                assert_close(number(&report, &key), asked, 1e-12);
                assert_eq!(text(&report, "/request/allocator"), allocator[1]);
                let record = report.pointer("/plan/allocation");
                let plain = allocator[1] == "uniform" && option == "--ratio";
                assert_eq!(record.is_none(), plain, "{about}");
                if let Some(record) = record {
                    assert_eq!(text(record, "/allocator"), allocator[1]);
                    assert_eq!(record["budget"].is_string(), option != "--ratio");
                    let shown = htc!["inspect", &artifact].run().assert_ok();
                    let line = format!("allocator {}", allocator[1]);
                    assert!(shown.text().contains(&line), "{}", shown.text());
                }
                assert_close(
                    number(&report, "/selected_parameters/after"),
                    parameters,
                    1e-12,
                );
                let said = list(&report, "/notes").iter();
                let said = said.filter(|n| n.as_str().unwrap().contains("phases_valid = false"));
                assert_eq!(
                    said.count(),
                    usize::from(allocator[1] == "phase"),
                    "{about}"
                );
            }
        }
    }
}

#[test]
fn demo_model_compiles_with_every_allocator() {
    let scratch = Scratch::new();
    let model = demo_of_layers(2);
    for method in METHODS {
        for allocator in ALLOCATORS {
            let options = ["--method", method, "--ratio", "0.7"];
            let options = [
                &options,
                &["--factor-type", "f16", "--force"][..],
                allocator,
            ]
            .concat();
            let (artifact, report) = compile(&scratch, &model, "out.htz", &options);
            let met = number(&report, "/ratio");
            assert!(met <= 0.7 && met > 0.65, "{options:?}: {met}");
            htc!["verify", &artifact].run().assert_ok();
        }
    }
}

#[test]
fn waterfill_loses_less_than_uniform() {
    let scratch = Scratch::new();
    let model = demo("reference-7m-f16.gguf");
    let lost = |allocator: &str| {
        let options = ["--bytes", "4MB", "--allocator", allocator, "--force"];
        let (_, report) = compile(&scratch, &model, "out.htz", &options);
        let projections = list(&report, "/plan/projections").iter();
        projections
            .map(|s| s["error"].as_f64().unwrap_or(0.0).powi(2))
            .sum::<f64>()
    };
    let (waterfill, uniform) = (lost("waterfill"), lost("uniform"));
    assert!(waterfill < 0.99 * uniform, "{waterfill}, uniform {uniform}");
}

#[test]
fn rank_floors_and_caps_hold_and_are_reported() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    for method in METHODS {
        for allocator in ALLOCATORS {
            for (options, least, most, word) in [
                (
                    &["--rank-floor", "32", "--ratio", "0.55"][..],
                    32,
                    128,
                    "--rank-floor 32",
                ),
                (
                    &["--rank-floor", "0.25", "--ratio", "0.55"],
                    32,
                    128,
                    "--rank-floor 32",
                ),
                (
                    &["--rank-cap", "32", "--ratio", "0.95"],
                    1,
                    32,
                    "--rank-cap 32",
                ),
            ] {
                let options = [&["--method", method, "--force"], options, allocator].concat();
                let (_, report) = compile(&scratch, &model, "out.htz", &options);
                for projection in list(&report, "/plan/projections") {
                    if let Some(rank) = projection["rank"].as_u64() {
                        assert!((least..=most).contains(&rank), "{options:?}: {projection}");
                    }
                }
                let notes = list(&report, "/notes").iter();
                let said = notes.filter(|n| n.as_str().unwrap().contains(word)).count();
                let may_be_silent = word.contains("floor");
                assert!(
                    said > 0 || may_be_silent,
                    "{options:?}: {:?}",
                    report["notes"]
                );
            }
        }
        let options = [
            "--method",
            method,
            "--rank-floor",
            "32",
            "--mean-rank",
            "32",
            "--force",
        ];
        let (_, report) = compile(&scratch, &model, "out.htz", &options);
        let factored = |s: &&Value| s["rank"] == 32;
        for projection in list(&report, "/plan/projections").iter().filter(factored) {
            assert!(
                text(projection, "/note").contains("--rank-floor 32 decided"),
                "{projection}"
            );
        }
        assert_eq!(text(&report, "/request/rank_floor"), "32");
    }
}

#[test]
fn missing_allocator_options_are_named() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.path("out.htz");
    for (options, words) in [
        (
            &["--allocator", "whitened"][..],
            &["whitened", "--calibration"][..],
        ),
        (
            &["--allocator", "curvature"],
            &["curvature", "--calibration"],
        ),
        (
            &["--allocator", "diffplan"],
            &["diffplan", "--energy", "--tokens-per-joule"],
        ),
        (&["--allocator", "cachefit"], &["cachefit", "--gpu"]),
        (
            &["--allocator", "cachefit", "--gpu", "100"],
            &["cachefit", "cache"],
        ),
        (&["--gpu", "l4"], &["--gpu", "cachefit"]),
        (
            &["--tokens-per-joule", "2"],
            &["--tokens-per-joule", "diffplan"],
        ),
        (
            &["--first-positions", "counted"],
            &["--first-positions", "phase or curvature"],
        ),
        (
            &["--rank", "8", "--allocator", "waterfill"],
            &["--allocator waterfill", "--rank"],
        ),
        (&["--rank", "full", "--rank-cap", "8"], &["--rank-cap 8"]),
        (
            &["--rank-floor", "16", "--rank-cap", "8"],
            &["--rank-floor 16", "--rank-cap 8"],
        ),
        (&["--bytes", "100"], &["--bytes 100", "smallest"]),
        (&["--parameters", "5"], &["--parameters 5", "smallest"]),
        (&["--mean-rank", "0.01"], &["--mean-rank", "smallest"]),
        (
            &["--ratio", "0.5", "--bytes", "1MB"],
            &["--ratio", "--bytes"],
        ),
        (
            &["--parameters", "5", "--mean-rank", "4"],
            &["--parameters", "--mean-rank"],
        ),
    ] {
        plan(&model, &[options]).run().assert_refused(2, words);
        for more in [&[][..], &["--dry-run"]] {
            let run = htc!["compile", &model, "-o", &output]
                .args(options)
                .args(more);
            run.run().assert_refused(2, words);
        }
    }
    scratch.assert_only_files(&["model.gguf"]);
}

#[test]
fn plan_gives_the_same_bytes_as_its_options() {
    let scratch = Scratch::new();
    let models = [model(&scratch), demo_of_layers(2)];
    let (from_plan, direct) = (scratch.path("plan.htz"), scratch.path("direct.htz"));
    let file = scratch.path("plan.json");
    let mut cases: Vec<Vec<&str>> = Vec::new();
    for method in METHODS {
        for allocator in ALLOCATORS {
            cases.push([&["--method", method, "--ratio", "0.7"], allocator].concat());
        }
        cases.push(vec![
            "--method",
            method,
            "--rank",
            "24",
            "--factor-type",
            "f16",
        ]);
        cases.push(vec![
            "--method",
            method,
            "--rank",
            "full",
            "--factor-type",
            "bf16",
        ]);
        cases.push(vec![
            "--method",
            method,
            "--bytes",
            "150kB",
            "--projections",
            "q,v",
            "--rank-floor",
            "8",
        ]);
        cases.push(vec!["--method", method]);
    }
    for options in &cases {
        for model in &models {
            // The model with trained weights is there for what each method chooses by itself.
            if model == &models[1] && options.len() > 2 && !options.contains(&"diffplan") {
                continue;
            }
            let run = plan(model, &[options, &["--threads", "1", "--force"]])
                .arg("-o")
                .arg(&file);
            assert!(run.run().assert_ok().stdout.is_empty());
            let run = htc![
                "compile", model, "-o", &from_plan, "--plan", &file, "--force"
            ];
            run.run().assert_ok();
            let run = htc!["compile", model, "-o", &direct, "--force", "--threads", "3"];
            run.args(options).run().assert_ok();
            let same = fs::read(&from_plan).unwrap() == fs::read(&direct).unwrap();
            assert!(same, "{options:?}");
        }
    }
}

#[test]
fn edited_plans_are_followed() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let printed = plan(&model, &[&["--rank", "16"]]).run().assert_ok();
    let edited = printed
        .text()
        .replacen("rank\",\"rank\":16", "rank\",\"rank\":48", 1);
    assert_ne!(edited, printed.text());
    let file = scratch.file("plan.json", &edited);
    let (_, report) = compile(
        &scratch,
        &model,
        "out.htz",
        &["--plan", file.to_str().unwrap()],
    );
    let ranks: Vec<u64> = list(&report, "/plan/projections")
        .iter()
        .map(|projection| projection["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(ranks[0], 48);
    assert!(ranks[1..].iter().all(|rank| *rank == 16));
}

#[test]
fn first_positions_option_changes_the_plan() {
    let scratch = Scratch::new();
    let model = demo_of_layers(2);
    let made = |options: &[&str]| {
        let run = plan(
            &model,
            &[
                &["--allocator", "curvature", "--ratio", "0.5"],
                &["--factor-type", "f16"],
                options,
            ],
        );
        let run = run.arg("--calibration").arg(demo("alice.txt"));
        let run = run.args(["--calibration-tokens", "1024", "--context", "64"]);
        let run = run.arg("--cache").arg(scratch.path("cache"));
        serde_json::from_str::<Value>(run.run().assert_ok().text()).unwrap()
    };
    let (left_out, counted) = (made(&[]), made(&["--first-positions", "counted"]));
    assert_eq!(left_out, made(&["--first-positions", "left-out"]));
    assert!(left_out.pointer("/request/first_positions").is_none());
    assert_eq!(text(&counted, "/request/first_positions"), "counted");
    let notes = list(&counted, "/notes").iter();
    let mut notes = notes.filter_map(Value::as_str);
    assert!(notes.any(|note| note.contains("first position of every window")));
    assert_ne!(left_out["units"], counted["units"]);
    let file = scratch.file("plan.json", counted.to_string());
    let output = scratch.path("out.htz");
    let run = htc![
        "compile",
        &model,
        "-o",
        &output,
        "--plan",
        &file,
        "--dry-run"
    ];
    let said = run.run().assert_ok().stderr;
    assert!(said.contains("--first-positions counted"), "{said}");
}

#[test]
fn plans_go_to_stdout_or_a_file() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let options: &[&str] = &["--allocator", "phase", "--ratio", "0.5"];
    let printed = plan(&model, &[options]).run().assert_ok();
    let value: Value = serde_json::from_str(printed.text()).unwrap();
    assert_eq!(text(&value, "/format"), "htc-plan");
    assert_eq!(list(&value, "/units").len(), 21);
    for word in [
        "request",
        "--allocator phase",
        "phases_valid = false",
        "parameters",
        "gate",
    ] {
        assert!(
            printed.stderr.contains(word),
            "{word:?} is not in {}",
            printed.stderr
        );
    }
    let dash = plan(&model, &[options, &["-o", "-"]]).run().assert_ok();
    assert_eq!(dash.stdout, printed.stdout);
    scratch.assert_only_files(&["model.gguf"]);
    let file = scratch.path("plan.json");
    plan(&model, &[options])
        .arg("-o")
        .arg(&file)
        .run()
        .assert_ok();
    assert_eq!(fs::read(&file).unwrap(), printed.stdout);
    let again = || plan(&model, &[options]).arg("-o").arg(&file);
    again()
        .run()
        .assert_refused(1, &["plan.json", "exists", "--force"]);
    again().arg("--force").run().assert_ok();
    let onto = plan(&model, &[options, &["--force"]]).arg("-o").arg(&model);
    onto.run().assert_refused(2, &["model.gguf", "same file"]);
    let nowhere = plan(&model, &[options]).args(["-o", "/no/such/folder/plan.json"]);
    nowhere.run().assert_refused(1, &["/no/such/folder"]);
    let of_artifact = scratch.path("out.htz");
    let artifact = htc!["compile", &model, "-o", &of_artifact];
    artifact.args(["--rank", "8"]).run().assert_ok();
    plan(&of_artifact, &[])
        .run()
        .assert_refused(1, &["out.htz", "artifact already"]);
    plan(&scratch.path("no.gguf"), &[])
        .run()
        .assert_refused(1, &["no.gguf"]);
}

#[test]
fn plans_do_not_depend_on_threads() {
    let scratch = Scratch::new();
    let model = demo_of_layers(2);
    for method in METHODS {
        let of = |threads: &str, name: &str| {
            let options = [
                "--method",
                method,
                "--allocator",
                "waterfill",
                "--threads",
                threads,
            ];
            let file = scratch.path(name);
            plan(&model, &[&options, &["--force"]])
                .arg("-o")
                .arg(&file)
                .run()
                .assert_ok();
            fs::read(file).unwrap()
        };
        let one = of("1", "one.json");
        for threads in ["2", "5"] {
            assert_eq!(of(threads, "more.json"), one, "{method}: {threads} threads");
        }
    }
}

#[test]
fn invalid_plans_are_refused_line_by_line() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let output = scratch.path("out.htz");
    let printed = plan(&model, &[&["--rank", "32"]]).run().assert_ok();
    let refuse = |name: &str, contents: &str| {
        let file = scratch.file(name, contents);
        let run = htc!["compile", &model, "-o", &output, "--plan", &file].run();
        fs::remove_file(file).unwrap();
        scratch.assert_only_files(&["model.gguf"]);
        run
    };
    let one = printed
        .text()
        .replacen("rank\",\"rank\":32", "rank\",\"rank\":4000", 1);
    refuse("one.json", &one)
        .assert_refused(2, &["one.json", "line 9", "layer 0: q", "4000", "htc plan"]);
    let two = one.replacen("\"layer\":2", "\"layer\":77", 1);
    let run = refuse("two.json", &two);
    assert_eq!(run.code(), Some(2));
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", run.stderr);
    assert!(
        lines[0].contains("line 9") && lines[0].contains("4000"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("line 23") && lines[1].contains("77"),
        "{lines:?}"
    );
    assert!(
        lines[2].contains("two.json") && lines[2].contains("2 places"),
        "{lines:?}"
    );
    let unit = "{\"layer\":99,\"projections\":[\"q\"],\"form\":\"dense\"},\n";
    let many = printed.text().replacen(
        "\"units\": [",
        &format!("\"units\": [{}", unit.repeat(500)),
        1,
    );
    let run = refuse("many.json", &many);
    assert_eq!(run.code(), Some(2));
    assert!(run.stderr.lines().count() < 60, "{}", run.stderr);
    assert!(run.stderr.contains("more"), "{}", run.stderr);
    for (contents, words) in [
        ("", &["plan.json", "line 1"][..]),
        ("{\"format\": 3", &["plan.json", "line 1", "htc plan"]),
        ("[]", &["plan.json", "object"]),
    ] {
        refuse("plan.json", contents).assert_refused(2, words);
    }
    let no_file = htc![
        "compile",
        &model,
        "-o",
        &output,
        "--plan",
        scratch.path("no.json")
    ];
    no_file.run().assert_refused(1, &["no.json", "--plan"]);
    let other = scratch.file("other.gguf", TinyModel::default().bytes());
    let file = scratch.file("plan.json", printed.text());
    let run = htc!["compile", &other, "-o", &output, "--plan", &file].run();
    assert_eq!(run.code(), Some(2), "{}", run.stderr);
    assert!(!output.exists());
}

#[test]
fn plan_excludes_planning_options() {
    for (option, value) in [
        ("--ratio", "0.5"),
        ("--method", "low-rank"),
        ("--allocator", "uniform"),
        ("--factor-type", "q8_0"),
    ] {
        let run = htc![
            "compile", "a", "-o", "b.htz", "--plan", "p.json", option, value
        ];
        run.run().assert_refused(2, &["--plan", option]);
    }
}

#[test]
fn folders_can_be_planned() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/architectures");
    let printed = plan(&fixtures.join("llama"), &[&["--allocator", "waterfill"]])
        .run()
        .assert_ok();
    let value: Value = serde_json::from_str(printed.text()).unwrap();
    assert_eq!(text(&value, "/request/allocator"), "waterfill");
    assert!(list(&value, "/units").len() >= 7);
}
