//! Writes the shipped calibration text to standard output, as `--calibration shipped` reads it if
//! the model has tokens for all of it, for calibrating other programs on the same text.

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    io::stdout().write_all(htc::options::shipped_text(|_| true).as_bytes())
}
