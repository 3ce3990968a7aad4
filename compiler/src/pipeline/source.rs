//! The source model: opening it, its digest and its files.

use std::path::{Path, PathBuf};

use htc_formats::htz::Digest;
use htc_formats::source::{Container, ModelFile};
use htc_formats::vocab::HuggingFaceFiles;

use super::CompileError;
use crate::event::{Event, Progress};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk::is_same_file;

pub(super) fn digest_of(source: &ModelFile, clock: &StageClock, watch: Progress) -> Digest {
    watch.report(Event::Digest);
    clock.time(Stage::Read, || source.digest())
}

pub(super) fn check_unchanged(
    source: &ModelFile,
    digest: Digest,
    clock: &StageClock,
) -> Result<(), CompileError> {
    if clock.time(Stage::Read, || source.digest()) == digest {
        Ok(())
    } else {
        Err(CompileError::SourceChanged(source.path.clone()))
    }
}

/// Opens a model for compilation.
///
/// # Errors
/// [`CompileError::Source`], [`CompileError::AlreadyCompiled`].
pub fn open(input: &Path) -> Result<ModelFile, CompileError> {
    let source = ModelFile::open(input)?;
    match source.container {
        Container::Htz { .. } | Container::EmbeddedSource { .. } => {
            Err(CompileError::AlreadyCompiled(input.to_owned()))
        }
        Container::Gguf { .. } | Container::Safetensors { .. } => Ok(source),
    }
}

pub(super) fn source_files(source: &ModelFile) -> Vec<PathBuf> {
    let vocabulary = HuggingFaceFiles::NAMES.map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path().to_owned());
    files
        .chain(vocabulary.into_iter().filter(|path| path.exists()))
        .collect()
}

/// Returns true if a path leads to the source, to one of its files, or to one in its folder from
/// which its vocabulary may be read.
pub(crate) fn is_source_file(source: &ModelFile, path: &Path) -> bool {
    let vocabulary = HuggingFaceFiles::NAMES.map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path());
    files
        .chain([source.path.as_path()])
        .chain(vocabulary.iter().map(PathBuf::as_path))
        .any(|file| is_same_file(file, path))
}
