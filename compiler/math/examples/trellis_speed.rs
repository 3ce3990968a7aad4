//! Measures the weights encoded per second on the calling thread.

use htc_formats::bands::Code;
use htc_math::codes::Viterbi;
use htc_math::random::Rng;
use std::time::Instant;

fn main() {
    let mut rng = Rng(1);
    let x: Vec<f32> = (0..1024).map(|_| (rng.normal() * 32.0) as f32).collect();
    let weights = vec![1.0; 1024];
    for code in Code::all() {
        let Some(mut viterbi) = Viterbi::new(code) else {
            continue;
        };
        let mut states = vec![0; 1024];
        let mut best = f64::INFINITY;
        for _ in 0..60 {
            let start = Instant::now();
            viterbi.encode(&x, Some(&weights), &mut states);
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!(
            "{code}: {:.3} million weights a second",
            1024.0 / best / 1e6
        );
    }
}
