//! A small artifact with the weights of its source.

use htc_formats::DType;
use htc_formats::htz::{Manifest, SourceRecord, SourceTensor};
use htc_formats::model::{ProjectionKind, Role};

use super::{Choice, Model, mixed, model};

/// Format 1.13: the source of [`mixed`], which shares some tensors with the artifact.
pub fn sealed() -> Model {
    with_source(mixed(), DType::Q8_0)
}

pub fn with_source(mut artifact: Model, dtype: DType) -> Model {
    let hyper = artifact.manifest.hyper.clone();
    let own = |role: Role| artifact.manifest.tensor(role);
    let rope = own(Role::RopeFactors).is_some();
    let head = own(Role::Output).map(|entry| entry.dtype);
    let choose = |_, projection| match projection {
        ProjectionKind::V => Choice::Dense(DType::BF16),
        _ => Choice::Dense(dtype),
    };
    let mut source = model(hyper, rope, head, (DType::F32, 6), choose);
    if head.is_some() {
        let output = artifact.data.iter().find(|(role, _)| *role == Role::Output);
        source.data.pop();
        source.data.extend(output.cloned());
    }
    let same = |role: Role, bytes: &[u8]| {
        let mut data = artifact.data.iter();
        data.any(|(own, stored)| *own == role && stored == bytes)
    };
    let entries = source.manifest.tensors.iter().zip(&source.data);
    let tensors = entries.map(|(entry, (role, bytes))| SourceTensor {
        name: entry.name.clone(),
        role: *role,
        dtype: entry.dtype,
        rows: entry.rows,
        cols: entry.cols,
        shared: same(*role, bytes) && own(*role).is_some_and(|own| own.dtype == entry.dtype),
    });
    let record = SourceRecord {
        tensors: tensors.collect(),
    };
    let shared = |role: Role| record.tensors.iter().any(|of| of.role == role && of.shared);
    let data = source.data.into_iter();
    artifact.source = data.filter(|(role, _)| !shared(*role)).collect();
    for feature in Manifest::required_features(&artifact.manifest.hyper, &record.entries()) {
        if !artifact.manifest.requires.contains(&feature) {
            artifact.manifest.requires.push(feature);
        }
    }
    artifact.manifest.source = Some(record);
    artifact
}
