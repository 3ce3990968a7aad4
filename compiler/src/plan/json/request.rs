//! Request of a plan file.

use super::check::{Checker, FilePosition};
use super::node::Node;
use super::selected_projections;
use crate::plan::{Budget, Method, PlanRequest, UnitPlan};
use crate::request::{
    Allocation, CodeKinds, DenseTypes, Effort, KvBasesArg, LowRankArg, OrderArg, RotationArg,
    TreatmentRequest,
};
use htc_formats::DType;
use htc_formats::model::ProjectionKind;

#[derive(Default)]
pub(super) struct RequestInFile {
    pub budget: Option<Budget>,
    pub allocation: Allocation,
    pub dense: DenseTypes,
    pub codes: CodeKinds,
    pub low_rank: LowRankArg,
    pub rotation: RotationArg,
    pub slots: Option<Vec<ProjectionKind>>,
    pub order: Option<OrderArg>,
    pub kv_bases: KvBasesArg,
    pub treatment: TreatmentRequest,
    pub effort: Effort,
}

impl RequestInFile {
    /// Returns the request of a plan with these units; missing keys are derived from the units.
    pub(super) fn into_request(
        self,
        method: Method,
        factor_type: DType,
        units: &[UnitPlan],
    ) -> PlanRequest {
        let RequestInFile {
            budget,
            allocation,
            dense,
            codes,
            low_rank,
            rotation,
            slots,
            order,
            kv_bases,
            treatment,
            effort,
        } = self;
        PlanRequest {
            method,
            method_implied_by: None,
            budget: budget.unwrap_or(Budget::FullRank),
            allocation,
            projections: slots.unwrap_or_else(|| selected_projections(units)),
            factor_type,
            dense_types: dense,
            codes,
            low_rank,
            rotation,
            channel_permutation: order,
            kv_bases,
            treatment,
            effort,
        }
    }
}

impl Checker {
    pub(super) fn request(
        &mut self,
        at: FilePosition,
        entries: Vec<(String, Node)>,
    ) -> Option<RequestInFile> {
        let known = [
            "budget",
            "allocator",
            "rank_floor",
            "rank_cap",
            "first_positions",
            "dense_type",
            "left_type",
            "embedding_type",
            "codes",
            "low_rank",
            "rotation",
            "slots",
            "order",
            "kv_bases",
            "gauge",
            "sink",
            "bias",
            "shrinkage",
            "effort",
        ];
        let [
            budget,
            allocator,
            floor,
            cap,
            first,
            dense,
            left,
            outside,
            codes,
            low_rank,
            rotation,
            slots,
            order,
            kv_bases,
            gauge,
            sink,
            bias,
            shrinkage,
            effort,
        ] = self.keys(entries, |_| at.line, at.place, known);
        let before = self.misfits.count;
        let mut allocation = Allocation::default();
        let budget = budget.and_then(|(_, node)| self.budget(at, node));
        if let Some((_, node)) = allocator {
            let expected = "the name of an allocator";
            allocation.allocator = self
                .parse_text(at, "request.allocator", expected, &node)
                .unwrap_or_default();
        }
        if let Some((_, node)) = floor {
            let expected = "a text with a rank, or with a fraction of the width";
            allocation.floor = self.parse_text(at, "request.rank_floor", expected, &node);
        }
        if let Some((_, node)) = cap {
            let cap = self.parse_integer(at, "request.rank_cap", (1, u64::from(u32::MAX)), &node);
            allocation.cap = cap.map(|cap| cap as usize);
        }
        if let Some((_, node)) = first {
            let expected = "left-out or counted";
            allocation.first_positions = self
                .parse_text(at, "request.first_positions", expected, &node)
                .unwrap_or_default();
        }
        let mut types = DenseTypes::default();
        if let Some((_, node)) = dense {
            types.projections = self.dense_type(at, "request.dense_type", &node);
        }
        if let Some((_, node)) = left {
            types.selected = self.dense_type(at, "request.left_type", &node);
        }
        if let Some((_, node)) = outside {
            types.embedding_and_head = self.dense_type(at, "request.embedding_type", &node);
        }
        let codes = codes.and_then(|(_, node)| {
            let expected = "gguf, levels, trellis or all";
            self.parse_text(at, "request.codes", expected, &node)
        });
        let low_rank = low_rank
            .and_then(|(_, node)| self.parse_text(at, "request.low_rank", "on or off", &node));
        let rotation = rotation
            .and_then(|(_, node)| self.parse_text(at, "request.rotation", "on or off", &node));
        let slots = slots.and_then(|(_, node)| self.slots(at, "request.slots", node));
        let order =
            order.and_then(|(_, node)| self.parse_text(at, "request.order", "on or off", &node));
        let kv_bases = kv_bases
            .and_then(|(_, node)| self.parse_text(at, "request.kv_bases", "on or off", &node));
        let mut asked = TreatmentRequest::default();
        if let Some((_, node)) = gauge {
            let expected = "none, axiom, activation or whiten";
            asked.gauge = self.parse_text(at, "request.gauge", expected, &node);
        }
        if let Some((_, node)) = sink {
            let expected = "append, off, or channels:T with a whole number T of at least 1";
            asked.sink = self.parse_text(at, "request.sink", expected, &node);
        }
        if let Some((_, node)) = bias {
            asked.bias = self.parse_text(at, "request.bias", "auto, on or off", &node);
        }
        if let Some((_, node)) = shrinkage {
            let expected = "a text with auto or a number from 0 to 1";
            asked.shrinkage = self.parse_text(at, "request.shrinkage", expected, &node);
        }
        let mut asked_effort = Effort::default();
        if let Some((_, node)) = effort {
            asked_effort = self
                .parse_text(at, "request.effort", "fast, normal or high", &node)
                .unwrap_or_default();
        }
        (self.misfits.count == before).then_some(RequestInFile {
            budget,
            allocation,
            dense: types,
            codes: codes.unwrap_or_default(),
            low_rank: low_rank.unwrap_or_default(),
            rotation: rotation.unwrap_or_default(),
            slots,
            order,
            kv_bases: kv_bases.unwrap_or_default(),
            treatment: asked,
            effort: asked_effort,
        })
    }

    fn budget(&mut self, at: FilePosition, node: Node) -> Option<Budget> {
        let key = "request.budget";
        let expected = "\"full\", \"energy\", or an object with one of rank, ratio, parameters, bytes, mean_rank, file_size, bits";
        let mut entries = match node {
            Node::Text(text) if text == "full" => return Some(Budget::FullRank),
            Node::Text(text) if text == "energy" => return Some(Budget::Energy),
            Node::Object(entries) if entries.len() == 1 => entries,
            node => return self.report_type(at, key, expected, &node),
        };
        let (name, node) = entries.pop()?;
        let positive = match node {
            Node::Integer(n) => Some(n as f64),
            Node::Number(f) => Some(f),
            _ => None,
        };
        let positive = positive.filter(|f| f.is_finite() && *f > 0.0);
        let most = u64::MAX;
        match (name.as_str(), positive) {
            ("rank", _) => {
                let rank = self.parse_integer(at, key, (1, u64::from(u32::MAX)), &node)?;
                Some(Budget::Rank(rank as usize))
            }
            ("parameters", _) => Some(Budget::Parameters(self.parse_integer(
                at,
                key,
                (1, most),
                &node,
            )?)),
            ("bytes", _) => Some(Budget::Bytes(self.parse_integer(
                at,
                key,
                (1, most),
                &node,
            )?)),
            ("file_size", _) => Some(Budget::FileSize(self.parse_integer(
                at,
                key,
                (1, most),
                &node,
            )?)),
            ("bits", Some(bits)) => Some(Budget::Bits(bits)),
            ("ratio", Some(ratio)) => Some(Budget::Ratio(ratio)),
            ("mean_rank", Some(mean)) => Some(Budget::MeanRank(mean)),
            ("ratio" | "mean_rank" | "bits", None) => {
                self.report_type(at, key, "a finite number above 0", &node)
            }
            _ => self.report_type(at, key, expected, &Node::Text(name)),
        }
    }
}
