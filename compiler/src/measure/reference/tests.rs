use super::*;

#[test]
fn windows_are_kept_in_order_and_as_a_whole() {
    let (text, other) = (Digest::of_bytes(b"text"), Digest::of_bytes(b"other"));
    let mut kept = ReferenceLogits::default();
    assert_eq!(kept.batch(text), None);
    kept.prepare(text, 8, 4, 2);
    kept.keep(1, 0, &[9.0; 4]);
    kept.keep(0, 0, &[1.0, 2.0]);
    assert_eq!(kept.window(0), None, "half of a window");
    kept.keep(0, 2, &[3.0, 4.0]);
    assert_eq!(kept.window(0), Some(&[1.0, 2.0, 3.0, 4.0][..]));
    assert_eq!((kept.window(1), kept.batch(text)), (None, Some(8)));
    kept.prepare(text, 8, 4, 2);
    assert!(kept.window(0).is_some());
    kept.prepare(other, 8, 4, 2);
    assert_eq!((kept.window(0), kept.batch(other)), (None, None));
}

#[test]
fn no_more_windows_are_kept_than_fit() {
    let mut kept = ReferenceLogits::default();
    let window = MAX_KEPT / 2 + 1;
    kept.prepare(Digest::of_bytes(b"text"), 1, window, 3);
    assert_eq!(kept.capacity, window);
    kept.keep(0, 0, &vec![0.0; window]);
    kept.keep(1, 0, &[1.0]);
    assert_eq!(kept.logits.len(), window);
}
