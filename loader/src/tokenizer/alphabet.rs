//! How byte-level vocabularies write bytes: each as one printable character (GPT-2).
//!
//! Bytes that are printable in Latin-1 stand for themselves; the others are, in order, the
//! characters from U+0100 on.

/// The character that stands for a byte.
pub(super) const fn character(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => byte as u32,
        0..=b' ' => 0x100 + byte as u32,
        0x7F..=0xA0 => 0x121 + (byte - 0x7F) as u32,
        0xAD => 0x143,
    };
    match char::from_u32(code) {
        Some(character) => character,
        None => char::REPLACEMENT_CHARACTER,
    }
}

/// The byte that a character stands for.
fn byte(character: char) -> Option<u8> {
    Some(match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8,
        code @ 0x121..=0x142 => (code - 0x121) as u8 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    })
}

/// Appends the bytes that a token's text stands for; the bytes of the text itself where any
/// character stands for none.
pub(super) fn decode(text: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in text.chars() {
        let Some(byte) = byte(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(text.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let all: String = (0..=255).map(character).collect();
        assert!(all.chars().all(|c| !c.is_whitespace() && !c.is_control()));
        let mut bytes = Vec::new();
        decode(&all, &mut bytes);
        assert_eq!(bytes, Vec::from_iter(0..=255));
        // What GPT-2's vocabulary is known by.
        assert_eq!(
            [b' ', b'\n', b'a', 0xC3].map(character),
            ['Ġ', 'Ċ', 'a', 'Ã']
        );
        assert_eq!([0x7F, 0xA0, 0xAD].map(character), ['ġ', 'ł', 'Ń']);
    }

    #[test]
    fn other_texts_are_their_own_bytes() {
        let mut bytes = b"x".to_vec();
        decode("Ġ日", &mut bytes);
        assert_eq!(bytes, "xĠ日".as_bytes());
    }
}
