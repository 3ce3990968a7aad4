use super::*;

fn lengths(draft: f64, passes: impl Fn(usize) -> f64, accepted: usize) -> Vec<usize> {
    let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
    let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
    let round = |_| {
        let length = pace.next_length(100, 0);
        let time = ms(draft * length as f64);
        pace.record_round(length, accepted.min(length), time, ms(passes(length + 1)));
        length
    };
    (0..400).map(round).collect()
}

#[test]
fn fixed_length_is_kept_except_for_baseline_tokens() {
    let mut pace = DraftLengthPolicy::new(DraftLength::Fixed(3));
    let round = |_| {
        let length = pace.next_length(100, 0);
        pace.record_round(length, length, Duration::ZERO, Duration::from_millis(1));
        length
    };
    let found: Vec<usize> = (0..2 * (1 + BASELINE_INTERVAL)).map(round).collect();
    for (index, length) in found.into_iter().enumerate() {
        let alone = index.is_multiple_of(1 + BASELINE_INTERVAL);
        assert_eq!(length, if alone { 0 } else { 3 }, "{index}");
    }
    assert_eq!(pace.next_length(2, 0), 0);
    pace.record_round(0, 0, Duration::ZERO, Duration::from_millis(1));
    assert_eq!(pace.next_length(2, 0), 2);
}

#[test]
fn cheap_perfect_draft_has_the_maximum_length() {
    let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, usize::MAX);
    let other = found[20..].iter().filter(|&&n| n != MAX_DRAFT_LENGTH);
    assert!(other.clone().all(|&n| n == 0), "{found:?}");
    assert!(
        other.count() <= 1 + found.len() / BASELINE_INTERVAL,
        "{found:?}"
    );
}

#[test]
fn baseline_time_is_not_derived_from_long_passes() {
    let found = lengths(
        0.6,
        |n| if n == 1 { 1.0 } else { 2.2 + 0.1 * n as f64 },
        usize::MAX,
    );
    let late = found[100..].iter().filter(|&&n| n > 0).count();
    assert!(late <= 6, "{found:?}");
}

#[test]
fn useless_draft_is_tried_less_and_less() {
    let found = lengths(0.1, |n| 1.0 + 0.05 * n as f64, 0);
    let drafted = found.iter().filter(|&&n| n > 0).count();
    assert!(drafted < 40, "{drafted}");
    let late = found[200..].iter().filter(|&&n| n > 0).count();
    assert!(late <= drafted / 2, "{late} of {drafted}");
}

#[test]
fn chosen_length_maximises_throughput() {
    let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
    for length in [0, 4, 2, 4, 6, 1] {
        let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let rows = length as f64 + 1.0;
        pace.record_round(
            length,
            length / 2,
            time(0.2 * length as f64),
            time(0.9 + 0.1 * rows),
        );
    }
    let a = pace.acceptance();
    let speed = |n: usize| {
        let tokens = (1.0 - a.powi(n as i32 + 1)) / (1.0 - a);
        tokens / (0.2 * n as f64 + 0.9 + 0.1 * (n as f64 + 1.0))
    };
    let best = (1..=16).max_by(|&m, &n| speed(m).total_cmp(&speed(n)));
    let (found, gain) = pace.best_length(16);
    assert_eq!(Some(found), best);
    assert!((gain - speed(found)).abs() < 1e-6, "{gain}");
}

fn simulated_lengths(rounds: usize, does: impl Fn(usize) -> (f64, usize)) -> Vec<usize> {
    let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
    let round = |number| {
        let (draft, kept) = does(number);
        let length = pace.next_length(100, 0);
        let seconds = Duration::from_secs_f64;
        let pass = seconds(1.0 + 0.05 * length as f64);
        pace.record_round(
            length,
            kept.min(length),
            seconds(draft * length as f64),
            pass,
        );
        length
    };
    (0..rounds).map(round).collect()
}

#[test]
fn draft_that_becomes_useful_is_used() {
    let found = simulated_lengths(1000, |round| {
        (0.5, if round < 100 { 0 } else { usize::MAX })
    });
    let late = found[600..].iter().filter(|&&n| n > 0).count();
    assert!(late > 350, "{found:?}");
}

#[test]
fn draft_with_many_unread_tokens_is_abandoned() {
    let mut pace = DraftLengthPolicy::new(DraftLength::Auto);
    let (mut behind, mut tries) = (0, Vec::new());
    for round in 0..2000 {
        let length = pace.next_length(100, behind);
        behind = if length > 0 { 0 } else { behind + 1 };
        let pass = Duration::from_millis(100 + length as u64);
        pace.record_round(length, 0, Duration::from_millis(50 * length as u64), pass);
        if length > 0 {
            tries.push(round);
        }
    }
    let last = tries.last().copied().unwrap_or_default();
    assert!((30..100).contains(&last), "{tries:?}");
}

#[test]
fn noisy_first_measurement_is_corrected() {
    let found = simulated_lengths(600, |round| {
        (if round < 10 { 5.0 } else { 0.2 }, usize::MAX)
    });
    let late = found[200..].iter().filter(|&&n| n > 0).count();
    assert!(late > 350, "{found:?}");
}
