use super::*;

fn levels(energy: f64) -> Vec<RankLevel> {
    let level = |(loss, cost, rank)| RankLevel {
        loss,
        cost,
        rank,
        energy: energy * rank,
    };
    [(0.9, 0.1, 8.0), (0.3, 0.5, 40.0), (0.2, 1.0, 80.0)]
        .map(level)
        .to_vec()
}

#[test]
fn gradient_matches_central_differences() {
    let (price, energy) = (0.3, 0.002);
    let levels = levels(energy);
    let objective: Vec<f64> = levels
        .iter()
        .map(|l| l.loss + price * l.cost + energy * l.rank)
        .collect();
    let value = |logits: &[f64]| -> f64 {
        let p = softmax(logits);
        p.iter().zip(&objective).map(|(p, f)| p * f).sum()
    };
    let logits = [0.3, -0.7, 0.1];
    let (p, mean) = (softmax(&logits), value(&logits));
    for i in 0..3 {
        let moved = |by: f64| {
            let mut z = logits;
            z[i] += by;
            value(&z)
        };
        let numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        let exact = p[i] * (objective[i] - mean);
        assert!((numeric - exact).abs() < 1e-9, "{numeric} {exact}");
    }
    let soft: f64 = p.iter().zip(&levels).map(|(p, l)| p * l.rank).sum();
    let by_rank: Vec<f64> = levels.iter().map(|l| energy * l.rank).collect();
    let mean: f64 = p.iter().zip(&by_rank).map(|(p, f)| p * f).sum();
    for i in 0..3 {
        let published = energy * p[i] * (levels[i].rank - soft);
        assert!((p[i] * (by_rank[i] - mean) - published).abs() < 1e-15);
    }
}

#[test]
fn energy_and_price_lower_the_soft_rank() {
    let rank = |price, energy| -> f64 {
        let levels = levels(energy);
        let p = optimise_probabilities(&levels, price);
        p.iter().zip(&levels).map(|(p, l)| p * l.rank).sum()
    };
    assert!(rank(0.0, 0.0) > rank(0.5, 0.0));
    assert!(rank(0.5, 0.0) > rank(0.5, 0.05));
    assert!((rank(1e6, 0.0) - 8.0).abs() < 1e-9);
}

#[test]
fn bisected_price_meets_the_budget() {
    let costs: Vec<u64> = (1..=16).map(|n| 10 * n).collect();
    let ladders = [Ladder::from_costs(&costs), Ladder::from_costs(&costs)];
    let falling = |base: f64| (1..=16).map(|n| base.powi(n)).collect::<Vec<f64>>();
    let losses = [falling(0.5), falling(0.9)];
    let by_rank = |joules: f64| {
        (1..=16)
            .map(|n| joules * f64::from(n))
            .collect::<Vec<f64>>()
    };
    for budget in [60, 120, 200] {
        let free = soft_levels(&ladders, &losses, &[0.0, 0.0].map(by_rank), budget);
        let cost = 10.0 * free.iter().sum::<f64>();
        assert!(
            (cost / budget as f64 - 1.0).abs() < 1e-3,
            "{cost} for {budget}"
        );
        let dear = soft_levels(&ladders, &losses, &[2.0, 2.0].map(by_rank), budget);
        for (free, dear) in free.iter().zip(&dear) {
            assert!((free - dear).abs() < 1e-3, "{free} {dear}");
        }
    }
}
