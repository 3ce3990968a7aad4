//! Batch invariance: products of few vectors are bit-identical to those of each alone.

use super::*;

const ROWS: usize = 133;
const VECTORS: usize = 7;

#[test]
fn batched_products_are_bit_identical_to_single_ones() {
    let mut random = Random(61);
    for dtype in TYPES {
        let cols = 3 * dtype.block_len().max(32);
        let bytes = random.matrix(dtype, ROWS, cols);
        let w = Matrix::new(dtype, ROWS, cols, &bytes).unwrap();
        let x = random.numbers(VECTORS * cols);
        for k in available() {
            for pool in &pools([1, 2, 3]) {
                let cpu = on(k, pool);
                let scratch = &mut Scratch::new();
                let mut found = vec![f32::NAN; VECTORS * ROWS];
                cpu.matmul_batch_invariant(w, VECTORS, &x, &mut found, scratch)
                    .unwrap();
                for (x, found) in x.chunks(cols).zip(found.chunks(ROWS)) {
                    let mut alone = vec![f32::NAN; ROWS];
                    cpu.matvec(w, x, &mut alone, scratch).unwrap();
                    assert_eq!(found, alone, "{} {dtype}", k.name);
                }
            }
        }
    }
}

#[test]
fn factorised_projections_are_bit_identical_to_single_ones() {
    let mut random = Random(62);
    let (width, ranks) = (256, [64, 32]);
    let kinds = [DType::Q8_0, DType::F16];
    let first: Vec<_> = kinds
        .iter()
        .zip(ranks)
        .map(|(&dtype, rank)| random.matrix(dtype, rank, width))
        .collect();
    let second: Vec<_> = kinds
        .iter()
        .zip(ranks)
        .map(|(&dtype, rank)| random.matrix(dtype, ROWS, rank))
        .collect();
    let dense = random.matrix(DType::Q4K, ROWS, width);
    let matrix = |dtype, rows, cols, bytes| Matrix::new(dtype, rows, cols, bytes).unwrap();
    let factors: Vec<_> = [51, 32]
        .iter()
        .enumerate()
        .map(|(i, &rank)| Factor {
            w: matrix(kinds[i], ranks[i], width, &first[i]),
            rank,
        })
        .collect();
    let x = random.numbers(VECTORS * width);
    for k in available() {
        for pool in &pools([1, 2]) {
            let cpu = on(k, pool);
            let scratch = &mut Scratch::new();
            let mut project = |n: usize, x: &[f32]| {
                let mut y = vec![vec![f32::NAN; n * ROWS]; 3];
                let mut projections: Vec<_> = y
                    .iter_mut()
                    .enumerate()
                    .map(|(i, y)| match i {
                        2 => Projection {
                            w: matrix(DType::Q4K, ROWS, width, &dense),
                            input: Input::Vector,
                            y,
                        },
                        i => Projection {
                            w: matrix(kinds[i], ROWS, ranks[i], &second[i]),
                            input: Input::Inner(i),
                            y,
                        },
                    })
                    .collect();
                if n == 1 {
                    cpu.project(n, x, &factors, &mut projections, scratch)
                        .unwrap();
                } else {
                    let apart =
                        cpu.project_batch_invariant(n, x, &factors, &mut projections, scratch);
                    apart.unwrap();
                }
                y
            };
            let found = project(VECTORS, &x);
            for (t, x) in x.chunks(width).enumerate() {
                let alone = project(1, x);
                for (found, alone) in found.iter().zip(&alone) {
                    assert_eq!(&found[t * ROWS..][..ROWS], alone, "{}", k.name);
                }
            }
        }
    }
}

#[test]
fn mismatched_shapes_are_rejected() {
    let [pool] = pools([1]);
    let cpu = Cpu::new(pool);
    let bytes = vec![0; 4 * 3 * 2];
    let w = Matrix::new(DType::F32, 2, 3, &bytes).unwrap();
    let scratch = &mut Scratch::new();
    let mut y = [0.0; 4];
    assert!(
        cpu.matmul_batch_invariant(w, 2, &[0.0; 5], &mut y, scratch)
            .is_err()
    );
    assert!(
        cpu.matmul_batch_invariant(w, 2, &[0.0; 6], &mut y[..3], scratch)
            .is_err()
    );
    cpu.matmul_batch_invariant(w, 0, &[], &mut [], scratch)
        .unwrap();
}
