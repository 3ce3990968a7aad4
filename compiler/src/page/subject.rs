//! What was given, put together: an artifact with its report and what was measured on it.

use htc_formats::htz::{Digest, PlanRecord};

use super::drift::Drift;
use super::input::{Artifact, Inputs};
use crate::analyse::record::Analysis;
use crate::measure::{Evaluation, Record};
use crate::report::Report;

/// An artifact, by its report, its file or both.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// What it is called on the page.
    pub name: String,
    /// What the source is called, where that is known.
    pub source: Option<&'a str>,
    /// Digest of the source.
    pub source_sha256: Digest,
    /// Bytes of the source.
    pub before: u64,
    /// Bytes of the artifact.
    pub after: u64,
    /// What was decided.
    pub plan: &'a PlanRecord,
    /// Its report.
    pub report: Option<&'a Report>,
    /// Its manifest.
    pub artifact: Option<&'a Artifact>,
    /// What was measured on it, and on which text.
    pub scores: Option<(&'a Evaluation, &'a str)>,
}

impl Subject<'_> {
    /// The artifact's bytes as a part of the source's.
    pub fn share(&self) -> f64 {
        self.after as f64 / (self.before.max(1)) as f64
    }

    /// Layers that the plan speaks of.
    pub fn layers(&self) -> usize {
        let layers = self.plan.slots.iter().map(|s| s.layer);
        layers.max().map_or(0, |last| last + 1)
    }
}

/// Everything that the page is made from.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// The artifacts.
    pub subjects: Vec<Subject<'a>>,
    /// The analyses, each with what it is called on the page.
    pub analyses: Vec<(String, &'a Analysis)>,
    /// The evaluations.
    pub evaluated: &'a [Record],
    /// How drafts followed texts.
    pub drifts: &'a [Drift],
}

impl<'a> Given<'a> {
    /// Puts together what belongs together.
    pub fn new(inputs: &'a Inputs) -> Given<'a> {
        let mut subjects: Vec<Subject> = Vec::new();
        let mut taken = vec![false; inputs.artifacts.len()];
        for report in &inputs.compiled {
            let own = inputs.artifacts.iter().position(|artifact| {
                let manifest = &artifact.manifest;
                manifest.provenance.source_sha256 == report.source_sha256
                    && artifact.bytes == report.bytes.after
                    && manifest.plan == report.plan
            });
            if let Some(own) = own {
                taken[own] = true;
            }
            let told = report.quality.as_ref();
            subjects.push(Subject {
                name: report.artifact.clone(),
                source: Some(&report.source),
                source_sha256: report.source_sha256,
                before: report.bytes.before,
                after: report.bytes.after,
                plan: &report.plan,
                report: Some(report),
                artifact: own.map(|own| &inputs.artifacts[own]),
                scores: told.map(|q| (&q.evaluation, q.text.as_str())),
            });
        }
        for (artifact, _) in inputs
            .artifacts
            .iter()
            .zip(taken)
            .filter(|(_, taken)| !taken)
        {
            let provenance = &artifact.manifest.provenance;
            let source = inputs.compiled.iter();
            let mut source = source.filter(|r| r.source_sha256 == provenance.source_sha256);
            subjects.push(Subject {
                name: artifact.name.clone(),
                source: source.next().map(|r| r.source.as_str()),
                source_sha256: provenance.source_sha256,
                before: provenance.source_bytes,
                after: artifact.bytes,
                plan: &artifact.manifest.plan,
                report: None,
                artifact: Some(artifact),
                scores: None,
            });
        }
        for subject in &mut subjects {
            let own = inputs
                .evaluated
                .iter()
                .filter(|of| of.model.name == subject.name && of.model.bytes == subject.after);
            // With a reference it says more.
            let best = own.max_by_key(|of| of.evaluation.reference.is_some());
            if let Some(of) = best {
                subject.scores = Some((&of.evaluation, &of.text));
            }
        }
        let names: Vec<String> = subjects.iter().map(|s| s.name.clone()).collect();
        for (subject, name) in subjects.iter_mut().zip(distinct(&names)) {
            subject.name = name;
        }
        let names: Vec<String> = inputs.analyses.iter().map(|a| a.model.clone()).collect();
        Given {
            subjects,
            analyses: distinct(&names).into_iter().zip(&inputs.analyses).collect(),
            evaluated: &inputs.evaluated,
            drifts: &inputs.drifts,
        }
    }

    /// What a caption begins with: the artifact's name, where there are several.
    pub fn of(&self, subject: &Subject) -> String {
        match self.subjects.len() {
            1 => String::new(),
            _ => format!("{}: ", subject.name),
        }
    }

    /// The same of an analysis.
    pub fn of_analysis(&self, name: &str) -> String {
        match self.analyses.len() {
            1 => String::new(),
            _ => format!("{name}: "),
        }
    }
}

/// Names that differ: the second `a` is `a (2)`.
fn distinct(names: &[String]) -> Vec<String> {
    let before = |i: usize| names[..i].iter().filter(|n| **n == names[i]).count();
    (0..names.len())
        .map(|i| match before(i) {
            0 => names[i].clone(),
            n => format!("{} ({})", names[i], n + 1),
        })
        .collect()
}
