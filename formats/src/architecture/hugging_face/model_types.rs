//! Lookup of model types.

use super::config::Object;
use crate::architecture::BindError;
use crate::architecture::model_type::ModelType;
use crate::architecture::{Architecture, SUPPORTED};
use crate::escape::escape_truncated;

/// Keys that identify a mixture of experts.
const EXPERT_KEYS: [&str; 4] = [
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
];

pub(super) fn all() -> impl Iterator<Item = (&'static ModelType, &'static Architecture)> {
    SUPPORTED.iter().flat_map(|architecture| {
        let types = architecture.model_types.iter();
        types.map(|model| (model, *architecture))
    })
}

pub(super) fn lookup(
    config: &Object<'_>,
) -> Result<(&'static ModelType, &'static Architecture), BindError> {
    let found: &str = config.required("model_type")?;
    if let Some(known) = all().find(|(model, _)| model.name == found) {
        return Ok(known);
    }
    let has_experts = EXPERT_KEYS.iter().any(|key| config.has(key));
    let name = escape_truncated(found);
    Err(if config.has("vision_config") {
        BindError::Vision { found: name }
    } else if has_experts || found.contains("moe") {
        BindError::ExpertModel { found: name }
    } else {
        BindError::ModelType { found: name }
    })
}

pub(in crate::architecture) fn names() -> String {
    let names: Vec<&str> = all().map(|(model, _)| model.name).collect();
    names.join(", ")
}
