use std::cell::RefCell;
use std::convert::Infallible;

use super::*;

fn search_from(start: f64, least: f64, enough: f64) -> (Result<f64, f64>, usize) {
    let there = RefCell::new(vec![start]);
    let search = SizeSearch {
        holds: &|found: &f64| *found >= enough,
        bytes: &|found: &f64| (1e6 * found) as u64,
        discard: &|found: &f64| there.borrow_mut().retain(|one| one != found),
    };
    let mut tried = 0;
    let found = search.find_smallest(STEPS_OF_FILES, start, start, |ratio| {
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

#[test]
fn search_finds_the_smallest_ratio_from_either_side() {
    let step = 1.0 / 512.0;
    for (start, least, enough) in [
        (0.25, 0.1, 0.3),
        (0.25, 0.1, 0.2),
        (0.25, 0.24, 0.1),
        (0.25, 0.1, 1.0),
        (1.0, 0.1, 0.15),
    ] {
        let (found, tried) = search_from(start, least, enough);
        let found = found.unwrap();
        let wanted = f64::max(least, enough);
        assert!(found >= wanted && found < wanted + step, "{found} {wanted}");
        assert!(tried <= 16, "{tried}");
    }
    assert_eq!(super::tests::search_from(0.25, 0.1, 1.5).0, Err(1.0));
}
