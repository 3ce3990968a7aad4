use serde_json::json;

use super::*;
use crate::limits::{MAX_LAYERS, MAX_TEXTS_OF_MANIFEST};
use crate::model::SlidingWindow;

#[test]
fn values_are_those_of_serde_json() {
    let value = json!({
        "list": [null, true, 1, -2, 0.25, 1e300, "é\n"],
        "object": {"empty": {}, "none": [], "largest": u64::MAX},
    });
    assert_eq!(parse(&value.to_string(), 15).unwrap(), value);
    assert_eq!(parse(" -0.0 ", 1).unwrap(), json!(-0.0));
    for text in ["", "{", "{} {}", "[1,]", "\"\n\""] {
        assert!(parse(text, 15).is_err(), "{text}");
    }
    assert!(parse(&"[".repeat(100_000), usize::MAX).is_err());
}

#[test]
fn every_value_counts() {
    for (text, count) in [
        ("null", 1),
        ("[]", 1),
        ("[[], {}]", 3),
        ("{\"a\": {\"b\": [1, \"2\", null]}}", 6),
    ] {
        assert!(parse(text, count).is_ok(), "{text}");
        let message = parse(text, count - 1).unwrap_err().to_string();
        let expected = format!("expected at most {} values in all, found more", count - 1);
        assert!(message.starts_with(&expected), "{text}: {message}");
    }
}

#[test]
fn repeated_keys_are_refused_in_every_object() {
    for text in [
        "{\"a\": 1, \"b\": 2, \"a\": 1}",
        "[{\"x\": [{\"a\": 1, \"\\u0061\": []}]}]",
    ] {
        let message = parse(text, 100).unwrap_err().to_string();
        let expected = "duplicate field `a`, expected every key once";
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    assert!(parse("[{\"a\": {\"a\": 1}}, {\"a\": 2}]", 100).is_ok());
}

#[test]
fn lists_are_bounded() {
    let read = |text: &str| -> Result<Vec<String>, Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        list::<_, _, MAX_TEXTS_OF_MANIFEST>(&mut deserializer)
    };
    assert_eq!(read("[\"a\", \"\"]").unwrap(), ["a", ""]);
    assert!(read("[1]").is_err() && read("\"a\"").is_err());
    let many = |count| serde_json::to_string(&vec![""; count]).unwrap();
    assert!(read(&many(MAX_TEXTS_OF_MANIFEST)).is_ok());
    let message = read(&many(MAX_TEXTS_OF_MANIFEST + 1))
        .unwrap_err()
        .to_string();
    assert!(message.contains("at most 65536 items"), "{message}");
    let with_layers = |count| {
        let json = json!({"positions": 1, "full_layers": vec![0; count]});
        serde_json::from_str::<SlidingWindow>(&json.to_string())
    };
    assert!(with_layers(MAX_LAYERS).is_ok());
    let message = with_layers(MAX_LAYERS + 1).unwrap_err().to_string();
    assert!(message.contains("at most 4096 items"), "{message}");
}
