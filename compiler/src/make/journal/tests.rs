use super::*;
use std::fs;
use std::path::Path;

fn digest(of: u8) -> Digest {
    Digest::of_bytes(&[of])
}

fn work(folder: &Path) -> WorkFolder {
    WorkFolder::open(&folder.join("a.htz"), Progress::silent()).unwrap()
}

fn read(artifact: &Artifact) -> (ResumeState<Vec<f64>>, Journal) {
    artifact.journal(Progress::silent()).unwrap()
}

#[test]
fn journal_resumes_after_its_last_complete_line() {
    let folder = tempfile::tempdir().unwrap();
    let work = work(folder.path());
    let artifact = work.artifact(digest(0));
    let (left, mut journal) = read(&artifact);
    assert!(left.tensors.is_empty() && left.steps.is_empty());
    let found = vec![0.1 + 0.2, 1e-308, 5e300];
    journal.record_tensor(digest(1)).unwrap();
    journal.record_step(3, &found).unwrap();
    drop(journal);
    let path = artifact.path(&artifact.name("journal"));
    let whole = fs::read(&path).unwrap();
    for torn in ["{\"tensor\":\"12", "\n", "{\"step\":[4,[1.0]]}", "ä\n\n"] {
        fs::write(&path, [&whole[..], torn.as_bytes()].concat()).unwrap();
        let (left, mut journal) = read(&artifact);
        assert_eq!(left.tensors, [digest(1)]);
        assert_eq!(left.steps, [(3, found.clone())]);
        journal.record_tensor(digest(2)).unwrap();
        let (left, _) = read(&artifact);
        assert_eq!(left.tensors, [digest(1), digest(2)], "{torn:?}");
    }
}

#[test]
fn only_lines_sealed_in_sequence_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let work = work(folder.path());
    let artifact = work.artifact(digest(0));
    let (_, mut journal) = read(&artifact);
    for of in 1..4 {
        journal.record_tensor(digest(of)).unwrap();
    }
    let path = artifact.path(&artifact.name("journal"));
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let [one, two, three] = lines[..] else {
        panic!("{text}");
    };
    let changed = two.replacen("tensor\":\"", "tensor\":\"0", 1);
    let bare = two.split_once(' ').unwrap().1;
    for (planted, believed) in [
        ([one, three, two], 1),
        ([two, one, three], 0),
        ([one, &changed, three], 1),
        ([one, bare, three], 1),
        ([one, two, two], 2),
        ([one, two, three], 3),
    ] {
        fs::write(&path, planted.concat()).unwrap();
        assert_eq!(read(&artifact).0.tensors.len(), believed, "{planted:?}");
    }
    let other = work.artifact(digest(9));
    fs::write(other.path(&other.name("journal")), &text).unwrap();
    assert_eq!(read(&other).0.tensors.len(), 0);
    artifact.store_measurements(digest(5), &0.5).unwrap();
    let note = artifact.path(&artifact.name(&format!("{}.json", digest(5))));
    let sealed = fs::read_to_string(&note).unwrap();
    for planted in [
        sealed.replace("0.5", "0.1"),
        "0.1".to_owned(),
        String::new(),
    ] {
        fs::write(&note, planted).unwrap();
        assert_eq!(artifact.measurements::<f64>(digest(5)), None);
    }
}
