//! Error metric of four columns.

use htc_formats::bands::QUAD;

use crate::ErrorFeedback;

pub(super) struct QuadMetric {
    /// Error of each column that later columns cannot compensate.
    pub diagonal: [f32; QUAD],
    /// `N_qq⁻¹`.
    pub inverse: [[f32; QUAD]; QUAD],
}

impl QuadMetric {
    pub fn with_feedback(feedback: Option<&ErrorFeedback>, first: usize) -> QuadMetric {
        let mut inverse = [[0.0; QUAD]; QUAD];
        for (i, row) in inverse.iter_mut().enumerate() {
            row[i] = 1.0;
        }
        let Some(feedback) = feedback else {
            return QuadMetric {
                diagonal: [1.0; QUAD],
                inverse,
            };
        };
        let n = feedback.order;
        let factor = |i: usize, j: usize| {
            if first + j < n {
                feedback.factor[(first + i) * n + first + j]
            } else {
                0.0
            }
        };
        let importance = feedback.importance();
        let own: [f32; QUAD] =
            std::array::from_fn(|i| importance.get(first + i).copied().unwrap_or(0.0));
        let diagonal = std::array::from_fn(|i| {
            let behind = (i + 1..QUAD).map(|j| factor(i, j).powi(2) * own[j]);
            own[i] + behind.sum::<f32>()
        });
        let above = (0..QUAD).flat_map(|j| (0..j).rev().map(move |i| (i, j)));
        for (i, j) in above {
            let sum: f32 = (i + 1..=j).map(|k| factor(i, k) * inverse[k][j]).sum();
            inverse[i][j] = -sum;
        }
        QuadMetric { diagonal, inverse }
    }
}
