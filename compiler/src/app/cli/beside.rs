//! Reference model of a command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the source in an artifact; a file of this name is `./source`.
const SOURCE: &str = "source";

/// Reference model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Source weights included in the artifact.
    Source,
    /// Another model.
    Model(PathBuf),
}

impl Beside {
    /// Returns the path or name as typed.
    pub fn path(&self) -> &Path {
        match self {
            Beside::Source => Path::new(SOURCE),
            Beside::Model(path) => path,
        }
    }
}

impl From<OsString> for Beside {
    fn from(typed: OsString) -> Self {
        if typed == SOURCE {
            Beside::Source
        } else {
            Beside::Model(typed.into())
        }
    }
}
