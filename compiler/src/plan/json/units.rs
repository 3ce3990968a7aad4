//! Units of a plan file: projections, embedding and head with form, rank and types.

use htc_formats::DType;
use htc_formats::bands::{Codes, Layout};
use htc_formats::model::{Form as FormName, HyperParameters, MatrixId};

use super::check::{At, Checker};
use super::node::{KeyLines, Node};
use crate::plan::Method;
use crate::plan::check::{Check, Fault, forms, may_have, rank_limit, together};
use crate::plan::form::Form;
use crate::plan::sources::SourceTypes;
use crate::plan::unit::{Member, UnitPlan};
use crate::request::DenseType;

pub(super) struct Units<'a, S> {
    hyper: &'a HyperParameters,
    method: Option<Method>,
    source_type: &'a S,
    check: Check<'a, S>,
    lines: Vec<usize>,
    pub plans: Vec<UnitPlan>,
}

impl<'a, S: SourceTypes> Units<'a, S> {
    pub(super) fn new(
        hyper: &'a HyperParameters,
        method: Option<Method>,
        source_type: &'a S,
    ) -> Self {
        Units {
            hyper,
            method,
            source_type,
            // An invalid method is already reported, so any value does.
            check: Check::new(hyper, method.unwrap_or(Method::PerSlot), source_type),
            lines: Vec::new(),
            plans: Vec::new(),
        }
    }
}

#[derive(Clone, Copy)]
struct UnitIn {
    line: usize,
    /// Index in the list, from 0.
    number: usize,
}

/// Raw values of a unit's form.
struct Given {
    form: Option<(usize, Node)>,
    rank: Option<(usize, Node)>,
    types: Option<(usize, Node)>,
    notes: Option<(usize, Node)>,
}

impl Checker {
    /// Reads the list of units. The plan must have at least one unit, embedding or head.
    pub(super) fn units<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        at: At,
        lines: &KeyLines,
        items: Vec<Node>,
    ) {
        for (number, item) in items.into_iter().enumerate() {
            let line = lines.items.get(number).copied().unwrap_or(lines.line);
            self.unit(read, UnitIn { line, number }, item);
        }
        if read.plans.is_empty() && self.misfits.count == 0 {
            self.misfit(at, "units: expected at least one unit, found none");
        }
    }

    pub(super) fn outside<S: SourceTypes>(
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
            // Avoid repeating the key.
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
        if unit.form != Form::Kept
            && after >= before
            && !unit.notes.iter().any(|note| note.starts_with("grows: "))
        {
            let what = match unit.rank() {
                Some(_) => "the factors need",
                None => "its type needs",
            };
            let growth = format!("grows: {what} {after} bytes, the dense form {before}");
            unit.notes.push(growth);
        }
        read.lines.push(at.line);
        read.plans.push(unit);
    }

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
            let cols = members.first().map_or(0, |member| member.cols);
            return self.dense(at, types, cols);
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

    fn dense(&mut self, at: At, types: Option<(usize, Node)>, cols: usize) -> Option<Form> {
        let key = "types.weight";
        let [weight] = self.given(at, types, ["weight"])?;
        let Some((_, node)) = weight else {
            return self.missing(at, key);
        };
        let codes = match &node {
            Node::Text(text) if text.contains(':') => Some(text.parse()),
            Node::Text(text) => match text.parse() {
                Ok(DenseType::Bands(code)) => Some(Codes::uniform(code, cols).map(Layout::from)),
                _ => None,
            },
            _ => None,
        };
        match codes {
            Some(Ok(codes)) => Some(Form::Bands { codes }),
            Some(Err(error)) => {
                self.misfit(at, format!("{key}: {error}"));
                None
            }
            None => match self.dense_type(at, key, &node)? {
                DenseType::Blocks(weight) => Some(Form::Dense { weight }),
                DenseType::Bands(_) => None,
            },
        }
    }

    fn types<const N: usize>(
        &mut self,
        at: At,
        types: Option<(usize, Node)>,
        keys: [&str; N],
    ) -> Option<[Option<DType>; N]> {
        let values = self.given(at, types, keys)?;
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

    fn given<const N: usize>(
        &mut self,
        at: At,
        types: Option<(usize, Node)>,
        keys: [&str; N],
    ) -> Option<[Option<(usize, Node)>; N]> {
        let entries = match types {
            Some((_, Node::Object(entries))) => entries,
            Some((_, node)) => {
                let expected = format!("an object with {}", keys.join(" and "));
                return self.wrong(at, "types", &expected, &node);
            }
            None => return self.missing(at, "types"),
        };
        Some(self.keys(entries, |_| at.line, at.place, keys))
    }
}
