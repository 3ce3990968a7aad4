//! Writer of artifacts: atomic, ordered and reproducible.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::htz_common::{Model, fill_in, mixed, probed};
use htc_formats::folder::Folder;
use htc_formats::htz::{Digest, Htz, HtzError, HtzWriter, Record, Section};
use htc_formats::model::Role;

fn begin(model: &Model, path: &Path, overwrite: bool) -> Result<HtzWriter, HtzError> {
    let sections = vec![Section::tokenizer(&model.vocabulary)?];
    HtzWriter::create(path, model.manifest.clone(), sections, overwrite)
}

fn write_all(writer: &mut HtzWriter, model: &Model) {
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, bytes).unwrap();
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn one_line(fault: &HtzError) -> String {
    let text = fault.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    assert!(mixed().bytes() == mixed().bytes());
}

#[test]
fn file_is_renamed_only_when_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    let mut writer = begin(&model, &path, false).unwrap();
    let partial = writer.temp_path().to_owned();
    let name = partial.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(
        name.starts_with(".htc-") && name.ends_with(".unfinished"),
        "{name}"
    );
    assert_eq!(partial.parent(), Some(folder.path()));
    write_all(&mut writer, &model);
    assert_eq!(names(folder.path()), [name]);
    let length = writer.file_length();
    writer.finish(|_| {}).unwrap();
    assert_eq!(names(folder.path()), ["model.htz"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), length);
    let htz = Htz::open(&path).unwrap();
    assert_eq!(htz.manifest().plan, model.manifest.plan);
}

mod resumed {
    use super::*;

    const PARTIAL: &str = "unfinished";

    fn resume(model: &Model, folder: &Path) -> HtzWriter {
        let sections = vec![Section::tokenizer(&model.vocabulary).unwrap()];
        let draft = model.manifest.clone();
        let folder = Arc::new(Folder::open(folder).unwrap());
        let [name, partial] = ["model.htz", PARTIAL].map(OsStr::new);
        HtzWriter::resume(&folder, name, partial, draft, sections).unwrap()
    }

    fn write(mut writer: HtzWriter, model: &Model, count: usize) -> Vec<Digest> {
        let from = writer.written_tensors().len();
        for (role, bytes) in &model.data[from..from + count] {
            writer.write_tensor(*role, bytes).unwrap();
        }
        writer
            .written_tensors()
            .iter()
            .map(|entry| entry.sha256)
            .collect()
    }

    fn finish(mut writer: HtzWriter, model: &Model, folder: &Path) {
        for (role, bytes) in &model.data[writer.written_tensors().len()..] {
            writer.write_tensor(*role, bytes).unwrap();
        }
        writer.finish(fill_in).unwrap();
        assert_eq!(names(folder), ["model.htz"]);
        assert!(fs::read(folder.join("model.htz")).unwrap() == model.bytes());
    }

    #[test]
    fn another_writer_resumes_after_any_tensor() {
        let model = mixed();
        for done in 0..=model.data.len() {
            let folder = tempfile::tempdir().unwrap();
            let digests = write(resume(&model, folder.path()), &model, done);
            assert_eq!(names(folder.path()), [PARTIAL]);
            let mut writer = resume(&model, folder.path());
            assert_eq!(writer.resume_tensors(&digests).unwrap(), done);
            finish(writer, &model, folder.path());
        }
    }

    #[test]
    fn partial_tensor_is_truncated() {
        let (model, folder) = (mixed(), tempfile::tempdir().unwrap());
        let digests = write(resume(&model, folder.path()), &model, 3);
        let partial = folder.path().join(PARTIAL);
        let mut bytes = fs::read(&partial).unwrap();
        bytes.extend([7; 100_000]);
        bytes[..8].fill(9);
        fs::write(&partial, bytes).unwrap();
        let mut writer = resume(&model, folder.path());
        assert_eq!(writer.resume_tensors(&digests).unwrap(), 3);
        finish(writer, &model, folder.path());
    }

    #[test]
    fn damaged_or_missing_tensors_are_not_taken_over() {
        let model = mixed();
        for truncated in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let digests = write(resume(&model, folder.path()), &model, 2);
            let partial = folder.path().join(PARTIAL);
            let mut bytes = fs::read(&partial).unwrap();
            if truncated {
                bytes.pop();
            } else {
                *bytes.last_mut().unwrap() ^= 1;
            }
            fs::write(&partial, bytes).unwrap();
            let mut writer = resume(&model, folder.path());
            assert_eq!(writer.resume_tensors(&digests).unwrap(), 1);
            finish(writer, &model, folder.path());
        }
    }
}

#[test]
fn publish_respects_the_overwrite_flag() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("made"), "new").unwrap();
    fs::write(path("model.htz"), "old").unwrap();
    let at = Folder::open(folder.path()).unwrap();
    let made = OsStr::new("made");
    let refused = HtzWriter::publish(&at, made, path("model.htz"), false).unwrap_err();
    assert!(matches!(refused, HtzError::Exists { .. }), "{refused}");
    assert_eq!(names(folder.path()), ["made", "model.htz"]);
    let synced = HtzWriter::publish(&at, made, path("model.htz"), true).unwrap();
    synced.unwrap();
    assert_eq!(names(folder.path()), ["model.htz"]);
    assert_eq!(fs::read(path("model.htz")).unwrap(), b"new");
}

#[test]
fn dropped_writer_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = mixed();
    let mut writer = begin(&model, &folder.path().join("model.htz"), false).unwrap();
    write_all(&mut writer, &model);
    drop(writer);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[cfg(unix)]
#[test]
fn permissions_follow_the_umask() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    mixed().write(&path, &[]).unwrap();
    let other = folder.path().join("other");
    fs::write(&other, b"").unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&other));
}

#[test]
fn a_name_without_a_folder_is_in_the_current_one() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = Path::new(folder.path().file_name().unwrap()).join("model.htz");
    mixed().write(&path, &[]).unwrap();
    let name = format!("htz_writer_{}.htz", std::process::id());
    mixed().write(Path::new(&name), &[]).unwrap();
    fs::remove_file(&name).unwrap();
}

#[test]
fn an_existing_file_is_kept_unless_it_may_be_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    fs::write(&path, b"precious").unwrap();
    let model = mixed();
    let fault = begin(&model, &path, false).unwrap_err();
    assert!(matches!(&fault, HtzError::Exists { path: found } if *found == path));
    assert!(one_line(&fault).contains("allow overwriting"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");

    let mut writer = begin(&model, &path, true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    write_all(&mut writer, &model);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    writer.finish(|_| {}).unwrap();
    Htz::open(&path).unwrap();
}

#[test]
fn file_created_meanwhile_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    let mut writer = begin(&model, &path, false).unwrap();
    write_all(&mut writer, &model);
    fs::write(&path, b"precious").unwrap();
    let fault = writer.finish(|_| {}).unwrap_err();
    assert!(matches!(fault, HtzError::Exists { .. }), "{fault}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["model.htz"]);
}

#[test]
fn an_open_artifact_survives_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    model.write(&path, &[]).unwrap();
    let open = Htz::open(&path).unwrap();
    let mut writer = begin(&model, &path, true).unwrap();
    for (role, bytes) in &model.data {
        writer.write_tensor(*role, &vec![0; bytes.len()]).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    open.verify_all(|_| {}).unwrap();
}

#[test]
fn invalid_paths_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = mixed();
    let refused = |path: &Path| begin(&model, path, true).unwrap_err();
    let missing = folder.path().join("no/such/model.htz");
    let fault = refused(&missing);
    assert!(
        matches!(&fault, HtzError::FolderMissing { path } if Some(path.as_path()) == missing.parent())
    );
    assert!(one_line(&fault).contains("create it first"));
    for path in [
        folder.path().to_owned(),
        folder.path().join("model.htz/"),
        folder.path().join(".."),
        "/".into(),
        "".into(),
    ] {
        let fault = refused(&path);
        assert!(matches!(fault, HtzError::NotAFile { .. }), "{fault}");
        one_line(&fault);
    }
    if cfg!(unix) {
        let fault = refused(Path::new("/dev/null"));
        assert!(matches!(fault, HtzError::NotAFile { .. }), "{fault}");
    }
    let fault = refused(&folder.path().join("x".repeat(300)));
    assert!(matches!(fault, HtzError::Io { .. }), "{fault}");
    assert_eq!(names(folder.path()), [""; 0]);
}

#[cfg(unix)]
#[test]
fn read_only_folder_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let set = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    set(0o555);
    let allowed = fs::write(folder.path().join("probe"), b"").is_ok();
    let result = begin(&mixed(), &folder.path().join("model.htz"), false);
    set(0o755);
    if allowed {
        println!("skipped: this user may write to any folder");
        return;
    }
    let fault = result.unwrap_err();
    assert!(matches!(fault, HtzError::NotWritable { .. }), "{fault}");
    assert!(one_line(&fault).contains("choose another folder"));
}

#[test]
fn tensors_must_follow_the_order_of_the_draft() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.htz");
    let model = mixed();
    let mut writer = begin(&model, &path, false).unwrap();
    assert_eq!(writer.next_tensor().unwrap().role, Role::TokenEmbedding);
    let fault = writer
        .write_tensor(Role::OutputNorm, &[0; 128])
        .unwrap_err();
    assert_eq!(
        one_line(&fault),
        "wrote output_norm, but it is the turn of token_embd.weight"
    );
    let bytes = &model.data[0].1;
    let fault = writer
        .write_tensor(Role::TokenEmbedding, &bytes[1..])
        .unwrap_err();
    assert!(matches!(
        fault,
        HtzError::Property {
            record: Record::Tensor(_),
            property: "length",
            ..
        }
    ));
    write_all(&mut writer, &model);
    assert!(writer.next_tensor().is_none());
    let fault = writer.write_tensor(Role::Output, bytes).unwrap_err();
    assert!(matches!(fault, HtzError::OutOfOrder { .. }));
    writer.finish(|_| {}).unwrap();
    Htz::open(&path).unwrap().verify_all(|_| {}).unwrap();
}

#[test]
fn missing_tensor_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = mixed();
    let mut writer = begin(&model, &folder.path().join("model.htz"), false).unwrap();
    for (role, bytes) in &model.data[..16] {
        writer.write_tensor(*role, bytes).unwrap();
    }
    let fault = writer.finish(|_| {}).unwrap_err();
    assert_eq!(
        one_line(&fault),
        "wrote the end of the tensors, but it is the turn of output.weight"
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

fn finished(measured: impl FnOnce(&mut htc_formats::htz::PlanRecord)) -> Result<(), HtzError> {
    let folder = tempfile::tempdir().unwrap();
    let model = mixed();
    let mut writer = begin(&model, &folder.path().join("model.htz"), false).unwrap();
    write_all(&mut writer, &model);
    let result = writer.finish(measured);
    assert_eq!(names(folder.path()).len(), usize::from(result.is_ok()));
    result
}

#[test]
fn errors_not_representable_in_json_are_refused() {
    for error in [f64::NAN, f64::INFINITY, -1.0] {
        let fault = finished(|plan| plan.projections[2].error = Some(error)).unwrap_err();
        assert!(one_line(&fault).contains("blk.0.attn_v"), "{fault}");
        assert!(matches!(
            fault,
            HtzError::Property {
                record: Record::Plan(_),
                ..
            }
        ));
    }
    let mut model = mixed();
    model.manifest.hyper.rope_theta = f32::NAN;
    let path = tempfile::tempdir().unwrap().path().join("model.htz");
    assert!(matches!(
        begin(&model, &path, false),
        Err(HtzError::Hyper(_))
    ));
}

#[test]
fn every_error_fits_its_reserved_space() {
    for error in [
        f64::MAX,
        f64::MIN_POSITIVE,
        5e-324,
        2.225_073_858_507_201_4e-308,
        0.1 + 0.2,
    ] {
        finished(|plan| {
            for projection in &mut plan.projections {
                projection.error = Some(error);
            }
        })
        .unwrap();
    }
}

#[test]
fn every_spectrum_fits_its_reserved_space() {
    for (number, refused) in [
        (f64::MAX, false),
        (5e-324, false),
        (2.225_073_858_507_201_4e-308, false),
        (f64::NAN, true),
        (f64::INFINITY, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.htz");
        let model = probed();
        let mut draft = model.clone();
        let mut geometry = model.manifest.geometry.unwrap();
        let shape = draft.manifest.geometry.as_mut().unwrap();
        for spectrum in &mut shape.spectra {
            (spectrum.largest, spectrum.energy) = (0.0, 0.0);
        }
        let mut writer = begin(&draft, &path, false).unwrap();
        write_all(&mut writer, &draft);
        for spectrum in &mut geometry.spectra {
            (spectrum.largest, spectrum.energy) = (number, number);
        }
        geometry.depth_sink.origin = htc_formats::htz::DepthSinkOrigin::Measured;
        writer.set_geometry(geometry.clone());
        match writer.finish(|_| {}) {
            Ok(()) => assert_eq!(
                Htz::open(&path).unwrap().manifest().geometry,
                Some(geometry)
            ),
            Err(fault) => {
                assert!(
                    refused
                        && matches!(
                            fault,
                            HtzError::Property {
                                record: Record::Geometry(_),
                                ..
                            }
                        ),
                    "{fault}"
                );
                assert!(one_line(&fault).contains("blk.0.attn_q"), "{fault}");
            }
        }
    }
}

#[test]
fn later_notes_exceed_the_reserved_space() {
    let fault = finished(|plan| plan.projections[0].note = Some("x".repeat(5000))).unwrap_err();
    assert!(matches!(fault, HtzError::ManifestSpace { .. }), "{fault}");
}

#[test]
fn plan_changed_at_the_end_is_checked() {
    let fault = finished(|plan| plan.projections[0].parameters_after = 1).unwrap_err();
    assert!(
        matches!(
            fault,
            HtzError::Property {
                record: Record::Plan(_),
                ..
            }
        ),
        "{fault}"
    );
}

#[test]
fn invalid_draft_is_refused_early() {
    let path = tempfile::tempdir().unwrap().path().join("model.htz");
    let mut model = mixed();
    model.manifest.requires.push("bias".to_owned());
    assert!(matches!(
        begin(&model, &path, false),
        Err(HtzError::Unsupported { .. })
    ));
    let model = mixed();
    let extra = Section::new("signature", true, b"x").unwrap();
    assert!(matches!(
        model.write(&path, &[extra]),
        Err(HtzError::Unsupported { .. })
    ));
    let twice = Section::tokenizer(&model.vocabulary).unwrap();
    assert!(matches!(
        model.write(&path, &[twice]),
        Err(HtzError::Property {
            record: Record::Section(_),
            ..
        })
    ));
    let mut model = mixed();
    model.manifest.tensors.swap(3, 4);
    assert!(matches!(
        begin(&model, &path, false),
        Err(HtzError::TensorOrder { .. })
    ));
}
