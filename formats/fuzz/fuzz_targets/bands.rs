//! Parses arbitrary codes, and decodes arbitrary bytes as a column-group matrix, by row and as a
//! whole.

#![no_main]

use htc_formats::bands::{
    BAND, Banded, Bands, BandsError, CHUNK, ClassedBands, Codes, GROUP_ROWS, Layout, QUADS, RowClasses, STRIP_ROWS,
};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1 << 18;

fuzz_target!(|input: (&str, u16, &[u8])| {
    let (text, rows, bytes) = input;
    let Ok(layout) = text.parse::<Layout>() else {
        return;
    };
    assert_eq!(layout.to_string(), text);
    assert_eq!(layout.to_string().parse(), Ok(layout.clone()));
    assert!(layout.padding() < BAND && layout.misfit(layout.cols()).is_none());
    assert!(layout.misfit(layout.cols() + 1).is_some());
    if let Layout::Classes(classes) = &layout {
        return in_classes(classes, bytes);
    }
    let Ok(codes) = text.parse::<Codes>() else {
        return;
    };
    assert_eq!(codes.to_string(), text);
    assert_eq!(codes.to_string().parse(), Ok(codes.clone()));
    assert_eq!(codes.cols() + codes.padding(), codes.len() * BAND);
    let rows = usize::from(rows);
    assert_eq!(
        Bands::new(&codes, rows, bytes).is_ok(),
        bytes.len() as u64 == codes.bytes(rows)
    );
    if rows.saturating_mul(codes.cols()) > MOST {
        return;
    }
    let mut whole = bytes.to_vec();
    whole.resize(codes.bytes(rows) as usize, 0x5a);
    let Ok(bands) = Bands::new(&codes, rows, &whole) else {
        panic!("the bytes are those of the matrix");
    };
    let finite = bands.check_scales().is_ok();
    let mut row = vec![0.0; codes.cols()];
    for i in 0..rows {
        assert!(bands.row(i, &mut row).is_ok());
        assert!(!finite || row.iter().all(|v| v.is_finite()));
    }
    for strip in 0..rows.div_ceil(STRIP_ROWS) {
        let groups = Codes::strip_rows(rows, strip) / GROUP_ROWS;
        let mut integers = vec![0; groups * QUADS * CHUNK];
        for band in 0..codes.len() {
            bands.integers(strip, band, 0..groups, &mut integers);
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
    let Ok(bands) = ClassedBands::new(classes, rows, &whole) else {
        panic!("the bytes are those of the matrix");
    };
    let found = Banded::Classes(bands).check();
    let is_map = !matches!(found, Err(BandsError::Rows { .. }));
    let mut row = vec![0.0; classes.cols()];
    for i in 0..rows {
        assert!(bands.row(i, &mut row).is_ok() || !is_map);
    }
}
