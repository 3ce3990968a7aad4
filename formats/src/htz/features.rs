//! Features that an artifact requires of its readers.

use super::layout::{Header, KERNELS, METADATA_SECTIONS};
use super::manifest::{Manifest, TensorEntry};
use super::{HtzError, TOKENIZER};
use crate::DType;
use crate::bands::CodeLayout;
use crate::escape::escape_truncated;
use crate::model::{HyperParameters, MatrixId, Part, Role};

const KNOWN_FEATURES: [&str; 15] = [
    FORWARD,
    ROLES,
    TYPES,
    VOCABULARY,
    TOKENIZER_RULES,
    FORMS,
    PROBE,
    COLUMN_GROUPS,
    REFINEMENTS,
    ROW_CLASSES,
    TABLES,
    PADDING,
    ROTATION,
    KV_BASES,
    EXPERTS,
];

/// Hyper-parameters with a `forward`.
const FORWARD: &str = "forward";

/// Tensor roles introduced after format 1.0.
const ROLES: &str = "roles";

/// Tensor types introduced after format 1.0.
const TYPES: &str = "types";

/// Forms: a base with a residual, a factorised head (1.4).
const FORMS: &str = "forms";

/// Column groups (1.6).
const COLUMN_GROUPS: &str = "bands";

/// Refinements (1.7).
const REFINEMENTS: &str = "planes";

/// Row classes of column-group matrices (1.8).
const ROW_CLASSES: &str = "row_classes";

/// Trellis tables of version 2 (1.9).
const TABLES: &str = "tables";

/// Padded column groups (1.10).
const PADDING: &str = "padded_bands";

/// Rotated column groups (1.11).
const ROTATION: &str = "rotated_bands";

/// Bases of a KV cache (1.12).
const KV_BASES: &str = "kv_bases";

/// Mixtures of experts (1.15).
const EXPERTS: &str = "experts";

/// Layer to probe chosen by the user (1.4).
pub(super) const PROBE: &str = "probe";

/// Sections besides [`METADATA_SECTIONS`].
const KNOWN_SECTIONS: [&str; 2] = [TOKENIZER, KERNELS];

/// Returns the smallest minor version that has all that a manifest uses.
pub(super) fn minor_version(manifest: &Manifest) -> u16 {
    let mut sections = manifest.sections.iter();
    u16::from(sections.any(|entry| METADATA_SECTIONS.contains(&entry.name.as_str())))
}

/// Checks that this build supports the features and sections that an artifact requires. Sections
/// are given by name and requirement.
pub(super) fn check_requirements<'a>(
    features: &[String],
    mut sections: impl Iterator<Item = (&'a str, bool)>,
    header: &Header,
) -> Result<(), HtzError> {
    let is_known = |name| KNOWN_SECTIONS.contains(&name) || METADATA_SECTIONS.contains(&name);
    let unknown = features
        .iter()
        .map(String::as_str)
        .find(|feature| !KNOWN_FEATURES.contains(feature))
        .or_else(|| {
            sections
                .find(|(name, required)| *required && !is_known(*name))
                .map(|(name, _)| name)
        });
    match unknown {
        None => Ok(()),
        Some(feature) => Err(HtzError::Unsupported {
            feature: escape_truncated(feature),
            major: header.major,
            minor: header.minor,
        }),
    }
}

/// Pre-tokenisation that format 1.0 does not have.
pub(super) const VOCABULARY: &str = "vocabulary";

/// Rules of `tokenizer.json` that format 1 does not have (2.0).
pub(super) const TOKENIZER_RULES: &str = "tokenizer_rules";

pub(super) fn required_features(hyper: &HyperParameters, tensors: &[TensorEntry]) -> Vec<String> {
    let new_form = |role: Role| {
        matches!(
            MatrixId::from_role(role),
            Some((_, Part::ResidualA | Part::ResidualB))
        ) || matches!(role, Role::OutputFactor { .. })
    };
    let new_role = |role: Role| match role {
        Role::LongRopeFactors
        | Role::QueryNorm { .. }
        | Role::KeyNorm { .. }
        | Role::PostAttentionNorm { .. }
        | Role::PostFfnNorm { .. }
        | Role::Linear {
            part: Part::Bias, ..
        } => true,
        Role::TokenEmbedding
        | Role::RopeFactors
        | Role::AttentionNorm { .. }
        | Role::Basis { .. }
        | Role::Linear { .. }
        | Role::FfnNorm { .. }
        | Role::OutputNorm
        | Role::Output
        | Role::OutputFactor { .. }
        | Role::KvBasis { .. }
        | Role::KvEnergies { .. }
        | Role::Refinement { .. } => false,
    };
    let new_type = |dtype: DType| {
        !matches!(
            dtype,
            DType::F32
                | DType::F16
                | DType::BF16
                | DType::Q8_0
                | DType::Q4_0
                | DType::Q4K
                | DType::Q5K
                | DType::Q6K
                | DType::Bands
        )
    };
    [
        (FORWARD, !hyper.forward.is_plain()),
        (ROLES, tensors.iter().any(|entry| new_role(entry.role))),
        (TYPES, tensors.iter().any(|entry| new_type(entry.dtype))),
        (FORMS, tensors.iter().any(|entry| new_form(entry.role))),
        (
            COLUMN_GROUPS,
            tensors.iter().any(|entry| entry.dtype == DType::Bands),
        ),
        (
            REFINEMENTS,
            tensors.iter().any(|entry| is_refinement(entry.role)),
        ),
        (ROW_CLASSES, tensors.iter().any(has_classes)),
        (TABLES, tensors.iter().any(has_new_tables)),
        (PADDING, tensors.iter().any(is_padded)),
        (ROTATION, tensors.iter().any(is_rotated)),
        (EXPERTS, hyper.forward.experts.is_some()),
        (KV_BASES, tensors.iter().any(|entry| is_kv(entry.role))),
    ]
    .into_iter()
    .filter(|(_, needed)| *needed)
    .map(|(feature, _)| feature.to_owned())
    .collect()
}

pub(super) fn is_refinement(role: Role) -> bool {
    matches!(role, Role::Refinement { .. })
}

fn is_kv(role: Role) -> bool {
    matches!(role, Role::KvBasis { .. } | Role::KvEnergies { .. })
}

fn has_classes(entry: &TensorEntry) -> bool {
    matches!(entry.codes, Some(CodeLayout::Classes(_)))
}

fn has_new_tables(entry: &TensorEntry) -> bool {
    let layout = entry.codes.as_ref();
    layout.is_some_and(|layout| {
        layout
            .codes_with_rows(0)
            .any(|(_, codes)| codes.version() > 1)
    })
}

fn is_padded(entry: &TensorEntry) -> bool {
    entry
        .codes
        .as_ref()
        .is_some_and(|layout| layout.padding() > 0)
}

fn is_rotated(entry: &TensorEntry) -> bool {
    entry.codes.as_ref().is_some_and(CodeLayout::is_rotated)
}
