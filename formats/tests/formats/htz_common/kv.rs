//! A small artifact with bases of a KV cache.

use htc_formats::DType;
use htc_formats::htz::{Manifest, TensorEntry};
use htc_formats::model::{HyperParameters, KvSide, Role};

use super::{Choice, Model, hyper, model};

/// Format 1.12.
pub fn based() -> Model {
    let hyper = HyperParameters {
        kv_heads: 2,
        ..hyper(2)
    };
    let choose = |_, _| Choice::Dense(DType::Q4_0);
    let dense = model(hyper, false, Some(DType::F16), (DType::F32, 6), choose);
    with_kv_bases(dense)
}

/// Adds bases to a model without refinements: for keys the rows of a Hadamard matrix, for values
/// the axes, with energies that halve.
pub fn with_kv_bases(mut model: Model) -> Model {
    let manifest = &mut model.manifest;
    let (layers, heads) = (manifest.hyper.layers, manifest.hyper.kv_heads);
    let size = manifest.hyper.head_size;
    assert!(size.is_power_of_two() && size.ilog2().is_multiple_of(2));
    for layer in 0..layers {
        for side in KvSide::ALL {
            let role = Role::KvBasis { layer, side };
            let entry = TensorEntry::new(role.to_string(), role, DType::F16, heads * size, size);
            manifest.tensors.push(entry);
            let of_head = (0..size * size).map(|at| entry_of(side, size, at / size, at % size));
            let rows: Vec<u8> = of_head.flat_map(u16::to_le_bytes).collect();
            model.data.push((role, rows.repeat(heads)));
            let role = Role::KvEnergies { layer, side };
            let entry = TensorEntry::new(role.to_string(), role, DType::F32, heads, size);
            manifest.tensors.push(entry);
            let energies = (1..=size).map(|j| 0.5f32.powi(j.min(size - 1) as i32));
            let bytes: Vec<u8> = energies.flat_map(f32::to_le_bytes).collect();
            model.data.push((role, bytes.repeat(heads)));
        }
    }
    manifest.requires = Manifest::required_features(&manifest.hyper, &manifest.tensors);
    model
}

fn entry_of(side: KvSide, size: usize, row: usize, col: usize) -> u16 {
    const ONE: u16 = 15 << 10;
    match side {
        KvSide::Key => {
            let sign = ((row & col).count_ones() as u16 % 2) << 15;
            // 1 / sqrt(size)
            sign | (ONE - (((size.ilog2() / 2) as u16) << 10))
        }
        KvSide::Value if row == col => ONE,
        KvSide::Value => 0,
    }
}
