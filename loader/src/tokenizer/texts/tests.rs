use super::*;

#[test]
fn modular_products_match_long_division() {
    let numbers = [
        0,
        1,
        2,
        3,
        1 << 31,
        1 << 60,
        PRIME / 3,
        PRIME - 2,
        PRIME - 1,
    ];
    for a in numbers {
        for b in numbers {
            let expected = u128::from(a) * u128::from(b) % u128::from(PRIME);
            assert_eq!(u128::from(mul_mod(a, b)), expected, "{a} {b}");
        }
    }
}

#[test]
fn long_texts_are_found() {
    let long = "ab".repeat(CACHED_POWERS);
    let texts = SubstringIds::new([(long.as_str(), 7), ("ab", 8)].into_iter());
    let text = format!("x{long}y");
    let mut prefixes = PrefixHashes::default();
    texts.prepare(&text, &mut prefixes);
    assert_eq!(texts.id(&prefixes, 1, 1 + long.len()), Some(7));
    assert_eq!(texts.id(&prefixes, 0, long.len()), None);
    assert_eq!(texts.id(&prefixes, 3, 5), Some(8));
    assert_eq!(texts.id(&prefixes, 2, 4), None);
    assert_eq!(texts.id(&prefixes, 0, text.len()), None);
}

proptest::proptest! {
    #[test]
    fn exactly_the_given_texts_are_found(
        list in proptest::collection::btree_set("[ab\u{0}é]{1,5}", 0..20),
        text in "[ab\u{0}é]{0,30}",
    ) {
        let texts = SubstringIds::new(list.iter().map(String::as_str).zip(0..));
        let mut prefixes = PrefixHashes::default();
        texts.prepare(&text, &mut prefixes);
        let places = || text.char_indices().map(|(at, _)| at).chain([text.len()]);
        for start in places() {
            for end in places().filter(|&end| end > start) {
                let expected = list.iter().position(|token| *token == text[start..end]);
                let found = texts.id(&prefixes, start, end);
                proptest::prop_assert_eq!(found, expected.map(|id| id as u32));
            }
        }
    }
}
