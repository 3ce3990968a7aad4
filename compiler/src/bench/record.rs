//! What was measured, as `htc bench --json` writes it.

use serde::Serialize;

use super::gates::Judged;
use super::machine::{Load, Machine};
use super::runner::Timing;
use super::statistics::{self, Comparison, Spread};
use super::task::Kind;
use super::{Measured, Side};
use crate::measure::Evaluation;

/// Raised with every change of the record that a reader could stumble over.
pub const SCHEMA: u32 = 1;

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the prompt, up to the choice of the first token.
    Prefill,
    /// Writing, from the first token to the last.
    Decode,
    /// Tokens written over the time from the prompt to the last of them.
    EndToEnd,
}

impl Phase {
    /// All of them.
    pub const ALL: [Phase; 3] = [Phase::Prefill, Phase::Decode, Phase::EndToEnd];

    /// What it is called in files.
    pub const fn key(self) -> &'static str {
        match self {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::EndToEnd => "end_to_end",
        }
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::EndToEnd => "end to end",
            other => other.key(),
        }
    }
}

/// What sensors of the device said of one run; what nobody measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// Energy that the device took, in joules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Mean power, in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The highest temperature, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<f64>,
    /// The most memory of the device that was taken, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<u64>,
}

/// One run of one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Tokens of the prompt, in the model's own vocabulary.
    pub prompt_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Seconds of prefill.
    pub prefill_seconds: f64,
    /// Seconds of decode; absent where one token was written, which comes from the prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_seconds: Option<f64>,
    /// Prompt tokens per second.
    pub prefill: f64,
    /// Tokens per second of decode: those behind the first, over the time since the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Tokens written per second from the prompt on; absent where there was no decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end: Option<f64>,
    /// Tokens written per joule, prefill included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_joule: Option<f64>,
    /// What sensors said.
    #[serde(flatten)]
    pub reading: Reading,
}

impl Run {
    /// From what a run took; `None` where it took no time.
    pub fn new(timing: Timing, reading: Reading) -> Option<Run> {
        let (prefill, decode) = (timing.prefill.as_secs_f64(), timing.decode.as_secs_f64());
        let several = timing.tokens > 1;
        if prefill <= 0.0 || (several && decode <= 0.0) {
            return None;
        }
        let tokens = timing.tokens as f64;
        let joules = reading.joules.filter(|&joules| joules > 0.0);
        Some(Run {
            prompt_tokens: timing.prompt_tokens,
            tokens: timing.tokens,
            prefill_seconds: prefill,
            decode_seconds: several.then_some(decode),
            prefill: timing.prompt_tokens as f64 / prefill,
            decode: several.then(|| (tokens - 1.0) / decode),
            end_to_end: several.then(|| tokens / (prefill + decode)),
            tokens_per_joule: joules.map(|joules| tokens / joules),
            reading,
        })
    }

    /// Tokens per second.
    pub fn speed(&self, phase: Phase) -> Option<f64> {
        match phase {
            Phase::Prefill => Some(self.prefill),
            Phase::Decode => self.decode,
            Phase::EndToEnd => self.end_to_end,
        }
    }
}

/// Two runs of the same task, one right behind the other; one run where there is no baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// The kind of prompt; absent for a context of a given length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Kind>,
    /// Tokens that were to be written.
    pub tokens: usize,
    /// Whether the subject came first.
    pub subject_first: bool,
    /// That of the subject.
    pub subject: Run,
    /// That of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Run>,
}

/// One length of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextPoint {
    /// Tokens read before the first is written.
    pub length: usize,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// What the pairs say of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// Speeds of the subject, tokens/s.
    pub subject: Spread,
    /// Speeds of the baseline, tokens/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Spread>,
    /// How they compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl Quantity {
    /// What pairs say of a phase; `None` where it was not measured.
    pub fn of(pairs: &[Pair], phase: Phase, seed: u64) -> Option<Quantity> {
        let of = |side: Side| -> Vec<f64> {
            let runs = pairs.iter().filter_map(|pair| match side {
                Side::Subject => Some(&pair.subject),
                Side::Baseline => pair.baseline.as_ref(),
            });
            runs.filter_map(|run| run.speed(phase)).collect()
        };
        let (subject, baseline) = (of(Side::Subject), of(Side::Baseline));
        let both: Vec<_> = subject
            .iter()
            .copied()
            .zip(baseline.iter().copied())
            .collect();
        Some(Quantity {
            subject: statistics::spread(&subject)?,
            baseline: statistics::spread(&baseline),
            comparison: statistics::compare(&both, seed),
        })
    }
}

/// What the pairs say, phase by phase; what was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Quantity>,
    /// Writing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<Quantity>,
    /// Both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end: Option<Quantity>,
}

impl Phases {
    /// Of some pairs.
    pub fn of(pairs: &[Pair], seed: u64) -> Phases {
        let [prefill, decode, end_to_end] =
            Phase::ALL.map(|phase| Quantity::of(pairs, phase, seed));
        Phases {
            prefill,
            decode,
            end_to_end,
        }
    }

    /// That of a phase.
    pub fn get(&self, phase: Phase) -> Option<&Quantity> {
        match phase {
            Phase::Prefill => self.prefill.as_ref(),
            Phase::Decode => self.decode.as_ref(),
            Phase::EndToEnd => self.end_to_end.as_ref(),
        }
    }
}

/// One length of the sweep, with what its pairs say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swept {
    /// Tokens read before the first is written.
    pub length: usize,
    /// The pairs.
    pub pairs: Vec<Pair>,
    /// What they say.
    #[serde(flatten)]
    pub phases: Phases,
}

/// One of the two.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measuree {
    /// Name of the model, without its folder.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// What executed it, with its version or build.
    pub engine: String,
    /// The part of the weights' bytes that every token touched, where it was not all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
}

/// Perplexity of the subject beside the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Name of the text, without its folder.
    pub text: String,
    /// What was measured on it; the reference is the baseline's model, executed by htc.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}

/// How it was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Conditions {
    /// When it began, in UTC (ISO 8601).
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// What it was measured on.
    pub machine: Machine,
    /// How much of the processor was others' meanwhile; absent where the system does not say it as Linux does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Threads of both.
    pub threads: usize,
    /// Type of the KV cache of both.
    pub kv_type: &'static str,
    /// Runs of both before the first pair of every group.
    pub warm_up: usize,
    /// Pause before every run.
    pub cool_down_seconds: f64,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Samples of the bootstrap.
    pub bootstrap_samples: usize,
}

/// Everything that `htc bench` found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// What kind of file it is.
    pub kind: &'static str,
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program, with its version.
    pub program: String,
    /// How it was measured.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// What was measured.
    pub subject: Measuree,
    /// What it was held against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Measuree>,
    /// Every pair, in the order of measuring.
    pub pairs: Vec<Pair>,
    /// What they say.
    #[serde(flatten)]
    pub phases: Phases,
    /// The sweep over lengths of context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<Swept>,
    /// Perplexity beside the baseline's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// What was to hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Judged>,
    /// What is to be known of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Record {
    /// Puts together what was measured.
    pub fn new(
        conditions: Conditions,
        (subject, baseline): (Measuree, Option<Measuree>),
        measured: Measured,
        quality: Option<Quality>,
        notes: Vec<String>,
    ) -> Record {
        let seed = conditions.seed;
        let context = measured.contexts.into_iter().map(|point| Swept {
            length: point.length,
            phases: Phases::of(&point.pairs, seed),
            pairs: point.pairs,
        });
        let mut record = Record {
            kind: "benchmark",
            schema: SCHEMA,
            program: format!("htc {}", env!("CARGO_PKG_VERSION")),
            phases: Phases::of(&measured.pairs, seed),
            conditions,
            subject,
            baseline,
            pairs: measured.pairs,
            context: context.collect(),
            quality,
            gates: Vec::new(),
            notes,
        };
        let found = record.contaminations();
        record.notes.extend(found);
        record
    }

    /// Phases in which one of the two varied more than it would on a quiet machine.
    fn contaminations(&self) -> Vec<String> {
        let prompts = (String::new(), &self.phases, &Phase::ALL[..]);
        // End to end adds nothing to what the sweep is about.
        let swept = self.context.iter().map(|swept| {
            let place = format!(" at {} tokens of context", swept.length);
            (place, &swept.phases, &Phase::ALL[..2])
        });
        let all = std::iter::once(prompts).chain(swept);
        let found = all.flat_map(|(place, phases, of)| {
            of.iter().filter_map(move |&phase| {
                let check = phases.get(phase)?.comparison?.variance?;
                let (noisy, steady, ratio) = match check.ratio > 1.0 {
                    true => ("subject", "baseline", check.ratio),
                    false => ("baseline", "subject", 1.0 / check.ratio),
                };
                check.contaminated.then(|| {
                    format!(
                        "{}{place}: contaminated: the {noisy}'s relative variance is {ratio:.1} times the {steady}'s, \
                         more than {:.1}; measure again on a quiet machine",
                        phase.name(),
                        check.threshold
                    )
                })
            })
        });
        found.collect()
    }
}
