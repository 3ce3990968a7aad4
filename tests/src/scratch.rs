//! A folder of a test's own.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary folder that is removed at the end.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Scratch {
    /// An empty folder.
    pub fn new() -> Self {
        Scratch(tempfile::tempdir().unwrap())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in the folder.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        path
    }

    /// Everything in the folder, hidden files as well, by name.
    pub fn names(&self) -> Vec<String> {
        names_in(self.folder())
    }

    /// Asserts that the folder holds these files and no others.
    ///
    /// # Panics
    /// When it holds others.
    #[track_caller]
    pub fn holds_only(&self, names: &[&str]) {
        let mut expected = names.to_vec();
        expected.sort_unstable();
        assert_eq!(self.names(), expected);
    }
}

/// Everything in a folder by name.
pub fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
