//! From JSON to a plan that fits the model, or everything that does not fit.

use htc_formats::htz::Digest;
use htc_formats::model::{Form as FormName, HyperParameters, MatrixId, Slot};
use htc_formats::{DType, block};

use super::node::{KeyLines, Node, quoted};
use super::request::Wanted;
use super::{FORMAT, MAX_MISFITS, Misfit, Misfits, VERSION, named_slots};
use crate::plan::check::{Check, Fault, forms, may_have, rank_limit, together};
use crate::plan::form::Form;
use crate::plan::sources::SourceTypes;
use crate::plan::unit::{Member, UnitPlan};
use crate::plan::{Budget, Method, Plan, Request};

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
    source_type: &impl SourceTypes,
) -> Result<Plan, Misfits> {
    let mut checker = Checker::default();
    let plan = checker.plan(entries, lines, hyper, &source, source_type);
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
        source_type: &impl SourceTypes,
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
            "embedding",
            "head",
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
            embedding,
            head,
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
            None => Some(Wanted::default()),
        };
        let notes = match notes {
            Some((i, node)) => self.notes(at(i), node),
            None => Vec::new(),
        };
        let mut read = Units {
            hyper,
            method,
            source_type,
            // Whatever the method is, its name is what is wrong.
            check: Check::new(hyper, method.unwrap_or(Method::PerSlot), source_type),
            lines: Vec::new(),
            plans: Vec::new(),
        };
        let outside = [(MatrixId::Embedding, embedding), (MatrixId::Head, head)];
        let mut count = 0;
        for (matrix, value) in outside {
            if let Some((i, node)) = value {
                count += 1;
                self.outside(&mut read, at(i).line, matrix, node);
            }
        }
        match units {
            Some((i, Node::List(items))) => {
                let no_lines = KeyLines::default();
                let items_at = lines.get(i).unwrap_or(&no_lines);
                count += items.len();
                for (n, item) in items.into_iter().enumerate() {
                    let line = items_at.items.get(n).copied().unwrap_or(items_at.line);
                    self.unit(&mut read, UnitIn { line, number: n }, item);
                }
                if count == 0 && self.misfits.count == 0 {
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
        let plans = read.plans;
        let Wanted {
            budget,
            allocation,
            dense,
            slots,
            weighting,
        } = request?;
        let request = Request {
            method: method?,
            budget: budget.unwrap_or(Budget::FullRank),
            allocation,
            slots: slots.unwrap_or_else(|| named_slots(&plans)),
            factor_type: factor_type?,
            dense,
            weighting,
        };
        if self.misfits.count > 0 {
            return None;
        }
        match Plan::new(hyper, request, plans, notes, source_type) {
            Ok(mut plan) => {
                if budget.is_none() {
                    plan.request.budget = Budget::Ratio(plan.ratio());
                }
                Some(plan)
            }
            // Every unit was found to fit, one by one.
            Err(faults) => {
                for fault in faults {
                    self.misfit(top, fault.to_string());
                }
                None
            }
        }
    }

    fn method(&mut self, at: At, node: &Node) -> Option<Method> {
        match node {
            Node::Text(text) if text == Method::PerSlot.name() => Some(Method::PerSlot),
            Node::Text(text) if text == Method::SharedBasis.name() => Some(Method::SharedBasis),
            _ => self.wrong(at, "method", "gp or grc", node),
        }
    }

    pub(super) fn factor_type(&mut self, at: At, key: &str, node: &Node) -> Option<DType> {
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

    /// The embedding or the head.
    fn outside<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        line: usize,
        matrix: MatrixId,
        node: Node,
    ) {
        let place = matrix.name();
        let at = At { line, place };
        let Node::Object(entries) = node else {
            self.wrong::<()>(at, place, "an object", &node);
            return;
        };
        let known = ["form", "rank", "types", "notes"];
        let [form, rank, types, notes] = self.keys(entries, |_| line, place, known);
        let Some(member) = Member::new(matrix, read.hyper, read.source_type) else {
            let what = Fault::Absent { matrix }.to_string();
            // The place is said once.
            self.misfit(at, what.trim_start_matches(place).trim_start_matches(": "));
            return;
        };
        let given = Given {
            form,
            rank,
            types,
            notes,
        };
        self.read(read, at, vec![member], given);
    }

    fn unit<S: SourceTypes>(&mut self, read: &mut Units<S>, unit: UnitIn, node: Node) {
        let line = unit.line;
        let place = format!("unit {}", unit.number);
        let at = At {
            line,
            place: &place,
        };
        let Node::Object(entries) = node else {
            self.wrong::<()>(at, "unit", "an object", &node);
            return;
        };
        let known = ["layer", "slots", "form", "rank", "types", "notes"];
        let [layer, slots, form, rank, types, notes] = self.keys(entries, |_| line, &place, known);
        let last = read.hyper.layers as u64 - 1;
        let layer = match layer {
            Some((_, node)) => self.whole(at, "layer", (0, last), &node),
            None => self.missing(at, "layer"),
        };
        let slots = match slots {
            Some((_, node)) => self.slots(at, "slots", node),
            None => self.missing(at, "slots"),
        };
        let (Some(layer), Some(slots)) = (layer, slots) else {
            return;
        };
        let layer = layer as usize;
        let matrices = slots.iter().map(|&slot| MatrixId::Slot { layer, slot });
        let matrices: Vec<MatrixId> = matrices.collect();
        let shared = matches!(&form, Some((_, Node::Text(text))) if text == "shared_basis");
        if let Some(fault) = read.method.and_then(|m| together(m, &matrices, shared)) {
            self.misfit(at, fault.to_string());
            return;
        }
        let members = matrices.into_iter();
        let members = members.filter_map(|m| Member::new(m, read.hyper, read.source_type));
        let given = Given {
            form,
            rank,
            types,
            notes,
        };
        let members: Vec<Member> = members.collect();
        let names: Vec<&str> = members.iter().map(|m| m.matrix.name()).collect();
        let place = format!("layer {layer}: {}", names.join("+"));
        let at = At {
            line,
            place: &place,
        };
        self.read(read, at, members, given);
    }

    /// A unit of these matrices, of what its file says of it.
    fn read<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        at: At,
        members: Vec<Member>,
        given: Given,
    ) {
        let notes = match given.notes {
            Some((_, node)) => self.notes(at, node),
            None => Vec::new(),
        };
        let form = match (given.form, read.method) {
            (Some((_, node)), Some(method)) => {
                let kept = self.form(at, &node, method, &members);
                kept.and_then(|kept| self.stored(at, kept, &members, given.rank, given.types))
            }
            (Some(_), None) => None,
            (None, _) => self.missing(at, "form"),
        };
        let Some(form) = form else {
            return;
        };
        let mut unit = UnitPlan {
            members,
            form,
            notes,
        };
        for fault in read.check.unit(&unit) {
            let said = match fault {
                Fault::Twice { matrix, first } => {
                    let line = read.lines.get(first).copied().unwrap_or_default();
                    let name = matrix.name();
                    format!("slots: {name} of this layer stands on line {line} already")
                }
                fault => fault.to_string(),
            };
            self.misfit(at, said);
        }
        let (before, after) = (unit.bytes_before(), unit.bytes_after());
        if form != Form::Kept
            && after >= before
            && !unit.notes.iter().any(|note| note.starts_with("grows: "))
        {
            let what = match form.rank() {
                Some(_) => "the factors need",
                None => "its type needs",
            };
            let growth = format!("grows: {what} {after} bytes, the dense form {before}");
            unit.notes.push(growth);
        }
        read.lines.push(at.line);
        read.plans.push(unit);
    }

    pub(super) fn slots(&mut self, at: At, key: &str, node: Node) -> Option<Vec<Slot>> {
        let expected = "a list of slots, of q, k, v, o, gate, up, down";
        let items = match node {
            Node::List(items) if (1..=Slot::ALL.len()).contains(&items.len()) => items,
            node => return self.wrong(at, key, expected, &node),
        };
        let mut slots: Vec<Slot> = Vec::new();
        for item in &items {
            slots.push(self.parsed(at, key, expected, item)?);
        }
        slots.sort();
        if slots.windows(2).any(|pair| pair[0] == pair[1]) {
            let names: Vec<&str> = slots.iter().map(|s| s.name()).collect();
            self.misfit(
                at,
                format!("{key}: expected each once, found {}", names.join(", ")),
            );
            return None;
        }
        Some(slots)
    }

    /// The form's name, where the matrices may have it.
    fn form(
        &mut self,
        at: At,
        node: &Node,
        method: Method,
        members: &[Member],
    ) -> Option<FormName> {
        let matrices: Vec<MatrixId> = members.iter().map(|m| m.matrix).collect();
        let name = match node {
            Node::Text(text) => FormName::ALL.into_iter().find(|name| name.name() == text),
            _ => None,
        };
        let fits = name.filter(|name| may_have(method, &matrices, name.name()));
        if fits.is_none() {
            let expected = matrices.first().map_or("", |&matrix| forms(method, matrix));
            self.wrong::<()>(at, "form", expected, node);
        }
        fits
    }

    /// The form with its rank and its types.
    fn stored(
        &mut self,
        at: At,
        form: FormName,
        members: &[Member],
        rank: Option<(usize, Node)>,
        types: Option<(usize, Node)>,
    ) -> Option<Form> {
        if form == FormName::Dense {
            if rank.is_some() {
                self.misfit(at, "rank: a dense unit has none");
            }
            if types.is_none() {
                return Some(Form::Kept);
            }
            let [weight] = self.types(at, types, ["weight"])?;
            return Some(Form::Dense { weight: weight? });
        }
        let limit = rank_limit(form == FormName::SharedBasis, members) as u64;
        let rank = match rank {
            Some((_, node)) => self.whole(at, "rank", (1, limit), &node),
            None => self.missing(at, "rank"),
        };
        let rank = rank.map(|rank| rank as usize);
        Some(match form {
            FormName::SharedBasis => {
                let [basis, projected] = self.types(at, types, ["basis", "projected"])?;
                Form::SharedBasis {
                    rank: rank?,
                    basis: basis?,
                    projected: projected?,
                }
            }
            FormName::Residual => {
                let [base, a, b] = self.types(at, types, ["base", "a", "b"])?;
                Form::Residual {
                    base: base?,
                    rank: rank?,
                    a: a?,
                    b: b?,
                }
            }
            FormName::LowRank | FormName::Dense => {
                let [a, b] = self.types(at, types, ["a", "b"])?;
                Form::LowRank {
                    rank: rank?,
                    a: a?,
                    b: b?,
                }
            }
        })
    }

    /// The types of these tensors, each where it is one.
    fn types<const N: usize>(
        &mut self,
        at: At,
        types: Option<(usize, Node)>,
        keys: [&str; N],
    ) -> Option<[Option<DType>; N]> {
        let entries = match types {
            Some((_, Node::Object(entries))) => entries,
            Some((_, node)) => {
                let expected = format!("an object with {}", keys.join(" and "));
                return self.wrong(at, "types", &expected, &node);
            }
            None => return self.missing(at, "types"),
        };
        let values = self.keys(entries, |_| at.line, at.place, keys);
        let mut found = [None; N];
        for ((value, key), found) in values.into_iter().zip(keys).zip(&mut found) {
            let key = format!("types.{key}");
            *found = match value {
                Some((_, node)) => self.factor_type(at, &key, &node),
                None => self.missing(at, &key),
            };
        }
        Some(found)
    }
}

/// The units that were read so far.
struct Units<'a, S> {
    hyper: &'a HyperParameters,
    method: Option<Method>,
    source_type: &'a S,
    check: Check<'a, S>,
    /// The line of each.
    lines: Vec<usize>,
    plans: Vec<UnitPlan>,
}

/// A unit in its file.
#[derive(Clone, Copy)]
struct UnitIn {
    line: usize,
    /// Its place in the list, from 0.
    number: usize,
}

/// What a file says of a unit's form, not looked at yet.
struct Given {
    form: Option<(usize, Node)>,
    rank: Option<(usize, Node)>,
    types: Option<(usize, Node)>,
    notes: Option<(usize, Node)>,
}
