//! Writes the text that ships with the program to standard output, as `--calibration shipped` reads it where a model
//! has tokens for all of it: for other programs that are to be calibrated on the same text.

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    io::stdout().write_all(htc::request::shipped_text(|_| true).as_bytes())
}
