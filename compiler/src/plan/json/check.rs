//! Conversion of JSON to a validated plan, with a list of all mismatches.

use htc_formats::htz::Digest;
use htc_formats::model::{HyperParameters, MatrixId, Slot};
use htc_formats::{DType, block};

use super::node::{KeyLines, Node, quoted};
use super::request::RequestInFile;
use super::units::Units;
use super::{FORMAT, MAX_MISFITS, Misfit, Misfits, VERSION};
use crate::plan::sources::SourceTypes;
use crate::plan::{Budget, Method, Plan};
use crate::request::DenseType;

const MAX_NOTES: usize = 64;
const MAX_NOTE: usize = 1000;
const MAX_SAID: usize = 300;

#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub line: usize,
    pub place: &'a str,
}

/// Collects mismatches. Functions that return `None` have recorded one.
#[derive(Default)]
pub(super) struct Checker {
    pub misfits: Misfits,
}

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
    pub(super) fn misfit(&mut self, at: At, what: impl AsRef<str>) {
        self.misfits.count += 1;
        if self.misfits.listed.len() < MAX_MISFITS {
            self.misfits.listed.push(Misfit {
                line: at.line,
                place: at.place.to_owned(),
                what: what.as_ref().chars().take(MAX_SAID).collect(),
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

    pub(super) fn missing<T>(&mut self, at: At, key: &str) -> Option<T> {
        self.misfit(at, format!("the key {key} is missing"));
        None
    }

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
        let at = |index: usize| At {
            line: line(index),
            place,
        };
        let top = At { line: 1, place };
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
        self.written_for(top, at, [format, version, digest], source);
        let decided = self.decided(top, at, [method, factor_type, request]);
        let (method, factor_type, request) = decided;
        let notes = notes.map_or_else(Vec::new, |(i, node)| self.notes(at(i), node));
        let mut read = Units::new(hyper, method, source_type);
        let outside = [(MatrixId::Embedding, embedding), (MatrixId::Head, head)];
        for (matrix, value) in outside {
            if let Some((i, node)) = value {
                self.outside(&mut read, line(i), matrix, node);
            }
        }
        match units {
            Some((i, Node::List(items))) => {
                let items_at = lines.get(i).cloned().unwrap_or_default();
                self.units(&mut read, at(i), &items_at, items);
            }
            Some((i, node)) => {
                self.wrong::<()>(at(i), "units", "a list", &node);
            }
            None => {
                self.missing::<()>(top, "units");
            }
        }
        let plans = read.plans;
        let request = request?;
        let counted = request.budget.is_none();
        let request = request.of(method?, factor_type?, &plans);
        if self.misfits.count > 0 {
            return None;
        }
        let mut plan = match Plan::new(hyper, request, plans, notes, source_type) {
            Ok(plan) => plan,
            // Every unit has already passed on its own.
            Err(faults) => {
                for fault in faults {
                    self.misfit(top, fault.to_string());
                }
                return None;
            }
        };
        if counted {
            plan.request.budget = Budget::Ratio(plan.ratio());
        }
        Some(plan)
    }

    fn decided<'a>(
        &mut self,
        top: At,
        at: impl Fn(usize) -> At<'a>,
        [method, factor_type, request]: [Option<(usize, Node)>; 3],
    ) -> (Option<Method>, Option<DType>, Option<RequestInFile>) {
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
            None => Some(RequestInFile::default()),
        };
        (method, factor_type, request)
    }

    /// Rejects other versions first, since their keys may differ in meaning.
    fn version<'a>(
        &mut self,
        entries: &[(String, Node)],
        at: impl Fn(usize) -> At<'a>,
    ) -> Option<()> {
        let index = entries.iter().position(|(key, _)| key == "version");
        match index {
            Some(index) if entries[index].1 != Node::Whole(VERSION) => {
                let expected = format!("{VERSION}, the version that this program reads");
                self.wrong(at(index), "version", &expected, &entries[index].1)
            }
            _ => Some(()),
        }
    }

    fn written_for<'a>(
        &mut self,
        top: At,
        at: impl Fn(usize) -> At<'a>,
        [format, version, digest]: [Option<(usize, Node)>; 3],
        source: &dyn Fn() -> Digest,
    ) {
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
    }

    fn method(&mut self, at: At, node: &Node) -> Option<Method> {
        match node {
            Node::Text(text) if text == Method::PerSlot.name() => Some(Method::PerSlot),
            Node::Text(text) if text == Method::SharedBasis.name() => Some(Method::SharedBasis),
            Node::Text(text) if text == Method::Quantise.name() => Some(Method::Quantise),
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

    pub(super) fn dense_type(&mut self, at: At, key: &str, node: &Node) -> Option<DenseType> {
        let expected = format!("one of {}", DenseType::names());
        self.parsed(at, key, &expected, node)
    }

    pub(super) fn notes(&mut self, at: At, node: Node) -> Vec<String> {
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
}
