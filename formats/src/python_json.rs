//! JSON as Python writes it, with `Infinity`, `-Infinity` and `NaN`, which the standard does not
//! have.

use std::borrow::Cow;

use serde_json::Value;

/// Key of an object that stands for a number that is not finite, as in transformers 5.
const FLOAT: &str = "__float__";

const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Returns standard JSON, in which a number that is not finite is an object such as
/// `{"__float__": "Infinity"}`. Text in strings is unchanged.
pub(crate) fn standard(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        if byte == b'"' {
            at += string_length(&json[at..]);
            continue;
        }
        let rest = &json[at..];
        let Some(number) = NUMBERS.iter().find(|n| rest.starts_with(n.as_bytes())) else {
            at += 1;
            continue;
        };
        out.extend_from_slice(&json[copied..at]);
        out.extend_from_slice(format!("{{\"{FLOAT}\":\"{number}\"}}").as_bytes());
        at += number.len();
        copied = at;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(&json[copied..]);
    Cow::Owned(out)
}

/// Returns the length of the string that `json` begins with, including its quotes.
fn string_length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = json.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    json.len()
}

/// Returns the name of the number that is not finite, if a value stands for one.
pub(crate) fn not_finite(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object
        .get(FLOAT)?
        .as_str()
        .filter(|name| NUMBERS.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_become_objects() {
        let json = br#"{"a": [0.0, Infinity], "b": -Infinity, "NaN \" Infinity": NaN, "c": "NaN"}"#;
        let value: Value = serde_json::from_slice(&standard(json)).unwrap();
        assert_eq!(not_finite(&value["a"][1]), Some("Infinity"));
        assert_eq!(not_finite(&value["b"]), Some("-Infinity"));
        assert_eq!(not_finite(&value["NaN \" Infinity"]), Some("NaN"));
        assert_eq!(value["c"], "NaN");
        assert_eq!(not_finite(&value["c"]), None);
    }

    #[test]
    fn standard_json_is_borrowed() {
        for json in [&b"{\"a\": \"Infinity\"}"[..], b"", b"\"open", b"\"\\"] {
            assert!(matches!(standard(json), Cow::Borrowed(same) if same == json));
        }
    }
}
