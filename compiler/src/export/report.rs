//! Report of an export, for programs and people.

use std::collections::BTreeMap;
use std::fmt;

use htc_formats::DType;
use htc_formats::architecture::{self, Naming};
use htc_formats::escape::escape;
use htc_formats::metadata::SourceMetadata;
use htc_formats::model::Role;
use htc_formats::source::ModelFile;
use schemars::JsonSchema;
use serde::Serialize;

use super::output::{OutputTensor, Outputs};
use crate::system::show::{format_bytes, format_count};

/// Report of an export.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ExportReport {
    /// File name of the artifact, without its folder.
    pub artifact: String,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// The model's architecture.
    pub architecture: String,
    /// The outputs, without their folders.
    pub files: Vec<OutputFile>,
    /// Matrices by handling and type; vectors are not counted.
    pub matrices: Vec<MatrixSum>,
    /// Notes on limitations of the output.
    pub notes: Vec<String>,
}

/// An output file or folder.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct OutputFile {
    /// File name.
    pub name: String,
    /// Size in bytes; for a folder that of the weights.
    pub bytes: u64,
}

/// Sum over matrices of one kind.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct MatrixSum {
    /// `stored` (copied), `decoded` (and encoded), `zeros` (in place of factors), or `adapter` (a
    /// factor).
    pub how: &'static str,
    /// Type in the output.
    pub dtype: DType,
    /// Number of tensors.
    pub tensors: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

pub(super) fn sums(outputs: &Outputs<'_>) -> Vec<MatrixSum> {
    let mut sums: BTreeMap<(&'static str, &'static str), MatrixSum> = BTreeMap::new();
    let mut add = |how, output: &OutputTensor<'_>| {
        let sum = sums.entry((how, output.dtype.name())).or_insert(MatrixSum {
            how,
            dtype: output.dtype,
            tensors: 0,
            bytes: 0,
        });
        sum.tensors += 1;
        sum.bytes += output.bytes();
    };
    for output in outputs.model.iter().filter(|output| !output.is_vector()) {
        if output.is_zero() {
            add("zeros", output);
        } else if output.is_stored() {
            add("stored", output);
        } else {
            add("decoded", output);
        }
    }
    let adapter = outputs.adapter.iter();
    adapter.for_each(|output| add("adapter", output));
    sums.into_values().collect()
}

pub(super) fn notes(
    file: &ModelFile,
    outputs: &Outputs<'_>,
    naming: Naming,
    asked: DType,
) -> Vec<String> {
    let mut notes = Vec::new();
    let encoded = |output: &&OutputTensor| !output.is_stored() && !output.is_vector();
    let mut others: BTreeMap<&'static str, usize> = BTreeMap::new();
    for output in outputs.model.iter().filter(encoded) {
        if output.dtype != asked && !output.is_zero() {
            *others.entry(output.dtype.name()).or_default() += 1;
        }
    }
    for (dtype, count) in others {
        notes.push(format!(
            "{} with rows that are no whole number of blocks of {asked}: stored as {dtype}",
            format_count(count, "matrix")
        ));
    }
    let zeros = outputs.model.iter().filter(encoded);
    match zeros.filter(|output| output.is_zero()).count() {
        0 => {}
        count => notes.push(format!(
            "{} of zeros in the base, which is no model without the adapter: llama-cli -m BASE --lora ADAPTER",
            format_count(count, "matrix")
        )),
    }
    let mut tensors = file.tensors.iter();
    if tensors.any(|tensor| matches!(tensor.role, Role::KvBasis { .. })) {
        notes.push(
            "the bases for a KV cache are left out; they change nothing that the model computes"
                .to_owned(),
        );
    }
    if matches!(file.embedded_source(), Ok(Some(_))) {
        let note = "the source's weights in the artifact are left out";
        notes.push(note.to_owned());
    }
    if let Err(error) = &file.vocabulary {
        notes.push(format!("there is no tokenizer in it: {error}"));
    }
    if naming == Naming::Gguf {
        notes.extend(gguf_notes(file));
    }
    notes
}

/// Returns the note on metadata of the source that the export does not have.
pub(super) fn metadata_note(
    metadata: Option<&SourceMetadata>,
    left_out: &[String],
) -> Option<String> {
    if metadata.is_none() {
        let note = "the artifact holds no metadata of its source, such as licence, author and \
                    sampling defaults; compile the model again to have them";
        return Some(note.to_owned());
    }
    let names = left_out.iter().map(|name| escape(name));
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| format!("metadata of the source left out: {}", names.join(", ")))
}

fn gguf_notes(file: &ModelFile) -> Vec<String> {
    let mut notes = Vec::new();
    if let Ok(vocabulary) = &file.vocabulary {
        let lost = vocabulary.properties_lost_in_gguf();
        let note = |property| format!("GGUF cannot express: {property}");
        notes.extend(lost.into_iter().map(note));
    }
    let hyper = &file.hyper;
    // llama.cpp applies the entry only to architectures with a pattern of windows (Gemma); check
    // this for a new one.
    let applied = architecture::has_window_pattern(&hyper.architecture);
    if let (Some(window), false) = (&hyper.forward.sliding_window, applied) {
        notes.push(format!(
            "llama.cpp does not apply the sliding window of {} positions to {}: it computes something else in longer contexts",
            window.positions, hyper.architecture
        ));
    }
    notes
}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files.iter();
        let files = files.map(|file| format!("{} ({})", file.name, format_bytes(file.bytes)));
        let files: Vec<String> = files.collect();
        writeln!(f, "{} -> {}", self.artifact, files.join(" and "))?;
        for sum in &self.matrices {
            let how = match sum.how {
                "stored" => "as stored",
                how => how,
            };
            let (dtype, bytes) = (sum.dtype.name(), format_bytes(sum.bytes));
            let tensors = sum.tensors;
            writeln!(
                f,
                "  {how:<10} {tensors:>5} matrices  {dtype:<8} {bytes:>10}"
            )?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        write!(f, "  read again, and found to be the same model")
    }
}
