use super::*;

/// FIPS 180-4.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn digest_of_abc_matches_fips_180_4() {
    assert_eq!(Digest::of_bytes(b"abc").to_string(), ABC);
    assert_eq!(ABC.parse::<Digest>().unwrap(), Digest::of_bytes(b"abc"));
}

#[test]
fn noncanonical_spellings_are_refused() {
    let upper = ABC.to_uppercase();
    let long = format!("{ABC}00");
    let foreign = ABC.replace('f', "g");
    for text in ["", &ABC[1..], &upper, &long, &foreign] {
        assert!(text.parse::<Digest>().is_err(), "{text}");
    }
}
