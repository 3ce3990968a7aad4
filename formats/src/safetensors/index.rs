//! Index of shards.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::SafetensorsError;
use super::header::{check_count, check_name};
use crate::escape::escape_truncated;

/// Contents of `model.safetensors.index.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    shards: Vec<String>,
    /// Sorted by name, with the index into `shards`.
    tensors: Vec<(String, usize)>,
}

impl Index {
    /// Parses an index.
    ///
    /// # Errors
    ///
    /// [`SafetensorsError`].
    pub fn parse(json: &[u8]) -> Result<Index, SafetensorsError> {
        let file: File =
            serde_json::from_slice(json).map_err(|error| SafetensorsError::IndexJson {
                error: escape_truncated(&error.to_string()),
            })?;
        let WeightMap { mut tensors, files } = file.weight_map;
        if let Some((shard, file)) = files.iter().find(|(name, _)| !is_shard_name(name)) {
            let listed = tensors.iter().find(|(_, found)| found == file);
            return Err(SafetensorsError::ShardName {
                tensor: listed.map(|(tensor, _)| tensor.clone()).unwrap_or_default(),
                shard: escape_truncated(shard),
            });
        }
        // From order of appearance to order of name.
        let mut places = vec![0; files.len()];
        for (place, &file) in files.values().enumerate() {
            places[file] = place;
        }
        for (_, file) in &mut tensors {
            *file = places[*file];
        }
        tensors.sort();
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SafetensorsError::ListedTwice {
                tensor: pair[0].0.clone(),
            });
        }
        Ok(Index {
            shards: files.into_keys().collect(),
            tensors,
        })
    }

    /// File names, sorted.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Tensors sorted by name, with the index in [`shards`](Index::shards).
    pub fn tensors(&self) -> &[(String, usize)] {
        &self.tensors
    }

    /// Returns the index of a tensor's file in [`shards`](Index::shards).
    pub fn shard_of(&self, tensor: &str) -> Option<usize> {
        let found = self
            .tensors
            .binary_search_by(|(name, _)| name.as_str().cmp(tensor))
            .ok()?;
        Some(self.tensors[found].1)
    }
}

fn is_shard_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(part)), None) if part.as_encoded_bytes() == name.as_bytes()
    );
    one && name.ends_with(".safetensors")
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

#[derive(Deserialize)]
struct File {
    weight_map: WeightMap,
}

struct WeightMap {
    tensors: Vec<(String, usize)>,
    files: BTreeMap<String, usize>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and the names of their files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut found = WeightMap {
            tensors: Vec::new(),
            files: BTreeMap::new(),
        };
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            check_name(&tensor)?;
            check_count(found.tensors.len())?;
            let next = found.files.len();
            let file = *found.files.entry(file).or_insert(next);
            found.tensors.push((tensor, file));
        }
        Ok(found)
    }
}
