use super::*;

#[test]
fn free_space_is_known_for_existing_folders() {
    let folder = tempfile::tempdir().unwrap();
    assert!(free_bytes(folder.path()).is_some_and(|bytes| bytes < 1 << 60));
    assert_eq!(free_bytes(&folder.path().join("no")), None);
    assert_eq!(folder_of(Path::new("a/b.htz")), Path::new("a"));
    assert_eq!(folder_of(Path::new("b.htz")), Path::new("."));
}

#[test]
fn writes_are_atomic() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n".repeat(255));
    let names = || fs::read_dir(folder.path()).unwrap().count();
    check_writable(&path).unwrap();
    assert!(check_writable(&folder.path().join("n".repeat(256))).is_err());
    assert!(check_writable(&folder.path().join("no/such")).is_err());
    let failing = |to: &mut BufWriter<&File>| {
        to.write_all(b"half")?;
        Err(io::Error::from(ErrorKind::StorageFull))
    };
    let (parent, name) = Folder::parent_of(&path).unwrap();
    assert!(write_in(&parent, &name, false, failing).is_err());
    assert_eq!(names(), 0);
    write(&path, "one", false).unwrap();
    match write(&path, "two", false).unwrap_err() {
        FileError::Write { source, .. } => {
            assert_eq!(source.kind(), ErrorKind::AlreadyExists);
        }
        other => panic!("{other}"),
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    write(&path, "three", true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"three");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, names()), (0o600, 1));
}
