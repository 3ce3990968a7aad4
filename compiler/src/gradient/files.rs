//! Files of a backward pass, in a cache folder used by one process at a time.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};

use htc_formats::htz::Digest;
use htc_formats::map::MappedFile;
use htc_formats::model::{HyperParameters, ModelSpec};
use htc_loader::Model;

use super::store::{StoredOutputs, block_numbers};
use crate::calibrate::PassError;
use crate::calibrate::entry::CacheEntry;
use crate::calibrate::store::{Identity, open_sealed, sealed_bytes, write_sealed};
use crate::event::{Event, Progress};
use crate::system::disk;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// Residual stream before a block or before the last norm.
    Stream(usize),
    /// Gradients of that stream.
    Gradient(usize),
    /// Moments of a layer, or of the head after the last layer.
    Outputs(usize),
    /// Moments of the embedding.
    Embedding,
}

impl Name {
    fn of_file(self) -> String {
        match self {
            Name::Stream(layer) => format!("stream-{layer:04}"),
            Name::Gradient(layer) => format!("gradient-{layer:04}"),
            Name::Outputs(layer) => format!("outputs-{layer:04}"),
            Name::Embedding => "outputs-embedding".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Forward pass through a block.
    Forward(usize),
    /// Logits, and back to the stream after the last block.
    Head,
    /// Backward pass through a block.
    Back(usize),
    /// Backward pass through the lookup.
    Embedding,
    Done,
}

impl Stage {
    /// Returns the index of the step.
    pub fn index(self, layers: usize) -> usize {
        match self {
            Stage::Forward(layer) => layer,
            Stage::Head => layers,
            Stage::Back(layer) => 2 * layers - layer,
            Stage::Embedding => 2 * layers + 1,
            Stage::Done => 2 * layers + 2,
        }
    }

    pub fn next(self, layers: usize) -> Stage {
        match self {
            Stage::Forward(layer) if layer + 1 < layers => Stage::Forward(layer + 1),
            Stage::Forward(_) => Stage::Head,
            Stage::Head => Stage::Back(layers.saturating_sub(1)),
            Stage::Back(0) => Stage::Embedding,
            Stage::Back(layer) => Stage::Back(layer - 1),
            Stage::Embedding | Stage::Done => Stage::Done,
        }
    }
}

pub(super) struct Files<'a> {
    entry: &'a CacheEntry,
    key: Digest,
    hyper: &'a HyperParameters,
    spec: &'a ModelSpec,
    /// Positions of the text.
    positions: usize,
}

/// Returns the numbers of a file of a pass over this many positions.
fn numbers(hyper: &HyperParameters, spec: &ModelSpec, positions: usize, name: Name) -> usize {
    match name {
        Name::Stream(_) | Name::Gradient(_) => positions.saturating_mul(hyper.width),
        Name::Outputs(layer) => match spec.blocks.get(layer) {
            Some(block) => block.projections().map(|p| block_numbers(p.rows)).sum(),
            None => hyper.vocabulary,
        },
        // Second moment and token shares.
        Name::Embedding => block_numbers(hyper.width) + hyper.vocabulary,
    }
}

/// Returns the disk space that a pass over this many positions takes at most.
pub(crate) fn cache_bytes(hyper: &HyperParameters, spec: &ModelSpec, positions: usize) -> u64 {
    let layers = hyper.layers;
    let streams = (1..=layers).map(Name::Stream);
    let gradients = [Name::Gradient(0); 2];
    let results = (0..=layers).map(Name::Outputs).chain([Name::Embedding]);
    let bytes = |name| sealed_bytes(numbers(hyper, spec, positions, name).saturating_mul(4)) as u64;
    let all = streams.chain(gradients).chain(results).map(bytes);
    all.fold(0, u64::saturating_add)
}

impl<'a> Files<'a> {
    pub fn new(
        entry: &'a CacheEntry,
        key: Digest,
        model: &'a Model,
        positions: usize,
    ) -> Files<'a> {
        Files {
            entry,
            key,
            hyper: model.hyper(),
            spec: model.spec(),
            positions,
        }
    }

    fn numbers(&self, name: Name) -> usize {
        numbers(self.hyper, self.spec, self.positions, name)
    }

    /// Yields the files with results, from the end of the model.
    fn results(&self) -> impl Iterator<Item = Name> {
        let outputs = (0..=self.hyper.layers).rev().map(Name::Outputs);
        outputs.chain([Name::Embedding])
    }

    fn identity(&self, name: Name) -> Identity {
        Identity {
            key: Digest::of_bytes(format!("{} {}", self.key, name.of_file()).as_bytes()),
            layer: 0,
        }
    }

    /// Opens a file if it exists and is valid.
    pub fn open(&self, name: Name, watch: Progress) -> Option<MappedFile> {
        let file = name.of_file();
        let damaged = |why: &str| {
            let path = self.entry.path(&file);
            let said = format!("{}: {why}; it is made again", path.display());
            watch.report(Event::Warning(&said));
        };
        let bytes = sealed_bytes(4 * self.numbers(name));
        let (folder, file) = (self.entry.folder(), OsStr::new(&file));
        open_sealed(folder, file, self.identity(name), bytes, damaged)
    }

    /// Opens a file that existed before.
    ///
    /// # Errors
    /// [`PassError::FileChanged`].
    pub fn again(&self, name: Name, watch: Progress) -> Result<MappedFile, PassError> {
        let changed = || PassError::FileChanged(self.entry.path(&name.of_file()));
        self.open(name, watch).ok_or_else(changed)
    }

    /// Opens all results.
    ///
    /// # Errors
    /// [`PassError::FileChanged`].
    pub fn outputs(&self, watch: Progress) -> Result<Vec<StoredOutputs>, PassError> {
        let mut all: Vec<_> = self
            .results()
            .map(|name| self.again(name, watch).map(StoredOutputs))
            .collect::<Result<_, _>>()?;
        // Layers, head, embedding.
        let embedding = all.len() - 1;
        all[..embedding].reverse();
        Ok(all)
    }

    /// Returns the next step, given the existing files.
    pub fn next(&self, watch: Progress) -> Stage {
        let layers = self.hyper.layers;
        let is_sound = |name| self.open(name, watch).is_some();
        // Results exist from the end of the model on.
        let outputs = self.results().take_while(|name| is_sound(*name)).count();
        if outputs == layers + 2 {
            return Stage::Done;
        }
        let streams = (1..=layers).take_while(|layer| is_sound(Name::Stream(*layer)));
        let streams = streams.count();
        // Gradients before a layer are usable if all later layers are finished and earlier ones can
        // still be executed.
        let at = (0..=layers).find(|&at| {
            let is_finished = outputs > layers - at;
            is_finished && streams + 1 >= at && is_sound(Name::Gradient(at))
        });
        match at {
            Some(0) => Stage::Embedding,
            Some(at) => Stage::Back(at - 1),
            None if streams == layers => Stage::Head,
            None => Stage::Forward(streams),
        }
    }

    fn needed(&self, step: Stage) -> Vec<Name> {
        let layers = self.hyper.layers;
        let streams = |to: usize| (1..=to).map(Name::Stream);
        match step {
            Stage::Forward(layer) => streams(layer).collect(),
            Stage::Head => streams(layers).collect(),
            Stage::Back(layer) => {
                let outputs = (layer + 1..=layers).map(Name::Outputs);
                let needed = streams(layer).chain(outputs);
                needed.chain([Name::Gradient(layer + 1)]).collect()
            }
            Stage::Embedding => {
                let outputs = (0..=layers).map(Name::Outputs);
                outputs.chain([Name::Gradient(0)]).collect()
            }
            Stage::Done => self.results().collect(),
        }
    }

    /// Removes files not needed from a step on.
    ///
    /// # Errors
    /// [`PassError::Cache`].
    pub fn sweep(&self, step: Stage) -> Result<(), PassError> {
        let needed: Vec<String> = self.needed(step).into_iter().map(Name::of_file).collect();
        let swept = self.entry.remove_leftovers(&needed);
        swept.map_err(|error| self.failed(error))
    }

    /// Checks the disk space for all streams, two gradient files and the results missing from a
    /// step on.
    ///
    /// # Errors
    /// [`PassError::NoSpaceForGradients`].
    pub fn make_room(&self, step: Stage) -> Result<(), PassError> {
        let bytes = |name| sealed_bytes(self.numbers(name).saturating_mul(4)) as u64;
        let there = self.needed(step);
        let streams = match step {
            Stage::Forward(_) => self.needed(Stage::Head),
            _ => Vec::new(),
        };
        let gradients = match step {
            Stage::Done => 0,
            _ => 2 * bytes(Name::Gradient(0)),
        };
        let missing = streams.into_iter().chain(self.results());
        let missing = missing.filter(|name| !there.contains(name)).map(bytes);
        let needed = missing.fold(gradients, u64::saturating_add);
        let folder = self.entry.folder().path();
        match disk::free_bytes(folder).filter(|free| *free < needed) {
            Some(free) => Err(PassError::NoSpaceForGradients {
                path: folder.to_owned(),
                needed,
                free,
            }),
            None => Ok(()),
        }
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    /// Those of `write`, or [`PassError::Cache`].
    pub fn write(
        &self,
        name: Name,
        write: impl FnOnce(&mut To) -> Result<(), PassError>,
    ) -> Result<(), PassError> {
        let (file, mut outcome) = (name.of_file(), Ok(()));
        let (folder, identity) = (self.entry.folder(), self.identity(name));
        let nothing_behind = Digest::default();
        let written = write_sealed(folder, OsStr::new(&file), identity, nothing_behind, |to| {
            let mut to = To {
                to,
                bytes: Vec::new(),
            };
            outcome = write(&mut to);
            // An incomplete file must not take the name; the reason is in `outcome`.
            match &outcome {
                Ok(()) => Ok(()),
                Err(_) => Err(io::ErrorKind::Other.into()),
            }
        });
        match outcome {
            Ok(()) => written.map_err(|error| self.failed(error)),
            Err(PassError::Write(error)) => Err(self.failed(error)),
            Err(other) => Err(other),
        }
    }

    fn failed(&self, error: io::Error) -> PassError {
        let path = self.entry.folder().path().to_owned();
        PassError::Cache { path, error }
    }
}

pub(super) struct To<'a> {
    to: &'a mut dyn Write,
    bytes: Vec<u8>,
}

impl To<'_> {
    /// Writes numbers.
    ///
    /// # Errors
    /// [`PassError::Write`].
    pub fn numbers(&mut self, x: &[f32]) -> Result<(), PassError> {
        self.bytes.clear();
        self.bytes.extend(x.iter().flat_map(|x| x.to_le_bytes()));
        Ok(self.to.write_all(&self.bytes)?)
    }

    /// Calls a writing function.
    ///
    /// # Errors
    /// [`PassError::Write`].
    pub fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PassError> {
        Ok(write(self.to)?)
    }
}

/// E.g. `back through layer 3`.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Forward(layer) => write!(f, "through layer {layer}"),
            Stage::Head => f.write_str("head"),
            Stage::Back(layer) => write!(f, "back through layer {layer}"),
            Stage::Embedding | Stage::Done => f.write_str("embedding"),
        }
    }
}
