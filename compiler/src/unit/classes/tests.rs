use super::*;

#[test]
fn rows_of_similar_cost_share_a_class() {
    let costs: Vec<f64> = (0..1000)
        .map(|i| {
            if i % 10 < 3 {
                64.0
            } else {
                1.0 + 1e-6 * i as f64
            }
        })
        .collect();
    let found = class_sizes(&costs).unwrap();
    assert_eq!(found[0], 300);
    assert_eq!(found.iter().sum::<usize>(), 1000);
    let members = split_into_classes(&costs, &found);
    assert!(members[0].iter().all(|&row| row % 10 < 3));
    assert!(members.iter().all(|own| own.is_sorted()));
    let mut all: Vec<u32> = members.into_iter().flatten().collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..1000));
}

#[test]
fn best_cuts_match_exhaustive_search() {
    let costs: Vec<f64> = (0..9).map(|i| f64::from(7 * i % 9 + 1).powi(3)).collect();
    let loss = |from: usize, to: usize| {
        let own = &costs[from..to];
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        own.len() as f64 * mean.ln()
    };
    let found = best_cuts(9, loss);
    let of = |cuts: &[usize]| {
        cuts.windows(2)
            .map(|pair| loss(pair[0], pair[1]))
            .sum::<f64>()
    };
    let mut least = f64::INFINITY;
    for set in 0_u32..1 << 8 {
        if set.count_ones() < MAX_CLASSES as u32 {
            let inner = (1..9).filter(|cut| set >> (cut - 1) & 1 == 1);
            let cuts: Vec<usize> = [0].into_iter().chain(inner).chain([9]).collect();
            least = least.min(of(&cuts));
        }
    }
    assert!((of(&found) - least).abs() < 1e-9, "{found:?}");
}

#[test]
fn few_or_equal_rows_have_no_classes() {
    assert_eq!(class_sizes(&[1.0; 300]), None);
    assert_eq!(class_sizes(&[2.0; 5000]), None);
    assert_eq!(class_sizes(&[0.0; 5000]), None);
    assert_eq!(class_sizes(&[]), None);
}
