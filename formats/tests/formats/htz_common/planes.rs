//! Small artifacts with refinements.

use htc_formats::DType;
use htc_formats::bands::Codes;
use htc_formats::htz::{ActiveFractionPoint, Manifest, TensorEntry};
use htc_formats::model::{MatrixId, ProjectionKind, Role};

use super::{Model, banded, bands, with_kv_bases};

pub fn planes_behind_kv_bases() -> Model {
    let (mut model, planes) = (with_kv_bases(banded()), refined());
    let is_plane = |role: Role| matches!(role, Role::Refinement { .. });
    let tensors = planes.manifest.tensors.into_iter();
    let tensors = tensors.filter(|entry| is_plane(entry.role));
    model.manifest.tensors.extend(tensors);
    let data = planes.data.into_iter().filter(|(role, _)| is_plane(*role));
    model.data.extend(data);
    let manifest = &mut model.manifest;
    manifest.requires = Manifest::required_features(&manifest.hyper, &manifest.tensors);
    manifest.dial = planes.manifest.dial;
    model
}

/// Refinements of three matrices, not in execution order, and active-fraction points.
pub fn refined() -> Model {
    let mut model = banded();
    let projection = |projection| MatrixId::Projection {
        layer: 0,
        projection,
    };
    for (seed, (matrix, codes)) in [
        (projection(ProjectionKind::Down), "1:t2x2"),
        (MatrixId::Head, "1:l2x1"),
        (projection(ProjectionKind::Q), "1:l3x1"),
    ]
    .into_iter()
    .enumerate()
    {
        let codes: Codes = codes.parse().expect("codes");
        let (rows, cols) = matrix.shape(&model.manifest.hyper);
        let role = Role::Refinement { matrix };
        let entry = TensorEntry::new(role.to_string(), role, DType::Bands, rows, cols);
        let entry = entry.with_codes(Some(codes.clone().into()));
        model.manifest.tensors.push(entry);
        model
            .data
            .push((role, bands(&codes, rows, 90 + seed as u64)));
    }
    let manifest = &mut model.manifest;
    manifest.requires = Manifest::required_features(&manifest.hyper, &manifest.tensors);
    manifest.dial = [
        (0, 5000, 0.02, 1.02),
        (2, 6000, 0.01, 1.01),
        (3, 8000, 0.005, 0.999),
    ]
    .map(
        |(refinements, bytes, kl, perplexity_ratio)| ActiveFractionPoint {
            refinements,
            bytes,
            fraction: bytes as f64 / 8000.0,
            kl,
            perplexity_ratio,
        },
    )
    .to_vec();
    model
}
