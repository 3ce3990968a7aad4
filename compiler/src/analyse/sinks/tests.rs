use super::*;

#[test]
fn positions_beyond_three_deviations_are_outliers() {
    let norms = |n: usize| {
        let mut norms = vec![1.0; n];
        norms[2] = 5.0;
        norms
    };
    assert!(outliers(&norms(10)).positions.is_empty());
    let found = outliers(&norms(11));
    assert_eq!(found.positions.len(), 1);
    assert_eq!(
        (found.positions[0].position, found.positions[0].norm),
        (2, 5.0)
    );
    assert!((found.mean - 15.0 / 11.0).abs() < 1e-12);
    assert!(outliers(&[3.0; 40]).positions.is_empty() && outliers(&[]).positions.is_empty());
}

#[test]
fn outlier_tokens_are_found_at_any_position() {
    let (context, windows) = (16, 8);
    let mut norms = vec![10.0f32; context * windows];
    for first in norms.iter_mut().step_by(context) {
        *first = 4000.0;
    }
    norms[3 * context + 5] = 40.0;
    norms[6 * context + 15] = 90.0;
    let found = tokens(&norms, context);
    let places: Vec<_> = found
        .largest
        .iter()
        .map(|t| (t.window, t.position))
        .collect();
    assert_eq!((found.found, places), (2, vec![(6, 15), (3, 5)]));
    assert_eq!(found.largest[0].norm, 90.0);
    assert!((found.norm_mean - (118.0 * 10.0 + 130.0) / 120.0).abs() < 1e-4);
    let by_position = (0..context).map(|position| {
        let of = norms.iter().skip(position).step_by(context);
        of.map(|&norm| f64::from(norm)).sum::<f64>() / windows as f64
    });
    let by_position = outliers(&by_position.collect::<Vec<_>>());
    assert!(by_position.positions.iter().all(|p| p.position == 0));
    let even = tokens(&[3.0; 64], 16);
    assert_eq!((even.found, even.norm_deviation), (0, 0.0));
    assert_eq!(tokens(&[], 16).found, 0);
    let many: Vec<f32> = (0..4096)
        .map(|i| if i % 100 == 50 { 9.0 + i as f32 } else { 1.0 })
        .collect();
    let found = tokens(&many, 64);
    assert!(found.largest.len() == 16 && found.found > 16);
}

#[test]
fn channels_are_sorted_by_energy() {
    let found = channels(&[1.0, 5.0, 0.0, 5.0, 9.0]).unwrap();
    let order: Vec<usize> = found.iter().map(|c| c.channel).collect();
    assert_eq!(order, [4, 1, 3, 0, 2]);
    assert_eq!(found[0].share, 0.45);
    assert_eq!(channels(&[0.0; 20]).unwrap().len(), 8);
}
