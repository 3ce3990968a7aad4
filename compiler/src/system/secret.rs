//! Secret key of the user, 32 random bytes, to authenticate work that is resumed later. Records are
//! sealed with HMAC-SHA256 (RFC 2104).

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use htc_formats::folder::{self, Folder};
use htc_formats::htz::{Digest, Hasher};
use htc_formats::open::OpenError;

use super::error::FileError;

const NAME: &str = "secret";

const BLOCK: usize = 64;

/// Key for HMAC-SHA256.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Returns the secret of the user, created if missing.
    pub fn of_user() -> Result<Secret, FileError> {
        Secret::in_folder(&state_folder().ok_or(FileError::NoStateFolder)?)
    }

    fn in_folder(path: &Path) -> Result<Secret, FileError> {
        let failed = FileError::access(path);
        let parent = path.parent().unwrap_or(Path::new(""));
        folder::create_private_dir_all(parent).map_err(&failed)?;
        let (parent, name) = Folder::parent_of(path).map_err(&failed)?;
        let own = parent.open_private(&name).map_err(OpenError::into_io);
        let own = own.map_err(&failed)?;
        match read(&own) {
            Err(FileError::Access { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let made = Secret::for_this_run().and_then(|secret| {
            let temporary = own.temporary(0o600)?;
            temporary.file()?.write_all(&secret.0)?;
            temporary.persist(OsStr::new(NAME), false)
        });
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(error)),
            _ => read(&own),
        }
    }

    /// Returns a temporary secret for this process.
    pub fn for_this_run() -> io::Result<Secret> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Secret(bytes))
    }

    /// Returns the HMAC-SHA256 of the concatenated parts.
    pub fn seal(&self, parts: &[&[u8]]) -> Digest {
        let padded = |with: u8| {
            let mut block = [with; BLOCK];
            for (to, byte) in block.iter_mut().zip(self.0) {
                *to ^= byte;
            }
            block
        };
        let mut inner = Hasher::default();
        inner.update(&padded(0x36));
        for part in parts {
            inner.update(part);
        }
        let mut outer = Hasher::default();
        outer.update(&padded(0x5c));
        outer.update(&inner.finish().0);
        outer.finish()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn read(folder: &Folder) -> Result<Secret, FileError> {
    let path = folder.path().join(NAME);
    let found = || -> io::Result<_> {
        let file = folder.open_for_reading(OsStr::new(NAME))?;
        let private = is_private(&file.metadata()?);
        let mut bytes = Vec::new();
        file.take(33).read_to_end(&mut bytes)?;
        Ok((private, bytes))
    };
    match found() {
        Ok((false, _)) => Err(FileError::ReadableByOthers(path)),
        Ok((true, bytes)) => {
            let bytes = <[u8; 32]>::try_from(&bytes[..]);
            bytes
                .map(Secret)
                .map_err(|_| FileError::SecretDamaged(path))
        }
        Err(source) => Err(FileError::Access { path, source }),
    }
}

#[cfg(unix)]
fn is_private(found: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(found) & 0o077 == 0
}

#[cfg(not(unix))]
fn is_private(_: &std::fs::Metadata) -> bool {
    true
}

fn state_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    // XDG Base Directory Specification.
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .or_else(|| absolute("LOCALAPPDATA"));
    Some(state?.join("htc"))
}

#[cfg(test)]
mod tests;
