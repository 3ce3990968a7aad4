use std::cell::RefCell;
use std::convert::Infallible;

use super::*;

/// Searches with a loss by ratio, relative to the limit; returns what was found, with the number of
/// candidates made.
fn search_from(
    steps: SearchSteps,
    start: f64,
    least: f64,
    loss: impl Fn(f64) -> f64,
) -> (Result<f64, f64>, usize) {
    let there = RefCell::new(vec![start]);
    let search = SizeSearch {
        loss: &|found: &f64| loss(*found),
        bytes: &|found: &f64| (1e6 * found) as u64,
        discard: &|found: &f64| there.borrow_mut().retain(|one| one != found),
    };
    let mut tried = 0;
    let found = search.find_smallest(steps, start, start, |ratio| {
        tried += 1;
        let made = (ratio >= least).then_some(ratio);
        there.borrow_mut().extend(made);
        Ok::<_, Infallible>(made)
    });
    let Ok(found) = found;
    let (Ok(kept) | Err(kept)) = found;
    assert_eq!(*there.borrow(), [kept], "nothing else is left");
    (found, tried)
}

const BISECTION: SearchSteps = SearchSteps {
    doubling: None,
    ..STEPS_OF_FILES
};

const CASES: [(f64, f64, f64); 5] = [
    (0.25, 0.1, 0.3),
    (0.25, 0.1, 0.2),
    (0.25, 0.24, 0.1),
    (0.25, 0.1, 1.0),
    (1.0, 0.1, 0.15),
];

#[test]
fn bisection_finds_the_smallest_ratio_from_either_side() {
    for (start, least, enough) in CASES {
        let loss = |ratio: f64| if ratio >= enough { 0.5 } else { 2.0 };
        let (found, tried) = search_from(BISECTION, start, least, loss);
        let found = found.unwrap();
        let wanted = f64::max(least, enough);
        assert!(
            found >= wanted && found < wanted + 1.0 / 512.0,
            "{found} {wanted}"
        );
        assert!(tried <= 16, "{tried}");
    }
    assert_eq!(search_from(BISECTION, 0.25, 0.1, |_| 2.0).0, Err(1.0));
}

/// The law of the loss may be another than the assumed one.
#[test]
fn interpolation_finds_the_smallest_ratio_from_either_side() {
    for (start, least, enough) in CASES {
        for steps_per_doubling in [6.0, 12.0, 24.0] {
            let loss = |ratio: f64| f64::exp2((enough - ratio) * 512.0 / steps_per_doubling);
            let (found, tried) = search_from(STEPS_OF_FILES, start, least, loss);
            let found = found.unwrap();
            let wanted = f64::max(least, enough);
            assert!(
                found >= wanted && found < wanted + 2.0 / 512.0,
                "{found} {wanted}"
            );
            assert!(tried <= 16, "{tried}");
        }
    }
}

#[test]
fn interpolation_needs_few_candidates() {
    let loss = |ratio: f64| f64::exp2((0.2 - ratio) * 512.0 / 12.0);
    for start in [0.21, 0.18, 0.24] {
        let (found, tried) = search_from(STEPS_OF_FILES, start, 0.0, loss);
        let found = found.unwrap();
        assert!((0.2..0.2 + 1.5 / 512.0).contains(&found), "{found}");
        assert!(tried <= 2, "{tried} from {start}");
    }
}

#[test]
fn losses_without_an_interval_are_searched_upwards() {
    let (found, _) = search_from(STEPS_OF_FILES, 0.25, 0.0, |_| f64::INFINITY);
    assert_eq!(found, Err(1.0));
    let (found, _) = search_from(STEPS_OF_FILES, 0.25, 0.24, |_| 0.0);
    assert!((0.24..0.25).contains(&found.unwrap()));
}

#[test]
fn loss_that_does_not_fall_is_left_in_a_few_steps() {
    let (found, tried) = search_from(STEPS_OF_FILES, 0.25, 0.0, |_| 1.01);
    assert_eq!(found, Err(1.0));
    assert!(tried < 16, "{tried}");
}

/// The loss is flat beside the limit and steep below.
#[test]
fn knee_of_the_loss_does_not_end_the_search_early() {
    let loss = |ratio: f64| {
        let steps = (0.2 - ratio) * 512.0;
        if steps > 20.0 {
            1e4
        } else {
            f64::exp2(steps / 12.0)
        }
    };
    let (found, _) = search_from(STEPS_OF_FILES, 0.22, 0.0, loss);
    let found = found.unwrap();
    assert!((0.2..0.2 + 1.5 / 512.0).contains(&found), "{found}");
}
