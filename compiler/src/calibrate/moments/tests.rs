use std::ops::Range;

use super::*;
use crate::math::Host;
use crate::system::random::Rng;

fn numbers(count: usize) -> Vec<f32> {
    let mut random = Rng(1);
    (0..count).map(|_| random.unit() as f32 - 0.4).collect()
}

#[test]
fn moments_match_float64_for_any_number_of_threads() {
    for (order, n) in [(1, 1), (3, 700), (256, 20), (300, 1100)] {
        let x = numbers(order * n);
        let mut expected_mean = vec![0.0; order];
        let mut expected = vec![0.0; order * (order + 1) / 2];
        for row in x.chunks_exact(order) {
            let mut at = 0;
            for i in 0..order {
                expected_mean[i] += f64::from(row[i]) / n as f64;
                for j in 0..=i {
                    expected[at] += f64::from(row[i]) * f64::from(row[j]) / n as f64;
                    at += 1;
                }
            }
        }
        let mut first = None;
        for threads in [1, 3] {
            let cpu = Cpu::with_threads(threads).unwrap();
            let mut moments = MomentSums::new(order);
            let (a, b) = x.split_at(n / 3 * order);
            moments.add(&cpu, a);
            moments.add(&cpu, b);
            assert_eq!(moments.count(), n as u64);
            let (mean, second) = (moments.mean(), moments.second_moment());
            for (found, expected) in mean.iter().zip(&expected_mean) {
                assert!((found - expected).abs() < 1e-12);
            }
            for (found, expected) in second.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
            }
            let bits: Vec<u64> = mean.iter().chain(&second).map(|v| v.to_bits()).collect();
            assert_eq!(*first.get_or_insert(bits.clone()), bits);
        }
    }
}

#[test]
fn device_products_match_the_cpu() {
    let cpu = Cpu::with_threads(2).unwrap();
    for order in [1, 5, TILE, TILE + 3, 2 * TILE + 1] {
        let (x, y) = (numbers(order * 9), numbers(order * 4));
        let sums = |mut moments: MomentSums| {
            moments.add(&cpu, &x);
            moments.reweigh(0.25);
            moments.add_on_this_thread(&cpu, y.chunks_exact(order));
            moments.fetch().unwrap();
            assert!(moments.fits_float32());
            moments.add(&cpu, &y);
            assert_eq!(moments.count(), 17);
            (moments.mean(), moments.second_moment())
        };
        let here = sums(MomentSums::new(order));
        let there = sums(MomentSums::with_algebra(Some(&Host), order).unwrap());
        assert_eq!(here.0, there.0);
        for (here, there) in here.1.iter().zip(&there.1) {
            assert!((here - there).abs() < 1e-6, "{order}: {here} {there}");
        }
    }
}

#[derive(Debug)]
struct Full;

impl GramAccumulator for Full {
    fn row_len(&self) -> usize {
        3
    }

    fn add_rows(&mut self, _: f64, _: MatRef<'_, f64>) -> Result<(), FactoriseError> {
        let message = "full".to_owned();
        Err(FactoriseError::Device { message })
    }

    fn scale(&mut self, _: f64) -> Result<(), FactoriseError> {
        Ok(())
    }

    fn columns(&self, which: Range<usize>) -> Result<Mat<f64>, FactoriseError> {
        Ok(Mat::zeros(3, which.len()))
    }
}

#[test]
fn device_errors_are_reported_by_settle() {
    let cpu = Cpu::with_threads(1).unwrap();
    let products = Products::Device(Ok(Box::new(Full)));
    let mut moments = MomentSums::empty(3, strips(3), products);
    moments.add(&cpu, &numbers(6));
    moments.reweigh(2.0);
    moments.add(&cpu, &numbers(3));
    let told = moments.check().unwrap_err();
    assert!(!moments.fits_float32());
    let error = moments.fetch().unwrap_err();
    assert!(error.to_string().ends_with(": full"), "{error}");
    assert_eq!(told, error);
}

#[test]
fn weights_are_repetitions() {
    let cpu = Cpu::with_threads(1).unwrap();
    let (order, x, y) = (5, numbers(5 * 40), numbers(5 * 90)[200..].to_vec());
    let mut weighted = MomentSums::new(order);
    weighted.add(&cpu, &x);
    weighted.reweigh(3.0 / 0.5);
    weighted.add(&cpu, &y);
    let mut repeated = MomentSums::new(order);
    (0..6).for_each(|_| repeated.add(&cpu, &x));
    repeated.add(&cpu, &y);
    assert_eq!(weighted.count(), 90);
    assert_eq!(weighted.weight(), repeated.weight());
    let close = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close(weighted.mean(), repeated.mean()));
    assert!(close(weighted.second_moment(), repeated.second_moment()));
}

#[test]
fn memory_estimate_covers_the_sums() {
    for order in [1, 7, TILE, TILE + 1, 3 * TILE + 5] {
        let sums = MomentSums::new(order);
        let Products::Tiles(tiles) = &sums.products else {
            panic!("made here");
        };
        let tiles = tiles.iter().map(|tile| 8 * tile.values.len() as u64);
        let strips = sums
            .strips
            .iter()
            .map(|strip| 4 * (FLOAT32_ROWS * strip.padded) as u64);
        let taken = tiles.sum::<u64>() + strips.sum::<u64>();
        let forecast = MomentSums::bytes(order);
        let most = if order < 3 * TILE { 4 } else { 2 };
        assert!(
            (taken..=most * taken).contains(&forecast),
            "{order}: {forecast} {taken}"
        );
    }
    assert!(MomentSums::bytes(65536) > 17_000_000_000);
}

#[test]
fn moments_without_vectors_are_zero() {
    let moments = MomentSums::new(2);
    assert_eq!((moments.count(), moments.mean()), (0, vec![0.0; 2]));
    assert_eq!(moments.second_moment(), vec![0.0; 3]);
}

#[test]
fn trace_is_the_sum_of_the_diagonal() {
    let cpu = Cpu::with_threads(1).unwrap();
    for order in [1, 7, TILE, 2 * TILE + 3] {
        let mut moments = MomentSums::new(order);
        moments.add(&cpu, &numbers(order * 9));
        let second = moments.second_moment();
        let diagonal = (0..order).map(|i| second[diagonal_index(i)]);
        assert_eq!(moments.trace(), diagonal.sum::<f64>());
        assert_eq!(diagonal_index(order - 1), second.len() - 1);
    }
}
