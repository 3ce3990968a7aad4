//! Forward and backward pass of a whole model in memory.

use std::ops::Range;

use crate::calibrate::PassError;
use std::path::{Path, PathBuf};

use htc_formats::model::{MatrixId, ProjectionKind, Role};
use htc_kernels::Pool;
use htc_loader::Model;

use crate::gradient::attention::capped;
use crate::gradient::block::Block;
use crate::gradient::head::{Head, HeadWork, Rows};
use crate::gradient::number::Number;
use crate::gradient::steps::Step;
use crate::gradient::values::{ValueGradients, Values};
use crate::gradient::weights::{Blocks, Stored, required};

pub fn architectures() -> Vec<PathBuf> {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures"
    );
    let folders = std::fs::read_dir(root).unwrap();
    let files = folders.map(|folder| folder.unwrap().path().join("model.gguf"));
    let files: Vec<PathBuf> = files.collect();
    assert_eq!(files.len(), 9);
    files
}

/// A decoded model.
pub struct Whole<T> {
    pub model: Model,
    pub blocks: Vec<Block<T>>,
    pub norm: Vec<T>,
    pub embedding: Dense<T>,
    /// If not tied to the embedding.
    pub head: Option<Dense<T>>,
    pub pool: Pool,
}

/// Embedding or head matrix.
#[derive(Clone)]
pub struct Dense<T> {
    pub width: usize,
    pub values: Vec<T>,
}

impl<T: Number> Rows<T> for Dense<T> {
    fn rows(&self, rows: Range<usize>, out: &mut [T]) -> Result<(), PassError> {
        out.copy_from_slice(&self.values[rows.start * self.width..rows.end * self.width]);
        Ok(())
    }
}

impl<T: Number> Whole<T> {
    pub fn open(path: &Path, context: usize, threads: usize) -> Self {
        let model = Model::open(path).unwrap();
        let pool = Pool::new(threads).unwrap();
        let hyper = model.hyper();
        let blocks = Blocks::new(&model, context);
        let blocks = (0..hyper.layers).map(|layer| blocks.load(layer, &pool).unwrap());
        let blocks = blocks.collect();
        let dense = |role| -> Option<Dense<T>> {
            let stored = Stored::new(model.file(), role).ok()?;
            let mut values = vec![T::default(); hyper.vocabulary * hyper.width];
            stored.rows(0..hyper.vocabulary, &mut values).unwrap();
            let width = hyper.width;
            Some(Dense { width, values })
        };
        Whole {
            embedding: dense(MatrixId::Embedding.weight()).unwrap(),
            head: dense(MatrixId::Head.weight()),
            blocks,
            norm: required(model.file(), Role::OutputNorm).unwrap(),
            pool,
            model,
        }
    }

    fn head(&self) -> Head<'_, T, Dense<T>> {
        let matrix = self.head.as_ref().unwrap_or(&self.embedding);
        Head::new(&self.model, &self.norm, matrix)
    }

    /// Returns the initial residual stream.
    pub fn embed(&self, tokens: &[u32]) -> Vec<T> {
        let hyper = self.model.hyper();
        let mut x = vec![T::default(); tokens.len() * hyper.width];
        for (x, &token) in x.chunks_exact_mut(hyper.width).zip(tokens) {
            let token = token as usize;
            self.embedding.rows(token..token + 1, x).unwrap();
            let scale = T::from(hyper.forward.embedding_scale.unwrap_or(1.0));
            x.iter_mut().for_each(|x| *x *= scale);
        }
        x
    }

    /// Returns the values of every block, and the residual stream after the last.
    pub fn forward(&self, x: &[T]) -> (Vec<Values<T>>, Vec<T>) {
        let mut all: Vec<Values<T>> = Vec::new();
        let mut x = x.to_vec();
        for block in &self.blocks {
            let mut values = Values::default();
            x = block.forward(&self.pool, &x, &mut values).to_vec();
            all.push(values);
        }
        (all, x)
    }

    /// Returns the logits after the cap.
    pub fn logits(&self, x: &[T]) -> Vec<T> {
        let (_, out) = self.forward(x);
        let head = self.head();
        let mut work = HeadWork::default();
        let logits = head.logits(&self.pool, &out, &mut work).unwrap();
        logits.iter().map(|&l| capped(l, head.cap)[0]).collect()
    }

    /// Returns the weight of a norm.
    pub fn weight_of(&mut self, role: Role) -> &mut Vec<T> {
        let norms = self.blocks.iter_mut().flat_map(Block::norms_mut);
        let mut norms = norms.filter(|norm| norm.role == role);
        norms.next().map_or(&mut self.norm, |norm| &mut norm.weight)
    }

    /// Returns the summed divergence of logits from those of `x`.
    pub fn divergence(&self, x: &[T], expected: &[T]) -> f64 {
        let (found, vocabulary) = (self.logits(x), self.model.hyper().vocabulary);
        let rows = found
            .chunks_exact(vocabulary)
            .zip(expected.chunks_exact(vocabulary));
        let of_row = |(found, expected): (&[T], &[T])| -> f64 {
            let log = |row: &[T]| -> Vec<f64> {
                let all: f64 = row.iter().map(|&l| l.into().exp()).sum();
                row.iter().map(|&l| l.into() - all.ln()).collect()
            };
            let (found, expected) = (log(found), log(expected));
            let pairs = found.iter().zip(&expected);
            pairs.map(|(q, p)| p.exp() * (p - q)).sum()
        };
        rows.map(of_row).sum()
    }

    /// Returns the loss of labels.
    pub fn loss(&self, x: &[T], labels: &[usize]) -> f64 {
        let logits = self.logits(x);
        let rows = logits.chunks_exact(self.model.hyper().vocabulary);
        let of_row = |(row, &label): (&[T], &usize)| {
            let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
            row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[label]
        };
        rows.zip(labels).map(of_row).sum()
    }

    /// Returns the tokens drawn from the model.
    pub fn labels(&self, x: &[T], draws: &[f64]) -> Vec<usize> {
        let logits = self.logits(x);
        let rows = logits.chunks_exact(self.model.hyper().vocabulary);
        let of_row = |(row, &draw): (&[T], &f64)| {
            let weights: Vec<f64> = row.iter().map(|&l| l.into().exp()).collect();
            let all: f64 = weights.iter().sum();
            let below = |token: usize| weights[..=token].iter().sum::<f64>();
            (0..row.len())
                .find(|&token| below(token) > draw * all)
                .unwrap()
        };
        rows.zip(draws).map(of_row).collect()
    }

    /// Returns gradients and inputs by layer and projection, the embedding gradient, and the head's
    /// sums.
    pub fn back(&self, x: &[T], draws: &[f64]) -> Backward<T> {
        let (all, out) = self.forward(x);
        let vocabulary = self.model.hyper().vocabulary;
        let mut diagonal = vec![0.0; vocabulary];
        let mut d = vec![T::default(); x.len()];
        let (head, mut work) = (self.head(), HeadWork::default());
        work.norm = Some(vec![0.0; self.norm.len()]);
        head.back(&self.pool, &out, draws, &mut work, &mut diagonal, &mut d)
            .unwrap();
        let mut norms = vec![(Role::OutputNorm, work.norm.unwrap())];
        let mut projections = Vec::new();
        for (layer, block) in self.blocks.iter().enumerate().rev() {
            let (values, mut gradients) = (&all[layer], ValueGradients::default());
            let before = block.backward(&self.pool, &d, values, &mut gradients);
            d = before.to_vec();
            for step in &block.steps {
                for project in step.projects() {
                    projections.extend(project.projections.iter().map(|of| {
                        let (g, read) = (gradients.get(of.y), values.get(project.x));
                        (layer, of.kind, g.to_vec(), read.to_vec())
                    }));
                }
                if let Step::Norm(norm) = step {
                    let mut sums = vec![0.0; norm.weight.len()];
                    norm.add_weight_gradient(&self.pool, values, &gradients, &mut sums);
                    norms.push((norm.role, sums));
                }
            }
        }
        Backward {
            projections,
            d,
            diagonal,
            norms,
        }
    }
}

pub struct Backward<T> {
    pub projections: Vec<(usize, ProjectionKind, Vec<T>, Vec<T>)>,
    pub d: Vec<T>,
    pub diagonal: Vec<f64>,
    /// Gradients of all norm weights.
    pub norms: Vec<(Role, Vec<f64>)>,
}
