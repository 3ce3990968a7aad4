//! Decoding of a model's matrices to dense numbers.

use htc_formats::model::{Form, InputGroup, MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::ModelFile;

use crate::error::ExecError;
use crate::tensor::Tensor;

/// Returns the full `W [out, in]` of a projection.
pub(super) fn decode_projection(
    file: &ModelFile,
    layer: usize,
    projection: ProjectionKind,
) -> Result<Vec<f32>, ExecError> {
    let matrix = MatrixId::Projection { layer, projection };
    let of = |part: Part| -> Result<Vec<f32>, ExecError> {
        let missing = ExecError::Missing(matrix.weight());
        decode_tensor(file, matrix.role(part).ok_or(missing)?)
    };
    let has = |part: Part| {
        let role = matrix.role(part);
        role.is_some_and(|role| file.tensor(role).is_some())
    };
    let (rows, cols) = matrix.shape(&file.hyper);
    let form = Form::from_parts(has).ok_or(ExecError::Missing(matrix.weight()))?;
    Ok(match form {
        Form::Dense => {
            let mut w = of(Part::Weight)?;
            let refinement = Role::Refinement { matrix };
            if file.tensor(refinement).is_some() {
                add(&mut w, &decode_tensor(file, refinement)?);
            }
            w
        }
        Form::LowRank => product(&of(Part::B)?, &of(Part::A)?, [rows, cols]),
        Form::Residual => {
            let mut w = of(Part::Weight)?;
            let lacking = product(&of(Part::ResidualB)?, &of(Part::ResidualA)?, [rows, cols]);
            add(&mut w, &lacking);
            w
        }
        Form::SharedBasis => {
            let group = projection.group().unwrap_or(InputGroup::Qkv);
            let basis = decode_tensor(file, Role::Basis { layer, group })?;
            product(&of(Part::Projected)?, &basis, [rows, cols])
        }
    })
}

pub(super) fn decode_tensor(file: &ModelFile, role: Role) -> Result<Vec<f32>, ExecError> {
    let tensor = file.tensor(role).ok_or(ExecError::Missing(role))?;
    Tensor::new(file, tensor).to_f32()
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

fn product(b: &[f32], a: &[f32], [rows, cols]: [usize; 2]) -> Vec<f32> {
    let mut out = vec![0.0; rows * cols];
    let rank = b.len() / rows.max(1);
    for (out, b) in out
        .chunks_exact_mut(cols.max(1))
        .zip(b.chunks_exact(rank.max(1)))
    {
        for (&weight, row) in b.iter().zip(a.chunks_exact(cols.max(1))) {
            for (out, &number) in out.iter_mut().zip(row) {
                *out += weight * number;
            }
        }
    }
    out
}
