//! The model that is compiled: opened, and known again.

use std::path::{Path, PathBuf};

use htc_formats::htz::Digest;
use htc_formats::source::{Container, ModelFile};
use htc_formats::vocab::HuggingFaceFiles;

use super::CompileError;
use crate::event::{Event, Watch};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk::same_place;

/// The digest of the source.
pub(super) fn digest_of(source: &ModelFile, clock: &StageClock, watch: Watch) -> Digest {
    watch.tell(Event::Digest);
    clock.during(Stage::Read, || source.digest())
}

/// Makes sure that the source is still what its digest says.
///
/// # Errors
/// [`CompileError::SourceChanged`].
pub(super) fn check_unchanged(
    source: &ModelFile,
    digest: Digest,
    clock: &StageClock,
) -> Result<(), CompileError> {
    match clock.during(Stage::Read, || source.digest()) == digest {
        true => Ok(()),
        false => Err(CompileError::SourceChanged(source.path.clone())),
    }
}

/// Opens a model that may be compiled.
///
/// # Errors
/// [`CompileError::Source`], [`CompileError::AlreadyCompiled`].
pub fn open(input: &Path) -> Result<ModelFile, CompileError> {
    let source = ModelFile::open(input)?;
    match source.container {
        Container::Htz { .. } | Container::Sealed { .. } => {
            Err(CompileError::AlreadyCompiled(input.to_owned()))
        }
        Container::Gguf { .. } | Container::Safetensors { .. } => Ok(source),
    }
}

/// The files that a source consists of, and those in its folder that its vocabulary may be read from.
pub(super) fn files_of(source: &ModelFile) -> Vec<PathBuf> {
    let vocabulary = HuggingFaceFiles::NAMES.map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path().to_owned());
    files
        .chain(vocabulary.into_iter().filter(|path| path.exists()))
        .collect()
}

/// Whether a path leads to the source, to one of the files it consists of, or to one in its folder
/// that its vocabulary may be read from.
pub(crate) fn is_of_source(source: &ModelFile, path: &Path) -> bool {
    let vocabulary = HuggingFaceFiles::NAMES.map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path());
    files
        .chain([source.path.as_path()])
        .chain(vocabulary.iter().map(PathBuf::as_path))
        .any(|file| same_place(file, path))
}
