use super::*;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

fn text(file: Result<File, OpenError>) -> String {
    let mut text = String::new();
    file.unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "text").unwrap();
    let pipe = Command::new("mkfifo").arg(path("pipe")).status().unwrap();
    assert!(pipe.success());
    let _socket = UnixListener::bind(path("socket")).unwrap();
    symlink("pipe", path("link to pipe")).unwrap();
    assert_eq!(text(open_regular(&path("file"))), "text");
    assert_eq!(text(open_inside(folder.path(), "file")), "text");
    assert_eq!(text(open_stream(&path("file"))), "text");
    for name in ["pipe", "socket", "link to pipe"] {
        for found in [
            open_regular(&path(name)),
            open_inside(folder.path(), name),
            open_stream(&path(name)),
        ] {
            assert!(matches!(found, Err(OpenError::NotAFile { .. })), "{name}");
        }
    }
    let device = open_regular(Path::new("/dev/zero"));
    assert!(matches!(device, Err(OpenError::NotAFile { .. })));
    let other = open_regular(folder.path());
    assert!(matches!(other, Err(OpenError::Folder { .. })));
}

#[test]
fn links_must_stay_in_their_folder_or_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("models--a--b");
    let snapshot = cache.join("snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(snapshot.join("below")).unwrap();
    fs::create_dir_all(cache.join("blobs/deeper")).unwrap();
    for name in [
        "secret",
        "models--a--b/secret",
        "models--a--b/blobs/4567",
        "models--a--b/blobs/deeper/file",
        "models--a--b/snapshots/0123/file",
        "models--a--b/snapshots/0123/below/file",
    ] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let secret = folder.path().join("secret");
    for (name, target, allowed) in [
        ("a", Path::new("../../blobs/4567"), true),
        ("b", Path::new("file"), true),
        ("c", Path::new("below/file"), true),
        ("d", Path::new("../../secret"), false),
        ("e", Path::new("../../../secret"), false),
        ("f", &secret, false),
        ("g", Path::new("../../blobs/deeper/file"), false),
        ("h", Path::new("../../blobs/../../secret"), false),
        ("i", Path::new("e"), false),
    ] {
        symlink(target, snapshot.join(name)).unwrap();
        match open_inside(&snapshot, name) {
            Ok(_) => assert!(allowed, "{name}"),
            Err(OpenError::LinkOutsideFolder { path, .. }) => {
                assert!(!allowed && path.ends_with(name), "{name}");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
    symlink(&snapshot, folder.path().join("model")).unwrap();
    assert!(open_inside(&folder.path().join("model"), "a").is_ok());
    let planted = folder.path().join("models--c--d/snapshots/0123");
    fs::create_dir_all(&planted).unwrap();
    symlink(folder.path(), folder.path().join("models--c--d/blobs")).unwrap();
    symlink("../../blobs/secret", planted.join("file")).unwrap();
    let found = open_inside(&planted, "file");
    assert!(matches!(found, Err(OpenError::LinkOutsideFolder { .. })));
    symlink("nowhere", snapshot.join("dangling")).unwrap();
    let found = open_inside(&snapshot, "dangling");
    assert!(matches!(found, Err(OpenError::Io { .. })));
}

#[test]
fn pointers_of_git_lfs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 98765\n",
        "0f".repeat(32)
    );
    fs::write(&path, &pointer).unwrap();
    let error = open_inside(folder.path(), "model.gguf").unwrap_err();
    assert!(matches!(error, OpenError::LfsPointer { .. }), "{error}");
    let error = crate::source::ModelFile::open(&path).unwrap_err();
    assert!(error.to_string().contains("git lfs pull"), "{error}");
    // A text about pointers is a text.
    let longer = pointer.repeat(8);
    fs::write(&path, &longer).unwrap();
    assert_eq!(text(open_regular(&path)), longer);
    let other = pointer.replace("version", "Version");
    fs::write(&path, &other).unwrap();
    assert_eq!(text(open_regular(&path)), other);
}
