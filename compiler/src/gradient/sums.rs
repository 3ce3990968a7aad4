//! Accumulated second moments of gradients.

use htc_kernels::cpu::Cpu;

use crate::calibrate::moments::{MomentSums, diagonal_index};

/// Largest number of outputs with a full second moment: larger ones would cost more memory and time
/// than the gradients.
pub(super) const MOST_FULL: usize = 4096;

/// Rows of a diagonal block of larger matrices.
pub(super) const BLOCK: usize = 256;

/// Returns the first row and size of each diagonal block for `order` outputs.
pub(super) fn blocks(order: usize) -> Vec<(usize, usize)> {
    let side = if order <= MOST_FULL {
        order.max(1)
    } else {
        BLOCK
    };
    let firsts = (0..order).step_by(side);
    firsts
        .map(|first| (first, side.min(order - first)))
        .collect()
}

/// `Σ g gᵀ` of the gradients at the outputs of a matrix, in full or in diagonal blocks.
pub(super) struct OutputSums {
    order: usize,
    blocks: Vec<Block>,
}

struct Block {
    first: usize,
    moments: MomentSums,
}

impl OutputSums {
    pub fn new(order: usize) -> Self {
        let block = |(first, order)| Block {
            first,
            moments: MomentSums::new(order),
        };
        let blocks = blocks(order).into_iter().map(block).collect();
        OutputSums { order, blocks }
    }

    /// Returns the size in bytes.
    pub fn bytes(order: usize) -> u64 {
        let of_block = |(_, order): (usize, usize)| MomentSums::bytes(order);
        let all = blocks(order).into_iter().map(of_block);
        all.fold(0, u64::saturating_add)
    }

    /// Adds the rows of `g [n, order]`.
    pub fn add(&mut self, cpu: &Cpu, g: &[f32]) {
        let order = self.order.max(1);
        if let [block] = &mut self.blocks[..] {
            block.moments.add(cpu, g);
            return;
        }
        cpu.pool().chunks_mut(&mut self.blocks, 1, |_, blocks| {
            for Block { first, moments } in blocks {
                let parts = g.chunks_exact(order);
                let parts = parts.map(|row| &row[*first..order.min(*first + BLOCK)]);
                moments.add_on_this_thread(cpu, parts);
            }
        });
    }

    /// Scales the sums.
    pub fn reweigh(&mut self, factor: f64) {
        let moments = self.blocks.iter_mut().map(|block| &mut block.moments);
        moments.for_each(|moments| moments.reweigh(factor));
    }

    /// Returns true if all numbers are finite in float32.
    pub fn is_finite(&self) -> bool {
        self.blocks.iter().all(|block| block.moments.fits_float32())
    }

    /// Returns the sum of the rows' weights; 0 without rows.
    pub fn weight(&self) -> f64 {
        let first = self.blocks.first();
        let first = first.filter(|block| block.moments.count() > 0);
        first.map_or(0.0, |block| block.moments.weight())
    }

    /// Returns the mean of the diagonal of the mean.
    pub fn mean_diagonal(&self) -> f64 {
        let of_block = |mean: Vec<f64>| -> f64 {
            let places = (0..).map(diagonal_index);
            let diagonal = places.map_while(|at| mean.get(at).copied());
            diagonal.sum()
        };
        self.means().map(of_block).sum::<f64>() / self.order.max(1) as f64
    }

    /// Returns the lower triangles of the mean, block by block.
    pub fn means(&self) -> impl Iterator<Item = Vec<f64>> {
        self.blocks
            .iter()
            .map(|block| block.moments.second_moment())
    }
}
