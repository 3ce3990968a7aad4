//! Tests of the readers and writers through the public interface, in one program so that it is linked once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this crate is test code"
)]

mod bands;
mod block_common;
mod block_encoders;
mod block_fits;
mod block_formats;
mod block_optimum;
mod gguf_common;
mod gguf_malformed;
mod gguf_malformed_tensors;
mod gguf_model;
mod gguf_properties;
mod gguf_real_files;
mod gguf_split;
mod gguf_vocabulary;
mod htz_bands;
mod htz_common;
mod htz_damage;
mod htz_experts;
mod htz_faults;
mod htz_format;
mod htz_forms;
mod htz_kv_bases;
#[cfg(target_os = "linux")]
mod htz_memory;
mod htz_metadata;
mod htz_planes;
mod htz_properties;
mod htz_quality;
mod htz_record_faults;
mod htz_sealed;
mod htz_section_faults;
mod htz_source;
mod htz_tuning;
mod htz_versions;
mod htz_writer;
mod row_classes;
mod safetensors_common;
mod safetensors_config;
mod safetensors_folder;
mod safetensors_header;
mod safetensors_properties;
mod safetensors_reference;
mod safetensors_refused;
mod safetensors_rope;
mod scaled_rows;
mod source_metadata;
mod vocab_common;
mod vocab_hugging_face;
mod vocab_rules;
mod vocab_sentence_piece;
mod vocab_written;
