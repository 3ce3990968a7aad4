//! A model beside the one that a command is about.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How the source in an artifact is called; a file or folder of this name is `./source`.
const SOURCE: &str = "source";

/// A model to check or to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// What the artifact was made from, whose weights lie in it.
    Source,
    /// Another model.
    Model(PathBuf),
}

impl Beside {
    /// As it was typed.
    pub fn path(&self) -> &Path {
        match self {
            Beside::Source => Path::new(SOURCE),
            Beside::Model(path) => path,
        }
    }
}

impl From<OsString> for Beside {
    fn from(typed: OsString) -> Self {
        match typed == SOURCE {
            true => Beside::Source,
            false => Beside::Model(typed.into()),
        }
    }
}
