//! Small artifacts with informative records and sections.

use htc_formats::htz;
use htc_formats::vocab::UnicodeForm;

use super::{Model, mixed, probed};

pub fn with_kernels() -> Model {
    let mut model = mixed();
    model.kernels = Some(kernels());
    model
}

pub fn kernels() -> htz::KernelCode {
    let image = |form, bytes: &[u8]| htz::CodeImage {
        architecture: htz::GpuArchitecture { major: 9, minor: 0 },
        form,
        unit: "elementwise".to_owned(),
        bytes: bytes.to_vec(),
    };
    htz::KernelCode {
        sources: htz::Digest::of_bytes(b"sources"),
        compiler: "NVRTC 13.0".to_owned(),
        images: vec![
            image(htz::CodeFormat::Cubin, b"\x7fELF"),
            image(htz::CodeFormat::Ptx, b"// PTX\0"),
        ],
    }
}

/// Returns a vocabulary with rules of `tokenizer.json` that format 1 does not have.
pub fn with_tokenizer_rules() -> Model {
    let mut model = mixed();
    let vocabulary = &mut model.vocabulary;
    vocabulary.normalization = Some(UnicodeForm::Nfc);
    vocabulary.space_prefix_if_absent = true;
    vocabulary.split_before_spaces = true;
    vocabulary.match_normalized = vec![2];
    let feature = htz::Manifest::TOKENIZER_RULES.to_owned();
    model.manifest.requires.push(feature);
    model
}

pub fn allocated() -> Model {
    let mut model = mixed();
    model.manifest.plan.allocation = Some(htz::AllocationRecord {
        allocator: "waterfill".to_owned(),
        budget: Some("bytes 5000".to_owned()),
        rank_floor: Some("0.25".to_owned()),
        rank_cap: Some(48),
        notes: vec!["an example".to_owned()],
    });
    model.manifest.provenance.calibration = Some(htz::CalibrationRecord {
        text_sha256: htz::Digest::of_bytes(b"a text"),
        tokens: 4096,
        context: 512,
        gauge: "whiten".to_owned(),
    });
    model
}

pub fn treated() -> Model {
    let mut model = allocated();
    model.manifest.geometry = probed().manifest.geometry;
    model.manifest.provenance.treatment = Some(htz::TreatmentRecord {
        gauge: "whiten".to_owned(),
        sink: Some("channels:4".to_owned()),
        bias: true,
        shrinkage: None,
    });
    model
}
