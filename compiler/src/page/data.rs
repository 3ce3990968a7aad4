//! The files of a page, put together by artifact.

use std::collections::BTreeSet;

use htc_formats::htz::{MatrixRecord, PlanRecord, TensorEntry};
use htc_formats::model::ProjectionKind;
use serde_json::Value;

use super::chart::shortened;
use super::input::{Drift, Inputs, SealedArtifact};
use crate::measure::{Evaluation, Record};
use crate::report::Report;

/// An artifact, by its report, its file or both.
#[derive(Clone, Debug)]
pub struct ArtifactData<'a> {
    /// The name on the page.
    pub name: String,
    /// The name of the source, where it is known.
    pub source: Option<String>,
    /// Bytes of the source.
    pub before: u64,
    /// Bytes of the artifact.
    pub after: u64,
    /// The plan.
    pub plan: &'a PlanRecord,
    /// The report.
    pub report: Option<&'a Report>,
    /// The file.
    pub file: Option<&'a SealedArtifact>,
    /// The best measurement, and its text.
    pub scores: Option<(&'a Evaluation, &'a str)>,
}

/// Shortens a name, because captions repeat it.
fn name(text: &str) -> String {
    shortened(text, 160)
}

impl<'a> ArtifactData<'a> {
    fn from_report(report: &'a Report, file: Option<&'a SealedArtifact>) -> ArtifactData<'a> {
        let quality = report.quality.as_ref();
        ArtifactData {
            name: name(&report.artifact),
            source: Some(name(&report.source)),
            before: report.bytes.before,
            after: report.bytes.after,
            plan: &report.plan,
            report: Some(report),
            file,
            scores: quality.map(|q| (&q.evaluation, q.text.as_str())),
        }
    }

    fn from_file(file: &'a SealedArtifact, reports: &[Report]) -> ArtifactData<'a> {
        let provenance = &file.manifest.provenance;
        let same_source = |r: &&Report| r.source_sha256 == provenance.source_sha256;
        ArtifactData {
            name: name(&file.name),
            source: reports.iter().find(same_source).map(|r| name(&r.source)),
            before: provenance.source_bytes,
            after: file.bytes,
            plan: &file.manifest.plan,
            report: None,
            file: Some(file),
            scores: None,
        }
    }

    /// Returns the tensors of the file; none without.
    pub fn tensors(&self) -> &'a [TensorEntry] {
        self.file.map_or(&[], |file| &file.manifest.tensors)
    }

    /// Returns the records of a projection in all layers: for `gate`, `up` and `down` those of all
    /// experts.
    pub fn records_of(&self, projection: ProjectionKind) -> impl Iterator<Item = &'a MatrixRecord> {
        let records = self.plan.projections.iter();
        records.filter(move |record| {
            record.id.projection().map(ProjectionKind::dense) == Some(projection)
        })
    }

    /// Returns the records of a projection in a layer: one, or one for each expert.
    pub fn records_in(
        &self,
        layer: usize,
        projection: ProjectionKind,
    ) -> impl Iterator<Item = &'a MatrixRecord> {
        self.records_of(projection)
            .filter(move |record| record.id.layer() == Some(layer))
    }

    /// Returns the number of layers in the plan.
    pub fn layers(&self) -> usize {
        let layers = self.plan.projections.iter().filter_map(|s| s.id.layer());
        layers.max().map_or(0, |last| last + 1)
    }

    /// Returns the projections of a block in the order of execution; those of experts count as
    /// `gate`, `up` and `down`.
    pub fn projections(&self) -> Vec<ProjectionKind> {
        let projections = self.plan.projections.iter();
        let projections = projections.filter_map(|s| s.id.projection());
        let projections: BTreeSet<_> = projections.map(ProjectionKind::dense).collect();
        projections.into_iter().collect()
    }
}

/// Everything that a page is made from.
#[derive(Clone, Debug)]
pub struct PageData<'a> {
    /// The artifacts.
    pub artifacts: Vec<ArtifactData<'a>>,
    /// The analyses as JSON, with their names.
    pub analyses: Vec<(String, Value)>,
    /// The evaluations.
    pub evaluated: &'a [Record],
    /// Records of drafts.
    pub drifts: &'a [Drift],
}

impl<'a> PageData<'a> {
    /// Puts the files of the same artifact together.
    pub fn new(inputs: &'a Inputs) -> PageData<'a> {
        let mut files: Vec<&SealedArtifact> = inputs.artifacts.iter().collect();
        let mut artifacts: Vec<ArtifactData> = Vec::new();
        for report in &inputs.compiled {
            let of_report = |file: &&SealedArtifact| {
                file.manifest.provenance.source_sha256 == report.source_sha256
                    && file.bytes == report.bytes.after
                    && file.manifest.plan == report.plan
            };
            let file = files.iter().position(of_report).map(|at| files.remove(at));
            artifacts.push(ArtifactData::from_report(report, file));
        }
        let files = files.into_iter();
        artifacts.extend(files.map(|file| ArtifactData::from_file(file, &inputs.compiled)));
        for artifact in &mut artifacts {
            let (name, bytes) = (&artifact.name, artifact.after);
            let same = |r: &&Record| r.model.name == *name && r.model.bytes == bytes;
            let records = inputs.evaluated.iter().filter(same);
            if let Some(best) = records.max_by_key(|r| r.evaluation.reference.is_some()) {
                artifact.scores = Some((&best.evaluation, &best.text));
            }
        }
        let names = distinct(artifacts.iter().map(|a| a.name.clone()));
        for (artifact, name) in artifacts.iter_mut().zip(names) {
            artifact.name = name;
        }
        let names = distinct(inputs.analyses.iter().map(|a| name(&a.model)));
        let analyses = inputs.analyses.iter();
        let analyses = analyses.map(|a| serde_json::to_value(a).unwrap_or_default());
        PageData {
            artifacts,
            analyses: names.into_iter().zip(analyses).collect(),
            evaluated: &inputs.evaluated,
            drifts: &inputs.drifts,
        }
    }
}

/// Makes names differ: the second `a` becomes `a (2)`.
fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let names: Vec<String> = names.collect();
    let numbered = names.iter().enumerate().map(|(at, name)| {
        match names[..at].iter().filter(|other| *other == name).count() {
            0 => name.clone(),
            before => format!("{name} ({})", before + 1),
        }
    });
    numbered.collect()
}
