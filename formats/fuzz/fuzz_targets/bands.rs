//! Parses arbitrary codes, and decodes arbitrary bytes as a column-group matrix, by row and as a
//! whole.

#![no_main]

use htc_formats::CodecError;
use htc_formats::bands::{
    GROUP_COLS, ColumnGroupMatrix, ColumnGroups, CHUNK, RowClassMatrix, Codes, GROUP_ROWS, CodeLayout, QUADS_PER_GROUP, RowClasses, TILE_ROWS,
};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1 << 18;

fuzz_target!(|input: (&str, u16, &[u8])| {
    let (text, rows, bytes) = input;
    let Ok(layout) = text.parse::<CodeLayout>() else {
        return;
    };
    assert_eq!(layout.to_string(), text);
    assert_eq!(layout.to_string().parse(), Ok(layout.clone()));
    assert!(layout.padding() < GROUP_COLS && layout.width_error(layout.cols()).is_none());
    assert!(layout.width_error(layout.cols() + 1).is_some());
    if let CodeLayout::Classes(classes) = &layout {
        return in_classes(classes, bytes);
    }
    let Ok(codes) = text.parse::<Codes>() else {
        return;
    };
    assert_eq!(codes.to_string(), text);
    assert_eq!(codes.to_string().parse(), Ok(codes.clone()));
    assert_eq!(codes.cols() + codes.padding(), codes.len() * GROUP_COLS);
    let rows = usize::from(rows);
    assert_eq!(
        ColumnGroups::new(&codes, rows, bytes).is_ok(),
        bytes.len() as u64 == codes.bytes(rows)
    );
    if rows.saturating_mul(codes.cols()) > MOST {
        return;
    }
    let mut whole = bytes.to_vec();
    whole.resize(codes.bytes(rows) as usize, 0x5a);
    let Ok(bands) = ColumnGroups::new(&codes, rows, &whole) else {
        panic!("the bytes are those of the matrix");
    };
    let finite = bands.check_scales().is_ok();
    let mut row = vec![0.0; codes.cols()];
    for i in 0..rows {
        assert!(bands.decode_row(i, &mut row).is_ok());
        assert!(!finite || row.iter().all(|v| v.is_finite()));
    }
    for strip in 0..rows.div_ceil(TILE_ROWS) {
        let groups = Codes::tile_rows(rows, strip) / GROUP_ROWS;
        let mut integers = vec![0; groups * QUADS_PER_GROUP * CHUNK];
        for band in 0..codes.len() {
            bands.unpack_tile(strip, band, 0..groups, &mut integers);
            assert!(integers.iter().all(|v| *v != i8::MIN));
        }
    }
});

fn in_classes(classes: &RowClasses, bytes: &[u8]) {
    let rows = classes.rows();
    if rows.saturating_mul(classes.cols()) > MOST {
        return;
    }
    let mut whole = bytes.to_vec();
    whole.resize(classes.bytes() as usize, 0);
    let Ok(bands) = RowClassMatrix::new(classes, rows, &whole) else {
        panic!("the bytes are those of the matrix");
    };
    let found = ColumnGroupMatrix::Classes(bands).check();
    let is_map = !matches!(found, Err(CodecError::InconsistentClassMap { .. }));
    let mut row = vec![0.0; classes.cols()];
    for i in 0..rows {
        assert!(bands.decode_row(i, &mut row).is_ok() || !is_map);
    }
}
