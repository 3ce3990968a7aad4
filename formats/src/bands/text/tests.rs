use super::*;
use crate::bands::CodeLayout;

fn mixed() -> Codes {
    "2:t3x2,l4x1,t2x1".parse().unwrap()
}

#[test]
fn codes_round_trip_through_text_and_others_are_refused() {
    for code in Code::all() {
        assert_eq!(code.to_string().parse(), Ok(code));
        let codes = Codes::uniform(code, 96).unwrap();
        assert_eq!(codes.to_string().parse(), Ok(codes.clone()));
        assert_eq!(codes.uniform_code(), Some(code));
    }
    for code in Code::legacy() {
        let codes = Codes::uniform(code, 96).unwrap();
        assert_eq!(codes.to_string(), format!("1:t{}x3", code.bits()));
        assert_eq!(codes.to_string().parse(), Ok(codes));
        assert_eq!(
            code.to_string(),
            format!("trellis{} (tables 1)", code.bits())
        );
        assert!(code.to_string().parse::<Code>().is_err());
        let mixed = vec![Code::codebook(4).unwrap(), code, Code::trellis(2).unwrap()];
        let refused = Codes::new(mixed, 96).unwrap_err();
        assert_eq!(
            refused,
            CodecError::Mixed {
                first: 1,
                second: 2
            }
        );
    }
    for cols in [1, 31, 33, 172, 356, 1000] {
        for code in Code::all() {
            let codes = Codes::uniform(code, cols).unwrap();
            let text = codes.to_string();
            assert!(text.ends_with(&format!("-{}", cols.next_multiple_of(32) - cols)));
            assert_eq!(text.parse(), Ok(codes));
        }
    }
    let padded: Codes = "2:t3x5,l4x1-20".parse().unwrap();
    assert_eq!(
        (padded.cols(), padded.padding(), padded.len()),
        (172, 20, 6)
    );
    assert_eq!(padded.to_string(), "2:t3x5,l4x1-20");
    let rotated: Codes = "2r:t3x5,l4x1-20".parse().unwrap();
    assert!(rotated.is_rotated() && !padded.is_rotated());
    assert_eq!(rotated, padded.with_rotation());
    assert_ne!(rotated, padded);
    assert_eq!(rotated.to_string(), "2r:t3x5,l4x1-20");
    assert_eq!(rotated.bytes(100), padded.bytes(100));
    let narrow: Codes = "1:l4x1-20".parse().unwrap();
    assert_eq!(narrow.with_rotation(), narrow);
    assert_eq!(mixed().to_string(), "2:t3x2,l4x1,t2x1");
    assert_eq!((mixed().cols(), mixed().uniform_code()), (128, None));
    assert_eq!(mixed().mean_bits(), 3.0);
    for text in [
        "levels1", "levels9", "trellis6", "trellis1", "levels04", "levels", "q4_0", "",
    ] {
        assert!(text.parse::<Code>().is_err(), "{text}");
    }
    for text in [
        "",
        "1:",
        "t3x1",
        "1:t3x0",
        "1:t3",
        "1:t3x1,",
        "1:t3x1,t3x1",
        "1:t6x1",
        "1:l1x1",
        "1:q3x1",
        "1:t3x01",
        "1:t3x32769",
        "1:t3x99999999999999999999",
        "1:é3x1",
        "1:l4x32768,l5x1",
        "2:l4x1",
        "0:t3x1",
        "02:t3x1",
        "-1:t3x1",
        "257:t3x1",
        "1:t3x1-",
        "1:t3x1-0",
        "1:t3x1-32",
        "1:t3x1-05",
        "1:t3x1--5",
        "1:t3x1-5,l4x1",
        "1:t3x1,-5",
        "1:-5",
        "-5",
        "r:t3x1",
        "2rr:t3x1",
        "r2:t3x1",
        "2R:t3x1",
        "1r:l4x1-20",
    ] {
        assert!(text.parse::<Codes>().is_err(), "{text}");
    }
    let tables = "3:t3x1".parse::<Codes>().unwrap_err();
    assert!(tables.to_string().contains("version \"3\""), "{tables}");
}

#[test]
fn column_groups_are_counted_as_parsed() {
    for text in [
        "1:l4x1",
        "2:t3x2,l4x1,t2x10",
        "2:t3x5,l4x1-20",
        "2r:t3x5,l4x1-20",
        "1:l4x32768",
        "64*2:t4x20,l3x4;64*2:t2x24",
    ] {
        let layout: CodeLayout = text.parse().unwrap();
        let groups = layout.codes_with_rows(0).map(|(_, codes)| codes.len());
        assert_eq!(count_groups(text), groups.sum::<usize>(), "{text}");
    }
    for text in [
        "",
        "x",
        "1:l4",
        "1:l4x",
        "1:l4x32769",
        "1:l4x99999999999999999999",
    ] {
        assert_eq!(count_groups(text), 0, "{text}");
    }
}
