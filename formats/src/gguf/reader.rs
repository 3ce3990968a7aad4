//! Parser of GGUF files.

use super::error::GgufError;
use super::value::{FromValue, Value, ValueType};
use super::{ALIGNMENT_KEY, Contents, DEFAULT_ALIGNMENT, GgmlType, MAGIC, TensorInfo};
use crate::CodecError;
use crate::limits;
use crate::wire::{Cursor, align_up};

/// A key (its length, no text) and a value of one byte with its type.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// A name (its length, no text), the number of dimensions, one dimension, the type, the offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

pub(super) fn parse(bytes: &[u8]) -> Result<Contents, GgufError> {
    let mut cursor = Cursor::new(bytes);
    let version = read_version(&mut cursor)?;
    let header = |error| read_error("header", error);
    let tensor_count = cursor.u64().map_err(header)?;
    let entry_count = cursor.u64().map_err(header)?;

    let place = || "metadata entries".to_owned();
    check_limit(place, entry_count, limits::MAX_METADATA_ENTRIES)?;
    check_count(place, entry_count, MIN_ENTRY_BYTES, &cursor)?;
    let mut memory = MetadataMemory::default();
    memory.add_items(place, entry_count, size_of::<(String, Value)>() as u64)?;
    let mut metadata = Vec::with_capacity(entry_count as usize);
    for index in 0..entry_count {
        metadata.push(read_entry(&mut cursor, &mut memory, index)?);
    }
    let key_order = sorted_indices(&metadata, |entry| &entry.0);
    if let Some(key) = first_duplicate(&metadata, &key_order, |entry| &entry.0) {
        return Err(GgufError::DuplicateKey { key });
    }
    let alignment = alignment(&metadata)?;

    // The tensor table follows the metadata.
    let place = || "tensors".to_owned();
    check_limit(place, tensor_count, limits::MAX_TENSORS)?;
    check_count(place, tensor_count, MIN_TENSOR_BYTES, &cursor)?;
    let mut rows = Vec::with_capacity(tensor_count as usize);
    for index in 0..tensor_count {
        rows.push(read_row(&mut cursor, index)?);
    }

    let data_offset = align_up(cursor.position() as u64, alignment).ok_or(GgufError::Limit {
        place: "offset of the tensor data".to_owned(),
        found: cursor.position() as u64,
        limit: u64::MAX - alignment,
    })?;
    let mut tensors = Vec::with_capacity(rows.len());
    for row in rows {
        tensors.push(check_tensor(row, alignment, data_offset, bytes.len())?);
    }
    let tensor_order = sorted_indices(&tensors, |tensor| &tensor.name);
    if let Some(tensor) = first_duplicate(&tensors, &tensor_order, |tensor| &tensor.name) {
        return Err(GgufError::DuplicateTensor { tensor });
    }
    check_overlap(&tensors)?;

    Ok(Contents {
        version,
        alignment,
        data_offset,
        metadata,
        key_order,
        tensors,
        tensor_order,
    })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let length = cursor.remaining().min(MAGIC.len()) as u64;
    let header = |error| read_error("header", error);
    let magic = cursor.bytes(length).map_err(header)?;
    // Some writers on big-endian machines reverse the magic as well.
    if magic.iter().rev().eq(MAGIC.iter()) {
        return Err(GgufError::BigEndian);
    }
    if magic != MAGIC {
        return Err(GgufError::NotGguf {
            found: magic.to_vec(),
        });
    }
    let version = cursor.u32().map_err(header)?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 1..=0xffff) => Err(GgufError::BigEndian),
        found => Err(GgufError::Version { found }),
    }
}

/// Memory of the metadata so far, counted before allocation: a sparse file can hold any number of
/// empty strings.
#[derive(Debug, Default)]
struct MetadataMemory(u64);

const ALLOCATION_OVERHEAD: u64 = 16;

impl MetadataMemory {
    fn add_items(
        &mut self,
        place: impl Fn() -> String,
        count: u64,
        each: u64,
    ) -> Result<(), GgufError> {
        self.0 = self.0.saturating_add(count.saturating_mul(each));
        let place = || format!("{}: bytes of memory for the metadata so far", place());
        check_limit(place, self.0, limits::MAX_METADATA_MEMORY)
    }

    fn add_text(&mut self, place: impl Fn() -> String, text: &str) -> Result<(), GgufError> {
        match text.len() as u64 {
            0 => Ok(()),
            length => self.add_items(place, 1, length + ALLOCATION_OVERHEAD),
        }
    }
}

fn read_entry(
    cursor: &mut Cursor<'_>,
    memory: &mut MetadataMemory,
    index: u64,
) -> Result<(String, Value), GgufError> {
    let place = || format!("key of metadata entry {index}");
    let key = read_text(cursor, place, limits::MAX_KEY_BYTES)?;
    memory.add_text(place, key)?;
    let key = key.to_owned();
    let mut reader = ValueReader {
        cursor,
        memory,
        key: &key,
    };
    let kind = reader.kind()?;
    let value = Value::read(kind, &mut reader)?;
    Ok((key, value))
}

fn read_text<'a>(
    cursor: &mut Cursor<'a>,
    place: impl Fn() -> String,
    limit: u64,
) -> Result<&'a str, GgufError> {
    let length = cursor.u64().map_err(|error| read_error(place(), error))?;
    // Truncation is reported first, because its remedy is another copy.
    if length <= cursor.remaining() as u64 {
        check_limit(&place, length, limit)?;
    }
    cursor
        .str(length)
        .map_err(|error| read_error(place(), error))
}

/// State while a value is read.
pub(super) struct ValueReader<'a, 'b> {
    pub cursor: &'a mut Cursor<'b>,
    memory: &'a mut MetadataMemory,
    key: &'a str,
}

impl ValueReader<'_, '_> {
    pub fn error(&self, error: CodecError) -> GgufError {
        read_error(format!("metadata {:?}", self.key), error)
    }

    fn kind(&mut self) -> Result<ValueType, GgufError> {
        let found = self.cursor.u32().map_err(|error| self.error(error))?;
        ValueType::from_id(found).ok_or_else(|| GgufError::ValueType {
            key: self.key.to_owned(),
            found,
        })
    }

    pub fn string(&mut self) -> Result<String, GgufError> {
        let key = self.key;
        let place = || format!("metadata {key:?}");
        let text = read_text(self.cursor, place, limits::MAX_STRING_BYTES)?;
        self.memory.add_text(place, text)?;
        Ok(text.to_owned())
    }

    /// Reads type and number of the elements of an array.
    pub fn array_head(&mut self, depth: u32) -> Result<(ValueType, u64), GgufError> {
        let key = self.key;
        if depth > limits::MAX_ARRAY_DEPTH {
            return Err(GgufError::Nesting {
                key: key.to_owned(),
            });
        }
        let kind = self.kind()?;
        let count = self.cursor.u64().map_err(|error| self.error(error))?;
        let place = || format!("elements of metadata {key:?}");
        check_count(place, count, kind.min_bytes(), self.cursor)?;
        self.memory.add_items(place, count, kind.memory_bytes())?;
        Ok((kind, count))
    }
}

fn alignment(metadata: &[(String, Value)]) -> Result<u64, GgufError> {
    let Some((key, value)) = metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let found = u64::from_value(value).ok_or_else(|| GgufError::WrongType {
        key: key.clone(),
        expected: u64::EXPECTED,
        found: value.describe(),
    })?;
    if !found.is_power_of_two() || found > limits::MAX_ALIGNMENT {
        return Err(GgufError::Alignment { found });
    }
    Ok(found)
}

/// A raw entry of the tensor table; the offset is relative to the data.
struct RawTensorInfo {
    name: String,
    ggml_type: GgmlType,
    dims: Vec<u64>,
    offset: u64,
}

fn read_row(cursor: &mut Cursor<'_>, index: u64) -> Result<RawTensorInfo, GgufError> {
    let place = || format!("name of tensor {index}");
    let name = read_text(cursor, place, limits::MAX_TENSOR_NAME_BYTES)?.to_owned();
    let wire = |error| read_error(format!("tensor {name:?}"), error);
    let found = cursor.u32().map_err(wire)?;
    if found == 0 || found > limits::MAX_DIMENSIONS {
        return Err(GgufError::Dimensions {
            tensor: name,
            found,
        });
    }
    let mut dims = Vec::with_capacity(found as usize);
    for _ in 0..found {
        dims.push(cursor.u64().map_err(wire)?);
    }
    let id = cursor.u32().map_err(wire)?;
    let offset = cursor.u64().map_err(wire)?;
    let ggml_type = GgmlType::from_id(id).ok_or_else(|| GgufError::UnknownType {
        tensor: name.clone(),
        found: id,
    })?;
    Ok(RawTensorInfo {
        name,
        ggml_type,
        dims,
        offset,
    })
}

fn check_tensor(
    row: RawTensorInfo,
    alignment: u64,
    data_offset: u64,
    length: usize,
) -> Result<TensorInfo, GgufError> {
    let RawTensorInfo {
        name,
        ggml_type,
        dims,
        offset,
    } = row;
    let numbers = dims
        .iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .and_then(|product| usize::try_from(product).ok());
    if matches!(numbers, None | Some(0)) {
        return Err(GgufError::Shape { tensor: name, dims });
    }
    let (cols, rows) = (dims[0], dims[1..].iter().product::<u64>());
    if !cols.is_multiple_of(ggml_type.block_len()) {
        return Err(GgufError::Row {
            tensor: name,
            ggml_type,
            row: cols,
            block: ggml_type.block_len(),
        });
    }
    let Some(size) = ggml_type.matrix_bytes(rows, cols) else {
        return Err(GgufError::Shape { tensor: name, dims });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Misaligned {
            tensor: name,
            offset,
            alignment,
        });
    }
    let start = data_offset.saturating_add(offset);
    let end = start.saturating_add(size);
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if end <= length => Ok(TensorInfo {
            name,
            ggml_type,
            dims,
            range: start..end,
        }),
        _ => Err(GgufError::BeyondEnd {
            tensor: name,
            end,
            length: length as u64,
        }),
    }
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    match by_start
        .windows(2)
        .find(|pair| pair[0].range.end > pair[1].range.start)
    {
        None => Ok(()),
        Some(pair) => Err(GgufError::Overlap {
            first: pair[0].name.clone(),
            second: pair[1].name.clone(),
        }),
    }
}

fn sorted_indices<T>(items: &[T], name: impl Fn(&T) -> &String) -> Vec<u32> {
    // Lossless: counts are bounded by `limits`.
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_by(|&a, &b| name(&items[a as usize]).cmp(name(&items[b as usize])));
    order
}

fn first_duplicate<T>(items: &[T], order: &[u32], name: impl Fn(&T) -> &String) -> Option<String> {
    order
        .windows(2)
        .map(|pair| {
            (
                name(&items[pair[0] as usize]),
                name(&items[pair[1] as usize]),
            )
        })
        .find(|(a, b)| a == b)
        .map(|(a, _)| a.clone())
}

fn check_limit(place: impl Fn() -> String, found: u64, limit: u64) -> Result<(), GgufError> {
    if found <= limit {
        return Ok(());
    }
    Err(GgufError::Limit {
        place: place(),
        found,
        limit,
    })
}

/// Rejects a count of items of at least `each` bytes that exceeds the remaining bytes.
fn check_count(
    place: impl Fn() -> String,
    found: u64,
    each: u64,
    cursor: &Cursor<'_>,
) -> Result<(), GgufError> {
    let possible = cursor.remaining() as u64 / each;
    if found <= possible {
        return Ok(());
    }
    Err(GgufError::Count {
        place: place(),
        found,
        possible,
    })
}

fn read_error(place: impl Into<String>, error: CodecError) -> GgufError {
    GgufError::Read {
        item: place.into(),
        error,
    }
}
