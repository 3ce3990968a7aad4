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
use crate::bounded_json;
use crate::limits::MAX_VALUES_OF_MANIFEST_1;
use crate::model::{
    BLOCK_KV, BlockRole, HyperParameters, InputGroup, MatrixId, Part, ProjectionKind, Role,
    split_block,
};

/// Prefix of the text of everything in a block, before its index.
const BLOCK: &str = "layers.";

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
    let mut json = bounded_json::parse(text, MAX_VALUES_OF_MANIFEST_1)?;
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
        #[serde(rename = "slot")]
        projection: ProjectionKind,
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
            let Slot { layer, projection } = Slot::deserialize(&*record)?;
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
    let (layer, name) = split_block(text, BLOCK)?;
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
            let (layer, projection) = split_block(text, BLOCK)?;
            let projection = projection.parse().ok()?;
            Some(MatrixId::Projection { layer, projection })
        }
    }
}

#[cfg(test)]
mod tests;
