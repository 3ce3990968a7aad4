use std::thread::sleep;

use super::*;

#[test]
fn time_is_charged_once_to_the_innermost_stage() {
    let (clock, begun) = (StageClock::default(), Instant::now());
    let pause = Duration::from_millis(20);
    clock.time(Stage::Factorise, || {
        sleep(pause);
        clock.time(Stage::Measure, || sleep(3 * pause));
    });
    let spent = |stage| clock.spent(stage);
    assert!(spent(Stage::Measure) >= 3 * pause);
    assert!(spent(Stage::Factorise) >= pause);
    assert!(spent(Stage::Factorise) < spent(Stage::Measure));
    assert_eq!(spent(Stage::Seal), Duration::ZERO);
    let all = [Stage::Plan, Stage::Factorise, Stage::Measure].map(spent);
    assert!(all.iter().sum::<Duration>() <= begun.elapsed() + Duration::from_millis(5));
}
