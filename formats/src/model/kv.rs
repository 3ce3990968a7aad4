//! What an artifact has for a KV cache.

use super::{BlockRole, Role};

/// What a KV cache keeps of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvSide {
    /// Keys, after the rotary embedding.
    Key,
    /// Values.
    Value,
}

impl KvSide {
    /// Both, in the order of an artifact.
    pub const ALL: [KvSide; 2] = [KvSide::Key, KvSide::Value];

    /// The first word of roles, and what people call it.
    pub const fn name(self) -> &'static str {
        match self {
            KvSide::Key => "key",
            KvSide::Value => "value",
        }
    }
}

/// What a block's KV cache may be projected on, by the names used in roles.
pub(super) const BLOCK_KV: [(&str, BlockRole); 4] = [
    ("key_basis", |layer| Role::KvBasis {
        layer,
        side: KvSide::Key,
    }),
    ("key_energies", |layer| Role::KvEnergies {
        layer,
        side: KvSide::Key,
    }),
    ("value_basis", |layer| Role::KvBasis {
        layer,
        side: KvSide::Value,
    }),
    ("value_energies", |layer| Role::KvEnergies {
        layer,
        side: KvSide::Value,
    }),
];
