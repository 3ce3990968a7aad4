//! Writer of GGUF version 3.

use std::collections::HashSet;
use std::io::{self, Write};

use super::error::GgufError;
use super::value::{Value, ValueType};
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgmlType, MAGIC};
use crate::limits;
use crate::wire;

/// Builder of a GGUF file, with tensors in the order of addition. Data are borrowed, or supplied
/// during writing, one tensor at a time.
#[derive(Clone, Debug)]
pub struct Writer<'a> {
    alignment: u64,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Clone, Debug)]
struct Tensor<'a> {
    name: String,
    ggml_type: GgmlType,
    dims: Vec<u64>,
    /// `None` if supplied during writing.
    data: Option<&'a [u8]>,
}

impl Tensor<'_> {
    fn length(&self) -> Result<u64, GgufError> {
        let dims = &self.dims;
        let bytes = dims
            .split_first()
            .filter(|_| dims.len() <= limits::MAX_DIMENSIONS as usize && !dims.contains(&0))
            .and_then(|(&cols, rest)| {
                let rows = rest.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
                self.ggml_type.matrix_bytes(rows, cols)
            });
        bytes.ok_or_else(|| GgufError::ShapeForType {
            tensor: self.name.clone(),
            ggml_type: self.ggml_type,
            dims: dims.clone(),
        })
    }

    fn wrong_length(&self, expected: u64, found: u64) -> GgufError {
        GgufError::DataLength {
            tensor: self.name.clone(),
            expected,
            found,
        }
    }
}

struct CountingWriter<'a, W> {
    to: &'a mut W,
    written: u64,
}

impl<W: Write> Write for CountingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Writer::new()
    }
}

impl<'a> Writer<'a> {
    /// Creates a file without metadata and tensors.
    pub fn new() -> Self {
        Writer {
            alignment: DEFAULT_ALIGNMENT,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Sets the alignment of tensor data, and its metadata entry if it is not the default.
    pub fn alignment(&mut self, alignment: u64) -> &mut Self {
        self.alignment = alignment;
        self
    }

    /// Adds a metadata entry.
    pub fn metadata(&mut self, key: impl Into<String>, value: Value) -> &mut Self {
        self.metadata.push((key.into(), value));
        self
    }

    /// Adds a tensor; `dims[0]` is the length of a row.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        ggml_type: GgmlType,
        dims: &[u64],
        data: &'a [u8],
    ) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.into(),
            ggml_type,
            dims: dims.to_vec(),
            data: Some(data),
        });
        self
    }

    /// Adds a tensor whose bytes are supplied by [`write_with`](Writer::write_with).
    pub fn deferred_tensor(
        &mut self,
        name: impl Into<String>,
        ggml_type: GgmlType,
        dims: &[u64],
    ) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.into(),
            ggml_type,
            dims: dims.to_vec(),
            data: None,
        });
        self
    }

    /// Returns the size of the file in bytes.
    pub fn file_length(&self) -> Result<u64, GgufError> {
        let mut end = self.head()?.len() as u64;
        for tensor in &self.tensors {
            end = end.next_multiple_of(self.alignment) + tensor.length()?;
        }
        Ok(end.next_multiple_of(self.alignment))
    }

    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let mut bytes = Vec::new();
        let failed = |error: io::Error| GgufError::Write(error.to_string());
        self.write_with(&mut bytes, failed, |_, _| Ok(()))?;
        Ok(bytes)
    }

    /// Writes the file. `io` converts errors of `out`, and `fill` supplies the bytes of every tensor added with
    /// [`deferred_tensor`](Writer::deferred_tensor), by its index among all tensors.
    ///
    /// # Errors
    /// [`GgufError`] for invalid contents, [`GgufError::DataLength`] for a wrong number of bytes, and
    /// those of `io` and `fill`.
    pub fn write_with<E: From<GgufError>>(
        &self,
        out: &mut impl Write,
        io: impl Fn(io::Error) -> E,
        mut fill: impl FnMut(usize, &mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let head = self.head()?;
        out.write_all(&head).map_err(&io)?;
        let mut written = head.len() as u64;
        for (index, tensor) in self.tensors.iter().enumerate() {
            self.pad(out, &mut written).map_err(&io)?;
            let mut counting = CountingWriter {
                to: out,
                written: 0,
            };
            match tensor.data {
                Some(data) => counting.write_all(data).map_err(&io)?,
                None => fill(index, &mut counting)?,
            }
            let (expected, found) = (tensor.length()?, counting.written);
            if found != expected {
                return Err(tensor.wrong_length(expected, found).into());
            }
            written += found;
        }
        // As other writers do.
        self.pad(out, &mut written).map_err(&io)
    }

    fn pad(&self, out: &mut impl Write, written: &mut u64) -> io::Result<()> {
        let padding = written.next_multiple_of(self.alignment) - *written;
        io::copy(&mut io::Read::take(io::repeat(0), padding), out)?;
        *written += padding;
        Ok(())
    }

    fn head(&self) -> Result<Vec<u8>, GgufError> {
        if !self.alignment.is_power_of_two() || self.alignment > limits::MAX_ALIGNMENT {
            return Err(GgufError::Alignment {
                found: self.alignment,
            });
        }
        let mut metadata: Vec<(&str, &Value)> =
            self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| *key).collect();
        let alignment = Value::U32(self.alignment as u32);
        if self.alignment != DEFAULT_ALIGNMENT {
            metadata.push((ALIGNMENT_KEY, &alignment));
        }
        if let Some(key) = first_duplicate(keys.into_iter().chain([ALIGNMENT_KEY])) {
            return Err(GgufError::DuplicateKey { key });
        }
        if let Some(tensor) = first_duplicate(self.tensors.iter().map(|t| t.name.as_str())) {
            return Err(GgufError::DuplicateTensor { tensor });
        }
        let (entries, tensors) = (metadata.len() as u64, self.tensors.len() as u64);
        let file = "file";
        check_limit(
            file,
            "metadata entries",
            entries,
            limits::MAX_METADATA_ENTRIES,
        )?;
        check_limit(file, "tensors", tensors, limits::MAX_TENSORS)?;

        let mut out = MAGIC.to_vec();
        wire::put_u32(&mut out, 3);
        wire::put_u64(&mut out, tensors);
        wire::put_u64(&mut out, entries);
        for (key, value) in metadata {
            check_limit(
                key,
                "bytes of the key",
                key.len() as u64,
                limits::MAX_KEY_BYTES,
            )?;
            put_text(&mut out, key);
            wire::put_u32(&mut out, value.value_type() as u32);
            value.write(&mut ValueWriter { out: &mut out, key })?;
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_row(&mut out, tensor, offset)?;
            offset = (offset + tensor.length()?).next_multiple_of(self.alignment);
        }
        Ok(out)
    }
}

fn first_duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut seen = HashSet::new();
    let mut names = names;
    names.find(|name| !seen.insert(*name)).map(str::to_owned)
}

fn check_limit(name: &str, what: &'static str, found: u64, limit: u64) -> Result<(), GgufError> {
    if found <= limit {
        return Ok(());
    }
    Err(GgufError::Limit {
        place: format!("{name:?}: {what}"),
        found,
        limit,
    })
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    wire::put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// State while a value is written.
pub(super) struct ValueWriter<'a> {
    pub out: &'a mut Vec<u8>,
    key: &'a str,
}

impl ValueWriter<'_> {
    pub fn string(&mut self, text: &str) -> Result<(), GgufError> {
        let length = text.len() as u64;
        check_limit(
            self.key,
            "bytes of a string",
            length,
            limits::MAX_STRING_BYTES,
        )?;
        put_text(self.out, text);
        Ok(())
    }

    /// Appends type and number of the elements of an array.
    pub fn array_head(
        &mut self,
        kind: ValueType,
        count: usize,
        depth: u32,
    ) -> Result<(), GgufError> {
        let levels = u64::from(limits::MAX_ARRAY_DEPTH);
        check_limit(self.key, "levels of arrays", depth.into(), levels)?;
        wire::put_u32(self.out, kind as u32);
        wire::put_u64(self.out, count as u64);
        Ok(())
    }
}

fn put_row(out: &mut Vec<u8>, tensor: &Tensor<'_>, offset: u64) -> Result<(), GgufError> {
    let (name, dims) = (&tensor.name, &tensor.dims);
    let limit = limits::MAX_TENSOR_NAME_BYTES;
    check_limit(name, "bytes of the name", name.len() as u64, limit)?;
    let expected = tensor.length()?;
    let found = tensor.data.map_or(expected, |data| data.len() as u64);
    if found != expected {
        return Err(tensor.wrong_length(expected, found));
    }
    put_text(out, name);
    wire::put_u32(out, dims.len() as u32);
    dims.iter().for_each(|&dim| wire::put_u64(out, dim));
    wire::put_u32(out, tensor.ggml_type.id());
    wire::put_u64(out, offset);
    Ok(())
}
