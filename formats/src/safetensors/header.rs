//! Parser of safetensors headers.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Contents, Element, SafetensorsError, TensorInfo};
use crate::bounded_json;
use crate::escape::escape_truncated;
use crate::limits;

const LENGTH_BYTES: usize = 8;

const METADATA: &str = "__metadata__";

pub(super) fn parse(bytes: &[u8]) -> Result<Contents, SafetensorsError> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(SafetensorsError::TooShort {
            length: bytes.len(),
        });
    };
    let stated = u64::from_le_bytes(*length);
    // Truncation is reported first, because its remedy is another copy.
    if stated > rest.len() as u64 {
        return Err(SafetensorsError::HeaderLength {
            stated,
            left: rest.len() as u64,
        });
    }
    if stated > limits::MAX_HEADER_BYTES {
        return Err(SafetensorsError::Limit {
            item: "bytes of the header".to_owned(),
            found: stated,
            limit: limits::MAX_HEADER_BYTES,
        });
    }
    let (header, data) = rest.split_at(stated as usize);
    let rows = parse_entries(header)?;
    let data_offset = LENGTH_BYTES + header.len();
    let mut tensors = Vec::with_capacity(rows.len());
    for row in rows {
        tensors.push(check_tensor(row, data_offset, data.len())?);
    }
    check_coverage(&mut tensors, data_offset, bytes.len())?;
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(SafetensorsError::DuplicateTensor {
            tensor: pair[0].name.clone(),
        });
    }
    Ok(Contents { tensors })
}

struct HeaderEntry {
    name: String,
    entry: Entry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    #[serde(deserialize_with = "shape")]
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Parses the JSON without building a tree, so that the number of tensors bounds memory.
fn parse_entries(header: &[u8]) -> Result<Vec<HeaderEntry>, SafetensorsError> {
    let json = |error: serde_json::Error| SafetensorsError::Json {
        error: escape_truncated(&error.to_string()),
    };
    if header.first() != Some(&b'{') {
        return Err(SafetensorsError::NotSafetensors {
            found: header.iter().copied().take(8).collect(),
        });
    }
    let mut deserializer = serde_json::Deserializer::from_slice(header);
    let rows = deserializer.deserialize_map(Rows).map_err(json)?;
    deserializer.end().map_err(json)?;
    Ok(rows)
}

struct Rows;

impl<'de> Visitor<'de> for Rows {
    type Value = Vec<HeaderEntry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<HeaderEntry>, A::Error> {
        let mut rows = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredTexts>()?;
                continue;
            }
            check_name(&name)?;
            check_count(rows.len())?;
            let entry = map
                .next_value::<Entry>()
                .map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            rows.push(HeaderEntry { name, entry });
        }
        Ok(rows)
    }
}

pub(super) fn check_name<E: Error>(name: &str) -> Result<(), E> {
    let limit = limits::MAX_TENSOR_NAME_BYTES;
    if name.len() as u64 <= limit {
        return Ok(());
    }
    Err(E::custom(format!(
        "a name has {} bytes, {limit} is the most that is supported: {:?}",
        name.len(),
        escape_truncated(name)
    )))
}

pub(super) fn check_count<E: Error>(tensors: usize) -> Result<(), E> {
    if (tensors as u64) < limits::MAX_TENSORS {
        return Ok(());
    }
    let limit = limits::MAX_TENSORS;
    Err(E::custom(format!("there are more than {limit} tensors")))
}

/// Texts are validated and dropped.
struct IgnoredTexts;

impl<'de> Deserialize<'de> for IgnoredTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IgnoredTexts)
    }
}

impl<'de> Visitor<'de> for IgnoredTexts {
    type Value = IgnoredTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IgnoredTexts, A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(self)
    }
}

fn shape<'de, D: Deserializer<'de>>(lengths: D) -> Result<Vec<u64>, D::Error> {
    bounded_json::fold(lengths, Vec::new(), |shape, length| {
        if shape.len() == limits::MAX_DIMENSIONS as usize {
            let limit = limits::MAX_DIMENSIONS;
            return Err(format!(
                "expected a shape of at most {limit} dimensions, found more"
            ));
        }
        shape.push(length);
        Ok(())
    })
}

fn check_tensor(
    row: HeaderEntry,
    data_offset: usize,
    data_length: usize,
) -> Result<TensorInfo, SafetensorsError> {
    let HeaderEntry { name, entry } = row;
    let Some(&element) = Element::ALL.iter().find(|e| e.name() == entry.dtype) else {
        return Err(SafetensorsError::UnknownType {
            tensor: name,
            found: escape_truncated(&entry.dtype),
        });
    };
    let shape = entry.shape;
    let [start, end] = entry.data_offsets;
    let bits = shape
        .iter()
        .try_fold(element.bits(), |product, &dim| product.checked_mul(dim));
    // Even if the product of its other dimensions overflows.
    let bits = if shape.contains(&0) { Some(0) } else { bits };
    let expected = bits
        .filter(|bits| bits.is_multiple_of(8))
        .map(|bits| bits / 8);
    if expected.is_none() || end.checked_sub(start) != expected {
        return Err(SafetensorsError::Length {
            tensor: name,
            element,
            shape,
            expected,
            start,
            end,
        });
    }
    if end > data_length as u64 {
        return Err(SafetensorsError::BeyondEnd {
            tensor: name,
            end,
            length: data_length as u64,
        });
    }
    let (start, end) = (start as usize, end as usize);
    Ok(TensorInfo {
        name,
        element,
        shape,
        range: data_offset + start..data_offset + end,
    })
}

/// Checks that the tensors cover the data, from `start` to `end` of the file, without gap or
/// overlap. Sorts them by offset.
fn check_coverage(
    tensors: &mut [TensorInfo],
    start: usize,
    end: usize,
) -> Result<(), SafetensorsError> {
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let mut covered = start;
    let mut before: Option<&TensorInfo> = None;
    for tensor in tensors.iter() {
        if let Some(before) = before.filter(|_| tensor.range.start < covered) {
            return Err(SafetensorsError::Overlap {
                first: before.name.clone(),
                second: tensor.name.clone(),
            });
        }
        if tensor.range.start > covered {
            return Err(SafetensorsError::Gap {
                before: Some(tensor.name.clone()),
                bytes: (tensor.range.start - covered) as u64,
            });
        }
        covered = tensor.range.end;
        before = Some(tensor);
    }
    if covered < end {
        return Err(SafetensorsError::Gap {
            before: None,
            bytes: (end - covered) as u64,
        });
    }
    Ok(())
}
