//! Output for users. Untrusted text is escaped by [`htc_formats::escape`]: messages always,
//! generated text if standard output is a terminal, JSON by its own escapes.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;

use htc_formats::escape::{escape, escape_multiline, is_plain};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter};

/// Prints lines on standard error; ignores write errors.
pub fn print_message(message: fmt::Arguments<'_>) {
    let message = message.to_string();
    let mut lines = escape_multiline(&message).into_owned();
    lines.push('\n');
    let _ = io::stderr().lock().write_all(lines.as_bytes());
}

/// Prints lines on standard output, as [`print_message`]; ignores that a reader has gone.
pub fn print_answer(answer: fmt::Arguments<'_>) -> io::Result<()> {
    let answer = answer.to_string();
    let mut lines = escape_multiline(&answer).into_owned();
    lines.push('\n');
    let written = io::stdout().lock().write_all(lines.as_bytes());
    written.or_else(ignore_closed_pipe)
}

/// Ignores that the reader of standard output has gone.
pub fn ignore_closed_pipe(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    }
}

/// Returns a path on one line.
pub fn display_path(path: &Path) -> String {
    escape(&path.to_string_lossy()).into_owned()
}

/// Shortens a message to one line that fits a screen; keeps the start, with the cause, and the end,
/// with the remedy.
pub fn shorten_message(message: &str) -> String {
    const HEAD: usize = 700;
    const TAIL: usize = 300;
    let message = escape(message);
    let length = message.chars().count();
    if length <= HEAD + TAIL {
        return message.into_owned();
    }
    let head = message.chars().take(HEAD);
    let tail = message.chars().skip(length - TAIL);
    head.chain(" … ".chars()).chain(tail).collect()
}

/// Standard output for untrusted text.
pub struct StandardOutput {
    to: StdoutLock<'static>,
    terminal: bool,
}

impl StandardOutput {
    /// Locks standard output.
    pub fn new() -> Self {
        let to = io::stdout();
        let terminal = to.is_terminal();
        StandardOutput {
            to: to.lock(),
            terminal,
        }
    }

    /// Writes a text: unchanged to a file or a pipe, escaped to a terminal.
    pub fn write_text(&mut self, text: &str) -> io::Result<()> {
        if self.terminal {
            self.to.write_all(escape_multiline(text).as_bytes())?
        } else {
            self.to.write_all(text.as_bytes())?
        }
        self.to.flush()
    }
}

impl Default for StandardOutput {
    fn default() -> Self {
        StandardOutput::new()
    }
}

/// Writes a value as indented JSON, with characters that affect a terminal as `\u202e`.
pub fn write_json(value: &impl Serialize, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(1 << 16, to);
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut to, EscapingFormatter(PrettyFormatter::new()));
    value.serialize(&mut serializer)?;
    writeln!(to)?;
    to.flush()
}

struct EscapingFormatter<F>(F);

macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        fn $name<W: Write + ?Sized>(&mut self, to: &mut W $(, $argument: $type)*) -> io::Result<()> {
            self.0.$name(to $(, $argument)*)
        }
    )*};
}

impl<F: Formatter> Formatter for EscapingFormatter<F> {
    delegate! {
        write_char_escape(escape: CharEscape);
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c| !is_plain(c)) {
            let (plain, other) = rest.split_at(at);
            self.0.write_string_fragment(to, plain)?;
            let mut characters = other.chars();
            if let Some(character) = characters.next() {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(to, "\\u{unit:04x}")?;
                }
            }
            rest = characters.as_str();
        }
        self.0.write_string_fragment(to, rest)
    }
}

#[cfg(test)]
mod tests;
