use super::*;

fn mixed() -> Codes {
    "2:t3x2,l4x1,t2x1".parse().unwrap()
}

#[test]
fn sizes_follow_from_rows_and_codes() {
    let levels = Codes::uniform(Code::codebook(4).unwrap(), 64).unwrap();
    assert_eq!(levels.bytes(20), 64 + 2 * 2 * (12 + 256));
    let trellis = Codes::uniform(Code::trellis(3).unwrap(), 64).unwrap();
    assert_eq!(
        trellis.bytes(300),
        (304 * 2 + 64 * 2_u64).next_multiple_of(64) + 19 * 2 * 192
    );
    let padded = Codes::uniform(Code::codebook(4).unwrap(), 33).unwrap();
    assert_eq!(padded.bytes(20), levels.bytes(20));
    assert_eq!((padded.cols(), padded.padding()), (33, 31));
    assert_eq!([0, 1, 2].map(|band| padded.group_cols(band)), [32, 1, 0]);
    for (cols, bands) in [
        (32, 2),
        (65, 2),
        (0, 0),
        (0, 1),
        (MAX_WIDTH + 1, (1 << 15) + 1),
    ] {
        let codes = vec![Code::codebook(4).unwrap(); bands];
        assert_eq!(
            Codes::new(codes, cols).unwrap_err(),
            CodecError::Width {
                cols,
                groups: bands
            }
        );
    }
    for cols in [0, MAX_WIDTH + 1] {
        assert!(Codes::uniform(Code::codebook(4).unwrap(), cols).is_err());
    }
    assert_eq!(padded.width_error(33), None);
    let (expected, found) = (30, 31);
    let other = CodecError::Padding {
        cols: 34,
        expected,
        found,
    };
    assert_eq!(padded.width_error(34), Some(other));
    assert_eq!(
        padded.width_error(65),
        Some(CodecError::Width {
            cols: 65,
            groups: 2
        })
    );
}

#[test]
fn column_groups_of_tiles_are_contiguous() {
    let (codes, rows) = (mixed(), 530);
    let mut end = codes.data_start(rows) as usize;
    for strip in 0..3 {
        assert_eq!(Codes::tile_rows(rows, strip), [256, 256, 32][strip]);
        for band in 0..codes.len() {
            let place = codes.tile_range(rows, strip, band);
            assert_eq!(place.start, end);
            end = place.end;
        }
    }
    assert_eq!(end as u64, codes.bytes(rows));
    assert!(codes.tile_range(rows, 0, 4).is_empty() && codes.tile_range(rows, 3, 0).is_empty());
    assert_eq!(codes.row_scales_offset(rows, CodeKind::Codebook), Some(0));
    assert_eq!(codes.row_scales_offset(rows, CodeKind::Trellis), Some(1088));
    assert_eq!(codes.column_scales_offset(rows, 1), Some(2 * 1088 + 64));
    assert_eq!(codes.column_scales_offset(rows, 2), None);
    assert_eq!(codes.column_scales_offset(rows, 3), Some(2 * 1088 + 128));
}
