//! JSON values with duplicate keys and line numbers.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Integer(u64),
    /// A number that is negative or not an integer.
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    pub(super) fn to_json(&self) -> Value {
        match self {
            Node::Null => Value::Null,
            Node::Bool(value) => Value::from(*value),
            Node::Integer(value) => Value::from(*value),
            Node::Number(value) => Value::from(*value),
            Node::Text(text) => Value::from(text.as_str()),
            Node::List(items) => items.iter().map(Node::to_json).collect(),
            Node::Object(entries) => entries
                .iter()
                .map(|(key, node)| (key.clone(), node.to_json()))
                .collect(),
        }
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Node::Null => "null".into(),
            Node::Bool(value) => value.to_string(),
            Node::Integer(value) => value.to_string(),
            Node::Number(value) => value.to_string(),
            Node::Text(text) => quoted(text),
            Node::List(items) => format!("a list of {}", items.len()),
            Node::Object(entries) => match &entries[..] {
                [(key, value)] => format!("{{{}: {}}}", quoted(key), value.describe()),
                _ => format!("an object of {} keys", entries.len()),
            },
        }
    }
}

pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 40;
    let short: String = text.chars().take(LONGEST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{:?}{more}", short)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Node::Object(object))
    }
}

/// Line of a top-level key, and of the items of its value if that is a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeyLines {
    pub line: usize,
    pub items: Vec<usize>,
}

pub(super) fn lines(text: &str) -> Vec<KeyLines> {
    let mut keys: Vec<KeyLines> = Vec::new();
    let (mut line, mut open) = (1, Vec::new());
    let (mut in_string, mut escaped) = (false, false);
    // True if a key or an item may start here.
    let mut begins = false;
    for byte in text.bytes() {
        if in_string {
            // JSON strings contain no line breaks.
            (in_string, escaped) = (byte != b'"' || escaped, byte == b'\\' && !escaped);
            continue;
        }
        if byte == b'\n' {
            line += 1;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        if begins && !matches!(byte, b'}' | b']') {
            match open[..] {
                [b'{'] => keys.push(KeyLines {
                    line,
                    items: Vec::new(),
                }),
                [b'{', b'['] => {
                    if let Some(key) = keys.last_mut() {
                        key.items.push(line);
                    }
                }
                _ => {}
            }
        }
        begins = matches!(byte, b'{' | b'[' | b',');
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => open.push(byte),
            b'}' | b']' => {
                open.pop();
            }
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests;
