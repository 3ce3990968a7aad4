//! Models and texts that the suites do not generate.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use htc_formats::gguf::{Gguf, Value, Writer};

use crate::binary::next_to_binary;

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

/// Returns the path of the demo model with its first layers alone, for tests that need trained weights
/// but no good text.
pub fn demo_of_layers(layers: u32) -> PathBuf {
    let model = Gguf::open(demo("reference-7m-f16.gguf")).unwrap();
    let is_kept = |name: &str| match name.strip_prefix("blk.") {
        Some(rest) => rest.split('.').next().unwrap().parse::<u32>().unwrap() < layers,
        None => true,
    };
    let mut writer = Writer::new();
    for (key, value) in model.metadata() {
        let value = match &**key {
            "llama.block_count" => Value::U32(layers),
            _ => value.clone(),
        };
        writer.metadata(key.clone(), value);
    }
    for tensor in model.tensors().iter().filter(|t| is_kept(&t.name)) {
        let bytes = model.bytes(tensor);
        writer.tensor(&tensor.name, tensor.ggml_type, &tensor.dims, bytes);
    }
    let bytes = writer.to_bytes().unwrap();
    let path = next_to_binary(&format!("demo-of-{layers}-layers.gguf"));
    // Another test may have it mapped.
    if fs::read(&path).is_ok_and(|found| found == bytes) {
        return path;
    }
    let readable = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new()
        .permissions(readable)
        .tempfile_in(path.parent().unwrap())
        .unwrap();
    file.write_all(&bytes).unwrap();
    file.persist(&path).unwrap();
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
