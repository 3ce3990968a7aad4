use super::*;

#[test]
fn equal_vectors_count_once() {
    let sample = Sample::new(&[1.0, 2.0, 3.0, 4.0, 1.0, 2.0], 2, &[0, 1, 1]);
    assert_eq!((sample.count(), sample.width()), (2, 2));
    assert_eq!(sample.distances()[(0, 1)], 8.0);
    assert_eq!(sample.blocks(), [0..1, 1..2]);
    assert_eq!(Sample::new(&[], 4, &[]).count(), 0);
}

#[test]
fn variances_and_directions_are_those_of_the_covariance() {
    for width in [4, 40] {
        let mut values = Vec::new();
        for (axis, a) in [(1, 3.0f32), (0, 2.0), (3, 1.0)] {
            for sign in [1.0, -1.0] {
                let mut row = vec![7.0; width];
                row[axis] += sign * a;
                values.extend(row);
            }
        }
        let sample = Sample::new(&values, width, &[0; 6]);
        let variances = sample.variances().unwrap();
        for (found, expected) in variances.iter().zip([18.0, 8.0, 2.0, 0.0]) {
            assert!((found - expected).abs() < 1e-12, "{variances:?}");
        }
        let part = sample.select(&[0, 1, 2, 3]).variances().unwrap();
        assert!((part[0] - 18.0).abs() < 1e-12 && part[2].abs() < 1e-12);
        let directions = sample.directions(|_| 99).unwrap();
        assert_eq!(directions.ncols(), 3);
        for (column, axis) in directions.col_iter().zip([1, 0, 3]) {
            assert!((column[axis].abs() - 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn weights_are_repetitions() {
    let mut random = Rng(2);
    for (n, width) in [(9, 30), (30, 5), (6, 6)] {
        let values: Vec<f32> = (0..n * width).map(|_| random.normal() as f32).collect();
        let sample = Sample::new(&values, width, &vec![0; n]);
        let times: Vec<usize> = (0..n).map(|i| i * 7 % 4).collect();
        let repeated = times.iter().enumerate();
        let places: Vec<usize> = repeated.flat_map(|(i, &t)| vec![i; t]).collect();
        let expected = sample.select(&places).variances().unwrap();
        let times: Vec<f64> = times.iter().map(|&t| t as f64).collect();
        let found = WeightedSample::new(&sample).variances(&times).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            let found = found.get(at).copied().unwrap_or(0.0);
            assert!(
                (found - expected).abs() < 1e-9,
                "{n} x {width}: {found} {expected}"
            );
        }
    }
    let sample = Sample::new(&[1.0, 2.0], 2, &[0]);
    assert!(
        WeightedSample::new(&sample)
            .variances(&[0.0])
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        WeightedSample::new(&sample).variances(&[3.0]).unwrap()[0],
        0.0
    );
}

#[test]
fn a_shuffle_is_a_permutation() {
    let order = shuffled(50, &mut Rng(1));
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    assert_ne!(order, sorted);
    assert!(shuffled(0, &mut Rng(1)).is_empty());
}
