//! Conversion of JSON to a validated plan, with a list of all mismatches.

use std::ops::RangeInclusive;

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, ProjectionKind};
use htc_formats::{DType, block};

use super::node::{KeyLines, Node, quoted};
use super::request;
use super::units::Units;
use super::{FORMAT, MAX_LISTED_MISMATCHES, PlanFileMismatch, PlanFileMismatches, VERSION};
use crate::options::{DenseType, PlanOptions};
use crate::plan::sources::SourceTypes;
use crate::plan::{Budget, Method, Plan};

const MAX_NOTES: usize = 64;
const MAX_NOTE: usize = 1000;
const MAX_MESSAGE: usize = 300;

#[derive(Clone, Copy)]
pub(super) struct FilePosition<'a> {
    pub line: usize,
    pub place: &'a str,
}

/// Collects mismatches. Functions that return `None` have recorded one.
#[derive(Default)]
pub(super) struct Checker {
    pub misfits: PlanFileMismatches,
}

pub(super) fn plan(
    entries: Vec<(String, Node)>,
    lines: &[KeyLines],
    hyper: &HyperParameters,
    source: impl Fn() -> Digest,
    source_type: &impl SourceTypes,
) -> Result<Plan, PlanFileMismatches> {
    let mut checker = Checker::default();
    let plan = checker.plan(entries, lines, hyper, &source, source_type);
    match plan {
        Some(plan) if checker.misfits.count == 0 => Ok(plan),
        _ => Err(checker.misfits),
    }
}

impl Checker {
    pub(super) fn report(&mut self, at: FilePosition, what: impl AsRef<str>) {
        self.misfits.count += 1;
        if self.misfits.listed.len() < MAX_LISTED_MISMATCHES {
            self.misfits.listed.push(PlanFileMismatch {
                line: at.line,
                key: at.place.to_owned(),
                message: what.as_ref().chars().take(MAX_MESSAGE).collect(),
            });
        }
    }

    /// Returns the values of an object's keys in the order of `known`, each with its index in the
    /// object.
    pub(super) fn keys<const N: usize>(
        &mut self,
        entries: Vec<(String, Node)>,
        at: impl Fn(usize) -> usize,
        place: &str,
        known: [&str; N],
    ) -> [Option<(usize, Node)>; N] {
        let mut found = [const { None }; N];
        for (index, (key, value)) in entries.into_iter().enumerate() {
            let at = FilePosition {
                line: at(index),
                place,
            };
            match known.iter().position(|k| *k == key) {
                None => {
                    let key = quoted(&key);
                    self.report(
                        at,
                        format!("unknown key {key}, expected {}", known.join(", ")),
                    );
                }
                Some(n) if found[n].is_some() => {
                    self.report(at, format!("the key {key} stands twice"));
                }
                Some(n) => found[n] = Some((index, value)),
            }
        }
        found
    }

    pub(super) fn report_type<T>(
        &mut self,
        at: FilePosition,
        key: &str,
        expected: &str,
        found: &Node,
    ) -> Option<T> {
        self.report(
            at,
            format!("{key}: expected {expected}, found {}", found.describe()),
        );
        None
    }

    pub(super) fn report_missing<T>(&mut self, at: FilePosition, key: &str) -> Option<T> {
        self.report(at, format!("the key {key} is missing"));
        None
    }

    pub(super) fn parse_text<T: std::str::FromStr>(
        &mut self,
        at: FilePosition,
        key: &str,
        expected: &str,
        node: &Node,
    ) -> Option<T> {
        match node {
            Node::Text(text) => match text.parse() {
                Ok(value) => Some(value),
                Err(_) => self.report_type(at, key, expected, node),
            },
            _ => self.report_type(at, key, expected, node),
        }
    }

    pub(super) fn parse_integer(
        &mut self,
        at: FilePosition,
        key: &str,
        range: RangeInclusive<u64>,
        node: &Node,
    ) -> Option<u64> {
        match *node {
            Node::Integer(n) if range.contains(&n) => Some(n),
            _ => self.report_type(
                at,
                key,
                &format!("a whole number from {} to {}", range.start(), range.end()),
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
        let at = |index: usize| FilePosition {
            line: line(index),
            place,
        };
        let top = FilePosition { line: 1, place };
        self.version(&entries, at)?;
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
        self.check_header(top, at, [format, version, digest], source);
        let decided = self.read_header(top, at, [method, factor_type, request]);
        let (method, factor_type, request) = decided;
        let notes = notes.map_or_else(Vec::new, |(i, node)| self.notes(at(i), node));
        let mut read = Units::new(hyper, method, source_type);
        let outside = [(MatrixId::Embedding, embedding), (MatrixId::Head, head)];
        for (matrix, value) in outside {
            if let Some((i, node)) = value {
                self.embedding_or_head(&mut read, line(i), matrix, node);
            }
        }
        match units {
            Some((i, Node::List(items))) => {
                let items_at = lines.get(i).cloned().unwrap_or_default();
                self.units(&mut read, at(i), &items_at, items);
            }
            Some((i, node)) => {
                self.report_type::<()>(at(i), "units", "a list", &node);
            }
            None => {
                self.report_missing::<()>(top, "units");
            }
        }
        let plans = read.plans;
        let request = request?;
        let counted = request.budget.is_none();
        let request = request::resolve(request, method?, factor_type?, &plans);
        if self.misfits.count > 0 {
            return None;
        }
        let mut plan = match Plan::new(hyper, request, plans, notes, source_type) {
            Ok(plan) => plan,
            // Every unit has already passed on its own.
            Err(faults) => {
                for fault in faults {
                    self.report(top, fault.to_string());
                }
                return None;
            }
        };
        if counted {
            plan.request.budget = Budget::Ratio(plan.ratio());
        }
        Some(plan)
    }

    fn read_header<'a>(
        &mut self,
        top: FilePosition,
        at: impl Fn(usize) -> FilePosition<'a>,
        [method, factor_type, request]: [Option<(usize, Node)>; 3],
    ) -> (Option<Method>, Option<DType>, Option<PlanOptions>) {
        let method = match method {
            Some((i, node)) => {
                self.parse_text(at(i), "method", "low-rank, shared-basis or quantise", &node)
            }
            None => self.report_missing(top, "method"),
        };
        let factor_type = match factor_type {
            Some((i, node)) => self.factor_type(at(i), "factor_type", &node),
            None => self.report_missing(top, "factor_type"),
        };
        let request = match request {
            Some((i, Node::Object(entries))) => self.request(at(i), entries),
            Some((i, node)) => self.report_type(at(i), "request", "an object", &node),
            None => Some(PlanOptions::default()),
        };
        (method, factor_type, request)
    }

    /// Rejects other versions first, since their keys may differ in meaning.
    fn version<'a>(
        &mut self,
        entries: &[(String, Node)],
        at: impl Fn(usize) -> FilePosition<'a>,
    ) -> Option<()> {
        let index = entries.iter().position(|(key, _)| key == "version");
        match index {
            Some(index) if entries[index].1 != Node::Integer(VERSION) => {
                let expected = format!("{VERSION}, the version that this program reads");
                self.report_type(at(index), "version", &expected, &entries[index].1)
            }
            _ => Some(()),
        }
    }

    fn check_header<'a>(
        &mut self,
        top: FilePosition,
        at: impl Fn(usize) -> FilePosition<'a>,
        [format, version, digest]: [Option<(usize, Node)>; 3],
        source: &dyn Fn() -> Digest,
    ) {
        match format {
            Some((_, Node::Text(text))) if text == FORMAT => {}
            Some((i, node)) => {
                self.report_type::<()>(at(i), "format", &quoted(FORMAT), &node);
            }
            None => {
                self.report_missing::<()>(top, "format");
            }
        }
        if version.is_none() {
            self.report_missing::<()>(top, "version");
        }
        if let Some((i, node)) = digest {
            let source = source().to_string();
            let expected = format!("{source}, the digest of this model");
            match node {
                Node::Text(text) if text == source => {}
                node => {
                    self.report_type::<()>(at(i), "source_sha256", &expected, &node);
                }
            }
        }
    }

    pub(super) fn factor_type(
        &mut self,
        at: FilePosition,
        key: &str,
        node: &Node,
    ) -> Option<DType> {
        let names: Vec<&str> = block::writable_types().iter().map(|d| d.name()).collect();
        let expected = format!("one of {}", names.join(", "));
        let dtype: DType = self.parse_text(at, key, &expected, node)?;
        if block::writable_types().contains(&dtype) {
            Some(dtype)
        } else {
            self.report_type(at, key, &expected, node)
        }
    }

    pub(super) fn dense_type(
        &mut self,
        at: FilePosition,
        key: &str,
        node: &Node,
    ) -> Option<DenseType> {
        let expected = format!("one of {}", DenseType::names());
        self.parse_text(at, key, &expected, node)
    }

    pub(super) fn notes(&mut self, at: FilePosition, node: Node) -> Vec<String> {
        let expected =
            format!("at most {MAX_NOTES} texts of one line and at most {MAX_NOTE} characters");
        let Node::List(items) = node else {
            self.report_type::<()>(at, "notes", &expected, &node);
            return Vec::new();
        };
        if items.len() > MAX_NOTES {
            self.report_type::<()>(at, "notes", &expected, &Node::List(items));
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
                    self.report_type::<()>(at, "notes", &expected, &item);
                }
            }
        }
        notes
    }

    /// Reads projections, each once, that `parse` knows; `expected` describes the list.
    pub(super) fn projections(
        &mut self,
        at: FilePosition,
        key: &str,
        node: Node,
        expected: &str,
        parse: fn(&str) -> Result<ProjectionKind, String>,
    ) -> Option<Vec<ProjectionKind>> {
        let items = match node {
            Node::List(items) if (1..=ProjectionKind::ALL.len()).contains(&items.len()) => items,
            node => return self.report_type(at, key, expected, &node),
        };
        let mut projections: Vec<ProjectionKind> = Vec::new();
        for item in &items {
            let projection = match item {
                Node::Text(text) => parse(text).ok(),
                _ => None,
            };
            let Some(projection) = projection else {
                return self.report_type(at, key, expected, item);
            };
            projections.push(projection);
        }
        projections.sort();
        if projections.windows(2).any(|pair| pair[0] == pair[1]) {
            let names: Vec<String> = projections.iter().map(ToString::to_string).collect();
            self.report(
                at,
                format!("{key}: expected each once, found {}", names.join(", ")),
            );
            return None;
        }
        Some(projections)
    }
}
