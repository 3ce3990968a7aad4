use std::collections::HashSet;

use super::*;
use crate::architecture::{SUPPORTED, qwen3moe};
use crate::model::{Part, ProjectionKind};

#[test]
fn every_role_of_an_architecture_has_one_name() {
    for architecture in SUPPORTED {
        for naming in [Naming::Gguf, Naming::HuggingFace] {
            let names = architecture.tensor_names(3, 2, naming);
            let first = |tensor: &NamedTensor| tensor.roles[0].execution_order();
            assert!(names.is_sorted_by_key(first));
            assert_eq!(names.len(), architecture.expected(3, 2, naming).count());
            let roles: Vec<Role> = names.iter().flat_map(|t| &t.roles).copied().collect();
            let unique: HashSet<Role> = roles.iter().copied().collect();
            assert_eq!(unique.len(), roles.len(), "{}", architecture.name);
            for role in [Role::TokenEmbedding, Role::FfnNorm { layer: 2 }] {
                assert!(unique.contains(&role));
            }
        }
    }
}

#[test]
fn experts_are_one_stack_in_gguf_and_one_tensor_each_in_folders() {
    let layer = 1;
    let down = |expert| Role::Linear {
        layer,
        projection: ProjectionKind::ExpertDown(expert),
        part: Part::Weight,
    };
    let find = |naming, name: &str| {
        let names = qwen3moe::ARCHITECTURE.tensor_names(2, 3, naming);
        let tensor = names.into_iter().find(|tensor| tensor.name == name);
        tensor.unwrap().roles
    };
    let stack = find(Naming::Gguf, "blk.1.ffn_down_exps.weight");
    assert_eq!(stack, [down(0), down(1), down(2)]);
    let name = "model.layers.1.mlp.experts.2.down_proj.weight";
    assert_eq!(find(Naming::HuggingFace, name), [down(2)]);
}
