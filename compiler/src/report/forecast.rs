//! Forecast of a compilation (dry run), as JSON and text.

use std::fmt;

use htc_formats::escape::escape;

use schemars::JsonSchema;
use serde::Serialize;

use super::{BeforeAfter, Summary};
use crate::estimate::StageSeconds;
use crate::options::QualityLimit;
use crate::system::show::{format_bytes, format_count};

/// Forecast of a compilation.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    /// Source file name.
    pub source: String,
    /// File name of the artifact.
    pub artifact: String,
    /// Bytes of the source and of the artifact.
    pub bytes: BeforeAfter,
    /// Maximum additional bytes for the source's weights, if included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_source: Option<u64>,
    /// Limit on the quality, if it decides on the size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<QualityLimit>,
    /// Free bytes at the artifact's location, if known.
    pub free_bytes: Option<u64>,
    /// Upper estimate of the memory without the mapped source.
    pub peak_memory: u64,
    /// Estimated seconds.
    pub seconds: f64,
    /// Estimated seconds by stage, without the cache.
    pub stages: StageSeconds,
    /// Number of threads assumed.
    pub threads: usize,
    /// Request and plan.
    #[serde(flatten)]
    pub summary: Summary,
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} -> {}: a dry run, no artifact is written",
            escape(&self.source),
            escape(&self.artifact)
        )?;
        let exactly = match &self.limit {
            Some(limit) => format!("about; measuring decides, by {limit}"),
            None => format!("{} exactly", self.bytes.after),
        };
        let bytes = self.bytes.show_bytes(Some(&exactly));
        writeln!(f, "  bytes       {bytes}")?;
        if let Some(source) = self.with_source {
            writeln!(
                f,
                "  source      at most {} of its weights are stored beside that",
                format_bytes(source)
            )?;
        }
        self.summary.fmt(f)?;
        let free = match self.free_bytes {
            Some(free) => format!("{} are free there", format_bytes(free)),
            None => "how much is free there is unknown".to_owned(),
        };
        let source = self.with_source.unwrap_or(0);
        let needed = format_bytes(self.bytes.after.saturating_add(source));
        writeln!(f, "\n  disk        {needed}, {free}")?;
        let StageSeconds {
            calibrate,
            plan,
            factorise,
            measure,
            tune,
        } = self.stages;
        let stages = [
            ("calibration", calibrate),
            ("losses by type", plan),
            ("making the artifact", factorise),
            ("measuring", measure),
            ("tuning", tune),
        ];
        let stages: Vec<String> = stages
            .into_iter()
            .filter(|(_, seconds)| *seconds > 0.0)
            .map(|(name, seconds)| format!("{name} {}", format_seconds(seconds)))
            .collect();
        writeln!(
            f,
            "  time        about {}: {}",
            format_seconds(self.seconds),
            stages.join(", ")
        )?;
        write!(
            f,
            "  memory      at most about {} on {}, beside the mapped source",
            format_bytes(self.peak_memory),
            format_count(self.threads, "thread"),
        )
    }
}

/// Formats `3 s`, `4 min`, `2.5 h`.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests;
