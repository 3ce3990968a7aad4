use super::*;

#[test]
fn a_text_may_have_a_weight() {
    let text = |path: &str, weight| {
        let source = path.into();
        Ok(CalibrationText { source, weight })
    };
    assert_eq!(CalibrationText::from_str("a.txt"), text("a.txt", 1.0));
    assert_eq!(CalibrationText::from_str("a.txt=0.3"), text("a.txt", 0.3));
    assert_eq!(CalibrationText::from_str("a.txt:0.3"), text("a.txt", 0.3));
    assert_eq!(CalibrationText::from_str("a=b=2"), text("a=b", 2.0));
    assert_eq!(CalibrationText::from_str("a:b:2"), text("a:b", 2.0));
    assert_eq!(
        CalibrationText::from_str("C:\\a.txt"),
        text("C:\\a.txt", 1.0)
    );
    assert_eq!(CalibrationText::from_str("a=b"), text("a=b", 1.0));
    let shipped = |weight| {
        let source = TextSource::Shipped;
        Ok(CalibrationText { source, weight })
    };
    assert_eq!(CalibrationText::from_str("shipped"), shipped(1.0));
    assert_eq!(CalibrationText::from_str("shipped=0.5"), shipped(0.5));
    assert_eq!(CalibrationText::from_str("shipped:2"), shipped(2.0));
    assert_eq!(
        CalibrationText::from_str("./shipped"),
        text("./shipped", 1.0)
    );
    assert_eq!(
        CalibrationText::from_str("./shipped=0.5"),
        text("./shipped", 0.5)
    );
    for wrong in [
        "shipped=0",
        "a.txt=0",
        "a.txt:0",
        "a.txt=-1",
        "a.txt=inf",
        "a.txt=nan",
        "=2",
    ] {
        assert!(CalibrationText::from_str(wrong).is_err(), "{wrong}");
    }
}
