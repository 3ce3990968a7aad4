use htc_tests::{Scratch, TinyModel, htc};

const COMMANDS: [&str; 16] = [
    "compile",
    "plan",
    "analyse",
    "eval",
    "bench",
    "run",
    "chat",
    "export",
    "inspect",
    "verify",
    "tokenize",
    "schema",
    "clean",
    "report",
    "completions",
    "man",
];

const CALIBRATION: &str = "--calibration --calibration-tokens --calibration-context --cache";

const PLANNING: &str = "--method --rank --ratio --parameters --bytes --mean-rank --allocator \
    --rank-floor --rank-cap --first-positions --gpu --tokens-per-joule --energy --projections --factor-type";

#[test]
fn help_goes_to_stdout_and_succeeds() {
    for flag in ["--help", "-h", "help"] {
        let outcome = htc![flag].run().assert_ok();
        assert!(outcome.stderr.is_empty());
        for command in COMMANDS {
            assert!(outcome.text().contains(command), "{flag}: no {command}");
        }
    }
}

#[test]
fn every_command_explains_its_options() {
    for (command, options) in [
        (
            "compile",
            &format!(
                "--output -o --target-size --bpw --plan --dry-run --gauge --threads -t --force --report --json --verbose -q {CALIBRATION} {PLANNING}"
            )[..],
        ),
        (
            "plan",
            &format!("--output -o --threads --force {CALIBRATION} {PLANNING}"),
        ),
        (
            "analyse",
            &format!("--output -o --threads --json --force {CALIBRATION}"),
        ),
        (
            "eval",
            "--text --ctx-size -c --chunks --reference --kv --threads --json",
        ),
        (
            "bench",
            "--against --against-model --fraction --text --chunks --pairs --warm-up --cool-down --prompts --tokens --contexts \
             --sensor --seed --gates --kv --threads --time-limit -o --output --force --json",
        ),
        (
            "run",
            "-p --prompt --file -f -m --chat --system -n --n-predict -c --ctx-size --temp --top-k --top-p --seed -s --fraction --thermal --power-cap --sensor \
             --events --draft --draft-length --verifier --adapt --adapt-state --kv --kv-keep --on-full --threads --json",
        ),
        (
            "export",
            "--output -o --format --type --lora --threads --force --json",
        ),
        ("chat", "--system -n -c --temp --seed -s --kv --threads -t"),
        ("completions", "bash"),
        ("man", "--output -o --force"),
        ("inspect", "--json"),
        ("verify", "--json"),
        ("tokenize", "--text --special --json"),
        ("clean", "--cache --older-than --dry-run --json"),
    ] {
        let outcome = htc![command, "--help"].run().assert_ok();
        let words: Vec<&str> = outcome.text().split([' ', ',', '\n']).collect();
        for option in options.split(' ') {
            assert!(
                words.contains(&option),
                "{command} --help does not explain {option}"
            );
        }
    }
}

#[test]
fn short_help_fits_a_screen() {
    const SECTIONS: [&str; 5] = [
        "Size and quality:",
        "Calibration:",
        "Compilation:",
        "Output:",
        "Checks:",
    ];
    for command in ["compile", "plan", "analyse", "eval", "run"] {
        let short = htc![command, "-h"].run().assert_ok();
        let lines: Vec<&str> = short.text().lines().collect();
        assert!(lines.len() <= 40, "{command}: {} lines", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 100));
        if !matches!(command, "compile" | "plan") {
            continue;
        }
        for flag in ["-h", "--help"] {
            let help = htc![command, flag].run().assert_ok();
            let found = help.text().lines().filter(|line| SECTIONS.contains(line));
            let found: Vec<&str> = found.collect();
            assert_eq!(found, SECTIONS, "{command} {flag}");
        }
        for option in [
            "--target-size",
            "--bpw",
            "--preset",
            "--codes",
            "--effort",
            "--calibration",
            "--output",
        ] {
            assert!(short.text().contains(option), "{command} -h: no {option}");
        }
        // Research stands in the long help alone, under its own heading.
        let long = htc![command, "--help"].run().assert_ok();
        let (before, research) = long.text().split_once("Research:").unwrap();
        for option in ["--method", "--ratio", "--gauge", "--tokens-per-joule"] {
            assert!(!short.text().contains(option), "{command} -h: {option}");
            let line = format!("{option} <");
            assert!(
                !before.contains(&line) && research.contains(&line),
                "{option}"
            );
        }
        assert!(short.text().contains("--help"));
    }
}

#[test]
fn every_allocator_is_explained() {
    for command in ["compile", "plan"] {
        let outcome = htc![command, "--help"].run().assert_ok();
        for (name, needs) in [
            ("uniform", "needs nothing"),
            ("phase", "calibration"),
            ("curvature", "calibration"),
            ("waterfill", "reads the weights"),
            ("whitened", "calibration"),
            ("diffplan", "--tokens-per-joule"),
            ("cachefit", "--gpu"),
        ] {
            let mut lines = outcome.text().lines().map(str::trim);
            let line = lines.find(|line| {
                line.trim_start_matches("- ")
                    .starts_with(&format!("{name}:"))
            });
            let line = line.unwrap_or_else(|| panic!("{command} --help has no line of {name}"));
            assert!(line.contains(needs), "{line}");
        }
    }
}

#[test]
fn version_is_shown() {
    for flag in ["--version", "-V"] {
        let outcome = htc![flag].run().assert_ok();
        let lines: Vec<&str> = outcome.text().lines().collect();
        let [version, processor, features, cuda, compiler] = lines[..] else {
            panic!("{lines:?}");
        };
        let expected = format!("htc {}", env!("CARGO_PKG_VERSION"));
        assert!(version.starts_with(&expected), "{version}");
        assert!(
            processor.starts_with("processor: kernels for "),
            "{processor}"
        );
        assert!(features.starts_with("features: cuda"), "{features}");
        assert!(compiler.starts_with("GPU compiler: "), "{compiler}");
        // The suites hide the GPUs of the machine.
        assert!(cuda.starts_with("GPU: no CUDA device: "), "{cuda}");
    }
}

#[test]
fn missing_command_is_a_usage_error_and_lists_commands() {
    let outcome = htc![].run();
    assert_eq!(outcome.code(), Some(2));
    assert!(outcome.stdout.is_empty());
    assert!(outcome.stderr.contains("compile") && outcome.stderr.contains("Usage"));
}

#[test]
fn missing_arguments_are_named() {
    for (arguments, words) in [
        (&["compile"][..], &["<IN>", "<OUT>"][..]),
        (&["compile", "in.gguf"], &["<OUT>"]),
        (&["compile", "-o", "out.htz"], &["<IN>"]),
        (&["plan"], &["<IN>"]),
        (&["analyse"], &["<MODEL>"]),
        (&["eval"], &["<MODEL>", "--text"]),
        (&["eval", "model.gguf"], &["--text"]),
        (&["bench"], &["<MODEL>"]),
        (&["run"], &["<MODEL>"]),
        (&["inspect"], &["<FILE>"]),
        (&["verify"], &["<FILE>"]),
        (&["tokenize", "model.gguf"], &["--text"]),
    ] {
        let outcome = htc![].args(arguments).run();
        if outcome.stderr.lines().count() == 1 {
            outcome.assert_refused(2, words);
        } else {
            // A command without any argument may show its help.
            assert_eq!(outcome.code(), Some(2), "{arguments:?}");
            assert_eq!(arguments.len(), 1, "{arguments:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains("Usage"), "{}", outcome.stderr);
        }
    }
}

#[test]
fn unknown_arguments_are_named() {
    for (arguments, word) in [
        (&["decompress"][..], "decompress"),
        (&["--quiet"], "--quiet"),
        (&["compile", "a", "-o", "b.htz", "--rnak", "3"], "--rnak"),
        (&["compile", "a", "b.htz", "c.htz"], "'c.htz'"),
        (&["run", "a", "--beam", "3"], "--beam"),
        (&["eval", "a", "--text", "b", "--ratio", "1"], "--ratio"),
        (&["inspect", "a", "--force"], "--force"),
        (&["verify", "a", "b"], "'b'"),
    ] {
        htc![].args(arguments).run().assert_refused(2, &[word]);
    }
}

#[test]
fn conflicting_options_are_named() {
    for (arguments, words) in [
        (
            &[
                "compile", "a", "-o", "b.htz", "--rank", "3", "--ratio", "0.5",
            ][..],
            ["--rank", "--ratio"],
        ),
        (
            &["run", "a", "-p", "text", "--prompt-file", "f"],
            ["--prompt", "--file"],
        ),
        (&["run", "a", "-m", "b"], ["--model", "MODEL"]),
        (
            &["compile", "a", "b.htz", "-o", "c.htz"],
            ["--output", "OUT"],
        ),
        (
            &["compile", "a", "b.htz", "--json", "--report", "r.json"],
            ["--json", "--report"],
        ),
        (
            &["compile", "a", "b.htz", "--quiet", "--verbose"],
            ["--quiet", "--verbose"],
        ),
        (
            &["plan", "a", "--bytes", "3", "--parameters", "5"],
            ["--bytes", "--parameters"],
        ),
        (
            &["plan", "a", "--mean-rank", "3", "--rank", "5"],
            ["--mean-rank", "--rank"],
        ),
        (&["plan", "a", "--force"], ["--output", "required"]),
        (
            &["compile", "a", "-o", "b.htz", "--rank", "3", "--rank", "4"],
            ["--rank", "multiple"],
        ),
    ] {
        let run = htc![].args(arguments).as_typed().run();
        run.assert_refused(2, &words);
    }
}

#[track_caller]
fn assert_names_the_option(command: &[&str], options: &[(&str, &[&str])]) {
    for (option, values) in options {
        for value in *values {
            htc![]
                .args(command)
                .args([option, value])
                .run()
                .assert_refused(2, &[option]);
            if option.starts_with("--") {
                let one = format!("{option}={value}");
                htc![]
                    .args(command)
                    .arg(one)
                    .run()
                    .assert_refused(2, &[option]);
            }
        }
    }
}

#[test]
fn compile_and_plan_refuse_values_out_of_range() {
    for command in [
        &["compile", "no.gguf", "-o", "no.htz"][..],
        &["plan", "no.gguf"],
    ] {
        assert_names_the_option(command, PLANNING_VALUES);
    }
}

const PLANNING_VALUES: &[(&str, &[&str])] = &[
    ("--allocator", &["best", "Uniform", ""]),
    ("--rank-floor", &["0", "-1", "1.5", "0.0", "nan", "low", ""]),
    (
        "--rank-cap",
        &["0", "-1", "1.5", "full", "", "99999999999999999999"],
    ),
    (
        "--parameters",
        &["0", "-1", "1.5", "5M", "", "99999999999999999999"],
    ),
    (
        "--bytes",
        &[
            "0",
            "-1",
            "1.5",
            "5P",
            "MB",
            "0.1B",
            "nan",
            "",
            "99999999999999999999",
        ],
    ),
    ("--mean-rank", &["0", "-1", "nan", "inf", "half", ""]),
    ("--gpu", &["voodoo", "0", "-5", ""]),
    ("--tokens-per-joule", &["0", "-1", "nan", "inf", "many", ""]),
    ("--method", &["svd", "GP", ""]),
    (
        "--rank",
        &["0", "-1", "1.5", "all", "", "99999999999999999999"],
    ),
    ("--ratio", &["0", "-0.5", "1.01", "nan", "inf", "half", ""]),
    ("--projections", &["x", "q,,k", "Q", "q;k", ""]),
    ("--factor-type", &["iq3_s", "q8_k", "f64", ""]),
    ("--threads", &["0", "1025", "two", "99999999999"]),
];

#[test]
fn eval_refuses_values_out_of_range() {
    assert_names_the_option(
        &["eval", "no.gguf", "--text", "no.txt"],
        &[
            ("--ctx-size", &["0", "1", "99999999999", "long"]),
            ("--chunks", &["0", "some"]),
            ("--threads", &["0", "1025"]),
        ],
    );
}

#[test]
fn run_refuses_values_out_of_range() {
    assert_names_the_option(
        &["run", "no.gguf", "-p", "text"],
        &[
            ("-n", &["many", "99999999999999999999"]),
            ("--temp", &["-0.1", "nan", "inf", "hot"]),
            ("--top-k", &["few"]),
            ("--top-p", &["0", "-0.5", "1.5", "nan"]),
            ("--seed", &["x", "18446744073709551616"]),
            ("--threads", &["0", "1025"]),
        ],
    );
}

#[test]
fn negative_numbers_are_values() {
    for (command, options) in [
        (
            &["compile", "no.gguf", "-o", "no.htz"][..],
            &[
                "--rank",
                "--ratio",
                "--threads",
                "--rank-floor",
                "--rank-cap",
                "--bytes",
                "--gpu",
            ][..],
        ),
        (
            &["plan", "no.gguf"],
            &["--parameters", "--mean-rank", "--tokens-per-joule"],
        ),
        (
            &["eval", "no.gguf", "--text", "no.txt"],
            &["--ctx-size", "--chunks", "--threads"],
        ),
        (
            &["run", "no.gguf", "-p", "text"],
            &["--temp", "--top-k", "--top-p", "--seed", "--threads"],
        ),
    ] {
        for option in options {
            assert_names_the_option(command, &[(option, &["-1", "-512"])]);
        }
    }
    assert_names_the_option(
        &["run", "no.gguf", "-p", "text"],
        &[("-n", &["-2", "-512"])],
    );
    // Until the model ends, as in llama.cpp.
    htc!["run", "no.gguf", "-p", "text", "-n", "-1"]
        .run()
        .assert_refused(1, &["no.gguf", "no such file"]);
}

#[test]
fn errors_list_the_allowed_values() {
    for (option, value, words) in [
        (
            "--method",
            "svd",
            &["low-rank", "shared-basis", "quantise"][..],
        ),
        ("--target-size", "150%", &["60%", "3.2MB"]),
        ("--target-size", "0%", &["60%"]),
        ("--projections", "x", &["q", "gate", "down"]),
        ("--factor-type", "iq3_s", &["f32", "bf16", "q8_0", "q2_k"]),
        ("--rank", "0", &["at least 1", "full"]),
        ("--ratio", "2", &["0", "1"]),
        ("--allocator", "best", &["uniform", "waterfill", "cachefit"]),
        ("--gpu", "voodoo", &["rtx-4090", "h100-sxm", "t4"]),
        ("--bytes", "5P", &["3.5MB", "400MiB"]),
        ("--rank-floor", "2.5", &["fraction"]),
    ] {
        let outcome = htc!["compile", "no.gguf", "-o", "no.htz", option, value].run();
        outcome.assert_refused(2, words);
    }
}

#[test]
fn unwritable_stderr_is_not_an_error() {
    let scratch = Scratch::new();
    let model = scratch.file("model.gguf", TinyModel::default().bytes());
    let (output, report) = (scratch.path("out.htz"), scratch.path("report.json"));
    let shell = |command: &str, arguments: &[&std::path::Path]| {
        let status = std::process::Command::new("sh")
            .args(["-c", command])
            .arg(htc_tests::binary::path())
            .args(arguments)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(0), "{command}");
    };
    shell("\"$0\" inspect \"$1\" 2>/dev/full", &[&model]);
    shell("\"$0\" inspect \"$1\" 2>&- ", &[&model]);
    let compile =
        "\"$0\" compile \"$1\" -o \"$2\" --method low-rank --rank 8 --report \"$3\" 2>/dev/full";
    shell(compile, &[&model, &output, &report]);
    assert!(report.is_file());
    htc!["verify", &output].run().assert_ok();
}

/// The spellings of other programs are accepted.
#[test]
fn options_have_the_names_of_other_programs() {
    for arguments in [
        &["compile", "no.gguf", "out.htz"][..],
        &["quantize", "no.gguf", "out.htz", "--bits", "4"],
        &["quantise", "no.gguf", "-o", "out.htz", "--target-bpw", "4"],
        &["compile", "no.gguf", "out.htz", "--file-size", "3.2M"],
        &["compile", "no.gguf", "out.htz", "--target-size", "60%"],
        &["compile", "no.gguf", "out.htz", "--method", "quantize"],
        &["compile", "no.gguf", "OUT.HTZ", "--context", "64"],
        &[
            "compile", "no.gguf", "out.htz", "--method", "low-rank", "--rank", "4",
        ],
        &[
            "compile",
            "no.gguf",
            "out.htz",
            "--method",
            "shared-basis",
            "--rank",
            "4",
        ],
        &["run", "-m", "no.gguf", "-p", "a", "--n-predict", "4"],
        &["run", "no.gguf", "-p", "a", "--temperature", "0", "-t", "2"],
        &["run", "no.gguf", "-p", "a", "-s", "1", "-c", "64"],
        &["run", "no.gguf", "-p", "a", "--speculate", "0.5"],
        &["eval", "no.gguf", "--text", "no.txt", "--context", "64"],
        &["export", "no.gguf", "-o", "out.gguf", "--as", "q8_0"],
        &["export", "no.gguf", "--to-safetensors", "out"],
        &["export", "no.gguf", "-o", "out", "--format", "safetensors"],
    ] {
        let outcome = htc![].args(arguments).as_typed().run();
        outcome.assert_refused(1, &["no.gguf", "no such file"]);
    }
}

#[test]
fn outputs_of_other_formats_are_refused() {
    for (arguments, words) in [
        (
            &["compile", "no.gguf", "out.gguf"][..],
            &[".htz", "export"][..],
        ),
        (&["compile", "no.gguf", "out.bin"], &["extension .htz"]),
        (&["compile", "no.gguf", "out"], &["extension .htz"]),
        (
            &["compile", "no.gguf", "/tmp"],
            &["--format", "safetensors"],
        ),
        (
            &["export", "no.htz", "-o", "out"],
            &[".gguf", "--format safetensors"],
        ),
        (
            &[
                "export",
                "no.htz",
                "-o",
                "out.gguf",
                "--format",
                "safetensors",
            ],
            &["--format gguf"],
        ),
    ] {
        let outcome = htc![].args(arguments).as_typed().run();
        outcome.assert_refused(2, words);
    }
}

/// A method that loses far more than the default is never chosen by an option.
#[test]
fn options_of_factors_require_a_method() {
    for options in [
        &["--ratio", "0.8"][..],
        &["--rank", "4"],
        &["--bytes", "150kB"],
        &["--parameters", "5"],
        &["--mean-rank", "4"],
        &["--projections", "q,k"],
        &["--factor-type", "f16"],
        &["--rank-floor", "4"],
        &["--gauge", "axiom"],
    ] {
        let scratch = Scratch::new();
        let model = scratch.file("model.gguf", TinyModel::default().bytes());
        let output = scratch.path("out.htz");
        let compile = htc!["compile", &model, &output].args(options).as_typed();
        let words = [options[0], "--method low-rank or shared-basis"];
        compile.run().assert_refused(2, &words);
        let plan = htc!["plan", &model].args(options).as_typed();
        plan.run().assert_refused(2, &words);
    }
}

/// The scripts of all shells, and a page for every command.
#[test]
fn completions_and_manual_pages_are_written() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = htc!["completions", shell].run().assert_ok();
        for word in ["compile", "target-size"] {
            assert!(script.text().contains(word), "{shell}: {word}");
        }
        assert!(!script.text().contains("render-chat-template"), "{shell}");
    }
    htc!["completions", "sh"]
        .run()
        .assert_refused(2, &["sh", "bash"]);
    let scratch = Scratch::new();
    let folder = scratch.path("pages");
    let man = || htc!["man", "-o", &folder];
    man().run().assert_refused(1, &["pages"]);
    std::fs::create_dir(&folder).unwrap();
    man().run().assert_ok();
    for command in COMMANDS {
        let page = folder.join(format!("htc-{command}.1"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(
            page.contains(&format!("htc\\-{command}")),
            "{command}: {page}"
        );
        // Every option has a description on its page.
        for option in page.split(".TP\n").skip(1) {
            let description = option.lines().nth(1).unwrap_or_default();
            assert!(!description.trim().is_empty(), "{command}: {option}");
        }
    }
    assert!(folder.join("htc.1").is_file());
    man().run().assert_refused(1, &["htc.1", "--force"]);
    man().arg("--force").run().assert_ok();
}
