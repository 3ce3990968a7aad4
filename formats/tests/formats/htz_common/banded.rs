//! Small artifacts with column-group matrices.

use htc_formats::DType;
use htc_formats::bands::{CodeKind, CodeLayout, Codes, ColumnGroupWriter, GROUP_COLS};
use htc_formats::htz::{Manifest, TensorEntry};
use htc_formats::model::{HyperParameters, MatrixId, Part, ProjectionKind, Role};

use super::{Choice, Model, hyper, model, numbers};

/// Format 1.6: embedding, a projection and head in column groups.
pub fn banded() -> Model {
    in_bands(1, hyper(1))
}

/// Format 1.8: rows of the embedding in three classes.
pub fn classed() -> Model {
    in_classes(in_bands(1, hyper(1)), 1)
}

/// Format 1.9: tables of version 2.
pub fn tabled() -> Model {
    in_classes(in_bands(2, hyper(1)), 2)
}

/// Format 1.10: 20 and 44 columns; and one refinement.
pub fn padded() -> Model {
    let narrow = HyperParameters {
        width: 20,
        head_size: 10,
        rope_dimensions: 10,
        ffn: 44,
        ..hyper(1)
    };
    let mut model = in_classes(in_bands(2, narrow), 2);
    let matrix = MatrixId::Projection {
        layer: 0,
        projection: ProjectionKind::Down,
    };
    let codes: Codes = "1:l2x2-20".parse().expect("codes");
    let (rows, cols) = matrix.shape(&model.manifest.hyper);
    let role = Role::Refinement { matrix };
    let entry = TensorEntry::new(role.to_string(), role, DType::Bands, rows, cols);
    let tensors = &mut model.manifest.tensors;
    tensors.push(entry.with_codes(Some(codes.clone().into())));
    model.data.push((role, bands(&codes, rows, 90)));
    model.manifest.requires =
        Manifest::required_features(&model.manifest.hyper, &model.manifest.tensors);
    model
}

/// Format 1.11: a projection, the head and a class of the embedding.
pub fn rotated() -> Model {
    let mut model = tabled();
    for (role, codes) in [
        (Role::TokenEmbedding, "3*1:l5x1;4*2r:t3x1;5*2:t2x1"),
        (
            Role::Linear {
                layer: 0,
                projection: ProjectionKind::Down,
                part: Part::Weight,
            },
            "2r:t3x1,l4x1",
        ),
        (Role::Output, "2r:t2x1"),
    ] {
        let mut tensors = model.manifest.tensors.iter_mut();
        let entry = tensors.find(|entry| entry.role == role);
        let entry = entry.expect("the model has it");
        entry.codes = Some(codes.parse().expect("codes"));
    }
    model.manifest.requires =
        Manifest::required_features(&model.manifest.hyper, &model.manifest.tensors);
    model
}

fn padding(cols: u64) -> String {
    match cols.next_multiple_of(GROUP_COLS as u64) - cols {
        0 => String::new(),
        padding => format!("-{padding}"),
    }
}

fn in_bands(version: u8, hyper: HyperParameters) -> Model {
    let plain = match hyper.width % GROUP_COLS {
        0 => DType::Q8_0,
        _ => DType::F16,
    };
    let choose = |_, _| Choice::Dense(plain);
    let mut model = model(hyper, false, Some(DType::F16), (DType::F32, 6), choose);
    let down = Role::Linear {
        layer: 0,
        projection: ProjectionKind::Down,
        part: Part::Weight,
    };
    for (role, codes) in [
        (Role::TokenEmbedding, "1:l5x1".to_owned()),
        (down, format!("{version}:t3x1,l4x1")),
        (Role::Output, format!("{version}:t2x1")),
    ] {
        let tensors = &mut model.manifest.tensors;
        let index = tensors.iter().position(|entry| entry.role == role);
        let index = index.expect("the model has it");
        let entry = &mut tensors[index];
        let codes = format!("{codes}{}", padding(entry.cols));
        let codes: Codes = codes.parse().expect("codes");
        let layout = CodeLayout::from(codes.clone());
        entry.dtype = DType::Bands;
        entry.codes = Some(layout);
        let bytes = entry.stored_bytes().expect("whole bands");
        model.data[index].1 = bands(&codes, entry.rows as usize, index as u64);
        let mut projections = model.manifest.plan.projections.iter_mut();
        if let Some(record) = projections
            .find(|record| role == down && record.id.projection() == Some(ProjectionKind::Down))
        {
            record.bytes_after = bytes;
        }
    }
    model.manifest.requires =
        Manifest::required_features(&model.manifest.hyper, &model.manifest.tensors);
    model
}

fn in_classes(mut model: Model, version: u8) -> Model {
    let tensors = &mut model.manifest.tensors;
    let at = tensors
        .iter()
        .position(|of| of.role == Role::TokenEmbedding);
    let at = at.expect("the model has it");
    let padding = padding(tensors[at].cols);
    let layout = format!("3*1:l5x1{padding};4*{version}:t3x1{padding};5*{version}:t2x1{padding}");
    let layout: CodeLayout = layout.parse().expect("classes");
    let classes = match &layout {
        CodeLayout::Classes(classes) => Some(classes),
        CodeLayout::Uniform(_) => None,
    };
    let classes = classes.expect("classes");
    let of_rows = [1, 2, 2, 0, 1, 1, 2, 0, 0, 2, 1, 2];
    let parts = classes.iter().zip(0..);
    let parts = parts.map(|(class, seed)| bands(&class.codes, class.rows, seed));
    model.data[at].1 = classes.pack(&of_rows, &parts.collect::<Vec<_>>());
    tensors[at].codes = Some(layout);
    model.manifest.requires =
        Manifest::required_features(&model.manifest.hyper, &model.manifest.tensors);
    model
}

pub fn bands(codes: &Codes, rows: usize, seed: u64) -> Vec<u8> {
    let mut bytes = numbers(DType::I8, codes.bytes(rows) as usize, seed);
    let mut packer = ColumnGroupWriter::new(codes, rows);
    for row in 0..rows {
        for kind in CodeKind::ALL {
            if codes.contains_kind(kind) {
                let scale = 1.0 / (16 + row) as f32;
                packer
                    .set_row_scale(kind, row, scale)
                    .expect("a finite scale");
            }
        }
    }
    for (band, _) in codes
        .iter()
        .enumerate()
        .filter(|(_, c)| c.kind() == CodeKind::Trellis)
    {
        for col in band * GROUP_COLS..(band + 1) * GROUP_COLS {
            packer
                .set_column_scale(col, 1.0 / 32.0)
                .expect("a finite scale");
        }
    }
    let scales = packer.finish();
    let start = codes.tile_range(rows, 0, 0).start;
    bytes[..start].copy_from_slice(&scales[..start]);
    bytes
}
