//! The memory estimate against what passes keep.

use htc_kernels::Pool;
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::mixture::Models;
use super::whole::architectures;
use super::{WINDOWS, text};
use crate::event::Progress;
use crate::gradient::distil::Distillation;
use crate::gradient::memory::NumbersPerPosition;
use crate::gradient::scales::Scales;
use crate::gradient::values::{ValueGradients, Values};
use crate::gradient::weights::Blocks;

const CONTEXT: usize = 12;

#[test]
fn estimate_counts_the_numbers_of_a_pass_through_every_block() {
    let positions = WINDOWS * CONTEXT;
    let models = Models::new();
    for path in &models.paths {
        let model = Model::open(path).unwrap();
        let (pool, width) = (Pool::new(1).unwrap(), model.spec().width);
        let blocks: Blocks<f32> = Blocks::new(&model, CONTEXT);
        let (mut values, mut gradients) = (Values::default(), ValueGradients::default());
        for (layer, spec) in model.spec().blocks.iter().enumerate() {
            let block = blocks.load(layer, &pool).unwrap();
            let x = vec![0.5; positions * width];
            block.forward(&pool, &x, &mut values);
            block.backward(&pool, &x, &values, &mut gradients);
            let expected = NumbersPerPosition::count(spec, width);
            assert_eq!(values.numbers(), positions * expected.values);
            assert_eq!(gradients.numbers(), positions * expected.gradients);
        }
    }
}

/// The estimate of a distillation adds the heads to them.
#[test]
fn distillation_keeps_values_and_gradients_from_call_to_call() {
    let model = Model::open(&architectures()[0]).unwrap();
    let (tokens, _) = text(model.hyper().vocabulary, WINDOWS * CONTEXT);
    let cpu = Cpu::with_threads(1).unwrap();
    let models = [&model, &model];
    let mut pair = Distillation::new(models, cpu, CONTEXT, Progress::silent());
    let scales = Scales::from_models(model.file(), model.file()).unwrap();
    pair.gradients(&tokens, &scales).unwrap();
    let expected = NumbersPerPosition::count(&model.spec().blocks[0], model.spec().width);
    let found = (
        pair.passes.values.numbers(),
        pair.passes.gradients.numbers(),
    );
    let positions = tokens.len();
    let expected = (positions * expected.values, positions * expected.gradients);
    assert_eq!(found, expected);
}
