//! Ctrl-C handling: requests cancellation, and exits the program if that takes long.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::app::terminal::display_path;
use crate::event::CancellationToken;
use crate::pipeline::ErrorKind;

/// The remaining files are as after a kill.
const GRACE_PERIOD: Duration = Duration::from_millis(1500);

#[derive(Clone, Debug, Default)]
/// Interrupt state of a command, with the folder of kept work.
pub struct Interrupt {
    cancel: CancellationToken,
    kept: Arc<Mutex<Option<PathBuf>>>,
    calibrating: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handler for SIGINT, SIGTERM and SIGHUP; ignored ones (`nohup`) stay ignored.
    pub fn install() -> Interrupt {
        let this = Interrupt::default();
        let seen = this.clone();
        let installed = ctrlc::try_set_handler(move || {
            seen.cancel.cancel();
            std::thread::sleep(GRACE_PERIOD);
            say!("\nhtc: {}", seen.message());
            std::process::exit(i32::from(ErrorKind::Interrupted.exit_code()));
        });
        match installed {
            // A signal ignored by the parent stays ignored.
            Ok(()) | Err(ctrlc::Error::MultipleHandlers) => {}
            Err(error) => say!("htc: warning: Ctrl-C will not clean up: {error}"),
        }
        this
    }

    /// Returns the cancellation token.
    pub fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Says that a calibration has begun, whose finished passes stay in the cache.
    pub fn set_calibrating(&self) {
        self.calibrating.store(true, Ordering::Relaxed);
    }

    /// Sets the folder that keeps finished work, or `None`.
    pub fn set_kept_folder(&self, folder: Option<&Path>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = folder.map(Path::to_owned);
    }

    /// Returns the folder with finished work, if any.
    pub fn kept_folder(&self) -> Option<PathBuf> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone()
    }

    /// Returns the message on the interruption.
    pub fn message(&self) -> String {
        match self.kept_folder() {
            Some(folder) => format!(
                "interrupted; the same command goes on from here with what is in {}",
                display_path(&folder)
            ),
            None if self.calibrating.load(Ordering::Relaxed) => {
                "interrupted; finished passes of the calibration, if any, are cached, and the same \
                 command goes on with them"
                    .to_owned()
            }
            None => "interrupted".to_owned(),
        }
    }
}
