//! Temporary folder of a test.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary folder that is removed on drop.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Scratch {
    /// Creates an empty folder.
    pub fn new() -> Self {
        Scratch(tempfile::tempdir().unwrap())
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in the folder.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        path
    }

    /// Returns the sorted names of all entries, including hidden files.
    pub fn names(&self) -> Vec<String> {
        names_in(self.folder())
    }

    /// Asserts that the folder has exactly these files.
    #[track_caller]
    pub fn assert_only_files(&self, names: &[&str]) {
        let mut expected = names.to_vec();
        expected.sort_unstable();
        assert_eq!(self.names(), expected);
    }
}

/// Returns the sorted names of all entries of a folder.
pub fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
