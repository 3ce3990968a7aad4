use super::*;

#[test]
fn long_messages_keep_their_ends() {
    assert_eq!(shorten_message("short"), "short");
    assert_eq!(shorten_message("a\nb\u{9b}"), "a\\nb\\u{9b}");
    let long = format!("what {} remedy", "ü".repeat(60_000));
    let bounded = shorten_message(&long);
    assert!(bounded.starts_with("what ") && bounded.ends_with(" remedy"));
    assert!(bounded.chars().count() < 1100);
}

#[test]
fn json_is_escaped_by_its_own_rules() {
    let hostile = "a\u{1b}\u{9b}\u{7f}\u{202e}\u{e0041}ü\"\n";
    let value = serde_json::json!({"list": [hostile, 1, null], hostile: {"empty": []}});
    let mut bytes = Vec::new();
    write_json(&value, &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.chars().all(|c| is_plain(c) || c == '\n'), "{text}");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        value
    );
    let plain = serde_json::json!({"a": [1, 2], "b": {"c": "ü"}});
    let mut bytes = Vec::new();
    write_json(&plain, &mut bytes).unwrap();
    let expected = serde_json::to_string_pretty(&plain).unwrap() + "\n";
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}
