use super::*;

#[test]
fn samples_are_spread_evenly_over_windows() {
    for (context, windows) in [(512, 128), (4, 3), (2, 4096), (1000, 7), (1, 5)] {
        let extent = TextExtent { context, windows };
        let found = sample_windows(extent);
        assert_eq!(found.len(), sample_count(extent));
        assert!(found.is_sorted() && found.iter().all(|&window| window < windows));
        let mut counts = vec![0usize; windows];
        found.iter().for_each(|&window| counts[window] += 1);
        let (most, least) = (counts.iter().max(), counts.iter().min());
        assert!(most.unwrap() - least.unwrap() <= 2, "{counts:?}");
    }
}

#[test]
fn each_stretch_gives_one_sample_at_varying_offsets() {
    for (kept, of) in [(1, 1), (7, 7), (512, 513), (512, 65_408), (100, 1_000_003)] {
        let places = (0..kept).map(|index| sample_index(index, kept, of));
        let places: Vec<usize> = places.collect();
        for (index, place) in places.iter().enumerate() {
            let stretch = index * of / kept..(index + 1) * of / kept;
            assert!(stretch.contains(place), "{index} of {kept}: {place}");
        }
    }
    let mut positions: Vec<usize> = (0..512)
        .map(|index| sample_index(index, 512, 65_408) % 511)
        .collect();
    positions.sort_unstable();
    positions.dedup();
    assert!(positions.len() > 250, "{}", positions.len());
}
