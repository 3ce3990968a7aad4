use std::path::PathBuf;

use super::*;
use crate::model::{Forward, SlidingWindow};
use crate::source::ModelFile;

fn hyper() -> HyperParameters {
    HyperParameters {
        architecture: "llama".to_owned(),
        name: None,
        vocabulary: 32,
        context: 32,
        width: 24,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_size: 16,
        ffn: 40,
        norm_epsilon: 1e-5,
        rope_theta: 1e4,
        rope_dimensions: 16,
        rope_linear_scale: 1.0,
        forward: Forward::default(),
    }
}

/// The models of all architectures, one without optional tensors, and one with experts.
fn specs() -> Vec<ModelSpec> {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures"
    );
    let folders = std::fs::read_dir(root).unwrap();
    let files = folders.map(|folder| folder.unwrap().path().join("model.gguf"));
    let files: Vec<PathBuf> = files.collect();
    assert!(files.len() > 8, "{files:?}");
    let of_file = |path: &PathBuf| ModelFile::open(path).unwrap().spec();
    let plain = ModelSpec::new(&hyper(), []);
    let experts = Experts {
        count: 3,
        used: 2,
        ffn: 20,
        normalised: true,
    };
    let forward = Forward {
        experts: Some(experts),
        ..Forward::default()
    };
    let with_experts = ModelSpec::new(&HyperParameters { forward, ..hyper() }, []);
    let others = [plain, with_experts];
    files.iter().map(of_file).chain(others).collect()
}

fn reads(step: &Step) -> Vec<Register> {
    match step {
        Step::Norm { input, .. } => vec![*input],
        Step::Project(step) => vec![step.input],
        Step::HeadNorm { heads, .. } => vec![heads.register],
        Step::Rope { heads, .. } => heads.map(|heads| heads.register).to_vec(),
        Step::Attention(step) => vec![step.queries.register, step.keys.register, Register::Value],
        Step::Activate { .. } => vec![Register::Gate, Register::Up],
        Step::Experts(_) => vec![Register::Normed],
        Step::Add { .. } => vec![Register::Residual, Register::Delta],
    }
}

#[test]
fn steps_read_what_was_written_before_in_their_block() {
    for spec in specs() {
        for block in &spec.blocks {
            let mut written = vec![Register::Residual];
            for step in &block.steps {
                for register in reads(step) {
                    assert!(written.contains(&register), "{register:?}: {step:?}");
                }
                written.extend(step.writes(spec.width).into_iter().map(|(of, _)| of));
            }
            let last = block.steps.last();
            assert!(matches!(last, Some(Step::Add { .. })), "{last:?}");
        }
    }
}

#[test]
fn registers_hold_every_row_that_is_written() {
    for spec in specs() {
        for step in spec.blocks.iter().flat_map(|block| &block.steps) {
            for (register, width) in step.writes(spec.width) {
                assert!(
                    width > 0 && width <= spec.register_width(register),
                    "{step:?}"
                );
            }
        }
    }
    let spec = ModelSpec::new(&hyper(), []);
    let widths = Register::ALL.map(|register| spec.register_width(register));
    assert_eq!(widths, [24, 24, 64, 32, 32, 64, 0, 0, 40, 40, 0, 24]);
}

/// Projections read rows of their width, and norms and sums those of the stream.
#[test]
fn rows_have_the_width_that_steps_read() {
    for spec in specs() {
        let mut widths = std::collections::HashMap::from([(Register::Residual, spec.width)]);
        for step in spec.blocks.iter().flat_map(|block| &block.steps) {
            let expected = |register: Register| match step {
                Step::Project(step) => step.projections[0].cols,
                Step::HeadNorm { heads, .. } => heads.width(),
                Step::Rope { heads, .. } => {
                    let mut heads = heads.iter().filter(|heads| heads.register == register);
                    heads.next().unwrap().width()
                }
                Step::Attention(step) if register == Register::Query => step.queries.width(),
                Step::Attention(step) => step.keys.width(),
                Step::Activate { width, .. } => *width,
                Step::Norm { .. } | Step::Add { .. } | Step::Experts(_) => spec.width,
            };
            for register in reads(step) {
                assert_eq!(
                    widths[&register],
                    expected(register),
                    "{register:?}: {step:?}"
                );
            }
            widths.extend(step.writes(spec.width));
        }
    }
}

#[test]
fn norms_follow_the_tensors() {
    let always = |layer| [Role::AttentionNorm { layer }, Role::FfnNorm { layer }];
    let plain = ModelSpec::new(&hyper(), []);
    for (layer, block) in plain.blocks.iter().enumerate() {
        assert_eq!(block.norms().collect::<Vec<_>>(), always(layer));
    }
    let layer = 1;
    let optional = [
        Role::QueryNorm { layer },
        Role::KeyNorm { layer },
        Role::PostAttentionNorm { layer },
        Role::PostFfnNorm { layer },
    ];
    for role in optional {
        let spec = ModelSpec::new(&hyper(), [role]);
        assert_eq!(spec.blocks[0], plain.blocks[0], "{role}");
        let norms: Vec<Role> = spec.blocks[layer].norms().collect();
        assert_eq!(norms.len(), 3, "{role}");
        assert!(norms.contains(&role), "{role}");
    }
    let all = ModelSpec::new(&hyper(), optional);
    let [attention, ffn] = always(layer);
    let [query, key, post_attention, post_ffn] = optional;
    let expected = [attention, query, key, post_attention, ffn, post_ffn];
    assert_eq!(all.blocks[layer].norms().collect::<Vec<_>>(), expected);
}

#[test]
fn biases_follow_the_tensors() {
    let (layer, projection, part) = (2, ProjectionKind::K, Part::Bias);
    let weight = Role::Linear {
        layer: 0,
        projection,
        part: Part::Weight,
    };
    let spec = ModelSpec::new(
        &hyper(),
        [
            weight,
            Role::Linear {
                layer,
                projection,
                part,
            },
        ],
    );
    let biased: Vec<MatrixId> = spec
        .projections()
        .filter(|projection| projection.bias)
        .map(Projection::matrix)
        .collect();
    assert_eq!(biased, [MatrixId::Projection { layer, projection }]);
}

#[test]
fn matrices_are_listed_in_the_order_of_execution() {
    for spec in specs() {
        let all: Vec<MatrixId> = spec.matrices().collect();
        assert!(all.is_sorted() && all.len() >= 7 * spec.blocks.len());
        let weights = all.iter().map(|matrix| matrix.weight());
        assert!(weights.is_sorted_by_key(Role::execution_order));
    }
}

#[test]
fn only_layers_with_a_window_of_their_own_base_rotate_locally() {
    let mut hyper = hyper();
    let mut window = SlidingWindow {
        positions: 8,
        full_layers: vec![1],
        rope_theta: Some(1e3),
    };
    let found = |hyper: &HyperParameters| -> Vec<(bool, Option<usize>)> {
        let spec = ModelSpec::new(hyper, []);
        let of_block = |block: &BlockSpec| {
            let (mut is_local, mut positions) = (false, None);
            for step in &block.steps {
                match step {
                    Step::Rope { local, .. } => is_local = *local,
                    Step::Attention(step) => positions = step.window,
                    _ => {}
                }
            }
            (is_local, positions)
        };
        spec.blocks.iter().map(of_block).collect()
    };
    hyper.forward.sliding_window = Some(window.clone());
    let (local, full) = ((true, Some(8)), (false, None));
    assert_eq!(found(&hyper), [local, full, local]);
    window.rope_theta = None;
    hyper.forward.sliding_window = Some(window);
    assert_eq!(found(&hyper), [(false, Some(8)), full, (false, Some(8))]);
}

#[test]
fn inputs_are_listed_once_in_the_order_of_execution() {
    let found = |hyper: &HyperParameters| -> Vec<(ActivationPoint, usize)> {
        let spec = ModelSpec::new(hyper, []);
        let inputs = spec.blocks[1].inputs().into_iter();
        inputs.map(|input| (input.point, input.width)).collect()
    };
    let attention = [
        (ActivationPoint::Attention, 24),
        (ActivationPoint::AttentionOutput, 64),
        (ActivationPoint::Ffn, 24),
    ];
    let hidden = [(ActivationPoint::FfnHidden, 40)];
    assert_eq!(found(&hyper()), [&attention[..], &hidden].concat());
    let mut with_experts = hyper();
    with_experts.forward.experts = Some(Experts {
        count: 2,
        used: 1,
        ffn: 20,
        normalised: true,
    });
    let experts = [
        (ActivationPoint::ExpertInput(0), 24),
        (ActivationPoint::ExpertHidden(0), 20),
        (ActivationPoint::ExpertInput(1), 24),
        (ActivationPoint::ExpertHidden(1), 20),
    ];
    assert_eq!(found(&with_experts), [&attention[..], &experts].concat());
}
