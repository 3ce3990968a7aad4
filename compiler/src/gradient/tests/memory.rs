//! The memory estimate against what passes keep.

use std::path::Path;

use htc_kernels::Pool;
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::mixture::Models;
use super::whole::architectures;
use super::{WINDOWS, text};
use crate::event::Progress;
use crate::gradient::distil::Distillation;
use crate::gradient::memory::{NumbersPerPosition, kept_layers};
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
    let mut pair = pair_of(&model);
    let mut scales = Scales::from_models(model.file(), model.file()).unwrap();
    // Unlike the source's, so that gradients are not zero.
    let numbers = scales.values.iter_mut().flatten();
    numbers
        .enumerate()
        .for_each(|(index, number)| *number *= 1.0 + 0.01 * (index % 7) as f32);
    let found = pair.gradients(&tokens, &scales).unwrap();
    let expected = NumbersPerPosition::count(&model.spec().blocks[0], model.spec().width);
    let (values, gradients) = (
        tokens.len() * expected.values,
        tokens.len() * expected.gradients,
    );
    let kept: Vec<usize> = pair
        .passes
        .kept
        .iter()
        .map(|l| l.values.numbers())
        .collect();
    assert_eq!(kept, vec![values; model.hyper().layers]);
    assert_eq!(pair.passes.gradients.numbers(), gradients);

    assert!(found.0 > 0.0 && found.1.iter().flatten().any(|g| *g != 0.0));

    // Layers that are not kept have the same gradients.
    pair.passes.kept.truncate(1);
    assert_eq!(pair.gradients(&tokens, &scales).unwrap(), found);
    assert_eq!(pair.passes.values.numbers(), values);
    pair.passes.kept.clear();
    assert_eq!(pair.gradients(&tokens, &scales).unwrap(), found);
}

/// All of a small model, some of a larger one, and none with experts.
#[test]
fn kept_layers_are_bounded() {
    let of = |path: &Path, context| {
        let model = Model::open(path).unwrap();
        (kept_layers(model.spec(), context), model.hyper().layers)
    };
    let (kept, layers) = of(&architectures()[0], CONTEXT);
    assert_eq!(kept, layers);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo/reference-7m-f16.gguf");
    let (kept, layers) = of(&demo, 512);
    assert!(0 < kept && kept < layers, "{kept} of {layers}");
    let models = Models::new();
    let mixtures = models.paths.iter().skip(architectures().len());
    assert_eq!(
        mixtures.map(|path| of(path, CONTEXT).0).collect::<Vec<_>>(),
        [0, 0]
    );
}

fn pair_of(model: &Model) -> Distillation<'_> {
    let cpu = Cpu::with_threads(1).unwrap();
    Distillation::new([model, model], cpu, CONTEXT, Progress::silent())
}
