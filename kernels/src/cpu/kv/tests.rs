use super::*;

#[test]
fn mismatched_shapes_are_rejected() {
    let buffer = [0_u16; 24];
    let kv = KvView::new(&buffer, &buffer, 2, 3, 4).unwrap();
    assert_eq!(kv.check_queries(12, 1, 3, 12), Ok(4));
    assert_eq!(kv.check_queries(0, 0, 0, 0), Ok(0));
    assert!(kv.check_queries(12, 1, 4, 12).is_err());
    assert!(kv.check_queries(12, usize::MAX, 4, 12).is_err());
    assert!(kv.check_queries(9, 1, 0, 9).is_err());
    assert!(kv.check_queries(12, 1, 0, 11).is_err());
    assert!(KvView::new(&buffer, &buffer[1..], 2, 3, 4).is_err());
    assert!(KvView::new(&buffer[..0], &[], 0, 3, 4).is_err());
    assert!(KvView::new(&buffer[..0], &[], 2, 0, 4).is_err());
    assert!(KvView::new(&buffer, &buffer, usize::MAX, 3, 4).is_err());
}
