use super::*;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::Command;

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn own_folder_is_private_and_not_a_link() {
    let scratch = tempfile::tempdir().unwrap();
    let at = Folder::open(scratch.path()).unwrap();
    let own = at.open_private(name("own")).unwrap();
    assert_eq!(mode_of(own.path()), 0o700);
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o777)).unwrap();
    at.open_private(name("own")).unwrap();
    assert_eq!(mode_of(own.path()), 0o755);
    fs::create_dir(scratch.path().join("elsewhere")).unwrap();
    symlink("elsewhere", scratch.path().join("link")).unwrap();
    symlink("nowhere", scratch.path().join("dangling")).unwrap();
    fs::write(scratch.path().join("file"), "").unwrap();
    for planted in ["link", "dangling", "file"] {
        let found = at.open_private(name(planted));
        assert!(
            matches!(found, Err(OpenError::NotAFolder { .. })),
            "{planted}"
        );
        let found = at.open_existing(name(planted), true);
        assert!(
            matches!(found, Err(OpenError::NotAFolder { .. })),
            "{planted}"
        );
    }
    fs::rename(scratch.path().join("own"), scratch.path().join("moved")).unwrap();
    symlink("elsewhere", scratch.path().join("own")).unwrap();
    own.open_for_writing(name("written")).unwrap();
    assert!(scratch.path().join("moved/written").exists());
    assert!(!at.is_same_entry(name("own"), &own) && at.is_same_entry(name("moved"), &own));
}

#[test]
fn only_own_regular_files_open_and_pipes_do_not_block() {
    let scratch = tempfile::tempdir().unwrap();
    let at = Folder::open(scratch.path()).unwrap();
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("precious"), "precious").unwrap();
    symlink("precious", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(path("pipe"))
            .status()
            .unwrap()
            .success()
    );
    fs::create_dir(path("folder")).unwrap();
    for planted in ["link", "dangling", "pipe", "folder"] {
        assert!(at.open_for_reading(name(planted)).is_err(), "{planted}");
        assert!(at.open_for_writing(name(planted)).is_err(), "{planted}");
    }
    assert!(!path("nowhere").exists());
    fs::hard_link(path("precious"), path("second")).unwrap();
    assert!(at.open_for_reading(name("second")).is_ok());
    assert!(at.open_for_writing(name("second")).is_err());
    at.remove(name("link")).unwrap();
    assert_eq!(fs::read(path("precious")).unwrap(), b"precious");
}

#[test]
fn foreign_files_are_read_only_if_trusted() {
    let scratch = tempfile::tempdir().unwrap();
    let at = Folder::open(scratch.path()).unwrap();
    let path = scratch.path().join("theirs");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("file"), "x").unwrap();
    for place in [&path, &path.join("file")] {
        if std::os::unix::fs::chown(place, Some(65534), None).is_err() {
            eprintln!("skipped: only root may give a file to somebody else");
            return;
        }
    }
    let own = at.open_private(name("theirs"));
    assert!(matches!(
        own,
        Err(OpenError::ForeignOwner { owner: 65534, .. })
    ));
    assert!(at.open_existing(name("theirs"), false).is_err());
    let trusted = at.open_existing(name("theirs"), true).unwrap();
    assert!(trusted.open_for_reading(name("file")).is_ok());
    assert!(trusted.open_for_writing(name("file")).is_err());
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    let own = at.open_private(name("theirs")).unwrap();
    assert!(own.open_for_reading(name("file")).is_err());
}

#[test]
fn temporary_file_is_unique_and_removed_on_drop() {
    let scratch = tempfile::tempdir().unwrap();
    let at = Folder::open(scratch.path()).unwrap();
    let one = at.temporary(0o666).unwrap();
    let other = at.temporary(0o666).unwrap();
    assert_ne!(one.name, other.name);
    assert_eq!(at.names().unwrap().len(), 2);
    drop(other);
    one.file().unwrap().write_all(b"new").unwrap();
    fs::write(scratch.path().join("place"), "old").unwrap();
    let place = scratch.path().join("place");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).unwrap();
    let exists = at.temporary(0o666).unwrap().persist(name("place"), false);
    assert_eq!(exists.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&place).unwrap(), b"old");
    one.persist(name("place"), true).unwrap();
    assert_eq!(fs::read(&place).unwrap(), b"new");
    assert_eq!(mode_of(&place), 0o600);
    at.temporary(0o666)
        .unwrap()
        .persist(name("second"), false)
        .unwrap();
    assert_eq!(at.names().unwrap(), ["place", "second"]);
}
