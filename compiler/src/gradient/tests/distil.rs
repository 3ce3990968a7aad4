//! Gradients of norms and of the divergence from a source.

use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::whole::{Backward, Whole, architectures};
use super::{CONTEXT, WINDOWS, close, text};
use crate::event::Progress;
use crate::gradient::distil::Distillation;
use crate::gradient::scales::{Scale, Scales};
use crate::system::random::Rng;

const STEP: f64 = 1e-6;

/// Along a random direction in the weight of every norm.
#[test]
fn norm_gradients_match_finite_differences() {
    let mut seen = 0;
    for path in architectures() {
        let mut whole: Whole<f64> = Whole::open(&path, CONTEXT, 1);
        let (tokens, draws) = text(whole.model.hyper().vocabulary, WINDOWS * CONTEXT);
        let x = whole.embed(&tokens);
        let labels = whole.labels(&x, &draws);
        let Backward { norms, .. } = whole.back(&x, &draws);
        let file = whole.model.file();
        let all = Scales::from_models(file, file).unwrap();
        assert_eq!(norms.len(), all.of.len(), "nothing is in codes");
        let mut random = Rng(5);
        for (role, found) in norms {
            assert!(all.of.contains(&Scale::Norm(role)));
            let weight = whole.weight_of(role).clone();
            let direction: Vec<f64> = weight.iter().map(|_| random.normal()).collect();
            let mut end = |step: f64| {
                let moved = weight.iter().zip(&direction).map(|(w, d)| w + step * d);
                *whole.weight_of(role) = moved.collect();
                whole.loss(&x, &labels)
            };
            let expected = (end(STEP) - end(-STEP)) / (2.0 * STEP);
            end(0.0);
            let found: f64 = found.iter().zip(&direction).map(|(a, b)| a * b).sum();
            assert!(expected.abs() > 1e-3, "{role}: nothing to see");
            close(found, expected, &format!("{}: {role}", path.display()));
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} norms");
}

/// Divergence of a model with changed norms and rows from itself, with float64 differences;
/// identical bits on several threads.
#[test]
fn divergence_gradients_match_finite_differences() {
    const CONTEXT: usize = 16;
    const STEP: f64 = 1e-5;
    for path in architectures() {
        let mut whole: Whole<f64> = Whole::open(&path, CONTEXT, 1);
        let model = Model::open(&path).unwrap();
        let (tokens, _) = text(model.hyper().vocabulary, 3 * CONTEXT);
        let x = whole.embed(&tokens);
        let expected = whole.logits(&x);
        let before = whole.blocks.clone();
        let mut scales = with_all_rows(
            Scales::from_models(model.file(), model.file()).unwrap(),
            &whole,
        );
        let mut random = Rng(11);
        let numbers = scales.values.iter_mut().flatten();
        numbers.for_each(|number| *number *= 1.0 + 0.2 * random.normal() as f32);
        let put = |whole: &mut Whole<f64>, scale: Scale, values: &[f64]| match scale {
            Scale::Norm(role) => *whole.weight_of(role) = values.to_vec(),
            Scale::Rows { layer, projection } => {
                let from = &before[layer].projection(projection).matrix;
                let to = &mut whole.blocks[layer].projection_mut(projection).matrix;
                for (index, (to, w)) in to.values.iter_mut().zip(&from.values).enumerate() {
                    *to = w * values[index / from.cols];
                }
            }
        };
        let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&x| x.into()).collect() };
        for (&scale, values) in scales.of.iter().zip(&scales.values) {
            put(&mut whole, scale, &wide(values));
        }
        let of = |threads| {
            let cpu = Cpu::with_threads(threads).unwrap();
            let models = [&model, &model];
            let mut pair = Distillation::new(models, cpu, CONTEXT, Progress::silent());
            pair.gradients(&tokens, &scales).unwrap()
        };
        let (divergence, gradients) = of(1);
        assert_eq!(of(3), (divergence, gradients.clone()), "threads");
        let positions = tokens.len() as f64;
        let name = path.display();
        let wanted = whole.divergence(&x, &expected) / positions;
        assert!(
            (divergence / wanted - 1.0).abs() < 1e-3,
            "{name}: {divergence} for {wanted}"
        );
        let each = scales.of.iter().zip(&scales.values).zip(&gradients);
        for ((&scale, values), gradients) in each {
            let largest = gradients.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
            assert!(largest > 1e-7, "{name}: {scale:?}: nothing to see");
            for at in (0..gradients.len()).step_by(gradients.len().div_ceil(12)) {
                let ends = [STEP, -STEP].map(|step| {
                    let mut moved = wide(values);
                    moved[at] += step;
                    put(&mut whole, scale, &moved);
                    whole.divergence(&x, &expected) / positions
                });
                let expected = (ends[0] - ends[1]) / (2.0 * STEP);
                let difference = (gradients[at] - expected).abs();
                assert!(
                    difference < 4e-3 * largest + 1e-6,
                    "{name}: {scale:?} {at}: {} for {expected}, the largest is {largest}",
                    gradients[at]
                );
            }
            put(&mut whole, scale, &wide(values));
        }
    }
}

fn with_all_rows(mut scales: Scales, whole: &Whole<f64>) -> Scales {
    for (layer, block) in whole.blocks.iter().enumerate() {
        for projection in block.projections() {
            scales.of.push(Scale::Rows {
                layer,
                projection: projection.kind,
            });
            scales.values.push(vec![1.0; projection.matrix.rows]);
        }
    }
    scales
}
