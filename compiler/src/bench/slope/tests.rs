//! Lines through records, checked against closed forms, and invalid records.

use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn record(bytes: [u64; 2], joules: &[[f64; 2]]) -> Value {
    let side =
        |bytes| json!({"name": "m", "bytes": 9, "engine": "htc 0.1.0", "touched_bytes": bytes});
    let run = |joules: f64| json!({"tokens": 11, "decode_joules": 10.0 * joules, "joules": 99.0});
    let pair = |[one, other]: &[f64; 2]| json!({"tokens": 11, "subject": run(*one), "baseline": run(*other)});
    json!({
        "kind": "benchmark", "schema": "htc-benchmark-1", "threads": 2, "kv_type": "f16",
        "machine": {"processor": "P", "system": "S", "cores": 2},
        "sensor": {"name": "GPU", "idle_watts": null},
        "subject": side(bytes[0]), "baseline": side(bytes[1]),
        "pairs": joules.iter().map(pair).collect::<Vec<_>>(),
    })
}

fn read_all(records: &[Value]) -> Result<Option<MeasuredEnergy>, BenchError> {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = records
        .iter()
        .enumerate()
        .map(|(at, record)| {
            let path = folder.path().join(format!("{at}.json"));
            fs::write(&path, record.to_string()).unwrap();
            path
        })
        .collect();
    read(&paths)
}

proptest! {
    #[test]
    fn slope_is_independent_of_task_cost(
        slope in 1e-10..1e-6_f64,
        tasks in prop::collection::vec(0.0..2.0_f64, 2..9),
    ) {
        let sizes = [[400_000_000, 1_000_000_000], [700_000_000, 1_000_000_000]];
        let records = sizes.map(|bytes| {
            let joules = tasks.iter().map(|task| bytes.map(|bytes| task + slope * bytes as f64));
            record(bytes, &joules.collect::<Vec<_>>())
        });
        for records in [&records[..1], &records[1..], &records[..]] {
            let found = read_all(records).unwrap().unwrap();
            let apart = 1e-6 * slope.max(1e-8);
            prop_assert!((found.joules_per_byte - slope).abs() < apart, "{found:?}");
            let mean = tasks.iter().sum::<f64>() / tasks.len() as f64;
            prop_assert!((found.joules_per_token - mean).abs() < 1e-3, "{found:?} {mean}");
            let (low, high) = found.interval.unwrap();
            prop_assert!((low - slope).abs() < apart && (high - slope).abs() < apart);
            prop_assert_eq!(found.pairs, tasks.len() * records.len());
        }
    }
}

/// Δx = 2 for both, Δy = 4 and 8.
#[test]
fn pairs_of_different_slopes_have_an_interval() {
    let found = read_all(&[record([3, 1], &[[5.0, 1.0], [9.0, 1.0]])])
        .unwrap()
        .unwrap();
    assert!((found.joules_per_byte - 3.0).abs() < 1e-12, "{found:?}");
    assert!((found.joules_per_token + 2.0).abs() < 1e-12, "{found:?}");
    assert_eq!(found.interval, Some((2.0, 4.0)));
    assert_eq!((found.pairs, &found.sensor[..]), (2, "GPU"));
    let one = read_all(&[record([3, 1], &[[5.0, 1.0]])]).unwrap().unwrap();
    assert_eq!((one.joules_per_byte, one.interval), (2.0, None));
    assert_ne!(one.digest, found.digest);
    let mut holed = record([3, 1], &[[5.0, 1.0], [9.0, 1.0]]);
    holed["pairs"][1]["baseline"]["decode_joules"] = Value::Null;
    assert_eq!(read_all(&[holed]).unwrap().unwrap().joules_per_byte, 2.0);
    assert_eq!(read_all(&[]).unwrap(), None);
}

#[test]
fn unusable_records_are_rejected_with_the_reason() {
    type Change = fn(&mut Value);
    let changes: [(Change, &[&str]); 13] = [
        (
            |r| r["kind"] = json!("analysis"),
            &["`analysis`", "benchmark"],
        ),
        (
            |r| r["schema"] = json!("htc-benchmark-2"),
            &["htc-benchmark-2"],
        ),
        (
            |r| r["sensor"] = Value::Null,
            &["without a sensor", "`sensor`"],
        ),
        (
            |r| r["baseline"] = Value::Null,
            &["one model alone", "`against`"],
        ),
        (
            |r| r["baseline"]["engine"] = json!("llama.cpp\u{1b}[2J"),
            &["htc 0.1.0 and llama.cpp"],
        ),
        (
            |r| r["baseline"]["touched_bytes"] = Value::Null,
            &["does not say them"],
        ),
        (
            |r| r["baseline"]["touched_bytes"] = json!(995),
            &["1000 and 995", "1 %"],
        ),
        (
            |r| r["baseline"]["touched_bytes"] = json!(-1),
            &["line 1", "-1"],
        ),
        (|r| r["pairs"] = json!([]), &["0 pairs without"]),
        (
            |r| r["pairs"][0]["subject"]["decode_joules"] = json!(0.0),
            &["1 pairs without"],
        ),
        (
            |r| r["pairs"][0]["subject"]["tokens"] = json!(1),
            &["1 pairs without"],
        ),
        (
            |r| r["pairs"][0]["subject"]["decode_joules"] = json!("much"),
            &["line 1", "much"],
        ),
        (
            |r| r["pairs"][0]["subject"]["decode_joules"] = json!(1e-3),
            &["-", "more pairs"],
        ),
    ];
    let good = record([1000, 500], &[[2.0, 1.0]]);
    assert!(read_all(std::slice::from_ref(&good)).is_ok());
    for (change, words) in changes {
        let mut wrong = good.clone();
        change(&mut wrong);
        let said = read_all(&[wrong]).unwrap_err().to_string();
        assert!(said.contains("0.json"), "{said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains(['\n', '\u{1b}']), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.json");
    for text in [&b""[..], b"{}", b"[1]", b"\xff", &[b'['; 100_000]] {
        fs::write(&path, text).unwrap();
        let error = read(std::slice::from_ref(&path)).unwrap_err();
        assert!(
            matches!(error, BenchError::File(FileError::Syntax { .. })),
            "{error}"
        );
    }
    let large = fs::File::create(&path).unwrap();
    large.set_len(MAX_FILE + 1).unwrap();
    let error = read(std::slice::from_ref(&path)).unwrap_err();
    assert!(
        matches!(error, BenchError::File(FileError::TooLarge { .. })),
        "{error}"
    );
    let pairs = record([1000, 500], &vec![[2.0, 1.0]; MAX_PAIRS + 1]);
    let error = read_all(&[pairs]).unwrap_err();
    assert!(
        matches!(error, BenchError::File(FileError::TooLarge { .. })),
        "{error}"
    );
    let absent = read(&[folder.path().join("no.json")]).unwrap_err();
    assert!(
        matches!(absent, BenchError::File(FileError::Read { .. })),
        "{absent}"
    );
    let twice = record([1000, 500], &[[2.0, 1.0]]);
    let error = read_all(&[twice.clone(), twice]).unwrap_err();
    assert!(matches!(error, BenchError::DuplicateRecord(_)), "{error}");
    let many = read(&vec![path; MAX_FILES + 1]).unwrap_err();
    assert!(matches!(many, BenchError::TooManyRecords(17)), "{many}");
}

#[test]
fn records_of_different_machines_are_rejected() {
    let good = record([1000, 500], &[[2.0, 1.0]]);
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 6] = [
        (
            |r| r["sensor"]["name"] = json!("another"),
            "sensor is another",
        ),
        (|r| r["machine"]["processor"] = Value::Null, "processor"),
        (|r| r["machine"]["system"] = json!("T"), "system is T"),
        (|r| r["threads"] = json!(3), "number of threads is 3"),
        (|r| r["kv_type"] = json!("f32"), "KV cache type is f32"),
        (
            |r| {
                r["subject"]["engine"] = json!("htc 9");
                r["baseline"]["engine"] = json!("htc 9");
            },
            "htc 9",
        ),
    ];
    for (change, word) in changes {
        let mut other = good.clone();
        change(&mut other);
        let said = read_all(&[good.clone(), other]).unwrap_err().to_string();
        assert!(
            said.contains(word) && said.contains("1.json") && said.contains("0.json"),
            "{said}"
        );
    }
    let again = record([1000, 500], &[[2.1, 1.0]]);
    assert_eq!(read_all(&[good, again]).unwrap().unwrap().pairs, 2);
}
