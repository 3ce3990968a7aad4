#![doc = include_str!("../../SPEC.md")]

mod check;
mod dial;
mod digest;
mod error;
mod features;
mod geometry;
mod kernel_code;
mod layout;
mod manifest;
mod quality;
mod reader;
mod sealed;
mod section;
mod source;
mod version_1;
mod write_quality;
mod writer;

pub use crate::model::Form;
pub use dial::ActiveFractionPoint;
pub use digest::{Digest, Hasher};
pub use error::{HtzError, Record};
pub use geometry::{DepthSinkOrigin, DepthSinkRecord, GeometryRecord, SpectrumRecord};
pub use kernel_code::{CodeFormat, CodeImage, GpuArchitecture, KernelCode};
pub use layout::{
    ALIGNMENT, FOLDER_METADATA, FORMAT_MAJOR, FORMAT_MINOR, GGUF_METADATA, HEADER_BYTES, KERNELS,
    MAGIC, MAX_MANIFEST_1_BYTES, MAX_MANIFEST_BYTES, MAX_SECTION_BYTES, MAX_SECTION_EXPANSION,
    TOKENIZER, UNBOUNDED_EXPANSION_BYTES,
};
pub use manifest::{
    AllocationRecord, BasisRecord, Budget, CalibrationRecord, Encoding, Manifest, MatrixRecord,
    PlanRecord, Provenance, SectionEntry, TensorEntry, TreatmentRecord, TuningRecord,
};
pub use quality::{Measurement, QualityRecord};
pub use reader::{Htz, VerifiedItem};
pub use sealed::{SourceRecord, SourceTensor};
pub use section::Section;
pub use writer::HtzWriter;
