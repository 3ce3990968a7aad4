use super::*;

#[test]
fn oldest_items_are_dropped_and_counted() {
    let mut queue = BoundedQueue::new(256);
    (0..300).for_each(|number| queue.push(number));
    assert_eq!((queue.len(), queue.dropped()), (256, 44));
    let taken = queue.drain();
    assert_eq!((taken[0], taken[255]), (44, 299));
    queue.push(300);
    assert_eq!((queue.len(), queue.dropped()), (1, 44));
}
