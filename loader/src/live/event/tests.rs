use super::*;

fn event(what: EventKind) -> Event {
    Event {
        at: 1.5,
        unix: 1e9,
        temperature: Some(f64::NAN),
        power: None,
        fraction: 0.5,
        what,
    }
}

fn lost(first: bool) -> EventKind {
    EventKind::Lost {
        quantities: vec![Quantity::Temperature, Quantity::Power],
        reason: "a \"quote\"\n".to_owned(),
        first,
    }
}

#[test]
fn lines_are_flat_json_and_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.ndjson");
    let mut file = EventsFile::create(&path, false).unwrap();
    let events = [
        EventKind::Start {
            sensor: "s".to_owned(),
            notes: Vec::new(),
        },
        EventKind::Change {
            why: LimitReason::PowerCap,
        },
        lost(true),
        EventKind::Stop,
    ];
    for (number, what) in events.into_iter().enumerate() {
        file.write(&event(what)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), number + 1);
        assert!(text.ends_with('\n'));
    }
    assert!(file.is_complete());
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[1]["event"], "change");
    assert_eq!(lines[1]["why"], "power_cap");
    assert_eq!(lines[1]["at"], 1.5);
    assert!(lines[1]["temperature"].is_null());
    assert_eq!(lines[2]["quantities"][1], "power");
    assert_eq!(lines[2]["reason"], "a \"quote\"\n");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn each_warning_is_given_once() {
    assert!(
        event(lost(true))
            .warning()
            .unwrap()
            .contains("temperature and power")
    );
    assert_eq!(event(lost(false)).warning(), None);
    assert!(event(EventKind::Beyond { first: true }).warning().is_some());
    assert_eq!(event(EventKind::Beyond { first: false }).warning(), None);
    assert_eq!(event(EventKind::Stop).warning(), None);
}

#[cfg(unix)]
#[test]
fn existing_files_are_not_written_to() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("other"), "other").unwrap();
    symlink("other", at("link")).unwrap();
    for name in ["other", "link"] {
        let taken = EventsFile::create(&at(name), false);
        assert!(matches!(taken, Err(LiveError::Exists { .. })), "{name}");
    }
    let mut file = EventsFile::create(&at("link"), true).unwrap();
    file.write(&event(EventKind::Stop)).unwrap();
    assert_eq!(fs::read_to_string(at("other")).unwrap(), "other");
    assert!(fs::symlink_metadata(at("link")).unwrap().is_file());
    fs::hard_link(at("other"), at("twin")).unwrap();
    EventsFile::create(&at("other"), true)
        .unwrap()
        .write(&event(EventKind::Stop))
        .unwrap();
    assert_eq!(fs::read_to_string(at("twin")).unwrap(), "other");

    symlink("/dev/null", at("null")).unwrap();
    for place in [Path::new("/dev/null"), &at("null"), folder.path()] {
        let refused = EventsFile::create(place, true);
        assert!(
            matches!(refused, Err(LiveError::NotAFile { .. })),
            "{refused:?}"
        );
    }
    let nowhere = EventsFile::create(&at("no/such"), true);
    assert!(matches!(nowhere, Err(LiveError::Create { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_reported_once() {
    let mut file = EventsFile {
        path: "full".into(),
        file: File::options().write(true).open("/dev/full").unwrap(),
        complete_bytes: Some(0),
    };
    let fault = file.write(&event(EventKind::Stop)).unwrap_err().to_string();
    assert!(
        fault.contains("full") && fault.contains("no more"),
        "{fault}"
    );
    assert!(file.write(&event(EventKind::Stop)).is_ok() && !file.is_complete());
}
