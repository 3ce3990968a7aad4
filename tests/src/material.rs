//! Models and texts that the suites do not generate.

use std::path::{Path, PathBuf};

/// Names of the small models in `tests/fixtures/architectures`, which have dense feed-forward networks.
pub const ARCHITECTURES: [&str; 9] = [
    "llama",
    "llama-linear-rope",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
];

/// Returns the folder of one of the [`ARCHITECTURES`].
pub fn architecture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("fixtures/architectures").join(name)
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Returns the path of `assets/demo/NAME`.
pub fn demo(name: &str) -> PathBuf {
    let path = workspace().join("assets/demo").join(name);
    assert!(
        path.is_file(),
        "{} is missing from the repository; check it out again",
        path.display()
    );
    path
}

/// Returns the path of `NAME` in `HTC_SHARED` or `../shared`. If it is missing, prints a note and
/// returns `None`.
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

/// Returns pseudo-random words over the alphabet of [`TinyModel`](crate::TinyModel).
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
