//! Types of dense matrices, and the options of quantisation.

use std::fmt;
use std::str::FromStr;

use htc_formats::bands::{Code, CodeKind};
use htc_formats::{DType, block};
use serde::{Deserialize, Serialize};

use super::{Switch, is_default};

/// Encoding of a dense matrix: `q4_k`, `levels4`, `trellis3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseType {
    /// A writable block type.
    Blocks(DType),
    /// A code for column groups of 32.
    ColumnGroups(Code),
}

impl DenseType {
    /// Returns all names, for error messages.
    pub fn names() -> String {
        let blocks = block::writable_types()
            .iter()
            .map(|dtype| dtype.name().to_owned());
        let codes = Code::all().map(|code| code.to_string());
        let names: Vec<String> = blocks.chain(codes).collect();
        names.join(", ")
    }
}

impl From<DType> for DenseType {
    fn from(dtype: DType) -> DenseType {
        DenseType::Blocks(dtype)
    }
}

impl fmt::Display for DenseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenseType::Blocks(dtype) => dtype.fmt(f),
            DenseType::ColumnGroups(code) => code.fmt(f),
        }
    }
}

impl FromStr for DenseType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut written = block::writable_types().iter();
        if let Some(&dtype) = written.find(|dtype| dtype.name() == text) {
            return Ok(DenseType::Blocks(dtype));
        }
        let code = text.parse().map(DenseType::ColumnGroups);
        code.map_err(|_| format!("expected one of {}", DenseType::names()))
    }
}

serde_as_text!(DenseType);

/// Requested encoding of projections that stay dense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseChoice {
    /// As in the source.
    Source,
    /// Encoded in a type.
    Type(DenseType),
}

impl fmt::Display for DenseChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DenseChoice::Source => f.write_str("source"),
            DenseChoice::Type(dtype) => dtype.fmt(f),
        }
    }
}

impl FromStr for DenseChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "source" => Ok(DenseChoice::Source),
            text => text.parse().map(DenseChoice::Type),
        }
    }
}

serde_as_text!(DenseChoice);

/// Kinds of codes that a matrix may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodeKinds {
    /// GGUF types, readable by other programs.
    Gguf,
    /// Non-uniform scalar codebooks.
    Levels,
    /// Trellises, and codebooks at bit rates without a trellis.
    Trellis,
    /// All kinds, chosen by loss per byte.
    #[default]
    All,
}

impl CodeKinds {
    /// Returns true if GGUF types are included.
    pub const fn includes_gguf(self) -> bool {
        matches!(self, CodeKinds::Gguf | CodeKinds::All)
    }

    /// Returns the included codes of column groups.
    pub fn column_group_codes(self) -> Vec<Code> {
        let most_of_trellis = *CodeKind::Trellis.bits().end();
        let among = |code: &Code| match self {
            CodeKinds::Gguf => false,
            CodeKinds::Levels => code.kind() == CodeKind::Codebook,
            CodeKinds::Trellis => code.kind() == CodeKind::Trellis || code.bits() > most_of_trellis,
            CodeKinds::All => true,
        };
        Code::all().filter(among).collect()
    }
}

named!(
    CodeKinds, "gguf, levels, trellis or all",
    Gguf: "gguf", Levels: "levels", Trellis: "trellis", All: "all",
);

/// Options of [`Method::Quantise`](super::Method::Quantise).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, schemars::JsonSchema, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = super::heading::SIZE))]
pub struct CodeOptions {
    /// Encodings to choose from: gguf, levels, trellis or all [default: all]
    ///
    /// gguf: those that llama.cpp reads, too; levels: the fastest; trellis: the most accurate.
    #[serde(skip_serializing_if = "is_default")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "KINDS"))]
    pub codes: Option<CodeKinds>,
    /// Whether projections may be stored as low-rank factors where these lose less than an encoding
    /// of the same size; never with --codes levels and trellis [default: on]
    #[serde(skip_serializing_if = "is_on_by_default")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "on|off")
    )]
    pub low_rank: Option<Switch>,
    /// Whether every 32 columns of a matrix in levels or trellises are rotated, to remove outliers;
    /// the inverse rotation is applied to the activations [default: on]
    #[serde(skip_serializing_if = "is_on_by_default")]
    #[cfg_attr(
        feature = "cli",
        arg(long, hide_short_help = true, value_name = "on|off")
    )]
    pub rotation: Option<Switch>,
}

impl CodeOptions {
    /// Returns the kinds of code to choose from.
    pub fn kinds(&self) -> CodeKinds {
        self.codes.unwrap_or_default()
    }

    /// Returns true if factors are evaluated as alternatives to codes.
    pub fn evaluates_factors(&self) -> bool {
        is_on_by_default(&self.low_rank)
    }

    /// Returns true if columns are rotated before they are encoded in column groups.
    pub fn rotates(&self) -> bool {
        is_on_by_default(&self.rotation)
    }

    /// Returns the options without values that are defaults.
    pub(super) fn without_defaults(self) -> CodeOptions {
        CodeOptions {
            codes: self.codes.filter(|codes| *codes != CodeKinds::default()),
            low_rank: self.low_rank.filter(|switch| !switch.is_on()),
            rotation: self.rotation.filter(|switch| !switch.is_on()),
        }
    }

    /// Returns the given options with their values.
    pub(super) fn specified(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let given = [
            ("codes", self.codes.map(CodeKinds::name)),
            ("low_rank", self.low_rank.map(Switch::name)),
            ("rotation", self.rotation.map(Switch::name)),
        ];
        given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
    }
}

fn is_on_by_default(switch: &Option<Switch>) -> bool {
    switch.is_none_or(Switch::is_on)
}
