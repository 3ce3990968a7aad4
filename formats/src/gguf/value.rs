//! Metadata values.

use std::fmt;

macro_rules! value_types {
    ($($id:literal $variant:ident $name:literal;)*) => {
        /// Type of a metadata value or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "a table of the format's own names")]
        #[repr(u32)]
        pub enum ValueType { $($variant = $id,)* }

        impl ValueType {
            /// Returns the type of an identifier.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(ValueType::$variant),)*
                    _ => None,
                }
            }

            /// Name in messages.
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$variant => $name,)* }
            }
        }
    };
}

value_types! {
    0 U8 "u8";
    1 I8 "i8";
    2 U16 "u16";
    3 I16 "i16";
    4 U32 "u32";
    5 I32 "i32";
    6 F32 "f32";
    7 Bool "bool";
    8 String "string";
    9 Array "array";
    10 U64 "u64";
    11 I64 "i64";
    12 F64 "f64";
}

impl ValueType {
    /// Minimum bytes of a value in a file.
    pub(super) const fn min_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            // Length.
            ValueType::String => 8,
            // Type and length.
            ValueType::Array => 12,
        }
    }

    pub(super) const fn memory_bytes(self) -> u64 {
        match self {
            ValueType::String => size_of::<String>() as u64,
            ValueType::Array => size_of::<Array>() as u64,
            other => other.min_bytes(),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the format's types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// Elements of an array, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variants are the format's types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

macro_rules! per_type {
    ($value:expr, $of:ident, $inner:ident => $body:expr) => {
        match $value {
            $of::U8($inner) => $body,
            $of::I8($inner) => $body,
            $of::U16($inner) => $body,
            $of::I16($inner) => $body,
            $of::U32($inner) => $body,
            $of::I32($inner) => $body,
            $of::F32($inner) => $body,
            $of::Bool($inner) => $body,
            $of::String($inner) => $body,
            $of::Array($inner) => $body,
            $of::U64($inner) => $body,
            $of::I64($inner) => $body,
            $of::F64($inner) => $body,
        }
    };
}

macro_rules! kind_of {
    ($value:expr, $of:ident) => {
        match $value {
            $of::U8(_) => ValueType::U8,
            $of::I8(_) => ValueType::I8,
            $of::U16(_) => ValueType::U16,
            $of::I16(_) => ValueType::I16,
            $of::U32(_) => ValueType::U32,
            $of::I32(_) => ValueType::I32,
            $of::F32(_) => ValueType::F32,
            $of::Bool(_) => ValueType::Bool,
            $of::String(_) => ValueType::String,
            $of::Array(_) => ValueType::Array,
            $of::U64(_) => ValueType::U64,
            $of::I64(_) => ValueType::I64,
            $of::F64(_) => ValueType::F64,
        }
    };
}

impl Value {
    /// Type of the value.
    pub const fn value_type(&self) -> ValueType {
        kind_of!(self, Value)
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Value::String(text) => {
                let mut start: String = text.chars().take(40).collect();
                if start.len() < text.len() {
                    start.push('…');
                }
                format!("string {start:?}")
            }
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_type()),
            Value::U8(v) => format!("u8 {v}"),
            Value::I8(v) => format!("i8 {v}"),
            Value::U16(v) => format!("u16 {v}"),
            Value::I16(v) => format!("i16 {v}"),
            Value::U32(v) => format!("u32 {v}"),
            Value::I32(v) => format!("i32 {v}"),
            Value::U64(v) => format!("u64 {v}"),
            Value::I64(v) => format!("i64 {v}"),
            Value::F32(v) => format!("f32 {v}"),
            Value::F64(v) => format!("f64 {v}"),
            Value::Bool(v) => format!("bool {v}"),
        }
    }
}

impl Array {
    /// Type of the elements.
    pub const fn element_type(&self) -> ValueType {
        kind_of!(self, Array)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        per_type!(self, Array, elements => elements.len())
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Types to which a metadata value can be converted.
pub trait FromValue<'a>: Sized {
    /// Name of the type in messages.
    const EXPECTED: &'static str;

    /// Converts the value losslessly, or returns `None`.
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl FromValue<'_> for u64 {
    const EXPECTED: &'static str = "a non-negative integer";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }
}

impl FromValue<'_> for u32 {
    const EXPECTED: &'static str = "a non-negative 32-bit integer";

    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for usize {
    const EXPECTED: &'static str = u64::EXPECTED;

    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a floating-point number";

    // Hyper-parameters are used as f32.
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a boolean";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a Array {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }
}

macro_rules! slices {
    ($($element:ty, $variant:ident, $expected:literal;)*) => {$(
        impl<'a> FromValue<'a> for &'a [$element] {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    Value::Array(Array::$variant(elements)) => Some(elements),
                    _ => None,
                }
            }
        }
    )*};
}

slices! {
    String, String, "an array of strings";
    f32, F32, "an array of f32";
    i32, I32, "an array of i32";
}
