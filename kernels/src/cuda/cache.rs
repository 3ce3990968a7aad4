//! On-disk cache of compiled kernels.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use htc_formats::folder::{self, Folder};
use htc_formats::htz::{Digest, Hasher};

use super::code::{Architecture, KernelCode};
use super::source::digest;

const FOLDER: &str = "kernels";

const MOST: u64 = 256 << 20;

/// Returns the cache key of an architecture and extra compiler options. [`digest`] covers sources,
/// headers and standard options; the compiler version is left out, so code from any compiler is
/// reused.
fn key(architecture: Architecture, further: &[&str]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(&digest().0);
    for text in [architecture.to_string().as_str()].iter().chain(further) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finish()
}

/// Returns the cached code for an architecture and extra options, or `None` if the file is missing,
/// damaged, owned by another user or built from other sources.
pub(super) fn read(
    cache: &Path,
    architecture: Architecture,
    further: &[&str],
) -> Option<KernelCode> {
    let folder = open(cache).ok()?;
    let name = format!("{}.code", key(architecture, further));
    let mut bytes = Vec::new();
    let file = folder.read(OsStr::new(&name)).ok()?;
    file.take(MOST + 1).read_to_end(&mut bytes).ok()?;
    let (found, rest) = bytes.split_first_chunk::<32>()?;
    if Digest::of(rest).0 != *found {
        return None;
    }
    let code = KernelCode::parse(rest).ok()?;
    (code.sources == digest() && code.architectures() == [architecture]).then_some(code)
}

pub(super) fn write(
    cache: &Path,
    architecture: Architecture,
    further: &[&str],
    code: &KernelCode,
) -> io::Result<()> {
    let folder = open(cache)?;
    let bytes = code.to_bytes();
    let file = folder.temporary(0o600)?;
    file.file()?.write_all(&Digest::of(&bytes).0)?;
    file.file()?.write_all(&bytes)?;
    let name = format!("{}.code", key(architecture, further));
    file.persist(OsStr::new(&name), true)
}

/// Opens the cache folder. Only its owner may write to it, because its code is executed.
fn open(cache: &Path) -> io::Result<Folder> {
    folder::make_private(cache)?;
    let parent = Folder::open(cache)?;
    let own = parent.own(OsStr::new(FOLDER));
    own.map_err(folder::FolderError::into_io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::code::{CodeForm, CodeImage};

    const DEVICE: Architecture = Architecture { major: 9, minor: 0 };

    fn code() -> KernelCode {
        KernelCode {
            sources: digest(),
            compiler: "NVRTC 13.0".to_owned(),
            images: vec![CodeImage {
                architecture: DEVICE,
                form: CodeForm::Cubin,
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
        let other = Architecture { major: 8, minor: 9 };
        assert_eq!(read(cache.path(), other, &[]), None);
        // Extra options give another file.
        let mut fast = code();
        fast.compiler = "NVRTC 13.1".to_owned();
        write(cache.path(), DEVICE, &["--fast"], &fast).unwrap();
        assert_eq!(read(cache.path(), DEVICE, &["--fast"]), Some(fast));
        assert_eq!(read(cache.path(), DEVICE, &[]), Some(code()));
        // Code of other sources under the same key.
        let mut others = code();
        others.sources = Digest::of(b"others");
        write(cache.path(), DEVICE, &[], &others).unwrap();
        assert_eq!(read(cache.path(), DEVICE, &[]), None);
    }

    #[test]
    fn damaged_file_is_rejected_and_rewritten() {
        let cache = tempfile::tempdir().unwrap();
        write(cache.path(), DEVICE, &[], &code()).unwrap();
        let name = format!("{}.code", key(DEVICE, &[]));
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
}
