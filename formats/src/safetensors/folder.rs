//! Model folders in the layout of Hugging Face.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Contents, Index, SafetensorsError};
use crate::folder::Folder;
use crate::limits;
use crate::map::MappedFile;
use crate::open::OpenError;
use crate::source::SourceError;

/// Configuration of the model.
pub const CONFIG: &str = "config.json";

/// Weights in a single file.
pub const WEIGHTS: &str = "model.safetensors";

/// Index of weights in several files.
pub const INDEX: &str = "model.safetensors.index.json";

/// Older tools saved these tensors, although they follow from the configuration.
const COMPUTED_BUFFERS: [&str; 3] = [
    ".rotary_emb.inv_freq",
    ".rotary_emb.cos_cached",
    ".rotary_emb.sin_cached",
];

pub(crate) fn is_computed_buffer(tensor: &str) -> bool {
    COMPUTED_BUFFERS.iter().any(|end| tensor.ends_with(end))
}

/// A mapped weight file.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The mapping.
    pub map: Arc<MappedFile>,
    /// Its contents.
    pub contents: Contents,
}

/// A folder with a configuration and weights that agree with their index.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    path: PathBuf,
    config: Arc<MappedFile>,
    index: Option<Arc<MappedFile>>,
    shards: Vec<Shard>,
}

impl ModelFolder {
    /// Maps and validates the folder at `path`, or the folder of the configuration, index or weight
    /// file at `path`.
    ///
    /// # Errors
    ///
    /// [`SourceError`]. The contents of the configuration are not checked.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFolder, SourceError> {
        let path = path.as_ref();
        let kind = std::fs::metadata(path).map_err(|error| OpenError::io(path, error))?;
        if kind.is_dir() {
            return open(path);
        }
        let folder = match path.parent() {
            None => Path::new("."),
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
        };
        let folder = open(folder)?;
        let mut files = folder.files().into_iter();
        if files.any(|file| file.path().file_name() == path.file_name()) {
            return Ok(folder);
        }
        Err(error_in_file(path, SafetensorsError::NotAWeight))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mapped configuration.
    pub fn config(&self) -> &Arc<MappedFile> {
        &self.config
    }

    /// Weight files, sorted by name.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns all files read, sorted by name.
    pub fn files(&self) -> Vec<Arc<MappedFile>> {
        let mut files = vec![Arc::clone(&self.config)];
        files.extend(self.index.clone());
        files.extend(self.shards.iter().map(|shard| Arc::clone(&shard.map)));
        files.sort_by(|a, b| a.path().file_name().cmp(&b.path().file_name()));
        files
    }
}

fn open(path: &Path) -> Result<ModelFolder, SourceError> {
    let Some(config) = map_if_present(path, CONFIG)? else {
        return Err(error_in_file(path, SafetensorsError::NoConfig));
    };
    check_size(&config, limits::MAX_CONFIG_BYTES)?;
    let index = map_if_present(path, INDEX)?;
    let shards = match &index {
        Some(index) => open_indexed_shards(path, index)?,
        None => match map_if_present(path, WEIGHTS)? {
            Some(weights) => vec![parse_shard(weights)?],
            None => open_numbered_shards(path)?,
        },
    };
    Ok(ModelFolder {
        path: path.to_owned(),
        config,
        index,
        shards,
    })
}

fn map_if_present(folder: &Path, name: &str) -> Result<Option<Arc<MappedFile>>, OpenError> {
    match MappedFile::open_inside(folder, name) {
        Ok(map) => Ok(Some(Arc::new(map))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn error_in_file(path: &Path, error: SafetensorsError) -> SourceError {
    SourceError::Safetensors {
        path: path.to_owned(),
        error,
    }
}

fn check_size(file: &MappedFile, limit: u64) -> Result<(), SourceError> {
    let found = file.len() as u64;
    if found <= limit {
        return Ok(());
    }
    let error = SafetensorsError::Size { found, limit };
    Err(error_in_file(file.path(), error))
}

fn parse_shard(map: Arc<MappedFile>) -> Result<Shard, SourceError> {
    let contents = Contents::parse(&map).map_err(|error| error_in_file(map.path(), error))?;
    Ok(Shard { map, contents })
}

/// Opens the shards of a folder without an index, which their names prove to be complete. Every
/// shard states its own tensors, so that the index is not needed.
fn open_numbered_shards(folder: &Path) -> Result<Vec<Shard>, SourceError> {
    let refused = |error| error_in_file(folder, error);
    let names = Folder::open(folder).and_then(|folder| folder.names());
    let names = names.map_err(|error| OpenError::io(folder, error))?;
    let numbers = names.iter().filter_map(|name| shard_number(name.to_str()?));
    let counts: BTreeSet<usize> = numbers.map(|(_, count)| count).collect();
    let mut counts = counts.into_iter();
    let count = match (counts.next(), counts.next()) {
        (None, _) => return Err(refused(SafetensorsError::NoWeights)),
        (Some(count), None) => count,
        (Some(first), Some(second)) => {
            return Err(refused(SafetensorsError::TwoSets { first, second }));
        }
    };
    if count > limits::MAX_FILES {
        return Err(refused(SafetensorsError::TooManyFiles { found: count }));
    }
    let mut shards: Vec<Shard> = Vec::with_capacity(count);
    for number in 1..=count {
        let name = format!("model-{number:05}-of-{count:05}.safetensors");
        let Some(map) = map_if_present(folder, &name)? else {
            let error = SafetensorsError::MissingNumberedShard;
            return Err(error_in_file(&folder.join(&name), error));
        };
        shards.push(parse_shard(map)?);
    }
    places(&shards)?;
    Ok(shards)
}

/// Returns number and count of a shard's name, `model-00001-of-00003.safetensors`.
fn shard_number(name: &str) -> Option<(usize, usize)> {
    let name = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (number, count) = name.split_once("-of-")?;
    let parse = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<usize>().ok().filter(|_| is_number)
    };
    let (number, count) = (parse(number)?, parse(count)?);
    (1..=count).contains(&number).then_some((number, count))
}

/// Opens the files listed in an index and checks that they contain exactly the listed tensors.
fn open_indexed_shards(folder: &Path, file: &MappedFile) -> Result<Vec<Shard>, SourceError> {
    check_size(file, limits::MAX_INDEX_BYTES)?;
    let refused = |error| error_in_file(file.path(), error);
    let index = Index::parse(file).map_err(refused)?;
    let names = index.shards();
    if names.len() > limits::MAX_FILES {
        return Err(refused(SafetensorsError::TooManyFiles {
            found: names.len(),
        }));
    }
    if !names.iter().any(|name| name == WEIGHTS) && folder.join(WEIGHTS).exists() {
        return Err(error_in_file(folder, SafetensorsError::Ambiguous));
    }
    let mut shards = Vec::with_capacity(names.len());
    for name in names {
        let Some(map) = map_if_present(folder, name)? else {
            let error = SafetensorsError::MissingShard;
            return Err(error_in_file(&folder.join(name), error));
        };
        shards.push(parse_shard(map)?);
    }
    check_index(&index, &shards)?;
    Ok(shards)
}

/// Returns the names of the tensors in a shard other than computed buffers.
fn tensors(shard: &Shard) -> impl Iterator<Item = &str> {
    let names = shard.contents.tensors().iter().map(|t| t.name.as_str());
    names.filter(|name| !is_computed_buffer(name))
}

/// Returns the shard of every tensor but computed buffers, which each shard may have.
fn places(shards: &[Shard]) -> Result<HashMap<&str, usize>, SourceError> {
    let mut places = HashMap::new();
    for (place, shard) in shards.iter().enumerate() {
        for tensor in tensors(shard) {
            if let Some(other) = places.insert(tensor, place) {
                let other = shards[other].map.path().file_name().unwrap_or_default();
                let error = SafetensorsError::TwoShards {
                    tensor: tensor.to_owned(),
                    other: other.to_string_lossy().into_owned(),
                };
                return Err(error_in_file(shard.map.path(), error));
            }
        }
    }
    Ok(places)
}

fn check_index(index: &Index, shards: &[Shard]) -> Result<(), SourceError> {
    let refused = |shard: usize, error| Err(error_in_file(shards[shard].map.path(), error));
    let places = places(shards)?;
    for (place, shard) in shards.iter().enumerate() {
        if let Some(tensor) = tensors(shard).find(|tensor| index.shard_of(tensor).is_none()) {
            let tensor = tensor.to_owned();
            return refused(place, SafetensorsError::Unlisted { tensor });
        }
    }
    let listed = index.tensors().iter();
    for (tensor, listed) in listed.filter(|(name, _)| !is_computed_buffer(name)) {
        match places.get(tensor.as_str()) {
            Some(place) if place == listed => {}
            Some(&place) => {
                return refused(
                    place,
                    SafetensorsError::WrongShard {
                        tensor: tensor.clone(),
                        listed: index.shards()[*listed].clone(),
                    },
                );
            }
            None => {
                return refused(
                    *listed,
                    SafetensorsError::MissingTensor {
                        tensor: tensor.clone(),
                    },
                );
            }
        }
    }
    Ok(())
}
