//! Rotary layout of query and key heads: GGUF files of Llama store rotated pairs as neighbours, all
//! other formats in halves. For the other layout, rows of queries and keys are permuted.

use htc_formats::model::{HyperParameters, ProjectionKind, Role, RopePairs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadPermutation {
    pub head: usize,
    rotated: usize,
    from: RopePairs,
    to: RopePairs,
}

impl HeadPermutation {
    /// Returns the permutation of the rows, or of the entries of a vector, of a role.
    pub fn for_role(role: Role, hyper: &HyperParameters, to: RopePairs) -> Option<HeadPermutation> {
        let rotates = match role {
            Role::Linear { projection, .. } => {
                matches!(projection, ProjectionKind::Q | ProjectionKind::K)
            }
            Role::QueryNorm { .. } | Role::KeyNorm { .. } => true,
            _ => false,
        };
        let from = hyper.forward.rope_pairs;
        (rotates && from != to).then_some(HeadPermutation {
            head: hyper.head_size,
            rotated: hyper.rope_dimensions,
            from,
            to,
        })
    }

    /// Returns the stored row for `row` of the output.
    pub fn source_row(&self, row: usize) -> usize {
        let (first, place) = (row - row % self.head, row % self.head);
        if place >= self.rotated {
            return row;
        }
        let half = self.rotated / 2;
        let (pair, second) = match self.to {
            RopePairs::Adjacent => (place / 2, place % 2),
            RopePairs::Halves => (place % half, place / half),
        };
        first
            + match self.from {
                RopePairs::Adjacent => 2 * pair + second,
                RopePairs::Halves => pair + second * half,
            }
    }

    /// Permutes rows of `size` entries from the beginning of a head.
    pub fn apply<T: Copy>(&self, rows: &mut [T], size: usize) {
        let stored = rows.to_vec();
        for (row, out) in rows.chunks_exact_mut(size).enumerate() {
            let from = self.source_row(row) * size;
            out.copy_from_slice(&stored[from..from + size]);
        }
    }
}

#[cfg(test)]
mod tests;
