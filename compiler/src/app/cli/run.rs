//! Arguments of `htc run`.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::TypedValueParser as _;
use htc_loader::dial::ActiveFraction;
use htc_loader::speculate::{DraftLength, MAX_DRAFT_LENGTH};

use super::{
    DeviceArgs, KvKindArgs, LiveArgs, ReferenceModel, ThreadArgs, heading, output_path,
    parse_fraction,
};
use crate::options::flags::parse_if;

/// How a draft learns from what was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AdaptArg {
    /// not at all
    Off,
    /// its bases turn towards what they failed to capture (a draft in shared bases: compile --method shared-basis)
    Oja,
    /// what its head reads is corrected by gradient descent on the divergence from the model
    Gradient,
}

/// What happens when the context is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnFullArg {
    /// the text ends
    Stop,
    /// the sequence begins anew with its beginning and its last half
    Slide,
}

/// Draft model.
#[derive(Clone, Debug, PartialEq)]
pub enum DraftModel {
    /// The model itself at an active fraction of its weights.
    SelfDraft(ActiveFraction),
    /// Another model.
    Model(PathBuf),
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, Args)]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token
    #[arg(
        long,
        alias = "temperature",
        value_name = "T",
        help_heading = heading::RUN_TOKENS,
        default_value_t = 0.8,
        allow_negative_numbers = true,
        value_parser = parse_temperature
    )]
    pub temp: f32,
    /// Sample among the K likeliest tokens; 0 means all
    #[arg(
        long,
        value_name = "K",
        help_heading = heading::RUN_TOKENS,
        default_value_t = 40,
        allow_negative_numbers = true,
        value_parser = parse_top_k
    )]
    pub top_k: usize,
    /// Sample among the likeliest tokens that reach probability P together
    #[arg(
        long,
        value_name = "P",
        help_heading = heading::RUN_TOKENS,
        default_value_t = 0.95,
        allow_negative_numbers = true,
        value_parser = parse_top_p
    )]
    pub top_p: f32,
    /// Seed; the same seed gives the same text [default: random, and printed]
    #[arg(
        short,
        long,
        value_name = "S",
        help_heading = heading::RUN_TOKENS,
        allow_negative_numbers = true,
        value_parser = parse_seed
    )]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// Returns true if the text depends on a seed that was not requested.
    pub fn has_random_seed(&self) -> bool {
        self.seed.is_none() && self.temp > 0.0
    }

    /// Returns the seed: the requested one, or a random one.
    pub fn seed(&self) -> u64 {
        // The keys of a hasher are random. A number of 32 bits is easily typed, and exact in every
        // reader of JSON.
        self.seed
            .unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 32)
    }
}

/// Arguments of `htc run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to continue; without it and --file, standard input is read
    #[arg(short, long, value_name = "TEXT", help_heading = heading::RUN_TEXT, conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// File whose text is to be continued (UTF-8)
    #[arg(short = 'f', long = "file", alias = "prompt-file", value_name = "FILE", help_heading = heading::RUN_TEXT)]
    pub prompt_file: Option<PathBuf>,
    /// Take the text as a message and answer it; htc chat holds a conversation
    ///
    /// It is written by the model's chat template, and the model's end of turn ends the answer.
    #[arg(long, help_heading = heading::RUN_TEXT)]
    pub chat: bool,
    /// System message: how the model is to answer
    #[arg(long, value_name = "TEXT", help_heading = heading::RUN_TEXT, requires = "chat")]
    pub system: Option<String>,
    /// Tokens to write at most [default: -1, until the model ends]
    #[arg(
        short = 'n',
        long = "n-predict",
        value_name = "N",
        help_heading = heading::RUN_LENGTH,
        allow_negative_numbers = true,
        default_value = "-1",
        hide_default_value = true,
        value_parser = parse_run_length
    )]
    pub tokens: RunLength,
    /// Go on after the model's end-of-sequence token
    #[arg(long, help_heading = heading::RUN_LENGTH)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Another model, or a fraction of this one's bytes, drafts tokens
    ///
    /// The draft has the same vocabulary. The text is the same as without, or of the same distribution where
    /// tokens are drawn.
    #[arg(long = "draft", alias = "speculate", value_name = "MODEL|FRACTION", help_heading = heading::RUN_DRAFT, allow_negative_numbers = true, value_parser = clap::builder::OsStringValueParser::new().try_map(parse_drafter))]
    pub draft: Option<DraftModel>,
    /// Tokens of a draft, 1 to 16 (the first token and one behind every 32 drafts are written without); auto: as many
    /// as pay by what was measured so far, or none [default: auto]
    #[arg(long, value_name = "N|auto", help_heading = heading::RUN_DRAFT, hide_short_help = true, allow_negative_numbers = true, value_parser = parse_draft_length)]
    pub draft_length: Option<DraftLength>,
    /// Let MODEL, an artifact, draft for the model that it was made from, whose text this is then: a model, or `source`
    /// for the weights in the artifact (compile --with-source); --draft FRACTION drafts with a part of the artifact
    #[arg(long, value_name = "MODEL|source", help_heading = heading::RUN_DRAFT, hide_short_help = true, value_parser = clap::builder::OsStringValueParser::new().map(ReferenceModel::from))]
    pub verifier: Option<ReferenceModel>,
    /// Research: let the draft learn from tokens that were not kept; the text stays the model's own
    #[arg(long, value_name = "off|oja|gradient", help_heading = heading::RUN_DRAFT, hide_short_help = true, value_enum, default_value = "off")]
    pub adapt: AdaptArg,
    /// Research: file of what the draft learnt: it goes on from there, and writes it when the text ends
    #[arg(long, value_name = "FILE", help_heading = heading::RUN_DRAFT, hide_short_help = true, value_parser = output_path())]
    pub adapt_state: Option<PathBuf>,
    #[command(flatten)]
    pub live: LiveArgs,
    /// Read at most this fraction of the weights' bytes for each token
    ///
    /// Without the last of the model's refinements (compile --planes 2), then with less components of factors.
    #[arg(long, value_name = "F", help_heading = heading::OUTPUT, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub fraction: Option<ActiveFraction>,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub kv: KvKindArgs,
    /// Keep this number of positions of the prompt in the KV cache, 33 at least: those that its end looks at most, and its end
    #[arg(long, value_name = "N", help_heading = heading::OUTPUT, hide_short_help = true, allow_negative_numbers = true)]
    pub kv_keep: Option<usize>,
    /// What happens when the model's context is full: stop, or slide, which forgets all but the beginning and the last half and
    /// reads these again
    #[arg(long, value_name = "stop|slide", help_heading = heading::RUN_LENGTH, hide_short_help = true, value_enum, default_value = "stop")]
    pub on_full: OnFullArg,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub device: DeviceArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub threads: ThreadArgs,
    /// Print the text and what was measured as JSON when all is written
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Size of the context.
#[derive(Clone, Copy, Debug, Args)]
pub struct ContextArgs {
    /// Positions of the context [default: as many as the model was trained for]
    #[arg(short, long = "ctx-size", value_name = "N", help_heading = heading::RUN_LENGTH, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    ctx_size: Option<u32>,
}

impl ContextArgs {
    /// Returns the requested number of positions.
    pub fn positions(self) -> Option<usize> {
        self.ctx_size.map(|positions| positions as usize)
    }
}

/// The model that generates, as an argument or as an option.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Model to run (.gguf, folder or .htz); also as -m MODEL
    #[arg(value_name = "MODEL", required_unless_present = "model_option")]
    model: Option<PathBuf>,
    /// Model to run
    #[arg(id = "model_option", short = 'm', long = "model", value_name = "MODEL", conflicts_with = "model", hide_short_help = true, help_heading = heading::RUN_TEXT)]
    model_option: Option<PathBuf>,
}

impl ModelArgs {
    /// Returns the path of the model.
    pub fn path(&self) -> &Path {
        let model = self.model.as_deref().or(self.model_option.as_deref());
        model.unwrap_or(Path::new(""))
    }
}

/// Arguments of `htc chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Type a message and Enter. A line that ends in \\ goes on in the next one.
  /reset  forget the conversation      Ctrl-C  stop the answer
  /exit   end, as does Ctrl-D"
)]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message: how the model is to answer
    #[arg(long, value_name = "TEXT", help_heading = heading::RUN_TEXT)]
    pub system: Option<String>,
    /// Tokens of an answer at most; -1: until the model ends it [default: -1]
    #[arg(short = 'n', long = "n-predict", value_name = "N", help_heading = heading::RUN_LENGTH, allow_negative_numbers = true, default_value = "-1", hide_default_value = true, value_parser = parse_run_length)]
    pub tokens: RunLength,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Read at most this fraction of the weights' bytes for each token
    #[arg(long, value_name = "F", help_heading = heading::OUTPUT, allow_negative_numbers = true, value_parser = parse_fraction)]
    pub fraction: Option<ActiveFraction>,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub kv: KvKindArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub device: DeviceArgs,
    #[command(flatten, next_help_heading = heading::OUTPUT)]
    pub threads: ThreadArgs,
}

/// Numbers take precedence over paths.
fn parse_drafter(text: OsString) -> Result<DraftModel, String> {
    match text.to_str() {
        Some(number) if number.parse::<f64>().is_ok() => {
            parse_fraction(number).map(DraftModel::SelfDraft)
        }
        Some("") => Err("a draft is a fraction above 0 and at most 1, or a model".into()),
        _ => Ok(DraftModel::Model(text.into())),
    }
}

fn parse_draft_length(text: &str) -> Result<DraftLength, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(DraftLength::Auto),
        (_, Ok(length)) if (1..=MAX_DRAFT_LENGTH).contains(&length) => {
            Ok(DraftLength::Fixed(length))
        }
        _ => Err(format!(
            "a draft has 1 to {MAX_DRAFT_LENGTH} tokens, or `auto`"
        )),
    }
}

/// Maximum length of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunLength {
    /// Until the model ends or its context is full.
    UntilEnd,
    /// At most this number of tokens.
    Tokens(usize),
}

impl RunLength {
    /// Returns the maximum number of tokens, if there is one.
    pub fn limit(self) -> Option<usize> {
        match self {
            RunLength::UntilEnd => None,
            RunLength::Tokens(limit) => Some(limit),
        }
    }
}

fn parse_run_length(text: &str) -> Result<RunLength, String> {
    match (text, text.parse()) {
        ("-1", _) => Ok(RunLength::UntilEnd),
        (_, Ok(limit)) => Ok(RunLength::Tokens(limit)),
        _ => Err("a number of tokens is 0 or more; -1 writes until the model ends".into()),
    }
}

fn parse_top_k(text: &str) -> Result<usize, String> {
    let expected = "a number of tokens is 0 or more; 0 keeps every token";
    parse_if(text, |_: &usize| true, expected)
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let expected = "a seed is a whole number from 0 to 18446744073709551615";
    parse_if(text, |_: &u64| true, expected)
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    let expected = "a temperature is a finite number of at least 0; 0 is greedy";
    parse_if(text, |t: &f32| *t >= 0.0 && t.is_finite(), expected)
}

fn parse_top_p(text: &str) -> Result<f32, String> {
    let expected = "a probability is a number above 0 and at most 1; 1 keeps every token";
    parse_if(text, |p: &f32| *p > 0.0 && *p <= 1.0, expected)
}
