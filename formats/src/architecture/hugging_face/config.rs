//! Typed reading of `config.json`.

use serde_json::{Map, Value};

use super::model_types;
use crate::escape::escape_truncated;

/// What is wrong with a `config.json`, or with what was asked of it. Keys inside of other keys
/// are written `outer.inner`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or no object.
    #[error("the configuration is unreadable: {error}")]
    Json {
        /// What is wrong, and where.
        error: String,
    },
    /// A key that had to be there.
    #[error("{key:?} is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// The type it should have had.
        expected: &'static str,
    },
    /// A value of another type than the key should have.
    #[error("{key:?}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type it should have had.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A value that is not supported, or contradicts another.
    #[error("{key:?} is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Another type of model.
    #[error(
        "model type {found:?} is not supported; supported: {}",
        model_types::names()
    )]
    ModelType {
        /// Its name.
        found: String,
    },
    /// A mixture of experts.
    #[error(
        "model type {found:?} is a mixture of experts, which is not supported; \
         supported are dense models of type {}",
        model_types::names()
    )]
    Experts {
        /// The type of the model.
        found: String,
    },
    /// A model that reads more than text.
    #[error(
        "model type {found:?} reads images (\"vision_config\"), which is not supported; \
         supported are models of text of type {}",
        model_types::names()
    )]
    Vision {
        /// The type of the model.
        found: String,
    },
    /// Weights that were quantised by another program.
    #[error(
        "the weights are quantised by {method:?} (\"quantization_config\"), which is not \
         supported; compile the model they were made from"
    )]
    Quantised {
        /// The method, as the configuration names it.
        method: String,
    },
    /// A bias that the configuration rules out.
    #[error(
        "tensor {tensor:?} is there, {}; remove the tensor or mend the configuration",
        key.map_or_else(
            || format!("models of type {model_type:?} have no such bias"),
            |key| format!("the configuration says without it ({key:?} is false or absent)"),
        )
    )]
    Bias {
        /// The bias.
        tensor: String,
        /// The type of the model.
        model_type: &'static str,
        /// The key that would allow it, where there is one.
        key: Option<&'static str>,
    },
    /// An output matrix in a model that is said to have none of its own.
    #[error(
        "tensor {output:?} differs from {embedding:?} although \"tie_word_embeddings\" says that \
         they are one; set it to false to use both, or remove the tensor"
    )]
    Tied {
        /// The output matrix.
        output: &'static str,
        /// The embedding.
        embedding: &'static str,
    },
}

/// Reads the whole configuration.
pub(super) fn parse(json: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    serde_json::from_slice(json).map_err(|error| ConfigError::Json {
        error: escape_truncated(&error.to_string()),
    })
}

/// An object of the configuration, with the path to it.
#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    /// The configuration itself.
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

    /// The path of this object; empty for the configuration itself.
    pub fn name(&self) -> &str {
        &self.path
    }

    /// The path of a key in this object.
    pub fn path(&self, key: &str) -> String {
        let key = escape_truncated(key);
        match self.path.as_str() {
            "" => key,
            path => format!("{path}.{key}"),
        }
    }

    /// Whether there is a value, and it is not null.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// A value of any type, for messages; at most one line.
    pub fn describe(&self, key: &str) -> String {
        self.map.get(key).map_or("absent".to_owned(), describe)
    }

    /// The object in this one; `None` where it is null or absent.
    pub fn object(&self, key: &str) -> Result<Option<Object<'a>>, ConfigError> {
        let map: Option<&'a Map<String, Value>> = self.optional(key)?;
        Ok(map.map(|map| Object {
            path: self.path(key),
            map,
        }))
    }

    /// A value; `None` where it is null or absent.
    pub fn optional<T: FromJson<'a>>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        self.nullable(key, None)
    }

    /// A value; `default` where it is absent, `None` where it is null.
    pub fn nullable<T: FromJson<'a>>(
        &self,
        key: &str,
        default: Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.map.get(key) {
            None => Ok(default),
            Some(Value::Null) => Ok(None),
            Some(value) => self.typed(key, value).map(Some),
        }
    }

    /// Whether something is so; null is as good as false, as in Python.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.nullable(key, Some(default))?.unwrap_or(false))
    }

    /// A value; `default` where it is absent.
    pub fn or<T: FromJson<'a>>(&self, key: &str, default: T) -> Result<T, ConfigError> {
        match self.map.get(key) {
            None => Ok(default),
            Some(value) => self.typed(key, value),
        }
    }

    /// A value that has to be there.
    pub fn required<T: FromJson<'a>>(&self, key: &str) -> Result<T, ConfigError> {
        match self.map.get(key) {
            Some(value) => self.typed(key, value),
            None => Err(ConfigError::Missing {
                key: self.path(key),
                expected: T::EXPECTED,
            }),
        }
    }

    fn typed<T: FromJson<'a>>(&self, key: &str, value: &'a Value) -> Result<T, ConfigError> {
        T::from_json(value).ok_or_else(|| ConfigError::WrongType {
            key: self.path(key),
            expected: T::EXPECTED,
            found: describe(value),
        })
    }

    /// The error for a value that may not be what it is.
    pub fn refuse(&self, key: &str, expected: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            key: self.path(key),
            expected: expected.into(),
            found: self.describe(key),
        }
    }
}

/// Type and value, for messages.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(text) => format!("{:?}", escape_truncated(text)),
        Value::Array(values) => format!("an array of {}", values.len()),
        Value::Object(map) => format!("an object of {}", map.len()),
    }
}

/// What a value of the configuration can be asked for as.
pub(super) trait FromJson<'a>: Sized {
    /// The type as messages name it.
    const EXPECTED: &'static str;

    /// The value as this type; `None` when it is another.
    fn from_json(value: &'a Value) -> Option<Self>;
}

impl FromJson<'_> for usize {
    const EXPECTED: &'static str = "a non-negative integer";

    fn from_json(value: &Value) -> Option<Self> {
        value.as_u64()?.try_into().ok()
    }
}

impl FromJson<'_> for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_json(value: &Value) -> Option<Self> {
        value.as_f64()
    }
}

impl FromJson<'_> for f32 {
    const EXPECTED: &'static str = f64::EXPECTED;

    // Rounded: hyper-parameters are used as f32 however they are stated.
    fn from_json(value: &Value) -> Option<Self> {
        value.as_f64().map(|value| value as f32)
    }
}

impl FromJson<'_> for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_json(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl<'a> FromJson<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_json(value: &'a Value) -> Option<Self> {
        value.as_str()
    }
}

impl<'a> FromJson<'a> for &'a [Value] {
    const EXPECTED: &'static str = "an array";

    fn from_json(value: &'a Value) -> Option<Self> {
        value.as_array().map(Vec::as_slice)
    }
}

impl<'a> FromJson<'a> for &'a Map<String, Value> {
    const EXPECTED: &'static str = "an object";

    fn from_json(value: &'a Value) -> Option<Self> {
        value.as_object()
    }
}
