use super::*;

#[test]
fn clones_share_the_time_but_not_the_speed() {
    let clock = Clock::manual();
    let fast = clock.clone().scaled(4.0);
    clock.advance(Duration::from_millis(1500));
    fast.wait(Duration::from_millis(500));
    assert_eq!(clock.now(), Duration::from_secs(2));
    assert_eq!(fast.now(), Duration::from_secs(8));
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Duration::from_nanos(u64::MAX));
    let system = Clock::system();
    system.advance(Duration::from_secs(1000));
    assert!(system.now() < Duration::from_secs(100));
}
