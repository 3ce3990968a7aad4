//! Numbers as people read them.

/// Four significant digits.
pub fn number(value: f64) -> String {
    significant(value, 4)
}

/// Three significant digits.
pub fn brief(value: f64) -> String {
    significant(value, 3)
}

/// Formats a number for a small cell: `0.1234` becomes `.123`.
pub fn tiny(value: f64) -> String {
    let text = brief(value);
    match text.strip_prefix("0.") {
        Some(rest) => format!(".{}", rest.chars().take(3).collect::<String>()),
        None => text.chars().take(6).collect(),
    }
}

/// As many significant digits, trailing zeros left out.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let size = value.abs();
    if !value.is_finite() {
        return "not finite".into();
    }
    if value.fract() == 0.0 && size < 1e15 {
        return with_separators(value);
    }
    if !(1e-4..1e7).contains(&size) {
        let text = format!("{value:.2e}");
        return text.replace(".00e", "e");
    }
    let decimals = (digits - 1 - size.log10().floor() as i32).clamp(0, 8);
    let text = format!("{value:.*}", decimals as usize);
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    text.to_owned()
}

/// A whole number with a thin gap between thousands: `14 792 928`.
fn with_separators(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(value.abs() as u64))
}

/// A count with narrow, unbreakable spaces between thousands.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) && digits.len() > 4 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Decimal units of bytes, each with its name.
pub const UNITS: [(f64, &str); 5] = [
    (1e12, " TB"),
    (1e9, " GB"),
    (1e6, " MB"),
    (1e3, " kB"),
    (1.0, " B"),
];

/// Three significant digits: files of one model often differ in the third.
pub fn bytes(value: f64) -> String {
    let value = value.max(0.0).round();
    let unit = UNITS.into_iter().find(|(size, _)| value >= *size);
    let (size, unit) = unit.unwrap_or((1.0, " B"));
    brief(value / size) + unit
}

/// Percentage.
pub fn percent(share: f64) -> String {
    format!("{} %", significant(100.0 * share, 3))
}

pub fn seconds(value: f64) -> String {
    format!("{} s", significant(value, 3))
}

#[cfg(test)]
mod tests;
