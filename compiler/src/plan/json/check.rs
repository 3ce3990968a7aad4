//! From JSON to a plan that fits the model, or everything that does not fit.

use std::collections::HashMap;

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, Slot};
use htc_formats::{DType, block};

use super::node::{KeyLines, Node, quoted};
use super::{FORMAT, MAX_MISFITS, Misfit, Misfits, VERSION};
use crate::plan::allocate::Allocation;
use crate::plan::kind::MAX_ASPECT;
use crate::plan::unit::{Form, Member, UnitPlan};
use crate::plan::{Budget, Method, Plan, Request};
use crate::request::Asked;

/// Notes of a unit, or of a plan.
const MAX_NOTES: usize = 64;
/// Characters of a note.
const MAX_NOTE: usize = 1000;
/// Characters of what is said of a misfit.
const MAX_SAID: usize = 300;

/// Where something stands.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub line: usize,
    pub place: &'a str,
}

/// Collects what does not fit. Whatever returns `None` has said why.
#[derive(Default)]
pub(super) struct Checker {
    pub misfits: Misfits,
}

/// The checked plan.
pub(super) fn plan(
    entries: Vec<(String, Node)>,
    lines: &[KeyLines],
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: impl Fn(usize, Slot) -> DType,
) -> Result<Plan, Misfits> {
    let mut checker = Checker::default();
    let plan = checker.plan(entries, lines, hyper, &source, &source_type);
    match plan {
        Some(plan) if checker.misfits.count == 0 => Ok(plan),
        _ => Err(checker.misfits),
    }
}

impl Checker {
    fn misfit(&mut self, at: At, what: impl AsRef<str>) {
        self.misfits.count += 1;
        if self.misfits.listed.len() < MAX_MISFITS {
            self.misfits.listed.push(Misfit {
                line: at.line,
                place: at.place.to_owned(),
                what: what.as_ref().chars().take(MAX_SAID).collect(),
            });
        }
    }

    /// The values of an object's keys, each with its index in the object, in the order of `known`.
    pub(super) fn keys<const N: usize>(
        &mut self,
        entries: Vec<(String, Node)>,
        at: impl Fn(usize) -> usize,
        place: &str,
        known: [&str; N],
    ) -> [Option<(usize, Node)>; N] {
        let mut found = [const { None }; N];
        for (index, (key, value)) in entries.into_iter().enumerate() {
            let at = At {
                line: at(index),
                place,
            };
            match known.iter().position(|k| *k == key) {
                None => {
                    let key = quoted(&key);
                    self.misfit(
                        at,
                        format!("unknown key {key}, expected {}", known.join(", ")),
                    );
                }
                Some(n) if found[n].is_some() => {
                    self.misfit(at, format!("the key {key} stands twice"));
                }
                Some(n) => found[n] = Some((index, value)),
            }
        }
        found
    }

    pub(super) fn wrong<T>(
        &mut self,
        at: At,
        key: &str,
        expected: &str,
        found: &Node,
    ) -> Option<T> {
        self.misfit(
            at,
            format!("{key}: expected {expected}, found {}", found.describe()),
        );
        None
    }

    fn missing<T>(&mut self, at: At, key: &str) -> Option<T> {
        self.misfit(at, format!("the key {key} is missing"));
        None
    }

    /// A text that parses.
    pub(super) fn parsed<T: std::str::FromStr>(
        &mut self,
        at: At,
        key: &str,
        expected: &str,
        node: &Node,
    ) -> Option<T> {
        match node {
            Node::Text(text) => match text.parse() {
                Ok(value) => Some(value),
                Err(_) => self.wrong(at, key, expected, node),
            },
            _ => self.wrong(at, key, expected, node),
        }
    }

    pub(super) fn whole(
        &mut self,
        at: At,
        key: &str,
        (low, high): (u64, u64),
        node: &Node,
    ) -> Option<u64> {
        match *node {
            Node::Whole(n) if (low..=high).contains(&n) => Some(n),
            _ => self.wrong(
                at,
                key,
                &format!("a whole number from {low} to {high}"),
                node,
            ),
        }
    }

    fn plan(
        &mut self,
        entries: Vec<(String, Node)>,
        lines: &[KeyLines],
        hyper: &HyperParameters,
        source: &dyn Fn() -> Digest,
        source_type: &dyn Fn(usize, Slot) -> DType,
    ) -> Option<Plan> {
        let place = "the plan";
        let line = |index: usize| lines.get(index).map_or(1, |key| key.line);
        let known = [
            "format",
            "version",
            "source_sha256",
            "method",
            "factor_type",
            "request",
            "notes",
            "units",
        ];
        // What an older or newer version means by its other keys is not known.
        let version = entries.iter().position(|(key, _)| key == "version");
        if let Some(index) = version
            && entries[index].1 != Node::Whole(VERSION)
        {
            let at = At {
                line: line(index),
                place,
            };
            let expected = format!("{VERSION}, the version that this program reads");
            return self.wrong(at, "version", &expected, &entries[index].1);
        }
        let [
            format,
            version,
            digest,
            method,
            factor_type,
            request,
            notes,
            units,
        ] = self.keys(entries, line, place, known);
        let top = At { line: 1, place };
        let at = |index: usize| At {
            line: line(index),
            place,
        };
        match format {
            Some((_, Node::Text(text))) if text == FORMAT => {}
            Some((i, node)) => {
                self.wrong::<()>(at(i), "format", &quoted(FORMAT), &node);
            }
            None => {
                self.missing::<()>(top, "format");
            }
        }
        if version.is_none() {
            self.missing::<()>(top, "version");
        }
        if let Some((i, node)) = digest {
            let source = source().to_string();
            let expected = format!("{source}, the digest of this model");
            match node {
                Node::Text(text) if text == source => {}
                node => {
                    self.wrong::<()>(at(i), "source_sha256", &expected, &node);
                }
            }
        }
        let method = match method {
            Some((i, node)) => self.method(at(i), &node),
            None => self.missing(top, "method"),
        };
        let factor_type = match factor_type {
            Some((i, node)) => self.factor_type(at(i), "factor_type", &node),
            None => self.missing(top, "factor_type"),
        };
        let request = match request {
            Some((i, Node::Object(entries))) => self.request(at(i), entries),
            Some((i, node)) => self.wrong(at(i), "request", "an object", &node),
            None => Some((None, Allocation::default(), Asked::default())),
        };
        let notes = match notes {
            Some((i, node)) => self.notes(at(i), node),
            None => Vec::new(),
        };
        let mut plans = Vec::new();
        match units {
            Some((i, Node::List(items))) => {
                let mut seen = HashMap::new();
                let no_lines = KeyLines::default();
                let items_at = lines.get(i).unwrap_or(&no_lines);
                for (n, item) in items.into_iter().enumerate() {
                    let line = items_at.items.get(n).copied().unwrap_or(items_at.line);
                    let unit = UnitIn { line, number: n };
                    let unit = self.unit(unit, item, method, hyper, &mut seen, source_type);
                    plans.extend(unit);
                }
                if seen.is_empty() && self.misfits.count == 0 {
                    self.misfit(at(i), "units: expected at least one unit, found none");
                }
            }
            Some((i, node)) => {
                self.wrong::<()>(at(i), "units", "a list", &node);
            }
            None => {
                self.missing::<()>(top, "units");
            }
        }
        plans.sort_by_key(|u: &UnitPlan| (u.layer, u.members.first().map(|m| m.slot)));
        let slots = |s: &Slot| {
            let named = |u: &UnitPlan| u.members.iter().any(|m| m.slot == *s);
            plans.iter().any(named)
        };
        let slots = Slot::ALL.into_iter().filter(slots).collect();
        let (budget, allocation, weighting) = request?;
        let mut plan = Plan {
            request: Request {
                method: method?,
                budget: Budget::FullRank,
                allocation,
                slots,
                factor_type: factor_type?,
                weighting,
            },
            units: plans,
            notes,
        };
        plan.request.budget = budget.unwrap_or_else(|| Budget::Ratio(plan.ratio()));
        Some(plan)
    }

    fn method(&mut self, at: At, node: &Node) -> Option<Method> {
        match node {
            Node::Text(text) if text == Method::PerSlot.name() => Some(Method::PerSlot),
            Node::Text(text) if text == Method::SharedBasis.name() => Some(Method::SharedBasis),
            _ => self.wrong(at, "method", "gp or grc", node),
        }
    }

    fn factor_type(&mut self, at: At, key: &str, node: &Node) -> Option<DType> {
        let names: Vec<&str> = block::writable().iter().map(|d| d.name()).collect();
        let expected = format!("one of {}", names.join(", "));
        let dtype: DType = self.parsed(at, key, &expected, node)?;
        if block::writable().contains(&dtype) {
            Some(dtype)
        } else {
            self.wrong(at, key, &expected, node)
        }
    }

    fn notes(&mut self, at: At, node: Node) -> Vec<String> {
        let expected =
            format!("at most {MAX_NOTES} texts of one line and at most {MAX_NOTE} characters");
        let Node::List(items) = node else {
            self.wrong::<()>(at, "notes", &expected, &node);
            return Vec::new();
        };
        if items.len() > MAX_NOTES {
            self.wrong::<()>(at, "notes", &expected, &Node::List(items));
            return Vec::new();
        }
        let mut notes = Vec::new();
        for item in items {
            match item {
                Node::Text(text)
                    if text.chars().count() <= MAX_NOTE && !text.contains(char::is_control) =>
                {
                    notes.push(text);
                }
                item => {
                    self.wrong::<()>(at, "notes", &expected, &item);
                }
            }
        }
        notes
    }

    fn unit(
        &mut self,
        unit: UnitIn,
        node: Node,
        method: Option<Method>,
        hyper: &HyperParameters,
        seen: &mut HashMap<(usize, Slot), usize>,
        source_type: &dyn Fn(usize, Slot) -> DType,
    ) -> Option<UnitPlan> {
        let line = unit.line;
        let place = format!("unit {}", unit.number);
        let at = At {
            line,
            place: &place,
        };
        let Node::Object(entries) = node else {
            return self.wrong(at, "unit", "an object", &node);
        };
        let known = ["layer", "slots", "form", "rank", "types", "notes"];
        let [layer, slots, form, rank, types, notes] = self.keys(entries, |_| line, &place, known);
        let layer = match layer {
            Some((_, node)) => self.whole(at, "layer", (0, hyper.layers as u64 - 1), &node),
            None => self.missing(at, "layer"),
        };
        let slots = match slots {
            Some((_, node)) => self.slots(at, node, method),
            None => self.missing(at, "slots"),
        };
        let (layer, slots) = (layer? as usize, slots?);
        let names: Vec<&str> = slots.iter().map(|s| s.name()).collect();
        let place = format!("layer {layer}: {}", names.join("+"));
        let at = At {
            line,
            place: &place,
        };
        for &slot in &slots {
            if let Some(first) = seen.insert((layer, slot), line) {
                self.misfit(
                    at,
                    format!("slots: {slot} of this layer stands on line {first} already"),
                );
            }
        }
        let members: Vec<Member> = slots
            .iter()
            .map(|&slot| {
                let (rows, cols) = hyper.slot_shape(slot);
                Member {
                    slot,
                    rows,
                    cols,
                    source_type: source_type(layer, slot),
                }
            })
            .collect();
        let notes = notes.map_or_else(Vec::new, |(_, node)| self.notes(at, node));
        let form = match form {
            Some((_, node)) => self.form(at, &node, method),
            None => self.missing(at, "form"),
        };
        let form = match form? {
            Kept::Dense => {
                for (key, value) in [("rank", &rank), ("types", &types)] {
                    if value.is_some() {
                        self.misfit(at, format!("{key}: a dense unit has none"));
                    }
                }
                Form::Dense
            }
            Kept::Factored => self.factored(at, method?, &members, rank, types)?,
        };
        let mut unit = UnitPlan {
            layer,
            members,
            form,
            notes,
        };
        let (before, after) = (unit.bytes_before(), unit.bytes_after());
        if form != Form::Dense
            && after >= before
            && !unit.notes.iter().any(|note| note.starts_with("grows: "))
        {
            unit.notes.push(format!(
                "grows: the factors need {after} bytes, the dense form {before}"
            ));
        }
        Some(unit)
    }

    fn slots(&mut self, at: At, node: Node, method: Option<Method>) -> Option<Vec<Slot>> {
        let expected = "a list of slots, of q, k, v, o, gate, up, down";
        let items = match node {
            Node::List(items) if (1..=Slot::ALL.len()).contains(&items.len()) => items,
            node => return self.wrong(at, "slots", expected, &node),
        };
        let mut slots: Vec<Slot> = Vec::new();
        for item in &items {
            slots.push(self.parsed(at, "slots", expected, item)?);
        }
        slots.sort();
        let names: Vec<&str> = slots.iter().map(|s| s.name()).collect();
        let names = names.join(", ");
        if slots.windows(2).any(|pair| pair[0] == pair[1]) {
            self.misfit(at, format!("slots: expected each once, found {names}"));
            return None;
        }
        let group = slots[0].group();
        match method {
            Some(Method::PerSlot) if slots.len() > 1 => {
                self.misfit(
                    at,
                    format!("slots: expected one slot with the method gp, found {names}"),
                );
                None
            }
            Some(Method::SharedBasis)
                if group.is_none() || slots.iter().any(|s| s.group() != group) =>
            {
                self.misfit(
                    at,
                    format!(
                        "slots: expected some of q, k, v, or of gate, up, with the method grc, found {names}"
                    ),
                );
                None
            }
            _ => Some(slots),
        }
    }

    fn form(&mut self, at: At, node: &Node, method: Option<Method>) -> Option<Kept> {
        let (factored, with) = match method {
            Some(Method::PerSlot) => ("low_rank", " with the method gp"),
            Some(Method::SharedBasis) => ("shared_basis", " with the method grc"),
            None => ("low_rank or shared_basis", ""),
        };
        match node {
            Node::Text(text) if text == "dense" => Some(Kept::Dense),
            Node::Text(text) if text == factored => Some(Kept::Factored),
            // The method is what is wrong then, and that has been said.
            Node::Text(text) if method.is_none() && factored.contains(text.as_str()) => {
                Some(Kept::Factored)
            }
            _ => self.wrong(at, "form", &format!("dense or {factored}{with}"), node),
        }
    }

    fn factored(
        &mut self,
        at: At,
        method: Method,
        members: &[Member],
        rank: Option<(usize, Node)>,
        types: Option<(usize, Node)>,
    ) -> Option<Form> {
        let cols = members.first()?.cols;
        let outs: usize = members.iter().map(|m| m.rows).sum();
        let (limit, [first, second]) = match method {
            Method::PerSlot => (outs.min(cols), ["a", "b"]),
            Method::SharedBasis => (cols, ["basis", "projected"]),
        };
        if method == Method::SharedBasis && cols > MAX_ASPECT * outs {
            self.misfit(
                at,
                format!(
                    "slots: {cols} inputs are out of proportion to {outs} outputs; keep the unit dense"
                ),
            );
        }
        let rank = match rank {
            Some((_, node)) => self.whole(at, "rank", (1, limit as u64), &node),
            None => self.missing(at, "rank"),
        };
        let entries = match types {
            Some((_, Node::Object(entries))) => entries,
            Some((_, node)) => {
                let expected = format!("an object with {first} and {second}");
                return self.wrong(at, "types", &expected, &node);
            }
            None => return self.missing(at, "types"),
        };
        let values = self.keys(entries, |_| at.line, at.place, [first, second]);
        let mut dtypes = Vec::new();
        for ((value, key), length) in values
            .into_iter()
            .zip([first, second])
            .zip([Some(cols), rank.map(|r| r as usize)])
        {
            let key = format!("types.{key}");
            let dtype = match value {
                Some((_, node)) => self.factor_type(at, &key, &node),
                None => self.missing(at, &key),
            };
            if let (Some(dtype), Some(length)) = (dtype, length)
                && !length.is_multiple_of(dtype.block_len())
            {
                self.misfit(
                    at,
                    format!(
                        "{key}: rows of {length} numbers are not whole blocks of {}, which {dtype} has; \
                         expected f32, f16 or bf16, or another rank",
                        dtype.block_len()
                    ),
                );
            }
            dtypes.push(dtype);
        }
        let (rank, first, second) = (rank? as usize, dtypes[0]?, dtypes[1]?);
        Some(Form::factored(method, rank, first, second))
    }
}

/// A unit in its file.
#[derive(Clone, Copy)]
struct UnitIn {
    line: usize,
    /// Its place in the list, from 0.
    number: usize,
}

/// How a unit is to be stored.
#[derive(Clone, Copy)]
enum Kept {
    Dense,
    Factored,
}
