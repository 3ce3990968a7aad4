//! Tokenizer files for the tests of vocabularies.
use htc_formats::vocab::{HuggingFaceFiles, Vocabulary, VocabularyError};
use serde_json::Value;

pub fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

pub fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [
        varint(field << 3 | 2),
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7F {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

pub fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let score = [varint(2 << 3 | 5), score.to_le_bytes().to_vec()].concat();
    bytes(
        1,
        &[bytes(1, text.as_bytes()), score, number(3, kind)].concat(),
    )
}

pub const BPE: (u64, u64) = (3, 2);

/// `trainer` and `normalizer` are numeric fields of those messages.
pub fn sentence_piece(trainer: &[(u64, u64)], normalizer: &[(u64, u64)]) -> Vec<u8> {
    let fields = |list: &[(u64, u64)]| {
        list.iter()
            .flat_map(|&(f, v)| number(f, v))
            .collect::<Vec<u8>>()
    };
    [
        piece("<unk>", 0.0, 2),
        piece("<s>", 0.0, 3),
        piece("</s>", 0.0, 3),
        bytes(1, &bytes(1, "▁".as_bytes())),
        piece("▁a", -1.5, 1),
        piece("▁▁", -2.0, 4),
        bytes(2, &fields(trainer)),
        bytes(3, &fields(normalizer)),
    ]
    .concat()
}

pub fn read(files: HuggingFaceFiles) -> Result<Vocabulary, VocabularyError> {
    let result = files.vocabulary();
    if let Err(error) = &result {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    result
}

pub fn bytes_of(value: Value) -> Option<Vec<u8>> {
    Some(serde_json::to_vec(&value).unwrap())
}
