use super::*;
use crate::CodecError;

fn code() -> KernelCode {
    let image = |minor, form, bytes: &[u8]| CodeImage {
        architecture: GpuArchitecture { major: 8, minor },
        form,
        unit: "elementwise".to_owned(),
        bytes: bytes.to_vec(),
    };
    KernelCode {
        sources: Digest::of_bytes(b"sources"),
        compiler: "NVRTC 13.0".to_owned(),
        images: vec![
            image(9, CodeFormat::Cubin, b"\x7fELF"),
            image(0, CodeFormat::Ptx, b"// PTX"),
            image(0, CodeFormat::Cubin, b""),
        ],
    }
}

#[test]
fn written_record_is_read_back() {
    let bytes = code().to_bytes();
    assert_eq!(KernelCode::parse(&bytes).unwrap(), code());
    let named = code().architectures();
    let named: Vec<_> = named.iter().map(ToString::to_string).collect();
    assert_eq!(named, ["sm_80", "sm_89"]);
}

#[test]
fn truncated_or_extended_record_is_refused() {
    let mut bytes = code().to_bytes();
    for length in 0..bytes.len() {
        let fault = KernelCode::parse(&bytes[..length]).unwrap_err();
        assert!(
            matches!(fault, HtzError::Decode(CodecError::Truncated { .. })),
            "{length}"
        );
    }
    bytes.push(0);
    let fault = KernelCode::parse(&bytes).unwrap_err().to_string();
    assert!(fault.contains("behind it is 1, expected 0"), "{fault}");
}

#[test]
fn invalid_numbers_are_refused() {
    let bytes = code().to_bytes();
    let count = 4 + 32 + 4 + "NVRTC 13.0".len();
    for (at, number, expected) in [
        (0, 2_u32, "version is 2, expected 1"),
        (
            count,
            u32::MAX,
            "images is 4294967295, expected at most 4096",
        ),
        (
            count + 4,
            0x0002_0008,
            "form of an image is 2, expected 0 or 1",
        ),
        (count + 4 + 3, u32::MAX, "4294967295 bytes are needed"),
    ] {
        let mut bytes = bytes.clone();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let fault = KernelCode::parse(&bytes).unwrap_err().to_string();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn architectures_use_the_compilers_spelling() {
    for (text, major, minor) in [("sm_80", 8, 0), ("sm_89", 8, 9), ("sm_120", 12, 0)] {
        let architecture = GpuArchitecture { major, minor };
        assert_eq!(text.parse(), Ok(architecture));
        assert_eq!(architecture.to_string(), text);
    }
    for text in [
        "",
        "90",
        "sm_",
        "sm_9",
        "sm_90a",
        "sm_09",
        "compute_90",
        "sm_1200",
        "sm_-1",
    ] {
        assert!(text.parse::<GpuArchitecture>().is_err(), "{text}");
    }
}
