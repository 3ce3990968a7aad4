use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use htc_formats::bands::CodeKind;
use htc_formats::model::MatrixId;
use htc_tests::artifact::Artifact;
use htc_tests::material::words;
use htc_tests::{Htc, Scratch, htc};

use super::plan::wide;

/// Trellises take some milliseconds each.
fn compile(scratch: &Scratch, threads: &str) -> Htc {
    compile_as(scratch, threads, &["--effort", "fast", "--tune", "0"])
}

fn compile_as(scratch: &Scratch, threads: &str, effort: &[&str]) -> Htc {
    let model = scratch.path("model.gguf");
    if !model.exists() {
        scratch.file("model.gguf", wide(4).bytes());
        scratch.file("words.txt", words(20_000));
    }
    htc!["compile", &model, "-o", scratch.path("out.htz")]
        .args(["--method", "quantise", "--codes", "trellis"])
        .args(["--target-size", "350kB"])
        .args(effort)
        .args(["--context", "64", "--calibration-tokens", "8192"])
        .args(["--calibration".into(), scratch.path("words.txt")])
        .args(["--cache".into(), scratch.path("cache")])
        .args(["--threads", threads])
}

fn undisturbed() -> Vec<u8> {
    let scratch = Scratch::new();
    compile(&scratch, "1").run().assert_ok();
    let path = scratch.path("out.htz");
    let manifest = Artifact::open(&path).manifest;
    let projections = manifest.tensors.iter().filter(|t| {
        let matrix = MatrixId::from_role(t.role);
        matrix.is_some_and(|(matrix, _)| matches!(matrix, MatrixId::Projection { .. }))
    });
    let mut codes = projections.map(|t| t.codes.as_ref());
    assert!(codes.all(|codes| codes.is_some_and(|codes| codes.contains_kind(CodeKind::Trellis))));
    fs::read(path).unwrap()
}

fn journals(scratch: &Scratch) -> BTreeMap<PathBuf, String> {
    let entries = fs::read_dir(scratch.path(".out.htz.htc-work"));
    let paths = entries.into_iter().flatten().map(|e| e.unwrap().path());
    let journals = paths.filter(|path| path.extension().is_some_and(|e| e == "journal"));
    let whole = |path: PathBuf| {
        let mut said = fs::read_to_string(&path).ok()?;
        said.truncate(said.rfind('\n').map_or(0, |end| end + 1));
        Some((path, said))
    };
    journals.filter_map(whole).collect()
}

fn lines(journals: &BTreeMap<PathBuf, String>) -> usize {
    let of_each = journals.values().map(|said| said.matches('\n').count());
    of_each.sum()
}

fn kill_when(mut child: Child, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "finished too soon");
        assert!(started.elapsed() < Duration::from_secs(60), "no progress");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "finished too soon");
}

#[test]
fn killed_trellis_coding_resumes() {
    let scratch = Scratch::new();
    let expected = undisturbed();
    for more in [8, 12] {
        let before = journals(&scratch);
        let enough = lines(&before) + more;
        kill_when(compile(&scratch, "2").spawn(), || {
            let now = journals(&scratch);
            // A repeated step would write the same line again.
            for (path, said) in &before {
                let kept = now.get(path).is_some_and(|now| now.starts_with(said));
                assert!(kept, "{}: {now:?}", path.display());
            }
            lines(&now) >= enough
        });
        assert!(!scratch.path("out.htz").exists());
    }
    compile(&scratch, "1").run().assert_ok();
    assert!(fs::read(scratch.path("out.htz")).unwrap() == expected);
    assert!(!scratch.path(".out.htz.htc-work").exists());
}

fn steps(scratch: &Scratch, prefix: &str) -> BTreeMap<PathBuf, SystemTime> {
    let files = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let is_named = |path: &Path, prefix: &str| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix))
    };
    let entries = files(&scratch.path("cache")).into_iter();
    let entries = entries.filter(|folder| is_named(folder, "gradients-"));
    let all = entries.flat_map(|folder| files(&folder));
    let written = |path: PathBuf| Some((path.clone(), fs::metadata(path).ok()?.modified().ok()?));
    all.filter(|path| is_named(path, prefix))
        .filter_map(written)
        .collect()
}

#[track_caller]
fn assert_not_rewritten(
    before: &BTreeMap<PathBuf, SystemTime>,
    after: &BTreeMap<PathBuf, SystemTime>,
) {
    assert!(!before.is_empty());
    for (path, written) in before {
        assert_eq!(after.get(path), Some(written), "{}", path.display());
    }
}

#[test]
fn killed_backward_pass_resumes() {
    let scratch = Scratch::new();
    let expected = undisturbed();
    kill_when(compile(&scratch, "1").spawn(), || {
        steps(&scratch, "stream-0002").len() == 1
    });
    assert!(steps(&scratch, "outputs-").is_empty());
    let forwards = steps(&scratch, "stream-0001");
    kill_when(compile(&scratch, "2").spawn(), || {
        steps(&scratch, "outputs-").len() >= 2
    });
    assert_not_rewritten(&forwards, &steps(&scratch, "stream-0001"));
    let backwards = steps(&scratch, "outputs-");
    assert!(backwards.len() < 6, "{backwards:?}");
    compile(&scratch, "1").run().assert_ok();
    let finished = steps(&scratch, "outputs-");
    assert_eq!(finished.len(), 6, "{finished:?}");
    assert_not_rewritten(&backwards, &finished);
    assert!(fs::read(scratch.path("out.htz")).unwrap() == expected);
}

#[test]
fn compilation_killed_at_any_time_resumes() {
    let tuned =
        |scratch: &Scratch| compile_as(scratch, "2", &["--effort", "normal", "--tune", "6"]);
    let undisturbed = Scratch::new();
    let started = Instant::now();
    tuned(&undisturbed).run().assert_ok();
    let whole = started.elapsed();
    let scratch = Scratch::new();
    let (mut after, mut kills) = (whole / 40, 0);
    let ended_by_itself = loop {
        let mut child = tuned(&scratch).spawn();
        sleep(after);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break true;
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if scratch.path("out.htz").exists() {
            break status.success();
        }
        kills += 1;
        after = (after + whole / 20).min(whole / 2);
        assert!(kills < 200, "no progress");
    };
    assert!(kills > 3, "{kills}");
    let [expected, found] =
        [&undisturbed, &scratch].map(|of| fs::read(of.path("out.htz")).unwrap());
    assert!(found == expected);
    assert!(!ended_by_itself || !scratch.path(".out.htz.htc-work").exists());
}
