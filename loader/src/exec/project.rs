//! Linear slots that read the same input, each in its stored form.

use htc_kernels::cpu::{self, Product, Scratch};
use htc_kernels::{Matrix, Pool, ShapeError};

use crate::error::ExecError;
use crate::linear::{Linear, RankFraction, cut_first};
use crate::tensor::Tensor;

/// A slot and the buffer `[n, out]` it fills.
pub(super) struct Output<'a> {
    linear: &'a Linear,
    y: &'a mut [f32],
}

impl<'a> Output<'a> {
    pub(super) fn new(linear: &'a Linear, y: &'a mut [f32]) -> Self {
        Output { linear, y }
    }
}

/// Room between the two stages of factorised slots, and for the kernels.
#[derive(Default)]
pub(super) struct Workspace {
    inner: Vec<f32>,
    pub(super) scratch: Scratch,
}

impl Workspace {
    /// `Y = X Wᵀ` for `n` rows.
    pub(super) fn multiply(
        &mut self,
        pool: &Pool,
        w: Matrix,
        n: usize,
        x: &[f32],
        y: &mut [f32],
    ) -> Result<(), ShapeError> {
        multiply_all(pool, n, &mut [Product { w, x, y }], &mut self.scratch)
    }
}

/// Independent products; for one row all of them in a single fork and join.
fn multiply_all(
    pool: &Pool,
    n: usize,
    products: &mut [Product],
    scratch: &mut Scratch,
) -> Result<(), ShapeError> {
    if n == 1 {
        return cpu::matvec_many(pool, products);
    }
    for Product { w, x, y } in products {
        cpu::matmul(pool, *w, n, x, y, scratch)?;
    }
    Ok(())
}

/// Applies every slot of `outputs` to `x [n, in]`.
///
/// First all dense products and all first factors (the group's basis once), then all second
/// factors: two rounds, whatever the number of slots.
pub(super) fn project(
    pool: &Pool,
    n: usize,
    x: &[f32],
    basis: Option<&Tensor>,
    fraction: RankFraction,
    outputs: &mut [Output],
    workspace: &mut Workspace,
) -> Result<(), ExecError> {
    // The stages of every factorised slot: its first factor and where its inner vector lies.
    let Workspace { inner, scratch } = workspace;
    let block_of_shared = outputs
        .iter()
        .filter_map(|o| match o.linear {
            Linear::SharedBasis { projected } => Some(projected.dtype().block_len()),
            _ => None,
        })
        .max();
    let shared = match (basis, block_of_shared) {
        (Some(basis), Some(block)) => Some(cut_first(basis, fraction, block)?),
        _ => None,
    };
    let shared_rows = shared.as_ref().map_or(0, |cut| cut.first.rows());
    let own: Vec<_> = outputs
        .iter()
        .map(|o| match o.linear {
            Linear::LowRank { a, b } => cut_first(a, fraction, b.dtype().block_len()).map(Some),
            _ => Ok(None),
        })
        .collect::<Result<_, _>>()?;
    let rows: usize = own.iter().flatten().map(|cut| cut.first.rows()).sum();
    inner.resize(n * (shared_rows + rows), 0.0);

    let (shared_inner, mut rest) = inner.split_at_mut(n * shared_rows);
    let mut inners: Vec<&mut [f32]> = Vec::with_capacity(outputs.len());
    for cut in &own {
        let length = n * cut.as_ref().map_or(0, |cut| cut.first.rows());
        let (mine, others) = rest.split_at_mut(length);
        inners.push(mine);
        rest = others;
    }

    let mut products: Vec<Product> = Vec::with_capacity(outputs.len() + 1);
    if let Some(cut) = &shared {
        products.push(Product {
            w: cut.first,
            x,
            y: &mut *shared_inner,
        });
    }
    for ((output, cut), inner) in outputs.iter_mut().zip(&own).zip(&mut inners) {
        match (output.linear, cut) {
            (Linear::Dense(w), _) => products.push(Product {
                w: w.matrix()?,
                x,
                y: &mut *output.y,
            }),
            (Linear::LowRank { .. }, Some(cut)) => products.push(Product {
                w: cut.first,
                x,
                y: inner,
            }),
            _ => {}
        }
    }
    multiply_all(pool, n, &mut products, scratch)?;
    if basis.is_none() && own.iter().all(Option::is_none) {
        return Ok(());
    }

    if let Some(cut) = &shared {
        zero_tail(shared_inner, cut.first.rows(), cut.rank);
    }
    for (cut, inner) in own.iter().zip(&mut inners) {
        if let Some(cut) = cut {
            zero_tail(inner, cut.first.rows(), cut.rank);
        }
    }
    let shared_inner = &*shared_inner;
    let mut products: Vec<Product> = Vec::with_capacity(outputs.len());
    for (output, inner) in outputs.iter_mut().zip(&inners) {
        match output.linear {
            Linear::Dense(_) => {}
            Linear::LowRank { b, .. } => {
                let cols = inner.len() / n;
                let w = b.matrix()?.first_cols(cols)?;
                products.push(Product {
                    w,
                    x: inner,
                    y: &mut *output.y,
                });
            }
            Linear::SharedBasis { projected } => {
                let w = projected.matrix()?.first_cols(shared_rows)?;
                products.push(Product {
                    w,
                    x: shared_inner,
                    y: &mut *output.y,
                });
            }
        }
    }
    Ok(multiply_all(pool, n, &mut products, scratch)?)
}

/// Zeroes the components from `rank` on in rows of `width` numbers.
fn zero_tail(inner: &mut [f32], width: usize, rank: usize) {
    if rank < width {
        for row in inner.chunks_exact_mut(width) {
            row[rank..].fill(0.0);
        }
    }
}
