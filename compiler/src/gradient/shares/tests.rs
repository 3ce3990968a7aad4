use htc_kernels::cpu::Cpu;

use super::*;
use crate::system::random::Rng;

fn output(kind: ProjectionKind, g: &[f32], order: usize) -> LayerOutput {
    let mut sums = OutputSums::new(order);
    sums.add(&Cpu::with_threads(1).unwrap(), g);
    LayerOutput { kind, sums }
}

fn written(shares: &ExpertShares, output: &LayerOutput) -> Vec<f64> {
    let mut bytes = Vec::new();
    shares.write(&mut bytes, output).unwrap();
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|b| f64::from(f32::from_le_bytes(*b))).collect()
}

/// Direct sums over the rows of experts, per position of the text.
#[test]
fn moments_of_experts_are_sums_over_their_rows_per_position() {
    let (order, positions) = (6, 20.0);
    let mut random = Rng(8);
    let rows: Vec<f32> = (0..15 * order).map(|_| random.normal() as f32).collect();
    let (first, second) = rows.split_at(11 * order);
    let outputs = [
        output(ProjectionKind::Router, &rows, order),
        output(ProjectionKind::ExpertDown(0), first, order),
        output(ProjectionKind::ExpertDown(1), second, order),
        output(ProjectionKind::ExpertDown(2), &[], order),
    ];
    let shares = ExpertShares::new(&outputs, positions);
    let product = |g: &[f32], i: usize, j: usize| -> f64 {
        let rows = g.chunks_exact(order);
        rows.map(|g| f64::from(g[i]) * f64::from(g[j])).sum()
    };
    let trace: f64 = (0..order).map(|i| product(&rows, i, i)).sum();
    let common = trace / order as f64 / positions / 3.0 / 16.0;
    let parts: [&[f32]; 3] = [first, second, &[]];
    for (output, g) in outputs[1..].iter().zip(parts) {
        let mut found = written(&shares, output).into_iter();
        for i in 0..order {
            for j in 0..=i {
                let own = 15.0 / 16.0 * product(g, i, j) / positions;
                let expected = if i == j { own + common } else { own };
                let found = found.next().unwrap();
                assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
            }
        }
    }
    // All outputs together cost the same as before.
    let diagonal = |output: &LayerOutput| -> f64 {
        let found = written(&shares, output);
        (0..order).map(|i| found[diagonal_index(i)]).sum()
    };
    let all: f64 = outputs[1..].iter().map(diagonal).sum();
    assert!((all - trace / positions).abs() < 1e-5, "{all}");
    // Others are means over their rows.
    let found = written(&shares, &outputs[0])[0];
    assert!((found - product(&rows, 0, 0) / 15.0).abs() < 1e-6);
}
