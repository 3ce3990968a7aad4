use super::*;

fn section(data: &[u8]) -> Section {
    Section::new("test", false, data).unwrap()
}

fn content_error(entry: &SectionEntry, bytes: &[u8]) -> String {
    match decode(entry, bytes) {
        Err(
            error @ HtzError::Property {
                record: Record::Section(_),
                ..
            },
        ) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_round_trip_in_either_encoding() {
    for (data, encoding) in [
        (&b""[..], Encoding::Raw),
        (b"x", Encoding::Raw),
        (&b"abc".repeat(1000), Encoding::Zstd),
        (&vec![7; 1 << 20], Encoding::Zstd),
        (&vec![0; 8 << 20], Encoding::Raw),
    ] {
        let section = section(data);
        assert_eq!(section.entry().encoding, encoding);
        assert_eq!(section.entry().length, section.bytes().len() as u64);
        assert_eq!(section.entry().decoded_length, data.len() as u64);
        assert_eq!(section.entry().sha256, Digest::of_bytes(section.bytes()));
        assert!(decode(section.entry(), section.bytes()).unwrap() == data);
    }
}

#[test]
fn other_lists_are_counted_before_allocation() {
    for (list, item, most) in [
        ("merges", "[0,0],", MAX_MERGES),
        ("scores", "0,", MAX_VOCABULARY),
        ("strip_after", "0,", MAX_VOCABULARY),
        ("match_normalized", "0,", MAX_VOCABULARY),
    ] {
        let items = item.repeat(most + 1);
        let items = items.trim_end_matches(',');
        let text = format!(r#"{{"tokens":["a"],"{list}":[{items}]}}"#);
        let error = parse_vocabulary(text.as_bytes(), 1, &[])
            .unwrap_err()
            .to_string();
        let expected = format!("{list} is {}, expected at most {most}", most + 1);
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn bytes_after_the_frame_are_refused() {
    let section = section(&b"abc".repeat(1000));
    let mut bytes = section.bytes().to_vec();
    bytes.push(0);
    let error = content_error(section.entry(), &bytes);
    assert!(error.contains("1 bytes behind it"), "{error}");
    bytes.pop();
    bytes.extend_from_slice(section.bytes());
    content_error(section.entry(), &bytes);
}

#[test]
fn truncated_frame_is_refused() {
    let section = section(&b"abc".repeat(1000));
    for length in 0..section.bytes().len() {
        content_error(section.entry(), &section.bytes()[..length]);
    }
}

#[test]
fn a_frame_with_a_huge_window_is_refused() {
    // RFC 8878, with a window of 2^27 bytes.
    let mut frame = vec![
        0x28,
        0xb5,
        0x2f,
        0xfd,
        0x00,
        17 << 3,
        0x09,
        0x00,
        0x00,
        b'x',
    ];
    let mut entry = section(b"").entry().clone();
    entry.encoding = Encoding::Zstd;
    entry.decoded_length = 1;
    let error = content_error(&entry, &frame);
    assert!(error.contains("memory"), "{error}");
    frame[5] = 0;
    assert_eq!(decode(&entry, &frame).unwrap(), b"x");
}

#[test]
fn excess_tokens_are_refused_before_other_checks() {
    let tokens = vec![""; 100_000];
    let data = serde_json::json!({
        "model": "llama", "tokens": tokens, "kinds": [], "bos": null, "eos": null,
        "unknown": null, "add_bos": false, "add_eos": false, "add_space_prefix": false,
    });
    let fault = parse_vocabulary(data.to_string().as_bytes(), 99_999, &[]).unwrap_err();
    let (tokens, rows) = (100_000, 99_999);
    assert!(
        matches!(fault, HtzError::Vocabulary(VocabularyError::Rows { tokens: t, rows: r })
            if (t, r) == (tokens, rows)),
        "{fault}"
    );
}

#[test]
fn oversized_section_is_refused() {
    let data = vec![0; MAX_SECTION_BYTES as usize + 1];
    let error = Section::new("test", false, &data).unwrap_err().to_string();
    assert!(error.contains("length is 268435457"), "{error}");
}
