//! Tests of projections, dense and factored, at leading ranks.

use htc_formats::DType;
use htc_formats::bands::{
    Codes, ColumnGroupMatrix, ColumnGroupWriter, ColumnGroups, RowClass, RowClassMatrix, RowClasses,
};
use htc_formats::block::encode;

use super::*;
use crate::Matrix;
use crate::cpu::Input;

fn matrix(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0; dtype.matrix_bytes(rows, cols).unwrap()];
    encode(dtype, &random.numbers(rows * cols), &mut bytes).unwrap();
    bytes
}

fn held(
    device: &EmulatedDevice,
    random: &mut Random,
    dtype: DType,
    rows: usize,
    cols: usize,
) -> (Vec<u8>, DeviceMatrix<EmulatedDevice>) {
    let bytes = matrix(random, dtype, rows, cols);
    let w = Matrix::new(dtype, rows, cols, &bytes).unwrap();
    let held = DeviceMatrix::new(device, MatrixSource::Blocks(w)).unwrap();
    (bytes, held)
}

#[test]
fn projections_match_separate_products_at_any_rank() {
    let mut random = Random(21);
    let device = EmulatedDevice::new(21);
    for mut workspace in [Workspace::default(), Workspace::with_single_launch()] {
        for dtype in OWN
            .into_iter()
            .chain([DType::Q5_0, DType::Q4_1, DType::Q2K])
        {
            projections_are_products(&mut random, &device, dtype, &mut workspace);
        }
    }
}

fn projections_are_products(
    random: &mut Random,
    device: &EmulatedDevice,
    dtype: DType,
    workspace: &mut Workspace<EmulatedDevice>,
) {
    let width = 256;
    let block = dtype.block_len();
    let full = 96_usize.next_multiple_of(block).max(2 * block);
    let (a_bytes, a) = held(device, random, dtype, full, width);
    let (b_bytes, b) = held(device, random, dtype, 9, full);
    let (_, dense) = held(device, random, DType::Q8_0, 6, width);
    for (rank, n) in [
        (full, 1),
        (full / 2 + 1, 3),
        (1, 2),
        (0, 1),
        (full / 2 + 1, 33),
    ] {
        let rows = rank.next_multiple_of(block);
        let x = random.numbers(n * width);
        let x_there = put(device, &x);
        let [y, of_dense] = [9, 6].map(|rows| allocate(device, n * rows));
        let factors = [Factor {
            matrix: &a,
            rows,
            rank,
        }];
        let projections = [
            Projection {
                matrix: &b,
                rows: 9,
                cols: rows,
                input: Input::Inner(0),
                y: &y,
                accumulate: false,
            },
            Projection {
                matrix: &dense,
                rows: 6,
                cols: width,
                input: Input::Vector,
                y: &of_dense,
                accumulate: false,
            },
        ];
        project(device, n, &x_there, &factors, &projections, workspace).unwrap();
        let found = get(device, &y, n * 9);
        let expected = products(device, &dense, &x, workspace);
        assert_eq!(get(device, &of_dense, n * 6), expected);
        let first = Matrix::new(dtype, full, width, &a_bytes).unwrap();
        let first = first.first_rows(rows).unwrap();
        let second = Matrix::new(dtype, 9, full, &b_bytes).unwrap();
        let second = second.first_cols(rows).unwrap();
        let mut inner = match rows {
            0 => Vec::new(),
            _ => {
                let first = DeviceMatrix::new(device, MatrixSource::Blocks(first)).unwrap();
                products(device, &first, &x, workspace)
            }
        };
        for row in inner.chunks_exact_mut(rows.max(1)) {
            row[rank..].fill(0.0);
        }
        let second = DeviceMatrix::new(device, MatrixSource::Blocks(second)).unwrap();
        let y = allocate(device, n * 9);
        let inner = put(device, &inner);
        product(device, 0..n, &second, &inner, &y, workspace).unwrap();
        let expected = get(device, &y, n * 9);
        for (found, expected) in found.iter().zip(&expected) {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-4 * expected.abs().max(1.0),
                "{dtype} at {rank} of {full}: {found} for {expected}"
            );
        }
    }
}

#[test]
fn projections_of_several_factors_are_independent() {
    let mut random = Random(22);
    let device = EmulatedDevice::new(22);
    let mut workspace = Workspace::default();
    let (width, n) = (256, 3);
    let x = random.numbers(n * width);
    let (_, a) = held(&device, &mut random, DType::Q8_0, 64, width);
    let (_, c) = held(&device, &mut random, DType::F16, 40, width);
    let (_, k) = held(&device, &mut random, DType::Q8_0, 5, 64);
    let (_, v) = held(&device, &mut random, DType::F16, 7, 64);
    let (_, o) = held(&device, &mut random, DType::F32, 3, 40);
    let codes: Codes = "2:t3x4,l4x4".parse().unwrap();
    let bytes = ColumnGroupWriter::new(&codes, 11).finish();
    let banded = ColumnGroupMatrix::Uniform(ColumnGroups::new(&codes, 11, &bytes).unwrap());
    let banded = DeviceMatrix::new(&device, MatrixSource::ColumnGroups(banded)).unwrap();
    let factor = |matrix: &'static str| match matrix {
        "a" => Factor {
            matrix: &a,
            rows: 64,
            rank: 50,
        },
        _ => Factor {
            matrix: &c,
            rows: 40,
            rank: 33,
        },
    };
    let there = put(&device, &x);
    let run = |factors: &[Factor<'_, EmulatedDevice>],
               projections: &[(&DeviceMatrix<EmulatedDevice>, Input)],
               workspace: &mut Workspace<EmulatedDevice>| {
        let ys: Vec<_> = projections
            .iter()
            .map(|(matrix, _)| allocate(&device, n * matrix.rows()))
            .collect();
        let projections: Vec<_> = projections
            .iter()
            .zip(&ys)
            .map(|(&(matrix, input), y)| Projection {
                matrix,
                rows: matrix.rows(),
                cols: matrix.cols(),
                input,
                y,
                accumulate: false,
            })
            .collect();
        project(&device, n, &there, factors, &projections, workspace).unwrap();
        ys.iter()
            .zip(&projections)
            .map(|(y, projection)| get(&device, y, n * projection.rows))
            .collect::<Vec<_>>()
    };
    let both = [factor("a"), factor("c")];
    let projections = [
        (&k, Input::Inner(0)),
        (&o, Input::Inner(1)),
        (&banded, Input::Vector),
        (&v, Input::Inner(0)),
    ];
    let found = run(&both, &projections, &mut workspace);
    let each = [
        run(&both[..1], &projections[..1], &mut workspace),
        run(&both[1..], &[(&o, Input::Inner(0))], &mut workspace),
        run(&[], &projections[2..3], &mut workspace),
        run(&both[..1], &projections[3..], &mut workspace),
    ];
    for (found, alone) in found.iter().zip(&each) {
        assert_eq!(found, &alone[0]);
    }
}

#[test]
fn projections_share_launches() {
    let mut random = Random(25);
    let device = EmulatedDevice::new(25);
    let mut workspace = Workspace::default();
    let x = allocate(&device, 256);
    let of = |random: &mut Random, dtype, rows, cols| held(&device, random, dtype, rows, cols).1;
    let three = [8, 4, 3].map(|rows| of(&mut random, DType::Q8_0, rows, 256));
    let basis = of(&mut random, DType::Q8_0, 64, 256);
    let behind = [8, 4, 3].map(|rows| of(&mut random, DType::Q8_0, rows, 64));
    let codes: Codes = "2:t3x4,l4x4".parse().unwrap();
    let bytes = ColumnGroupWriter::new(&codes, 11).finish();
    let banded = ColumnGroupMatrix::Uniform(ColumnGroups::new(&codes, 11, &bytes).unwrap());
    let banded =
        [(); 3].map(|()| DeviceMatrix::new(&device, MatrixSource::ColumnGroups(banded)).unwrap());
    let y = allocate(&device, 11);
    let mut launches = |factors: &[Factor<'_, EmulatedDevice>],
                        matrices: &[DeviceMatrix<EmulatedDevice>]| {
        let projections: Vec<_> = matrices
            .iter()
            .map(|matrix| Projection {
                matrix,
                rows: matrix.rows(),
                cols: matrix.cols(),
                input: match factors {
                    [] => Input::Vector,
                    _ => Input::Inner(0),
                },
                y: &y,
                accumulate: false,
            })
            .collect();
        let before = device.launch_count();
        project(&device, 1, &x, factors, &projections, &mut workspace).unwrap();
        device.launch_count() - before
    };
    assert_eq!(launches(&[], &three), 2);
    assert_eq!(launches(&[], &banded), 2);
    let factor = Factor {
        matrix: &basis,
        rows: 64,
        rank: 64,
    };
    assert_eq!(launches(&[factor], &behind), 3);
}

#[test]
fn pair_launch_gives_identical_bits() {
    let mut random = Random(26);
    let width = 256;
    let others = [DType::Q5_0, DType::Q4_1];
    for (seed, dtype) in OWN.into_iter().chain(others).enumerate() {
        let device = EmulatedDevice::new(seed as u64);
        let full = 96_usize.next_multiple_of(dtype.block_len());
        let mut of = |rows, cols| held(&device, &mut random, dtype, rows, cols).1;
        let (a, c) = (of(full, width), of(full, width));
        let (b, d, e) = (of(45, full), of(7, full), of(9, width));
        for (n, one) in [(1, true), (3, true), (4, true), (5, false)] {
            let x = put(&device, &random.numbers(n * width));
            let run = |workspace: &mut Workspace<EmulatedDevice>| {
                let ys = [45, 7, 9].map(|rows| allocate(&device, n * rows));
                let factors = [(&a, full), (&c, full / 2 + 1)].map(|(matrix, rank)| Factor {
                    matrix,
                    rows: full,
                    rank,
                });
                let behind = |matrix: &'static str, y| match matrix {
                    "b" => (&b, full, Input::Inner(0), y),
                    "d" => (&d, full, Input::Inner(1), y),
                    _ => (&e, width, Input::Vector, y),
                };
                let projections = [
                    behind("b", &ys[0]),
                    behind("d", &ys[1]),
                    behind("e", &ys[2]),
                ];
                let projections = projections.map(|(matrix, cols, input, y)| Projection {
                    matrix,
                    rows: matrix.rows(),
                    cols,
                    input,
                    y,
                    accumulate: false,
                });
                let before = device.launch_count();
                project(&device, n, &x, &factors, &projections, workspace).unwrap();
                let found = ys.iter().zip(&projections);
                let found = found.map(|(y, projection)| get(&device, y, n * projection.rows));
                (found.collect::<Vec<_>>(), device.launch_count() - before)
            };
            let (expected, two) = run(&mut Workspace::default());
            let mut workspace = Workspace::with_single_launch();
            // The barrier counters must be reset.
            for _ in 0..3 {
                let (found, launches) = run(&mut workspace);
                assert!(found == expected, "{dtype} {n}");
                assert_eq!(launches, two - u64::from(one), "{dtype} {n}");
            }
        }
    }
}

#[test]
fn product_of_a_row_range_matches_the_full_product() {
    let mut random = Random(23);
    let device = EmulatedDevice::new(23);
    let mut workspace = Workspace::default();
    for (dtype, width) in [(DType::F32, 21), (DType::F16, 40), (DType::Q8_0, 64)] {
        let (_, w) = held(&device, &mut random, dtype, 10, width);
        let x = random.numbers(4 * width);
        let there = put(&device, &x);
        let all = products(&device, &w, &x, &mut workspace);
        for rows in [0..1, 1..4, 3..4, 2..2] {
            let y = allocate(&device, rows.len() * 10);
            product(&device, rows.clone(), &w, &there, &y, &mut workspace).unwrap();
            let found = get(&device, &y, rows.len() * 10);
            assert_eq!(found, all[rows.start * 10..rows.end * 10]);
        }
        let y = allocate(&device, 10);
        assert!(product(&device, 4..5, &w, &there, &y, &mut workspace).is_err());
        assert!(product(&device, 0..2, &w, &there, &y, &mut workspace).is_err());
    }
}

#[test]
fn mismatched_projections_are_rejected() {
    let mut random = Random(24);
    let device = EmulatedDevice::new(24);
    let mut workspace = Workspace::default();
    let (_, a) = held(&device, &mut random, DType::Q8_0, 64, 128);
    let (_, b) = held(&device, &mut random, DType::Q8_0, 4, 64);
    let (x, y) = (allocate(&device, 128), allocate(&device, 4));
    let mut run = |n, rows, rank, cols, index, matrix_rows| {
        let factors = [Factor {
            matrix: &a,
            rows,
            rank,
        }];
        let projections = [Projection {
            matrix: &b,
            rows: matrix_rows,
            cols,
            input: Input::Inner(index),
            y: &y,
            accumulate: false,
        }];
        project(&device, n, &x, &factors, &projections, &mut workspace)
    };
    assert_eq!(run(1, 64, 64, 64, 0, 4), Ok(()));
    assert_eq!(run(0, 64, 64, 64, 0, 4), Ok(()));
    assert!(run(2, 64, 64, 64, 0, 4).is_err());
    assert!(run(1, 96, 64, 96, 0, 4).is_err());
    assert!(run(1, 32, 64, 32, 0, 4).is_err());
    assert!(run(1, 64, 64, 32, 0, 4).is_err());
    assert!(run(1, 33, 33, 33, 0, 4).is_err());
    assert!(run(1, 64, 64, 64, 1, 4).is_err());
    assert!(run(1, 64, 64, 64, 0, 5).is_err());
}

#[test]
fn accumulated_products_match_separate_sums() {
    let mut random = Random(27);
    let device = EmulatedDevice::new(27);
    let mut workspace = Workspace::default();
    let [codes, others]: [Codes; 2] =
        ["2:t3x4,l4x4", "2:l3x5,t2x3"].map(|text| text.parse().unwrap());
    let bytes = bands_tests::matrix(&mut random, &codes, 11);
    let banded = ColumnGroupMatrix::Uniform(ColumnGroups::new(&codes, 11, &bytes).unwrap());
    let mut matrices =
        vec![DeviceMatrix::new(&device, MatrixSource::ColumnGroups(banded)).unwrap()];
    let of_rows: Vec<u8> = (0..11).map(|row| row % 2).collect();
    let classes = [(6, &codes), (5, &others)];
    let of_classes = classes.map(|(rows, codes)| bands_tests::matrix(&mut random, codes, rows));
    let classes = classes.map(|(rows, codes)| RowClass {
        rows,
        codes: codes.clone(),
    });
    let classes = RowClasses::new(classes.to_vec()).unwrap();
    let bytes = classes.pack(&of_rows, &of_classes);
    let classed = RowClassMatrix::new(&classes, 11, &bytes).unwrap();
    let classed = MatrixSource::ColumnGroups(ColumnGroupMatrix::Classes(classed));
    matrices.push(DeviceMatrix::new(&device, classed).unwrap());
    for dtype in [DType::Q8_0, DType::Q4K, DType::F16, DType::Q8_0, DType::F32] {
        matrices.push(held(&device, &mut random, dtype, 11, 256).1);
    }
    for n in [1, 3, 8, 33] {
        let x = put(&device, &random.numbers(n * 256));
        let before = random.numbers(n * 11 + 1);
        let mut of = |matrices: &[(&DeviceMatrix<EmulatedDevice>, bool)]| -> Vec<Vec<f32>> {
            let y: Vec<_> = matrices.iter().map(|_| put(&device, &before)).collect();
            let projections = matrices.iter().zip(&y);
            let projections = projections.map(|(&(matrix, adds), y)| Projection {
                matrix,
                rows: 11,
                cols: 256,
                input: Input::Vector,
                y,
                accumulate: adds,
            });
            let projections: Vec<_> = projections.collect();
            project(&device, n, &x, &[], &projections, &mut workspace).unwrap();
            y.iter().map(|y| get(&device, y, n * 11 + 1)).collect()
        };
        let adds = [true, true, false, true].into_iter().cycle();
        let together: Vec<_> = matrices.iter().zip(adds).collect();
        let found = of(&together);
        for (&(matrix, adds), found) in together.iter().zip(found) {
            let [products, sums] = [false, true].map(|adds| of(&[(matrix, adds)]).remove(0));
            for (index, sum) in sums[..n * 11].iter().enumerate() {
                assert_eq!(*sum, before[index] + products[index], "{n}");
            }
            assert_eq!(sums[n * 11], before[n * 11]);
            assert_eq!(found, if adds { sums } else { products }, "{n}");
        }
    }
}
