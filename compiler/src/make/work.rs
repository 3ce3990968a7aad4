//! The folder beside an artifact where its compilation keeps what is finished, so that the same
//! command goes on where it ended, however it ended.
//!
//! An artifact that is made grows in the file `KEY.partial`; `KEY.journal` says which of its
//! tensors are complete and what was measured on its units; complete it is `KEY.htz`. The key is a
//! digest of everything that its bytes depend on, so that another command never goes on with it.
//! What the journal says is sealed with a secret of the user, and nothing is taken over whose digest is
//! another than the journal's: what somebody else laid there is not gone on with. The folder goes away
//! with the end of the compilation, and stays where that fails.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use htc_formats::folder::{Folder, FolderError, UNFINISHED};
use htc_formats::htz::{Digest, HtzError};

use super::journal::Artifact;
use crate::event::{Event, Watch};
use crate::system::secret::Secret;
use crate::system::show::bytes_for_people;
use crate::system::{disk, lock};

/// Bytes of an artifact's name that stand in the name of its folder.
const NAME_BYTES: usize = 100;

/// What the name of a work folder ends with.
const SUFFIX: &str = ".htc-work";

/// Held by the process that compiles.
const LOCK: &str = "lock";

/// How often a folder is opened that the process before is just removing.
const ATTEMPTS: usize = 8;

/// Work that nobody went on with for so long is removed by the next compilation in the same folder.
pub const SWEPT_AFTER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The work folder of an artifact. It is removed when it is dropped, unless it is to be kept.
#[derive(Debug)]
pub struct Work {
    parent: Folder,
    name: OsString,
    folder: Arc<Folder>,
    secret: Secret,
    /// Why nobody can go on with what is left here.
    forgotten: Option<String>,
    stays: bool,
    _lock: File,
}

impl Work {
    /// The folder for the artifact `output`; where there is one, what it holds is gone on with. Old
    /// ones beside it that nobody went on with are removed.
    ///
    /// # Errors
    /// [`HtzError::NotWritable`] or [`HtzError::Io`] where it cannot be made, is not of this user, or
    /// another process holds it.
    pub fn open(output: &Path, watch: Watch) -> Result<Work, HtzError> {
        let path = disk::folder_of(output);
        let name = name_of(output);
        let place = path.join(&name);
        let not_made = |error: io::Error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => HtzError::NotWritable {
                path: path.to_owned(),
                source: error.kind().into(),
            },
            _ => failure("create", &place, error),
        };
        let parent = Folder::open(path).map_err(not_made)?;
        let held = || {
            let busy = "another htc is making this artifact; wait for it, or choose another name";
            failure(
                "create",
                output,
                io::Error::new(ErrorKind::ResourceBusy, busy),
            )
        };
        for _ in 0..ATTEMPTS {
            let folder = parent.own(&name).map_err(|error| match error {
                FolderError::Io { error, .. } => not_made(error),
                error => failure("use", &place, error.into_io()),
            })?;
            let file = match folder.edit(OsStr::new(LOCK)) {
                // The process before is just removing it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.map_err(|error| failure("use", &place.join(LOCK), error))?,
            };
            if !lock::take(&file, Duration::ZERO, || {}, || false).map_err(not_made)? {
                return Err(held());
            }
            // The lock of a folder that has lost its name holds nobody back.
            if !parent.holds(&name, &folder) || folder.find(OsStr::new(LOCK)).is_err() {
                continue;
            }
            let (secret, forgotten) = match Secret::of_user() {
                Ok(secret) => (secret, None),
                Err(error) => {
                    let secret = Secret::for_this_run().map_err(not_made)?;
                    (secret, Some(error.to_string()))
                }
            };
            sweep(&parent, &name, watch);
            return Ok(Work {
                parent,
                name,
                folder: Arc::new(folder),
                secret,
                forgotten,
                stays: false,
                _lock: file,
            });
        }
        Err(held())
    }

    /// Leaves the folder to the next run, where something is finished that the next run can go on with;
    /// says whether it is so.
    pub fn keep(mut self) -> bool {
        let finished = || -> io::Result<bool> {
            let names = self.folder.names()?;
            let mut found = names.iter().filter(|name| is_finished(name));
            Ok(found.any(|name| self.folder.find(name).is_ok_and(|file| file.length > 0)))
        };
        self.stays = self.forgotten.is_none() && finished().unwrap_or(false);
        self.stays
    }

    /// Where the next run finds what is finished, if it can go on with that.
    pub fn kept(&self) -> Option<&Path> {
        self.forgotten.is_none().then(|| self.path())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its handle.
    pub fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Why nobody can go on with what is left here, if it is so.
    pub(super) fn forgotten(&self) -> Option<&str> {
        self.forgotten.as_deref()
    }

    /// The artifact of a key: complete, or as far as it came.
    pub fn artifact(&self, key: Digest) -> Artifact<'_> {
        Artifact::new(self, key)
    }

    /// Bytes that lie in the folder already.
    pub fn bytes(output: &Path) -> u64 {
        let Ok(parent) = Folder::open(disk::folder_of(output)) else {
            return 0;
        };
        let folder = parent.existing(&name_of(output), false);
        folder.map_or(0, |folder| folder.size().0)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.stays {
            // What cannot be removed is in nobody's way.
            let _ = remove(&self.parent, &self.name, &self.folder);
        }
    }
}

/// A work folder that nobody works in.
#[derive(Debug)]
pub struct Idle {
    folder: Folder,
    /// Its name.
    pub name: OsString,
    /// Bytes in it.
    pub bytes: u64,
    /// When something in it was last written to.
    pub modified: Option<SystemTime>,
    _lock: File,
}

impl Idle {
    /// The work folders of this user in a folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn all(parent: &Folder) -> io::Result<Vec<Idle>> {
        let names = parent.names()?;
        let of_work = names.iter().filter(|name| is_work(name));
        Ok(of_work
            .filter_map(|name| Idle::open(parent, name))
            .collect())
    }

    fn open(parent: &Folder, name: &OsStr) -> Option<Idle> {
        let folder = parent.existing(name, false).ok()?;
        let lock = folder.edit(OsStr::new(LOCK)).ok()?;
        lock.try_lock().ok()?;
        let (bytes, modified) = folder.size();
        let name = name.to_owned();
        Some(Idle {
            folder,
            name,
            bytes,
            modified,
            _lock: lock,
        })
    }

    /// Removes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, parent: &Folder) -> io::Result<()> {
        remove(parent, &self.name, &self.folder)
    }
}

/// Whether something was last written to so long ago.
pub fn is_older(modified: Option<SystemTime>, age: Duration) -> bool {
    let passed = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
    passed.is_some_and(|passed| passed >= age)
}

/// Removes old work folders but one, and tells of them.
fn sweep(parent: &Folder, but: &OsStr, watch: Watch) {
    // A folder that cannot be listed keeps what it has.
    let names = parent.names().unwrap_or_default();
    let others = names.iter().filter(|name| is_work(name) && *name != but);
    for found in others.filter_map(|name| Idle::open(parent, name)) {
        if is_older(found.modified, SWEPT_AFTER) && found.remove(parent).is_ok() {
            let said = format!(
                "{}: removed; nobody went on with it for {} days ({})",
                parent.path().join(&found.name).display(),
                SWEPT_AFTER.as_secs() / (24 * 60 * 60),
                bytes_for_people(found.bytes)
            );
            watch.tell(Event::Note(&said));
        }
    }
}

/// Removes a work folder by its handle: the files that work folders have, and then the folder where
/// nothing else is in it.
fn remove(parent: &Folder, name: &OsStr, folder: &Folder) -> io::Result<()> {
    for file in folder.names()?.iter().filter(|name| is_of_work(name)) {
        // The lock last: until then nobody else works here.
        if file != LOCK {
            folder.remove(file)?;
        }
    }
    folder.remove(OsStr::new(LOCK))?;
    match parent.holds(name, folder) {
        true => parent.remove_folder(name),
        false => Ok(()),
    }
}

fn is_work(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(SUFFIX.as_bytes())
}

/// Whether a file of a work folder says what is finished.
fn is_finished(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|of| {
        ["journal", "htz", "json", "state"]
            .iter()
            .any(|own| of == *own)
    })
}

fn is_of_work(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    name == LOCK
        || is_finished(name)
        || extension.is_some_and(|of| of == "partial")
        || name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes())
}

/// The name of the work folder of an artifact, which lies beside it.
fn name_of(output: &Path) -> OsString {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let name = if name.len() <= NAME_BYTES {
        name.into_owned()
    } else {
        Digest::of(name.as_bytes()).to_string()
    };
    format!(".{name}{SUFFIX}").into()
}

pub(super) fn failure(action: &'static str, path: &Path, source: io::Error) -> HtzError {
    let path = PathBuf::from(path);
    HtzError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn digest(of: u8) -> Digest {
        Digest::of(&[of])
    }

    fn open(output: &Path) -> Result<Work, HtzError> {
        Work::open(output, Watch::nobody())
    }

    #[test]
    fn the_folder_belongs_to_one_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("a.htz");
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let work = open(&output).unwrap();
        let second = open(&output).unwrap_err().to_string();
        assert!(second.contains("another htc"), "{second}");
        work.artifact(digest(1)).note(digest(2), &1.5).unwrap();
        assert_eq!(count(), 1);
        assert!(Work::bytes(&output) >= 3);
        assert_eq!(work.artifact(digest(1)).measured(digest(2)), Some(1.5));
        assert_eq!(work.artifact(digest(1)).measured::<f64>(digest(3)), None);
        drop(work);
        assert_eq!(count(), 0);
        // Only what is finished is worth being kept.
        assert!(!open(&output).unwrap().keep());
        assert_eq!(count(), 0);
    }

    /// What is not of a work folder stays, and so does the folder then.
    #[cfg(unix)]
    #[test]
    fn only_files_of_a_work_folder_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let output = scratch.path().join("a.htz");
        let precious = scratch.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "precious").unwrap();
        let work = open(&output).unwrap();
        let path = work.path().to_owned();
        std::os::unix::fs::symlink(&precious, path.join("x.journal")).unwrap();
        fs::write(path.join("of somebody"), "").unwrap();
        drop(work);
        assert_eq!(fs::read(precious.join("file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }

    #[test]
    fn old_work_is_swept_and_told_of() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let made = |name: &str, age: Duration| {
            let work = open(&path(name)).unwrap();
            work.artifact(digest(1)).note(digest(2), &1.5).unwrap();
            for entry in fs::read_dir(work.path()).unwrap() {
                let file = File::options().write(true).open(entry.unwrap().path());
                file.unwrap().set_modified(SystemTime::now() - age).unwrap();
            }
            work
        };
        // Every folder that is opened sweeps those before it: what is old comes last.
        let _held = made("held.htz", 2 * SWEPT_AFTER);
        assert!(made("new.htz", SWEPT_AFTER / 2).keep());
        assert!(made("old.htz", 2 * SWEPT_AFTER).keep());
        let said = std::sync::Mutex::new(Vec::new());
        let tell = |event: Event| said.lock().unwrap().push(format!("{event:?}"));
        let cancel = crate::event::Cancel::default();
        drop(Work::open(&path("another.htz"), Watch::new(&tell, &cancel)).unwrap());
        let said = said.into_inner().unwrap().concat();
        assert!(said.contains(".old.htz.htc-work: removed"), "{said}");
        let names = Folder::open(scratch.path()).unwrap().names().unwrap();
        assert_eq!(names, [".held.htz.htc-work", ".new.htz.htc-work"]);
    }

    /// File systems allow 255 bytes.
    #[test]
    fn long_names_have_a_folder_too() {
        let long = name_of(Path::new(&"ä".repeat(127)));
        assert!(long.len() < 100);
        let other = format!("{}b", "ä".repeat(126));
        assert_ne!(name_of(Path::new(&other)), long);
        assert_eq!(name_of(Path::new("x/a.htz")), ".a.htz.htc-work");
    }
}
