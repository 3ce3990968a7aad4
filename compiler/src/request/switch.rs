//! What is on or off.

use std::fmt;
use std::str::FromStr;

/// An option that is `on` or `off`, each with what it means.
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
            /// Both.
            pub const ALL: [$name; 2] = [$name::On, $name::Off];

            /// The name used on the command line and in plans.
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

        /// As it is typed.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

switch! {
    /// Whether a model is stored in another order than the source's, in which codes lose less; it computes the same.
    OrderArg: "the order",
    /// In the one that calibration finds.
    On,
    /// In the source's.
    Off
}

switch! {
    /// Whether [`Method::Quantise`](super::Method::Quantise) may store slots as factors of low rank where these lose less
    /// than codes in as many bytes.
    #[derive(Default)]
    LowRankArg: "low rank",
    /// It may.
    #[default]
    On,
    /// In codes alone.
    Off
}

switch! {
    /// Whether an artifact has bases that an adaptive KV cache may begin with; the model computes the same.
    #[derive(Default)]
    KvBasesArg: "bases for a KV cache",
    /// Those that calibration finds.
    On,
    /// None.
    #[default]
    Off
}

switch! {
    /// Whether files in one type of GGUF are made and measured beside an artifact in codes, for its report.
    CompareArg: "the comparison",
    /// Some of about its size are.
    On,
    /// What they lose is foreseen alone.
    Off
}

switch! {
    /// Whether [`Method::Quantise`](super::Method::Quantise) rotates the columns of matrices band by band before it stores
    /// them in bands, and with them what they are multiplied with, so that no number stands out.
    #[derive(Default)]
    RotationArg: "the rotation",
    /// It does.
    #[default]
    On,
    /// In the source's columns.
    Off
}
