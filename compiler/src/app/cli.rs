//! Definition of the command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::TypedValueParser as _;
use clap::{Args, Parser, Subcommand};
use htc_formats::htz::GpuArchitecture;
use htc_loader::device::DeviceChoice;
use htc_loader::dial::ActiveFraction;
use htc_loader::kv::KvType;

use crate::plan::Budget;
use crate::request::CompareArg;

mod analysis;
mod bench;
mod beside;
mod calibration;
mod export;
mod goal;
mod live;
mod planning;
mod reporting;
mod run;
mod schema;
mod storing;
mod treatment;

pub use analysis::AnalyseArgs;
pub use bench::{Baseline, BenchArgs, Contexts, UniqueList};
pub use beside::ReferenceModel;
pub use calibration::{CacheArgs, CalibrationArgs};
pub use export::ExportArgs;
pub use goal::GoalArgs;
pub use live::{KvKindArgs, LiveArgs};
pub use planning::{CacheSize, MethodArg, PlanningArgs, SizeArgs};
pub use reporting::ReportArgs;
pub use run::{AdaptArg, DraftModel, OnFullArg, RunArgs};
pub use schema::{Document, SchemaArgs};
pub use storing::{CleanArgs, SharingArgs};
pub use treatment::TreatmentArgs;

/// Offline compression compiler for transformer language models.
#[derive(Debug, Parser)]
#[command(name = "htc", version, about, long_about = None, subcommand_required = true)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One variant per subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compress a model into one sealed .htz artifact
    Compile(CompileArgs),
    /// Decide what would become of every slot, and write it as JSON
    Plan(PlanArgs),
    /// Look at a model's spectra and, with a calibration, at its residual stream
    Analyse(AnalyseArgs),
    /// Measure perplexity, and the distance to a reference model
    Eval(EvalArgs),
    /// Measure speed in pairs with another model or llama.cpp, with statistics and gates
    Bench(BenchArgs),
    /// Make one page of reports, analyses, evaluations and artifacts, to look at in a browser
    Report(ReportArgs),
    /// Write text
    Run(RunArgs),
    /// Write an artifact as a GGUF for llama.cpp, or as a folder for transformers
    Export(ExportArgs),
    /// Show what is in a model or a .htz
    Inspect(FileArgs),
    /// Recompute every digest of a .htz; exit code 0 means undamaged
    Verify(VerifyArgs),
    /// Show the tokens of a text
    Tokenize(TokenizeArgs),
    /// Print the JSON schema of what another command writes as JSON
    Schema(SchemaArgs),
    /// Remove what earlier runs left: unfinished work, and statistics in the cache
    Clean(CleanArgs),
    /// The other side of `run --chat`, which starts it
    #[command(name = crate::app::chat::SUBCOMMAND, hide = true)]
    RenderChatTemplate,
}

/// Section headings of the help, in order.
pub mod heading {
    /// Size and loss of the artifact.
    pub const SIZE: &str = "How small";
    /// Texts for calibration and evaluation.
    pub const TEXT: &str = "On what text";
    /// Method and treatment.
    pub const METHOD: &str = "Which method";
    /// Files and machine.
    pub const OUTPUT: &str = "Where";
    /// Checks and protection of existing files.
    pub const CHECKS: &str = "How careful";
    /// All headings of `compile` and `plan`.
    pub const ALL: [&str; 5] = [SIZE, TEXT, METHOD, OUTPUT, CHECKS];
    /// Compared models of `bench`.
    pub const BENCH_BASELINE: &str = "Against what";
    /// Protocol and gates of `bench`.
    pub const BENCH_PROTOCOL: &str = "How";
    /// Prompt of `run`.
    pub const RUN_TEXT: &str = "What to continue";
    /// Length of the output of `run`.
    pub const RUN_LENGTH: &str = "How much";
    /// Sampling of `run`.
    pub const RUN_TOKENS: &str = "Which tokens";
    /// Drafts of `run`.
    pub const RUN_DRAFT: &str = "Drafts";
    /// Device monitoring of `run`.
    pub const RUN_LIVE: &str = "Heat and energy";
}

/// Arguments of `htc compile`.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// Model to compress: a .gguf (of several files the first), or a folder with config.json and
    /// .safetensors
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Artifact to write (.htz)
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub size: SizeArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub goal: GoalArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub calibration: CalibrationArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub planning: PlanningArgs,
    /// Take the plan that `htc plan` wrote, edited or not
    #[arg(long, value_name = "FILE", help_heading = heading::METHOD, conflicts_with_all = PlanningArgs::OPTION_IDS, conflicts_with_all = GoalArgs::LIMITS)]
    pub plan: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub treatment: TreatmentArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub cache: CacheArgs,
    /// Write a JSON report to FILE; `json` or `-` means standard output
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub report: Option<PathBuf>,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub threads: ThreadArgs,
    /// Show the plan, the bytes and the memory that it will take, and write no artifact
    ///
    /// A calibration is made and kept. Where a limit decides, with quantise alone, the bytes are those that it is
    /// expected to allow.
    #[arg(long, help_heading = heading::CHECKS)]
    pub dry_run: bool,
    /// 2 for an elastic artifact: bases in about 60 % of the bytes, and what they lack beside them, so that `htc run` and
    /// `htc eval` may touch any part of its bytes between (--fraction)
    #[arg(long, value_name = "1|2", default_value_t = 1, hide_default_value = true, hide_short_help = true, help_heading = heading::METHOD, conflicts_with = "plan", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub planes: u8,
    /// Put the source's weights into OUT, too, so that `htc run OUT --speculate 1 --verifier source` drafts with the compressed
    /// ones and writes the source's own text; sizes and limits are of the compressed part
    #[arg(long, hide_short_help = true, help_heading = heading::METHOD)]
    pub with_source: bool,
    /// Compile the kernels for GPUs of these architectures, as sm_80,sm_89,sm_90,sm_120, and put them into OUT: where it is executed
    /// on a GPU no compiler is needed then. It takes NVRTC (libnvrtc), and no GPU; sizes and limits do not count them
    #[arg(long, value_name = "ARCHITECTURES", value_delimiter = ',', hide_short_help = true, help_heading = heading::METHOD)]
    pub cuda_arch: Vec<GpuArchitecture>,
    /// Tune the norms and the scales of rows in so many steps when every matrix is stored, on the source's logits, as long as that gains
    /// on held-out text; 0 leaves them [default: for quantise 20, with --effort fast 0, with high 120; else 0]
    #[arg(long, value_name = "STEPS", hide_short_help = true, help_heading = heading::METHOD, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub tune: Option<u32>,
    /// Make and measure the next smaller and the next larger file in one type of GGUF for the report, beside an artifact in
    /// codes [default: for quantise on, with --effort fast off; with high all from half to twice its bytes]
    #[arg(long, value_name = "on|off", hide_short_help = true, help_heading = heading::CHECKS)]
    pub compare: Option<CompareArg>,
    /// Layer that `htc verify --probe` looks at first, counted from 0 [default: the depth sink, by
    /// measuring with --calibration, else two thirds of the depth]
    #[arg(
        long,
        value_name = "N",
        hide_short_help = true,
        help_heading = heading::CHECKS,
        allow_negative_numbers = true
    )]
    pub probe_layer: Option<usize>,
    /// Device that executes the model while it is calibrated on and candidates are measured, and that decomposes weights: cpu, cuda
    /// or cuda:N (a number or GPU-…), auto (a GPU where there is one). The last bits of an artifact are those of the device: the same
    /// gives the same
    #[arg(long, value_name = "DEVICE", hide_short_help = true, help_heading = heading::CHECKS, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Replace OUT if it exists
    #[arg(long, help_heading = heading::CHECKS)]
    pub force: bool,
}

/// Arguments of `htc plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Model to plan for: a .gguf (of several files the first), or a folder with config.json and
    /// .safetensors
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write the plan to (JSON) [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub size: SizeArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub goal: GoalArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub calibration: CalibrationArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub planning: PlanningArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub treatment: TreatmentArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub cache: CacheArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub threads: ThreadArgs,
    /// Replace FILE if it exists
    #[arg(long, requires = "output", help_heading = heading::CHECKS)]
    pub force: bool,
}

/// Arguments of `htc eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Model to measure (.gguf, folder or .htz)
    pub model: PathBuf,
    /// Text to measure on (UTF-8)
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens in a window
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub context: u32,
    /// Windows to measure [default: all that the text holds]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    /// Model to compare with, or `source` for the one in the artifact (compile --with-source): KL divergence from it,
    /// agreement of the likeliest token
    #[arg(long, value_name = "MODEL|source", value_parser = clap::builder::OsStringValueParser::new().map(ReferenceModel::from))]
    pub reference: Option<ReferenceModel>,
    /// Measure the model on this part of the weights' bytes: without the last of its refinements (compile --planes 2),
    /// then with less components of factors
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = parse_fraction)]
    pub fraction: Option<ActiveFraction>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub kv: KvKindArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub device: DeviceArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub threads: ThreadArgs,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

fn parse_fraction(text: &str) -> Result<ActiveFraction, String> {
    let number = text.parse::<f64>().ok();
    let fraction = number.and_then(|number| ActiveFraction::new(number).ok());
    fraction.ok_or_else(|| "a fraction is a number above 0 and at most 1".into())
}

/// Arguments of commands that look at one file.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// Model to look at (.gguf, folder with config.json and .safetensors, or .htz)
    pub file: PathBuf,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `htc verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Artifact to verify (.htz)
    pub file: PathBuf,
    /// Recompute the spectrum of one layer and compare it with what the artifact says, which takes a
    /// moment; every digest follows where they differ or the artifact says nothing
    #[arg(long)]
    pub probe: bool,
    /// Layer to probe, counted from 0 [default: the depth sink that the artifact names]
    #[arg(
        long,
        value_name = "N",
        requires = "probe",
        allow_negative_numbers = true
    )]
    pub layer: Option<usize>,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `htc tokenize`.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// Model whose vocabulary to use (.gguf, folder or .htz; a vocabulary alone will do)
    pub model: PathBuf,
    /// Text to split (UTF-8)
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Take special tokens that are spelt in the text as those tokens
    #[arg(long)]
    pub special: bool,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// How the KV cache stores its numbers.
#[derive(Clone, Copy, Debug, Args)]
pub struct KvArgs {
    /// Type of the KV cache; f32 takes twice the memory and rounds nothing
    #[arg(long = "kv", alias = "kv-type", value_name = "f16|f32", default_value = "f16", value_parser = parse_kv_type)]
    pub kv_type: KvType,
}

/// Where a model is executed.
#[derive(Clone, Copy, Debug, Args)]
pub struct DeviceArgs {
    /// Device that executes the model: auto (a GPU where there is one), cpu, cuda or cuda:N (a number, or GPU-… as nvidia-smi
    /// -L has it), reference (the processor in float64, slow)
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        hide_short_help = true
    )]
    pub device: DeviceChoice,
}

/// The number of threads.
#[derive(Clone, Copy, Debug, Args)]
pub struct ThreadArgs {
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl ThreadArgs {
    /// Returns the requested number, or the number of cores.
    pub fn count(self) -> usize {
        match self.threads {
            Some(n) => usize::from(n),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Rank on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RankArg {
    /// Full rank, `full`.
    Full,
    /// A number, at least 1.
    Count(usize),
}

impl FromStr for RankArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "full" => Ok(RankArg::Full),
            _ => match text.parse() {
                Ok(n) if n >= 1 => Ok(RankArg::Count(n)),
                _ => Err("a rank is a whole number of at least 1, or `full`".into()),
            },
        }
    }
}

impl From<RankArg> for Budget {
    fn from(arg: RankArg) -> Budget {
        match arg {
            RankArg::Full => Budget::FullRank,
            RankArg::Count(n) => Budget::Rank(n),
        }
    }
}

fn parse_kv_type(text: &str) -> Result<KvType, String> {
    match text {
        "f16" => Ok(KvType::F16),
        "f32" => Ok(KvType::F32),
        _ => Err("the KV cache is stored as f16 or f32".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            ("--method", "gp"),
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
            ("--slots", "q"),
            ("--factor-type", "q8_0"),
            ("--max-kl", "1"),
            ("--max-perplexity-increase", "1"),
        ] {
            let calibrated = [option, value, "--calibration", "t.txt"];
            assert!(typed(&calibrated).is_err(), "{option}");
        }
        for option in ["--force", "--dry-run"] {
            assert!(typed(&[option]).is_ok(), "{option}");
        }
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
            ("--slots", "q,x"),
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
}
