//! Formatting of names and quantities.

use std::path::Path;

/// Returns the name of a file, without its folder.
pub fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// Formats `12.3 MB`: decimal units, three digits.
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            let digits = if unit == "B" || value >= 100.0 { 0 } else { 1 };
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// Returns the bits of some bytes per weight; those of one weight if there is none.
pub fn bits_per_weight(bytes: u64, weights: u64) -> f64 {
    8.0 * bytes as f64 / weights.max(1) as f64
}

/// Formats `1 layer` or `3 layers`; also for nouns in -s, and for matrix and basis.
pub fn format_count(count: impl TryInto<u64>, noun: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    if count == 1 {
        return format!("{count} {noun}");
    }
    for (ending, plural) in [("matrix", "matrices"), ("basis", "bases"), ("s", "ses")] {
        if let Some(stem) = noun.strip_suffix(ending) {
            return format!("{count} {stem}{plural}");
        }
    }
    format!("{count} {noun}s")
}

/// Formats ` (95 % interval 1.02 to 1.05)`; empty for `None`.
pub fn format_interval(interval: Option<(f64, f64)>, digits: usize) -> String {
    match interval {
        Some((low, high)) => format!(" (95 % interval {low:.digits$} to {high:.digits$})"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests;
