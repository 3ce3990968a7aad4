//! Arguments of `htc export`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use htc_formats::{DType, block};

use super::{ThreadArgs, gguf_path, has_extension, output_path};
use crate::export::{DEFAULT_TYPE, ExportOptions, ExportTarget};

const EXAMPLES: &str = "Examples:
  htc export model.htz -o model.gguf
  htc export model.htz -o model.gguf --type q8_0
  htc export model.htz -o base.gguf --lora factors.gguf
  htc export model.htz -o folder --format safetensors --type bf16";

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One .gguf, for llama.cpp and its kin
    Gguf,
    /// A folder with config.json, tokenizer and .safetensors, for transformers
    Safetensors,
}

/// Arguments of `htc export`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["output", "to_safetensors"]))]
#[command(after_help = EXAMPLES, override_usage = "htc export [OPTIONS] -o <OUT> <ARTIFACT>")]
pub struct ExportArgs {
    /// Artifact to export (.htz)
    #[arg(value_name = "ARTIFACT")]
    pub artifact: PathBuf,
    /// Model to write: a .gguf, or a folder with --format safetensors
    #[arg(short, long, value_name = "OUT", value_parser = output_path())]
    output: Option<PathBuf>,
    /// Format of OUT: gguf, where matrices in types of GGUF stay as they are stored, block for block;
    /// safetensors, a folder with config.json and tokenizer, as transformers loads it
    #[arg(
        long,
        value_name = "gguf|safetensors",
        value_enum,
        default_value = "gguf",
        requires = "output"
    )]
    format: ExportFormat,
    /// Earlier spelling of -o DIR --format safetensors.
    #[arg(long, value_name = "DIR", value_parser = output_path(), hide = true, conflicts_with = "format")]
    to_safetensors: Option<PathBuf>,
    /// Type of the matrices that no GGUF, or no folder, can hold as they are stored: factors of low
    /// rank are multiplied, and blocks in a folder decoded; f32, f16, bf16, and in a GGUF the types of
    /// blocks that htc writes
    #[arg(long = "type", alias = "as", value_name = "TYPE", default_value_t = DEFAULT_TYPE, value_parser = parse_type)]
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
    ///
    /// # Errors
    /// The format, the name of the output and the adapter contradict each other, with the remedy.
    pub fn options(&self) -> Result<ExportOptions, &'static str> {
        let output = self.output.clone().unwrap_or_default();
        let is_gguf = has_extension(&output, "gguf");
        let target = match (&self.to_safetensors, self.format) {
            (Some(path), _) => ExportTarget::Safetensors { path: path.clone() },
            (None, ExportFormat::Safetensors) if is_gguf => {
                return Err(
                    "-o: a .gguf is written with --format gguf; name a folder for safetensors",
                );
            }
            (None, ExportFormat::Safetensors) if self.lora.is_some() => {
                return Err(
                    "--lora: an adapter belongs to a GGUF; leave it or --format safetensors out",
                );
            }
            (None, ExportFormat::Safetensors) => ExportTarget::Safetensors { path: output },
            (None, ExportFormat::Gguf) if !is_gguf => {
                return Err(
                    "-o: a GGUF has the extension .gguf; for a folder pass --format safetensors",
                );
            }
            (None, ExportFormat::Gguf) => ExportTarget::Gguf {
                path: output,
                lora: self.lora.clone(),
            },
        };
        Ok(ExportOptions {
            artifact: self.artifact.clone(),
            target,
            dtype: self.dtype,
            threads: self.threads.count(),
            overwrite: self.force,
        })
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
