use super::*;
use crate::cuda::code::{CodeFormat, CodeImage};

const DEVICE: GpuArchitecture = GpuArchitecture { major: 9, minor: 0 };

fn code() -> KernelCode {
    KernelCode {
        sources: sources_digest(),
        compiler: "NVRTC 13.0".to_owned(),
        images: vec![CodeImage {
            architecture: DEVICE,
            form: CodeFormat::Cubin,
            unit: "elementwise".to_owned(),
            bytes: vec![7; 1000],
        }],
    }
}

#[test]
fn read_requires_the_matching_key() {
    let cache = tempfile::tempdir().unwrap();
    assert_eq!(read(cache.path(), DEVICE, &[]), None);
    write(cache.path(), DEVICE, &[], &code()).unwrap();
    assert_eq!(read(cache.path(), DEVICE, &[]), Some(code()));
    assert_eq!(read(cache.path(), DEVICE, &["--fast"]), None);
    let other = GpuArchitecture { major: 8, minor: 9 };
    assert_eq!(read(cache.path(), other, &[]), None);
    let mut fast = code();
    fast.compiler = "NVRTC 13.1".to_owned();
    write(cache.path(), DEVICE, &["--fast"], &fast).unwrap();
    assert_eq!(read(cache.path(), DEVICE, &["--fast"]), Some(fast));
    assert_eq!(read(cache.path(), DEVICE, &[]), Some(code()));
    let mut others = code();
    others.sources = Digest::of_bytes(b"others");
    write(cache.path(), DEVICE, &[], &others).unwrap();
    assert_eq!(read(cache.path(), DEVICE, &[]), None);
}

#[test]
fn damaged_file_is_rejected_and_rewritten() {
    let cache = tempfile::tempdir().unwrap();
    write(cache.path(), DEVICE, &[], &code()).unwrap();
    let name = format!("{}.code", cache_key(DEVICE, &[]));
    let path = cache.path().join(FOLDER).join(name);
    let whole = std::fs::read(&path).unwrap();
    for at in [0, 31, 32, 40, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(cache.path(), DEVICE, &[]), None, "{at}");
    }
    for length in [0, 31, 32, 100] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(read(cache.path(), DEVICE, &[]), None, "{length}");
    }
    write(cache.path(), DEVICE, &[], &code()).unwrap();
    assert_eq!(read(cache.path(), DEVICE, &[]), Some(code()));
}

#[cfg(unix)]
#[test]
fn symlinked_folder_is_not_followed() {
    let cache = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), cache.path().join(FOLDER)).unwrap();
    assert!(write(cache.path(), DEVICE, &[], &code()).is_err());
    assert_eq!(read(cache.path(), DEVICE, &[]), None);
}
