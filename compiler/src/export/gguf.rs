use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use htc_formats::architecture::{self, Naming};
use htc_formats::folder::Folder;
use htc_formats::gguf::{Contents, GgmlType, Value, Writer};
use htc_formats::map::MappedFile;
use htc_formats::source::ModelFile;
use htc_formats::vocab::Vocabulary;

use super::output::OutputTensor;
use super::produce::Producer;
use super::{ExportError, check};
use crate::event::{Event, Task};
use crate::system::disk;
use crate::system::error::FileError;

/// Version of the block formats, which llama.cpp requires in quantised files.
const QUANTIZATION_VERSION: u32 = 2;

/// Bytes between syncs to disk, so that the last one is quick.
const SYNC_INTERVAL_BYTES: u64 = 64 << 20;

pub(super) struct GgufFile<'a> {
    pub path: &'a Path,
    pub overwrite: bool,
    pub metadata: Vec<(String, Value)>,
    pub outputs: &'a [OutputTensor<'a>],
}

/// Returns the entries that state a model's hyper-parameters and vocabulary.
pub(super) fn model_metadata(file: &ModelFile) -> Result<Vec<(String, Value)>, ExportError> {
    let mut entries = architecture::gguf_metadata(&file.hyper)?;
    entries.push((
        "general.quantization_version".to_owned(),
        Value::U32(QUANTIZATION_VERSION),
    ));
    match &file.vocabulary {
        Ok(vocabulary) => entries.extend(vocabulary.to_gguf()),
        Err(_) => entries.push((
            "tokenizer.ggml.model".to_owned(),
            Value::String("no_vocab".to_owned()),
        )),
    }
    Ok(entries)
}

pub(super) fn adapter_metadata(file: &ModelFile) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let entries = [
        ("general.architecture", text(&file.hyper.architecture)),
        ("general.type", text("adapter")),
        ("adapter.type", text("lora")),
        // Alpha 0 disables scaling by the rank.
        ("adapter.lora.alpha", Value::F32(0.0)),
        (
            "general.quantization_version",
            Value::U32(QUANTIZATION_VERSION),
        ),
    ];
    let entries = entries.into_iter();
    entries
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

impl<'a> GgufFile<'a> {
    fn writer(&self) -> Result<Writer<'a>, ExportError> {
        let mut writer = Writer::new();
        for (key, value) in &self.metadata {
            writer.metadata(key.clone(), value.clone());
        }
        for output in self.outputs {
            let (rows, cols) = (output.rows as u64, output.cols as u64);
            let dims = match output.pieces.len() as u64 {
                experts if output.is_stack => vec![cols, rows / experts, experts],
                _ if output.is_vector() => vec![cols],
                _ => vec![cols, rows],
            };
            let kind =
                GgmlType::from_dtype(output.dtype).ok_or(ExportError::NoType(output.dtype))?;
            writer.deferred_tensor(output.name.clone(), kind, &dims);
        }
        Ok(writer)
    }

    pub fn length(&self) -> Result<u64, ExportError> {
        Ok(self.writer()?.file_length()?)
    }

    /// Writes a temporary file, checks it, and renames it.
    pub fn write(
        &self,
        producer: &Producer<'_>,
        model: Option<&ModelFile>,
    ) -> Result<(), ExportError> {
        let failed = FileError::write(self.path);
        let (folder, name) = Folder::parent_of(self.path).map_err(&failed)?;
        let temporary = folder
            .temporary(folder.mode_for_replacement(&name))
            .map_err(&failed)?;
        self.fill(temporary.file().map_err(&failed)?, producer, model)?;
        producer.watch.check_cancelled()?;
        temporary.persist(&name, self.overwrite).map_err(failed)?;
        if let Err(error) = folder.sync() {
            let place = disk::folder_of(self.path).display();
            let said = format!(
                "{place}: cannot be forced to the disk ({error}); the file is complete, but its name may be lost if the machine fails now"
            );
            producer.watch.report(Event::Warning(&said));
        }
        Ok(())
    }

    fn fill(
        &self,
        file: &File,
        producer: &Producer<'_>,
        model: Option<&ModelFile>,
    ) -> Result<(), ExportError> {
        let failed = FileError::write(self.path);
        let mut to = BufWriter::with_capacity(1 << 20, SyncingWriter { file, since: 0 });
        let io = |error| failed(error).into();
        let written = self.writer()?.write_with(&mut to, io, |index, to| {
            producer.tensor(&self.outputs[index], &mut |bytes| {
                Ok(to.write_all(bytes).map_err(&failed)?)
            })
        });
        written?;
        to.flush().map_err(&failed)?;
        producer.watch.begin(Task::Sealing, 0);
        file.sync_all().map_err(&failed)?;
        let Some(model) = model else {
            return Ok(());
        };
        let map = MappedFile::from_file(self.path.to_owned(), file);
        let map = map.map_err(|error| failed(error.into_io()))?;
        reopen(&map, model)
    }
}

fn reopen(bytes: &[u8], model: &ModelFile) -> Result<(), ExportError> {
    let unreadable = |error: &dyn std::fmt::Display| ExportError::Reopened(error.to_string());
    let contents = Contents::parse(bytes).map_err(|error| unreadable(&error))?;
    let bound = architecture::bind(&contents).map_err(|error| unreadable(&error))?;
    let pairs = architecture::gguf_rope_pairs(&model.hyper)?;
    check::compare_hyper_parameters(&model.hyper, pairs, &bound.0)?;
    match &model.vocabulary {
        Ok(expected) => {
            let found = Vocabulary::from_gguf(&contents).map_err(|error| unreadable(&error))?;
            check::compare_vocabularies(expected, &found, Naming::Gguf)
        }
        Err(_) => Ok(()),
    }
}

struct SyncingWriter<'a> {
    file: &'a File,
    since: u64,
}

impl Write for SyncingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.since += written as u64;
        if self.since >= SYNC_INTERVAL_BYTES {
            self.since = 0;
            self.file.sync_data()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
