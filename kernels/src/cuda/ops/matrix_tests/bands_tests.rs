use htc_formats::bands::{
    Code, CodeKind, CodeLayout, Codes, ColumnGroupMatrix, ColumnGroupWriter, ColumnGroups, QUAD,
    QUADS_PER_GROUP, RowClass,
};

use super::*;
use crate::reference;

pub(super) fn matrix(random: &mut Random, codes: &Codes, rows: usize) -> Vec<u8> {
    let mut packer = ColumnGroupWriter::new(codes, rows);
    for row in 0..rows {
        for kind in CodeKind::ALL {
            if codes.contains_kind(kind) {
                packer.set_row_scale(kind, row, random.number()).unwrap();
            }
        }
    }
    for (band, code) in codes.iter().enumerate() {
        for strip in 0..packer.tiles() {
            let padded = packer.tile_rows(strip);
            if code.kind() == CodeKind::Codebook {
                let scales: Vec<u8> = random.bytes(padded).iter().map(|b| b % 64).collect();
                packer.set_codebook_scales(strip, band, &scales);
            }
            for quad in 0..QUADS_PER_GROUP {
                let bits = random.bytes(padded * QUAD);
                match code.kind() {
                    CodeKind::Codebook => {
                        let mask = ((1_u16 << code.bits()) - 1) as u8;
                        let codes: Vec<u8> = bits.iter().map(|b| b & mask).collect();
                        packer.set_codebook_codes(strip, band, quad, &codes);
                    }
                    CodeKind::Trellis => {
                        let states: Vec<u16> = bits.into_iter().map(u16::from).collect();
                        packer.set_trellis_states(strip, band, quad, &states);
                    }
                }
            }
        }
        if code.kind() == CodeKind::Trellis {
            for c in 0..32 {
                let scale = random.number() / 32.0;
                packer.set_column_scale(band * 32 + c, scale).unwrap();
            }
        }
    }
    packer.finish()
}

pub(super) fn cases() -> Vec<Codes> {
    let all = || Code::all().chain(Code::legacy());
    let alone = all().map(|code| Codes::uniform(code, 64).unwrap());
    let padded = all().map(|code| Codes::uniform(code, 33).unwrap());
    let mixed = [
        "1:l4x1,t3x1,l2x1",
        "2:t2x7,l5x3,t5x1",
        "2:t2x5,l3x1-20",
        "2:l6x3,t3x3-20",
        "1:l2x1-1",
        "1:l8x4,l5x8-28",
        "2:t2x9,l4x4,t3x10-3",
    ];
    let plain = alone
        .chain(padded)
        .chain(mixed.map(|text| text.parse().unwrap()));
    plain
        .flat_map(|codes| [codes.with_rotation(), codes])
        .collect()
}

pub(super) fn check(w: ColumnGroups<'_>, n: usize, x: &[f32], y: &[f32], what: &str) {
    let (rows, cols) = (w.rows(), w.cols());
    let mut expected = vec![0.0; n * rows];
    reference::quantised_column_groups(w, n, x, &mut expected).unwrap();
    let mut row = vec![0.0; cols];
    for i in 0..rows {
        w.decode_row(i, &mut row).unwrap();
        for t in 0..n {
            let x = &x[t * cols..][..cols];
            let products = row.iter().zip(x).map(|(&w, &x)| f64::from(w * x).abs());
            let bound = 2e-6 * products.sum::<f64>();
            let (found, expected) = (y[t * rows + i], expected[t * rows + i]);
            let error = f64::from(found - expected).abs();
            assert!(
                error <= bound + 1e-30,
                "{what} [{t}, {i}]: {found} for {expected}"
            );
        }
    }
}

#[test]
fn products_of_every_code_agree_with_the_reference() {
    let mut random = Random(11);
    let mut workspace = Workspace::default();
    for codes in cases() {
        for (rows, n) in [(1, 1), (40, 1), (270, 3), (17, 9)] {
            let bytes = matrix(&mut random, &codes, rows);
            let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
            let device = EmulatedDevice::new(random.bits().into());
            let source = MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w));
            let held = DeviceMatrix::new(&device, source).unwrap();
            assert_eq!(
                held.bytes(),
                DeviceMatrix::<EmulatedDevice>::estimated_bytes(source)
            );
            let x = random.numbers(n * w.cols());
            let y = products(&device, &held, &x, &mut workspace);
            check(w, n, &x, &y, &format!("{codes} {rows}"));
        }
    }
}

#[test]
fn column_group_rows_are_independent_of_the_batch() {
    let mut random = Random(12);
    for text in ["2:t2x9,l4x4,t3x10-3", "1:l2x1,l3x12", "2r:t4x3,t5x9"] {
        let codes: Codes = text.parse().unwrap();
        let bytes = matrix(&mut random, &codes, 35);
        let w = ColumnGroups::new(&codes, 35, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(
            &device,
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
        )
        .unwrap();
        let x = random.numbers(17 * w.cols());
        rows_are_the_same_in_any_batch(&device, &held, &x, text);
    }
}

#[test]
fn column_group_rows_are_dequantised_exactly() {
    let mut random = Random(13);
    for codes in cases() {
        let (rows, cols) = (300, codes.cols());
        let bytes = matrix(&mut random, &codes, rows);
        let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(
            &device,
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
        )
        .unwrap();
        let tokens = [299, 0, 254, 255, 256, 31];
        let out = allocate(&device, tokens.len() * cols);
        dequantise_rows(&device, &held, &tokens, None, &out).unwrap();
        let found = get(&device, &out, tokens.len() * cols);
        let mut row = vec![0.0; cols];
        for (found, &token) in found.chunks_exact(cols).zip(&tokens) {
            w.decode_row(token as usize, &mut row).unwrap();
            assert_eq!(found, row, "{codes} row {token}");
        }
    }
}

#[test]
fn a_block_processes_several_tiles() {
    let mut random = Random(14);
    let codes: Codes = "2:t3x2".parse().unwrap();
    let rows = 32 * 40 + 3;
    let bytes = matrix(&mut random, &codes, rows);
    let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
    let device = EmulatedDevice::new(1);
    let held = DeviceMatrix::new(
        &device,
        MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
    )
    .unwrap();
    let x = random.numbers(w.cols());
    let y = products(&device, &held, &x, &mut Workspace::default());
    check(w, 1, &x, &y, "many tiles");
}

#[test]
fn class_rows_give_products_of_their_class() {
    let mut random = Random(15);
    let mut workspace = Workspace::default();
    for (rows, n, padding) in [(3, 1, ""), (300, 3, "-20"), (520, 2, "")] {
        let of_rows: Vec<u8> = (0..rows)
            .map(|row| match row {
                0..3 => row as u8,
                _ => (random.bits() >> 8) as u8 % 3,
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
            unreachable!("classes");
        };
        let of_class = |class: &RowClass| matrix(&mut random, &class.codes, class.rows);
        let parts: Vec<Vec<u8>> = classes.iter().map(of_class).collect();
        let bytes = classes.pack(&of_rows, &parts);
        let w = layout.view(rows, &bytes).unwrap();
        let device = EmulatedDevice::new(random.bits().into());
        let held = DeviceMatrix::new(&device, MatrixSource::ColumnGroups(w)).unwrap();
        assert_eq!(
            held.bytes(),
            DeviceMatrix::<EmulatedDevice>::estimated_bytes(MatrixSource::ColumnGroups(w))
        );
        let x = random.numbers(n * w.cols());
        let y = products(&device, &held, &x, &mut workspace);
        for (index, (class, part)) in classes.iter().zip(&parts).enumerate() {
            let part = ColumnGroups::new(&class.codes, class.rows, part).unwrap();
            let own: Vec<usize> = (0..rows)
                .filter(|&row| usize::from(of_rows[row]) == index)
                .collect();
            let found: Vec<f32> = (0..n)
                .flat_map(|t| own.iter().map(move |row| (t, row)))
                .map(|(t, row)| y[t * rows + row])
                .collect();
            check(part, n, &x, &found, &format!("{text} class {index}"));
        }
        let tokens: Vec<u32> = (0..rows as u32).rev().collect();
        let out = allocate(&device, rows * w.cols());
        dequantise_rows(&device, &held, &tokens, Some(2.0), &out).unwrap();
        let found = get(&device, &out, rows * w.cols());
        let mut row = vec![0.0; w.cols()];
        for (found, &token) in found.chunks_exact(w.cols()).zip(&tokens) {
            w.decode_row(token as usize, &mut row).unwrap();
            row.iter_mut().for_each(|x| *x *= 2.0);
            assert_eq!(found, row, "row {token}");
        }
    }
}

#[test]
fn non_finite_input_makes_column_group_products_nan() {
    let mut random = Random(16);
    let mut workspace = Workspace::default();
    for text in ["1:l4x1,t3x1-5", "2r:t2x2,l8x1-5", "1:l8x3"] {
        let codes: Codes = text.parse().unwrap();
        let bytes = matrix(&mut random, &codes, 20);
        let w = ColumnGroups::new(&codes, 20, &bytes).unwrap();
        let device = EmulatedDevice::new(2);
        let held = DeviceMatrix::new(
            &device,
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w)),
        )
        .unwrap();
        for odd in [f32::NAN, f32::INFINITY] {
            let mut x = random.numbers(2 * w.cols());
            x[w.cols() - 1] = odd;
            let y = products(&device, &held, &x, &mut workspace);
            assert!(y[..20].iter().all(|y| y.is_nan()), "{text}");
            assert!(y[20..].iter().all(|y| y.is_finite()), "{text}");
        }
    }
}

#[test]
fn large_column_group_matrix_is_packed_by_any_threads() {
    let mut random = Random(16);
    let pool = Pool::new(3).unwrap();
    let codes: Codes = "2:t3x12,l5x12".parse().unwrap();
    let of_tile = 4 * (12 * 3 * 32 + 12 * (5 * 32 + 8));
    let at_a_time = 32 * (STAGING_BYTES / of_tile);
    let (rows, cols) = (2 * at_a_time + 7, codes.cols());
    let bytes = matrix(&mut random, &codes, rows);
    let w = ColumnGroups::new(&codes, rows, &bytes).unwrap();
    let device = EmulatedDevice::new(random.bits().into());
    let ends = [
        0,
        at_a_time - 1,
        at_a_time,
        2 * at_a_time - 1,
        2 * at_a_time,
        rows - 1,
    ];
    let tokens = ends.map(|row| row as u32);
    for pool in [None, Some(&pool)] {
        let source = MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(w));
        let held = DeviceMatrix::new_with_pool(pool, &device, source).unwrap();
        let out = allocate(&device, tokens.len() * cols);
        dequantise_rows(&device, &held, &tokens, None, &out).unwrap();
        let found = get(&device, &out, tokens.len() * cols);
        let mut row = vec![0.0; cols];
        for (found, &token) in found.chunks_exact(cols).zip(&tokens) {
            w.decode_row(token as usize, &mut row).unwrap();
            assert_eq!(found, row, "row {token} of {rows}");
        }
    }
}
