//! The folder beside an artifact where its compilation keeps what is finished, so that the same
//! command goes on where it was interrupted, however it ended.
//!
//! An artifact that is made grows in the file `KEY.partial`; `KEY.journal` says which of its
//! tensors are complete and what was measured on its units; complete it is `KEY.htz`. The key is a
//! digest of everything that its bytes depend on, so that another command never goes on with it.
//! Nothing is taken over whose digest is another than the journal's. The folder goes away with the
//! end of the compilation.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use htc_formats::htz::{Digest, Htz, HtzError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::system::disk;

/// Bytes of an artifact's name that stand in the name of its folder.
const NAME_BYTES: usize = 100;

/// Held by the process that compiles.
const LOCK: &str = "lock";

/// Bytes of a journal beyond which it is none.
const MAX_JOURNAL: u64 = 256 << 20;

/// The work folder of an artifact. It is removed when it is dropped: what stays is left by a program
/// that was interrupted or killed.
#[derive(Debug)]
pub struct Work {
    folder: PathBuf,
    stays: bool,
    _lock: File,
}

impl Work {
    /// The folder for the artifact `output`; where there is one, what it holds is gone on with.
    ///
    /// # Errors
    /// [`HtzError::NotWritable`] or [`HtzError::Io`] where it cannot be made, or another process
    /// holds it.
    pub fn open(output: &Path) -> Result<Work, HtzError> {
        let parent = disk::folder_of(output);
        let folder = folder(output);
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => HtzError::NotWritable {
                path: parent.to_owned(),
                source: source.kind().into(),
            },
            _ => failure("create", &folder, source),
        };
        let lock = fs::create_dir_all(&folder)
            .and_then(|()| File::create(folder.join(LOCK)))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let busy = "another htc is making this artifact; wait for it, or give another -o";
                return Err(failure(
                    "create",
                    output,
                    io::Error::new(ErrorKind::ResourceBusy, busy),
                ));
            }
            // A file system without locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(Work {
            folder,
            stays: false,
            _lock: lock,
        })
    }

    /// Leaves the folder to the next run.
    pub fn keep(mut self) {
        self.stays = true;
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The artifact of a key: complete, or as far as it came.
    pub fn artifact(&self, key: Digest) -> Artifact<'_> {
        Artifact { work: self, key }
    }

    /// Bytes that lie in the folder already.
    pub fn bytes(output: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(folder(output)) else {
            return 0;
        };
        let lengths = entries.flatten().flat_map(|entry| entry.metadata());
        lengths.map(|found| found.len()).sum()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        // What cannot be removed is in nobody's way.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn folder(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let name = if name.len() <= NAME_BYTES {
        name.into_owned()
    } else {
        Digest::of(name.as_bytes()).to_string()
    };
    disk::folder_of(output).join(format!(".{name}.htc-work"))
}

fn failure(action: &'static str, path: &Path, source: io::Error) -> HtzError {
    let path = path.to_owned();
    HtzError::Io {
        action,
        path,
        source,
    }
}

/// What a journal says, line by line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line<T> {
    /// The next tensor is complete; its digest.
    Tensor(Digest),
    /// A step is done, and this was found.
    Step(usize, T),
}

/// What an earlier run left behind of an artifact.
#[derive(Debug)]
pub struct Left<T> {
    /// Digests of the tensors that were complete.
    pub tensors: Vec<Digest>,
    /// Steps that were done, and what was found.
    pub steps: Vec<(usize, T)>,
}

impl<T> Default for Left<T> {
    fn default() -> Self {
        Left {
            tensors: Vec::new(),
            steps: Vec::new(),
        }
    }
}

/// An artifact that is made, or made already.
#[derive(Clone, Copy, Debug)]
pub struct Artifact<'a> {
    work: &'a Work,
    key: Digest,
}

impl Artifact<'_> {
    fn path(&self, suffix: &str) -> PathBuf {
        self.work.folder.join(format!("{}.{suffix}", self.key))
    }

    /// Where it is when it is complete.
    pub fn complete(&self) -> PathBuf {
        self.path("htz")
    }

    /// Where it grows.
    pub fn partial(&self) -> PathBuf {
        self.path("partial")
    }

    /// Whether it is complete and undamaged; a damaged one is removed.
    pub fn is_complete(&self) -> bool {
        let path = self.complete();
        if !path.exists() {
            return false;
        }
        let sound = Htz::open(&path).and_then(|artifact| artifact.verify_all(|_| {}));
        if sound.is_err() {
            let _ = fs::remove_file(&path);
        }
        sound.is_ok()
    }

    /// What the journal says, and the journal to go on with. What is written in half behind the last
    /// whole line is cut off.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn journal<T: Serialize + DeserializeOwned>(&self) -> Result<(Left<T>, Journal), HtzError> {
        let path = self.path("journal");
        let open = || -> io::Result<(Left<T>, File)> {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.open(&path)?;
            let mut text = Vec::new();
            (&mut file).take(MAX_JOURNAL).read_to_end(&mut text)?;
            let mut left = Left::default();
            let mut whole = 0;
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                match serde_json::from_slice(line) {
                    Ok(Line::Tensor(digest)) if line.ends_with(b"\n") => left.tensors.push(digest),
                    Ok(Line::Step(step, found)) if line.ends_with(b"\n") => {
                        left.steps.push((step, found));
                    }
                    _ => break,
                }
                whole += line.len();
            }
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok((left, file))
        };
        let (left, file) = open().map_err(|source| failure("open", &path, source))?;
        Ok((left, Journal { path, file }))
    }

    /// What was measured on it on the windows of a digest.
    pub fn measured<T: DeserializeOwned>(&self, windows: Digest) -> Option<T> {
        let text = fs::read(self.path(&format!("{windows}.json"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Notes down what was measured on it.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn note<T: Serialize>(&self, windows: Digest, measured: &T) -> Result<(), HtzError> {
        let path = self.path(&format!("{windows}.json"));
        let text = serde_json::to_vec(measured).map_err(io::Error::from);
        text.and_then(|text| disk::replace(&path, |to| to.write_all(&text)))
            .map_err(|source| failure("write", &path, source))
    }

    /// Forgets the artifact's bytes and keeps what was measured on it.
    pub fn discard(&self) {
        let _ = fs::remove_file(self.complete());
    }
}

/// The journal of an artifact that is made.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// The next tensor is complete.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn tensor(&mut self, digest: Digest) -> Result<(), HtzError> {
        self.line(&Line::<()>::Tensor(digest))
    }

    /// A step is done.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn step<T: Serialize>(&mut self, step: usize, found: &T) -> Result<(), HtzError> {
        self.line(&Line::Step(step, found))
    }

    /// Begins anew with what is left.
    ///
    /// # Errors
    /// [`HtzError::Io`].
    pub fn rewrite<T: Serialize>(&mut self, left: &Left<T>) -> Result<(), HtzError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|source| failure("write", &self.path, source))?;
        left.tensors
            .iter()
            .try_for_each(|&digest| self.tensor(digest))?;
        let mut steps = left.steps.iter();
        steps.try_for_each(|(step, found)| self.step(*step, found))
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), HtzError> {
        let text = serde_json::to_vec(line).map_err(io::Error::from);
        text.and_then(|mut text| {
            text.push(b'\n');
            self.file.write_all(&text)
        })
        .map_err(|source| failure("write", &self.path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(of: u8) -> Digest {
        Digest::of(&[of])
    }

    #[test]
    fn a_journal_goes_on_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let work = Work::open(&folder.path().join("a.htz")).unwrap();
        let artifact = work.artifact(digest(0));
        let (left, mut journal) = artifact.journal::<Vec<f64>>().unwrap();
        assert!(left.tensors.is_empty() && left.steps.is_empty());
        // Numbers come back to the last bit.
        let found = vec![0.1 + 0.2, 1e-308, 5e300];
        journal.tensor(digest(1)).unwrap();
        journal.step(3, &found).unwrap();
        drop(journal);
        let path = artifact.path("journal");
        let whole = fs::read(&path).unwrap();
        for torn in ["{\"tensor\":\"12", "\n", "{\"step\":[4,[1.0]]}"] {
            fs::write(&path, [&whole[..], torn.as_bytes()].concat()).unwrap();
            let (left, mut journal) = artifact.journal::<Vec<f64>>().unwrap();
            assert_eq!(left.tensors, [digest(1)]);
            assert_eq!(left.steps, [(3, found.clone())]);
            journal.tensor(digest(2)).unwrap();
            let (left, _) = artifact.journal::<Vec<f64>>().unwrap();
            assert_eq!(left.tensors, [digest(1), digest(2)], "{torn:?}");
        }
    }

    #[test]
    fn the_folder_belongs_to_one_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("a.htz");
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let work = Work::open(&output).unwrap();
        let second = Work::open(&output).unwrap_err().to_string();
        assert!(second.contains("another htc"), "{second}");
        work.artifact(digest(1)).note(digest(2), &1.5).unwrap();
        assert_eq!(count(), 1);
        assert!(Work::bytes(&output) >= 3);
        assert_eq!(work.artifact(digest(1)).measured(digest(2)), Some(1.5));
        assert_eq!(work.artifact(digest(1)).measured::<f64>(digest(3)), None);
        drop(work);
        assert_eq!(count(), 0);
    }

    /// File systems allow 255 bytes.
    #[test]
    fn long_names_have_a_folder_too() {
        let long = folder(Path::new(&"ä".repeat(127)));
        assert!(long.file_name().unwrap().len() < 100);
        let other = format!("{}b", "ä".repeat(126));
        assert_ne!(folder(Path::new(&other)), long);
        assert_eq!(folder(Path::new("x/a.htz")), Path::new("x/.a.htz.htc-work"));
    }
}
