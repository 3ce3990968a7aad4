use super::*;

fn trace(text: &[u8]) -> Result<Trace, LiveError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, text).unwrap();
    Trace::read(&path)
}

#[test]
fn dates_are_converted_to_seconds() {
    let between = |a: &str, b: &str| parse_seconds(b).unwrap() - parse_seconds(a).unwrap();
    for (a, b, expected) in [
        ("2026/04/2823:41:52.500", "2026/04/28 23:41:53.75", 1.25),
        ("2026-04-28T23:59:59", "2026-04-29T00:00:01", 2.0),
        ("2024/02/28 00:00:00", "2024/03/01 00:00:00", 2.0 * 86400.0),
        ("2100/02/28 00:00:00", "2100/03/01 00:00:00", 86400.0),
        ("1970-01-01 00:00:00", "2000-01-01 00:00:00", 946_684_800.0),
        ("2025/12/31 12:00:00", "2026/01/01 12:00:00", 86400.0),
        ("1.5", "-2", -3.5),
    ] {
        assert_eq!(between(a, b), expected, "{a} {b}");
    }
    for wrong in [
        "",
        "soon",
        "nan",
        "inf",
        "1e300",
        "2026/04-28 1:2:3",
        "2026/13/01 1:2:3",
        "2026/04/28 24:00:00",
        "2026/04/28 1:60:00",
        "2026/04/28 1:2",
        "2026/04/28 1:2:3:4",
        "2026/04/28 -1:2:3",
        "2026/0é/28 1:2:3",
        "2026/04/28 1:2:inf",
        "+026/04/28 1:2:3",
    ] {
        assert_eq!(parse_seconds(wrong), None, "{wrong}");
    }
}

#[test]
fn columns_are_found_by_name() {
    let smi = "\u{feff}timestamp, power.draw [W], name, temperature.gpu\r\n\
                   2026/04/28 23:41:52.000, 88.20 W, X, 41\r\n\
                   2026/04/28 23:41:53.500, [N/A], X, 255\r\n";
    let found = trace(smi.as_bytes()).unwrap();
    let row = |at, temperature, power| Reading {
        time: Duration::from_secs_f64(at),
        temperature,
        power,
        energy: None,
    };
    assert_eq!(
        found.readings(),
        [
            row(0.0, Some(41.0), Some(88.2)),
            row(1.5, Some(255.0), None)
        ]
    );
    let plain = trace(b"time,temperature,energy_J\n10,50,7\n10,,8\n11,NaN,9").unwrap();
    assert_eq!(plain.readings()[1].temperature, None);
    assert!(plain.readings()[2].temperature.is_some_and(f64::is_nan));
    assert_eq!(plain.readings()[2].energy, Some(9.0));
    assert_eq!(plain.duration(), Duration::from_secs(1));
}

#[test]
fn errors_name_the_line() {
    let long = [b"time,power\n1,2\n".to_vec(), vec![b'9'; MAX_LINE + 1]].concat();
    let wide = ["time,power"]
        .iter()
        .chain([&",x"; MAX_COLUMNS])
        .copied()
        .collect::<String>();
    let cases: [(&[u8], usize, &str); 16] = [
        (b"", 1, "empty file"),
        (b"time,power\n", 2, "found none"),
        (b"power\n1\n", 1, "no column of time"),
        (b"time,volts\n1,2\n", 1, "no column of temperature or power"),
        (b"time,power,power_W\n1,2,3\n", 1, "say the same"),
        (b"time,power\n1,2\n2\n", 3, "expected 2 columns, found 1"),
        (
            b"time,power\n1,2\n2,3,4,5\n",
            3,
            "expected 2 columns, found more",
        ),
        (b"time,power\n1,2\n\n2,3\n", 3, "expected 2 columns"),
        (b"time,power\n1,warm\n", 2, "power is `warm`"),
        (b"time,power\n1,\"2\"\n", 2, "power is"),
        (b"time,power\nyesterday,2\n", 2, "time is `yesterday`"),
        (b"time,power\n1,2\n0.5,2\n", 3, "goes back by 0.5 s"),
        (b"time,power\nNaN,2\n", 2, "time is"),
        (b"time,power\n1,\xff\n", 2, "not UTF-8"),
        (&long, 3, "longer than 4096"),
        (wide.as_bytes(), 1, "columns, at most 512"),
    ];
    for (text, at, said) in cases {
        match trace(text).unwrap_err() {
            LiveError::Trace {
                line,
                problem: what,
                ..
            } => {
                assert!(line == at && what.contains(said), "{line}: {what}");
            }
            other => panic!("{other}"),
        }
    }
    let fault = trace(&vec![b'1'; 1 << 24]).unwrap_err().to_string();
    assert!(fault.contains("line 1") && fault.len() < 300, "{fault}");
    let fault = trace(b"time,power\n1,\x1b[2J\n").unwrap_err().to_string();
    assert!(!fault.contains('\u{1b}'), "{fault}");
}

#[cfg(unix)]
#[test]
fn non_regular_files_are_rejected_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.csv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let absent = folder.path().join("absent.csv");
    for path in [&pipe, &absent, folder.path(), Path::new("/dev/zero")] {
        let fault = Trace::read(path).unwrap_err();
        assert!(matches!(fault, LiveError::Open(_)), "{fault}");
        let name = path.display().to_string();
        assert!(fault.to_string().contains(&name), "{fault}");
    }
}

#[test]
fn rows_are_bounded() {
    let mut text = b"time,power\n".to_vec();
    text.extend(b"1,2\n".repeat(MAX_ROWS));
    assert_eq!(trace(&text).unwrap().readings().len(), MAX_ROWS);
    text.extend(b"1,2\n");
    assert!(trace(&text).unwrap_err().to_string().contains("more than"));
}

#[test]
fn rows_are_valid_until_the_next_and_the_trace_ends() {
    let played = trace(b"time,temperature\n100,40\n102,60\n104,50\n").unwrap();
    let clock = Clock::manual();
    clock.advance(Duration::from_secs(7));
    let mut sensor = TraceSensor::new(played, clock.clone());
    let mut said = Vec::new();
    for _ in 0..7 {
        said.push(sensor.read().ok().and_then(|reading| reading.temperature));
        clock.advance(Duration::from_secs(1));
    }
    let expected = [40.0, 40.0, 60.0, 60.0, 50.0, 50.0, 50.0].map(Some);
    assert_eq!(said, expected);
    let ended = sensor.read().unwrap_err();
    assert!(
        matches!(ended, LiveError::TraceEnded { seconds: 4.0, .. }),
        "{ended}"
    );
    let mut single = TraceSensor::new(trace(b"time,power\n0,1\n").unwrap(), clock.clone());
    assert_eq!(single.read().unwrap().power, Some(1.0));
    clock.advance(Duration::from_millis(1001));
    assert!(single.read().is_err());
}

proptest::proptest! {
    #[test]
    fn reader_never_panics(text in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = trace(&text);
        let _ = trace(&[b"time,power,temperature\n", &text[..]].concat());
    }
}
