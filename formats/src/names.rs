//! Macros for enums with names and for types that are written as text.

/// Implements `ALL`, `name` and [`Display`](std::fmt::Display) of a fieldless enum, from the name
/// of each variant.
#[macro_export]
macro_rules! names {
    ($type:ident { $($variant:ident $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        $crate::display_name!($type);
    };
}

/// Implements [`Display`](std::fmt::Display) by the method `name`.
#[macro_export]
macro_rules! display_name {
    ($type:ident) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Implements serde's traits by [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr).
#[macro_export]
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
