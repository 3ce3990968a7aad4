//! Metadata values.

use super::error::GgufError;
use super::reader::ValueReader;
use super::writer::ValueWriter;
use crate::wire;

/// A Rust type of metadata values: its encoding and its form in messages.
pub(super) trait Element: Sized {
    /// Minimum bytes of a value in a file.
    const MIN_BYTES: u64;

    /// Reads a value; `depth` is the depth of an array that it may be.
    fn read(reader: &mut ValueReader<'_, '_>, depth: u32) -> Result<Self, GgufError>;

    /// Appends the value.
    fn write(&self, writer: &mut ValueWriter<'_>, depth: u32) -> Result<(), GgufError>;

    fn describe(&self) -> String;
}

macro_rules! numbers {
    ($($number:ident $put:ident),*) => {$(
        impl Element for $number {
            const MIN_BYTES: u64 = size_of::<$number>() as u64;

            fn read(reader: &mut ValueReader<'_, '_>, _: u32) -> Result<Self, GgufError> {
                reader.cursor.$number().map_err(|error| reader.error(error))
            }

            fn write(&self, writer: &mut ValueWriter<'_>, _: u32) -> Result<(), GgufError> {
                wire::$put(writer.out, *self);
                Ok(())
            }

            fn describe(&self) -> String {
                format!("{} {self}", stringify!($number))
            }
        }
    )*};
}

numbers!(
    u8 put_u8, i8 put_i8, u16 put_u16, i16 put_i16, u32 put_u32, i32 put_i32, f32 put_f32,
    u64 put_u64, i64 put_i64, f64 put_f64
);

impl Element for bool {
    const MIN_BYTES: u64 = 1;

    fn read(reader: &mut ValueReader<'_, '_>, _: u32) -> Result<Self, GgufError> {
        reader.cursor.bool().map_err(|error| reader.error(error))
    }

    fn write(&self, writer: &mut ValueWriter<'_>, depth: u32) -> Result<(), GgufError> {
        u8::from(*self).write(writer, depth)
    }

    fn describe(&self) -> String {
        format!("bool {self}")
    }
}

impl Element for String {
    /// Bytes of the length.
    const MIN_BYTES: u64 = 8;

    fn read(reader: &mut ValueReader<'_, '_>, _: u32) -> Result<Self, GgufError> {
        reader.string()
    }

    fn write(&self, writer: &mut ValueWriter<'_>, _: u32) -> Result<(), GgufError> {
        writer.string(self)
    }

    fn describe(&self) -> String {
        let mut start: String = self.chars().take(40).collect();
        if start.len() < self.len() {
            start.push('…');
        }
        format!("string {start:?}")
    }
}

impl Element for Array {
    /// Bytes of type and length.
    const MIN_BYTES: u64 = 12;

    fn read(reader: &mut ValueReader<'_, '_>, depth: u32) -> Result<Self, GgufError> {
        let (kind, count) = reader.array_head(depth)?;
        Array::read_elements(kind, count, reader, depth + 1)
    }

    fn write(&self, writer: &mut ValueWriter<'_>, depth: u32) -> Result<(), GgufError> {
        writer.array_head(self.element_type(), self.len(), depth)?;
        self.write_elements(writer, depth + 1)
    }

    fn describe(&self) -> String {
        format!("array of {} {}", self.len(), self.element_type())
    }
}

fn read_elements<T: Element>(
    count: u64,
    reader: &mut ValueReader<'_, '_>,
    depth: u32,
) -> Result<Vec<T>, GgufError> {
    let mut elements = Vec::with_capacity(count as usize);
    for _ in 0..count {
        elements.push(T::read(reader, depth)?);
    }
    Ok(elements)
}

macro_rules! value_types {
    ($($id:literal $variant:ident $type:ty, $name:literal;)*) => {
        /// Type of a metadata value or of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "a table of the format's own names")]
        #[repr(u32)]
        pub enum ValueType { $($variant = $id,)* }

        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the variants are the format's types")]
        pub enum Value { $($variant($type),)* }

        /// Elements of an array, all of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the variants are the format's types")]
        pub enum Array { $($variant(Vec<$type>),)* }

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

            pub(super) const fn min_bytes(self) -> u64 {
                match self { $(ValueType::$variant => <$type>::MIN_BYTES,)* }
            }

            pub(super) const fn memory_bytes(self) -> u64 {
                match self { $(ValueType::$variant => size_of::<$type>() as u64,)* }
            }
        }

        impl Value {
            /// Type of the value.
            pub const fn value_type(&self) -> ValueType {
                match self { $(Value::$variant(_) => ValueType::$variant,)* }
            }

            pub(super) fn read(
                kind: ValueType,
                reader: &mut ValueReader<'_, '_>,
            ) -> Result<Self, GgufError> {
                Ok(match kind { $(ValueType::$variant => Value::$variant(Element::read(reader, 1)?),)* })
            }

            pub(super) fn write(&self, writer: &mut ValueWriter<'_>) -> Result<(), GgufError> {
                match self { $(Value::$variant(value) => value.write(writer, 1),)* }
            }

            pub(super) fn describe(&self) -> String {
                match self { $(Value::$variant(value) => value.describe(),)* }
            }
        }

        impl Array {
            /// Type of the elements.
            pub const fn element_type(&self) -> ValueType {
                match self { $(Array::$variant(_) => ValueType::$variant,)* }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Array::$variant(elements) => elements.len(),)* }
            }

            /// Returns true if there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            fn read_elements(
                kind: ValueType,
                count: u64,
                reader: &mut ValueReader<'_, '_>,
                depth: u32,
            ) -> Result<Self, GgufError> {
                Ok(match kind {
                    $(ValueType::$variant => Array::$variant(read_elements(count, reader, depth)?),)*
                })
            }

            fn write_elements(
                &self,
                writer: &mut ValueWriter<'_>,
                depth: u32,
            ) -> Result<(), GgufError> {
                match self {
                    $(Array::$variant(elements) => {
                        elements.iter().try_for_each(|element| element.write(writer, depth))
                    })*
                }
            }
        }
    };
}

value_types! {
    0 U8 u8, "u8";
    1 I8 i8, "i8";
    2 U16 u16, "u16";
    3 I16 i16, "i16";
    4 U32 u32, "u32";
    5 I32 i32, "i32";
    6 F32 f32, "f32";
    7 Bool bool, "bool";
    8 String String, "string";
    9 Array Array, "array";
    10 U64 u64, "u64";
    11 I64 i64, "i64";
    12 F64 f64, "f64";
}

crate::display_name!(ValueType);

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

macro_rules! from_value {
    ($($type:ty, $expected:literal, $($found:pat => $converted:expr),+;)*) => {$(
        impl<'a> FromValue<'a> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                match value {
                    $($found => Some($converted),)+
                    _ => None,
                }
            }
        }
    )*};
}

// Numbers are rounded to f32, as hyper-parameters are.
from_value! {
    f32, "a floating-point number", Value::F32(v) => *v, Value::F64(v) => *v as f32;
    bool, "a boolean", Value::Bool(v) => *v;
    &'a str, "a string", Value::String(text) => text;
    &'a Array, "an array", Value::Array(array) => array;
    &'a [String], "an array of strings", Value::Array(Array::String(texts)) => texts;
    &'a [f32], "an array of f32", Value::Array(Array::F32(numbers)) => numbers;
    &'a [i32], "an array of i32", Value::Array(Array::I32(numbers)) => numbers;
}
