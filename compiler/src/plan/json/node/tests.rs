use super::*;

#[test]
fn keys_and_items_know_their_lines() {
    let text =
        "{\"a\": 1,\n \"b\": [\n  {\"x\": [1,\n 2]}, \"],\\\"\",\n  3],\n\n\"c\": {}, \"b\": []}";
    let key = |line, items: &[usize]| KeyLines {
        line,
        items: items.to_vec(),
    };
    assert_eq!(
        lines(text),
        [key(1, &[]), key(2, &[3, 4, 5]), key(7, &[]), key(7, &[])]
    );
    let Node::Object(entries) = serde_json::from_str(text).unwrap() else {
        panic!("an object");
    };
    let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "b"]);
}

#[test]
fn quoted_text_stays_on_one_line() {
    let long = quoted(&"ü\n".repeat(100));
    assert!(!long.contains('\n') && long.chars().count() < 70, "{long}");
}
