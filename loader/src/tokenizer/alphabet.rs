//! Byte-to-character mapping of byte-level vocabularies (GPT-2): printable Latin-1 bytes map to
//! themselves, the others in order to the characters from U+0100.

pub(super) const fn byte_to_char(byte: u8) -> char {
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

fn char_to_byte(character: char) -> Option<u8> {
    Some(match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8,
        code @ 0x121..=0x142 => (code - 0x121) as u8 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    })
}

/// Appends the bytes of a token's text; the text itself if a character is outside the mapping.
pub(super) fn decode(text: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in text.chars() {
        let Some(byte) = char_to_byte(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(text.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

#[cfg(test)]
mod tests;
