//! Definition of the command line.
#![allow(
    missing_docs,
    reason = "a doc comment on a group of options would become help text"
)]

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use htc_loader::device::DeviceChoice;
use htc_loader::dial::ActiveFraction;
use htc_loader::kv::KvType;

use crate::options::{
    ArtifactOptions, CompileOptions, CompileRequest, LimitOptions, OptionError, PlanOptions,
    TargetMachine, TreatmentOptions,
};

mod analyse;
mod bench;
mod clean;
mod documents;
mod export;
mod live;
mod reference;
mod report;
mod run;
mod schema;
mod target;

pub use analyse::AnalyseArgs;
pub use bench::{Baseline, BenchArgs, Contexts, UniqueList};
pub use clean::CleanArgs;
pub use documents::{CompletionsArgs, ManArgs};
pub use export::ExportArgs;
pub use live::{KvKindArgs, LiveArgs};
pub use reference::ReferenceModel;
pub use report::ReportArgs;
pub use run::{
    AdaptArg, ChatArgs, ContextArgs, DraftModel, ModelArgs, OnFullArg, RunArgs, RunLength,
    SamplingArgs,
};
pub use schema::{Document, SchemaArgs};
pub use target::TargetArgs;

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
    #[command(visible_aliases = ["quantize", "quantise"], after_help = COMPILE_EXAMPLES)]
    Compile(CompileArgs),
    /// Decide the encoding of every matrix, and write the plan as JSON
    Plan(PlanArgs),
    /// Show a model's spectra and, with a calibration, its residual stream
    Analyse(AnalyseArgs),
    /// Measure perplexity, and the distance to a reference model
    Eval(EvalArgs),
    /// Measure speed in pairs with another model or llama.cpp, with statistics and gates
    Bench(BenchArgs),
    /// Make one page of reports, analyses, evaluations and artifacts, to look at in a browser
    Report(ReportArgs),
    /// Generate text
    Run(RunArgs),
    /// Talk with a model in the terminal
    Chat(ChatArgs),
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
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages, one for every command
    Man(ManArgs),
    /// Remove what earlier runs left: unfinished work, and statistics in the cache
    Clean(CleanArgs),
    /// The other side of a conversation's template, which htc starts itself
    #[command(name = crate::app::chat::SUBCOMMAND, hide = true)]
    RenderChatTemplate,
}

/// Section headings of the help, in order.
pub mod heading {
    pub use crate::options::heading::*;

    /// All headings of `compile` and `plan`.
    pub const ALL: [&str; 6] = [SIZE, TEXT, RESEARCH, METHOD, OUTPUT, CHECKS];
    /// Compared models of `bench`.
    pub const BENCH_BASELINE: &str = "Baseline";
    /// Protocol and gates of `bench`.
    pub const BENCH_PROTOCOL: &str = "Protocol";
    /// Prompt of `run`.
    pub const RUN_TEXT: &str = "Prompt";
    /// Length of the output of `run`.
    pub const RUN_LENGTH: &str = "Length";
    /// Sampling of `run`.
    pub const RUN_TOKENS: &str = "Sampling";
    /// Drafts of `run`.
    pub const RUN_DRAFT: &str = "Speculative decoding";
    /// Device monitoring of `run`.
    pub const RUN_LIVE: &str = "Temperature and energy (research)";
}

const COMPILE_EXAMPLES: &str = "Examples:
  htc compile model.gguf model.htz
  htc compile folder model.htz --bpw 4 --effort fast
More options, by topic: htc compile --help";

/// Arguments of `htc compile`.
#[derive(Debug, Args)]
pub struct CompileArgs {
    /// Model to compress: a .gguf, or a folder with config.json and .safetensors
    ///
    /// Of a model in several files, the first.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Artifact to write (.htz)
    #[arg(value_name = "OUT", value_parser = artifact_path(), required_unless_present = "output")]
    output_argument: Option<PathBuf>,
    /// Artifact to write, in place of the argument OUT
    #[arg(short, long, value_name = "OUT", value_parser = artifact_path(), conflicts_with = "output_argument")]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub request: CompileRequest,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Plan file that htc plan wrote, edited or not
    #[arg(long, value_name = "FILE", help_heading = heading::METHOD, hide_short_help = true, conflicts_with_all = replaced_by_plan())]
    pub plan: Option<PathBuf>,
    /// Write a JSON report to FILE
    ///
    /// `json` or `-` means standard output.
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub report: Option<PathBuf>,
    /// Print the JSON report on standard output
    #[arg(long, help_heading = heading::OUTPUT, conflicts_with = "report")]
    pub json: bool,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub threads: ThreadArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub verbosity: VerbosityArgs,
    #[command(flatten)]
    pub artifact: ArtifactOptions,
    /// Predict size, memory and time, and write no artifact
    ///
    /// The plan is shown. The calibration is computed and cached. With a limit the size is the
    /// predicted one.
    #[arg(long, help_heading = heading::CHECKS)]
    pub dry_run: bool,
    /// Replace OUT if it exists
    #[arg(long, help_heading = heading::CHECKS)]
    pub force: bool,
}

impl CompileArgs {
    /// Returns the path of the artifact.
    pub fn output(&self) -> PathBuf {
        let output = self.output.clone().or_else(|| self.output_argument.clone());
        output.unwrap_or_default()
    }

    /// Returns the resolved options for a target machine.
    ///
    /// # Errors
    /// [`OptionError`] if options contradict each other.
    pub fn options(&self, target: TargetMachine) -> Result<CompileOptions, OptionError> {
        let plan = self.plan.as_deref();
        Ok(CompileOptions {
            input: self.input.clone(),
            output: self.output(),
            planning: self.request.plan_source(plan, target)?,
            calibration: self.request.calibration(plan)?,
            treatment: self.request.plan.treatment,
            limit: self.request.limit(plan),
            artifact: self.artifact.clone(),
            threads: self.threads.count(),
            overwrite: self.force,
        })
    }
}

/// Returns the ids of the options that a plan file replaces: those of a plan besides its treatment,
/// and limits.
fn replaced_by_plan() -> Vec<clap::Id> {
    let ids = |command: clap::Command| -> Vec<clap::Id> {
        command
            .get_arguments()
            .map(|argument| argument.get_id().clone())
            .collect()
    };
    let command = PlanOptions::augment_args(clap::Command::new("plan"));
    let command = LimitOptions::augment_args(TargetArgs::augment_args(command));
    let kept = ids(TreatmentOptions::augment_args(clap::Command::new(
        "treatment",
    )));
    let mut replaced = ids(command);
    replaced.retain(|id| !kept.contains(id));
    replaced
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
    pub request: CompileRequest,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
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
    #[arg(short = 'f', long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens in a window
    #[arg(short, long = "ctx-size", alias = "context", value_name = "N", default_value_t = 512, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
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
    pub kv: KvKindArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Parses the path of an output; refuses `-`, which other programs take for standard output.
fn output_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(|text| {
        if text == "-" {
            return Err("this output cannot go to standard output; name a file");
        }
        Ok(PathBuf::from(text))
    })
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

/// Parses the path of an artifact, which has the extension .htz.
fn artifact_path() -> impl TypedValueParser<Value = PathBuf> {
    output_path().try_map(|path: PathBuf| {
        if has_extension(&path, "htz") {
            Ok(path)
        } else if has_extension(&path, "gguf") {
            Err(
                "an artifact is a .htz; write one, then `htc export OUT.htz -o OUT.gguf` converts \
                 it",
            )
        } else if has_extension(&path, "safetensors") || path.is_dir() {
            Err(
                "an artifact is a .htz; write one, then `htc export OUT.htz -o DIR --format \
                 safetensors` converts it",
            )
        } else {
            Err("an artifact has the extension .htz")
        }
    })
}

/// Parses the path of a GGUF, which has the extension .gguf.
fn gguf_path() -> impl TypedValueParser<Value = PathBuf> {
    output_path().try_map(|path: PathBuf| {
        if has_extension(&path, "gguf") {
            Ok(path)
        } else {
            Err("this output is a GGUF; name a .gguf")
        }
    })
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
    #[arg(long = "kv", alias = "kv-type", value_name = "f16|f32", hide_short_help = true, default_value = "f16", value_parser = parse_kv_type)]
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
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// What a command prints on standard error.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct VerbosityArgs {
    /// Print every part of the result
    #[arg(short, long)]
    pub verbose: bool,
    /// Print only errors and warnings
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
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

fn parse_kv_type(text: &str) -> Result<KvType, String> {
    match text {
        "f16" => Ok(KvType::F16),
        "f32" => Ok(KvType::F32),
        _ => Err("the KV cache is stored as f16 or f32".into()),
    }
}

#[cfg(test)]
mod tests;
