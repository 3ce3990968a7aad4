use super::*;

fn uniform(count: usize, dimension: usize, embed: impl Fn(&[f64]) -> Vec<f64>) -> Sample {
    let mut random = Rng(5);
    let mut values = Vec::new();
    let mut width = 0;
    for _ in 0..count {
        let point: Vec<f64> = (0..dimension).map(|_| random.unit()).collect();
        let row = embed(&point);
        width = row.len();
        values.extend(row.iter().map(|&x| x as f32));
    }
    Sample::new(&values, width, &(0..count).collect::<Vec<_>>())
}

#[test]
fn two_nn_finds_the_dimension_of_a_cube_and_of_a_line() {
    let cube = uniform(1500, 3, <[f64]>::to_vec);
    let ratios_of_cube = ratios(&cube.distances());
    let alone: Vec<Range<usize>> = cube.blocks();
    let found = two_nn(&sorted(ratios_of_cube.iter().flatten())).unwrap();
    assert!((2.7..3.3).contains(&found), "{found}");
    let (low, high) = two_nn_interval(&ratios_of_cube, &alone, &mut Rng(1)).unwrap();
    assert!(
        low < found && found < high && high - low < 0.6,
        "{low} {high}"
    );
    let line = uniform(1000, 1, |t| {
        (0..20).map(|i| f64::from(i - 7) * t[0] + 3.0).collect()
    });
    let found = two_nn(&sorted(ratios(&line.distances()).iter().flatten())).unwrap();
    assert!((0.9..1.1).contains(&found), "{found}");
}

#[test]
fn the_fit_is_exact_where_the_law_holds() {
    for d in [0.5, 4.0, 17.0] {
        let n = 200;
        let quantile = |i: usize| -(1.0 - (i + 1) as f64 / n as f64).max(1e-9).ln() / d;
        let ratios: Vec<f64> = (0..n).map(quantile).collect();
        assert!((two_nn(&ratios).unwrap() / d - 1.0).abs() < 1e-12);
    }
    assert!(two_nn(&[0.0; 40]).is_none() && two_nn(&[0.1, 0.2]).is_none());
}

#[test]
fn components_are_the_fewest_that_hold_the_part() {
    let values = [50.0, 30.0, 15.0, 5.0, -1e-9];
    for (part, expected) in [(0.5, 1), (0.51, 2), (0.8, 2), (0.95, 3), (0.96, 4)] {
        assert_eq!(components_for(&values, part), expected, "{part}");
    }
    assert_eq!(components_for(&[0.0, 0.0], 0.95), 0);
    assert_eq!(components_for(&[], 0.95), 0);
}

#[test]
fn the_mean_does_not_count_as_a_dimension() {
    let moment = StoredMoment {
        count: 10,
        mean: vec![100.0, 0.0, 0.0],
        second: vec![10001.0, 0.0, 1.0, 0.0, 0.0, 1e-3],
    };
    let found = analyse_layer(0, &moment, &Sample::new(&[], 3, &[]), &Mat::zeros(0, 0)).unwrap();
    assert_eq!((found.pca.value, found.pca.samples), (2, 10));
    assert_eq!((found.pca.sample_value, found.pca.interval), (0, None));
    assert!(found.twonn.is_none() && found.stability.is_none());
}

#[test]
fn planted_dimensions_are_found_and_stable() {
    let plant = |point: &[f64]| {
        let mut row = vec![0.0; 30];
        for (x, p) in row.iter_mut().zip(point) {
            *x = p - 0.5;
        }
        row
    };
    let sample = uniform(400, 10, plant);
    let moment = {
        let rows = &sample.rows_for_tests();
        let (n, width) = rows.shape();
        let product = rows.transpose() * rows;
        let mut second = Vec::new();
        for i in 0..width {
            second.extend((0..=i).map(|j| (product[(i, j)] / n as f64) as f32));
        }
        StoredMoment {
            count: n as u64,
            mean: vec![0.0; width],
            second,
        }
    };
    let found = analyse_layer(0, &moment, &sample, &sample.distances()).unwrap();
    assert_eq!((found.pca.value, found.pca.sample_value), (10, 10));
    assert_eq!(found.pca.interval, Some((10, 10)));
    let stability = found.stability.unwrap();
    assert_eq!((stability.samples, stability.pca.len()), (64, 5));
    assert!(stability.pca_stable, "{stability:?}");
    assert!(!is_stable(&[1.0, 2.0, 3.1]) && is_stable(&[1.0, 2.0, 3.0]));
    let twonn = found.twonn.unwrap();
    let (low, high) = twonn.interval.unwrap();
    assert!(low <= twonn.value && twonn.value <= high);
}

fn windows(random: &mut Rng) -> Sample {
    let mut values = Vec::new();
    for _ in 0..16 {
        let of_window = 0.06f64.sqrt() * random.normal();
        for _ in 0..32 {
            let own = 0.94f64.sqrt() * random.normal();
            values.extend([own, of_window, 1e-4 * random.normal()].map(|x| x as f32));
        }
    }
    let of: Vec<usize> = (0..512).map(|row| row / 32).collect();
    Sample::new(&values, 3, &of)
}

#[test]
fn resampling_windows_gives_valid_intervals() {
    let mut random = Rng(11);
    let (mut held, mut by_vectors, mut right) = (0, 0, 0);
    let trials = 200;
    for _ in 0..trials {
        let sample = windows(&mut random);
        let value = pca(&sample).unwrap();
        right += usize::from(value == 2);
        let has = |blocks: &[Range<usize>], random: &mut Rng| {
            let found = resampled_pca(value, &sample, blocks, random).unwrap();
            let ((low, high), _) = found.unwrap();
            usize::from((low..=high).contains(&2))
        };
        held += has(&sample.blocks(), &mut random);
        let vectors: Vec<Range<usize>> = (0..512).map(|i| i..i + 1).collect();
        by_vectors += has(&vectors, &mut random);
    }
    assert!(right < trials * 7 / 10, "{right}");
    assert!(held >= trials * 85 / 100, "{held}");
    assert!(by_vectors < trials * 75 / 100, "{by_vectors}");
}

#[test]
fn replicates_have_their_own_components() {
    let rows = |copy: usize| (0..32).map(move |window| (window, copy));
    let values: Vec<f32> = (0..2)
        .flat_map(rows)
        .flat_map(|(window, copy)| {
            let mut row = [0.0; 40];
            row[window] = if copy == 0 { 1.0 } else { -1.0 };
            row
        })
        .collect();
    let mut of: Vec<usize> = (0..64).map(|row| row % 32).collect();
    let mut order: Vec<usize> = (0..64).collect();
    order.sort_by_key(|&row| of[row]);
    of.sort_unstable();
    let values: Vec<f32> = order
        .iter()
        .flat_map(|&row| values[40 * row..][..40].to_vec())
        .collect();
    let sample = Sample::new(&values, 40, &of);
    let blocks = sample.blocks();
    assert_eq!(blocks.len(), 32);
    let found = resampled_pca(31, &sample, &blocks, &mut Rng(1)).unwrap();
    let ((low, high), median) = found.unwrap();
    assert!((17..=21).contains(&median), "{median}");
    assert!(
        (24..31).contains(&low) && (32..=40).contains(&high),
        "{low} {high}"
    );
    let again = resampled_pca(31, &sample, &blocks, &mut Rng(1)).unwrap();
    assert_eq!(again, found);
    let few = resampled_pca(31, &sample, &blocks[..7], &mut Rng(1)).unwrap();
    assert!(few.is_none());
}
