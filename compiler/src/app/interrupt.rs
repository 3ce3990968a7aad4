//! Ctrl-C removes what is of no use before the program ends, and tells of what is.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The folder with which the same command goes on.
static KEPT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Exit code of a program ended by SIGINT, by the shells' convention 128 + 2.
const INTERRUPTED: i32 = 130;

/// While it lives, the file is removed if the program is interrupted.
pub struct RemoveOnInterrupt(());

impl RemoveOnInterrupt {
    /// Names the unfinished file; there is one at a time.
    pub fn new(path: PathBuf) -> Self {
        *UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
        RemoveOnInterrupt(())
    }
}

impl Drop for RemoveOnInterrupt {
    fn drop(&mut self) {
        *UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// While it lives, an interrupted program says that a folder is there to go on with.
#[derive(Debug)]
pub struct Kept(());

impl Kept {
    /// Names the folder; there is one at a time.
    pub fn new(folder: PathBuf) -> Self {
        *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder);
        Kept(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Installs the handler for SIGINT, SIGTERM and SIGHUP. Where one of them is ignored already
/// (`nohup`) or the system refuses, the signals keep their usual effect: the program ends, and the
/// unfinished file stays under its temporary name.
pub fn install() {
    let installed = ctrlc::try_set_handler(|| {
        let path = UNFINISHED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let stays = path.and_then(|path| match std::fs::remove_file(&path) {
            // Renamed in this very moment: what it was to become is complete.
            Err(error) if error.kind() != ErrorKind::NotFound => Some((path, error)),
            _ => None,
        });
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (stays, kept) {
            (Some((path, error)), _) => {
                say!(
                    "\nhtc: interrupted; {} stays behind: {error}",
                    path.display()
                );
            }
            (None, Some(folder)) => say!(
                "\nhtc: interrupted; the same command goes on from here with what is in {}",
                folder.display()
            ),
            (None, None) => say!("\nhtc: interrupted"),
        }
        std::process::exit(INTERRUPTED);
    });
    match installed {
        // The parent has one of them ignored, and it stays so: that is what was asked for.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => {}
        Err(error) => say!("htc: warning: Ctrl-C will not clean up: {error}"),
    }
}
