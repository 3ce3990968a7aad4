//! Stored second moments of a layer, the head and the embedding.
//!
//! Files are sealed like those of a calibration. The content is little-endian float32: for every
//! matrix the blocks of its second moment as lower triangles, row by row; for the head the
//! diagonal; for the embedding the blocks and the share of every token.

use std::io::{self, Write};

use htc_formats::map::MappedFile;
use htc_formats::model::{BlockSpec, HyperParameters, ProjectionKind};

use super::sums::{OutputSums, blocks};
use crate::calibrate::moments::diagonal_index;
use crate::calibrate::store::{CONTENT_OFFSET, float32};

/// Second moment `H = E[g gᵀ]` of the gradients at the outputs of a matrix `y = W x`. `g = ∂L/∂y`
/// at one position, where `L` is the negative log-likelihood in nats of tokens drawn from the
/// model, summed over a window; the mean is over positions, also those that an expert does not
/// read.
///
/// A weight error `E` costs about `½ tr(H E C Eᵀ)` nats of KL divergence from the source per token,
/// with `C = E[x xᵀ]` of the rows that `W` reads; errors of several matrices add up. `H` and `C` are
/// the factors of the Fisher information (Martens and Grosse 2015).
#[derive(Clone, Debug, PartialEq)]
pub struct OutputMoments {
    /// `tr(H) / m`, the mean cost of an output.
    pub mean_diagonal: f64,
    /// Diagonal of `H`, `[m]`.
    pub diagonal: Vec<f32>,
    /// Stored blocks: one for up to 4096 outputs, blocks of 256 rows for more, none for the head.
    pub blocks: Vec<MomentBlock>,
}

/// A diagonal block of a second moment.
#[derive(Clone, Debug, PartialEq)]
pub struct MomentBlock {
    /// First row and column.
    pub first: usize,
    /// Number of rows.
    pub order: usize,
    /// Lower triangle, row by row: `order (order + 1) / 2` numbers.
    pub lower: Vec<f32>,
}

impl OutputMoments {
    fn of_blocks(blocks: Vec<MomentBlock>) -> Self {
        let of_block = |block: &MomentBlock| -> Vec<f32> {
            let at = |i| block.lower[diagonal_index(i)];
            (0..block.order).map(at).collect()
        };
        let diagonal: Vec<f32> = blocks.iter().flat_map(of_block).collect();
        OutputMoments {
            blocks,
            ..OutputMoments::of_diagonal(diagonal)
        }
    }

    fn of_diagonal(diagonal: Vec<f32>) -> Self {
        let sum: f64 = diagonal.iter().map(|&h| f64::from(h)).sum();
        OutputMoments {
            mean_diagonal: sum / diagonal.len().max(1) as f64,
            diagonal,
            blocks: Vec::new(),
        }
    }
}

/// Returns the numbers of the second moment of `order` outputs.
pub(super) fn block_numbers(order: usize) -> usize {
    let of_block = |(_, order): (usize, usize)| order * (order + 1) / 2;
    blocks(order).into_iter().map(of_block).sum()
}

pub(super) fn write_sums(to: &mut dyn Write, sums: &OutputSums) -> io::Result<()> {
    sums.means().try_for_each(|mean| write_means(to, mean))
}

pub(super) fn write_means(
    to: &mut dyn Write,
    numbers: impl IntoIterator<Item = f64>,
) -> io::Result<()> {
    let mut numbers = numbers.into_iter();
    numbers.try_for_each(|number| to.write_all(&(number as f32).to_le_bytes()))
}

#[derive(Debug)]
pub(super) struct StoredOutputs(pub MappedFile);

impl StoredOutputs {
    /// Returns the moments of a projection, from the file of a layer; `None` if the block
    /// does not have it.
    pub fn projection(&self, block: &BlockSpec, kind: ProjectionKind) -> Option<OutputMoments> {
        let mut before = 0;
        for projection in block.projections() {
            if projection.kind == kind {
                return Some(self.blocks(before, projection.rows));
            }
            before += block_numbers(projection.rows);
        }
        None
    }

    /// Returns the moments at the logits, from the file of the head.
    pub fn head(&self, hyper: &HyperParameters) -> OutputMoments {
        OutputMoments::of_diagonal(self.numbers(0, hyper.vocabulary))
    }

    /// Returns the moments at a looked-up row, from the file of the embedding.
    pub fn embedding(&self, hyper: &HyperParameters) -> OutputMoments {
        self.blocks(0, hyper.width)
    }

    /// Returns the share of every token, from the file of the embedding.
    pub fn shares(&self, hyper: &HyperParameters) -> Vec<f32> {
        self.numbers(block_numbers(hyper.width), hyper.vocabulary)
    }

    fn blocks(&self, mut at: usize, order: usize) -> OutputMoments {
        let block = |(first, order): (usize, usize)| {
            let count = order * (order + 1) / 2;
            let lower = self.numbers(at, count);
            at += count;
            MomentBlock {
                first,
                order,
                lower,
            }
        };
        OutputMoments::of_blocks(blocks(order).into_iter().map(block).collect())
    }

    fn numbers(&self, at: usize, count: usize) -> Vec<f32> {
        float32(&self.0, CONTENT_OFFSET + 4 * at, count)
    }
}
