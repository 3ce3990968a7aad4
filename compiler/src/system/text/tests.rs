use std::io;

use super::*;

#[test]
fn first_invalid_byte_is_reported() {
    let error = read_from(&b"ab\xffcd"[..], Path::new("t")).unwrap_err();
    assert!(
        matches!(error, FileError::NotUtf8 { offset: 2, .. }),
        "{error}"
    );
    assert_eq!(
        read_from("häuser".as_bytes(), Path::new("t")).unwrap(),
        "häuser"
    );
}

#[test]
fn hidden_characters_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let read = |bytes: &str| {
        let path = folder.path().join("t.txt");
        std::fs::write(&path, bytes).unwrap();
        read_corpus(&path).unwrap()
    };
    assert_eq!(read("a\nb\rc\u{feff}").remarks, [""; 0]);
    let found = read("\u{feff}a\r\nb");
    assert_eq!(found.text, "a\r\nb");
    assert_eq!(
        found.remarks[0],
        "t.txt: removed the byte order mark at its beginning"
    );
    assert!(
        found.remarks[1].starts_with("t.txt: 1 line with CR LF"),
        "{:?}",
        found.remarks
    );
    assert!(read("a\r\n\r\n").remarks[0].contains("2 lines"));
}

#[test]
fn endless_stream_is_rejected() {
    let error = read_from(io::repeat(b'a'), Path::new("t")).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
}
