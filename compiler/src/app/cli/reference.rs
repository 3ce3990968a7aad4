//! Reference model of a command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the source in an artifact; a file of this name is `./source`.
const SOURCE: &str = "source";

/// Reference model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReferenceModel {
    /// Source weights included in the artifact.
    Source,
    /// Another model.
    Model(PathBuf),
}

impl ReferenceModel {
    /// Returns the path or name as typed.
    pub fn path(&self) -> &Path {
        match self {
            ReferenceModel::Source => Path::new(SOURCE),
            ReferenceModel::Model(path) => path,
        }
    }
}

impl From<OsString> for ReferenceModel {
    fn from(typed: OsString) -> Self {
        if typed == SOURCE {
            ReferenceModel::Source
        } else {
            ReferenceModel::Model(typed.into())
        }
    }
}
