//! First stage: the source, checked without reading its weights; its digest and its files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use htc_formats::htz::{Digest, HtzWriter, Section};
use htc_formats::metadata::SourceMetadata;
use htc_formats::source::{Container, ModelFile};
use htc_formats::vocab::HuggingFaceFiles;

use super::{CompileContext, CompileError, kernels};
use crate::event::{Event, Progress, Task};
use crate::options::{CompileOptions, PlanSource, Switch};
use crate::plan::{Method, PlanError, PlanRequest};
use crate::system::clock::{Stage, StageClock};
use crate::system::disk::is_same_file;

/// A source that passed all checks that do not read its weights.
#[derive(Debug)]
pub struct CheckedSource {
    source: ModelFile,
    /// The vocabulary, if the artifact stores one, and the metadata of the source, then compiled GPU
    /// kernels.
    sections: Vec<Section>,
    /// Number of sections before those of kernels.
    model_sections: usize,
    /// Metadata of the source that the artifact does not keep.
    omitted_metadata: Vec<String>,
    digest: OnceLock<Digest>,
}

impl CheckedSource {
    /// Opens the source of a compilation, and checks its options and its output.
    pub(super) fn open(options: &CompileOptions) -> Result<Self, CompileError> {
        options.check()?;
        if let PlanSource::Compute { request, .. } = &options.planning {
            check_kv_bases(request, options)?;
        }
        let source = open(&options.input)?;
        if is_source_file(&source, &options.output) || options.is_input(&options.output) {
            return Err(CompileError::SameFile(options.output.clone()));
        }
        let layers = source.hyper.layers;
        if let Some(layer) = options
            .artifact
            .probe_layer
            .filter(|&layer| layer >= layers)
        {
            return Err(CompileError::NoSuchLayer { layer, layers });
        }
        HtzWriter::check_destination(&options.output, options.overwrite)?;
        let mut checked = CheckedSource::with_model_sections(source)?;
        let kernels = kernels::section(&options.artifact.kernels)?;
        checked.sections.extend(kernels);
        Ok(checked)
    }

    /// Checks an open source for [`plan`](super::plan), which writes no output.
    pub fn for_plan(source: ModelFile, options: &CompileOptions) -> Result<Self, CompileError> {
        let sizes_file = match &options.planning {
            PlanSource::Compute { request, .. } => request.method == Method::Quantise,
            PlanSource::File(_) => false,
        };
        if sizes_file || !options.limit.is_none() {
            return CheckedSource::with_model_sections(source);
        }
        Ok(CheckedSource {
            source,
            sections: Vec::new(),
            model_sections: 0,
            omitted_metadata: Vec::new(),
            digest: OnceLock::new(),
        })
    }

    /// Creates the sections of vocabulary and metadata.
    fn with_model_sections(source: ModelFile) -> Result<Self, CompileError> {
        let mut sections = vec![tokenizer_section(&source)?];
        let read = SourceMetadata::read(&source);
        if let Some(metadata) = read.metadata {
            sections.push(Section::source_metadata(&metadata)?);
        }
        Ok(CheckedSource {
            source,
            model_sections: sections.len(),
            sections,
            omitted_metadata: read.omitted,
            digest: OnceLock::new(),
        })
    }

    /// Returns the source.
    pub fn file(&self) -> &ModelFile {
        &self.source
    }

    /// Returns the digest of the source, which reads it once.
    pub(super) fn digest(&self, context: CompileContext) -> Digest {
        let CompileContext {
            clock, progress, ..
        } = context;
        *self.digest.get_or_init(|| {
            progress.begin(Task::Digest, 0);
            clock.time(Stage::Read, || self.source.digest())
        })
    }

    /// Returns the sections after the tensors: vocabulary, metadata and compiled GPU kernels.
    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns the sections that count in a size: vocabulary and metadata.
    pub(super) fn model_sections(&self) -> &[Section] {
        self.sections.get(..self.model_sections).unwrap_or_default()
    }

    /// Reports metadata of the source that the artifact does not keep.
    pub(super) fn report_omitted_metadata(&self, watch: Progress) {
        if !self.omitted_metadata.is_empty() {
            let omitted = self.omitted_metadata.join(", ");
            let said = format!("metadata of the source that the artifact does not keep: {omitted}");
            watch.report(Event::Warning(&said));
        }
    }
}

pub(super) fn check_kv_bases(
    request: &PlanRequest,
    options: &CompileOptions,
) -> Result<(), PlanError> {
    match (request.layout.kv_bases, &options.calibration) {
        (Switch::On, None) => Err(PlanError::KvBasesNeedCalibration),
        _ => Ok(()),
    }
}

fn tokenizer_section(source: &ModelFile) -> Result<Section, CompileError> {
    let vocabulary = source.vocabulary.as_ref();
    let vocabulary = vocabulary.map_err(|error| CompileError::Vocabulary {
        path: source.path.clone(),
        error: error.clone(),
    })?;
    Ok(Section::tokenizer(vocabulary)?)
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

/// Returns the files of a source, and those from which its vocabulary and metadata may be read.
fn possible_files(source: &ModelFile) -> impl Iterator<Item = PathBuf> {
    let names = HuggingFaceFiles::NAMES.into_iter();
    let others = SourceMetadata::file_names();
    let others = others.filter(|name| !HuggingFaceFiles::NAMES.contains(name));
    let in_folder = names.chain(others).map(|name| source.path.join(name));
    let files = source.files.iter().map(|file| file.path().to_owned());
    files.chain(in_folder)
}

pub(super) fn source_files(source: &ModelFile) -> Vec<PathBuf> {
    possible_files(source)
        .filter(|path| path.exists())
        .collect()
}

/// Returns true if a path leads to the source, to one of its files, or to one in its folder from
/// which its vocabulary or metadata may be read.
pub(crate) fn is_source_file(source: &ModelFile, path: &Path) -> bool {
    let mut files = possible_files(source).chain([source.path.clone()]);
    files.any(|file| is_same_file(&file, path))
}
