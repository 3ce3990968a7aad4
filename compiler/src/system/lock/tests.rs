use super::*;
use std::cell::Cell;

#[test]
fn lock_waits_until_the_timeout() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let [first, second] = [0, 1].map(|_| File::open(file.path()).unwrap());
    let told = Cell::new(0);
    let try_for = |of: &File, millis| {
        let held = || told.set(told.get() + 1);
        acquire(of, Duration::from_millis(millis), held, || false).unwrap()
    };
    assert!(try_for(&first, 0));
    let begun = Instant::now();
    assert!(!try_for(&second, 120));
    assert!(begun.elapsed() >= Duration::from_millis(120));
    assert!(!try_for(&second, 0));
    assert_eq!(told.get(), 1);
    assert!(!acquire(&second, Duration::from_secs(60), || {}, || true).unwrap());
    drop(first);
    assert!(try_for(&second, 0));
}
