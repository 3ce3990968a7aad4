//! Parts of Jinja that follow Python: written values, tests of kinds, `json.dumps`. Numbers are
//! written as by minijinja; the operator `~` and filters other than `string` keep its text of lists
//! and mappings.

use std::fmt;
use std::io::{self, Write};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::ser::Formatter;

use super::template::MAX_TEXT_BYTES;

/// Makes an environment agree with Jinja2 where minijinja has rules of its own.
pub(super) fn add_to(environment: &mut Environment) {
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", string);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Map => {
            write_text(out, value).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
}

/// Returns true if Python's `iter` accepts the value.
fn is_iterable(value: &Value) -> bool {
    value.kind() != ValueKind::None && value.try_iter().is_ok()
}

/// Returns true if the value has a length and items, as texts and mappings have.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq
            | ValueKind::Map
            | ValueKind::String
            | ValueKind::Bytes
            | ValueKind::Undefined
    )
}

/// `str` of Python.
fn string(value: &Value) -> Result<Value, Error> {
    let mut text = BoundedText::default();
    let written = write_text(&mut text, value);
    written.map_err(|_| Error::new(ErrorKind::InvalidOperation, "the text is too long"))?;
    Ok(Value::from(text.0))
}

#[derive(Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > MAX_TEXT_BYTES - self.0.len() {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Writes `str(value)` of Python.
fn write_text(out: &mut dyn fmt::Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Map => {
            write_repr(out, value)
        }
        _ => write!(out, "{value}"),
    }
}

/// Writes `repr(value)` of Python.
fn write_repr(out: &mut dyn fmt::Write, value: &Value) -> fmt::Result {
    match value.kind() {
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            out.write_char('[')?;
            for (index, item) in items(value).enumerate() {
                write_separator(out, index)?;
                write_repr(out, &item)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in items(value).enumerate() {
                write_separator(out, index)?;
                write_repr(out, &key)?;
                out.write_str(": ")?;
                write_repr(out, &value.get_item(&key).unwrap_or_default())?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    value.try_iter().into_iter().flatten()
}

fn write_separator(out: &mut dyn fmt::Write, index: usize) -> fmt::Result {
    if index > 0 {
        out.write_str(", ")
    } else {
        Ok(())
    }
}

/// Single quotes, or double quotes around a text with single quotes alone.
fn write_quoted(out: &mut dyn fmt::Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if c.is_control() || (c.is_whitespace() && c != ' ') => match u32::from(c) {
                code @ ..0x100 => write!(out, "\\x{code:02x}")?,
                code => write!(out, "\\u{code:04x}")?,
            },
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

const MAX_INDENT: usize = 16;

/// `json.dumps` of Python with the defaults of `transformers`: `ensure_ascii=False`, and a space
/// after commas and colons.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        let message = format!("tojson with an indent of more than {MAX_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let [item, key] = match separators.as_deref() {
        None if indent.is_some() => [",", ": "].map(str::to_owned),
        None => [", ", ": "].map(str::to_owned),
        Some([item, key]) => [item.clone(), key.clone()],
        Some(other) => {
            let message = format!("separators has {} texts, expected 2", other.len());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    };
    let formatter = PythonJsonFormatter {
        indent: indent.map(|indent| " ".repeat(indent)),
        item,
        key,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        depth: 0,
        is_empty: true,
    };
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    let written = if sort_keys.unwrap_or(false) {
        // Its maps are sorted.
        let sorted = serde_json::to_value(value).map_err(failed)?;
        serde::Serialize::serialize(&sorted, &mut serializer)
    } else {
        serde::Serialize::serialize(value, &mut serializer)
    };
    written.map_err(failed)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(Value::from_safe_string(text))
}

struct PythonJsonFormatter {
    /// Indentation of a level; without it, all is on one line.
    indent: Option<String>,
    /// Separator of items.
    item: String,
    /// Separator of a key and its value.
    key: String,
    ensure_ascii: bool,
    depth: usize,
    /// The innermost array or object has no values yet.
    is_empty: bool,
}

impl PythonJsonFormatter {
    fn begin<W: Write + ?Sized>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.is_empty = true;
        to.write_all(bracket)
    }

    fn end<W: Write + ?Sized>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.new_line(to)?;
        }
        self.is_empty = false;
        to.write_all(bracket)
    }

    fn begin_item<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if !first {
            to.write_all(self.item.as_bytes())?;
        }
        self.new_line(to)
    }

    fn new_line<W: Write + ?Sized>(&self, to: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        to.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| to.write_all(indent.as_bytes()))
    }
}

impl Formatter for PythonJsonFormatter {
    fn begin_array<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"]")
    }

    fn begin_array_value<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(to, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.begin(to, b"{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        self.end(to, b"}")
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(to, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        to: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ensure_ascii {
            return to.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if matches!(c, ' '..='~') {
                to.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
