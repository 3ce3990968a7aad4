//! The command line itself: help, versions, and what is wrong before any file is opened.

use htc_tests::htc;

const COMMANDS: [&str; 6] = ["compile", "eval", "run", "inspect", "verify", "tokenize"];

#[test]
fn help_is_for_standard_output_and_succeeds() {
    for flag in ["--help", "-h", "help"] {
        let outcome = htc![flag].run().ok();
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
            "--output -o --method --rank --ratio --slots --factor-type --threads --force --report",
        ),
        ("eval", "--text --context --chunks --reference --threads --json"),
        (
            "run",
            "-p --prompt --prompt-file -n --temp --top-k --top-p --seed --threads",
        ),
        ("inspect", "--json"),
        ("verify", "--json"),
        ("tokenize", "--text --json"),
    ] {
        let outcome = htc![command, "--help"].run().ok();
        let words: Vec<&str> = outcome.text().split([' ', ',', '\n']).collect();
        for option in options.split(' ') {
            assert!(words.contains(&option), "{command} --help does not explain {option}");
        }
    }
}

#[test]
fn the_version_is_shown() {
    for flag in ["--version", "-V"] {
        let outcome = htc![flag].run().ok();
        assert_eq!(outcome.text().trim(), format!("htc {}", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn no_arguments_is_wrong_usage_and_shows_the_commands() {
    let outcome = htc![].run();
    assert_eq!(outcome.code(), Some(2));
    assert!(outcome.stdout.is_empty());
    assert!(outcome.stderr.contains("compile") && outcome.stderr.contains("Usage"));
}

#[test]
fn what_is_missing_is_named() {
    for (arguments, words) in [
        (&["compile"][..], &["<IN>", "--output"][..]),
        (&["compile", "in.gguf"], &["--output"]),
        (&["compile", "-o", "out.htz"], &["<IN>"]),
        (&["eval"], &["<MODEL>", "--text"]),
        (&["eval", "model.gguf"], &["--text"]),
        (&["run"], &["<MODEL>"]),
        (&["inspect"], &["<FILE>"]),
        (&["verify"], &["<FILE>"]),
        (&["tokenize", "model.gguf"], &["--text"]),
    ] {
        let outcome = htc![].args(arguments).run();
        if outcome.stderr.lines().count() == 1 {
            outcome.refused(2, words);
        } else {
            // A command without any argument may show its help instead.
            assert_eq!(outcome.code(), Some(2), "{arguments:?}");
            assert_eq!(arguments.len(), 1, "{arguments:?}: {}", outcome.stderr);
            assert!(outcome.stderr.contains("Usage"), "{}", outcome.stderr);
        }
    }
}

#[test]
fn what_is_unknown_is_named() {
    for (arguments, word) in [
        (&["decompress"][..], "decompress"),
        (&["--quiet"], "--quiet"),
        (&["compile", "a", "-o", "b", "--rnak", "3"], "--rnak"),
        (&["compile", "a", "b", "-o", "c"], "'b'"),
        (&["run", "a", "--beam", "3"], "--beam"),
        (&["eval", "a", "--text", "b", "--ratio", "1"], "--ratio"),
        (&["inspect", "a", "--force"], "--force"),
        (&["verify", "a", "b"], "'b'"),
    ] {
        htc![].args(arguments).run().refused(2, &[word]);
    }
}

#[test]
fn options_that_contradict_each_other_are_named() {
    for (arguments, words) in [
        (
            &["compile", "a", "-o", "b", "--rank", "3", "--ratio", "0.5"][..],
            ["--rank", "--ratio"],
        ),
        (
            &["run", "a", "-p", "text", "--prompt-file", "f"],
            ["--prompt", "--prompt-file"],
        ),
        (
            &["compile", "a", "-o", "b", "--rank", "3", "--rank", "4"],
            ["--rank", "multiple"],
        ),
    ] {
        htc![].args(arguments).run().refused(2, &words);
    }
}

/// Values outside their range, whatever the files are: the model does not exist here.
#[test]
fn values_out_of_range_are_named() {
    let compile = &["compile", "no.gguf", "-o", "no.htz"][..];
    let eval = &["eval", "no.gguf", "--text", "no.txt"][..];
    let run = &["run", "no.gguf", "-p", "text"][..];
    for (command, option, values) in [
        (compile, "--method", &["svd", "GP", ""][..]),
        (compile, "--rank", &["0", "-1", "1.5", "all", "", "99999999999999999999"]),
        (compile, "--ratio", &["0", "-0.5", "1.01", "nan", "inf", "half", ""]),
        (compile, "--slots", &["x", "q,,k", "Q", "q;k", ""]),
        (compile, "--factor-type", &["q4_0", "q4_k", "f64", ""]),
        (compile, "--threads", &["0", "-1", "1025", "two", "99999999999"]),
        (eval, "--context", &["0", "1", "-512", "99999999999"]),
        (eval, "--chunks", &["0", "-1", "some"]),
        (eval, "--threads", &["0", "1025"]),
        (run, "-n", &["-1", "many", "99999999999999999999"]),
        (run, "--temp", &["-0.1", "nan", "inf", "hot"]),
        (run, "--top-k", &["-1", "few"]),
        (run, "--top-p", &["0", "-0.5", "1.5", "nan"]),
        (run, "--seed", &["-1", "x", "18446744073709551616"]),
        (run, "--threads", &["0", "1025"]),
    ] {
        for value in values {
            // An option and its value as two words, and as one.
            htc![].args(command).args([option, value]).run().refused(2, &[option]);
            if option.starts_with("--") {
                let one = format!("{option}={value}");
                htc![].args(command).arg(one).run().refused(2, &[option]);
            }
        }
    }
}

#[test]
fn what_is_allowed_is_said() {
    for (option, value, words) in [
        ("--method", "svd", &["gp", "grc"][..]),
        ("--slots", "x", &["q", "gate", "down"]),
        ("--factor-type", "q4_0", &["f32", "f16", "bf16", "q8_0"]),
        ("--rank", "0", &["at least 1", "full"]),
        ("--ratio", "2", &["0", "1"]),
    ] {
        let outcome = htc!["compile", "no.gguf", "-o", "no.htz", option, value].run();
        outcome.refused(2, words);
    }
}
