//! Options that are on or off.

use std::fmt;
use std::str::FromStr;

/// Defines an option that is `on` or `off`.
macro_rules! switch {
    ($(#[$attribute:meta])* $name:ident: $what:literal, $(#[$on:meta])* On, $(#[$off:meta])* Off) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$on])*
            On,
            $(#[$off])*
            Off,
        }

        impl $name {
            /// Both values.
            pub const ALL: [$name; 2] = [$name::On, $name::Off];

            /// Returns the name on the command line and in plans.
            pub const fn name(self) -> &'static str {
                match self {
                    $name::On => "on",
                    $name::Off => "off",
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let known = $name::ALL.into_iter().find(|arg| arg.name() == text);
                known.ok_or_else(|| concat!($what, " is on or off").to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

switch! {
    /// Channel permutation that reduces the loss of codes; the model computes the same function.
    OrderArg: "the order",
    /// Permutation found by calibration.
    On,
    /// Channels as in the source.
    Off
}

switch! {
    /// Use of low-rank factors by [`Method::Quantise`](super::Method::Quantise) for projections
    /// where they lose less than codes of the same size.
    #[derive(Default)]
    LowRankArg: "low rank",
    /// Permitted.
    #[default]
    On,
    /// Codes only.
    Off
}

switch! {
    /// Bases in the artifact for an adaptive KV cache; the model computes the same function.
    #[derive(Default)]
    KvBasesArg: "bases for a KV cache",
    /// Bases from calibration.
    On,
    /// No bases.
    #[default]
    Off
}

switch! {
    /// Comparison of a coded artifact with measured files of a single GGUF type, for the report.
    CompareArg: "the comparison",
    /// Files of about the same size are measured.
    On,
    /// Their losses are only estimated.
    Off
}

switch! {
    /// Rotation of columns by [`Method::Quantise`](super::Method::Quantise) within each group
    /// before encoding, with the inverse applied to the activations, to remove outliers.
    #[derive(Default)]
    RotationArg: "the rotation",
    /// Rotated.
    #[default]
    On,
    /// Columns as in the source.
    Off
}
