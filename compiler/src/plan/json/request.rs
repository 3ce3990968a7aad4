//! Request of a plan file.

use htc_formats::DType;
use htc_formats::model::ProjectionKind;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::check::{Checker, FilePosition};
use super::node::{Node, quoted};
use super::selected_projections;
use crate::options::{DenseChoice, PlanOptions};
use crate::plan::{Budget, Method, PlanRequest, UnitPlan};

const DENSE_PROJECTIONS: &str = "a list of projections, of q, k, v, o, gate, up, down";

/// Returns the request of a plan with these units; missing options are derived from the units.
pub(super) fn resolve(
    options: PlanOptions,
    method: Method,
    factor_type: DType,
    units: &[UnitPlan],
) -> PlanRequest {
    let options = PlanOptions {
        method: Some(method),
        factor_type: Some(factor_type),
        budget: options.budget.or(Some(Budget::FullRank)),
        dense_type: options.dense_type.or(Some(DenseChoice::Source)),
        ..options
    };
    let mut request = options.resolve(false);
    request.dense_types.selected = options.left_type;
    if options.projections.is_empty() {
        request.projections = selected_projections(units);
    }
    request
}

impl Checker {
    /// Deserialises every key alone first, so that all mismatches are reported.
    pub(super) fn request(
        &mut self,
        at: FilePosition,
        entries: Vec<(String, Node)>,
    ) -> Option<PlanOptions> {
        let before = self.misfits.count;
        let mut options = Map::new();
        for (key, node) in entries {
            let path = format!("request.{key}");
            // Also refuses empty and repeated projections.
            if key == "projections" {
                let (node, parse) = (node.clone(), ProjectionKind::parse_dense);
                // They also select those of experts.
                let read = self.projections(at, &path, node, DENSE_PROJECTIONS, parse);
                if read.is_none() {
                    continue;
                }
            }
            let alone = Map::from_iter([(key.clone(), node.to_json())]);
            match PlanOptions::deserialize(Value::Object(alone)) {
                Err(error) if error.to_string().starts_with("unknown field") => {
                    let expected = "an option of htc plan with _ for -, such as rank_cap";
                    let key = quoted(&key);
                    self.report(
                        at,
                        format!("request: unknown key {key}, expected {expected}"),
                    );
                }
                Err(error) => {
                    self.report(at, format!("{path}: {error}, found {}", node.describe()));
                }
                Ok(_) if options.contains_key(&key) => {
                    self.report(at, format!("the key {key} stands twice"));
                }
                Ok(_) if matches!(node, Node::Null) => {
                    let expected = "a value; leave the key out for its default";
                    self.report_type::<()>(at, &path, expected, &node);
                }
                // Serde keeps the last of repeated keys.
                Ok(_) if matches!(&node, Node::Object(entries) if entries.len() > 1) => {
                    self.report_type::<()>(at, &path, "an object of one key", &node);
                }
                Ok(_) => {
                    options.insert(key, node.to_json());
                }
            }
        }
        let options = PlanOptions::deserialize(Value::Object(options)).ok();
        options.filter(|_| self.misfits.count == before)
    }
}
