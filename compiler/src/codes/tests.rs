use htc_formats::block;

use super::*;
use crate::math::codes::OutputBlock;
use crate::math::random::Rng;
use crate::math::{SecondMoment, dense_energies, weighted_dense_energies};

fn moment(n: usize) -> Vec<f64> {
    let entry = |i: usize, j: usize| 0.9f64.powi(i.abs_diff(j) as i32);
    (0..n * n).map(|at| entry(at / n, at % n)).collect()
}

#[test]
fn every_type_decodes_exactly_and_gains_by_feedback() {
    let (rows, cols) = (70, 512);
    let mut rng = Rng(3);
    let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
    let weight = Weight {
        rows,
        cols,
        values: &values,
    };
    let of = moment(cols);
    let moment = SecondMoment {
        order: cols,
        values: &of,
    };
    let feedback = ErrorFeedback::new(moment, DAMPING).unwrap();
    for &dtype in BlockFit::TYPES {
        assert!(has_feedback(dtype) && block::writable_types().contains(&dtype));
        let mut bytes = vec![0; rows * dtype.row_bytes(cols).unwrap()];
        let mut stored = vec![0.0; values.len()];
        let mut coder = BlockCoder::new(dtype, &feedback, None, 2);
        coder.code(weight, &mut bytes, &mut stored).unwrap();
        let mut decoded = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut decoded).unwrap();
        assert_eq!(decoded, stored, "{dtype}");
        let lost = weighted_dense_energies(weight, &stored, moment).error;
        block::encode(dtype, &values, &mut bytes).unwrap();
        block::decode(dtype, &bytes, &mut decoded).unwrap();
        let alone = weighted_dense_energies(weight, &decoded, moment).error;
        println!("{dtype}: {:.3} of the error without feedback", lost / alone);
        assert!(lost < 0.6 * alone, "{dtype}: {lost} {alone}");
    }
}

fn outputs(n: usize) -> Vec<f64> {
    let entry = |i: usize, j: usize| if i == j { 1.0 } else { 0.7 };
    (0..n * n).map(|at| entry(at / n, at % n)).collect()
}

fn cost(rows: usize, cols: usize, errors: &[f32]) -> f64 {
    let (h, c) = (outputs(rows), moment(cols));
    let row = |r: usize| &errors[r * cols..][..cols];
    let spread = |r: usize| -> Vec<f64> {
        let by = |j: usize| (0..cols).map(move |i| (i, j));
        let sum = |j| by(j).map(|(i, j)| f64::from(row(r)[i]) * c[i * cols + j]);
        (0..cols).map(|j| sum(j).sum()).collect()
    };
    let of_row = |r: usize| {
        let spread = spread(r);
        let with = |s: usize| {
            let products = spread.iter().zip(row(s)).map(|(a, &b)| a * f64::from(b));
            h[r * rows + s] * products.sum::<f64>()
        };
        (0..rows).map(with).sum::<f64>()
    };
    (0..rows).map(of_row).sum()
}

#[test]
fn row_feedback_gains_for_any_batching_of_rows() {
    let (rows, cols) = (160, 256);
    let mut rng = Rng(9);
    let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
    let columns = moment(cols);
    let columns = SecondMoment {
        order: cols,
        values: &columns,
    };
    let feedback = ErrorFeedback::new(columns, DAMPING).unwrap();
    let outputs = outputs(rows);
    let lower = (0..rows).flat_map(|r| (0..=r).map(move |s| (r, s)));
    let lower: Vec<f32> = lower.map(|(r, s)| outputs[r * rows + s] as f32).collect();
    let block = OutputBlock {
        first: 0,
        order: rows,
        lower: &lower,
    };
    let outputs = RowFeedback::new(&[block], 0.01).unwrap();
    for dtype in [DType::Q2K, DType::Q4_0, DType::Q6K] {
        let row_bytes = dtype.row_bytes(cols).unwrap();
        let coded = |rows: Option<&RowFeedback>, at_a_time: usize| {
            let mut coder = BlockCoder::new(dtype, &feedback, rows, 2);
            let (mut bytes, mut errors) = (Vec::new(), Vec::new());
            for values in values.chunks(at_a_time * cols) {
                let weight = Weight {
                    rows: values.len() / cols,
                    cols,
                    values,
                };
                let mut own = vec![0; weight.rows * row_bytes];
                let mut stored = vec![0.0; values.len()];
                coder.code(weight, &mut own, &mut stored).unwrap();
                bytes.extend(own);
                errors.extend(values.iter().zip(&stored).map(|(w, s)| w - s));
            }
            (bytes, cost(values.len() / cols, cols, &errors))
        };
        let (alone, together) = (coded(None, rows), coded(Some(&outputs), rows));
        let gain = together.1 / alone.1;
        println!("{dtype}: {gain:.3} of the cost without feedback along rows");
        assert!(gain < 0.9, "{dtype}: {gain}");
        assert!(
            coded(Some(&outputs), ROWS_PER_TILE).0 == together.0,
            "{dtype}"
        );
        let some = coded(Some(&outputs), 7).1;
        let parts = some / together.1;
        assert!((parts - 1.0).abs() < 0.03, "{dtype}: {parts}");
    }
}

#[test]
fn damping_of_bases_trades_output_errors_for_weight_errors() {
    let (rows, cols) = (64, 256);
    let mut rng = Rng(11);
    let values: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
    let weight = Weight {
        rows,
        cols,
        values: &values,
    };
    let of = moment(cols);
    let moment = SecondMoment {
        order: cols,
        values: &of,
    };
    let lost = |damping: f64| {
        let feedback = ErrorFeedback::new(moment, damping).unwrap();
        let mut bytes = vec![0; rows * DType::Q3K.row_bytes(cols).unwrap()];
        let mut stored = vec![0.0; values.len()];
        let mut coder = BlockCoder::new(DType::Q3K, &feedback, None, 2);
        coder.code(weight, &mut bytes, &mut stored).unwrap();
        let of_weights = dense_energies(weight, &stored).error;
        (
            of_weights,
            weighted_dense_energies(weight, &stored, moment).error,
        )
    };
    let (alone, refined) = (lost(DAMPING), lost(DAMPING_OF_BASES * DAMPING));
    println!(
        "{:.3} of the errors of weights, {:.3} of those of outputs",
        refined.0 / alone.0,
        refined.1 / alone.1
    );
    assert!(refined.0 < 0.95 * alone.0);
    assert!(alone.1 < refined.1 && refined.1 < 1.2 * alone.1);
}

#[test]
fn wrong_lengths_and_huge_values_are_rejected() {
    let of = moment(256);
    let moment = SecondMoment {
        order: 256,
        values: &of,
    };
    let feedback = ErrorFeedback::new(moment, DAMPING).unwrap();
    let weight = |values| Weight {
        rows: 1,
        cols: 256,
        values,
    };
    let mut bytes = [0; 8];
    let mut stored = [0.0; 256];
    let mut coder = BlockCoder::new(DType::Q4_0, &feedback, None, 2);
    let found = coder.code(weight(&[0.5; 256]), &mut bytes, &mut stored);
    assert!(matches!(found, Err(FactoriseError::Codec(_))));
    let wide = Weight {
        rows: 1,
        cols: 512,
        values: &[0.5; 512],
    };
    let found = coder.code(wide, &mut [0; 288], &mut [0.0; 512]);
    assert!(
        matches!(found, Err(FactoriseError::VectorLength { .. })),
        "{found:?}"
    );
    let mut bytes = [0; 144];
    let mut huge = [0.5; 256];
    huge[9] = 1e30;
    let found = coder.code(weight(&huge), &mut bytes, &mut stored);
    assert!(
        matches!(found, Err(FactoriseError::ValuesOutOfRange { .. })),
        "{found:?}"
    );
}
