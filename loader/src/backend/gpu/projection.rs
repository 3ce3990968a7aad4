//! Projection products, stored or accumulated.

use htc_kernels::cuda::{Device, ops};

use super::super::{Factor, Product};
use super::{Gpu, GpuBuffer};
use crate::error::ExecError;

impl<D: Device> Gpu<D> {
    /// Computes all projections; stores the products in each `y` or adds them to it.
    pub(super) fn project_to(
        &mut self,
        n: usize,
        x: &GpuBuffer<D>,
        factors: &[Factor<'_, ops::DeviceMatrix<D>>],
        products: &[Product<'_, Self>],
        adds: bool,
    ) -> Result<(), ExecError> {
        let mut first = Vec::with_capacity(factors.len());
        for factor in factors {
            first.push(ops::Factor {
                matrix: factor.weight,
                rows: factor.rows,
                rank: factor.rank,
            });
        }
        let mut second = Vec::with_capacity(products.len());
        for product in products {
            second.push(ops::Projection {
                matrix: product.weight,
                rows: product.rows,
                cols: product.cols,
                input: product.input,
                y: product.y.memory()?,
                accumulate: adds,
            });
        }
        let x = x.memory()?;
        let before = self.finish_but(x)?;
        let (before, device) = (before.producer(), &self.device);
        let workspace = &mut self.products;
        ops::project_after(device, before, n, x, &first, &second, workspace)?;
        Ok(())
    }
}
