//! Exports an artifact as a folder for transformers: configuration, tokenizer and safetensors.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::Path;

use htc_formats::DType;
use htc_formats::architecture::{HuggingFaceConfig, Naming};
use htc_formats::folder::{Folder, TemporaryFolder};
use htc_formats::htz::HtzError;
use htc_formats::limits::MAX_CONFIG_BYTES;
use htc_formats::metadata::{EXPORTED_BY, FolderFiles, SourceMetadata};
use htc_formats::model::RopePairs;
use htc_formats::safetensors::{CONFIG, INDEX};
use htc_formats::source::ModelFile;
use htc_formats::vocab::HuggingFaceFiles;
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::{Map, Value, json};

use super::output::OutputTensor;
use super::produce::Producer;
use super::{ExportError, check, gguf};
use crate::event::Task;
use crate::system::disk;
use crate::system::error::FileError;

/// Value of [`EXPORTED_BY`].
const PROGRAM: &str = "htc";

/// Unless a single tensor has more.
const MAX_SHARD_BYTES: u64 = 4 << 30;

pub(super) struct ModelFolder<'a> {
    pub path: &'a Path,
    pub overwrite: bool,
    /// All files but the weights and their index, by name.
    pub files: &'a [(String, Vec<u8>)],
    pub outputs: &'a [OutputTensor<'a>],
}

/// Checks that a folder may be written: it is missing, empty, or that of an earlier export and may
/// be replaced.
pub(super) fn check_destination(path: &Path, overwrite: bool) -> Result<(), ExportError> {
    let failed = FileError::write(path);
    let (parent, name) = Folder::parent_of(path).map_err(&failed)?;
    match parent.metadata(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Fails early.
            parent.temporary_folder().map_err(failed)?;
            return Ok(());
        }
        Err(error) => return Err(failed(error).into()),
        Ok(found) if !found.is_folder => return Err(ExportError::NotAFolder(path.to_owned())),
        Ok(_) => {}
    }
    let folder = Folder::open(path).map_err(&failed)?;
    let names = folder.names().map_err(failed)?;
    let is_export = is_export(&folder);
    match names.iter().find(|name| !is_export_file(name, is_export)) {
        _ if names.is_empty() => Ok(()),
        _ if !overwrite => Err(ExportError::FolderExists(path.to_owned())),
        None => Ok(()),
        Some(other) => Err(ExportError::ForeignFile {
            path: path.to_owned(),
            other: other.to_string_lossy().into_owned(),
        }),
    }
}

/// Returns true if the configuration of a folder says that an export wrote it.
fn is_export(folder: &Folder) -> bool {
    #[derive(serde::Deserialize)]
    struct Configuration {
        exported_by: Option<String>,
    }
    let file = folder.open_for_reading(OsStr::new(CONFIG));
    let found = file.ok().and_then(|file| {
        let file = io::BufReader::new(file.take(MAX_CONFIG_BYTES));
        serde_json::from_reader::<_, Configuration>(file).ok()
    });
    found.is_some_and(|found| found.exported_by.as_deref() == Some(PROGRAM))
}

/// Returns true for a file that an earlier export can have written; a text such as a README only if
/// the folder `is_export`.
fn is_export_file(name: &OsStr, is_export: bool) -> bool {
    let name = name.to_string_lossy();
    if !is_export && SourceMetadata::text_names().any(|text| text == name) {
        return false;
    }
    let weights = name.starts_with("model") && name.ends_with(".safetensors");
    let mut metadata = SourceMetadata::file_names();
    let is_metadata = metadata.any(|file| file == name);
    weights || name == INDEX || HuggingFaceFiles::NAMES.contains(&&*name) || is_metadata
}

/// Files by name, and the metadata of the source that they do not have.
type NamedFiles = (Vec<(String, Vec<u8>)>, Vec<String>);

/// Returns configuration, tokenizer and texts of the exported folder by name, and the metadata of
/// the source that they do not have.
pub(super) fn files(
    model: &ModelFile,
    config: &HuggingFaceConfig,
    metadata: Option<&SourceMetadata>,
) -> Result<NamedFiles, ExportError> {
    let vocabulary = model.vocabulary.as_ref().ok();
    let context = model.hyper.context;
    let tokenizer = vocabulary.map(|known| HuggingFaceFiles::from_vocabulary(known, context));
    let tokenizer = tokenizer.transpose().map_err(HtzError::from)?;
    let mut tokenizer = tokenizer.unwrap_or_default();
    let object = |bytes: Option<&Vec<u8>>| {
        let object = bytes.map(|bytes| serde_json::from_slice(bytes)).transpose();
        object.map_err(|error| ExportError::Reopened(error.to_string()))
    };
    let own = FolderFiles {
        config: config.json.clone(),
        generation_config: object(tokenizer.generation_config.as_ref())?.unwrap_or_default(),
        tokenizer_config: object(tokenizer.tokenizer_config.as_ref())?.unwrap_or_default(),
        ..FolderFiles::default()
    };
    let mut all = match metadata {
        Some(metadata) => {
            let stated = match metadata {
                SourceMetadata::Gguf(_) => gguf::model_metadata(model)?,
                SourceMetadata::Folder(_) => Vec::new(),
            };
            let stated: Vec<String> = stated.into_iter().map(|(key, _)| key).collect();
            metadata.to_folder(own, vocabulary, &stated)
        }
        None => own,
    };
    all.config.insert(EXPORTED_BY.to_owned(), json!(PROGRAM));
    if vocabulary.is_some() || !all.generation_config.is_empty() {
        tokenizer.generation_config = Some(pretty(&all.generation_config).into_bytes());
    }
    if vocabulary.is_some() {
        tokenizer.tokenizer_config = Some(pretty(&all.tokenizer_config).into_bytes());
    } else {
        // A configuration of no tokenizer.
        let keys = all.tokenizer_config.keys();
        let keys = keys.map(|key| format!("tokenizer_config.json: {key}"));
        all.left_out.extend(keys);
    }
    let mut files = vec![(CONFIG.to_owned(), pretty(&all.config).into_bytes())];
    let tokenizer = tokenizer.names_and_contents().into_iter();
    files.extend(tokenizer.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())));
    let texts = all.texts.into_iter();
    files.extend(texts.map(|(name, text)| (name, text.into_bytes())));
    Ok((files, all.left_out))
}

impl ModelFolder<'_> {
    /// Returns the bytes of the weights.
    pub fn length(&self) -> u64 {
        self.outputs.iter().map(OutputTensor::bytes).sum()
    }

    /// Writes a temporary folder, checks it, and renames it.
    pub fn write(&self, producer: &Producer<'_>, model: &ModelFile) -> Result<(), ExportError> {
        let failed = FileError::write(self.path);
        producer.watch.check_cancelled()?;
        let (parent, name) = Folder::parent_of(self.path).map_err(&failed)?;
        let fresh = parent.temporary_folder().map_err(&failed)?;
        let put = |name: &str, bytes: &[u8]| {
            let to = OsStr::new(name);
            disk::write_in(fresh.folder(), to, false, |to| to.write_all(bytes)).map_err(&failed)
        };
        for (name, bytes) in self.files {
            put(name, bytes)?;
        }
        let index = self.weights(&fresh, producer)?;
        if let Some(index) = index {
            put(INDEX, pretty(&index).as_bytes())?;
        }
        producer.watch.begin(Task::Sealing, 0);
        fresh.folder().sync().map_err(&failed)?;
        reopen(fresh.folder().path(), model)?;
        producer.watch.check_cancelled()?;
        if !self.overwrite {
            // The rename reports a folder that is no longer empty.
            let _ = parent.remove_folder(&name);
        }
        fresh.persist(&name, self.overwrite).map_err(&failed)?;
        // The files are synced; the folder's name is not.
        Ok(())
    }

    fn weights(
        &self,
        fresh: &TemporaryFolder<'_>,
        producer: &Producer<'_>,
    ) -> Result<Option<Map<String, Value>>, ExportError> {
        let shards = self.shards();
        let all = shards.len();
        let mut places = Map::new();
        for (index, outputs) in shards.into_iter().enumerate() {
            let name = match all {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{all:05}.safetensors", index + 1),
            };
            for output in &outputs {
                places.insert(output.name.clone(), json!(name));
            }
            self.file(&fresh.folder().path().join(&name), &outputs, producer)?;
        }
        let mut entries = Map::new();
        entries.insert("metadata".into(), json!({"total_size": self.length()}));
        entries.insert("weight_map".into(), Value::Object(places));
        Ok((all > 1).then_some(entries))
    }

    fn shards(&self) -> Vec<Vec<&OutputTensor<'_>>> {
        let mut shards = vec![Vec::new()];
        let mut bytes = 0;
        for output in self.outputs {
            if bytes > 0 && bytes + output.bytes() > MAX_SHARD_BYTES {
                shards.push(Vec::new());
                bytes = 0;
            }
            bytes += output.bytes();
            if let Some(shard) = shards.last_mut() {
                shard.push(output);
            }
        }
        shards
    }

    fn file(
        &self,
        path: &Path,
        outputs: &[&OutputTensor<'_>],
        producer: &Producer<'_>,
    ) -> Result<(), ExportError> {
        let failure = RefCell::new(None);
        let tensors = outputs.iter().map(|output| {
            let tensor = LazyTensor {
                output,
                shape: if output.is_vector() {
                    vec![output.cols]
                } else {
                    vec![output.rows, output.cols]
                },
                producer,
                failure: &failure,
            };
            (output.name.as_str(), tensor)
        });
        let metadata = std::iter::once(("format".to_owned(), "pt".to_owned())).collect();
        let written = serialize_to_file(tensors, Some(metadata), path);
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        let finish = || -> io::Result<()> {
            written.map_err(io::Error::other)?;
            // The library creates private files.
            let mode = fs::metadata(path.with_file_name(CONFIG))?.permissions();
            fs::set_permissions(path, mode)?;
            File::open(path)?.sync_all()
        };
        Ok(finish().map_err(FileError::write(self.path))?)
    }
}

fn pretty(map: &Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(map.clone()))
}

fn reopen(path: &Path, model: &ModelFile) -> Result<(), ExportError> {
    let opened = ModelFile::open_folder(path);
    let opened = opened.map_err(|error| ExportError::Reopened(error.to_string()))?;
    let mut found = opened.hyper;
    // A configuration states neither.
    found.name.clone_from(&model.hyper.name);
    if model.hyper.forward.long_rope.is_none() {
        found.forward.long_rope = None;
    }
    check::compare_hyper_parameters(&model.hyper, RopePairs::Halves, &found)?;
    match (&model.vocabulary, &opened.vocabulary) {
        (Ok(expected), Ok(found)) => {
            check::compare_vocabularies(expected, found, Naming::HuggingFace)
        }
        (Ok(_), Err(error)) => Err(ExportError::Reopened(error.to_string())),
        (Err(_), _) => Ok(()),
    }
}

struct LazyTensor<'a> {
    output: &'a OutputTensor<'a>,
    shape: Vec<usize>,
    producer: &'a Producer<'a>,
    /// The library's interface cannot return one.
    failure: &'a RefCell<Option<ExportError>>,
}

impl View for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.output.dtype {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if self.failure.borrow().is_some() {
            return Cow::Borrowed(&[]);
        }
        let mut bytes = Vec::with_capacity(self.data_len());
        let made = self.producer.tensor(self.output, &mut |portion| {
            bytes.extend_from_slice(portion);
            Ok(())
        });
        match made {
            Ok(()) => Cow::Owned(bytes),
            Err(error) => {
                *self.failure.borrow_mut() = Some(error);
                Cow::Borrowed(&[])
            }
        }
    }

    fn data_len(&self) -> usize {
        self.output.bytes() as usize
    }
}
