//! Calibration options.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

#[cfg(feature = "cli")]
use super::flags::{self, heading};
use crate::system::disk;
use crate::system::show::file_name;

/// Version of the shipped text, incremented with every change: of a part, of their order, or of the
/// interleaving.
pub const SHIPPED_VERSION: u32 = 1;

/// Source of a calibration text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextSource {
    /// A file.
    File(PathBuf),
    /// The text that ships with the program, [`shipped_text`](crate::calibrate::shipped_text).
    Shipped,
}

impl<P: Into<PathBuf>> From<P> for TextSource {
    fn from(path: P) -> Self {
        TextSource::File(path.into())
    }
}

impl TextSource {
    /// Returns the path if the source is a file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            TextSource::File(path) => Some(path),
            TextSource::Shipped => None,
        }
    }

    /// Returns the display name: the file name, or the version of the shipped text.
    pub fn name(&self) -> String {
        match self {
            TextSource::File(path) => file_name(path),
            TextSource::Shipped => format!("shipped v{SHIPPED_VERSION}"),
        }
    }

    /// Returns true if both are the same text.
    pub(crate) fn is_same(&self, other: &TextSource) -> bool {
        match (self, other) {
            (TextSource::File(one), TextSource::File(other)) => disk::is_same_file(one, other),
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for TextSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextSource::File(path) => path.display().fmt(f),
            TextSource::Shipped => f.write_str(SHIPPED),
        }
    }
}

/// Calibration text.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationText {
    /// Source of the text.
    pub source: TextSource,
    /// Weight of each token relative to other texts: finite and above 0.
    pub weight: f64,
}

impl FromStr for CalibrationText {
    type Err = String;

    /// Parses a text with an optional weight, a number after the last `:` or `=`. Existing files
    /// with such a name take precedence; a file named `shipped` is `./shipped`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let of = |name: &str, weight| CalibrationText {
            source: match name {
                SHIPPED => TextSource::Shipped,
                path => path.into(),
            },
            weight,
        };
        let split = text.rsplit_once([':', '=']);
        let weighted = split.and_then(|(name, weight)| Some((name, weight.parse::<f64>().ok()?)));
        match weighted {
            Some((name, weight)) if name == SHIPPED || !Path::new(text).exists() => {
                if weight > 0.0 && weight.is_finite() && !name.is_empty() {
                    Ok(of(name, weight))
                } else {
                    Err("expected a finite weight above 0 after the name of a text".into())
                }
            }
            _ => Ok(of(text, 1.0)),
        }
    }
}

/// Calibration texts, and options of their statistics.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = heading::TEXT))]
pub struct CalibrationOptions {
    /// Text like that which the model will read, or shipped
    ///
    /// UTF-8; shipped is the program's own mix of kinds and languages, the default of compile and
    /// plan. May be given several times; with :WEIGHT each token of the text counts WEIGHT times. Research
    /// methods, plan files and analyses use only texts that are given.
    #[cfg_attr(
        feature = "cli",
        arg(id = "calibration", long = "calibration", value_name = "TEXT[:WEIGHT]")
    )]
    pub texts: Vec<CalibrationText>,
    /// Maximum tokens of each text [default: 65536; with --effort fast 16384, with high 262144]
    #[cfg_attr(
        feature = "cli",
        arg(
            id = "calibration_tokens",
            long = "calibration-tokens",
            value_name = "N",
            hide_short_help = true,
            allow_negative_numbers = true,
            value_parser = flags::count(4..=i64::from(u32::MAX))
        )
    )]
    pub tokens: Option<usize>,
    /// Tokens in a calibration window [default: 512, or the model's context if shorter]
    #[cfg_attr(
        feature = "cli",
        arg(
            long = "calibration-context",
            alias = "context",
            value_name = "N",
            hide_short_help = true,
            allow_negative_numbers = true,
            value_parser = flags::count(4..=1 << 20)
        )
    )]
    pub context: Option<usize>,
    /// Held-out text (UTF-8), 64 windows at most: odd windows (first, third, ...) are the validation
    /// split, even ones the test split [default: the end of each TEXT, which is not calibrated on
    /// then, split alike]
    #[cfg_attr(
        feature = "cli",
        arg(long, value_name = "FILE", hide_short_help = true)
    )]
    pub held_out: Option<PathBuf>,
    /// Folder of the cached statistics [default: htc in the user's cache folder]
    #[cfg_attr(feature = "cli", arg(long, value_name = "DIR", hide_short_help = true))]
    pub cache: Option<PathBuf>,
    /// Accept cached statistics that another user wrote, whose contents cannot be trusted
    #[cfg_attr(feature = "cli", arg(long, hide = true, env = "HTC_TRUST_CACHE", value_parser = clap::builder::FalseyValueParser::new()))]
    pub trust_cache: bool,
    /// Maximum time to wait for another htc that computes the same statistics
    #[cfg_attr(
        feature = "cli",
        arg(
            long,
            value_name = "SECONDS",
            hide = true,
            env = "HTC_LOCK_TIMEOUT",
            allow_negative_numbers = true,
            default_value = "3600",
            value_parser = flags::parse_seconds
        )
    )]
    pub lock_timeout: Duration,
}

/// Name of the shipped text on the command line.
const SHIPPED: &str = "shipped";

/// Default maximum of tokens per text.
pub const DEFAULT_TOKENS: usize = 65_536;

/// Default window size in tokens.
pub const DEFAULT_CONTEXT: usize = 512;

/// Default lock timeout: one hour.
pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

/// No text.
impl Default for CalibrationOptions {
    fn default() -> Self {
        CalibrationOptions {
            texts: Vec::new(),
            tokens: None,
            context: None,
            held_out: None,
            cache: None,
            trust_cache: false,
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
        }
    }
}

impl CalibrationOptions {
    /// Returns options for a text with defaults.
    pub fn new(text: impl Into<TextSource>) -> Self {
        CalibrationOptions {
            texts: vec![CalibrationText {
                source: text.into(),
                weight: 1.0,
            }],
            ..CalibrationOptions::default()
        }
    }

    /// Returns the maximum tokens of each text.
    pub fn max_tokens(&self) -> usize {
        self.tokens.unwrap_or(DEFAULT_TOKENS)
    }

    /// Returns the first option that is set besides the texts and what the environment may set.
    pub fn first_given(&self) -> Option<&'static str> {
        super::first_given([
            ("`calibration_tokens`", self.tokens.is_some()),
            ("`context`", self.context.is_some()),
            ("`held_out`", self.held_out.is_some()),
            ("`cache`", self.cache.is_some()),
        ])
    }

    /// Returns the window size in tokens for a model with a context of `most` tokens.
    pub fn window_size(&self, most: usize) -> usize {
        self.context.unwrap_or(DEFAULT_CONTEXT.min(most))
    }

    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let texts = self.texts.iter().filter_map(|text| text.source.file());
        texts.chain(self.held_out.as_deref())
    }

    /// Returns true if a path leads to one of the texts.
    pub fn is_text_file(&self, path: &Path) -> bool {
        self.files().any(|text| disk::is_same_file(text, path))
    }
}

#[cfg(test)]
mod tests;
