//! On-disk cache of compiled kernels.

use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use htc_formats::folder::{self, Folder};
use htc_formats::htz::{Digest, Hasher};

use super::code::{GpuArchitecture, KernelCode};
use super::source::sources_digest;

const FOLDER: &str = "kernels";

const MAX_FILE_BYTES: u64 = 256 << 20;

/// Returns the cache key of an architecture and extra options; without the compiler version, so
/// that code from any compiler is reused.
fn cache_key(architecture: GpuArchitecture, further: &[&str]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(&sources_digest().0);
    for text in [architecture.to_string().as_str()].iter().chain(further) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finish()
}

/// Returns the cached code, or `None` if the file is missing, damaged, owned by another user or
/// built from other sources.
pub(super) fn read(
    cache: &Path,
    architecture: GpuArchitecture,
    further: &[&str],
) -> Option<KernelCode> {
    let folder = open_folder(cache).ok()?;
    let name = format!("{}.code", cache_key(architecture, further));
    let mut bytes = Vec::new();
    let file = folder.open_for_reading(OsStr::new(&name)).ok()?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).ok()?;
    let (found, rest) = bytes.split_first_chunk::<32>()?;
    if Digest::of_bytes(rest).0 != *found {
        return None;
    }
    let code = KernelCode::parse(rest).ok()?;
    (code.sources == sources_digest() && code.architectures() == [architecture]).then_some(code)
}

pub(super) fn write(
    cache: &Path,
    architecture: GpuArchitecture,
    further: &[&str],
    code: &KernelCode,
) -> io::Result<()> {
    let folder = open_folder(cache)?;
    let bytes = code.to_bytes();
    let file = folder.temporary(0o600)?;
    file.file()?.write_all(&Digest::of_bytes(&bytes).0)?;
    file.file()?.write_all(&bytes)?;
    let name = format!("{}.code", cache_key(architecture, further));
    file.persist(OsStr::new(&name), true)
}

/// Opens the cache folder, to which only its owner may write, because its code is executed.
fn open_folder(cache: &Path) -> io::Result<Folder> {
    folder::create_private_dir_all(cache)?;
    let parent = Folder::open(cache)?;
    let own = parent.open_private(OsStr::new(FOLDER));
    own.map_err(htc_formats::open::OpenError::into_io)
}

#[cfg(test)]
mod tests;
