//! JSON schemas of types that are written as text.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::bands::CodeLayout;
use crate::htz::Digest;
use crate::model::{MatrixId, Role};

macro_rules! text {
    ($($name:ident: $description:literal,)*) => {$(
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "description": $description })
            }
        }
    )*};
}

text! {
    CodeLayout: "Codes of the column groups of a matrix, such as `2:t3x5,l4x1-20`.",
    Digest: "SHA-256 in hexadecimal digits.",
    MatrixId: "Matrix of a model, such as `blk.3.attn_q` or `output`.",
    Role: "Role of a tensor, such as `blk.0.attn_q.weight`.",
}
