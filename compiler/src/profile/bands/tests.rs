use super::*;

fn whole(code: Code, bytes: u64, loss: f64) -> UniformCode {
    UniformCode { code, bytes, loss }
}

#[test]
fn hull_skips_dominated_codes() {
    let code = |bits| Code::codebook(bits).unwrap();
    let all = vec![
        whole(code(2), 10, 1.0),
        whole(code(3), 15, 0.8),
        whole(code(4), 20, 0.2),
        whole(code(5), 25, 0.3),
        whole(code(6), 40, 0.1),
    ];
    let bits: Vec<u8> = lower_hull(all).iter().map(|one| one.code.bits()).collect();
    assert_eq!(bits, [2, 4, 6]);
}

#[test]
fn plans_are_optimal_for_their_size() {
    let code = |bits| Code::codebook(bits).unwrap();
    let hull = [
        whole(code(2), 10, 1.0),
        whole(code(3), 14, 0.4),
        whole(code(4), 19, 0.15),
    ];
    let worth = [0.5, 0.1, 0.15, 0.05, 0.2];
    let (found, between) = plans(&[(hull.to_vec(), worth.to_vec())]);
    assert!(found.len() > 5 && between.is_empty());
    for (codes, loss) in found {
        let codes = &codes[0];
        let at = |code: &Code| hull.iter().find(|one| one.code == *code).unwrap();
        let bytes: u64 = codes.iter().map(|code| at(code).bytes).sum();
        let sum: f64 = codes.iter().zip(worth).map(|(c, w)| at(c).loss * w).sum();
        assert!((sum - loss).abs() < 1e-12, "{sum} {loss}");
        let mut least = f64::INFINITY;
        for index in 0..3usize.pow(5) {
            let of = |band: u32| &hull[index / 3usize.pow(band) % 3];
            let bytes_of: u64 = (0..5).map(|band| of(band).bytes).sum();
            if bytes_of <= bytes {
                let loss: f64 = (0..5).map(|b| of(b).loss * worth[b as usize]).sum();
                least = least.min(loss);
            }
        }
        assert!(loss <= least + 1e-12, "{loss} {least} of {bytes}");
    }
}

#[test]
fn intermediate_plans_fill_large_gaps() {
    let code = |bits| Code::codebook(bits).unwrap();
    let hull = |rows: u64| -> Vec<UniformCode> {
        let of = |bits: u8| {
            let loss = rows as f64 * 4f64.powi(-i32::from(bits));
            whole(code(bits), rows * u64::from(bits), loss)
        };
        (2..=8).map(of).collect()
    };
    let worth = vec![0.4, 0.3, 0.2, 0.1];
    let classes = [
        (hull(100_000), worth.clone()),
        (hull(20_000), worth.clone()),
    ];
    let (plans, between) = plans(&classes);
    let measured = |(codes, loss): &GroupCodes| {
        let (mut bytes, mut sum) = (0, 0.0);
        for ((hull, worth), codes) in classes.iter().zip(codes) {
            for (code, worth) in codes.iter().zip(worth) {
                let of = hull.iter().find(|one| one.code == *code).unwrap();
                bytes += of.bytes;
                sum += of.loss * worth;
            }
        }
        assert!((sum - loss).abs() < 1e-6, "{sum} {loss}");
        (bytes, *loss)
    };
    let coarse: Vec<(u64, f64)> = plans.iter().map(measured).collect();
    let finer: Vec<(u64, f64)> = between.iter().map(measured).collect();
    let (small, large) = (coarse[coarse.len() / 2], coarse[coarse.len() / 2 + 1]);
    let gap = large.0 - small.0;
    assert!(gap >= 100_000);
    let budget = small.0 + gap / 2;
    let found = finer.iter().filter(|one| one.0 <= budget);
    let found = found.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert!(
        found.1 < small.1 && budget - found.0 <= 20_000,
        "{found:?} {budget} {small:?}"
    );
}
