//! What was measured, as `htc bench --json` writes it.

use serde::Serialize;

use super::Measured;
use super::energy::SensorRecord;
use super::gates::Judged;
use super::machine::{Load, Machine};
use super::runner::Timing;
use super::statistics::{self, Comparison, Spread};
use super::task::Kind;
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

/// Tokens for each joule, of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerJoule {
    /// Tokens written over all joules of the run, those of prefill included.
    Run,
    /// The same over the joules beyond what the device draws when it idles.
    Net,
    /// Those behind the first over the joules since the first.
    Decode,
}

impl PerJoule {
    /// All of them.
    pub const ALL: [PerJoule; 3] = [PerJoule::Run, PerJoule::Net, PerJoule::Decode];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            PerJoule::Run => "end to end",
            PerJoule::Net => "beyond idling",
            PerJoule::Decode => "decode",
        }
    }
}

/// What a sensor of the device said of one run. What it does not say is `None`, in JSON null, and never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// Energy that the device took, in joules.
    pub joules: Option<f64>,
    /// What of it is beyond what the device takes in the same time when it idles.
    pub net_joules: Option<f64>,
    /// What of it was taken since the first token was written.
    pub decode_joules: Option<f64>,
    /// Mean power, in watts.
    pub power_watts: Option<f64>,
    /// Seconds of the run that no reading tells of: they count with the mean power of the others.
    pub missed_seconds: Option<f64>,
    /// Readings behind the first.
    pub readings: Option<u64>,
    /// Temperature when the run began, in degrees Celsius.
    pub temperature_before_celsius: Option<f64>,
    /// Temperature when it had ended.
    pub temperature_after_celsius: Option<f64>,
    /// The highest in between.
    pub temperature_celsius: Option<f64>,
}

impl Reading {
    /// The same where what was drawn was not drawn for the run alone.
    pub fn without_energy(self) -> Reading {
        Reading {
            temperature_before_celsius: self.temperature_before_celsius,
            temperature_after_celsius: self.temperature_after_celsius,
            temperature_celsius: self.temperature_celsius,
            ..Reading::default()
        }
    }
}

/// What a run cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunEnergy {
    /// Tokens written per joule, prefill included.
    pub tokens_per_joule: Option<f64>,
    /// The same per joule beyond idling; `None` where that is none.
    pub net_tokens_per_joule: Option<f64>,
    /// Tokens behind the first per joule since the first.
    pub decode_tokens_per_joule: Option<f64>,
    /// What the sensor said.
    #[serde(flatten)]
    pub reading: Reading,
}

impl RunEnergy {
    /// Of a run that wrote so many tokens.
    fn new(tokens: usize, reading: Reading) -> RunEnergy {
        let per = |tokens: usize, joules: Option<f64>| {
            let joules = joules.filter(|&joules| joules > 0.0 && tokens > 0)?;
            Some(tokens as f64 / joules)
        };
        RunEnergy {
            tokens_per_joule: per(tokens, reading.joules),
            net_tokens_per_joule: per(tokens, reading.net_joules),
            decode_tokens_per_joule: per(tokens.saturating_sub(1), reading.decode_joules),
            reading,
        }
    }
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
    /// What it cost; absent where there is no sensor.
    #[serde(flatten)]
    pub energy: Option<RunEnergy>,
}

impl Run {
    /// From what a run took; `None` where it took no time.
    pub fn new(timing: Timing, reading: Option<Reading>) -> Option<Run> {
        let (prefill, decode) = (timing.prefill.as_secs_f64(), timing.decode.as_secs_f64());
        let several = timing.tokens > 1;
        if prefill <= 0.0 || (several && decode <= 0.0) {
            return None;
        }
        let tokens = timing.tokens as f64;
        Some(Run {
            prompt_tokens: timing.prompt_tokens,
            tokens: timing.tokens,
            prefill_seconds: prefill,
            decode_seconds: several.then_some(decode),
            prefill: timing.prompt_tokens as f64 / prefill,
            decode: several.then(|| (tokens - 1.0) / decode),
            end_to_end: several.then(|| tokens / (prefill + decode)),
            energy: reading.map(|reading| RunEnergy::new(timing.tokens, reading)),
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

    /// Tokens for each joule.
    pub fn per_joule(&self, of: PerJoule) -> Option<f64> {
        let energy = self.energy.as_ref()?;
        match of {
            PerJoule::Run => energy.tokens_per_joule,
            PerJoule::Net => energy.net_tokens_per_joule,
            PerJoule::Decode => energy.decode_tokens_per_joule,
        }
    }

    /// Seconds of all of it.
    pub fn seconds(&self) -> f64 {
        self.prefill_seconds + self.decode_seconds.unwrap_or(0.0)
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
    /// That of the subject: speeds in tokens/s, or tokens for each joule.
    pub subject: Spread,
    /// That of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Spread>,
    /// How they compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl Quantity {
    /// What pairs say of a value; `None` where it was not measured. Pairs of which one run lacks it compare nothing.
    pub fn of(pairs: &[Pair], value: impl Fn(&Run) -> Option<f64>, seed: u64) -> Option<Quantity> {
        let baseline = |pair: &Pair| value(pair.baseline.as_ref()?);
        let subject: Vec<f64> = pairs.iter().filter_map(|p| value(&p.subject)).collect();
        let others: Vec<f64> = pairs.iter().filter_map(baseline).collect();
        let both = pairs
            .iter()
            .filter_map(|pair| Some((value(&pair.subject)?, baseline(pair)?)));
        let both: Vec<(f64, f64)> = both.collect();
        Some(Quantity {
            subject: statistics::spread(&subject)?,
            baseline: statistics::spread(&others),
            comparison: statistics::compare(&both, seed),
        })
    }
}

/// What the pairs say of energy; in JSON null where the sensor does not say it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PerJoules {
    /// Tokens written per joule, prefill included.
    pub tokens_per_joule: Option<Quantity>,
    /// The same per joule beyond idling.
    pub net_tokens_per_joule: Option<Quantity>,
    /// Tokens behind the first per joule since the first.
    pub decode_tokens_per_joule: Option<Quantity>,
}

impl PerJoules {
    /// Of some pairs; `None` where there was no sensor.
    fn of(pairs: &[Pair], seed: u64) -> Option<PerJoules> {
        let mut runs = pairs.iter().map(|pair| &pair.subject);
        runs.find(|run| run.energy.is_some())?;
        let [run, net, decode] =
            PerJoule::ALL.map(|of| Quantity::of(pairs, |run| run.per_joule(of), seed));
        Some(PerJoules {
            tokens_per_joule: run,
            net_tokens_per_joule: net,
            decode_tokens_per_joule: decode,
        })
    }

    /// That of a kind.
    pub fn get(&self, of: PerJoule) -> Option<&Quantity> {
        match of {
            PerJoule::Run => self.tokens_per_joule.as_ref(),
            PerJoule::Net => self.net_tokens_per_joule.as_ref(),
            PerJoule::Decode => self.decode_tokens_per_joule.as_ref(),
        }
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
            Phase::ALL.map(|phase| Quantity::of(pairs, |run| run.speed(phase), seed));
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
    /// What they say of energy; absent where there was no sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<PerJoules>,
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
    /// Bytes of the weights that every token touches; absent where htc does not execute it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
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
    /// What executed the models of this process.
    pub device: String,
    /// Bytes that they took of its own memory, with keys and values and what is worked in, behind the last run: what is free less, so
    /// that others who use the device count, too. Absent where it has none of its own, or does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
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
    /// What measured energy; absent where nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensor: Option<SensorRecord>,
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
    /// What they say of energy; absent where there was no sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<PerJoules>,
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
            energy: PerJoules::of(&point.pairs, seed),
            pairs: point.pairs,
        });
        let mut record = Record {
            kind: "benchmark",
            schema: SCHEMA,
            program: format!("htc {}", env!("CARGO_PKG_VERSION")),
            phases: Phases::of(&measured.pairs, seed),
            energy: PerJoules::of(&measured.pairs, seed),
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
