//! Stored moments of mixtures of experts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use htc_formats::model::{ActivationPoint, MatrixId, ProjectionKind};

use super::mixture::{EXPERTS, USED, mixture};
use super::whole::Whole;
use crate::calibrate::calibration_windows;
use crate::calibrate::tests::calibrated;
use crate::event::Progress;
use crate::gradient::*;
use crate::options::CalibrationOptions;
use crate::system::random::Rng;

const CONTEXT: usize = 24;
const WINDOWS: usize = 24;
const SOURCE: Digest = Digest([5; 32]);

fn options(cache: &Path) -> CalibrationOptions {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let mut options = CalibrationOptions::new(root.join("alice.txt"));
    options.context = Some(CONTEXT);
    options.tokens = Some(CONTEXT * WINDOWS);
    options.cache = Some(cache.to_owned());
    options
}

fn model(folder: &Path) -> (PathBuf, Arc<Model>) {
    let path = mixture(folder, true);
    let model = Model::open(&path).unwrap();
    (path, Arc::new(model))
}

/// The rows of all experts are those of all positions, each as often as experts are used.
#[test]
fn inputs_of_experts_add_up_to_those_of_all_positions() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(folder.path());
    let mut first: Option<Vec<f32>> = None;
    for threads in [1, 2] {
        let cache = tempfile::tempdir().unwrap();
        let options = options(cache.path());
        let silent = Progress::silent();
        let found = calibrated(&model, SOURCE, &options, threads, silent).unwrap();
        let mut all = Vec::new();
        for layer in &found.layers {
            let pooled = layer.site(ActivationPoint::Ffn);
            assert_eq!(pooled.count as usize, CONTEXT * WINDOWS);
            let mut rows = 0;
            let mut sums = vec![0.0; pooled.second.len()];
            for expert in 0..EXPERTS as u16 {
                let own = layer.site(ActivationPoint::ExpertInput(expert));
                let hidden = layer.site(ActivationPoint::ExpertHidden(expert));
                assert_eq!(own.count, hidden.count);
                assert!(hidden.diagonal().iter().all(|&energy| energy > 0.0));
                rows += own.count;
                // An eighth as many rows as inputs are those of the prior.
                let prior = (own.mean.len() / 8) as f64;
                for ((sum, &own_of), &pooled) in
                    sums.iter_mut().zip(&own.second).zip(&pooled.second)
                {
                    let stored = (own.count as f64 + prior) * f64::from(own_of);
                    *sum += stored - prior * f64::from(pooled);
                }
                all.extend(own.second.iter().chain(&hidden.second));
            }
            assert_eq!(rows, USED as u64 * pooled.count);
            let scale = rows as f64;
            for (sum, &pooled) in sums.iter().zip(&pooled.second) {
                let difference = (sum / scale - f64::from(pooled)).abs();
                assert!(difference < 1e-4, "{difference}");
            }
        }
        assert!(first.get_or_insert(all.clone()) == &all);
    }
}

/// Compares `½ tr(H E C Eᵀ)` with the measured divergence of errors in experts.
#[test]
fn moments_predict_divergence_of_errors_in_experts() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = model(folder.path());
    let options = options(folder.path());
    let silent = Progress::silent();
    let inputs = calibrated(&model, SOURCE, &options, 2, silent).unwrap();
    let costs = gradients(&model, SOURCE, &options, options.max_tokens(), 2, silent).unwrap();
    let text = calibration_windows(&model, &options).unwrap();
    let tokens: Vec<u32> = text.windows().iter().flatten().copied().collect();
    let mut whole: Whole<f64> = Whole::open(&path, CONTEXT, 2);
    let x = whole.embed(&tokens);
    let before = whole.logits(&x);
    let mut random = Rng(9);
    let mut predictions = (0.0, 0.0);
    for projection in (0..EXPERTS as u16).flat_map(|expert| {
        [
            ProjectionKind::ExpertGate(expert),
            ProjectionKind::ExpertUp(expert),
            ProjectionKind::ExpertDown(expert),
        ]
    }) {
        let layer = 1;
        let w = whole.blocks[layer].projection(projection).matrix.clone();
        let error: Vec<f64> = w.values.iter().map(|_| 1e-3 * random.normal()).collect();
        let moved = &mut whole.blocks[layer].projection_mut(projection).matrix.values;
        moved.iter_mut().zip(&error).for_each(|(w, e)| *w += e);
        let measured = whole.divergence(&x, &before) / tokens.len() as f64;
        let (rows, cols) = (w.rows, w.cols);
        whole.blocks[layer].projection_mut(projection).matrix = w;
        let matrix = MatrixId::Projection { layer, projection };
        let h = costs.for_matrix(matrix).unwrap();
        let h = |i: usize, j: usize| {
            let (i, j) = (i.max(j), i.min(j));
            f64::from(h.blocks[0].lower[i * (i + 1) / 2 + j])
        };
        let c = inputs.layers[layer].site(projection.input());
        let c = |i: usize, j: usize| {
            let (i, j) = (i.max(j), i.min(j));
            f64::from(c.second[i * (i + 1) / 2 + j])
        };
        // E C, then the trace with H E.
        let mut product = vec![0.0; rows * cols];
        for row in 0..rows {
            for col in 0..cols {
                let of = (0..cols).map(|k| error[row * cols + k] * c(k, col));
                product[row * cols + col] = of.sum();
            }
        }
        let mut predicted = 0.0;
        for i in 0..rows {
            for j in 0..rows {
                let pairs = (0..cols).map(|k| product[i * cols + k] * error[j * cols + k]);
                predicted += 0.5 * h(i, j) * pairs.sum::<f64>();
            }
        }
        let ratio = measured / predicted;
        println!("{projection}: {measured:.3e} is {ratio:.2} of what was predicted");
        assert!((0.3..3.0).contains(&ratio), "{projection}: {ratio}");
        predictions.0 += measured;
        predictions.1 += predicted;
    }
    let ratio = predictions.0 / predictions.1;
    assert!((0.7..1.4).contains(&ratio), "all: {ratio}");
}
