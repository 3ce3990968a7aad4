//! Dates in the format of Python's `strftime`, in UTC and English.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Returns the current date in `format`.
pub fn format_now(format: &str) -> Result<String, Error> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    format_seconds(since.map_or(0, |since| since.as_secs()), format)
}

/// Returns a time such as `2026-01-31T23:59:59Z`; times before 1970 become the start of 1970.
pub fn format_utc(at: SystemTime) -> String {
    let seconds = at
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let ((year, month, day), second) = (civil_from_days(seconds / 86_400), seconds % 86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z",
        second % 60
    )
}

fn format_seconds(seconds: u64, format: &str) -> Result<String, Error> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    // 1 January 1970 was a Thursday.
    let weekday = DAYS[((days + 3) % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let code = rest.next();
        out += &match code {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('%') => "%".to_owned(),
            other => {
                let other = other.map_or_else(String::new, |c| c.to_string());
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: %{other} is not supported"),
                ));
            }
        };
    }
    Ok(out)
}

/// Converts days since 1970 to year, month and day of the Gregorian calendar.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    /// Days in 400 years.
    const CYCLE: u64 = 146_097;
    /// Days from 1 March of the year 0 to 1970.
    const EPOCH: u64 = 719_468;
    let days = days + EPOCH;
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    // Years start in March, so the leap day is the last.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (cycle * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_formatted_in_utc() {
        let at = |seconds| format_utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(format_utc(UNIX_EPOCH - Duration::from_secs(5)), at(0));
    }

    #[test]
    fn dates_match_gnu_date() {
        for (seconds, expected) in [
            (0, "Thursday, 01 January 1970, 00:00:00"),
            (951_782_399, "Monday, 28 February 2000, 23:59:59"),
            (951_782_400, "Tuesday, 29 February 2000, 00:00:00"),
            (4_107_542_400, "Monday, 01 March 2100, 00:00:00"),
            (1_795_219_200, "Saturday, 21 November 2026, 00:00:00"),
        ] {
            assert_eq!(
                format_seconds(seconds, "%A, %d %B %Y, %H:%M:%S").unwrap(),
                expected
            );
        }
        assert_eq!(
            format_seconds(0, "%y-%m %a %b 100%%").unwrap(),
            "70-01 Thu Jan 100%"
        );
        assert!(format_seconds(0, "%").is_err() && format_seconds(0, "%Q").is_err());
    }
}
