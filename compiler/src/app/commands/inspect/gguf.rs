//! GGUF files in `htc inspect`.

use std::collections::BTreeMap;
use std::path::Path;

use htc_formats::gguf::{Gguf, Value};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::super::Failure;
use super::shorten;
use crate::app::terminal::display_path;
use crate::system::show::format_bytes;

/// Contents of a GGUF file.
#[derive(JsonSchema, Serialize)]
pub(crate) struct GgufJson<'a> {
    alignment: u64,
    bytes: usize,
    /// `gguf`.
    format: &'static str,
    /// Values by key; an array is its element type and length.
    metadata: BTreeMap<&'a str, serde_json::Value>,
    tensors: Vec<GgufTensorJson<'a>>,
    version: u32,
}

#[derive(JsonSchema, Serialize)]
struct GgufTensorJson<'a> {
    bytes: usize,
    /// Row length first, as in the file.
    dims: &'a [u64],
    name: &'a str,
    offset: usize,
    r#type: &'a str,
}

pub(super) fn gguf_json(gguf: &Gguf) -> GgufJson<'_> {
    let metadata = gguf.metadata().iter();
    let metadata = metadata.map(|(key, value)| (key.as_str(), value_json(value)));
    let tensors = gguf
        .tensors()
        .iter()
        .map(|t| GgufTensorJson {
            bytes: t.range.len(),
            dims: &t.dims,
            name: &t.name,
            offset: t.range.start,
            r#type: t.ggml_type.name(),
        })
        .collect();
    GgufJson {
        alignment: gguf.alignment(),
        bytes: gguf.map().len(),
        format: "gguf",
        metadata: metadata.collect(),
        tensors,
        version: gguf.version(),
    }
}

fn value_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(array) => json!({
            "array": array.element_type().name(),
            "length": array.len(),
        }),
    }
}

pub(super) fn show_gguf(path: &Path, gguf: &Gguf) -> Result<(), Failure> {
    answer!(
        "{}: GGUF version {}, {}, alignment {}",
        display_path(path),
        gguf.version(),
        format_bytes(gguf.map().len() as u64),
        gguf.alignment()
    )?;
    answer!("\nmetadata")?;
    for (key, value) in gguf.metadata() {
        let text = match value {
            Value::Array(a) => format!("[{}; {}]", a.element_type(), a.len()),
            Value::String(s) => shorten(s),
            other => value_json(other).to_string(),
        };
        answer!("  {:<42}  {text}", shorten(key))?;
    }
    answer!("\ntensors")?;
    for t in gguf.tensors() {
        let dims: Vec<_> = t.dims.iter().rev().map(u64::to_string).collect();
        answer!(
            "  {:<42}  {:<7}  {:>16}  {:>9}",
            shorten(&t.name),
            t.ggml_type.name(),
            dims.join(" x "),
            format_bytes(t.range.len() as u64)
        )?;
    }
    Ok(())
}
