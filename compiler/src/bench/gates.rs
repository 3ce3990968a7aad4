//! Gates: thresholds for benchmark metrics, as a JSON list.
//!
//! ```json
//! [
//!   {"metric": "decode_ratio", "at_least": 0.95, "rank": 1024},
//!   {"metric": "prefill_time_ratio", "at_most": 2.25}
//! ]
//! ```
//!
//! A metric is a phase (`prefill`, `decode`, `end_to_end`) and `speed` (mean tokens/s), `ratio`
//! (mean ratio to the baseline), `ratio_lower95` (lower end of its 95 % interval) or `time_ratio`
//! (mean ratio of times); or `perplexity_increase` (0.15 is 15 %).

use std::fmt;
use std::path::Path;

use htc_formats::escape::escape;
use htc_formats::htz::PlanRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::BenchError;
use super::record::{Phase, Record};
use crate::system::error::FileError;
use crate::system::text;

const MAX_FILE: u64 = 1 << 20;

const MAX_GATES: usize = 1000;

const EXPECTED: &str = "a list of gates such as {\"metric\": \"decode_ratio\", \"at_least\": 0.95}";

const REMEDY: &str = "give a file of gates, or `paper`, the built-in set";

const BUILT_IN: [(&str, &str); 1] = [("paper", include_str!("gates/paper.json"))];

/// Statistic of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseStatistic {
    /// Mean tokens/s of the subject.
    Speed,
    /// Mean ratio to the baseline.
    Ratio,
    /// Lower end of the 95 % interval of the ratio.
    RatioLower95,
    /// Mean ratio of times.
    TimeRatio,
}

htc_formats::names!(PhaseStatistic {
    Speed "speed",
    Ratio "ratio",
    RatioLower95 "ratio_lower95",
    TimeRatio "time_ratio",
});

/// Metric that a gate checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Metric {
    /// Statistic of a phase.
    Phase(Phase, PhaseStatistic),
    /// Perplexity ratio to the baseline, minus one.
    PerplexityIncrease,
}

impl Metric {
    fn all() -> impl Iterator<Item = Metric> {
        let of_phase = |phase| PhaseStatistic::ALL.map(|of| Metric::Phase(phase, of));
        let phases = Phase::ALL.into_iter().flat_map(of_phase);
        phases.chain([Metric::PerplexityIncrease])
    }

    fn value_in(self, record: &Record) -> Option<f64> {
        match self {
            Metric::PerplexityIncrease => {
                let quality = record.quality.as_ref()?;
                Some(quality.evaluation.reference.as_ref()?.perplexity_ratio_all - 1.0)
            }
            Metric::Phase(phase, of) => {
                let found = record.phases.get(phase)?;
                let comparison = found.comparison.as_ref();
                match of {
                    PhaseStatistic::Speed => Some(found.subject.mean),
                    PhaseStatistic::Ratio => comparison.map(|c| c.ratio),
                    PhaseStatistic::RatioLower95 => comparison?.interval.map(|(low, _)| low),
                    PhaseStatistic::TimeRatio => comparison.map(|c| c.time_ratio),
                }
            }
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Phase(phase, of) => write!(f, "{}_{of}", phase.name().replace(' ', "_")),
            Metric::PerplexityIncrease => f.write_str("perplexity_increase"),
        }
    }
}

impl TryFrom<String> for Metric {
    type Error = String;

    fn try_from(name: String) -> Result<Metric, String> {
        let found = Metric::all().find(|metric| metric.to_string() == name);
        found.ok_or_else(|| {
            let all: Vec<String> = Metric::all().map(|metric| metric.to_string()).collect();
            let name: String = name.chars().take(40).collect();
            format!("no metric is called {name:?}; there are {}", all.join(", "))
        })
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Bound on the value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Lower bound, inclusive.
    AtLeast(f64),
    /// Upper bound, inclusive.
    AtMost(f64),
}

impl Bound {
    fn holds(self, found: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => found >= bound,
            Bound::AtMost(bound) => found <= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(bound) => write!(f, "at least {bound}"),
            Bound::AtMost(bound) => write!(f, "at most {bound}"),
        }
    }
}

/// Threshold for one metric.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(try_from = "RawGate")]
pub struct Gate {
    /// Metric that is checked.
    #[schemars(with = "String")]
    pub metric: Metric,
    /// Required bound.
    #[serde(flatten)]
    pub bound: Bound,
    /// Rank of the artifacts that the gate applies to; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RawGate {
    #[schemars(with = "String")]
    metric: Metric,
    at_least: Option<f64>,
    at_most: Option<f64>,
    rank: Option<usize>,
}

impl TryFrom<RawGate> for Gate {
    type Error = &'static str;

    fn try_from(line: RawGate) -> Result<Gate, &'static str> {
        let bound = match (line.at_least, line.at_most) {
            (Some(bound), None) => Bound::AtLeast(bound),
            (None, Some(bound)) => Bound::AtMost(bound),
            _ => return Err("a gate has either `at_least` or `at_most`"),
        };
        if line.rank == Some(0) {
            return Err("a rank is at least 1");
        }
        Ok(Gate {
            metric: line.metric,
            bound,
            rank: line.rank,
        })
    }
}

/// Outcome of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The metric is within the bound.
    Passed,
    /// The metric is outside the bound or has no value.
    Failed,
    /// The gate is for another rank.
    OtherRank,
}

/// Gate with its measured value and outcome.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct JudgedGate {
    /// Gate.
    #[serde(flatten)]
    pub gate: Gate,
    /// Value of the metric, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<f64>,
    /// Outcome.
    pub outcome: Outcome,
}

impl fmt::Display for JudgedGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gate.metric)?;
        if let Some(rank) = self.gate.rank {
            write!(f, " (rank {rank})")?;
        }
        match self.found {
            Some(found) => write!(f, " {found:.4}, ")?,
            None => f.write_str(" without a value, ")?,
        }
        write!(f, "expected {}", self.gate.bound)
    }
}

/// Reads a built-in set by name, or a file of gates.
pub fn read(name: &Path) -> Result<Vec<Gate>, BenchError> {
    let built_in = BUILT_IN.iter().find(|(known, _)| Path::new(known) == name);
    let text = match built_in {
        Some((_, text)) => text.as_bytes().to_vec(),
        None => text::read_bytes(name, MAX_FILE, limit, REMEDY)?,
    };
    parse(name, &text)
}

fn limit() -> String {
    format!("a file of gates has at most {MAX_FILE} bytes and {MAX_GATES} gates; give fewer")
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Gate>, BenchError> {
    let gates: Vec<Gate> = serde_json::from_slice(bytes).map_err(|error| {
        let show = |message: &str| escape(message).into_owned();
        FileError::syntax(path, EXPECTED, &error, show, "correct the file")
    })?;
    match gates.len() {
        0 => Err(BenchError::NoGates(path.into())),
        n if n > MAX_GATES => Err(FileError::too_large(path, limit()).into()),
        _ => Ok(gates),
    }
}

/// Returns the common rank of all factors and bases, if any.
pub fn rank_of(plan: &PlanRecord) -> Option<usize> {
    let projections = plan.projections.iter().filter_map(|record| record.rank);
    let mut ranks = plan.bases.iter().map(|basis| basis.rank).chain(projections);
    let first = ranks.next()?;
    ranks.all(|rank| rank == first).then_some(first)
}

/// Checks that all gates for this model can be judged.
pub fn check(
    gates: &[Gate],
    rank: Option<usize>,
    baseline: bool,
    text: bool,
    pairs: usize,
) -> Result<(), BenchError> {
    let mut own = gates.iter().filter(|gate| gate.is_for(rank)).peekable();
    if own.peek().is_none() && !gates.is_empty() {
        let ranks = gates.iter().filter_map(|gate| Some(gate.rank?.to_string()));
        let ranks: Vec<String> = ranks.collect();
        let found = rank.map(|rank| format!("rank {rank}"));
        return Err(BenchError::OtherRanks {
            found: found.unwrap_or("a model that has no rank in common".into()),
            ranks: format!("they are for rank {}", ranks.join(", ")),
        });
    }
    for gate in own {
        let unmeasured = |missing, remedy| BenchError::NotMeasured {
            metric: gate.metric,
            missing,
            remedy,
        };
        match gate.metric {
            Metric::Phase(_, PhaseStatistic::Speed) => {}
            _ if !baseline => {
                return Err(unmeasured("needs a baseline", "give one with `against`"));
            }
            Metric::PerplexityIncrease if !text => {
                return Err(unmeasured("needs a text", "give one with `text`"));
            }
            Metric::Phase(_, PhaseStatistic::RatioLower95) if pairs < 2 => {
                return Err(unmeasured("needs two pairs at least", "give more `pairs`"));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Gate {
    fn is_for(&self, rank: Option<usize>) -> bool {
        self.rank.is_none() || self.rank == rank
    }

    /// Judges the gate on `record`, for a model whose factors have the common `rank`.
    pub fn judge(&self, record: &Record, rank: Option<usize>) -> JudgedGate {
        let found = self.metric.value_in(record);
        let outcome = match (self.is_for(rank), found) {
            (false, _) => Outcome::OtherRank,
            (true, Some(found)) if self.bound.holds(found) => Outcome::Passed,
            (true, _) => Outcome::Failed,
        };
        let gate = *self;
        JudgedGate {
            gate,
            found,
            outcome,
        }
    }
}
