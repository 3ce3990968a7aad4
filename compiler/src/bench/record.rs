//! The record of a benchmark, as `htc bench --json` writes it.

use schemars::JsonSchema;
use serde::Serialize;

use super::BenchResults;
use super::energy::SensorRecord;
use super::gates::JudgedGate;
use super::machine::{Load, Machine};
use super::runner::Timing;
use super::statistics::{self, Comparison, Spread};
use super::task::PromptKind;
use crate::measure::Evaluation;

/// Version of the record format, raised with every incompatible change.
pub const SCHEMA: &str = "htc-benchmark-1";

/// Phase of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the prompt, up to the choice of the first token.
    Prefill,
    /// Writing from the first token to the last.
    Decode,
    /// Tokens written over the time from the prompt to the last token.
    EndToEnd,
}

htc_formats::names!(Phase {
    Prefill "prefill",
    Decode "decode",
    EndToEnd "end to end",
});

/// Variants of tokens per joule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerJoule {
    /// Tokens written over all joules of the run, prefill included.
    Run,
    /// Tokens written over the joules above idle power.
    Net,
    /// Tokens after the first over the joules since the first.
    Decode,
}

htc_formats::names!(PerJoule {
    Run "end to end",
    Net "beyond idling",
    Decode "decode",
});

/// Sensor data of one run. Unknown values are `None` (null in JSON), never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct EnergyReading {
    /// Energy of the device, in joules.
    pub joules: Option<f64>,
    /// Energy above idle power, in joules.
    pub net_joules: Option<f64>,
    /// Energy since the first token, in joules.
    pub decode_joules: Option<f64>,
    /// Mean power, in watts.
    pub power_watts: Option<f64>,
    /// Seconds of the run without readings.
    pub missed_seconds: Option<f64>,
    /// Number of readings after the first.
    pub readings: Option<u64>,
    /// Temperature at the start, in degrees Celsius.
    pub temperature_before_celsius: Option<f64>,
    /// Temperature after the run.
    pub temperature_after_celsius: Option<f64>,
    /// Highest temperature during the run.
    pub temperature_celsius: Option<f64>,
}

impl EnergyReading {
    /// Returns the temperatures alone, for runs whose energy cannot be attributed.
    pub fn without_energy(self) -> EnergyReading {
        EnergyReading {
            temperature_before_celsius: self.temperature_before_celsius,
            temperature_after_celsius: self.temperature_after_celsius,
            temperature_celsius: self.temperature_celsius,
            ..EnergyReading::default()
        }
    }
}

/// Energy of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct RunEnergy {
    /// Tokens written per joule, prefill included.
    pub tokens_per_joule: Option<f64>,
    /// Tokens per joule above idle power; `None` if that is not positive.
    pub net_tokens_per_joule: Option<f64>,
    /// Tokens after the first per joule since the first.
    pub decode_tokens_per_joule: Option<f64>,
    /// Sensor data.
    #[serde(flatten)]
    pub reading: EnergyReading,
}

impl RunEnergy {
    fn new(tokens: usize, reading: EnergyReading) -> RunEnergy {
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

/// One run of the subject or of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Run {
    /// Tokens of the prompt in the model's vocabulary.
    pub prompt_tokens: usize,
    /// Tokens written.
    pub tokens: usize,
    /// Seconds of prefill.
    pub prefill_seconds: f64,
    /// Seconds of decode; absent if only one token was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_seconds: Option<f64>,
    /// Prompt tokens per second.
    pub prefill: f64,
    /// Decode speed: tokens after the first over the time since the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Tokens written per second of the whole run; absent without decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end: Option<f64>,
    /// Energy; absent without a sensor.
    #[serde(flatten)]
    pub energy: Option<RunEnergy>,
}

impl Run {
    /// Creates a run from its timing; `None` if no time passed.
    pub fn new(timing: Timing, reading: Option<EnergyReading>) -> Option<Run> {
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

    /// Returns the tokens per second of a phase.
    pub fn speed(&self, phase: Phase) -> Option<f64> {
        match phase {
            Phase::Prefill => Some(self.prefill),
            Phase::Decode => self.decode,
            Phase::EndToEnd => self.end_to_end,
        }
    }

    /// Returns the tokens per joule.
    pub fn per_joule(&self, of: PerJoule) -> Option<f64> {
        let energy = self.energy.as_ref()?;
        match of {
            PerJoule::Run => energy.tokens_per_joule,
            PerJoule::Net => energy.net_tokens_per_joule,
            PerJoule::Decode => energy.decode_tokens_per_joule,
        }
    }

    /// Returns the duration of the run in seconds.
    pub fn seconds(&self) -> f64 {
        self.prefill_seconds + self.decode_seconds.unwrap_or(0.0)
    }
}

/// Two consecutive runs of the same task, or one run if there is no baseline.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Pair {
    /// Kind of prompt; absent for a context of a given length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptKind>,
    /// Requested number of tokens.
    pub tokens: usize,
    /// True if the subject ran first.
    pub subject_first: bool,
    /// Run of the subject.
    pub subject: Run,
    /// Run of the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Run>,
}

/// Measurements at one context length.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextPoint {
    /// Context length in tokens.
    pub length: usize,
    /// Pairs.
    pub pairs: Vec<Pair>,
}

/// Statistics of one quantity over pairs.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Quantity {
    /// Subject: speed in tokens/s, or tokens per joule.
    pub subject: Spread,
    /// Baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Spread>,
    /// Comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl Quantity {
    /// Computes the statistics of `value`; `None` if never measured.
    pub fn from_pairs(
        pairs: &[Pair],
        value: impl Fn(&Run) -> Option<f64>,
        seed: u64,
    ) -> Option<Quantity> {
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

/// Statistics of tokens per joule; null in JSON if unknown.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct EnergyQuantities {
    /// Tokens written per joule, prefill included.
    pub tokens_per_joule: Option<Quantity>,
    /// Tokens written per joule above idle power.
    pub net_tokens_per_joule: Option<Quantity>,
    /// Tokens after the first per joule since the first.
    pub decode_tokens_per_joule: Option<Quantity>,
}

impl EnergyQuantities {
    fn from_pairs(pairs: &[Pair], seed: u64) -> Option<EnergyQuantities> {
        let mut runs = pairs.iter().map(|pair| &pair.subject);
        runs.find(|run| run.energy.is_some())?;
        let [run, net, decode] =
            PerJoule::ALL.map(|of| Quantity::from_pairs(pairs, |run| run.per_joule(of), seed));
        Some(EnergyQuantities {
            tokens_per_joule: run,
            net_tokens_per_joule: net,
            decode_tokens_per_joule: decode,
        })
    }

    /// Returns the statistics of one variant.
    pub fn get(&self, of: PerJoule) -> Option<&Quantity> {
        match of {
            PerJoule::Run => self.tokens_per_joule.as_ref(),
            PerJoule::Net => self.net_tokens_per_joule.as_ref(),
            PerJoule::Decode => self.decode_tokens_per_joule.as_ref(),
        }
    }
}

/// Statistics of all phases; unmeasured phases are absent.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Phases {
    /// Prefill speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Quantity>,
    /// Decode speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<Quantity>,
    /// End-to-end speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end: Option<Quantity>,
}

impl Phases {
    /// Computes the statistics of `pairs`.
    pub fn from_pairs(pairs: &[Pair], seed: u64) -> Phases {
        let [prefill, decode, end_to_end] =
            Phase::ALL.map(|phase| Quantity::from_pairs(pairs, |run| run.speed(phase), seed));
        Phases {
            prefill,
            decode,
            end_to_end,
        }
    }

    /// Returns the statistics of a phase.
    pub fn get(&self, phase: Phase) -> Option<&Quantity> {
        match phase {
            Phase::Prefill => self.prefill.as_ref(),
            Phase::Decode => self.decode.as_ref(),
            Phase::EndToEnd => self.end_to_end.as_ref(),
        }
    }
}

/// One context length of the sweep with its statistics.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ContextRecord {
    /// Context length in tokens.
    pub length: usize,
    /// Pairs.
    pub pairs: Vec<Pair>,
    /// Phase statistics.
    #[serde(flatten)]
    pub phases: Phases,
    /// Energy statistics, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyQuantities>,
}

/// Description of the subject or the baseline.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct ModelRecord {
    /// File name of the model.
    pub name: String,
    /// File size in bytes.
    pub bytes: u64,
    /// Program that executed it, with version or build.
    pub engine: String,
    /// Active fraction of the weight bytes per token, if below one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Bytes of weights read per token; absent for other programs than htc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub touched_bytes: Option<u64>,
}

/// Perplexity of the subject compared with the baseline.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Quality {
    /// File name of the text.
    pub text: String,
    /// The evaluation; the reference is the baseline's model.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}

/// Measurement conditions.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Conditions {
    /// Start of the measurement in UTC (ISO 8601).
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// Machine.
    pub machine: Machine,
    /// Load by other programs; absent on other systems than Linux.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Device that executed the models of this process.
    pub device: String,
    /// Device memory in use after the last run, by all programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// Threads of both models.
    pub threads: usize,
    /// KV cache type of both models.
    pub kv_type: &'static str,
    /// Warm-up runs of both models before every group.
    pub warm_up: usize,
    /// Pause before every run.
    pub cool_down_seconds: f64,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Number of bootstrap samples.
    pub bootstrap_samples: usize,
    /// Energy sensor, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sensor: Option<SensorRecord>,
}

/// Complete result of `htc bench`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Record {
    /// Kind of file: `benchmark`.
    pub kind: &'static str,
    /// Name and version of this program.
    pub program: String,
    /// Measurement conditions.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// The measured model.
    pub subject: ModelRecord,
    /// The model it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<ModelRecord>,
    /// All pairs, in the order of measurement.
    pub pairs: Vec<Pair>,
    /// Phase statistics.
    #[serde(flatten)]
    pub phases: Phases,
    /// Energy statistics, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyQuantities>,
    /// Sweep over context lengths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<ContextRecord>,
    /// Perplexity compared with the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// Judged gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<JudgedGate>,
    /// Notes for the reader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Record {
    /// Creates the record of a measurement.
    pub fn new(
        conditions: Conditions,
        subject: ModelRecord,
        baseline: Option<ModelRecord>,
        measured: BenchResults,
        quality: Option<Quality>,
        notes: Vec<String>,
    ) -> Record {
        let seed = conditions.seed;
        let context = measured.contexts.into_iter().map(|point| ContextRecord {
            length: point.length,
            phases: Phases::from_pairs(&point.pairs, seed),
            energy: EnergyQuantities::from_pairs(&point.pairs, seed),
            pairs: point.pairs,
        });
        let mut record = Record {
            kind: "benchmark",
            program: format!("htc {}", env!("CARGO_PKG_VERSION")),
            phases: Phases::from_pairs(&measured.pairs, seed),
            energy: EnergyQuantities::from_pairs(&measured.pairs, seed),
            conditions,
            subject,
            baseline,
            pairs: measured.pairs,
            context: context.collect(),
            quality,
            gates: Vec::new(),
            notes,
        };
        let found = record.contamination_notes();
        record.notes.extend(found);
        record
    }

    fn contamination_notes(&self) -> Vec<String> {
        let prompts = (String::new(), &self.phases, &Phase::ALL[..]);
        let swept = self.context.iter().map(|swept| {
            let place = format!(" at {} tokens of context", swept.length);
            (place, &swept.phases, &Phase::ALL[..2])
        });
        let mut notes = Vec::new();
        for (place, phases, of) in std::iter::once(prompts).chain(swept) {
            for &phase in of {
                let comparison = phases.get(phase).and_then(|of| of.comparison);
                let check = comparison.and_then(|of| of.variance);
                let Some(check) = check.filter(|check| check.contaminated) else {
                    continue;
                };
                let (noisy, steady, ratio) = if check.ratio > 1.0 {
                    ("subject", "baseline", check.ratio)
                } else {
                    ("baseline", "subject", 1.0 / check.ratio)
                };
                notes.push(format!(
                    "{}{place}: contaminated: the {noisy}'s relative variance is {ratio:.1} times the {steady}'s, \
                     more than {:.1}; measure again on a quiet machine",
                    phase.name(),
                    check.threshold
                ));
            }
        }
        notes
    }
}
