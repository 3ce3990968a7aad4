//! Exports an artifact to other formats: GGUF for llama.cpp, or a folder for transformers.
//!
//! Matrices in a type of the container are copied block by block; all other forms are decoded row
//! by row and encoded in the requested type, products of factors in float64. Properties that the
//! container cannot express are refused or reported. The output is read again and compared before
//! it is renamed.

mod check;
mod error;
mod folder;
mod gguf;
mod order;
mod output;
mod produce;
mod report;
mod rows;
mod types;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use htc_formats::DType;
use htc_formats::architecture::{ConfigFacts, HuggingFaceConfig, Naming, gguf_rope_pairs};
use htc_formats::htz::{Htz, HtzWriter};
use htc_formats::metadata::{GgufEntries, SourceMetadata};
use htc_formats::model::{MatrixId, ProjectionKind, Role, RopePairs};
use htc_formats::source::ModelFile;

pub use error::ExportError;
pub use report::{ExportReport, MatrixSum, OutputFile};

use self::folder::ModelFolder;
use self::gguf::GgufFile;
use self::output::{ContainerRequirements, Outputs};
use self::produce::Producer;
use self::rows::{Matrix, StoredTensor};
use crate::event::{Progress, Task};
use crate::system::disk;
use crate::system::show::file_name;

/// Default type of encoded matrices.
pub const DEFAULT_TYPE: DType = DType::F16;

/// Options of [`export`].
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The artifact.
    pub artifact: PathBuf,
    /// The output.
    pub target: ExportTarget,
    /// Type of encoded matrices.
    pub dtype: DType,
    /// Number of threads that encode.
    pub threads: usize,
    /// Replaces an existing output.
    pub overwrite: bool,
}

/// Output of an export.
#[derive(Clone, Debug)]
pub enum ExportTarget {
    /// A GGUF file.
    Gguf {
        /// The model.
        path: PathBuf,
        /// Optional file for the factors as an adapter.
        lora: Option<PathBuf>,
    },
    /// A folder with safetensors.
    Safetensors {
        /// The folder.
        path: PathBuf,
    },
}

/// Exports an artifact; leaves no output on an error.
pub fn export(options: &ExportOptions, watch: Progress) -> Result<ExportReport, ExportError> {
    let artifact = Htz::open(&options.artifact)?;
    let file = ModelFile::from_htz(&artifact)?;
    let metadata = artifact.source_metadata();
    let job = Job {
        options,
        file: &file,
        metadata: metadata.map_err(|fault| fault.in_file(&options.artifact))?,
        producer: Producer {
            artifact: &artifact,
            threads: options.threads,
            watch,
        },
    };
    match &options.target {
        ExportTarget::Gguf { path, lora } => job.gguf(path, lora.as_deref()),
        ExportTarget::Safetensors { path } => job.safetensors(path),
    }
}

struct Job<'a> {
    options: &'a ExportOptions,
    file: &'a ModelFile,
    /// Metadata of the source, if the artifact holds them.
    metadata: Option<SourceMetadata>,
    producer: Producer<'a>,
}

impl Job<'_> {
    fn gguf(&self, path: &Path, lora: Option<&Path>) -> Result<ExportReport, ExportError> {
        let (file, options) = (self.file, self.options);
        let mut paths = std::iter::once(path).chain(lora);
        paths.try_for_each(|path| self.check_file(path))?;
        if lora.is_some_and(|lora| disk::is_same_file(lora, path)) {
            return Err(ExportError::SameFile(path.to_owned()));
        }
        let wanted = ContainerRequirements {
            naming: Naming::Gguf,
            container: "GGUF",
            pairs: gguf_rope_pairs(&file.hyper)?,
            norms_less_one: false,
            biases: Vec::new(),
            dtype: options.dtype,
            lora: lora.is_some(),
        };
        let outputs = output::outputs(file, &wanted)?;
        if lora.is_some() && outputs.adapter.is_empty() {
            return Err(ExportError::NoFactors);
        }
        let of = |path, metadata, outputs| GgufFile {
            path,
            overwrite: options.overwrite,
            metadata,
            outputs,
        };
        let own = gguf::model_metadata(file)?;
        let metadata = match &self.metadata {
            Some(source) => source.to_gguf(own, file.vocabulary.as_ref().ok()),
            None => GgufEntries {
                entries: own,
                left_out: Vec::new(),
            },
        };
        let model = of(path, metadata.entries, &outputs.model);
        let adapter = lora.map(|lora| of(lora, gguf::adapter_metadata(file), &outputs.adapter));
        let lengths = (
            model.length()?,
            adapter.as_ref().map(GgufFile::length).transpose()?,
        );
        self.check_disk_space(path, lengths.0 + lengths.1.unwrap_or(0))?;
        self.begin(&outputs);
        // The model alone may be useless.
        if let Some(adapter) = &adapter {
            adapter.write(&self.producer, None)?;
        }
        model.write(&self.producer, Some(file))?;
        let mut files = vec![written_file(path, lengths.0)];
        files.extend(
            lora.zip(lengths.1)
                .map(|(path, bytes)| written_file(path, bytes)),
        );
        Ok(self.report(Naming::Gguf, &outputs, files, &metadata.left_out))
    }

    fn safetensors(&self, path: &Path) -> Result<ExportReport, ExportError> {
        let (file, options) = (self.file, self.options);
        let floats = [DType::F32, DType::F16, DType::BF16];
        if !floats.contains(&options.dtype) {
            return Err(ExportError::NotAFloat(options.dtype));
        }
        if disk::is_same_file(&options.artifact, path) {
            return Err(ExportError::SameFile(path.to_owned()));
        }
        folder::check_destination(path, options.overwrite)?;
        let config = self.config()?;
        let wanted = ContainerRequirements {
            naming: Naming::HuggingFace,
            container: "a folder",
            pairs: RopePairs::Halves,
            norms_less_one: config.norms_less_one,
            biases: config.biases.clone(),
            dtype: options.dtype,
            lora: false,
        };
        let outputs = output::outputs(file, &wanted)?;
        let (files, left_out) = folder::files(file, &config, self.metadata.as_ref())?;
        let folder = ModelFolder {
            path,
            overwrite: options.overwrite,
            files: &files,
            outputs: &outputs.model,
        };
        self.check_disk_space(path, folder.length())?;
        self.begin(&outputs);
        folder.write(&self.producer, file)?;
        let files = vec![written_file(path, folder.length())];
        Ok(self.report(Naming::HuggingFace, &outputs, files, &left_out))
    }

    fn config(&self) -> Result<HuggingFaceConfig, ExportError> {
        let file = self.file;
        let mut hyper = file.hyper.clone();
        hyper.forward.rope_pairs = RopePairs::Halves;
        let factors = |role| -> Result<Option<Vec<f32>>, ExportError> {
            let Some(stored) = StoredTensor::find(file, role) else {
                return Ok(None);
            };
            self.producer.verify(stored)?;
            let mut values = vec![0.0; stored.tensor.cols];
            stored.decode(0..1, &mut values)?;
            Ok(Some(values))
        };
        let short = factors(Role::RopeFactors)?;
        let long = factors(Role::LongRopeFactors)?;
        let spec = file.spec();
        let biased = spec.projections().filter(|projection| projection.bias);
        let biases: BTreeSet<ProjectionKind> = biased.map(|projection| projection.kind).collect();
        let biases: Vec<ProjectionKind> = biases.into_iter().collect();
        let vocabulary = file.vocabulary.as_ref().ok();
        let facts = ConfigFacts {
            tied: Matrix::find(file, MatrixId::Head).is_none(),
            biases: &biases,
            dtype: self.common_type()?,
            rope_factors: short.as_deref(),
            long_rope_factors: long.as_deref(),
            bos: vocabulary.and_then(|vocabulary| vocabulary.bos),
            eos: vocabulary.and_then(|vocabulary| vocabulary.eos),
        };
        Ok(HuggingFaceConfig::new(&hyper, &facts)?)
    }

    fn common_type(&self) -> Result<DType, ExportError> {
        let spec = self.file.spec();
        let ids = [MatrixId::Embedding, MatrixId::Head].into_iter();
        let matrices = ids
            .chain(spec.matrices())
            .filter_map(|id| Matrix::find(self.file, id));
        let mut common = None;
        for matrix in matrices {
            let dtype = match matrix.stored_type()? {
                Some(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => dtype,
                _ => self.options.dtype,
            };
            match common {
                Some(other) if other != dtype => return Ok(DType::F32),
                _ => common = Some(dtype),
            }
        }
        Ok(common.unwrap_or(DType::F32))
    }

    fn check_file(&self, path: &Path) -> Result<(), ExportError> {
        if disk::is_same_file(&self.options.artifact, path) {
            return Err(ExportError::SameFile(path.to_owned()));
        }
        HtzWriter::check_destination(path, self.options.overwrite)?;
        Ok(disk::check_writable(path)?)
    }

    fn check_disk_space(&self, path: &Path, needed: u64) -> Result<(), ExportError> {
        match disk::free_bytes(disk::folder_of(path)) {
            Some(free) if needed > free => Err(ExportError::NoSpace {
                path: path.to_owned(),
                needed,
                free,
            }),
            _ => Ok(()),
        }
    }

    fn begin(&self, outputs: &Outputs<'_>) {
        let tensors = outputs.model.len() + outputs.adapter.len();
        self.producer.watch.begin(Task::Exporting, tensors);
    }

    fn report(
        &self,
        naming: Naming,
        outputs: &Outputs<'_>,
        files: Vec<OutputFile>,
        left_out: &[String],
    ) -> ExportReport {
        let mut notes = report::notes(self.file, outputs, naming, self.options.dtype);
        notes.extend(report::metadata_note(self.metadata.as_ref(), left_out));
        ExportReport {
            artifact: file_name(&self.options.artifact),
            format: match naming {
                Naming::Gguf => "gguf",
                Naming::HuggingFace => "safetensors",
            },
            architecture: self.file.hyper.architecture.clone(),
            files,
            matrices: report::sums(outputs),
            notes,
        }
    }
}

fn written_file(path: &Path, bytes: u64) -> OutputFile {
    OutputFile {
        name: file_name(path),
        bytes,
    }
}
