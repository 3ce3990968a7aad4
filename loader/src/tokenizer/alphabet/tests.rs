use super::*;

#[test]
fn byte_characters_are_distinct() {
    let all: String = (0..=255).map(byte_to_char).collect();
    assert!(all.chars().all(|c| !c.is_whitespace() && !c.is_control()));
    let mut bytes = Vec::new();
    decode(&all, &mut bytes);
    assert_eq!(bytes, Vec::from_iter(0..=255));
    assert_eq!(
        [b' ', b'\n', b'a', 0xC3].map(byte_to_char),
        ['Ġ', 'Ċ', 'a', 'Ã']
    );
    assert_eq!([0x7F, 0xA0, 0xAD].map(byte_to_char), ['ġ', 'ł', 'Ń']);
}

#[test]
fn unmapped_texts_decode_to_themselves() {
    let mut bytes = b"x".to_vec();
    decode("Ġ日", &mut bytes);
    assert_eq!(bytes, "xĠ日".as_bytes());
}
