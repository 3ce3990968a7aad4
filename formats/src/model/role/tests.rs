use std::collections::BTreeSet;

use super::*;

/// Returns roles of every kind, of several layers and experts.
pub(crate) fn roles() -> Vec<Role> {
    let mut roles: Vec<Role> = MODEL_VECTORS.map(|(_, role)| role).into();
    let mut matrices = vec![MatrixId::Embedding, MatrixId::Head];
    let experts = [
        ProjectionKind::Router,
        ProjectionKind::ExpertGate(0),
        ProjectionKind::ExpertUp(17),
        ProjectionKind::ExpertDown(u16::MAX),
    ];
    for layer in [0, 12, 4095] {
        let vectors = BLOCK_VECTORS.iter().chain(&BLOCK_KV);
        roles.extend(vectors.map(|(_, role)| role(layer)));
        roles.extend(InputGroup::ALL.map(|group| Role::Basis { layer, group }));
        let kinds = ProjectionKind::ALL.into_iter().chain(experts);
        matrices.extend(kinds.map(|projection| MatrixId::Projection { layer, projection }));
    }
    for matrix in matrices {
        roles.extend(Part::ALL.into_iter().filter_map(|part| matrix.role(part)));
        roles.push(Role::Refinement { matrix });
    }
    roles
}

#[test]
fn roles_round_trip_through_text() {
    let roles = roles();
    assert!(roles.len() > 3 * 11 * 8);
    let texts: BTreeSet<String> = roles.iter().map(Role::to_string).collect();
    assert_eq!(texts.len(), roles.len());
    for role in roles {
        assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
    }
}

#[test]
fn roles_have_the_names_of_gguf() {
    let layer = 3;
    let part = |projection, part| Role::Linear {
        layer,
        projection,
        part,
    };
    for (role, text) in [
        (Role::TokenEmbedding, "token_embd.weight"),
        (Role::RopeFactors, "rope_freqs"),
        (Role::LongRopeFactors, "rope_factors_long"),
        (Role::AttentionNorm { layer }, "blk.3.attn_norm"),
        (part(ProjectionKind::Q, Part::Weight), "blk.3.attn_q.weight"),
        (part(ProjectionKind::O, Part::A), "blk.3.attn_output.a"),
        (part(ProjectionKind::K, Part::Bias), "blk.3.attn_k.bias"),
        (Role::QueryNorm { layer }, "blk.3.attn_q_norm"),
        (Role::KeyNorm { layer }, "blk.3.attn_k_norm"),
        (
            Role::PostAttentionNorm { layer },
            "blk.3.post_attention_norm",
        ),
        (Role::FfnNorm { layer }, "blk.3.ffn_norm"),
        (Role::PostFfnNorm { layer }, "blk.3.post_ffw_norm"),
        (
            part(ProjectionKind::Router, Part::Weight),
            "blk.3.ffn_gate_inp.weight",
        ),
        (
            part(ProjectionKind::ExpertDown(17), Part::Weight),
            "blk.3.ffn_down.17.weight",
        ),
        (Role::OutputNorm, "output_norm"),
        (Role::Output, "output.weight"),
        (Role::OutputFactor { part: Part::A }, "output.a"),
        (
            Role::Basis {
                layer,
                group: InputGroup::GateUp,
            },
            "blk.3.ffn_gate_up.basis",
        ),
        (
            Role::Refinement {
                matrix: MatrixId::Embedding,
            },
            "token_embd.refinement",
        ),
    ] {
        assert_eq!(role.to_string(), text);
        assert_eq!(text.parse(), Ok(role));
    }
}

#[test]
fn roles_sort_by_execution_order() {
    let layer = 3;
    let part = |projection, part| Role::Linear {
        layer,
        projection,
        part,
    };
    let ordered = [
        Role::TokenEmbedding,
        Role::RopeFactors,
        Role::LongRopeFactors,
        Role::PostFfnNorm { layer: 2 },
        Role::AttentionNorm { layer },
        Role::Basis {
            layer,
            group: InputGroup::Qkv,
        },
        part(ProjectionKind::Q, Part::A),
        part(ProjectionKind::Q, Part::B),
        part(ProjectionKind::Q, Part::Bias),
        part(ProjectionKind::K, Part::Projected),
        part(ProjectionKind::V, Part::Weight),
        part(ProjectionKind::V, Part::ResidualA),
        part(ProjectionKind::V, Part::ResidualB),
        part(ProjectionKind::V, Part::Bias),
        Role::QueryNorm { layer },
        Role::KeyNorm { layer },
        part(ProjectionKind::O, Part::Weight),
        Role::PostAttentionNorm { layer },
        Role::FfnNorm { layer },
        Role::Basis {
            layer,
            group: InputGroup::GateUp,
        },
        part(ProjectionKind::Gate, Part::Weight),
        part(ProjectionKind::Up, Part::Weight),
        part(ProjectionKind::Down, Part::Weight),
        part(ProjectionKind::Router, Part::Weight),
        part(ProjectionKind::ExpertGate(0), Part::Weight),
        part(ProjectionKind::ExpertUp(0), Part::Weight),
        part(ProjectionKind::ExpertDown(0), Part::Weight),
        part(ProjectionKind::ExpertGate(1), Part::Weight),
        part(ProjectionKind::ExpertDown(u16::MAX), Part::Bias),
        Role::PostFfnNorm { layer },
        Role::AttentionNorm { layer: 4 },
        Role::OutputNorm,
        Role::Output,
        Role::OutputFactor {
            part: Part::ResidualA,
        },
        Role::OutputFactor {
            part: Part::ResidualB,
        },
        Role::KvBasis {
            layer: 0,
            side: KvSide::Key,
        },
        Role::KvEnergies {
            layer: 0,
            side: KvSide::Key,
        },
        Role::KvBasis {
            layer: 0,
            side: KvSide::Value,
        },
        Role::KvEnergies {
            layer: 0,
            side: KvSide::Value,
        },
        Role::KvBasis {
            layer: 1,
            side: KvSide::Key,
        },
        Role::Refinement {
            matrix: MatrixId::Embedding,
        },
    ];
    assert!(ordered.is_sorted_by(|a, b| a.execution_order() < b.execution_order()));
}

#[test]
fn other_spellings_of_a_role_are_refused() {
    for text in [
        "",
        "blk",
        "blk.",
        "blk.3",
        "blk.03.attn_q.weight",
        "blk.+3.attn_q.weight",
        "blk.3.attn_q",
        "blk.3.attn_q.basis",
        "blk.3.key.basis",
        "blk.3.query_basis",
        "blk.03.key_basis",
        "key_basis",
        "blk.3.x.weight",
        "blk.3.attn_q.weight.a",
        "blk.3.attn_q.1.weight",
        "blk.3.ffn_gate.01.weight",
        "blk.3.ffn_gate.65536.weight",
        "blk.3.ffn_gate.weight.1",
        "blk.3.ffn_gate_inp.2.weight",
        "blk.3.attn_norm.weight",
        "blk.3.qkv.basis",
        "output",
        "output.bias",
        "output.projected",
        "output.",
        "token_embd",
        "token_embd.a",
        "blk.4096.attn_q.weight",
        "blk.99999999999999999999.attn_q.weight",
        "layers.3.q.weight",
        "token_embedding",
    ] {
        assert!(text.parse::<Role>().is_err(), "{text}");
    }
}
