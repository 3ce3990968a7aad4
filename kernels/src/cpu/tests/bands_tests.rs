//! Matrices in column groups: unpacking, bit by bit, and products against the reference.

use htc_formats::bands::{
    CHUNK, Code, CodeKind, CodeLayout, Codes, ColumnGroupMatrix, ColumnGroupWriter, ColumnGroups,
    GROUP_ROWS, QUAD, QUADS_PER_GROUP, RowClass, TILE_ROWS, rotate, unpack_codebook_scales,
};

use super::*;
use crate::cpu::bands::tests::emulated;
use crate::cpu::bands::{ColumnGroupKernels, GroupScratch, VectorGroup};

fn versions() -> Vec<(&'static str, ColumnGroupKernels)> {
    let here = available().into_iter().map(|k| (k.name, k.column_groups));
    [("emulated", emulated::KERNELS)]
        .into_iter()
        .chain(here)
        .collect()
}

fn matrix(random: &mut Random, codes: &Codes, rows: usize) -> Vec<u8> {
    let mut packer = ColumnGroupWriter::new(codes, rows);
    for row in 0..rows {
        for kind in CodeKind::ALL {
            if codes.contains_kind(kind) {
                packer.set_row_scale(kind, row, random.number()).unwrap();
            }
        }
    }
    for (column_group, code) in codes.iter().enumerate() {
        for super_block in 0..packer.tiles() {
            let padded = packer.tile_rows(super_block);
            if code.kind() == CodeKind::Codebook {
                let scales: Vec<u8> = (0..padded).map(|_| random.bits() as u8 % 64).collect();
                packer.set_codebook_scales(super_block, column_group, &scales);
            }
            for quad in 0..QUADS_PER_GROUP {
                let bits: Vec<u8> = (0..padded * QUAD).map(|_| random.bits() as u8).collect();
                match code.kind() {
                    CodeKind::Codebook => {
                        let mask = ((1_u16 << code.bits()) - 1) as u8;
                        let codes: Vec<u8> = bits.iter().map(|b| b & mask).collect();
                        packer.set_codebook_codes(super_block, column_group, quad, &codes);
                    }
                    CodeKind::Trellis => {
                        // Only the new bits are stored.
                        let states: Vec<u16> = bits.into_iter().map(u16::from).collect();
                        packer.set_trellis_states(super_block, column_group, quad, &states);
                    }
                }
            }
        }
        if code.kind() == CodeKind::Trellis {
            for c in 0..32 {
                let scale = random.number() / 32.0;
                packer
                    .set_column_scale(column_group * 32 + c, scale)
                    .unwrap();
            }
        }
    }
    packer.finish()
}

fn cases() -> Vec<Codes> {
    let alone = Code::all().chain(Code::legacy());
    let alone = alone.map(|code| Codes::uniform(code, 64).unwrap());
    let mixed = ["1:l4x1,t3x1,l2x1", "2:t2x7,l5x3,t5x1"].map(|text| text.parse().unwrap());
    alone.chain(mixed).collect()
}

/// Every code in the last of two column groups, with a single valid column, and other widths with
/// padding. Codes and scales of the padding are random, so that a product that uses them differs
/// from the reference.
fn padded() -> Vec<Codes> {
    let alone = Code::all().chain(Code::legacy());
    let alone = alone.map(|code| Codes::uniform(code, 33).unwrap());
    let widths = [
        "1:l4x1-31",
        "2:t3x1-31",
        "1:l2x1-1",
        "2:t2x1-1",
        "2:t2x5,l3x1-20",
        "2:l6x3,t3x3-20",
        "1:t4x11,t5x1-28",
        "1:l8x4,l5x8-28",
        "2:t2x9,l4x21,t3x100-3",
    ];
    let widths = widths.map(|text| text.parse().unwrap());
    alone.chain(widths).collect()
}

fn rotated() -> Vec<Codes> {
    let all = cases().into_iter().chain(padded());
    all.map(|codes| codes.with_rotation()).collect()
}

/// Rows have every length: numbers after the last whole column group must not change.
#[test]
fn all_versions_rotate_to_the_same_bits() {
    let mut random = Random(57);
    for cols in [0, 1, 31, 32, 33, 95, 640, 2048] {
        let x = random.numbers(cols);
        let mut expected = x.clone();
        rotate(&mut expected);
        for k in available() {
            let mut rotated = x.clone();
            (k.loops.rotate)(&mut rotated);
            assert_eq!(rotated, expected, "{} {cols}", k.name);
        }
    }
}

#[test]
fn all_versions_unpack_the_same_integers() {
    let mut random = Random(51);
    for codes in cases() {
        for rows in [1, 40, 256, 270] {
            let bytes = matrix(&mut random, &codes, rows);
            let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            for super_block in 0..rows.div_ceil(TILE_ROWS) {
                let groups = Codes::tile_rows(rows, super_block) / GROUP_ROWS;
                for range in [0..groups, groups / 2..groups, 0..groups.div_ceil(2)] {
                    for (column_group, &code) in codes.iter().enumerate() {
                        let mut expected = vec![[[0; CHUNK]; QUADS_PER_GROUP]; range.len()];
                        let flat = expected.as_flattened_mut().as_flattened_mut();
                        w.unpack_tile(super_block, column_group, range.clone(), flat);
                        for (name, kernels) in versions() {
                            let mut found = vec![[[99; CHUNK]; QUADS_PER_GROUP]; range.len()];
                            let bytes = w.tile_bytes(super_block, column_group);
                            (kernels.unpack)(code, bytes, range.clone(), &mut found);
                            assert!(found == expected, "{name} {code} {rows} {range:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Integer sums are exact in every version, also for the vectors that fill sixteen bits most.
#[test]
fn all_versions_give_exact_integer_sums() {
    let mut random = Random(53);
    let mut scratch = GroupScratch([0; GroupScratch::BYTES]);
    for codes in cases() {
        for rows in [16, 48, 256, 272, 400] {
            let bytes = matrix(&mut random, &codes, rows);
            let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            for (column_group, &code) in codes.iter().enumerate() {
                let vectors = [
                    std::array::from_fn(|_| (random.bits() % 255) as u8 as i8)
                        .map(|c: i8| c.max(-127)),
                    [120; 32],
                    [-127; 32],
                    std::array::from_fn(|i| if i % 2 == 0 { 120 } else { -120 }),
                ];
                for super_block in 0..rows.div_ceil(TILE_ROWS) {
                    let groups = Codes::tile_rows(rows, super_block) / GROUP_ROWS;
                    for range in [0..groups, groups / 2..groups, 0..groups.div_ceil(2)] {
                        for vector in &vectors {
                            let vector = VectorGroup {
                                codes: vector,
                                scale: 0.5,
                                sum: vector.iter().map(|&code| i32::from(code)).sum(),
                            };
                            let results: Vec<_> = versions()
                                .into_iter()
                                .map(|(name, kernels)| {
                                    let mut sums = vec![[0.0; GROUP_ROWS]; range.len()];
                                    let (bytes, range) =
                                        (w.tile_bytes(super_block, column_group), range.clone());
                                    (kernels.multiply)(
                                        code,
                                        bytes,
                                        range,
                                        &vector,
                                        &mut scratch,
                                        &mut sums,
                                    );
                                    (name, sums)
                                })
                                .collect();
                            let (_, expected) = results.last().unwrap();
                            for (name, sums) in &results {
                                assert!(sums == expected, "{name} {code} {rows} {range:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn several_vectors_match_single_vectors() {
    let mut random = Random(54);
    let mut scratch = GroupScratch([0; GroupScratch::BYTES]);
    for codes in cases() {
        for rows in [16, 96, 256] {
            let bytes = matrix(&mut random, &codes, rows);
            let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            let groups = rows / GROUP_ROWS;
            let vectors: Vec<[i8; 32]> = (0..8)
                .map(|_| std::array::from_fn(|_| (random.bits() as u8 as i8).max(-127)))
                .collect();
            for (column_group, &code) in codes.iter().enumerate() {
                let bytes = w.tile_bytes(0, column_group);
                let factors: Vec<[f32; GROUP_ROWS]> = (0..groups)
                    .map(|group| match code.kind() {
                        CodeKind::Trellis => [1.0; GROUP_ROWS],
                        CodeKind::Codebook => {
                            unpack_codebook_scales(&bytes.as_chunks().0[group]).map(f32::from)
                        }
                    })
                    .collect();
                for (name, kernels) in versions() {
                    let mut integers = vec![[[0; CHUNK]; QUADS_PER_GROUP]; groups];
                    (kernels.unpack)(code, bytes, 0..groups, &mut integers);
                    for n in [1, 6, 8] {
                        let parts: Vec<_> = vectors[..n]
                            .iter()
                            .map(|codes| VectorGroup {
                                codes,
                                scale: 0.5,
                                sum: codes.iter().map(|&code| i32::from(code)).sum(),
                            })
                            .collect();
                        let mut sums = vec![[0.0; GROUP_ROWS]; n * groups];
                        (kernels.add)(&integers, &factors, &parts, &mut sums);
                        for (vector, sums) in parts.iter().zip(sums.chunks(groups)) {
                            let mut alone = vec![[0.0; GROUP_ROWS]; groups];
                            (kernels.multiply)(
                                code,
                                bytes,
                                0..groups,
                                vector,
                                &mut scratch,
                                &mut alone,
                            );
                            assert!(sums == alone, "{name} {code} {rows} {n}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_match_the_reference_on_any_number_of_threads() {
    let mut random = Random(52);
    let pools = pools([1, 2, 3]);
    let mut scratch = Scratch::new();
    for codes in cases().into_iter().chain(padded()).chain(rotated()) {
        for (rows, n) in [(1, 1), (40, 1), (256, 3), (530, 1), (530, 40), (1100, 2)] {
            let bytes = matrix(&mut random, &codes, rows);
            let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            let cols = w.cols();
            let x = random.numbers(n * cols);
            let mut expected = vec![0.0; n * rows];
            reference::quantised_column_groups(w, n, &x, &mut expected).unwrap();
            let mut row = vec![0.0; cols];
            for k in available() {
                let results = pools.each_ref().map(|pool| {
                    let mut y = vec![f32::NAN; n * rows];
                    on(k, pool)
                        .matmul_uniform_groups(w, n, &x, &mut y, &mut scratch)
                        .unwrap();
                    y
                });
                for i in 0..rows {
                    w.decode_row(i, &mut row).unwrap();
                    for t in 0..n {
                        let x = &x[t * cols..][..cols];
                        let products = row.iter().zip(x).map(|(&w, &x)| f64::from(w * x).abs());
                        let bound = PRODUCT_ERROR * products.sum::<f64>();
                        let (found, expected) = (results[0][t * rows + i], expected[t * rows + i]);
                        let error = f64::from(found - expected).abs();
                        let name = k.name;
                        assert!(
                            error <= bound + 1e-30,
                            "{name} {codes} {rows} n {n} [{t}, {i}]: {found} for {expected}"
                        );
                    }
                }
                assert_eq!(results[0], results[1]);
                assert_eq!(results[0], results[2]);
            }
        }
    }
}

#[test]
fn widest_matrices_match_the_reference() {
    let mut random = Random(58);
    let pool = Arc::new(Pool::new(2).unwrap());
    let mut scratch = Scratch::new();
    let widest = [
        "1:l8x2048",
        "2:t2x2048",
        "2r:t5x2048",
        "1:t3x2048-31",
        "2:t4x1000,l2x1000,t2x47,l6x1-1",
    ];
    for codes in widest.map(|text| text.parse::<Codes>().unwrap()) {
        let (rows, cols) = (40, codes.cols());
        assert!(cols > 65_500, "{codes}");
        let bytes = matrix(&mut random, &codes, rows);
        let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        let mut weights = vec![0.0; rows * cols];
        for (row, weights) in weights.chunks_exact_mut(cols).enumerate() {
            w.decode_row(row, weights).unwrap();
        }
        for n in [1, 9] {
            let x = random.numbers(n * cols);
            let mut expected = vec![0.0; n * rows];
            reference::quantised_column_groups(w, n, &x, &mut expected).unwrap();
            for k in available() {
                let cpu = on(k, &pool);
                let mut y = vec![f32::NAN; n * rows];
                cpu.matmul_uniform_groups(w, n, &x, &mut y, &mut scratch)
                    .unwrap();
                for (at, (found, expected)) in y.iter().zip(&expected).enumerate() {
                    let (x, w) = (&x[at / rows * cols..], &weights[at % rows * cols..]);
                    let pairs = x[..cols].iter().zip(&w[..cols]);
                    let products = pairs.map(|(&x, &w)| f64::from(x * w).abs());
                    let error = f64::from(found - expected).abs();
                    let bound = PRODUCT_ERROR * products.sum::<f64>();
                    let name = k.name;
                    assert!(
                        error <= bound,
                        "{name} {codes} {at}: {found} for {expected}"
                    );
                }
                let mut row = vec![f32::NAN; cols];
                cpu.embed_column_groups(ColumnGroupMatrix::Uniform(w), 39, &mut row)
                    .unwrap();
                assert!(row == weights[39 * cols..], "{} {codes}", k.name);
            }
        }
    }
}

#[test]
fn row_classes_match_the_matrices_of_each_class() {
    let mut random = Random(55);
    let mut scratch = Scratch::new();
    let pools = pools([1, 2, 3]);
    let counts = [(3, 1), (300, 1), (300, 5), (1030, 2)];
    let cases = counts.map(|(rows, n)| [(rows, n, ""), (rows, n, "-20")]);
    for &(rows, n, padding) in cases.as_flattened() {
        let of_rows: Vec<u8> = (0..rows)
            .map(|row| match row {
                0..3 => row as u8,
                _ => random.bits() as u8 % 3,
            })
            .collect();
        let count = |class| of_rows.iter().filter(|&&of| of == class).count();
        let text = format!(
            "{}*1:l5x2{padding};{}*2r:t2x1,t4x1{padding};{}*1:t3x2{padding}",
            count(0),
            count(1),
            count(2)
        );
        let layout: CodeLayout = text.parse().unwrap();
        let CodeLayout::Classes(classes) = &layout else {
            panic!("not in classes");
        };
        let of_class = |class: &RowClass| matrix(&mut random, &class.codes, class.rows);
        let parts: Vec<Vec<u8>> = classes.iter().map(of_class).collect();
        let bytes = classes.pack(&of_rows, &parts);
        let w = layout.view(rows, &bytes).unwrap();
        let x = random.numbers(n * w.cols());
        for k in available() {
            let mut expected = vec![f32::NAN; n * rows];
            for (index, (class, part)) in classes.iter().zip(&parts).enumerate() {
                let part = ColumnGroups::new(&class.codes, class.rows, part).unwrap();
                let mut y = vec![0.0; n * class.rows];
                let cpu = on(k, &pools[0]);
                cpu.matmul_uniform_groups(part, n, &x, &mut y, &mut scratch)
                    .unwrap();
                let own = (0..rows).filter(|&row| usize::from(of_rows[row]) == index);
                for (place, row) in own.enumerate() {
                    for t in 0..n {
                        expected[t * rows + row] = y[t * class.rows + place];
                    }
                }
            }
            for pool in &pools {
                let mut y = vec![f32::NAN; n * rows];
                let cpu = on(k, pool);
                cpu.matmul_column_groups(w, n, &x, &mut y, &mut scratch)
                    .unwrap();
                assert_eq!(y, expected, "{} {rows} {n}", k.name);
            }
            let mut short = vec![0.0; n * rows - 1];
            let outcome = on(k, &pools[0]).matmul_column_groups(w, n, &x, &mut short, &mut scratch);
            assert!(outcome.is_err());
        }
    }
}

#[test]
fn padding_columns_are_ignored() {
    let mut random = Random(56);
    let mut scratch = Scratch::new();
    let pool = Arc::new(Pool::new(1).unwrap());
    for codes in padded() {
        let (rows, cols) = (40, codes.cols());
        let bytes = matrix(&mut random, &codes, rows);
        let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        let (mut row, mut expected) = (vec![f32::NAN; cols], vec![0.0; cols]);
        w.decode_row(39, &mut expected).unwrap();
        for k in available() {
            let cpu = on(k, &pool);
            cpu.embed_column_groups(ColumnGroupMatrix::Uniform(w), 39, &mut row)
                .unwrap();
            assert_eq!(row, expected);
            let mut whole = vec![0.0; cols.next_multiple_of(32)];
            let refused = cpu.embed_column_groups(ColumnGroupMatrix::Uniform(w), 39, &mut whole);
            assert!(refused.is_err(), "{} {codes}", k.name);
            let mut y = vec![0.0; rows];
            let refused = cpu.matmul_uniform_groups(w, 1, &whole, &mut y, &mut scratch);
            assert!(refused.is_err(), "{} {codes}", k.name);
            let mut x = random.numbers(cols);
            x[cols - 1] = f32::INFINITY;
            cpu.matmul_uniform_groups(w, 1, &x, &mut y, &mut scratch)
                .unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{} {codes}", k.name);
        }
    }
}

#[test]
fn extreme_codes_are_exact_and_nan_propagates() {
    let codes = Codes::uniform(Code::codebook(8).unwrap(), 64).unwrap();
    let mut packer = ColumnGroupWriter::new(&codes, 16);
    for row in 0..16 {
        packer.set_row_scale(CodeKind::Codebook, row, 1.0).unwrap();
    }
    for column_group in 0..2 {
        packer.set_codebook_scales(0, column_group, &[63; 16]);
        for quad in 0..QUADS_PER_GROUP {
            packer.set_codebook_codes(0, column_group, quad, &[0x80; 64]);
        }
    }
    let bytes = packer.finish();
    let w = ColumnGroups::new(&codes, 16, &bytes).unwrap();
    let pool = Arc::new(Pool::new(1).unwrap());
    let mut scratch = Scratch::new();
    for k in available() {
        let mut y = [0.0; 16];
        on(k, &pool)
            .matmul_uniform_groups(w, 1, &[-127.0; 64], &mut y, &mut scratch)
            .unwrap();
        assert_eq!(y, [127.0 * 127.0 * 63.0 * 64.0 / 8192.0; 16], "{}", k.name);
        let mut x = [1.0; 64];
        x[40] = f32::INFINITY;
        on(k, &pool)
            .matmul_uniform_groups(w, 1, &x, &mut y, &mut scratch)
            .unwrap();
        assert!(y.iter().all(|y| y.is_nan()), "{}", k.name);
        on(k, &pool)
            .matmul_uniform_groups(w, 0, &[], &mut [], &mut scratch)
            .unwrap();
        assert!(
            on(k, &pool)
                .matmul_uniform_groups(w, 1, &x[1..], &mut y, &mut scratch)
                .is_err()
        );
        assert!(
            on(k, &pool)
                .matmul_uniform_groups(w, 1, &x, &mut y[1..], &mut scratch)
                .is_err()
        );
        let mut row = [0.0; 64];
        on(k, &pool)
            .embed_column_groups(ColumnGroupMatrix::Uniform(w), 3, &mut row)
            .unwrap();
        assert_eq!(row, [-127.0 * 63.0 / 8192.0; 64]);
        assert!(
            on(k, &pool)
                .embed_column_groups(ColumnGroupMatrix::Uniform(w), 16, &mut row)
                .is_err()
        );
    }
}
