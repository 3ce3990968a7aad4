//! Flags of the options: headings of the help, parsers of values, and budgets.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{
    BoolValueParser, PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser,
};
use clap::{Arg, ArgGroup, ArgMatches, Args, Command, FromArgMatches};
use htc_formats::{DType, block};

use super::{Allocator, Budget, Method, Switch};

/// Section headings of the help, in order.
pub mod heading {
    /// Size and loss of the artifact.
    pub const SIZE: &str = "Size and quality";
    /// Texts for calibration and evaluation.
    pub const TEXT: &str = "Calibration";
    /// Steps of the compilation and kinds of artifacts.
    pub const METHOD: &str = "Compilation";
    /// Files and machine.
    pub const OUTPUT: &str = "Output";
    /// Checks and protection of existing files.
    pub const CHECKS: &str = "Checks";
    /// Methods that lose more than quantisation at equal bytes, kept for research.
    pub const RESEARCH: &str = "Research: low-rank factors";
}

impl Budget {
    /// Names of the flags, which are their ids.
    pub const IDS: [&'static str; 7] = [
        "target-size",
        "bpw",
        "ratio",
        "rank",
        "parameters",
        "bytes",
        "mean-rank",
    ];
}

/// One flag for each kind of budget; a command line has at most one of them.
impl Args for Budget {
    fn group_id() -> Option<clap::Id> {
        Some("budget".into())
    }

    fn augment_args(command: Command) -> Command {
        let flag = |name: &'static str, value: &'static str, parser: ValueParser| {
            Arg::new(name)
                .long(name)
                .value_name(value)
                .value_parser(parser)
                .allow_negative_numbers(true)
                .help_heading(heading::SIZE)
        };
        let of_factors = |name, value, parser: ValueParser| {
            flag(name, value, parser)
                .help_heading(heading::RESEARCH)
                .hide_short_help(true)
        };
        let flags = [
            flag("target-size", "SIZE", parse_size.into())
                .alias("file-size")
                .help("Size of the artifact: 3.2MB, 400MiB, or 60% of the source"),
            flag("bpw", "B", (|text: &str| parse_positive(text).map(Budget::Bits)).into())
                .aliases(["bits", "target-bpw"])
                .help("Size of the artifact in bits per weight of the model"),
            of_factors("ratio", "R", (|text: &str| parse_ratio(text).map(Budget::Ratio)).into())
                .help("Parameters after over before on the selected projections [default with factors: 0.9]")
                .long_help(
                    "Parameters after over before on the selected projections [default with factors: 0.9]\n\n\
                     Without it diffplan weighs energy against loss. With --method quantise it is the size of the artifact \
                     over that of the source.",
                ),
            of_factors("rank", "N|full", parse_rank.into())
                .help("Rank of every selected projection; full keeps every component, whatever the size"),
            of_factors("parameters", "N", (|text: &str| parse_parameters(text).map(Budget::Parameters)).into())
                .help("Maximum number of values stored for the selected projections"),
            of_factors("bytes", "N", (|text: &str| parse_bytes(text).map(Budget::Bytes)).into())
                .help("Maximum bytes stored for the selected projections, e.g. 3.5MB or 400MiB"),
            of_factors("mean-rank", "R", (|text: &str| parse_positive(text).map(Budget::MeanRank)).into())
                .help("Maximum mean rank of the selected projections"),
        ];
        command
            .args(flags)
            .group(ArgGroup::new("budget").args(Budget::IDS).multiple(false))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Budget::augment_args(command)
    }
}

impl FromArgMatches for Budget {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Budget, clap::Error> {
        let found = Budget::IDS.iter().find_map(|id| matches.get_one(id));
        found
            .copied()
            .ok_or_else(|| clap::Error::new(clap::error::ErrorKind::MissingRequiredArgument))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Budget::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses bytes, or a percentage of the source.
fn parse_size(text: &str) -> Result<Budget, String> {
    let refused = "expected bytes (12345, 3.2MB, 400MiB) or a part of the source (60%)";
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim_end().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                Ok(Budget::SourceFraction(percent / 100.0))
            }
            _ => Err(refused.into()),
        },
        None => parse_bytes(text)
            .map(Budget::FileSize)
            .map_err(|_| refused.to_owned()),
    }
}

fn parse_rank(text: &str) -> Result<Budget, String> {
    match text {
        "full" => Ok(Budget::FullRank),
        _ => {
            parse_if(text, |n| *n >= 1, "expected a rank of at least 1, or full").map(Budget::Rank)
        }
    }
}

/// Returns the parser of a method.
pub fn method() -> impl TypedValueParser<Value = Method> {
    let value = |method: Method| PossibleValue::new(method.name()).aliases(method.aliases());
    PossibleValuesParser::new(Method::ALL.map(value)).try_map(|name| name.parse::<Method>())
}

/// Returns the parser of a number of tokens or steps.
pub fn count(range: RangeInclusive<i64>) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u32)
        .range(range)
        .map(|count| count as usize)
}

/// Returns the parser of a flag without a value that turns a switch on.
pub fn set_switch() -> impl TypedValueParser<Value = Switch> {
    BoolValueParser::new().map(Switch::from)
}

/// Returns the help text of an allocator.
const fn allocator_help(allocator: Allocator) -> &'static str {
    match allocator {
        Allocator::Uniform => "the same share of every projection; needs nothing",
        Allocator::Phase => "more rank where layers mix or refine; needs calibration, else uniform",
        Allocator::Curvature => "rank in proportion to the layers' variance; needs calibration",
        Allocator::Waterfill => "rank where it adds most of the weights' energy; reads the weights",
        Allocator::Whitened => "rank where it adds most of the outputs' energy; needs calibration",
        Allocator::DiffPlan => {
            "gradient descent with a price on energy; needs --tokens-per-joule or --energy, reads the weights"
        }
        Allocator::CacheFit => "the largest ranks that stay in a GPU's cache; needs --gpu",
    }
}

/// Returns the parser of an allocator.
pub fn allocator() -> impl TypedValueParser<Value = Allocator> {
    let value = |a: Allocator| PossibleValue::new(a.name()).help(allocator_help(a));
    PossibleValuesParser::new(Allocator::ALL.map(value)).try_map(|name| name.parse::<Allocator>())
}

/// Parses a value that `accepts`; the error is what is `expected`.
pub fn parse_if<T: FromStr>(
    text: &str,
    accepts: impl Fn(&T) -> bool,
    expected: &str,
) -> Result<T, String> {
    let value = text.parse().ok().filter(accepts);
    value.ok_or_else(|| expected.to_owned())
}

pub fn parse_ratio(text: &str) -> Result<f64, String> {
    let accepts = |ratio: &f64| *ratio > 0.0 && *ratio <= 1.0;
    parse_if(text, accepts, "expected a number above 0 and at most 1")
}

pub fn is_positive(number: &f64) -> bool {
    *number > 0.0 && number.is_finite()
}

pub fn parse_positive(text: &str) -> Result<f64, String> {
    parse_if(text, is_positive, "expected a finite number above 0")
}

/// Parses a percentage to a fraction.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    Ok(parse_positive(text)? / 100.0)
}

pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs);
    seconds.map_err(|_| "expected a whole number of seconds".into())
}

pub fn parse_parameters(text: &str) -> Result<u64, String> {
    parse_if(text, |n| *n >= 1, "expected a whole number of at least 1")
}

pub fn parse_cap(text: &str) -> Result<usize, String> {
    parse_if(text, |n| *n >= 1, "expected a rank of at least 1")
}

/// Parses bytes: an integer, or a decimal with a unit of powers of 1000 or 1024.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 13] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("B", 1),
    ];
    let refused =
        || "expected a number of bytes of at least 1, e.g. 12345, 3.5MB or 400MiB".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let unit = unit.trim_start();
    let factor = match unit {
        "" => 1,
        unit => {
            let known = UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit));
            known.ok_or_else(refused)?.1
        }
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) if factor == 1 => None,
        Err(_) => {
            let bytes = number.parse::<f64>().map_err(|_| refused())? * factor as f64;
            (bytes < 2f64.powi(63)).then_some(bytes as u64)
        }
    };
    bytes.filter(|bytes| *bytes >= 1).ok_or_else(refused)
}

pub fn parse_factor_type(text: &str) -> Result<DType, String> {
    match text.parse() {
        Ok(dtype) if block::writable_types().contains(&dtype) => Ok(dtype),
        _ => {
            let names: Vec<&str> = block::writable_types()
                .iter()
                .map(|dtype| dtype.name())
                .collect();
            Err(format!("expected one of {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
