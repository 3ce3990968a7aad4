//! Ctrl-C removes what is half-written before the program ends.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

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

/// Installs the handler for SIGINT, SIGTERM and SIGHUP. Where one of them is ignored already
/// (`nohup`) or the system refuses, the signals keep their usual effect: the program ends, and the
/// unfinished file stays under its temporary name.
pub fn install() {
    let installed = ctrlc::try_set_handler(|| {
        let path = UNFINISHED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let removed = path.map(|path| (std::fs::remove_file(&path), path));
        match removed {
            // Renamed in this very moment: the artifact is complete.
            Some((Err(error), _)) if error.kind() == ErrorKind::NotFound => {
                say!("\nhtc: interrupted");
            }
            Some((Err(error), path)) => {
                say!(
                    "\nhtc: interrupted; {} stays behind: {error}",
                    path.display()
                );
            }
            Some((Ok(()), _)) => say!("\nhtc: interrupted; no artifact was written"),
            None => say!("\nhtc: interrupted"),
        }
        std::process::exit(INTERRUPTED);
    });
    match installed {
        // The parent has one of them ignored, and it stays so: that is what was asked for.
        Ok(()) | Err(ctrlc::Error::MultipleHandlers) => {}
        Err(error) => say!("htc: warning: Ctrl-C will not clean up: {error}"),
    }
}
