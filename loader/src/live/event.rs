//! Events of the governor, for programs and users.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use htc_formats::folder::Folder;
use serde::Serialize;

use super::LiveError;
use super::control::LimitReason;

/// An event. Its JSON form is a flat object with its kind in `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
pub struct Event {
    /// Seconds on the sensor's clock.
    pub at: f64,
    /// Unix time of the system clock.
    pub unix: f64,
    /// Temperature reading in °C, plausible or not.
    pub temperature: Option<f64>,
    /// Power reading in watts, plausible or not.
    pub power: Option<f64>,
    /// Fraction from now on.
    pub fraction: f64,
    /// Kind of the event.
    #[serde(flatten)]
    pub what: EventKind,
}

/// Kinds of events.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The governor started.
    Start {
        /// Sensor name.
        sensor: String,
        /// Notes about the sensor.
        notes: Vec<String>,
    },
    /// The fraction changed.
    Change {
        /// Reason for the fraction.
        why: LimitReason,
    },
    /// Quantities of the law are missing and impose no limit.
    Lost {
        /// Missing quantities.
        quantities: Vec<Quantity>,
        /// Error of the sensor, or its implausible value.
        reason: String,
        /// First occurrence since the start; users are warned once.
        first: bool,
    },
    /// Quantities are available again.
    Back {
        /// Available quantities.
        quantities: Vec<Quantity>,
    },
    /// The least fraction is in use, and the device is still too warm or draws too much power.
    Beyond {
        /// First occurrence since the start.
        first: bool,
    },
    /// The governor stopped; the fraction is 1 again.
    Stop,
}

/// A quantity used by a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemas", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Temperature.
    Temperature,
    /// Power, for the cap.
    Power,
}

htc_formats::names!(Quantity { Temperature "temperature", Power "power" });

impl Event {
    /// Returns a warning for users, if any, once for each cause.
    pub fn warning(&self) -> Option<String> {
        match &self.what {
            EventKind::Start { sensor, notes } if !notes.is_empty() => {
                Some(format!("{sensor}: {}", notes.join("; ")))
            }
            EventKind::Lost {
                quantities,
                reason,
                first: true,
            } => {
                let names: Vec<_> = quantities.iter().map(|of| of.name()).collect();
                Some(format!(
                    "the device's {} cannot be followed any more: {reason}; without it nothing is limited, the \
                     fraction is now {}",
                    names.join(" and "),
                    self.fraction
                ))
            }
            EventKind::Beyond { first: true } => {
                let said = [(self.temperature, "°C"), (self.power, "W")]
                    .map(|(value, unit)| Some(format!("{:.1} {unit}", value?)));
                let said: Vec<String> = said.into_iter().flatten().collect();
                Some(format!(
                    "the least fraction {:.3} is in use and the device is still beyond its limits ({}); cool it better, \
                     or let it rest",
                    self.fraction,
                    said.join(", ")
                ))
            }
            _ => None,
        }
    }
}

/// JSON Lines file of events, each complete as soon as it occurs.
#[derive(Debug)]
pub struct EventsFile {
    path: PathBuf,
    file: File,
    /// Bytes of complete lines; `None` after a write error.
    complete_bytes: Option<u64>,
}

impl EventsFile {
    /// Creates a new file and moves it to its name. If the name exists, it is an error, or with
    /// `replace` the file or link is replaced; devices and pipes are left alone.
    pub fn create(path: &Path, replace: bool) -> Result<EventsFile, LiveError> {
        // Also a link to a device.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(LiveError::NotAFile { path: path.into() });
        }
        let made = || -> io::Result<File> {
            let (folder, name) = Folder::parent_of(path)?;
            let temporary = folder.temporary(folder.mode_for_replacement(&name))?;
            let file = temporary.file()?.try_clone()?;
            temporary.persist(&name, replace)?;
            Ok(file)
        };
        match made() {
            Ok(file) => Ok(EventsFile {
                path: path.into(),
                file,
                complete_bytes: Some(0),
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(LiveError::Exists { path: path.into() })
            }
            Err(source) => Err(LiveError::Create {
                path: path.into(),
                source,
            }),
        }
    }

    /// Writes an event.
    ///
    /// # Errors
    /// [`LiveError::Write`], once: a partial line is removed, and later events are dropped.
    pub fn write(&mut self, event: &Event) -> Result<(), LiveError> {
        let Some(whole) = self.complete_bytes else {
            return Ok(());
        };
        let line = serde_json::to_string(event).map(|line| line + "\n");
        let written = line.map_err(io::Error::from).and_then(|line| {
            self.file.write_all(line.as_bytes())?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => {
                self.complete_bytes = Some(whole + bytes);
                Ok(())
            }
            Err(source) => {
                self.complete_bytes = None;
                let _ = self.file.set_len(whole);
                Err(LiveError::Write {
                    path: self.path.clone(),
                    source,
                })
            }
        }
    }

    /// Returns true if all events so far were written.
    pub fn is_complete(&self) -> bool {
        self.complete_bytes.is_some()
    }
}

#[cfg(test)]
mod tests;
