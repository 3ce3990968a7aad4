//! Manifests of format 1, which has other names for tensors and matrices.
//!
//! A manifest is translated into one of format 2 before it is deserialised. A role was
//! `layers.3.q.weight` or `token_embedding`, a matrix `layers.3.q`, `embedding` or `head`, and a
//! record named a projection by the keys `layer` and `slot`.

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Error, Value};

use super::Manifest;
use super::sealed::SECTION_PREFIX;
use crate::model::{
    BLOCK_KV, BlockRole, HyperParameters, InputGroup, MatrixId, Part, ProjectionKind, Role,
    parse_index,
};

const MODEL_TENSORS: [(&str, Role); 5] = [
    ("token_embedding", Role::TokenEmbedding),
    ("rope_factors", Role::RopeFactors),
    ("long_rope_factors", Role::LongRopeFactors),
    ("output_norm", Role::OutputNorm),
    ("output", Role::Output),
];

const BLOCK_VECTORS: [(&str, BlockRole); 6] = [
    ("attention_norm", |layer| Role::AttentionNorm { layer }),
    ("query_norm", |layer| Role::QueryNorm { layer }),
    ("key_norm", |layer| Role::KeyNorm { layer }),
    ("post_attention_norm", |layer| Role::PostAttentionNorm {
        layer,
    }),
    ("ffn_norm", |layer| Role::FfnNorm { layer }),
    ("post_ffn_norm", |layer| Role::PostFfnNorm { layer }),
];

/// Parses the manifest of an artifact of format 1.
pub(super) fn parse_manifest(text: &str) -> Result<Manifest, Error> {
    #[derive(Deserialize)]
    struct Hyper {
        hyper: HyperParameters,
    }
    let mut json: Value = serde_json::from_str(text)?;
    translate(&mut json)?;
    let mut manifest: Manifest = serde_json::from_value(json)?;
    // A `Value` rounds numbers to float64 before they are rounded to float32.
    manifest.hyper = serde_json::from_str::<Hyper>(text)?.hyper;
    Ok(manifest)
}

fn translate(manifest: &mut Value) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Tensor {
        role: String,
    }
    #[derive(Deserialize)]
    struct Matrix {
        matrix: String,
    }
    #[derive(Deserialize)]
    struct Slot {
        layer: usize,
        slot: ProjectionKind,
    }
    for table in ["/tensors", "/source/tensors"] {
        for entry in records(manifest, table) {
            let Tensor { role: text } = Tensor::deserialize(&*entry)?;
            let role = parse_role(&text);
            let role = role.ok_or_else(|| Error::custom(format!("unknown role {text:?}")))?;
            put(entry, "role", role.to_string());
        }
    }
    if let Some(Value::Object(plan)) = manifest.get_mut("plan") {
        let slots = plan.remove("slots");
        let slots = slots.ok_or_else(|| Error::missing_field("slots"))?;
        plan.insert("projections".to_owned(), slots);
    }
    for table in ["/plan/projections", "/geometry/spectra"] {
        for record in records(manifest, table) {
            let Slot { layer, slot } = Slot::deserialize(&*record)?;
            let projection = slot;
            let id = MatrixId::Projection { layer, projection };
            put(record, "id", id.to_string());
        }
    }
    for record in records(manifest, "/plan/matrices") {
        let Matrix { matrix: text } = Matrix::deserialize(&*record)?;
        let id = parse_matrix(&text);
        let id = id.ok_or_else(|| Error::custom(format!("unknown matrix {text:?}")))?;
        put(record, "id", id.to_string());
    }
    if manifest.get("source").is_some_and(Value::is_object) {
        for entry in records(manifest, "/sections") {
            if let Some(name) = entry.get("name").and_then(Value::as_str)
                && let Some(name) = translate_section(name)
            {
                put(entry, "name", name);
            }
        }
    }
    Ok(())
}

/// Returns the records of a list; none if there is no such list, which deserialisation reports if
/// it is required.
fn records<'a>(manifest: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = manifest.pointer_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn put(record: &mut Value, key: &str, text: String) {
    if let Value::Object(record) = record {
        record.insert(key.to_owned(), text.into());
    }
}

/// Returns the name of a section of the source in format 2.
fn translate_section(name: &str) -> Option<String> {
    let text = name.strip_prefix(SECTION_PREFIX)?;
    if let Some(role) = parse_role(text) {
        return Some(format!("{SECTION_PREFIX}{role}"));
    }
    let (text, part) = text.rsplit_once('.')?;
    Some(format!("{SECTION_PREFIX}{}.{part}", parse_role(text)?))
}

fn parse_role(text: &str) -> Option<Role> {
    if let Some((_, role)) = MODEL_TENSORS.iter().find(|(name, _)| *name == text) {
        return Some(*role);
    }
    if let Some(matrix) = text.strip_suffix(".refinement") {
        let matrix = parse_matrix(matrix)?;
        return Some(Role::Refinement { matrix });
    }
    if let Some(part) = text.strip_prefix("output.") {
        let role = MatrixId::Head.role(Part::from_name(part)?)?;
        return (role != Role::Output).then_some(role);
    }
    let (layer, name) = split_layer(text)?;
    match name.rsplit_once('.') {
        None => {
            let mut names = BLOCK_VECTORS.iter().chain(&BLOCK_KV);
            let (_, role) = names.find(|(of, _)| *of == name)?;
            Some(role(layer))
        }
        Some((group, "basis")) => {
            let mut groups = InputGroup::ALL.into_iter();
            let group = groups.find(|of| of.name() == group)?;
            Some(Role::Basis { layer, group })
        }
        Some((projection, part)) => Some(Role::Linear {
            layer,
            projection: projection.parse().ok()?,
            part: Part::from_name(part)?,
        }),
    }
}

fn parse_matrix(text: &str) -> Option<MatrixId> {
    match text {
        "embedding" => Some(MatrixId::Embedding),
        "head" => Some(MatrixId::Head),
        _ => {
            let (layer, projection) = split_layer(text)?;
            let projection = projection.parse().ok()?;
            Some(MatrixId::Projection { layer, projection })
        }
    }
}

fn split_layer(text: &str) -> Option<(usize, &str)> {
    let (layer, name) = text.strip_prefix("layers.")?.split_once('.')?;
    Some((parse_index(layer)?, name))
}

#[cfg(test)]
mod tests {
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
}
