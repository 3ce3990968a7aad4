//! Spectrum of a stored layer: written when an artifact is sealed, and recomputed by `htc verify
//! --probe`.
//!
//! The weight of component `j` is `|a_j| |b_j|` for factors, `|p_j| |w_j|` for a shared basis, and
//! the norm of row `j` for a dense projection; a base with a residual has both. Norms do not detect
//! changes of signs or of the order within a vector.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::{DepthSinkRecord, GeometryRecord, SpectrumRecord, TensorEntry};
use htc_formats::model::spec::Projection;
use htc_formats::model::{HyperParameters, MatrixId, ModelSpec, Part, ProjectionKind, Role};

use crate::system::ordered;
use crate::unit::MakeError;

/// Relative tolerance for different orders of addition.
pub const TOLERANCE: f64 = 1e-9;

/// Independent of the number of threads, as is the order of sums.
const NUMBERS_PER_JOB: usize = 1 << 20;

/// Returns the geometry record of an artifact with zero spectra.
pub fn empty_record(
    hyper: &HyperParameters,
    tensors: &[TensorEntry],
    depth_sink: DepthSinkRecord,
) -> GeometryRecord {
    let ranks: BTreeMap<Role, u64> = tensors
        .iter()
        .filter(|entry| axis(entry.role) == Some(Axis::Columns))
        .map(|entry| (entry.role, entry.cols))
        .collect();
    let spectrum = |shape: &Projection| {
        let (layer, projection) = (shape.layer, shape.kind);
        let rank = |part| {
            ranks
                .get(&Role::Linear {
                    layer,
                    projection,
                    part,
                })
                .copied()
        };
        let factors = rank(Part::B).or_else(|| rank(Part::Projected));
        let rows = shape.rows as u64;
        SpectrumRecord {
            id: shape.matrix(),
            components: factors.unwrap_or(rows + rank(Part::ResidualB).unwrap_or(0)),
            largest: 0.0,
            energy: 0.0,
        }
    };
    let spec = ModelSpec::new(hyper, []);
    GeometryRecord {
        depth_sink,
        spectra: spec.projections().map(spectrum).collect(),
    }
}

/// Computes the spectra of a layer's projections in the order of execution; the result does not
/// depend on the number of threads.
///
/// # Errors
/// [`MakeError`].
pub fn spectra<'a>(
    tensors: &'a [TensorEntry],
    bytes: impl Fn(&'a TensorEntry) -> &'a [u8] + Sync,
    layer: usize,
    threads: usize,
) -> Result<Vec<SpectrumRecord>, MakeError> {
    let found = tensors.iter().filter_map(|entry| {
        let own = match entry.role {
            Role::Linear { layer, .. } | Role::Basis { layer, .. } => layer,
            _ => return None,
        };
        (own == layer).then_some(())?;
        Some((entry, axis(entry.role)?))
    });
    let found: Vec<(&TensorEntry, Axis)> = found.collect();
    let mut portions = Vec::new();
    for (index, (entry, _)) in found.iter().enumerate() {
        let step = (NUMBERS_PER_JOB / (entry.cols as usize).max(1)).max(1);
        let rows = (0..entry.rows as usize).step_by(step);
        portions.extend(rows.map(|row| (index, row, step)));
    }
    let mut sums = vec![Vec::new(); found.len()];
    ordered::for_each(
        threads,
        portions.len(),
        threads.saturating_mul(4),
        |portion| {
            let (index, row, step) = portions[portion];
            let (entry, axis) = found[index];
            let tensor = entry.role;
            let failed = |source| MakeError::Stored { tensor, source };
            if entry.dtype == DType::Bands {
                let rows = row..(row + step).min(entry.rows as usize);
                return column_group_norms(entry, bytes(entry), rows).map_err(failed);
            }
            let row_bytes = entry.dtype.row_bytes(entry.cols as usize).unwrap_or(0);
            let bytes = bytes(entry);
            let from = (row * row_bytes).min(bytes.len());
            let to = (from + step * row_bytes).min(bytes.len());
            squared_norms(entry.dtype, entry.cols as usize, &bytes[from..to], axis).map_err(failed)
        },
        |portion, part: Vec<f64>| {
            let index = portions[portion].0;
            let sums = &mut sums[index];
            match found[index].1 {
                Axis::Columns if !sums.is_empty() => add(sums, part),
                Axis::Rows | Axis::Columns => sums.extend(part),
            }
            Ok::<_, MakeError>(())
        },
    )?;
    let sums: BTreeMap<Role, Vec<f64>> = found
        .iter()
        .map(|(entry, _)| entry.role)
        .zip(sums)
        .collect();
    let squared = |role: Role| sums.get(&role).map(Vec::as_slice);
    let spectrum = |projection: ProjectionKind| {
        let part = |part| {
            squared(Role::Linear {
                layer,
                projection,
                part,
            })
        };
        let basis = |group| squared(Role::Basis { layer, group });
        let factors = part(Part::A).zip(part(Part::B));
        let shared = || Some((basis(projection.group()?)?, part(Part::Projected)?));
        let product = |(a, b): (&[f64], &[f64])| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a * b).collect()
        };
        let residual = part(Part::ResidualA).zip(part(Part::ResidualB));
        let mut energies = match factors.or_else(shared) {
            Some(factors) => product(factors),
            None => part(Part::Weight).unwrap_or_default().to_vec(),
        };
        energies.extend(residual.map(product).unwrap_or_default());
        SpectrumRecord {
            id: MatrixId::Projection { layer, projection },
            components: energies.len() as u64,
            largest: energies.iter().copied().fold(0.0, f64::max).sqrt(),
            energy: energies.iter().sum(),
        }
    };
    let projections = found.iter().filter_map(|(entry, _)| match entry.role {
        Role::Linear { projection, .. } => Some(projection),
        _ => None,
    });
    let projections: BTreeSet<ProjectionKind> = projections.collect();
    Ok(projections.into_iter().map(spectrum).collect())
}

/// Returns true if two spectra are equal up to the order of additions.
pub fn agree(one: &SpectrumRecord, other: &SpectrumRecord) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= TOLERANCE * a.abs().min(b.abs());
    one.components == other.components
        && near(one.largest, other.largest)
        && near(one.energy, other.energy)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Rows,
    Columns,
}

fn axis(role: Role) -> Option<Axis> {
    match role {
        Role::Basis { .. } => Some(Axis::Rows),
        Role::Linear { part, .. } => match part {
            Part::A | Part::ResidualA | Part::Weight => Some(Axis::Rows),
            Part::B | Part::ResidualB | Part::Projected => Some(Axis::Columns),
            Part::Bias => None,
        },
        _ => None,
    }
}

fn column_group_norms(
    entry: &TensorEntry,
    bytes: &[u8],
    rows: Range<usize>,
) -> Result<Vec<f64>, CodecError> {
    let Some(codes) = &entry.codes else {
        return Ok(Vec::new());
    };
    let bands = codes.view(entry.rows as usize, bytes)?;
    let mut values = vec![0.0; codes.cols()];
    rows.map(|row| {
        bands.decode_row(row, &mut values)?;
        Ok(squared_norm(&values))
    })
    .collect()
}

fn squared_norms(
    dtype: DType,
    cols: usize,
    bytes: &[u8],
    axis: Axis,
) -> Result<Vec<f64>, CodecError> {
    let row_bytes = dtype.row_bytes(cols).filter(|&bytes| bytes > 0);
    let row_bytes = row_bytes.unwrap_or(usize::MAX);
    let mut values = vec![0.0; cols];
    let rows = bytes.chunks(row_bytes);
    let mut sums = match axis {
        Axis::Rows => Vec::with_capacity(rows.len()),
        Axis::Columns => vec![0.0; cols],
    };
    if (dtype, axis) == (DType::Q8_0, Axis::Rows) {
        let mut scales = Q8Scales::new(cols);
        return rows.map(|row| q8_squared_norm(row, &mut scales)).collect();
    }
    for row in rows {
        block::decode(dtype, row, &mut values)?;
        match axis {
            Axis::Rows => sums.push(squared_norm(&values)),
            Axis::Columns => {
                add(&mut sums, values.iter().map(square));
            }
        }
    }
    Ok(sums)
}

/// Squared codes are summed exactly as integers, which is faster than decoding.
fn q8_squared_norm(row: &[u8], scales: &mut Q8Scales) -> Result<f64, CodecError> {
    let (blocks, _) = row.as_chunks::<Q8_BYTES>();
    for (bytes, block) in scales.bytes.chunks_exact_mut(2).zip(blocks) {
        bytes.copy_from_slice(&block[..2]);
    }
    block::decode(DType::F16, &scales.bytes, &mut scales.values)?;
    let energies = blocks.iter().zip(&scales.values).map(|(block, &scale)| {
        let codes = block[2..].iter().map(|&code| i16::from(code as i8));
        let squares: i32 = codes.map(|code| i32::from(code) * i32::from(code)).sum();
        f64::from(scale) * f64::from(scale) * f64::from(squares)
    });
    Ok(energies.sum())
}

/// A scale of two bytes and 32 codes.
const Q8_BYTES: usize = 34;

struct Q8Scales {
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Q8Scales {
    fn new(cols: usize) -> Q8Scales {
        let blocks = cols / DType::Q8_0.block_len();
        Q8Scales {
            bytes: vec![0; 2 * blocks],
            values: vec![0.0; blocks],
        }
    }
}

fn squared_norm(values: &[f32]) -> f64 {
    const LANES: usize = 16;
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for values in whole {
        add(&mut sums, values.iter().map(square));
    }
    sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}

fn square(value: &f32) -> f64 {
    f64::from(*value) * f64::from(*value)
}

fn add(sums: &mut [f64], part: impl IntoIterator<Item = f64>) {
    let pairs = sums.iter_mut().zip(part);
    pairs.for_each(|(sum, part)| *sum += part);
}

#[cfg(test)]
mod tests;
