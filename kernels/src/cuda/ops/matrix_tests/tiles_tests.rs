//! Tests of tiled products with many vectors.

use htc_formats::DType;
use htc_formats::bands::{Codes, ColumnGroupMatrix, ColumnGroups};

use super::{bands_tests, blocks_tests, *};
use crate::Matrix;

fn integers() -> impl Iterator<Item = DType> {
    DType::ALL
        .iter()
        .copied()
        .filter(|dtype| dtype.block_len() > 1)
}

pub(super) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn tiled_products_match_the_reference() {
    let mut random = Random(31);
    let mut workspace = Workspace::default();
    for dtype in integers() {
        let block = dtype.block_len();
        let wide = if block == 32 { 352 } else { 768 };
        for (rows, cols, n) in [
            (5, block, 31),
            (17, block, 32),
            (64, block, 33),
            (1, wide, 40),
            (70, wide, 64),
            (15, wide, 65),
            (33, block, 100),
            (130, block, 129),
        ] {
            let bytes = blocks_tests::matrix(&mut random, dtype, rows, cols);
            let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
            let device = EmulatedDevice::new(random.bits().into());
            let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
            let x = random.numbers(n * cols);
            let y = products(&device, &held, &x, &mut workspace);
            for (t, y) in y.chunks_exact(rows).enumerate() {
                let what = format!("{dtype} {rows}x{cols} [{t} of {n}]");
                blocks_tests::check(w, &x[t * cols..][..cols], y, &what);
            }
        }
    }
}

#[test]
fn tiled_column_group_products_match_the_reference() {
    let mut random = Random(32);
    let mut workspace = Workspace::default();
    for (index, codes) in bands_tests::cases().into_iter().enumerate() {
        let shapes = [(40, 33), (1, 32), (70, 65), (290, 40)];
        let (rows, n) = shapes[index % shapes.len()];
        let bytes = bands_tests::matrix(&mut random, &codes, rows);
        let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(
            &device,
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
        )
        .unwrap();
        let x = random.numbers(n * w.cols());
        let y = products(&device, &held, &x, &mut workspace);
        bands_tests::check(w, n, &x, &y, &format!("{codes} {rows}"));
    }
}

fn rows_are_the_same_in_large_batches(
    device: &EmulatedDevice,
    matrix: &DeviceMatrix<EmulatedDevice>,
    x: &[f32],
    what: &str,
) {
    let mut workspace = Workspace::default();
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let all = x.len() / cols;
    let whole = bits(&products(device, matrix, x, &mut workspace));
    for (first, n) in [(0, 32), (1, 33), (all - 40, 40), (3, 64), (all - 65, 65)] {
        let found = bits(&products(
            device,
            matrix,
            &x[first * cols..][..n * cols],
            &mut workspace,
        ));
        assert!(
            found == whole[first * rows..][..n * rows],
            "{what}: {n} from {first} on"
        );
    }
}

#[test]
fn tiled_rows_are_independent_of_the_large_batch() {
    let mut random = Random(33);
    for (dtype, rows, cols) in [
        (DType::Q8_0, 3, 544),
        (DType::Q4_0, 18, 96),
        (DType::Q4K, 3, 512),
        (DType::Q5K, 3, 256),
        (DType::Q6K, 65, 256),
        (DType::Q5_0, 3, 96),
        (DType::Q2K, 3, 256),
        (DType::F16, 3, 100),
        (DType::BF16, 130, 33),
        (DType::F32, 66, 70),
    ] {
        let bytes = blocks_tests::matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let x = random.numbers(110 * cols);
        rows_are_the_same_in_large_batches(&device, &held, &x, dtype.name());
    }
    for text in ["2:t2x2,l4x1,t3x2-3", "2r:t4x3"] {
        let codes: Codes = text.parse().unwrap();
        let bytes = bands_tests::matrix(&mut random, &codes, 35);
        let w = ColumnGroups::new(&codes, 35, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(
            &device,
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
        )
        .unwrap();
        let x = random.numbers(110 * w.cols());
        rows_are_the_same_in_large_batches(&device, &held, &x, text);
    }
}

#[test]
fn batch_invariant_rows_match_single_steps() {
    let mut random = Random(34);
    let device = EmulatedDevice::new(34);
    for dtype in [DType::Q4K, DType::Q8_0, DType::F16, DType::F32] {
        let (rows, cols) = (5, 1280);
        let bytes = blocks_tests::matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        let x = random.numbers(40 * cols);
        let mut workspace = Workspace::default();
        let alone: Vec<u32> = x
            .chunks_exact(cols)
            .flat_map(|x| bits(&products(&device, &held, x, &mut workspace)))
            .collect();
        let few = bits(&products(&device, &held, &x[..31 * cols], &mut workspace));
        assert!(few == alone[..31 * rows], "{dtype}");
        let tiled = bits(&products(&device, &held, &x, &mut workspace));
        workspace.set_batch_invariant(true);
        let apart = bits(&products(&device, &held, &x, &mut workspace));
        assert!(apart == alone && tiled != alone, "{dtype}");
        workspace.set_batch_invariant(false);
        assert!(
            bits(&products(&device, &held, &x, &mut workspace)) == tiled,
            "{dtype}"
        );
    }
}

#[test]
fn non_finite_value_affects_only_its_vector() {
    let mut random = Random(35);
    let mut workspace = Workspace::default();
    let device = EmulatedDevice::new(35);
    for dtype in OWN.iter().copied().chain([DType::Q4_1]) {
        let (rows, cols, n) = (20, 256, 40);
        let bytes = blocks_tests::matrix(&mut random, dtype, rows, cols);
        let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
        let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
        for odd in [f32::NAN, f32::NEG_INFINITY] {
            let mut x = random.numbers(n * cols);
            x[33 * cols + 255] = odd;
            let y = products(&device, &held, &x, &mut workspace);
            for (t, y) in y.chunks_exact(rows).enumerate() {
                let expected = t != 33;
                assert!(y.iter().all(|y| y.is_finite() == expected), "{dtype} {t}");
            }
        }
        let zero = products(&device, &held, &vec![0.0; n * cols], &mut workspace);
        assert!(zero.iter().all(|&y| y == 0.0), "{dtype}");
    }
}

#[test]
fn extremes_do_not_overflow_in_tiles() {
    let mut workspace = Workspace::default();
    let device = EmulatedDevice::new(36);
    for (dtype, places) in [
        (DType::Q8_0, &[0][..]),
        (DType::Q4_0, &[0]),
        (DType::Q4K, &[0, 2]),
        (DType::Q5K, &[0, 2]),
        (DType::Q6K, &[208]),
        (DType::Q2K, &[80, 82]),
    ] {
        let cols = 256;
        for fill in [0xff, 0x00, 0x80, 0x7f] {
            let mut bytes = vec![fill; dtype.row_bytes(cols).unwrap()];
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                for &at in places {
                    block[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                }
            }
            let w = Matrix::new(dtype, 1, cols, &bytes).unwrap();
            let held = DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap();
            for one in [1.0, -1.0] {
                let x = vec![one; 32 * cols];
                let y = products(&device, &held, &x, &mut workspace);
                for y in y.chunks_exact(1) {
                    blocks_tests::check(w, &x[..cols], y, &format!("{dtype} {fill:#x}"));
                }
            }
        }
    }
}

#[test]
fn factored_projections_match_in_tiles() {
    let mut random = Random(37);
    let device = EmulatedDevice::new(37);
    let mut workspace = Workspace::default();
    let (width, rows, rank, n) = (96, 64, 50, 40);
    let a_bytes = blocks_tests::matrix(&mut random, DType::Q8_0, 96, width);
    let b_bytes = blocks_tests::matrix(&mut random, DType::Q4_0, 9, 96);
    let a = Matrix::new(DType::Q8_0, 96, width, &a_bytes).unwrap();
    let b = Matrix::new(DType::Q4_0, 9, 96, &b_bytes).unwrap();
    let [held_a, held_b] =
        [a, b].map(|w| DeviceMatrix::new(&device, MatrixSource::Blocks(w)).unwrap());
    let x = random.numbers(n * width);
    let y = allocate(&device, n * 9);
    let there = put(&device, &x);
    let factors = [Factor {
        matrix: &held_a,
        rows,
        rank,
    }];
    let projections = [Projection {
        matrix: &held_b,
        rows: 9,
        cols: rows,
        input: crate::cpu::Input::Inner(0),
        y: &y,
        accumulate: false,
    }];
    project(&device, n, &there, &factors, &projections, &mut workspace).unwrap();
    let found = get(&device, &y, n * 9);
    let leading = a.first_rows(rows).unwrap();
    let leading = DeviceMatrix::new(&device, MatrixSource::Blocks(leading)).unwrap();
    let mut inner = products(&device, &leading, &x, &mut workspace);
    inner
        .chunks_exact_mut(rows)
        .for_each(|row| row[rank..].fill(0.0));
    let second = b.first_cols(rows).unwrap();
    let second = DeviceMatrix::new(&device, MatrixSource::Blocks(second)).unwrap();
    assert_eq!(
        bits(&found),
        bits(&products(&device, &second, &inner, &mut workspace))
    );
}
