use super::*;
use crate::model::roles;

fn write_matrix(matrix: MatrixId) -> String {
    match matrix {
        MatrixId::Embedding => "embedding".to_owned(),
        MatrixId::Projection { layer, projection } => format!("layers.{layer}.{projection}"),
        MatrixId::Head => "head".to_owned(),
    }
}

/// Writes a role as a writer of format 1 did.
fn write_role(role: Role) -> String {
    if let Some((name, _)) = MODEL_TENSORS.iter().find(|(_, of)| *of == role) {
        return (*name).to_owned();
    }
    match role {
        Role::Refinement { matrix } => format!("{}.refinement", write_matrix(matrix)),
        Role::OutputFactor { part } => format!("output.{}", part.name()),
        Role::Basis { layer, group } => format!("layers.{layer}.{}.basis", group.name()),
        Role::Linear {
            layer,
            projection,
            part,
        } => format!("layers.{layer}.{projection}.{}", part.name()),
        role => {
            let layer = role.layer().unwrap();
            let mut names = BLOCK_VECTORS.iter().chain(&BLOCK_KV);
            let (name, _) = names.find(|(_, of)| of(layer) == role).unwrap();
            format!("layers.{layer}.{name}")
        }
    }
}

#[test]
fn every_role_of_version_1_is_read() {
    for role in roles() {
        let text = write_role(role);
        assert_eq!(parse_role(&text), Some(role), "{text}");
        if let Some((matrix, _)) = MatrixId::from_role(role) {
            assert_eq!(parse_matrix(&write_matrix(matrix)), Some(matrix));
        }
    }
}

#[test]
fn roles_are_translated() {
    for (old, new) in [
        ("token_embedding", "token_embd.weight"),
        ("rope_factors", "rope_freqs"),
        ("long_rope_factors", "rope_factors_long"),
        ("layers.3.attention_norm", "blk.3.attn_norm"),
        ("layers.3.qkv.basis", "blk.3.attn_qkv.basis"),
        ("layers.3.q.weight", "blk.3.attn_q.weight"),
        ("layers.3.k.bias", "blk.3.attn_k.bias"),
        ("layers.3.v.projected", "blk.3.attn_v.projected"),
        ("layers.3.query_norm", "blk.3.attn_q_norm"),
        ("layers.3.key_norm", "blk.3.attn_k_norm"),
        ("layers.3.o.residual_a", "blk.3.attn_output.residual_a"),
        ("layers.3.post_attention_norm", "blk.3.post_attention_norm"),
        ("layers.3.ffn_norm", "blk.3.ffn_norm"),
        ("layers.3.gate_up.basis", "blk.3.ffn_gate_up.basis"),
        ("layers.3.gate.a", "blk.3.ffn_gate.a"),
        ("layers.3.up.b", "blk.3.ffn_up.b"),
        ("layers.3.down.residual_b", "blk.3.ffn_down.residual_b"),
        ("layers.3.router.weight", "blk.3.ffn_gate_inp.weight"),
        ("layers.3.expert_gate.0.weight", "blk.3.ffn_gate.0.weight"),
        ("layers.3.expert_up.17.a", "blk.3.ffn_up.17.a"),
        ("layers.3.expert_down.65535.b", "blk.3.ffn_down.65535.b"),
        ("layers.3.post_ffn_norm", "blk.3.post_ffw_norm"),
        ("output_norm", "output_norm"),
        ("output", "output.weight"),
        ("output.a", "output.a"),
        ("output.residual_b", "output.residual_b"),
        ("layers.3.key_basis", "blk.3.key_basis"),
        ("layers.3.value_energies", "blk.3.value_energies"),
        ("embedding.refinement", "token_embd.refinement"),
        ("head.refinement", "output.refinement"),
        ("layers.3.down.refinement", "blk.3.ffn_down.refinement"),
    ] {
        let role = parse_role(old).unwrap();
        assert_eq!(role.to_string(), new);
        let section = translate_section(&format!("source.{old}"));
        assert_eq!(section, Some(format!("source.{new}")));
        let section = translate_section(&format!("source.{old}.3"));
        assert_eq!(section, Some(format!("source.{new}.3")));
    }
}

#[test]
fn other_spellings_are_refused() {
    for text in [
        "",
        "layers.3",
        "layers.03.q.weight",
        "layers.+3.q.weight",
        "layers.3.q.basis",
        "layers.3.key.basis",
        "layers.3.query_basis",
        "layers.3.x.weight",
        "layers.3.q.weight.a",
        "layers.3.q.1.weight",
        "layers.3.expert_gate.weight",
        "layers.3.expert_gate.01.weight",
        "layers.3.expert_gate.65536.weight",
        "layers.3.router.2.weight",
        "layers.99999999999999999999.q.weight",
        "layers.3.up.norm.refinement",
        "output.weight",
        "output.bias",
        "output.refinement",
        "token_embd.weight",
        "blk.3.attn_q.weight",
        "layers.3.attn_q.weight",
    ] {
        assert_eq!(parse_role(text), None, "{text}");
    }
    for text in ["", "layers.3", "layers.03.q", "q", "output", "blk.0.attn_q"] {
        assert_eq!(parse_matrix(text), None, "{text}");
    }
    assert_eq!(translate_section("source.layers.0.q"), None);
    assert_eq!(translate_section("tokenizer"), None);
}
