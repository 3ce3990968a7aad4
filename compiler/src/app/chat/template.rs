//! Jinja chat templates with the environment of the `transformers` library: `trim_blocks`,
//! `lstrip_blocks`, loop controls, `raise_exception`, and `strftime_now` with the current date;
//! strings and mappings have Python's methods. Generation tags have no effect.

use std::io::{self, Write};

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::{date, python};

/// Maximum bytes of the rendered text: about a million tokens.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// A template needs some hundreds per message.
const FUEL: u64 = 10_000_000;

/// Conversation with its template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// Source of the template.
    pub template: String,
    /// Messages in order.
    pub messages: Vec<Message>,
    /// Text of the beginning-of-sequence token, or empty.
    pub bos: String,
    /// Text of the end-of-sequence token, or empty.
    pub eos: String,
}

/// Message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

impl Message {
    fn new(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
        }
    }

    /// Returns the message with which a conversation begins: how the model is to answer.
    pub fn system(content: &str) -> Message {
        Message::new("system", content)
    }

    /// Returns a message of the user.
    pub fn user(content: &str) -> Message {
        Message::new("user", content)
    }

    /// Returns an answer of the model.
    pub fn assistant(content: &str) -> Message {
        Message::new("assistant", content)
    }
}

/// Renders a conversation up to the start of the model's answer.
///
/// Steps and text length are bounded; memory is not, see [`render`](super::render).
///
/// # Errors
/// A one-line message on the template.
pub fn render(conversation: &Conversation) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| date::format_now(&format));
    python::add_to(&mut environment);
    let name = "chat template";
    let source = without_generation_tags(&conversation.template);
    environment
        .add_template(name, &source)
        .map_err(error_message)?;
    let mut text = BoundedWriter::default();
    let context = minijinja::context! {
        messages => conversation.messages,
        bos_token => conversation.bos,
        eos_token => conversation.eos,
        add_generation_prompt => true,
        tools => Value::from(()),
        documents => Value::from(()),
    };
    let template = environment.get_template(name).map_err(error_message)?;
    let rendered = template.render_captured_to(context, &mut text).map(drop);
    match rendered {
        Ok(()) => String::from_utf8(text.bytes).map_err(|_| "it writes no UTF-8".to_owned()),
        Err(_) if text.full => Err(format!("it writes more than {MAX_TEXT_BYTES} bytes")),
        Err(error) => Err(error_message(error)),
    }
}

/// Keeps their whitespace control.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |at| at + 2);
        let (tag, after) = tag.split_at(end);
        let name = tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace());
        match name {
            "generation" => out.push_str(&tag.replacen(name, "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen(name, "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[derive(Default)]
struct BoundedWriter {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEXT_BYTES - self.bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn error_message(error: Error) -> String {
    let line = error
        .line()
        .map_or_else(String::new, |line| format!("line {line}: "));
    let what = match error.kind() {
        ErrorKind::OutOfFuel => "it takes more steps than are allowed; does it loop?".to_owned(),
        kind => match error.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    format!("{line}{what}")
}

#[cfg(test)]
mod tests;
