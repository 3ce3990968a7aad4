use super::*;

const WIDTH: usize = 6;

fn logits(correction: &LowRankCorrection, head: &[f32], h: &[f32]) -> Vec<f32> {
    let rank = correction.rank();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let inner: Vec<f32> = correction
        .a
        .chunks_exact(WIDTH)
        .map(|a| dot(a, h))
        .collect();
    let rows = correction.b.chunks_exact(rank).zip(h);
    let corrected: Vec<f32> = rows.map(|(b, h)| h + dot(b, &inner)).collect();
    head.chunks_exact(WIDTH)
        .map(|w| dot(w, &corrected))
        .collect()
}

fn gradient(head: &[f32], derivatives: &[(u32, f64)]) -> Vec<f32> {
    let mut out = vec![0.0; WIDTH];
    for &(token, d) in derivatives {
        for (out, w) in out.iter_mut().zip(&head[token as usize * WIDTH..]) {
            *out += (d * f64::from(*w)) as f32;
        }
    }
    out
}

#[test]
fn derivatives_match_finite_differences() {
    let (model, draft) = ([0.3, -1.0, 2.0, 0.5], [1.0, 0.2, 1.5, -0.4]);
    let (kl, derivatives) = divergence(&model, &draft);
    assert!(kl > 0.0);
    for (token, derivative) in derivatives {
        let moved = |by: f32| {
            let mut draft = draft;
            draft[token as usize] += by;
            divergence(&model, &draft).0
        };
        let found = (moved(1e-2) - moved(-1e-2)) / 2e-2;
        assert!((found - derivative).abs() < 1e-4, "{found} {derivative}");
    }
    assert!(divergence(&model, &model).0.abs() < 1e-12);
}

#[test]
fn steps_reduce_the_divergence() {
    let head: Vec<f32> = (0..4 * WIDTH)
        .map(|i| (i * 37 % 11) as f32 / 5.0 - 1.0)
        .collect();
    let h = [0.5, -1.0, 0.3, 0.8, -0.2, 1.1];
    let model = [1.0, -0.5, 0.7, 2.0];
    let mut correction = LowRankCorrection::new(WIDTH, 3);
    let (first, _) = divergence(&model, &logits(&correction, &head, &h));
    let mut last = first;
    for step in 0..60 {
        let draft = logits(&correction, &head, &h);
        let (loss, derivatives) = divergence(&model, &draft);
        if step < 5 {
            assert!(loss <= last, "{loss} {last}");
        }
        last = loss;
        correction.update(&h, &gradient(&head, &derivatives), loss, 0.2);
    }
    assert!(last < 0.01 * first, "{first} {last}");
}

#[test]
fn zero_or_invalid_gradients_change_nothing() {
    let mut correction = LowRankCorrection::new(WIDTH, 2);
    let before = correction.clone();
    correction.update(&[1.0; WIDTH], &[0.0; WIDTH], 0.0, 0.1);
    correction.update(&[1.0; WIDTH], &[f32::NAN; WIDTH], 1.0, 0.1);
    assert_eq!(correction, before);
}
