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
fn endless_stream_is_rejected() {
    let error = read_from(io::repeat(b'a'), Path::new("t")).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
}
