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

/// Formats `1 layer` or `3 layers`.
pub fn format_count(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
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
