//! Tests of the stored gradients: identity, reuse, damage and values.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use faer::Mat;
use htc_formats::folder::Folder;
use htc_formats::model::{MatrixId, ProjectionKind};
use htc_kernels::cpu::Cpu;

use super::whole::{Backward, Whole, architectures};
use crate::calibrate::calibration_windows;
use crate::calibrate::entry::CacheEntry;
use crate::calibrate::tests::calibrated;
use crate::event::{CancellationToken, Event, Progress};
use crate::gradient::files::{Files, Stage};
use crate::gradient::pass::draw;
use crate::gradient::sums::{BLOCK, MOST_FULL, OutputSums};
use crate::gradient::*;
use crate::options::{CalibrationOptions, CalibrationText, TextSource};
use crate::system::random::Rng;

fn demo(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    root.join(name)
}

fn options(cache: &Path) -> CalibrationOptions {
    let mut options = CalibrationOptions::new(demo("alice.txt"));
    options.texts.push(CalibrationText {
        source: TextSource::File(demo("time_machine.txt")),
        weight: 3.0,
    });
    options.context = Some(24);
    options.tokens = Some(24 * 9);
    options.cache = Some(cache.to_owned());
    options
}

const TOKENS: usize = 24 * 7;
const SOURCE: Digest = Digest([7; 32]);

fn made(
    path: &Path,
    cache: &Path,
    threads: usize,
    watch: Progress,
) -> Result<Gradients, PassError> {
    let model = Model::open(path).unwrap();
    gradients(&model, SOURCE, &options(cache), TOKENS, threads, watch)
}

fn numbers(of: &Gradients) -> Vec<OutputMoments> {
    let all = of.spec.matrices();
    let all = all.chain([MatrixId::Head, MatrixId::Embedding]);
    all.map(|matrix| of.for_matrix(matrix).unwrap()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert_eq!(entries.len(), 1, "one entry of the cache");
    let entry = entries[0].as_ref().unwrap().path();
    let names = Folder::open(&entry).unwrap().names().unwrap();
    let mut names: Vec<_> = names
        .iter()
        .map(|n| n.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Compares with a float64 pass without files.
#[test]
fn stored_moments_match_float64_gradients() {
    for path in architectures() {
        let cache = tempfile::tempdir().unwrap();
        let found = made(&path, cache.path(), 1, Progress::silent()).unwrap();
        let whole: Whole<f64> = Whole::open(&path, 24, 1);
        let text = calibration_windows(&whole.model, &options(cache.path())).unwrap();
        let text = text.thinned(7);
        let windows = text.windows();
        assert!(windows.count() < 18, "some are left out");
        assert_eq!(found.tokens, windows.tokens());
        let tokens: Vec<u32> = windows.iter().flatten().copied().collect();
        let first_of_second = (0..windows.count())
            .find(|&window| text.reweigh_factor_at(window).is_some())
            .unwrap();
        let weight = |row: usize| if row / 24 < first_of_second { 1.0 } else { 3.0 };
        let all: f64 = (0..tokens.len()).map(weight).sum();
        let x = whole.embed(&tokens);
        let draws: Vec<f64> = (0..tokens.len()).map(draw).collect();
        let Backward { projections, d, .. } = whole.back(&x, &draws);
        let same = |matrix: MatrixId, g: &[f64], scale: f64| {
            let moments = found.for_matrix(matrix).unwrap();
            let order = moments.diagonal.len();
            let [block] = &moments.blocks[..] else {
                panic!("{matrix}: one block");
            };
            assert_eq!((block.first, block.order), (0, order));
            let mut lower = block.lower.iter();
            let (mut trace, mut largest) = (0.0, 0.0f64);
            for i in 0..order {
                for j in 0..=i {
                    let rows = g.chunks_exact(order).enumerate();
                    let products = rows.map(|(row, g)| weight(row) * g[i] * g[j]);
                    let expected = scale * scale * products.sum::<f64>() / all;
                    let found = f64::from(*lower.next().unwrap());
                    largest = largest.max((found - expected).abs());
                    if i == j {
                        trace += expected;
                    }
                }
            }
            let mean = trace / order as f64;
            assert!(
                largest < 1e-3 * mean,
                "{}, {matrix}: {largest} of {mean}",
                path.display()
            );
            assert!((moments.mean_diagonal - mean).abs() < 1e-3 * mean);
        };
        for (layer, projection, g, _) in projections {
            same(MatrixId::Projection { layer, projection }, &g, 1.0);
        }
        let scale = whole.model.hyper().forward.embedding_scale;
        same(MatrixId::Embedding, &d, scale.unwrap_or(1.0).into());
        let shares = found.shares();
        for (token, share) in shares.into_iter().enumerate() {
            let rows = tokens
                .iter()
                .enumerate()
                .filter(|(_, of)| **of as usize == token);
            let expected: f64 = rows.map(|(row, _)| weight(row)).sum::<f64>() / all;
            assert!((f64::from(share) - expected).abs() < 1e-6);
        }
        let head = found.for_matrix(MatrixId::Head).unwrap();
        assert_eq!(head.diagonal.len(), whole.model.hyper().vocabulary);
        assert!(head.mean_diagonal > 0.0 && head.blocks.is_empty());
        let layer = whole.model.hyper().layers;
        let missing = MatrixId::Projection {
            layer,
            projection: ProjectionKind::Q,
        };
        assert_eq!(found.for_matrix(missing), None);
    }
}

/// Identical bits on any number of threads and when interrupted after any step.
#[test]
fn interrupted_pass_resumes_with_identical_bytes() {
    let path = &architectures()[0];
    let scratch = || tempfile::tempdir().unwrap();
    let whole = scratch();
    let made_now = made(path, whole.path(), 1, Progress::silent()).unwrap();
    let expected = numbers(&made_now);
    let found = made(path, whole.path(), 1, Progress::silent()).unwrap();
    assert!(made_now.is_new && !found.is_new);
    let (cache, threads) = (scratch(), scratch());
    assert_eq!(
        numbers(&made(path, threads.path(), 3, Progress::silent()).unwrap()),
        expected
    );
    let mut runs = 0;
    let found = loop {
        let cancel = CancellationToken::default();
        let left = Mutex::new(0);
        // Stops in the middle of the following step.
        let tell = |event: Event| match event {
            Event::Done(_) => cancel.cancel(),
            Event::Begin { steps, done, .. } => *left.lock().unwrap() = steps - done,
            _ => {}
        };
        let outcome = made(path, cache.path(), 1, Progress::new(&tell, &cancel));
        assert_eq!(left.into_inner().unwrap(), 6 - runs, "steps left");
        runs += 1;
        match outcome {
            Err(PassError::Cancelled(_)) if runs < 6 => {}
            Err(PassError::Cancelled(_)) => {
                break made(path, cache.path(), 1, Progress::silent()).unwrap();
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(numbers(&found), expected);
    // Two layers, the head, the embedding, and the lock.
    let kept = names(cache.path());
    let outputs = [
        "outputs-0000",
        "outputs-0001",
        "outputs-0002",
        "outputs-embedding",
    ];
    assert_eq!(kept, [&["lock"], &outputs[..]].concat());
    forget(&options(cache.path()), found.key).unwrap();
    assert_eq!(names(cache.path()), ["lock"]);
}

#[test]
fn damaged_file_is_recomputed() {
    let (path, cache) = (&architectures()[0], tempfile::tempdir().unwrap());
    let expected = numbers(&made(path, cache.path(), 1, Progress::silent()).unwrap());
    let entry = std::fs::read_dir(cache.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let file = entry.path().join("outputs-0001");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let said = Mutex::new(Vec::new());
    let tell = |event: Event| {
        if let Event::Warning(warning) = event {
            said.lock().unwrap().push(warning.to_owned());
        }
    };
    let (cancel, threads) = (CancellationToken::default(), 1);
    let found = made(path, cache.path(), threads, Progress::new(&tell, &cancel)).unwrap();
    assert_eq!(numbers(&found), expected);
    let said = said.into_inner().unwrap();
    assert!(
        said[0].contains("outputs-0001") && said[0].contains("made again"),
        "{said:?}"
    );
}

#[test]
fn insufficient_disk_space_is_refused() {
    let (path, cache) = (&architectures()[0], tempfile::tempdir().unwrap());
    let model = Model::open(path).unwrap();
    let key = Digest::of_bytes(b"key");
    let entry = CacheEntry::open_gradients(&options(cache.path()), key).unwrap();
    let files = Files::new(&entry, key, &model, 1 << 50);
    let refused = files.make_room(Stage::Forward(0)).unwrap_err();
    assert!(matches!(refused, PassError::NoSpaceForGradients { .. }));
    assert!(refused.to_string().contains("residual stream"), "{refused}");
}

#[test]
fn large_moments_are_stored_in_diagonal_blocks() {
    let order = MOST_FULL + 100;
    let mut random = Rng(1);
    let g: Vec<f32> = (0..3 * order).map(|_| random.normal() as f32).collect();
    let cpu = Cpu::with_threads(2).unwrap();
    let mut sums = OutputSums::new(order);
    sums.add(&cpu, &g);
    let means: Vec<Vec<f64>> = sums.means().collect();
    assert_eq!(means.len(), order.div_ceil(BLOCK));
    for (index, mean) in means.iter().enumerate() {
        let (mut at, first) = (0, index * BLOCK);
        for i in first..order.min(first + BLOCK) {
            for j in first..=i {
                let rows = g.chunks_exact(order);
                let sum: f64 = rows.map(|g| f64::from(g[i]) * f64::from(g[j])).sum();
                assert!((mean[at] - sum / 3.0).abs() < 1e-5, "{i}, {j}");
                at += 1;
            }
        }
        assert_eq!(at, mean.len());
    }
}

/// Compares `½ tr(H E C Eᵀ)` with the measured divergence of an error.
#[test]
fn moments_predict_divergence_of_errors() {
    const CONTEXT: usize = 128;
    let (path, cache) = (demo("reference-7m-f16.gguf"), tempfile::tempdir().unwrap());
    let mut options = CalibrationOptions::new(demo("alice.txt"));
    options.context = Some(CONTEXT);
    options.tokens = Some(16 * CONTEXT);
    options.cache = Some(cache.path().to_owned());
    let model = std::sync::Arc::new(Model::open(&path).unwrap());
    let nobody = Progress::silent();
    let inputs = calibrated(&model, SOURCE, &options, 2, nobody).unwrap();
    let costs = gradients(&model, SOURCE, &options, options.max_tokens(), 2, nobody).unwrap();
    let mut whole: Whole<f32> = Whole::open(&path, CONTEXT, 2);
    let text = calibration_windows(&model, &options).unwrap().thinned(4);
    let tokens: Vec<u32> = text.windows().iter().flatten().copied().collect();
    let vocabulary = model.hyper().vocabulary;
    let before = whole.logits(&whole.embed(&tokens));
    let divergence = |whole: &Whole<f32>| -> f64 {
        let after = whole.logits(&whole.embed(&tokens));
        let rows = before
            .chunks_exact(vocabulary)
            .zip(after.chunks_exact(vocabulary));
        let all: f64 = rows.map(|(p, q)| kl(p, q)).sum();
        all / tokens.len() as f64
    };
    let mut random = Rng(9);
    let projections: Vec<_> = whole.blocks[0].projections().map(|p| p.kind).collect();
    for (index, projection) in projections.into_iter().enumerate() {
        // Layers 0 to 7 in an order different from the projections.
        let layer = (3 * index) % model.hyper().layers;
        let w = whole.blocks[layer].projection(projection).matrix.clone();
        let rms = w.values.iter().map(|w| f64::from(w * w)).sum::<f64>() / w.values.len() as f64;
        let error = Mat::from_fn(w.rows, w.cols, |_, _| 0.03 * rms.sqrt() * random.normal());
        let moved = &mut whole.blocks[layer].projection_mut(projection).matrix.values;
        for (index, moved) in moved.iter_mut().enumerate() {
            *moved += error[(index / w.cols, index % w.cols)] as f32;
        }
        let measured = divergence(&whole);
        whole.blocks[layer].projection_mut(projection).matrix = w;
        let h = costs
            .for_matrix(MatrixId::Projection { layer, projection })
            .unwrap();
        let h = symmetric(&h.blocks[0].lower, error.nrows());
        let c = inputs.layers[layer].site(projection.input());
        let c = symmetric(&c.second, error.ncols());
        let product = &h * &error * &c;
        let trace: f64 = (0..error.nrows())
            .flat_map(|i| (0..error.ncols()).map(move |j| (i, j)))
            .map(|at| product[at] * error[at])
            .sum();
        let ratio = measured / (0.5 * trace);
        println!("layer {layer}, {projection}: {measured:.3e} is {ratio:.2} of what was predicted");
        assert!(
            (0.5..2.0).contains(&ratio),
            "layer {layer}, {projection}: {ratio}"
        );
    }
    // Tied: errors cost at lookups and at the logits.
    let width = model.hyper().width;
    let rms = whole
        .embedding
        .values
        .iter()
        .map(|w| f64::from(w * w))
        .sum::<f64>();
    let rms = (rms / whole.embedding.values.len() as f64).sqrt();
    let error: Vec<f64> = (0..vocabulary * width)
        .map(|_| 0.03 * rms * random.normal())
        .collect();
    let mut reads = vec![0.0; width * width];
    let (_, out) = whole.forward(&whole.embed(&tokens));
    for row in out.chunks_exact(width) {
        let square: f64 = row.iter().map(|x| f64::from(x * x)).sum();
        let r = 1.0 / (square / width as f64 + f64::from(model.hyper().norm_epsilon)).sqrt();
        let x: Vec<f64> = row
            .iter()
            .zip(&whole.norm)
            .map(|(&x, &w)| f64::from(x * w) * r)
            .collect();
        for (i, xi) in x.iter().enumerate() {
            for (j, xj) in x.iter().enumerate() {
                reads[i * width + j] += xi * xj / tokens.len() as f64;
            }
        }
    }
    let lookup = costs.for_matrix(MatrixId::Embedding).unwrap();
    let lookup = symmetric(&lookup.blocks[0].lower, width);
    let (logits, shares) = (costs.for_matrix(MatrixId::Head).unwrap(), costs.shares());
    let mut predicted = 0.0;
    for (token, error) in error.chunks_exact(width).enumerate() {
        for i in 0..width {
            for j in 0..width {
                let of = f64::from(shares[token]) * lookup[(i, j)]
                    + f64::from(logits.diagonal[token]) * reads[i * width + j];
                predicted += 0.5 * error[i] * of * error[j];
            }
        }
    }
    for (moved, error) in whole.embedding.values.iter_mut().zip(&error) {
        *moved += *error as f32;
    }
    let ratio = divergence(&whole) / predicted;
    println!("embedding: {ratio:.2} of what was predicted");
    assert!((0.5..2.0).contains(&ratio), "embedding: {ratio}");
}

fn symmetric(lower: &[f32], order: usize) -> Mat<f64> {
    Mat::from_fn(order, order, |i, j| {
        let (i, j) = (i.max(j), i.min(j));
        f64::from(lower[i * (i + 1) / 2 + j])
    })
}

/// `KL(p || q)` of two rows of logits.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| row.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
    let (of_p, of_q) = (log_sum(p), log_sum(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - of_p, f64::from(q) - of_q);
        p.exp() * (p - q)
    });
    terms.sum()
}
