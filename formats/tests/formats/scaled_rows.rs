//! Scaling of rows through their scales, with unchanged codes; overflow is refused.

use htc_formats::CodecError;
use htc_formats::DType;
use htc_formats::bands::{CodeKind, CodeLayout, ColumnGroupWriter, RowClasses};
use htc_formats::block::{decode, encode, scale_blocks, writable_types};

fn decoded(dtype: DType, bytes: &[u8], count: usize) -> Vec<f32> {
    let mut values = vec![0.0; count];
    decode(dtype, bytes, &mut values).unwrap();
    values
}

#[test]
fn blocks_times_a_factor_decode_to_products() {
    for &dtype in writable_types() {
        let count = 2 * dtype.block_len();
        let values: Vec<f32> = (0..count)
            .map(|i| 2.0 * (1.7 * i as f32).sin() + 0.3)
            .collect();
        let mut bytes = vec![0; dtype.row_bytes(count).unwrap()];
        encode(dtype, &values, &mut bytes).unwrap();
        let before = decoded(dtype, &bytes, count);
        for factor in [1.0, 2.0, -0.5, 0.97, 1.031] {
            let mut scaled = bytes.clone();
            scale_blocks(dtype, &mut scaled, factor).unwrap();
            let largest = before.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
            for (found, number) in decoded(dtype, &scaled, count).iter().zip(&before) {
                let unit = if dtype == DType::BF16 {
                    1.0 / 256.0
                } else {
                    1.0 / 1024.0
                };
                let exact = [1.0, 2.0, -0.5].contains(&factor);
                let bound = if exact { 0.0 } else { 2.0 * unit * largest };
                let error = (found - factor * number).abs();
                assert!(error <= bound, "{dtype} {factor}: {found} for {number}");
            }
        }
    }
}

#[test]
fn unscalable_blocks_are_refused() {
    for &dtype in writable_types() {
        let values = vec![1000.0; dtype.block_len()];
        let mut bytes = vec![0; dtype.block_bytes()];
        encode(dtype, &values, &mut bytes).unwrap();
        let refused = scale_blocks(dtype, &mut bytes.clone(), f32::MAX);
        assert!(
            matches!(refused, Err(CodecError::NoCode { .. })),
            "{dtype}: {refused:?}"
        );
        if dtype.block_bytes() > 4 {
            let short = scale_blocks(dtype, &mut bytes[1..], 1.0);
            assert!(matches!(short, Err(CodecError::Length { .. })), "{dtype}");
        }
    }
    let only_read = scale_blocks(DType::IQ2XS, &mut [0; 74], 1.0);
    let expected = CodecError::ReadOnlyType {
        dtype: DType::IQ2XS,
    };
    assert_eq!(only_read, Err(expected));
}

fn packed(codes: &str, rows: usize) -> Vec<u8> {
    let CodeLayout::Uniform(codes) = codes.parse().unwrap() else {
        panic!("in classes");
    };
    let mut packer = ColumnGroupWriter::new(&codes, rows);
    for row in 0..rows {
        for kind in CodeKind::ALL {
            if codes.contains_kind(kind) {
                packer
                    .set_row_scale(kind, row, 1.0 + row as f32 / 7.0)
                    .unwrap();
            }
        }
    }
    for band in (0..codes.len()).filter(|&band| codes[band].kind() == CodeKind::Trellis) {
        for col in 32 * band..32 * (band + 1) {
            packer
                .set_column_scale(col, 0.5 + col as f32 / 99.0)
                .unwrap();
        }
    }
    let mut bytes = packer.finish();
    let scales = bytes.len() / 2;
    for (i, byte) in bytes[scales..].iter_mut().enumerate() {
        *byte = (37 * i + i / 11) as u8;
    }
    bytes
}

fn rows_of(layout: &CodeLayout, rows: usize, bytes: &[u8]) -> Vec<Vec<f32>> {
    let view = layout.view(rows, bytes).unwrap();
    let row = |row| {
        let mut numbers = vec![0.0; layout.cols()];
        view.decode_row(row, &mut numbers).unwrap();
        numbers
    };
    (0..rows).map(row).collect()
}

fn check(layout: &CodeLayout, rows: usize, mut bytes: Vec<u8>) {
    let before = rows_of(layout, rows, &bytes);
    let factors: Vec<f32> = (0..rows).map(|row| [1.0, 2.0, 0.25][row % 3]).collect();
    layout.scale_rows(&mut bytes, &factors).unwrap();
    let after = rows_of(layout, rows, &bytes);
    for ((before, after), factor) in before.iter().zip(&after).zip(&factors) {
        let products: Vec<f32> = before.iter().map(|x| factor * x).collect();
        assert_eq!(*after, products, "{layout}");
    }
    let mut large = vec![1.0; rows];
    large[rows - 1] = 1e9;
    let refused = layout.scale_rows(&mut bytes.clone(), &large);
    assert!(
        matches!(refused, Err(CodecError::Scale { axis: "row", .. })),
        "{layout}: {refused:?}"
    );
    let others = vec![1.0; rows + 16];
    let refused = layout.scale_rows(&mut bytes, &others);
    assert!(
        matches!(refused, Err(CodecError::ColumnGroupLength { .. })),
        "{layout}"
    );
}

#[test]
fn rows_are_scaled_with_any_codes() {
    for codes in ["1:l4x2", "2:t3x2", "2:t2x1,l5x1,t4x1", "2r:t3x1,l8x1"] {
        for rows in [1, 17, 300] {
            check(&codes.parse().unwrap(), rows, packed(codes, rows));
        }
    }
}

#[test]
fn rows_of_classes_are_scaled_individually() {
    let (rows, codes) = (300, ["2:t2x2", "2:l4x1,t3x1"]);
    let of_rows: Vec<u8> = (0..rows).map(|row| u8::from(row % 5 == 0)).collect();
    let count = |class: u8| of_rows.iter().filter(|&&of| of == class).count();
    let text = format!("{}*{};{}*{}", count(0), codes[0], count(1), codes[1]);
    let layout: CodeLayout = text.parse().unwrap();
    let CodeLayout::Classes(classes) = &layout else {
        panic!("not in classes");
    };
    let classes: &RowClasses = classes;
    let parts = [0, 1].map(|class| packed(codes[class], count(class as u8)));
    let bytes = classes.pack(&of_rows, &parts);
    check(&layout, rows, bytes.clone());
    let mut damaged = bytes;
    damaged[16] ^= 1;
    let refused = layout.scale_rows(&mut damaged, &vec![1.0; rows]);
    assert!(
        matches!(refused, Err(CodecError::InconsistentClassMap { .. })),
        "{refused:?}"
    );
}
