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
fn both_files_are_written_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let contents = || {
        let read = |path: &Path| fs::read_to_string(path).ok();
        [read(&first), read(&second)]
    };
    let write = |texts: [&str; 2], replace: bool| {
        write_both([(&first, texts[0]), (&second, texts[1])], replace)
    };
    for taken in [&first, &second] {
        fs::write(taken, "mine").unwrap();
        let before = contents();
        assert!(write(["1", "2"], false).is_err());
        assert_eq!(contents(), before);
        fs::remove_file(taken).unwrap();
    }
    write(["1", "2"], false).unwrap();
    write(["3", "4"], true).unwrap();
    assert_eq!(contents(), ["3", "4"].map(|text| Some(text.to_owned())));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
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
