//! Ctrl-C asks the work to end at its next step, and ends the program where that takes long.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::app::terminal::name;
use crate::event::Cancel;

/// Exit code of a program ended by SIGINT, by the shells' convention 128 + 2.
pub const INTERRUPTED: u8 = 130;

/// How long the work may take to end by itself. What a program leaves that is ended is what it would
/// leave if it was killed: the next run goes on with it.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How a command is interrupted, and what is kept of its work then.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    cancel: Cancel,
    kept: Arc<Mutex<Option<PathBuf>>>,
}

impl Interrupt {
    /// Installs the handler for SIGINT, SIGTERM and SIGHUP. Where one of them is ignored already
    /// (`nohup`) or the system refuses, the signals keep their usual effect: the program ends.
    pub fn install() -> Interrupt {
        let this = Interrupt::default();
        let seen = this.clone();
        let installed = ctrlc::try_set_handler(move || {
            seen.cancel.cancel();
            std::thread::sleep(PATIENCE);
            say!("\nhtc: {}", seen.message());
            std::process::exit(i32::from(INTERRUPTED));
        });
        match installed {
            // The parent has one of them ignored, and it stays so: that is what was asked for.
            Ok(()) | Err(ctrlc::Error::MultipleHandlers) => {}
            Err(error) => say!("htc: warning: Ctrl-C will not clean up: {error}"),
        }
        this
    }

    /// What ends the work.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// What is finished is in this folder from now on, or nowhere any more.
    pub fn keep(&self, folder: Option<&Path>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = folder.map(Path::to_owned);
    }

    /// The folder with what is finished, where there is something.
    pub fn kept(&self) -> Option<PathBuf> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone()
    }

    /// What is to be said of it.
    pub fn message(&self) -> String {
        match self.kept() {
            Some(folder) => format!(
                "interrupted; the same command goes on from here with what is in {}",
                name(&folder)
            ),
            None => "interrupted".to_owned(),
        }
    }
}
