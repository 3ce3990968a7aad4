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
mod tests;
