//! Row classes of column-group matrices.

use htc_formats::CodecError;
use htc_formats::bands::{
    CodeKind, CodeLayout, ColumnGroupMatrix, ColumnGroupWriter, ColumnGroups, RowClasses,
};

fn classes(of_rows: &[u8], codes: &[&str]) -> (CodeLayout, RowClasses) {
    let of = |class: usize| {
        of_rows
            .iter()
            .filter(|&&of| usize::from(of) == class)
            .count()
    };
    let text: Vec<String> = codes
        .iter()
        .enumerate()
        .map(|(class, codes)| format!("{}*{codes}", of(class)))
        .collect();
    let layout: CodeLayout = text.join(";").parse().unwrap();
    assert_eq!(layout.to_string(), text.join(";"));
    let CodeLayout::Classes(of) = layout.clone() else {
        panic!("not in classes");
    };
    (layout, of)
}

/// Returns a matrix whose row scales identify its class and rows.
fn part(class: usize, of: &RowClasses) -> Vec<u8> {
    let class_of = of.iter().nth(class).unwrap();
    let mut packer = ColumnGroupWriter::new(&class_of.codes, class_of.rows);
    for row in 0..class_of.rows {
        let kind = if class == 0 {
            CodeKind::Codebook
        } else {
            CodeKind::Trellis
        };
        packer
            .set_row_scale(kind, row, (10 * row + class + 1) as f32)
            .unwrap();
    }
    for col in 0..class_of.codes.cols() {
        if class > 0 {
            packer.set_column_scale(col, 1.0).unwrap();
        }
    }
    let mut bytes = packer.finish();
    let end = bytes.len();
    for (i, byte) in bytes[end - 64..].iter_mut().enumerate() {
        *byte = (31 * i + class) as u8;
    }
    bytes
}

const CODES: [&str; 4] = ["1:l4x2", "2:t2x1,t3x1", "1:t2x2", "2:t4x2"];

#[test]
fn every_row_matches_its_class() {
    for (rows, count) in [(2, 2), (255, 3), (256, 4), (257, 2), (1100, 4)] {
        let mut of_rows: Vec<u8> = (0..rows).map(|row| (row * row / 7 % count) as u8).collect();
        for (class, of_row) in of_rows.iter_mut().enumerate().take(count) {
            *of_row = class as u8;
        }
        let (layout, of) = classes(&of_rows, &CODES[..count]);
        let parts: Vec<Vec<u8>> = (0..count).map(|class| part(class, &of)).collect();
        let bytes = of.pack(&of_rows, &parts);
        assert_eq!(bytes.len() as u64, layout.bytes(rows));
        let ColumnGroupMatrix::Classes(found) = layout.view(rows, &bytes).unwrap() else {
            panic!("not in classes");
        };
        found.class(0).unwrap().check_scales().unwrap();
        assert!(found.class(count).is_none());
        let mut next = [0; 4];
        let (mut row, mut expected) = ([0.0; 64], [0.0; 64]);
        for (index, &class) in of_rows.iter().enumerate() {
            let class = usize::from(class);
            assert_eq!(
                found.locate_row(index),
                (class, next[class]),
                "{rows} {index}"
            );
            let own = of.iter().nth(class).unwrap();
            let own = ColumnGroups::new(&own.codes, own.rows, &parts[class]).unwrap();
            own.decode_row(next[class], &mut expected).unwrap();
            layout
                .view(rows, &bytes)
                .unwrap()
                .decode_row(index, &mut row)
                .unwrap();
            assert_eq!(row, expected);
            next[class] += 1;
        }
        let fault = found.decode_row(rows, &mut row).unwrap_err();
        assert!(matches!(fault, CodecError::Row { .. }));
        assert!(found.decode_row(0, &mut row[..32]).is_err());
    }
}

#[test]
fn inconsistent_maps_and_wrong_lengths_are_refused() {
    let rows = 600;
    let of_rows: Vec<u8> = (0..rows).map(|row| (row % 3) as u8).collect();
    let (layout, of) = classes(&of_rows, &CODES[..3]);
    let parts: Vec<Vec<u8>> = (0..3).map(|class| part(class, &of)).collect();
    let bytes = of.pack(&of_rows, &parts);
    layout.view(rows, &bytes).unwrap().check().unwrap();
    assert!(layout.view(rows + 1, &bytes).is_err());
    assert!(layout.view(rows, &bytes[1..]).is_err());
    for (at, row) in [
        (16, 256),
        (80 + 16 + 63, 512),
        (80, 256),
        (160, 512),
        (160 + 16 + 21, 600),
    ] {
        for flip in [1, 3] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            let fault = layout.view(rows, &wrong).unwrap().check().unwrap_err();
            assert_eq!(fault, CodecError::InconsistentClassMap { row }, "{at}");
        }
    }
    let mut wrong = bytes.clone();
    wrong[160 + 16 + 21] ^= 0b11 << 6;
    assert_eq!(
        layout.view(rows, &wrong).unwrap().check().unwrap_err(),
        CodecError::InconsistentClassMap { row: rows }
    );
}

#[test]
fn mean_bits_cover_all_rows() {
    let layout: CodeLayout = "100*2:t4x2;300*1:t2x2".parse().unwrap();
    assert_eq!(layout.mean_bits(), 2.5);
    assert_eq!((layout.cols(), layout.uniform_code()), (64, None));
    assert!(layout.has_rows(400) && !layout.has_rows(401));
    assert!(layout.contains_kind(CodeKind::Trellis) && !layout.contains_kind(CodeKind::Codebook));
    let each: Vec<usize> = layout.codes_with_rows(400).map(|(rows, _)| rows).collect();
    assert_eq!(each, [100, 300]);
    let whole: CodeLayout = "1:t3x2".parse().unwrap();
    assert_eq!(
        whole
            .codes_with_rows(7)
            .map(|(rows, _)| rows)
            .collect::<Vec<_>>(),
        [7]
    );
    assert_eq!((whole.cols(), whole.mean_bits()), (64, 3.0));
}
