use super::*;

#[test]
fn classes_match_the_standard_library_and_the_ascii_table() {
    for character in '\0'..=char::MAX {
        if get_general_category(character) == GeneralCategory::Unassigned {
            continue;
        }
        let class = class(character);
        assert_eq!(
            class & SPACE != 0,
            character.is_whitespace(),
            "{character:?}"
        );
        assert_eq!(class & NUMBER != 0, character.is_numeric(), "{character:?}");
        if class & LETTER != 0 {
            assert!(character.is_alphabetic(), "{character:?}");
        }
        let kinds = class & (LETTER | NUMBER | PUNCTUATION | SYMBOL | MARK | SPACE);
        assert!(kinds.count_ones() <= 1, "{character:?}");
        let punctuation = character.is_ascii_punctuation();
        if character.is_ascii() {
            assert_eq!(class & (PUNCTUATION | SYMBOL) != 0, punctuation);
            let abbreviation = get_general_category(character).abbreviation();
            assert_eq!(class & PUNCTUATION != 0, abbreviation.starts_with('P'));
            assert_eq!(class & LEADING != 0, abbreviation == "Lu");
            assert_eq!(class & TRAILING != 0, abbreviation == "Ll");
        }
    }
}
