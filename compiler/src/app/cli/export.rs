//! Arguments of `htc export`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use htc_formats::{DType, block};

use super::{ThreadArgs, gguf_path, output_path};
use crate::export::{DEFAULT_TYPE, ExportOptions, ExportTarget};

const EXAMPLES: &str = "Examples:
  htc export model.htz -o model.gguf
  htc export model.htz -o model.gguf --as q8_0
  htc export model.htz -o base.gguf --lora factors.gguf
  htc export model.htz --to-safetensors folder --as bf16";

/// Arguments of `htc export`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["output", "to_safetensors"]))]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// Artifact to export (.htz)
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// Model to write (.gguf): matrices in types of GGUF stay as they are stored, block for block
    #[arg(short, long, value_name = "OUT", value_parser = gguf_path())]
    pub output: Option<PathBuf>,
    /// Folder to write, with config.json, tokenizer and .safetensors, as transformers loads it
    #[arg(long, value_name = "DIR", value_parser = output_path())]
    pub to_safetensors: Option<PathBuf>,
    /// Type of the matrices that no GGUF, or no folder, can hold as they are stored: factors of low
    /// rank are multiplied, and blocks in a folder decoded; f32, f16, bf16, and in a GGUF the types of
    /// blocks that htc writes
    #[arg(long = "as", value_name = "TYPE", default_value_t = DEFAULT_TYPE, value_parser = parse_type)]
    pub dtype: DType,
    /// Write the factors of low rank as they are stored into this file (.gguf), an adapter (LoRA) for
    /// OUT: a base with what it lacks keeps the base there; where there are factors alone, it has zeros
    #[arg(long, value_name = "FILE", conflicts_with = "to_safetensors", value_parser = gguf_path())]
    pub lora: Option<PathBuf>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Replace OUT, FILE or the files in DIR if they exist
    #[arg(long)]
    pub force: bool,
    /// Print what was written as JSON on standard output
    #[arg(long)]
    pub json: bool,
}

impl ExportArgs {
    /// Returns the export options.
    pub fn options(&self) -> ExportOptions {
        let target = match &self.to_safetensors {
            Some(path) => ExportTarget::Safetensors { path: path.clone() },
            None => ExportTarget::Gguf {
                path: self.output.clone().unwrap_or_default(),
                lora: self.lora.clone(),
            },
        };
        ExportOptions {
            artifact: self.artifact.clone(),
            target,
            dtype: self.dtype,
            threads: self.threads.count(),
            overwrite: self.force,
        }
    }
}

fn parse_type(text: &str) -> Result<DType, String> {
    let writable = block::writable_types();
    let found = writable.iter().find(|dtype| dtype.name() == text);
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = writable.iter().map(|dtype| dtype.name()).collect();
        format!("types that are written are {}", names.join(", "))
    })
}
