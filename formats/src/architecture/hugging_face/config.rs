//! Typed reading of `config.json`.

use serde_json::{Map, Value};

use crate::architecture::BindError;
use crate::architecture::error::Result;
use crate::escape::escape_truncated;
use crate::python_json;

pub(super) fn parse(json: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(&python_json::standard(json)).map_err(|error| BindError::ConfigJson {
        error: escape_truncated(&error.to_string()),
    })
}

#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub fn root(map: &'a Map<String, Value>) -> Self {
        Object {
            path: String::new(),
            map,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// Returns the path of this object; empty for the root.
    pub fn name(&self) -> &str {
        &self.path
    }

    /// Returns the path of a key.
    pub fn path(&self, key: &str) -> String {
        let key = escape_truncated(key);
        match self.path.as_str() {
            "" => key,
            path => format!("{path}.{key}"),
        }
    }

    /// Returns true if the value exists and is not null.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Describes a value for messages, in one line.
    pub fn describe(&self, key: &str) -> String {
        self.map.get(key).map_or("absent".to_owned(), describe)
    }

    /// Returns a nested object; `None` if null or absent.
    pub fn object(&self, key: &str) -> Result<Option<Object<'a>>> {
        let map: Option<&'a Map<String, Value>> = self.optional(key)?;
        Ok(map.map(|map| Object {
            path: self.path(key),
            map,
        }))
    }

    /// Returns a value; `None` if null or absent.
    pub fn optional<T: FromJson<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.nullable(key, None)
    }

    /// Returns a value; `default` if absent, `None` if null.
    pub fn nullable<T: FromJson<'a>>(&self, key: &str, default: Option<T>) -> Result<Option<T>> {
        match self.map.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(value) => self.typed(key, value).map(Some),
        }
    }

    /// Returns a flag; null is false, as in Python.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.nullable(key, Some(default))?.unwrap_or(false))
    }

    /// Returns a value; `default` if absent.
    pub fn or<T: FromJson<'a>>(&self, key: &str, default: T) -> Result<T> {
        match self.map.get(key) {
            None => Ok(default),
            Some(value) => self.typed(key, value),
        }
    }

    /// Returns a required value.
    pub fn required<T: FromJson<'a>>(&self, key: &str) -> Result<T> {
        match self.map.get(key) {
            Some(value) => self.typed(key, value),
            None => Err(BindError::MissingKey {
                key: self.path(key),
                expected: T::EXPECTED,
            }),
        }
    }

    fn typed<T: FromJson<'a>>(&self, key: &str, value: &'a Value) -> Result<T> {
        T::from_json(value).ok_or_else(|| BindError::WrongKeyType {
            key: self.path(key),
            expected: T::EXPECTED,
            found: describe(value),
        })
    }

    /// Returns the error for an unsupported value.
    pub fn refuse(&self, key: &str, expected: impl Into<String>) -> BindError {
        BindError::KeyValue {
            key: self.path(key),
            expected: expected.into(),
            found: self.describe(key),
        }
    }
}

fn describe(value: &Value) -> String {
    if let Some(number) = python_json::not_finite(value) {
        return number.to_owned();
    }
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => format!("{:?}", escape_truncated(text)),
        Value::Array(values) => format!("an array of {}", values.len()),
        Value::Object(map) => format!("an object of {}", map.len()),
    }
}

/// Types of values.
pub(super) trait FromJson<'a>: Sized {
    /// Type name for messages.
    const EXPECTED: &'static str;

    /// Returns the value as this type; `None` if it is another.
    fn from_json(value: &'a Value) -> Option<Self>;
}

macro_rules! from_json {
    ($($type:ty, $expected:expr, $convert:expr;)*) => {$(
        impl<'a> FromJson<'a> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_json(value: &'a Value) -> Option<Self> {
                $convert(value)
            }
        }
    )*};
}

// Numbers are rounded to f32, as hyper-parameters are.
from_json! {
    usize, "a non-negative integer", |value: &Value| value.as_u64()?.try_into().ok();
    f64, "a number", Value::as_f64;
    f32, f64::EXPECTED, |value: &Value| value.as_f64().map(|value| value as f32);
    bool, "true or false", Value::as_bool;
    &'a str, "a string", Value::as_str;
    &'a [Value], "an array", |value: &'a Value| value.as_array().map(Vec::as_slice);
    &'a Map<String, Value>, "an object", Value::as_object;
}
