//! JSON values of untrusted manifests: lists in bounded length, and values with unique keys in
//! bounded number.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Error, Map, Value};

use crate::escape::escape_truncated;

/// Parses a text of at most `limit` values, which includes lists and objects.
pub(crate) fn parse(text: &str, limit: usize) -> Result<Value, Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = deserialize(&mut deserializer, limit)?;
    deserializer.end()?;
    Ok(value)
}

/// Deserialises a value as [`parse`] does.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
    limit: usize,
) -> Result<Value, D::Error> {
    ValueSeed(&mut ValueCount::new(limit)).deserialize(deserializer)
}

/// Deserialises a list of at most `LIMIT` items.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, const LIMIT: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    fold(deserializer, Vec::new(), |list, item| {
        if list.len() == LIMIT {
            return Err(format!(
                "expected at most {LIMIT} items of a list, found more"
            ));
        }
        list.push(item);
        Ok(())
    })
}

/// Deserialises a list without holding it: `add` takes one item after the other.
pub(crate) fn fold<'de, D: Deserializer<'de>, A, T: Deserialize<'de>>(
    deserializer: D,
    start: A,
    add: impl FnMut(&mut A, T) -> Result<(), String>,
) -> Result<A, D::Error> {
    let (value, item) = (start, PhantomData);
    deserializer.deserialize_seq(ListVisitor { value, add, item })
}

struct ListVisitor<A, F, T> {
    value: A,
    add: F,
    item: PhantomData<T>,
}

impl<'de, A, F, T> Visitor<'de> for ListVisitor<A, F, T>
where
    F: FnMut(&mut A, T) -> Result<(), String>,
    T: Deserialize<'de>,
{
    type Value = A;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut items: S) -> Result<A, S::Error> {
        while let Some(item) = items.next_element()? {
            (self.add)(&mut self.value, item).map_err(S::Error::custom)?;
        }
        Ok(self.value)
    }
}

/// Number of JSON values that may still be read.
pub(crate) struct ValueCount {
    limit: usize,
    left: usize,
}

impl ValueCount {
    pub(crate) fn new(limit: usize) -> ValueCount {
        ValueCount { limit, left: limit }
    }
}

/// Deserialises a value, which includes those in it, that the count allows.
pub(crate) struct ValueSeed<'a>(pub(crate) &'a mut ValueCount);

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let ValueCount { limit, left } = self.0;
        let rest = left.checked_sub(1);
        *left = rest.ok_or_else(|| {
            D::Error::custom(format!(
                "expected at most {limit} values in all, found more"
            ))
        })?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(ValueSeed(self.0))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            match object.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(entries.next_value_seed(ValueSeed(self.0))?);
                }
                Entry::Occupied(entry) => {
                    let key = escape_truncated(entry.key());
                    let message = format!("duplicate field `{key}`, expected every key once");
                    return Err(A::Error::custom(message));
                }
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests;
