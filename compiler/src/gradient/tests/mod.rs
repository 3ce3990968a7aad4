//! Gradients against float64 finite differences, for every architecture.

mod distil;
mod experts;
mod kept;
mod memory;
mod mixture;
mod whole;

use htc_formats::model::ProjectionKind;

use super::block::Block;
use super::number::Number;
use super::steps::Projection;
use htc_formats::source::ModelFile;
use htc_kernels::Pool;
use htc_loader::backend::Reference;
use htc_loader::kv::KvType;
use htc_loader::{Model, Session};

use super::attention::capped;
use super::head::{Head, HeadWork};
use crate::system::random::Rng;
use mixture::Models;
use whole::{Backward, Dense, Whole};

/// No multiple of the tile, and longer than the models' sliding windows.
const CONTEXT: usize = 70;
const WINDOWS: usize = 2;

fn text(vocabulary: usize, tokens: usize) -> (Vec<u32>, Vec<f64>) {
    let mut random = Rng(7);
    let ids = (0..tokens)
        .map(|_| random.below(vocabulary) as u32)
        .collect();
    (ids, (0..tokens).map(|_| random.unit()).collect())
}

fn close(found: f64, expected: f64, what: &str) {
    let bound = 1e-6 * (1.0 + expected.abs());
    assert!(
        (found - expected).abs() < bound,
        "{what}: {found} for {expected}"
    );
}

/// Along a random direction in every matrix and at the embeddings.
#[test]
fn gradients_match_finite_differences() {
    const STEP: f64 = 1e-6;
    let models = Models::new();
    for path in &models.paths {
        let mut whole: Whole<f64> = Whole::open(path, CONTEXT, 1);
        let (tokens, draws) = text(whole.model.hyper().vocabulary, WINDOWS * CONTEXT);
        let x = whole.embed(&tokens);
        let labels = whole.labels(&x, &draws);
        let Backward { projections, d, .. } = whole.back(&x, &draws);
        let mut random = Rng(3);
        let direction: Vec<f64> = x.iter().map(|_| random.normal()).collect();
        let moved = |step: f64| -> Vec<f64> {
            x.iter()
                .zip(&direction)
                .map(|(x, d)| x + step * d)
                .collect()
        };
        let ends = [STEP, -STEP].map(|step| whole.loss(&moved(step), &labels));
        let expected = (ends[0] - ends[1]) / (2.0 * STEP);
        let found: f64 = d.iter().zip(&direction).map(|(a, b)| a * b).sum();
        let name = path.display();
        close(found, expected, &format!("{name}: embeddings"));
        assert_eq!(projections.len(), whole.model.spec().projections().count());
        for (layer, projection, g, read) in projections {
            let matrix = whole.blocks[layer].projection(projection).matrix.clone();
            let (rows, cols) = (matrix.rows, matrix.cols);
            let direction: Vec<f64> = matrix.values.iter().map(|_| random.normal()).collect();
            let mut end = |step: f64| {
                let values = &mut whole.blocks[layer].projection_mut(projection).matrix.values;
                for ((to, w), d) in values.iter_mut().zip(&matrix.values).zip(&direction) {
                    *to = w + step * d;
                }
                whole.loss(&x, &labels)
            };
            let expected = (end(STEP) - end(-STEP)) / (2.0 * STEP);
            end(0.0);
            let pairs = g.chunks_exact(rows).zip(read.chunks_exact(cols));
            let along = |(g, x): (&[f64], &[f64])| -> f64 {
                let of_row =
                    |(g, d): (&f64, &[f64])| g * d.iter().zip(x).map(|(d, x)| d * x).sum::<f64>();
                g.iter().zip(direction.chunks_exact(cols)).map(of_row).sum()
            };
            let found: f64 = pairs.map(along).sum();
            assert!(
                expected.abs() > 1e-3,
                "{name}: layer {layer}, {projection}: nothing to see"
            );
            close(
                found,
                expected,
                &format!("{name}: layer {layer}, {projection}"),
            );
        }
    }
}

#[test]
fn embedding_gradients_match_finite_differences() {
    const STEP: f64 = 1e-5;
    let models = Models::new();
    for path in &models.paths {
        let whole: Whole<f64> = Whole::open(path, 19, 1);
        let (tokens, draws) = text(whole.model.hyper().vocabulary, 2 * 19);
        let mut x = whole.embed(&tokens);
        let labels = whole.labels(&x, &draws);
        let d = whole.back(&x, &draws).d;
        let width = whole.model.hyper().width;
        for at in (0..x.len()).step_by(width + 1) {
            let before = x[at];
            let ends = [STEP, -STEP].map(|step| {
                x[at] = before + step;
                whole.loss(&x, &labels)
            });
            x[at] = before;
            let expected = (ends[0] - ends[1]) / (2.0 * STEP);
            let what = format!(
                "{}: position {}, {}",
                path.display(),
                at / width,
                at % width
            );
            close(d[at], expected, &what);
        }
    }
}

/// The second moments at the logits are averages over all choices.
#[test]
fn head_moments_average_over_all_tokens() {
    let models = Models::new();
    for path in &models.paths {
        let whole: Whole<f64> = Whole::open(path, 8, 1);
        let vocabulary = whole.model.hyper().vocabulary;
        let (tokens, draws) = text(vocabulary, 8);
        let x = whole.embed(&tokens);
        let found = whole.back(&x, &draws).diagonal;
        let logits = whole.logits(&x);
        let mut expected = vec![0.0; vocabulary];
        for row in logits.chunks_exact(vocabulary) {
            let all: f64 = row.iter().map(|l| l.exp()).sum();
            for (chosen, of_chosen) in row.iter().enumerate() {
                for (token, of_token) in row.iter().enumerate() {
                    let is = f64::from(u8::from(token == chosen));
                    let cap = whole.model.hyper().forward.logit_softcap.map(f64::from);
                    let slope = cap.map_or(1.0, |cap| 1.0 - (of_token / cap).powi(2));
                    let g = (of_token.exp() / all - is) * slope;
                    expected[token] += of_chosen.exp() / all * g * g;
                }
            }
        }
        for (found, expected) in found.iter().zip(expected) {
            close(*found, expected, "logit");
        }
    }
}

/// Logits match the loader's reference backend in both precisions, float32 gradients are near
/// float64, and threads do not change bits.
#[test]
fn pass_matches_the_reference_backend() {
    let models = Models::new();
    for path in &models.paths {
        let context = Model::open(path).unwrap().hyper().context.min(CONTEXT);
        let wide: Whole<f64> = Whole::open(path, context, 1);
        let (tokens, draws) = text(wide.model.hyper().vocabulary, context);
        let file = ModelFile::open(path).unwrap();
        let model = Model::load(file, &mut Reference).unwrap();
        let mut session = Session::with_kv_type(model, Reference, context, KvType::F32).unwrap();
        let mut expected = Vec::new();
        for token in &tokens {
            expected.extend_from_slice(session.step(&[*token]).unwrap());
        }
        let x = wide.embed(&tokens);
        let found = wide.logits(&x);
        let narrow: Whole<f32> = Whole::open(path, context, 1);
        let short = narrow.embed(&tokens);
        let of_float32 = narrow.logits(&short);
        for ((found, of_float32), expected) in found.iter().zip(of_float32).zip(&expected) {
            let expected = f64::from(*expected);
            let bound = 1e-4 * (1.0 + expected.abs());
            assert!(
                (found - expected).abs() < 0.1 * bound,
                "{found} for {expected}"
            );
            assert!(
                (f64::from(of_float32) - expected).abs() < bound,
                "{of_float32} for {expected}"
            );
        }
        let expected = wide.back(&x, &draws);
        let found = narrow.back(&short, &draws);
        for ((_, projection, found, _), (_, _, expected, _)) in
            found.projections.iter().zip(&expected.projections)
        {
            let largest = expected.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            for (found, expected) in found.iter().zip(expected) {
                let difference = (f64::from(*found) - expected).abs();
                assert!(
                    difference < 1e-3 * largest,
                    "{projection}: {found} for {expected}"
                );
            }
        }
        let threads: Whole<f32> = Whole::open(path, context, 3);
        let again = threads.back(&short, &draws);
        assert_eq!(again.d, found.d);
        for ((_, _, again, _), (_, _, found, _)) in again.projections.iter().zip(&found.projections)
        {
            assert_eq!(again, found);
        }
    }
}

#[test]
fn head_in_panels_matches_finite_differences() {
    const STEP: f64 = 1e-5;
    let (width, vocabulary, n) = (6, 9001, 70);
    let mut random = Rng(5);
    let mut normal = |count: usize| -> Vec<f64> { (0..count).map(|_| random.normal()).collect() };
    let matrix = Dense {
        width,
        values: normal(vocabulary * width),
    };
    let (norm, mut x, draws) = (normal(width), normal(n * width), vec![0.4; n]);
    let head = Head {
        vocabulary,
        norm: &norm,
        epsilon: 1e-5,
        cap: Some(5.0),
        matrix: &matrix,
    };
    let pool = Pool::new(2).unwrap();
    let (mut diagonal, mut d) = (vec![0.0; vocabulary], vec![0.0; n * width]);
    let mut work = HeadWork::default();
    head.back(&pool, &x, &draws, &mut work, &mut diagonal, &mut d)
        .unwrap();
    let row = 67;
    let logits = |x: &[f64]| -> Vec<f64> {
        let all = head
            .logits(&pool, x, &mut HeadWork::default())
            .map(|all| all.to_vec())
            .unwrap();
        let row = all[row * vocabulary..][..vocabulary].iter();
        row.map(|&l| capped(l, head.cap)[0]).collect()
    };
    let weights: Vec<f64> = logits(&x).iter().map(|l| l.exp()).collect();
    let all: f64 = weights.iter().sum();
    let mut below = 0.0;
    let chosen = weights.iter().position(|weight| {
        below += weight;
        below > 0.4 * all
    });
    let mut loss = |at: usize, step: f64| {
        let before = x[at];
        x[at] += step;
        let row = logits(&x);
        x[at] = before;
        row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[chosen.unwrap()]
    };
    for (at, found) in d.iter().enumerate().skip(row * width).take(width) {
        let expected = (loss(at, STEP) - loss(at, -STEP)) / (2.0 * STEP);
        close(*found, expected, "head");
    }
}

impl<T: Number> Block<T> {
    /// Returns a projection that the block has.
    pub fn projection(&self, kind: ProjectionKind) -> &Projection<T> {
        let mut projections = self.projections();
        projections
            .find(|projection| projection.kind == kind)
            .unwrap()
    }

    /// Returns a projection that the block has, to be changed.
    pub fn projection_mut(&mut self, kind: ProjectionKind) -> &mut Projection<T> {
        let mut projections = self.projections_mut();
        projections
            .find(|projection| projection.kind == kind)
            .unwrap()
    }
}
