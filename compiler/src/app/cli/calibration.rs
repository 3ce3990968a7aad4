//! Options of calibration and its cache.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{SharingArgs, heading};
use crate::request::{CalibrationOptions, CalibrationText, Effort, PlanOptions, TextSource};

/// What is calibrated on, and what follows from it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::TEXT)]
pub struct CalibrationArgs {
    /// Text to calibrate on (UTF-8): what the model is to be good at; `shipped` is the program's own mix of
    /// kinds and languages. May be given several times; with :WEIGHT behind it each token of the text counts so
    /// many times [default for quantise: shipped]
    #[arg(long, value_name = "TEXT[:WEIGHT]", value_parser = parse_text)]
    pub calibration: Vec<CalibrationText>,
    /// Tokens of each text at most [default: 65536; with --effort fast 16384, with high 262144]
    #[arg(long, value_name = "N", hide_short_help = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(4..))]
    pub calibration_tokens: Option<u32>,
    /// Tokens in a window of the calibration [default: 512, or what the model reads at most]
    #[arg(long, value_name = "N", hide_short_help = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub context: Option<u32>,
    /// Text to measure on (UTF-8), 64 windows at most; of its windows the first, third and so on decide, those
    /// between them report [default: the end of each TEXT, which is not calibrated on then, split alike]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub held_out: Option<PathBuf>,
}

impl CalibrationArgs {
    /// Returns the calibration options, if any text was given.
    pub fn options(&self, cache: &CacheArgs) -> Option<CalibrationOptions> {
        Some(self.options_with_effort(cache, Effort::default()))
            .filter(|options| !options.texts.is_empty())
    }

    fn options_with_effort(&self, cache: &CacheArgs, effort: Effort) -> CalibrationOptions {
        let number = |given: u32| given as usize;
        CalibrationOptions {
            texts: self.calibration.clone(),
            tokens: self
                .calibration_tokens
                .map_or(effort.settings().calibration_tokens, number),
            context: self.context.map(number),
            cache: cache.cache.clone(),
            trust_cache: cache.sharing.trust_cache,
            lock_timeout: cache.sharing.lock_timeout(),
            held_out: self.held_out.clone(),
        }
    }

    /// Returns the calibration options for a request: the shipped text if the method needs one and
    /// none was given.
    pub fn options_for(
        &self,
        wishes: &PlanOptions,
        cache: &CacheArgs,
    ) -> Option<CalibrationOptions> {
        wishes.calibration(self.options_with_effort(cache, wishes.effort))
    }

    /// Returns the first given option that requires a calibration.
    pub fn first_given(&self, cache: &CacheArgs) -> Option<&'static str> {
        let SharingArgs {
            trust_cache,
            lock_timeout,
        } = cache.sharing;
        let given = [
            ("--calibration-tokens", self.calibration_tokens.is_some()),
            ("--context", self.context.is_some()),
            ("--held-out", self.held_out.is_some()),
            ("--cache", cache.cache.is_some()),
            ("--trust-cache", trust_cache),
            ("--lock-timeout", lock_timeout.is_some()),
        ];
        let found = given.into_iter().find(|(_, given)| *given);
        found.map(|(option, _)| option)
    }
}

/// What is kept of a calibration, and where.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = heading::OUTPUT)]
pub struct CacheArgs {
    /// Folder where statistics are kept and found again [default: htc in the user's cache folder]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub cache: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment would become help text")]
    pub sharing: SharingArgs,
}

/// Name of the shipped text; a file of that name is `./shipped`.
const SHIPPED: &str = "shipped";

/// Parses a text with an optional weight, a number after the last `:` or `=`; existing files with
/// such a name take precedence.
fn parse_text(text: &str) -> Result<CalibrationText, String> {
    let plain = |name: &str, weight| {
        let source = match name {
            SHIPPED => TextSource::Shipped,
            path => path.into(),
        };
        Ok(CalibrationText { source, weight })
    };
    let split = text.rsplit_once([':', '=']);
    let weighted = split.and_then(|(name, weight)| Some((name, weight.parse::<f64>().ok()?)));
    match weighted {
        Some((name, weight)) if name == SHIPPED || !Path::new(text).exists() => {
            if weight > 0.0 && weight.is_finite() && !name.is_empty() {
                plain(name, weight)
            } else {
                Err("a weight is a finite number above 0, behind the name of a text".into())
            }
        }
        _ => plain(text, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_have_a_weight() {
        let text = |path: &str, weight| {
            let source = path.into();
            Ok(CalibrationText { source, weight })
        };
        assert_eq!(parse_text("a.txt"), text("a.txt", 1.0));
        assert_eq!(parse_text("a.txt=0.3"), text("a.txt", 0.3));
        assert_eq!(parse_text("a.txt:0.3"), text("a.txt", 0.3));
        assert_eq!(parse_text("a=b=2"), text("a=b", 2.0));
        assert_eq!(parse_text("a:b:2"), text("a:b", 2.0));
        assert_eq!(parse_text("C:\\a.txt"), text("C:\\a.txt", 1.0));
        assert_eq!(parse_text("a=b"), text("a=b", 1.0));
        let shipped = |weight| {
            let source = TextSource::Shipped;
            Ok(CalibrationText { source, weight })
        };
        assert_eq!(parse_text("shipped"), shipped(1.0));
        assert_eq!(parse_text("shipped=0.5"), shipped(0.5));
        assert_eq!(parse_text("shipped:2"), shipped(2.0));
        assert_eq!(parse_text("./shipped"), text("./shipped", 1.0));
        assert_eq!(parse_text("./shipped=0.5"), text("./shipped", 0.5));
        for wrong in [
            "shipped=0",
            "a.txt=0",
            "a.txt:0",
            "a.txt=-1",
            "a.txt=inf",
            "a.txt=nan",
            "=2",
        ] {
            assert!(parse_text(wrong).is_err(), "{wrong}");
        }
    }
}
