//! Units of a plan file: projections, embedding and head with form, rank and types.

use htc_formats::DType;
use htc_formats::bands::{CodeLayout, Codes};
use htc_formats::model::{Form as FormName, HyperParameters, MatrixId};

use super::check::{Checker, FilePosition};
use super::node::{KeyLines, Node};
use crate::options::DenseType;
use crate::plan::Method;
use crate::plan::check::{
    PlanChecker, PlanMismatch, allowed_forms, check_members, is_form_allowed, rank_limit,
};
use crate::plan::form::MatrixForm;
use crate::plan::sources::SourceTypes;
use crate::plan::unit::{UnitMatrix, UnitPlan, label, matrix_name};

const ALL_PROJECTIONS: &str = "a list of projections, of q, k, v, o, gate, up, down, router, \
     expert_gate.N, expert_up.N, expert_down.N";

pub(super) struct Units<'a, S> {
    method: Option<Method>,
    check: PlanChecker<'a, S>,
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
            method,
            // An invalid method is already reported, so any value does.
            check: PlanChecker::new(hyper, method.unwrap_or(Method::PerProjection), source_type),
            lines: Vec::new(),
            plans: Vec::new(),
        }
    }
}

/// Raw values of a unit's form.
struct RawForm {
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
        at: FilePosition,
        lines: &KeyLines,
        items: Vec<Node>,
    ) {
        for (number, item) in items.into_iter().enumerate() {
            let line = lines.items.get(number).copied().unwrap_or(lines.line);
            self.unit(read, line, number, item);
        }
        if read.plans.is_empty() && self.misfits.count == 0 {
            self.report(at, "units: expected at least one unit, found none");
        }
    }

    pub(super) fn embedding_or_head<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        line: usize,
        matrix: MatrixId,
        node: Node,
    ) {
        let place = matrix.name();
        let at = FilePosition { line, place };
        let Node::Object(entries) = node else {
            self.report_type::<()>(at, place, "an object", &node);
            return;
        };
        let known = ["form", "rank", "types", "notes"];
        let [form, rank, types, notes] = self.keys(entries, |_| line, place, known);
        let Some(member) = UnitMatrix::new(matrix, read.check.hyper, read.check.source_type) else {
            let what = PlanMismatch::Absent { matrix }.to_string();
            // The key names the matrix.
            let id = format!("{matrix}: ");
            self.report(at, what.strip_prefix(&id).unwrap_or(&what));
            return;
        };
        let given = RawForm {
            form,
            rank,
            types,
            notes,
        };
        self.read(read, at, vec![member], given);
    }

    /// `number` is the index in the list, from 0.
    fn unit<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        line: usize,
        number: usize,
        node: Node,
    ) {
        let place = format!("unit {number}");
        let at = FilePosition {
            line,
            place: &place,
        };
        let Node::Object(entries) = node else {
            self.report_type::<()>(at, "unit", "an object", &node);
            return;
        };
        let known = ["layer", "projections", "form", "rank", "types", "notes"];
        let [layer, projections, form, rank, types, notes] =
            self.keys(entries, |_| line, &place, known);
        let last = read.check.hyper.layers as u64 - 1;
        let layer = match layer {
            Some((_, node)) => self.parse_integer(at, "layer", 0..=last, &node),
            None => self.report_missing(at, "layer"),
        };
        let projections = match projections {
            Some((_, node)) => {
                self.projections(at, "projections", node, ALL_PROJECTIONS, str::parse)
            }
            None => self.report_missing(at, "projections"),
        };
        let (Some(layer), Some(projections)) = (layer, projections) else {
            return;
        };
        let layer = layer as usize;
        let matrices = projections
            .iter()
            .map(|&projection| MatrixId::Projection { layer, projection });
        let matrices: Vec<MatrixId> = matrices.collect();
        let shared = matches!(&form, Some((_, Node::Text(text))) if text == "shared_basis");
        if let Some(fault) = read
            .method
            .and_then(|m| check_members(m, &matrices, shared))
        {
            self.report(at, fault.to_string());
            return;
        }
        let mut members = Vec::new();
        for matrix in matrices {
            match UnitMatrix::new(matrix, read.check.hyper, read.check.source_type) {
                Some(member) => members.push(member),
                None => {
                    let mismatch = PlanMismatch::Absent { matrix };
                    return self.report(at, format!("projections: {mismatch}"));
                }
            }
        }
        let given = RawForm {
            form,
            rank,
            types,
            notes,
        };
        let place = label(&members);
        let at = FilePosition {
            line,
            place: &place,
        };
        self.read(read, at, members, given);
    }

    fn read<S: SourceTypes>(
        &mut self,
        read: &mut Units<S>,
        at: FilePosition,
        members: Vec<UnitMatrix>,
        given: RawForm,
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
            (None, _) => self.report_missing(at, "form"),
        };
        let Some(form) = form else {
            return;
        };
        let mut unit = UnitPlan {
            members,
            form,
            notes,
        };
        for fault in read.check.check_unit(&unit) {
            let said = match fault {
                PlanMismatch::Twice { matrix, first } => {
                    let line = read.lines.get(first).copied().unwrap_or_default();
                    let name = matrix_name(matrix);
                    format!("projections: {name} of this layer stands on line {line} already")
                }
                fault => fault.to_string(),
            };
            self.report(at, said);
        }
        let (before, after) = (unit.bytes_before(), unit.bytes_after());
        if unit.form != MatrixForm::Unchanged
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
        at: FilePosition,
        node: &Node,
        method: Method,
        members: &[UnitMatrix],
    ) -> Option<FormName> {
        let matrices: Vec<MatrixId> = members.iter().map(|m| m.matrix).collect();
        let name = match node {
            Node::Text(text) => FormName::ALL.into_iter().find(|name| name.name() == text),
            _ => None,
        };
        let fits = name.filter(|name| is_form_allowed(method, &matrices, name.name()));
        if fits.is_none() {
            let expected = matrices
                .first()
                .map_or("", |&matrix| allowed_forms(method, matrix));
            self.report_type::<()>(at, "form", expected, node);
        }
        fits
    }

    fn stored(
        &mut self,
        at: FilePosition,
        form: FormName,
        members: &[UnitMatrix],
        rank: Option<(usize, Node)>,
        types: Option<(usize, Node)>,
    ) -> Option<MatrixForm> {
        if form == FormName::Dense {
            if rank.is_some() {
                self.report(at, "rank: a dense unit has none");
            }
            if types.is_none() {
                return Some(MatrixForm::Unchanged);
            }
            let cols = members.first().map_or(0, |member| member.cols);
            return self.dense(at, types, cols);
        }
        let limit = rank_limit(form == FormName::SharedBasis, members) as u64;
        let rank = match rank {
            Some((_, node)) => self.parse_integer(at, "rank", 1..=limit, &node),
            None => self.report_missing(at, "rank"),
        };
        let rank = rank.map(|rank| rank as usize);
        Some(match form {
            FormName::SharedBasis => {
                let [basis, projected] = self.types(at, types, ["basis", "projected"])?;
                MatrixForm::SharedBasis {
                    rank: rank?,
                    basis: basis?,
                    projected: projected?,
                }
            }
            FormName::Residual => {
                let [base, a, b] = self.types(at, types, ["base", "a", "b"])?;
                MatrixForm::Residual {
                    base: base?,
                    rank: rank?,
                    a: a?,
                    b: b?,
                }
            }
            FormName::LowRank | FormName::Dense => {
                let [a, b] = self.types(at, types, ["a", "b"])?;
                MatrixForm::LowRank {
                    rank: rank?,
                    a: a?,
                    b: b?,
                }
            }
        })
    }

    fn dense(
        &mut self,
        at: FilePosition,
        types: Option<(usize, Node)>,
        cols: usize,
    ) -> Option<MatrixForm> {
        let key = "types.weight";
        let [weight] = self.raw_types(at, types, ["weight"])?;
        let Some((_, node)) = weight else {
            return self.report_missing(at, key);
        };
        let codes = match &node {
            Node::Text(text) if text.contains(':') => Some(text.parse()),
            Node::Text(text) => match text.parse() {
                Ok(DenseType::ColumnGroups(code)) => {
                    Some(Codes::uniform(code, cols).map(CodeLayout::from))
                }
                _ => None,
            },
            _ => None,
        };
        match codes {
            Some(Ok(codes)) => Some(MatrixForm::ColumnGroups { codes }),
            Some(Err(error)) => {
                self.report(at, format!("{key}: {error}"));
                None
            }
            None => match self.dense_type(at, key, &node)? {
                DenseType::Blocks(weight) => Some(MatrixForm::Dense { weight }),
                DenseType::ColumnGroups(_) => None,
            },
        }
    }

    fn types<const N: usize>(
        &mut self,
        at: FilePosition,
        types: Option<(usize, Node)>,
        keys: [&str; N],
    ) -> Option<[Option<DType>; N]> {
        let values = self.raw_types(at, types, keys)?;
        let mut found = [None; N];
        for ((value, key), found) in values.into_iter().zip(keys).zip(&mut found) {
            let key = format!("types.{key}");
            *found = match value {
                Some((_, node)) => self.factor_type(at, &key, &node),
                None => self.report_missing(at, &key),
            };
        }
        Some(found)
    }

    fn raw_types<const N: usize>(
        &mut self,
        at: FilePosition,
        types: Option<(usize, Node)>,
        keys: [&str; N],
    ) -> Option<[Option<(usize, Node)>; N]> {
        let entries = match types {
            Some((_, Node::Object(entries))) => entries,
            Some((_, node)) => {
                let expected = format!("an object with {}", keys.join(" and "));
                return self.report_type(at, "types", &expected, &node);
            }
            None => return self.report_missing(at, "types"),
        };
        Some(self.keys(entries, |_| at.line, at.place, keys))
    }
}
