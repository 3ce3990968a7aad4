//! What happened while a model was followed, for programs and people.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use htc_formats::folder::Folder;
use serde::Serialize;
use thiserror::Error;

use super::control::Why;

/// Something that happened. As JSON it is one flat object, its kind in `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Seconds on the sensor's clock.
    pub at: f64,
    /// Seconds since 1970 by the system's clock, which people may set.
    pub unix: f64,
    /// What the sensor said, °C, whether plausible or not.
    pub temperature: Option<f64>,
    /// What the sensor said, watts, whether plausible or not.
    pub power: Option<f64>,
    /// The fraction from now on.
    pub fraction: f64,
    /// What it was.
    #[serde(flatten)]
    pub what: What,
}

/// Kinds of events.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// Following began.
    Start {
        /// The sensor.
        sensor: String,
        /// What people should know about it.
        notes: Vec<String>,
    },
    /// Another fraction.
    Change {
        /// What limits it.
        why: Why,
    },
    /// The sensor says nothing of what the law asks for, which limits nothing any more.
    Lost {
        /// What it does not say.
        quantities: Vec<Quantity>,
        /// The sensor's error, or what it said instead.
        reason: String,
        /// Whether it is the first time since the start: people are warned once.
        first: bool,
    },
    /// It says it again.
    Back {
        /// What it says.
        quantities: Vec<Quantity>,
    },
    /// The least fraction is in use, and the device is still too warm or draws too much.
    Beyond {
        /// Whether it is the first time since the start.
        first: bool,
    },
    /// Following ended; the fraction is the base again.
    Stop,
}

/// What a law asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The temperature.
    Temperature,
    /// The power, which a cap is for.
    Power,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Temperature => "temperature",
            Quantity::Power => "power",
        }
    }
}

impl Event {
    /// What people are warned of by it: once of a sensor that is lost, once of a device that is too warm whatever is done, and of what a sensor
    /// cannot say.
    pub fn warning(&self) -> Option<String> {
        match &self.what {
            What::Start { sensor, notes } if !notes.is_empty() => {
                Some(format!("{sensor}: {}", notes.join("; ")))
            }
            What::Lost {
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
            What::Beyond { first: true } => {
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

/// Why events are not written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventsError {
    /// There is a file of that name.
    #[error("{}: there is such a file already; remove it, or name another", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something else than a file has the name.
    #[error("{}: not a regular file; events are written to a new file, name another place", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses to make it.
    #[error("{}: cannot be made: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses to write to it, for instance because the disk is full.
    #[error(
        "{}: cannot be written: {source}; it ends with the event before, and no more are written", path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Events as lines of JSON, each whole in the file as soon as it happened.
#[derive(Debug)]
pub struct EventsFile {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines; `None` once the system refused.
    whole: Option<u64>,
}

impl EventsFile {
    /// Makes the file: a new one of its own, moved to its name. Where something has the name it is an error, or a file that is there is replaced and a
    /// link in its place too; neither a link nor the old file is written to, and a device or a pipe is left alone.
    ///
    /// # Errors
    /// [`EventsError`].
    pub fn create(path: &Path, replace: bool) -> Result<EventsFile, EventsError> {
        // A link to a device is one as far as whoever named it is concerned.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(EventsError::NotAFile { path: path.into() });
        }
        let made = || -> io::Result<File> {
            let (folder, name) = Folder::of(path)?;
            let temporary = folder.temporary(folder.mode(&name))?;
            let file = temporary.file()?.try_clone()?;
            temporary.persist(&name, replace)?;
            Ok(file)
        };
        match made() {
            Ok(file) => Ok(EventsFile {
                path: path.into(),
                file,
                whole: Some(0),
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(EventsError::Exists { path: path.into() })
            }
            Err(source) => Err(EventsError::Create {
                path: path.into(),
                source,
            }),
        }
    }

    /// Writes an event.
    ///
    /// # Errors
    /// [`EventsError::Write`], once: half a line is taken back, and what comes after it is not written and no error.
    pub fn write(&mut self, event: &Event) -> Result<(), EventsError> {
        let Some(whole) = self.whole else {
            return Ok(());
        };
        let line = serde_json::to_string(event).map(|line| line + "\n");
        let written = line.map_err(io::Error::from).and_then(|line| {
            self.file.write_all(line.as_bytes())?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => {
                self.whole = Some(whole + bytes);
                Ok(())
            }
            Err(source) => {
                self.whole = None;
                // Where even this is refused, a reader finds half a line at the end.
                let _ = self.file.set_len(whole);
                Err(EventsError::Write {
                    path: self.path.clone(),
                    source,
                })
            }
        }
    }

    /// Whether all events so far are in the file.
    pub fn is_whole(&self) -> bool {
        self.whole.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: What) -> Event {
        Event {
            at: 1.5,
            unix: 1e9,
            temperature: Some(f64::NAN),
            power: None,
            fraction: 0.5,
            what,
        }
    }

    fn lost(first: bool) -> What {
        What::Lost {
            quantities: vec![Quantity::Temperature, Quantity::Power],
            reason: "a \"quote\"\n".to_owned(),
            first,
        }
    }

    #[test]
    fn lines_are_flat_json_and_there_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.ndjson");
        let mut file = EventsFile::create(&path, false).unwrap();
        let events = [
            What::Start {
                sensor: "s".to_owned(),
                notes: Vec::new(),
            },
            What::Change { why: Why::PowerCap },
            lost(true),
            What::Stop,
        ];
        for (number, what) in events.into_iter().enumerate() {
            file.write(&event(what)).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), number + 1);
            assert!(text.ends_with('\n'));
        }
        assert!(file.is_whole());
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[1]["event"], "change");
        assert_eq!(lines[1]["why"], "power_cap");
        assert_eq!(lines[1]["at"], 1.5);
        assert!(lines[1]["temperature"].is_null());
        assert_eq!(lines[2]["quantities"][1], "power");
        assert_eq!(lines[2]["reason"], "a \"quote\"\n");
        // Nothing unfinished is left beside it.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn people_are_warned_once_of_each() {
        assert!(
            event(lost(true))
                .warning()
                .unwrap()
                .contains("temperature and power")
        );
        assert_eq!(event(lost(false)).warning(), None);
        assert!(event(What::Beyond { first: true }).warning().is_some());
        assert_eq!(event(What::Beyond { first: false }).warning(), None);
        assert_eq!(event(What::Stop).warning(), None);
    }

    #[cfg(unix)]
    #[test]
    fn nothing_of_others_is_written_to() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("other"), "other").unwrap();
        symlink("other", at("link")).unwrap();
        for name in ["other", "link"] {
            let taken = EventsFile::create(&at(name), false);
            assert!(matches!(taken, Err(EventsError::Exists { .. })), "{name}");
        }
        let mut file = EventsFile::create(&at("link"), true).unwrap();
        file.write(&event(What::Stop)).unwrap();
        assert_eq!(fs::read_to_string(at("other")).unwrap(), "other");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_file());
        // The old file keeps what it has for whoever has it open.
        fs::hard_link(at("other"), at("twin")).unwrap();
        EventsFile::create(&at("other"), true)
            .unwrap()
            .write(&event(What::Stop))
            .unwrap();
        assert_eq!(fs::read_to_string(at("twin")).unwrap(), "other");

        symlink("/dev/null", at("null")).unwrap();
        for place in [Path::new("/dev/null"), &at("null"), folder.path()] {
            let refused = EventsFile::create(place, true);
            assert!(
                matches!(refused, Err(EventsError::NotAFile { .. })),
                "{refused:?}"
            );
        }
        let nowhere = EventsFile::create(&at("no/such"), true);
        assert!(matches!(nowhere, Err(EventsError::Create { .. })));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_one_error() {
        let mut file = EventsFile {
            path: "full".into(),
            file: File::options().write(true).open("/dev/full").unwrap(),
            whole: Some(0),
        };
        let fault = file.write(&event(What::Stop)).unwrap_err().to_string();
        assert!(
            fault.contains("full") && fault.contains("no more"),
            "{fault}"
        );
        assert!(file.write(&event(What::Stop)).is_ok() && !file.is_whole());
    }
}
