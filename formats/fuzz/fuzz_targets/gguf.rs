//! Parses arbitrary bytes as a GGUF file with model and vocabulary.

#![no_main]

use htc_formats::architecture;
use htc_formats::gguf::{Contents, GgufError};
use htc_formats::vocab::Vocabulary;
use libfuzzer_sys::fuzz_target;

fn one_line(error: &dyn std::fmt::Display) {
    assert!(!error.to_string().contains('\n'));
}

fn check(bytes: &[u8]) -> Result<(), GgufError> {
    let contents = Contents::parse(bytes)?;
    for tensor in contents.tensors() {
        let data = &bytes[tensor.range.clone()];
        if let Ok(dtype) = tensor.dtype() {
            let expected = dtype.matrix_bytes(tensor.rows(), tensor.cols());
            assert_eq!(expected, Some(data.len()));
        }
        assert_eq!(contents.tensor(&tensor.name), Some(tensor));
    }
    for (key, value) in contents.metadata() {
        assert!(
            contents
                .get(key)
                .is_some_and(|found| std::ptr::eq(found, value))
        );
    }
    if let Err(error) = Vocabulary::from_gguf(&contents) {
        one_line(&error);
    }
    match architecture::bind(&contents) {
        Ok((hyper, _)) => assert!(hyper.check().is_ok()),
        Err(error) => one_line(&error),
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    if let Err(error) = check(bytes) {
        one_line(&error);
    }
});
