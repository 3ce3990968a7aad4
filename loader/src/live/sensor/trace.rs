//! Recorded traces: CSV as written by `nvidia-smi --query-gpu=timestamp,temperature.gpu,power.draw
//! --format=csv` and common loggers.
//!
//! The first line names the columns; unknown ones are ignored. Each row is a moment, and time does
//! not decrease.
//!
//! | Column | Names | Values |
//! |---|---|---|
//! | time, required | `ts`, `time`, `timestamp`, `seconds` | seconds, or date and time |
//! | temperature | `gpu_C`, `temperature`, `temperature_C`, `temperature.gpu` | °C |
//! | power | `power_W`, `power`, `power.draw` | watts |
//! | counter | `energy_J`, `energy` | joules with an arbitrary origin |
//!
//! Temperature or power is required. A unit in brackets after a name (`power.draw [W]`) and after a
//! value (`88.2 W`) is ignored. Empty cells, `N/A` and `[N/A]` are missing values; anything else
//! that is not a number is an error with its line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use htc_formats::escape::escape;
use htc_formats::open;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{Reading, Sensor, SensorInfo};
use crate::live::{Clock, LiveError};

/// Maximum bytes of a line.
pub const MAX_LINE: usize = 4096;

/// Maximum rows: twelve days at one per second.
pub const MAX_ROWS: usize = 1 << 20;

const MAX_COLUMNS: usize = 512;

/// Largest time stamp: more seconds than since the year 0.
const MAX_SECONDS: f64 = 1e11;

/// A recorded trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    path: PathBuf,
    readings: Vec<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Columns {
    count: usize,
    time: usize,
    temperature: Option<usize>,
    power: Option<usize>,
    energy: Option<usize>,
}

impl Trace {
    /// Reads a whole trace from a regular file with lines of at most [`MAX_LINE`] bytes and at most
    /// [`MAX_ROWS`] rows.
    pub fn read(path: &Path) -> Result<Trace, LiveError> {
        let mut lines = Lines {
            from: BufReader::new(open::open_regular(path)?),
            path,
            line: 0,
        };
        let header = lines.next()?;
        let header = header
            .ok_or_else(|| lines.error_at_line("expected names of columns, found an empty file"))?;
        let columns = Columns::parse_header(&header).map_err(|what| lines.error_at_line(what))?;
        let (mut readings, mut first, mut before) = (Vec::new(), None, f64::NEG_INFINITY);
        while let Some(line) = lines.next()? {
            if readings.len() == MAX_ROWS {
                return Err(
                    lines.error_at_line(format!("more than {MAX_ROWS} rows; cut the trace"))
                );
            }
            let (seconds, mut reading) = columns
                .parse_row(&line)
                .map_err(|what| lines.error_at_line(what))?;
            if seconds < before {
                return Err(lines.error_at_line(format!(
                    "time goes back by {} s; sort the rows, or cut the trace there",
                    before - seconds
                )));
            }
            before = seconds;
            let passed = seconds - *first.get_or_insert(seconds);
            reading.time = Duration::try_from_secs_f64(passed).unwrap_or(Duration::MAX);
            readings.push(reading);
        }
        if readings.is_empty() {
            Err(lines.error_at_line("expected a row behind the names of columns, found none"))
        } else {
            Ok(Trace {
                path: path.into(),
                readings,
            })
        }
    }

    /// Returns the rows, with times relative to the first.
    pub fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// Returns the time from the first row to the last.
    pub fn duration(&self) -> Duration {
        self.readings
            .last()
            .map_or(Duration::ZERO, |last| last.time)
    }

    /// Returns the validity of the last row: the mean distance of rows, or one second for a single
    /// row.
    fn last_row_duration(&self) -> Duration {
        match u32::try_from(self.readings.len() - 1) {
            Ok(gaps) if gaps > 0 && self.duration() > Duration::ZERO => self.duration() / gaps,
            _ => Duration::from_secs(1),
        }
    }

    fn row_at(&self, time: Duration) -> Option<Reading> {
        let next = self.readings.partition_point(|row| row.time <= time);
        let row = self.readings.get(next.checked_sub(1)?)?;
        if next == self.readings.len() && time > row.time + self.last_row_duration() {
            None
        } else {
            Some(*row)
        }
    }
}

struct Lines<'a> {
    from: BufReader<File>,
    path: &'a Path,
    line: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> Result<Option<String>, LiveError> {
        self.line += 1;
        let mut bytes = Vec::new();
        let mut limited = self.from.by_ref().take(MAX_LINE as u64 + 1);
        let read = limited.read_until(b'\n', &mut bytes);
        read.map_err(|source| LiveError::Read {
            path: self.path.into(),
            source,
        })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > MAX_LINE {
            return Err(
                self.error_at_line(format!("longer than {MAX_LINE} bytes; is this a CSV file?"))
            );
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| self.error_at_line("not UTF-8 text; is this a CSV file?"))?;
        let text = match self.line {
            1 => text.trim_start_matches('\u{feff}'),
            _ => text,
        };
        Ok(Some(text.trim().to_owned()))
    }

    fn error_at_line(&self, what: impl Into<String>) -> LiveError {
        LiveError::Trace {
            path: self.path.into(),
            line: self.line,
            problem: what.into(),
        }
    }
}

impl Columns {
    fn parse_header(header: &str) -> Result<Columns, String> {
        let names: Vec<String> = header.split(',').map(column_name).collect();
        if names.len() > MAX_COLUMNS {
            return Err(format!(
                "{} columns, at most {MAX_COLUMNS} are allowed",
                names.len()
            ));
        }
        let place = |known: &[&str]| {
            let mut found =
                (0..names.len()).filter(|&place| known.contains(&names[place].as_str()));
            match (found.next(), found.next()) {
                (Some(one), Some(other)) => Err(format!(
                    "columns `{}` and `{}` say the same; leave one of them off",
                    names[one], names[other]
                )),
                (found, _) => Ok(found),
            }
        };
        let time = place(&["ts", "time", "timestamp", "seconds"])?;
        let columns = Columns {
            count: names.len(),
            time: time
                .ok_or("no column of time, expected `ts`, `time`, `timestamp` or `seconds`")?,
            temperature: place(&["gpu_c", "temperature", "temperature_c", "temperature.gpu"])?,
            power: place(&["power_w", "power", "power.draw"])?,
            energy: place(&["energy_j", "energy"])?,
        };
        match (columns.temperature, columns.power) {
            (None, None) => Err(
                "no column of temperature or power, expected `temperature`, `gpu_C` or `temperature.gpu`, or `power`, \
                 `power_W` or `power.draw`"
                    .to_owned(),
            ),
            _ => Ok(columns),
        }
    }

    fn parse_row(&self, line: &str) -> Result<(f64, Reading), String> {
        let cells: Vec<&str> = line
            .split(',')
            .take(self.count + 1)
            .map(str::trim)
            .collect();
        if cells.len() != self.count {
            let many = if cells.len() > self.count {
                "more".to_owned()
            } else {
                cells.len().to_string()
            };
            return Err(format!("expected {} columns, found {many}", self.count));
        }
        let value = |place: Option<usize>, what: &str| match place.map(|place| cells[place]) {
            None | Some("" | "N/A" | "[N/A]" | "[Not Supported]") => Ok(None),
            Some(cell) => {
                let number = cell.split_once(' ').map_or(cell, |(number, _)| number);
                let value = number.parse::<f64>();
                value.map(Some).map_err(|_| {
                    format!("{what} is `{}`, expected a number or nothing", escape(cell))
                })
            }
        };
        let time = cells[self.time];
        let seconds = parse_seconds(time).ok_or_else(|| {
            format!(
                "time is `{}`, expected seconds or a date as 2026/04/28 23:41:52.807",
                escape(time)
            )
        })?;
        let reading = Reading {
            time: Duration::ZERO,
            temperature: value(self.temperature, "temperature")?,
            power: value(self.power, "power")?,
            energy: value(self.energy, "energy")?,
        };
        Ok((seconds, reading))
    }
}

fn column_name(cell: &str) -> String {
    let name = cell.split_once('[').map_or(cell, |(name, _)| name);
    name.trim().to_ascii_lowercase()
}

/// Parses seconds, or a date and time in the Gregorian calendar as seconds since 1970: `YYYY/MM/DD
/// HH:MM:SS.fff`, with `-` for `/` and `T` or nothing for the space.
fn parse_seconds(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (seconds.abs() <= MAX_SECONDS).then_some(seconds);
    }
    let format = if text.contains('/') {
        "%Y/%m/%d %H:%M:%S%.f"
    } else {
        "%Y-%m-%d %H:%M:%S%.f"
    };
    let unsigned = text.starts_with(|c: char| c.is_ascii_digit());
    let time = DateTime::strptime(format, text.replacen('T', " ", 1)).ok()?;
    let since = TimeZone::UTC.to_timestamp(time).ok()?.as_duration();
    unsigned.then_some(since.as_secs_f64())
}

/// Plays a trace as a sensor: each row is valid until the next. After the end, readings fail.
#[derive(Debug)]
pub struct TraceSensor {
    trace: Trace,
    info: SensorInfo,
    begun: Option<Duration>,
}

impl TraceSensor {
    /// Creates a sensor that plays a trace by a clock.
    pub fn new(trace: Trace, clock: Clock) -> TraceSensor {
        TraceSensor {
            info: SensorInfo {
                name: format!("trace {}", trace.path.display()),
                clock,
                min_interval: Duration::ZERO,
                notes: Vec::new(),
            },
            trace,
            begun: None,
        }
    }
}

impl Sensor for TraceSensor {
    fn info(&self) -> &SensorInfo {
        &self.info
    }
    fn read(&mut self) -> Result<Reading, LiveError> {
        let at = self.info.clock.now();
        let begun = *self.begun.get_or_insert(at);
        match self.trace.row_at(at.saturating_sub(begun)) {
            Some(row) => Ok(Reading { time: at, ..row }),
            None => Err(LiveError::TraceEnded {
                path: self.trace.path.clone(),
                seconds: self.trace.duration().as_secs_f64(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &[u8]) -> Result<Trace, LiveError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path)
    }

    #[test]
    fn dates_are_converted_to_seconds() {
        let between = |a: &str, b: &str| parse_seconds(b).unwrap() - parse_seconds(a).unwrap();
        for (a, b, expected) in [
            ("2026/04/2823:41:52.500", "2026/04/28 23:41:53.75", 1.25),
            ("2026-04-28T23:59:59", "2026-04-29T00:00:01", 2.0),
            ("2024/02/28 00:00:00", "2024/03/01 00:00:00", 2.0 * 86400.0),
            ("2100/02/28 00:00:00", "2100/03/01 00:00:00", 86400.0),
            ("1970-01-01 00:00:00", "2000-01-01 00:00:00", 946_684_800.0),
            ("2025/12/31 12:00:00", "2026/01/01 12:00:00", 86400.0),
            ("1.5", "-2", -3.5),
        ] {
            assert_eq!(between(a, b), expected, "{a} {b}");
        }
        for wrong in [
            "",
            "soon",
            "nan",
            "inf",
            "1e300",
            "2026/04-28 1:2:3",
            "2026/13/01 1:2:3",
            "2026/04/28 24:00:00",
            "2026/04/28 1:60:00",
            "2026/04/28 1:2",
            "2026/04/28 1:2:3:4",
            "2026/04/28 -1:2:3",
            "2026/0é/28 1:2:3",
            "2026/04/28 1:2:inf",
            "+026/04/28 1:2:3",
        ] {
            assert_eq!(parse_seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn columns_are_found_by_name() {
        let smi = "\u{feff}timestamp, power.draw [W], name, temperature.gpu\r\n\
                   2026/04/28 23:41:52.000, 88.20 W, X, 41\r\n\
                   2026/04/28 23:41:53.500, [N/A], X, 255\r\n";
        let found = trace(smi.as_bytes()).unwrap();
        let row = |at, temperature, power| Reading {
            time: Duration::from_secs_f64(at),
            temperature,
            power,
            energy: None,
        };
        assert_eq!(
            found.readings(),
            [
                row(0.0, Some(41.0), Some(88.2)),
                row(1.5, Some(255.0), None)
            ]
        );
        let plain = trace(b"time,temperature,energy_J\n10,50,7\n10,,8\n11,NaN,9").unwrap();
        assert_eq!(plain.readings()[1].temperature, None);
        assert!(plain.readings()[2].temperature.is_some_and(f64::is_nan));
        assert_eq!(plain.readings()[2].energy, Some(9.0));
        assert_eq!(plain.duration(), Duration::from_secs(1));
    }

    #[test]
    fn errors_name_the_line() {
        let long = [b"time,power\n1,2\n".to_vec(), vec![b'9'; MAX_LINE + 1]].concat();
        let wide = ["time,power"]
            .iter()
            .chain([&",x"; MAX_COLUMNS])
            .copied()
            .collect::<String>();
        let cases: [(&[u8], usize, &str); 16] = [
            (b"", 1, "empty file"),
            (b"time,power\n", 2, "found none"),
            (b"power\n1\n", 1, "no column of time"),
            (b"time,volts\n1,2\n", 1, "no column of temperature or power"),
            (b"time,power,power_W\n1,2,3\n", 1, "say the same"),
            (b"time,power\n1,2\n2\n", 3, "expected 2 columns, found 1"),
            (
                b"time,power\n1,2\n2,3,4,5\n",
                3,
                "expected 2 columns, found more",
            ),
            (b"time,power\n1,2\n\n2,3\n", 3, "expected 2 columns"),
            (b"time,power\n1,warm\n", 2, "power is `warm`"),
            (b"time,power\n1,\"2\"\n", 2, "power is"),
            (b"time,power\nyesterday,2\n", 2, "time is `yesterday`"),
            (b"time,power\n1,2\n0.5,2\n", 3, "goes back by 0.5 s"),
            (b"time,power\nNaN,2\n", 2, "time is"),
            (b"time,power\n1,\xff\n", 2, "not UTF-8"),
            (&long, 3, "longer than 4096"),
            (wide.as_bytes(), 1, "columns, at most 512"),
        ];
        for (text, at, said) in cases {
            match trace(text).unwrap_err() {
                LiveError::Trace {
                    line,
                    problem: what,
                    ..
                } => {
                    assert!(line == at && what.contains(said), "{line}: {what}");
                }
                other => panic!("{other}"),
            }
        }
        let fault = trace(&vec![b'1'; 1 << 24]).unwrap_err().to_string();
        assert!(fault.contains("line 1") && fault.len() < 300, "{fault}");
        let fault = trace(b"time,power\n1,\x1b[2J\n").unwrap_err().to_string();
        assert!(!fault.contains('\u{1b}'), "{fault}");
    }

    #[cfg(unix)]
    #[test]
    fn non_regular_files_are_rejected_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.csv");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let absent = folder.path().join("absent.csv");
        for path in [&pipe, &absent, folder.path(), Path::new("/dev/zero")] {
            let fault = Trace::read(path).unwrap_err();
            assert!(matches!(fault, LiveError::Open(_)), "{fault}");
            let name = path.display().to_string();
            assert!(fault.to_string().contains(&name), "{fault}");
        }
    }

    #[test]
    fn rows_are_bounded() {
        let mut text = b"time,power\n".to_vec();
        text.extend(b"1,2\n".repeat(MAX_ROWS));
        assert_eq!(trace(&text).unwrap().readings().len(), MAX_ROWS);
        text.extend(b"1,2\n");
        assert!(trace(&text).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn rows_are_valid_until_the_next_and_the_trace_ends() {
        let played = trace(b"time,temperature\n100,40\n102,60\n104,50\n").unwrap();
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(7));
        let mut sensor = TraceSensor::new(played, clock.clone());
        let mut said = Vec::new();
        for _ in 0..7 {
            said.push(sensor.read().ok().and_then(|reading| reading.temperature));
            clock.advance(Duration::from_secs(1));
        }
        let expected = [40.0, 40.0, 60.0, 60.0, 50.0, 50.0, 50.0].map(Some);
        assert_eq!(said, expected);
        let ended = sensor.read().unwrap_err();
        assert!(
            matches!(ended, LiveError::TraceEnded { seconds: 4.0, .. }),
            "{ended}"
        );
        let mut single = TraceSensor::new(trace(b"time,power\n0,1\n").unwrap(), clock.clone());
        assert_eq!(single.read().unwrap().power, Some(1.0));
        clock.advance(Duration::from_millis(1001));
        assert!(single.read().is_err());
    }

    proptest::proptest! {
        #[test]
        fn reader_never_panics(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = trace(&text);
            let _ = trace(&[b"time,power,temperature\n", &text[..]].concat());
        }
    }
}
