//! Arguments of `htc bench`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use htc_loader::dial::ActiveFraction;
use htc_loader::live::SensorSpec;

use super::{DeviceArgs, KvArgs, ThreadArgs, heading, output_path, parse_fraction};
use crate::bench::DEFAULT_PAIRS;
use crate::bench::task::PromptKind;
use crate::options::flags::parse_if;

const EXAMPLES: &str = "Examples:
  htc bench model.htz --against model.gguf
  htc bench model.htz --fraction 0.6 --against model.htz --sensor nvml --json > energy.json
  htc bench model.gguf --against llama.cpp:build/bin/llama-bench --threads 8 -o speed.html
  htc bench model.htz --against model.gguf --gates gates.json --json > speed.json";

/// Maximum length of a list.
const MAX_LIST: usize = 64;

/// Arguments of `htc bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Model to measure (.gguf, folder or .htz)
    pub model: PathBuf,
    /// Model to measure in the same pairs, as a whole; or llama.cpp:BIN, a llama-bench or the folder of a
    /// build with one, which gets MODEL where that is a GGUF
    #[arg(long, value_name = "MODEL|llama.cpp:BIN", help_heading = heading::BENCH_BASELINE, value_parser = clap::builder::OsStringValueParser::new())]
    against: Option<OsString>,
    /// What llama.cpp gets instead of MODEL (.gguf)
    #[arg(long, value_name = "FILE", help_heading = heading::BENCH_BASELINE, hide_short_help = true, requires = "against")]
    pub against_model: Option<PathBuf>,
    /// Touch at most this part of MODEL's weights' bytes for every token
    #[arg(long, value_name = "F", help_heading = heading::BENCH_BASELINE, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub fraction: Option<ActiveFraction>,
    /// Measure the perplexity of MODEL over the baseline's on this text, too (UTF-8)
    #[arg(long, value_name = "FILE", help_heading = heading::BENCH_BASELINE, requires = "against")]
    pub text: Option<PathBuf>,
    /// Windows of 512 tokens of the text to measure [default: all]
    #[arg(long, value_name = "N", help_heading = heading::BENCH_BASELINE, hide_short_help = true, requires = "text", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Pairs, each of one kind of prompt and one length of output in turn
    #[arg(long, value_name = "N", help_heading = heading::BENCH_PROTOCOL, default_value_t = DEFAULT_PAIRS, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// Runs of both before the pairs, and before those of every length of context
    #[arg(long, value_name = "N", help_heading = heading::BENCH_PROTOCOL, hide_short_help = true, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub warm_up: u32,
    /// Pause before every run, in seconds; the published protocol for a GPU has 30
    #[arg(long, value_name = "S", help_heading = heading::BENCH_PROTOCOL, default_value = "0", allow_negative_numbers = true, value_parser = parse_seconds)]
    pub cool_down: Duration,
    /// Kinds of prompts
    #[arg(long, value_name = "LIST", help_heading = heading::BENCH_PROTOCOL, default_value = "coding,reasoning,factual,creative", value_parser = parse_prompts)]
    pub prompts: UniqueList<PromptKind>,
    /// Tokens to write
    #[arg(long, value_name = "LIST", help_heading = heading::BENCH_PROTOCOL, default_value = "128,256", allow_negative_numbers = true, value_parser = parse_tokens)]
    pub tokens: UniqueList<usize>,
    /// Measure reading contexts of these lengths, too, and 32 tokens behind each; `all` is 128 and its doubles
    /// up to the model's context
    #[arg(long = "contexts", alias = "context", value_name = "LIST|all", help_heading = heading::BENCH_PROTOCOL, allow_negative_numbers = true, value_parser = parse_contexts)]
    pub context: Option<Contexts>,
    /// Measure joules and temperature of every run, too: nvml[:INDEX|UUID], hwmon (the processor),
    /// trace:FILE (CSV), sim[:KEY=VALUE,...]; an error where there is no such sensor
    #[arg(long, value_name = "SENSOR", help_heading = heading::BENCH_PROTOCOL, hide_short_help = true)]
    pub sensor: Option<SensorSpec>,
    /// Seed of the bootstrap
    #[arg(long, value_name = "S", help_heading = heading::BENCH_PROTOCOL, hide_short_help = true, default_value_t = 0, allow_negative_numbers = true)]
    pub seed: u64,
    /// What is to hold: a JSON list with lines such as {"metric": "decode_ratio", "at_least": 0.95}, or
    /// `paper`; exit code 1 where one does not
    #[arg(long, value_name = "FILE|paper", help_heading = heading::BENCH_PROTOCOL)]
    pub gates: Option<PathBuf>,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub kv: KvArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub device: DeviceArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub threads: ThreadArgs,
    /// Seconds that one run of llama-bench may take
    #[arg(long, value_name = "S", help_heading = heading::OUTPUT, hide_short_help = true, default_value = "600", allow_negative_numbers = true, value_parser = parse_limit)]
    pub time_limit: Duration,
    /// Write a page with plots (.html)
    #[arg(short, long, value_name = "FILE", help_heading = heading::OUTPUT, value_parser = output_path())]
    pub output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, help_heading = heading::OUTPUT, requires = "output")]
    pub force: bool,
    /// Print every pair and all statistics as JSON on standard output
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Baseline of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// A model executed by this program.
    Model(PathBuf),
    /// Program or build folder of llama.cpp.
    LlamaCpp(PathBuf),
}

impl BenchArgs {
    /// Returns the baseline.
    pub fn baseline(&self) -> Option<Baseline> {
        let against = self.against.as_ref()?;
        // A path that is not UTF-8 does not have the prefix.
        let program = against
            .to_str()
            .and_then(|text| text.strip_prefix("llama.cpp:"));
        Some(match program {
            Some(program) => Baseline::LlamaCpp(program.into()),
            None => Baseline::Model(against.into()),
        })
    }
}

/// Comma-separated values without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueList<T>(pub Vec<T>);

/// Context lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contexts {
    /// 128 and its doubles.
    All,
    /// Explicit lengths.
    Lengths(Vec<usize>),
}

fn parse_list<T>(
    text: &str,
    one: impl Fn(&str) -> Option<T>,
    what: &str,
) -> Result<Vec<T>, String> {
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    let twice = names.iter().collect::<BTreeSet<_>>().len() < names.len();
    let found: Option<Vec<T>> = names.into_iter().map(one).collect();
    match found {
        Some(found) if !twice && found.len() <= MAX_LIST => Ok(found),
        _ => Err(format!(
            "expected {what}, with commas between them, none of them twice"
        )),
    }
}

fn parse_prompts(text: &str) -> Result<UniqueList<PromptKind>, String> {
    let of = |name: &str| PromptKind::ALL.into_iter().find(|kind| kind.name() == name);
    parse_list(
        text,
        of,
        "kinds out of coding, reasoning, factual and creative",
    )
    .map(UniqueList)
}

fn parse_tokens(text: &str) -> Result<UniqueList<usize>, String> {
    let of = |text: &str| text.parse().ok().filter(|n| (2..=1 << 20).contains(n));
    parse_list(text, of, "whole numbers of at least 2").map(UniqueList)
}

fn parse_contexts(text: &str) -> Result<Contexts, String> {
    let of = |text: &str| text.parse().ok().filter(|n| (1..=1 << 24).contains(n));
    match text {
        "all" => Ok(Contexts::All),
        _ => parse_list(text, of, "`all`, or whole numbers of at least 1").map(Contexts::Lengths),
    }
}

/// A day in seconds.
const MAX_SECONDS: f64 = 86_400.0;

fn parse_seconds(text: &str) -> Result<Duration, String> {
    parse_if(
        text,
        |s| (0.0..=MAX_SECONDS).contains(s),
        "expected seconds from 0 to 86400",
    )
    .map(Duration::from_secs_f64)
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    parse_if(
        text,
        |s| (0.1..=MAX_SECONDS).contains(s),
        "expected seconds from 0.1 to 86400",
    )
    .map(Duration::from_secs_f64)
}
