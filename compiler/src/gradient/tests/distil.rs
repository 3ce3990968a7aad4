//! Gradients with respect to norms, and of the divergence from a source.

use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::whole::{Backward, Whole, architectures};
use super::{CONTEXT, WINDOWS, close, text};
use crate::event::Watch;
use crate::gradient::distil::{Distillation, Norms};
use crate::system::random::Rng;

const STEP: f64 = 1e-6;

/// Along a random direction in the weight of every norm, whatever the architecture has of them.
#[test]
fn gradients_of_norms_are_finite_differences() {
    let mut seen = 0;
    for path in architectures() {
        let mut whole: Whole<f64> = Whole::open(&path, CONTEXT, 1);
        let (tokens, draws) = text(whole.model.hyper().vocabulary, WINDOWS * CONTEXT);
        let x = whole.embed(&tokens);
        let labels = whole.labels(&x, &draws);
        let Backward { norms, .. } = whole.back(&x, &draws);
        let all = Norms::of(whole.model.file()).unwrap();
        assert_eq!(norms.len(), all.roles.len());
        let mut random = Rng(5);
        for (role, found) in norms {
            assert!(all.roles.contains(&role));
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

/// Of a model whose norms were changed, from itself: each number of every norm, by differences in float64. The bits
/// are the same on several threads.
#[test]
fn gradients_of_the_divergence_are_finite_differences() {
    const CONTEXT: usize = 16;
    const STEP: f64 = 1e-5;
    for path in architectures() {
        let mut whole: Whole<f64> = Whole::open(&path, CONTEXT, 1);
        let model = Model::open(&path).unwrap();
        let (tokens, _) = text(model.hyper().vocabulary, 3 * CONTEXT);
        let x = whole.embed(&tokens);
        let expected = whole.logits(&x);
        let mut norms = Norms::of(model.file()).unwrap();
        let mut random = Rng(11);
        let numbers = norms.values.iter_mut().flatten();
        numbers.for_each(|number| *number *= 1.0 + 0.2 * random.normal() as f32);
        for (role, values) in norms.roles.iter().zip(&norms.values) {
            *whole.weight_of(*role) = values.iter().map(|&x| f64::from(x)).collect();
        }
        let of = |threads| {
            let cpu = Cpu::with_threads(threads).unwrap();
            let models = [&model, &model];
            let mut pair = Distillation::new(models, cpu, CONTEXT, Watch::nobody());
            pair.gradients(&tokens, &norms).unwrap()
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
        let largest = gradients
            .iter()
            .flatten()
            .fold(0.0, |m: f64, g| m.max(g.abs()));
        assert!(largest > 1e-6, "{name}: nothing to see");
        for (role, gradients) in norms.roles.iter().zip(&gradients) {
            for at in (0..gradients.len()).step_by(5) {
                let before = whole.weight_of(*role)[at];
                let ends = [STEP, -STEP].map(|step| {
                    whole.weight_of(*role)[at] = before + step;
                    whole.divergence(&x, &expected) / positions
                });
                whole.weight_of(*role)[at] = before;
                let expected = (ends[0] - ends[1]) / (2.0 * STEP);
                let difference = (gradients[at] - expected).abs();
                assert!(
                    difference < 2e-3 * largest,
                    "{name}: {role} {at}: {} for {expected}, the largest is {largest}",
                    gradients[at]
                );
            }
        }
    }
}
