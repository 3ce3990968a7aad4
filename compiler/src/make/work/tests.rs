use super::*;
use std::fs;

fn digest(of: u8) -> Digest {
    Digest::of_bytes(&[of])
}

fn open(output: &Path) -> Result<WorkFolder, HtzError> {
    WorkFolder::open(output, Progress::silent())
}

#[test]
fn work_folder_is_exclusive_and_removed_on_drop() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("a.htz");
    let count = || fs::read_dir(folder.path()).unwrap().count();
    let work = open(&output).unwrap();
    let second = open(&output).unwrap_err().to_string();
    assert!(second.contains("another htc"), "{second}");
    work.artifact(digest(1))
        .store_measurements(digest(2), &1.5)
        .unwrap();
    assert_eq!(count(), 1);
    assert!(WorkFolder::bytes(&output) >= 3);
    assert_eq!(work.artifact(digest(1)).measurements(digest(2)), Some(1.5));
    assert_eq!(
        work.artifact(digest(1)).measurements::<f64>(digest(3)),
        None
    );
    drop(work);
    assert_eq!(count(), 0);
    assert!(!open(&output).unwrap().keep());
    assert_eq!(count(), 0);
}

#[cfg(unix)]
#[test]
fn only_files_of_a_work_folder_are_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let output = scratch.path().join("a.htz");
    let precious = scratch.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "precious").unwrap();
    let work = open(&output).unwrap();
    let path = work.path().to_owned();
    std::os::unix::fs::symlink(&precious, path.join("x.journal")).unwrap();
    fs::write(path.join("of somebody"), "").unwrap();
    drop(work);
    assert_eq!(fs::read(precious.join("file")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
}

#[test]
fn old_work_is_removed_and_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let made = |name: &str, age: Duration| {
        let work = open(&path(name)).unwrap();
        work.artifact(digest(1))
            .store_measurements(digest(2), &1.5)
            .unwrap();
        for entry in fs::read_dir(work.path()).unwrap() {
            let file = File::options().write(true).open(entry.unwrap().path());
            file.unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        work
    };
    let _held = made("held.htz", 2 * MAX_IDLE_AGE);
    assert!(made("new.htz", MAX_IDLE_AGE / 2).keep());
    assert!(made("old.htz", 2 * MAX_IDLE_AGE).keep());
    let said = std::sync::Mutex::new(Vec::new());
    let tell = |event: Event| said.lock().unwrap().push(format!("{event:?}"));
    let cancel = crate::event::CancellationToken::default();
    drop(WorkFolder::open(&path("another.htz"), Progress::new(&tell, &cancel)).unwrap());
    let said = said.into_inner().unwrap().concat();
    assert!(said.contains(".old.htz.htc-work: removed"), "{said}");
    let names = Folder::open(scratch.path()).unwrap().names().unwrap();
    assert_eq!(names, [".held.htz.htc-work", ".new.htz.htc-work"]);
}

#[test]
fn long_artifact_names_get_short_folder_names() {
    let long = work_folder_name(Path::new(&"ä".repeat(127)));
    assert!(long.len() < 100);
    let other = format!("{}b", "ä".repeat(126));
    assert_ne!(work_folder_name(Path::new(&other)), long);
    assert_eq!(work_folder_name(Path::new("x/a.htz")), ".a.htz.htc-work");
}
