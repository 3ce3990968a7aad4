//! Dates in UTC and English.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::strtime;
use minijinja::{Error, ErrorKind};

/// Returns the current date in a format of Python's `strftime`.
pub fn format_now(format: &str) -> Result<String, Error> {
    format_time(Timestamp::now(), format)
}

/// Returns a time such as `2026-01-31T23:59:59Z`, or the start of 1970 for years beyond 9999.
pub fn format_utc(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default();
    at.strftime("%FT%TZ").to_string()
}

fn format_time(at: Timestamp, format: &str) -> Result<String, Error> {
    strtime::format(format, at).map_err(|error| {
        let message = format!("strftime_now: {format:?} is not supported: {error}");
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

#[cfg(test)]
mod tests;
