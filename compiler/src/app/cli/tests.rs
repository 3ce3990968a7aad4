use std::time::Duration;

use clap::CommandFactory;
use htc_formats::DType;
use htc_formats::model::ProjectionKind;

use super::*;
use crate::Compiler;
use crate::options::{
    Allocator, BiasArg, CodeKinds, DenseChoice, Effort, GaugeKind, Method, RankFloor,
    SinkProtection, Switch,
};

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

/// Every option has a help text, and the sections are in order.
#[test]
fn options_have_help_and_ordered_headings() {
    let cli = Cli::command();
    for (name, expected) in [
        ("compile", &heading::ALL[..]),
        ("plan", &heading::ALL),
        (
            "analyse",
            &[heading::TEXT, heading::OUTPUT, heading::CHECKS],
        ),
        (
            "bench",
            &[
                heading::BENCH_BASELINE,
                heading::BENCH_PROTOCOL,
                heading::OUTPUT,
            ],
        ),
        (
            "run",
            &[
                heading::RUN_TEXT,
                heading::RUN_LENGTH,
                heading::RUN_TOKENS,
                heading::RUN_DRAFT,
                heading::RUN_LIVE,
                heading::OUTPUT,
            ],
        ),
    ] {
        let command = cli.find_subcommand(name).unwrap();
        let mut seen: Vec<&str> = Vec::new();
        for option in command.get_arguments().filter(|a| !a.is_positional()) {
            let Some(heading) = option.get_help_heading() else {
                assert_eq!(option.get_id(), "output", "{name}");
                continue;
            };
            if !seen.contains(&heading) {
                seen.push(heading);
            }
        }
        assert_eq!(seen, expected, "{name}");
    }
}

#[test]
fn headings_survive_flattened_options() {
    let cli = Cli::command();
    let plan = cli.find_subcommand("plan").unwrap();
    for (id, heading) in [
        ("factor_type", heading::RESEARCH),
        ("rotation", heading::SIZE),
        ("projections", heading::RESEARCH),
        ("kv_bases", heading::METHOD),
        ("effort", heading::METHOD),
        ("gpu", heading::RESEARCH),
        ("cache", heading::TEXT),
    ] {
        let option = plan.get_arguments().find(|option| option.get_id() == id);
        assert_eq!(option.unwrap().get_help_heading(), Some(heading), "{id}");
    }
}

/// Conflicts cover all planning options; defaults do not conflict.
#[test]
fn plan_file_conflicts_with_planning_options() {
    let typed = |options: &[&'static str]| {
        let command = [
            "htc", "compile", "a.gguf", "-o", "b.htz", "--plan", "p.json",
        ];
        Cli::try_parse_from(command.iter().chain(options).copied())
    };
    assert!(typed(&[]).is_ok());
    for (option, value) in [
        ("--method", "low-rank"),
        ("--rank", "4"),
        ("--ratio", "0.5"),
        ("--parameters", "5"),
        ("--bytes", "5"),
        ("--mean-rank", "5"),
        ("--allocator", "uniform"),
        ("--rank-floor", "4"),
        ("--rank-cap", "4"),
        ("--first-positions", "counted"),
        ("--gpu", "l4"),
        ("--tokens-per-joule", "4"),
        ("--projections", "q"),
        ("--factor-type", "q8_0"),
        ("--max-kl", "1"),
        ("--max-perplexity-increase", "1"),
        ("--file-size", "1MB"),
        ("--bits", "3"),
        ("--dense-type", "q8_0"),
        ("--embedding-type", "q8_0"),
        ("--codes", "all"),
        ("--low-rank", "on"),
        ("--rotation", "on"),
        ("--order", "on"),
        ("--effort", "fast"),
        ("--preset", "small"),
        ("--energy", "f"),
    ] {
        let calibrated = [option, value, "--calibration", "t.txt"];
        assert!(typed(&calibrated).is_err(), "{option}");
    }
    for option in ["--force", "--dry-run"] {
        assert!(typed(&[option]).is_ok(), "{option}");
    }
    // A treatment replaces that of the plan.
    assert!(typed(&["--gauge", "axiom"]).is_ok());
}

#[test]
fn out_of_range_ranks_and_ratios_are_rejected() {
    for (option, value) in [
        ("--rank", "0"),
        ("--rank", "-3"),
        ("--rank", "half"),
        ("--ratio", "0"),
        ("--ratio", "1.1"),
        ("--ratio", "-0.5"),
        ("--ratio", "nan"),
        ("--projections", "q,x"),
        ("--factor-type", "iq3_s"),
        ("--threads", "0"),
        ("--allocator", "best"),
        ("--rank-floor", "1.5"),
        ("--rank-cap", "0"),
        ("--bytes", "3.5"),
        ("--parameters", "0"),
        ("--mean-rank", "inf"),
        ("--gpu", "voodoo"),
        ("--tokens-per-joule", "-1"),
    ] {
        let typed = ["htc", "compile", "a.gguf", "-o", "b.htz", option, value];
        assert!(Cli::try_parse_from(typed).is_err(), "{option} {value}");
    }
}

/// The command line and the builder fill the same structs.
#[test]
fn options_resolve_as_those_of_the_builder() {
    let typed = "htc compile a.gguf -o b.htz --method shared-basis --ratio 0.5 --allocator waterfill \
             --rank-floor 0.25 --rank-cap 64 --projections q,k --factor-type q6_k --dense-type q4_k \
             --embedding-type q8_0 --order off --kv-bases --gauge axiom --keep-gauge --sink channels:4 \
             --bias on --effort fast --calibration a.txt:0.5 --context 64 --held-out b.txt --cache c \
             --trust-cache --lock-timeout 5 --tune 3 --compare off --with-source --probe-layer 1 \
             --cuda-arch sm_89 --planes 1 --threads 2 --force";
    let built = Compiler::new("a.gguf", "b.htz")
        .method(Method::SharedBasis)
        .ratio(0.5)
        .allocator(Allocator::Waterfill)
        .rank_floor(RankFloor::Fraction(0.25))
        .rank_cap(64)
        .projections([ProjectionKind::Q, ProjectionKind::K])
        .factor_type(DType::Q6K)
        .dense_type(DenseChoice::Type(DType::Q4K.into()))
        .embedding_type(DType::Q8_0.into())
        .order(false)
        .kv_bases(true)
        .gauge(GaugeKind::Axiom)
        .keep_gauge(true)
        .sink(SinkProtection::Channels(4))
        .bias(BiasArg::On)
        .effort(Effort::Fast)
        .weighted_calibration("a.txt", 0.5)
        .context(64)
        .held_out("b.txt")
        .cache("c")
        .trust_cache(true)
        .lock_timeout(Duration::from_secs(5))
        .tune(3)
        .compare(false)
        .with_source(true)
        .probe_layer(1)
        .kernels(&["sm_89".parse().unwrap()])
        .planes(1)
        .threads(2)
        .overwrite(true);
    assert_same(typed, &built);
    let built = Compiler::new("a.gguf", "b.htz");
    assert_same(
        "htc compile a.gguf -o b.htz --kv-bases",
        &built.clone().kv_bases(true),
    );
    let built = built
        .codes(CodeKinds::Levels)
        .low_rank(false)
        .set(|request| request.plan.codes.rotation = Some(Switch::Off))
        .max_perplexity_increase(0.02);
    let typed = "htc compile a.gguf -o b.htz --codes levels --low-rank off --rotation off \
             --max-perplexity-increase 2";
    assert_same(typed, &built);
    let built = Compiler::new("a.gguf", "b.htz")
        .plan("p.json")
        .bias(BiasArg::Off);
    assert_same(
        "htc compile a.gguf -o b.htz --plan p.json --bias off",
        &built,
    );
}

#[track_caller]
fn assert_same(typed: &str, built: &Compiler) {
    let cli = Cli::try_parse_from(typed.split_whitespace()).unwrap();
    let Command::Compile(args) = cli.command else {
        panic!("{typed}");
    };
    let typed = args.options(TargetMachine::default()).unwrap();
    let mut built = built.options().unwrap();
    if args.threads.threads.is_none() {
        built.threads = typed.threads;
    }
    assert_eq!(format!("{typed:?}"), format!("{built:?}"));
}
