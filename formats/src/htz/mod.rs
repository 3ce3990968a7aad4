#![doc = include_str!("../../SPEC.md")]

mod check;
mod dial;
mod digest;
mod error;
mod geometry;
mod kernel_code;
mod layout;
mod manifest;
mod put_quality;
mod quality;
mod reader;
mod sealed;
mod section;
mod source;
mod writer;

pub use crate::model::Form;
pub use dial::DialPoint;
pub use digest::{Digest, Hasher};
pub use error::HtzError;
pub use geometry::{DepthSinkRecord, GeometryRecord, Origin, SpectrumRecord};
pub use kernel_code::{Architecture, CodeForm, CodeImage, KernelCode, KernelCodeError};
pub use layout::{
    ALIGNMENT, FORMAT_MAJOR, FORMAT_MINOR, FREE_SECTION_BYTES, HEADER_BYTES, KERNELS, MAGIC,
    MAX_MANIFEST_BYTES, MAX_SECTION_BYTES, MAX_SECTION_EXPANSION, TOKENIZER,
};
pub use manifest::{
    AllocationRecord, BasisRecord, Budget, CalibrationRecord, Encoding, Manifest, MatrixRecord,
    PlanRecord, Provenance, SectionEntry, SlotRecord, TensorEntry, TreatmentRecord, TuningRecord,
};
pub use quality::{Estimate, QualityRecord};
pub use reader::{Htz, Verified};
pub use sealed::{SourceRecord, SourceTensor};
pub use section::Section;
pub use writer::HtzWriter;
