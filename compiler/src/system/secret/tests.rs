use super::*;

/// RFC 4231, test case 1.
#[test]
fn seals_are_hmac_sha256() {
    let mut key = [0; 32];
    key[..20].fill(0x0b);
    let found = Secret(key).seal(&[b"Hi ", b"There"]).to_string();
    assert_eq!(
        found,
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
    );
}

#[cfg(unix)]
#[test]
fn secret_is_created_once_with_private_permissions() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("deep/state/htc");
    let made = Secret::in_folder(&state).unwrap();
    assert_eq!(Secret::in_folder(&state).unwrap().0, made.0);
    assert_ne!(Secret::for_this_run().unwrap().0, made.0);
    let path = state.join(NAME);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&path), mode(&state)), (0o600, 0o700));
    let set = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, set(0o640)).unwrap();
    let known = Secret::in_folder(&state);
    assert!(matches!(known, Err(FileError::ReadableByOthers(_))));
    std::fs::set_permissions(&path, set(0o600)).unwrap();
    std::fs::write(&path, [1; 31]).unwrap();
    let damaged = Secret::in_folder(&state);
    assert!(matches!(damaged, Err(FileError::SecretDamaged(_))));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert!(matches!(
        Secret::in_folder(&state),
        Err(FileError::Access { .. })
    ));
}
