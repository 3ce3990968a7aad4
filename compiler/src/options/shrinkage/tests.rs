use super::*;

#[test]
fn shrinkage_round_trips() {
    for text in ["auto", "0", "1", "0.01", "0.3"] {
        let parsed: ShrinkageArg = text.parse().unwrap();
        assert_eq!(parsed.to_string(), text);
    }
    for text in ["", "none", "-0.1", "1.1", "nan", "inf"] {
        assert!(text.parse::<ShrinkageArg>().is_err(), "{text}");
    }
    assert_eq!(Shrinkage::CANDIDATES[0], Shrinkage::default());
}
