//! Models and texts that the suites do not make themselves.

use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// A file of the repository's demo: `assets/demo/NAME`.
///
/// # Panics
/// When it is not there: it belongs to the repository.
pub fn demo(name: &str) -> PathBuf {
    let path = workspace().join("assets/demo").join(name);
    assert!(
        path.is_file(),
        "{} is missing from the repository; check it out again",
        path.display()
    );
    path
}

/// Material beside the repository, or where `HTC_SHARED` says: `NAME` in `../shared`. `None`,
/// and a line that says so, where it is absent.
pub fn shared(name: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("HTC_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => workspace().parent()?.join("shared"),
    };
    let path = folder.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
}

/// Pseudo-random words over the alphabet of [`TinyModel`](crate::TinyModel)'s vocabulary,
/// always the same.
pub fn words(count: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "cat", "and", "dog", "sat", "on", "a", "hat", "then", "she", "ran", "in", "sand",
        "red", "her", "tin",
    ];
    let mut random = crate::model::Random::new(17);
    let mut text = String::new();
    for index in 0..count {
        if index > 0 {
            text.push(if random.below(9) == 0 { '\n' } else { ' ' });
        }
        text.push_str(WORDS[random.below(WORDS.len())]);
    }
    text
}
