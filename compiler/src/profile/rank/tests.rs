use super::*;
use crate::math::random::Rng;
use crate::profile::bound::rounding_loss;
use htc_formats::model::{MatrixId, ProjectionKind};

fn member(projection: ProjectionKind, rows: usize, cols: usize) -> UnitMatrix {
    UnitMatrix {
        matrix: MatrixId::Projection {
            layer: 1,
            projection,
        },
        rows,
        cols,
        source_type: DType::F16,
    }
}

#[test]
fn projections_of_one_input_form_a_group() {
    let all = [
        member(ProjectionKind::Q, 64, 64),
        member(ProjectionKind::K, 32, 64),
        member(ProjectionKind::V, 32, 64),
        member(ProjectionKind::O, 64, 64),
        member(ProjectionKind::Gate, 96, 64),
        member(ProjectionKind::Up, 96, 64),
        member(ProjectionKind::Down, 64, 96),
    ];
    let found = groups(&all);
    let names: Vec<String> = found.iter().map(|group| plan::label(group)).collect();
    assert_eq!(names, ["layer 1: q+k+v", "layer 1: gate+up"]);
    assert!(groups(&all[3..4]).is_empty());
}

#[test]
fn smaller_rank_stores_a_prefix_of_the_factors() {
    let mut rng = Rng(3);
    let (rows, cols, rank) = (6, 64, 40);
    let mut numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|_| rng.normal() as f32).collect() };
    let (first, second) = (numbers(rank * cols), numbers(rows * rank));
    let factors = Factors {
        first: &first,
        second: &second,
        rank,
        cols,
    };
    let sample = RowSample {
        rows: 2,
        cols,
        values: vec![0.0; 2 * cols],
        indices: vec![5, 2],
        represented_rows: vec![1.0; 2],
        outliers: Vec::new(),
        sweeps: 0,
    };
    let form = |rank, dtype| MatrixForm::LowRank {
        rank,
        a: dtype,
        b: dtype,
    };
    let stored = factors.stored(&form(32, DType::F32), &sample).unwrap();
    for (row, &index) in sample.indices.iter().enumerate() {
        for col in 0..cols {
            let product: f32 = (0..32)
                .map(|k| second[index * rank + k] * first[k * cols + col])
                .sum();
            assert!((stored[row * cols + col] - product).abs() < 1e-4);
        }
    }
    let coarse = factors.stored(&form(32, DType::IQ4NL), &sample).unwrap();
    let lost = stored.iter().zip(&coarse).map(|(a, b)| (a - b).powi(2));
    let energy: f32 = stored.iter().map(|a| a * a).sum();
    let part = lost.sum::<f32>() / energy;
    assert!(f64::from(part) > 2.0 * rounding_loss(DType::IQ4NL) && part < 0.05);
    assert!(factors.stored(&form(41, DType::F32), &sample).is_none());
    let huge = vec![1e6; rank * cols];
    let huge = Factors {
        first: &huge,
        ..factors
    };
    assert!(huge.stored(&form(8, DType::F16), &sample).is_none());
}
