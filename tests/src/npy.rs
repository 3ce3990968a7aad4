//! Reads NumPy's `.npy` files, as far as the reference values use the format.

use std::path::Path;

/// An array.
#[derive(Debug)]
pub struct Array {
    /// Lengths, the slowest index first.
    pub shape: Vec<usize>,
    /// Type of the elements in NumPy's notation, for example `<f4`.
    pub dtype: String,
    data: Vec<u8>,
}

impl Array {
    /// Reads a file.
    pub fn read(path: &Path) -> Array {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(&bytes[..6], b"\x93NUMPY", "{}", path.display());
        let (start, length) = match bytes[6] {
            1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
            _ => {
                let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
                (12, length as usize)
            }
        };
        let header = std::str::from_utf8(&bytes[start..start + length]).unwrap();
        assert!(header.contains("'fortran_order': False"), "{header}");
        let kind = between(header, "'descr': '", "'").to_owned();
        let shape = between(header, "'shape': (", ")")
            .split(',')
            .filter_map(|number| number.trim().parse().ok())
            .collect();
        Array {
            shape,
            dtype: kind,
            data: bytes[start + length..].to_vec(),
        }
    }

    /// Returns the elements of a `<f4` array.
    pub fn f32(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "<f4");
        self.data
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    /// Returns the elements of an `<i4` or `<i8` array of token ids.
    pub fn tokens(&self) -> Vec<u32> {
        let size = match self.dtype.as_str() {
            "<i4" => 4,
            "<i8" => 8,
            other => panic!("token ids of type {other}"),
        };
        self.data
            .chunks_exact(size)
            .map(|bytes| {
                assert!(bytes[4..].iter().all(|&byte| byte == 0));
                u32::from_le_bytes(bytes[..4].try_into().unwrap())
            })
            .collect()
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let start = text.find(before).unwrap() + before.len();
    let length = text[start..].find(after).unwrap();
    &text[start..start + length]
}
