//! Reports as pages: self-contained HTML files, the analysis of a model in one of its own.
//!
//! [`input`] recognises files by their content and limits their size; [`data`] joins a report, its
//! artifact and its measurements; [`chart`] draws figures as SVG, each with a table of its numbers;
//! [`template`] writes a page. The same files in the same order give the same bytes.

mod analysis;
pub mod bench;
pub mod chart;
pub mod data;
mod drift;
mod facts;
pub mod input;
mod json;
mod matrices;
mod number;
mod quality;
pub mod scale;
pub mod template;

use std::ffi::OsStr;

use data::{ArtifactData, PageData};
use input::Inputs;
use maud::{Markup, html};
use serde_json::Value;
use template::{Link, Page, Section};

enum Source {
    Files(fn(&PageData) -> Markup),
    Artifact(fn(&ArtifactData, &str) -> Markup),
    Analysis(fn(&Value, &str) -> Markup),
}

/// Anchor, title, explanation and source.
type Spec = (&'static str, &'static str, &'static str, Source);

#[rustfmt::skip]
const ARTIFACTS: [Spec; 16] = [
    ("quality", "Quality against size", "Lower and further left is better. Bars are 95 % intervals over windows of text; the points of one chart were measured on the same text by the same protocol.", Source::Files(quality::against_size)),
    ("elastic", "Elastic: fewer bytes per token", "The quality of an elastic artifact when every token reads a part of the weights' bytes: the bases alone on the left, everything on the right. Measured on the test split.", Source::Artifact(quality::elastic)),
    ("candidates", "Candidates", "The files among which the artifact was chosen, measured on the validation split.", Source::Artifact(quality::candidates)),
    ("bytes", "Bytes by kind of tensor", "The bytes of the projections in all layers, and of everything else, in the source and in the artifact.", Source::Artifact(matrices::bytes_by_kind)),
    ("bits", "Bits per weight", "The bits that each weight of a matrix takes in the artifact.", Source::Artifact(matrices::bits_per_weight)),
    ("predictions", "Predicted and measured divergence", "What the codes of all matrices were predicted to add to the KL divergence, beside what was measured.", Source::Artifact(quality::predictions)),
    ("ranks", "Rank by layer", "The directions that each projection keeps. A dense projection keeps all of them and has no point.", Source::Artifact(matrices::ranks)),
    ("errors", "Error by projection", "The stored weights, after rounding, against the source: 0 is exact, 1 is as far away as zero weights. Cells without colour are dense or were not measured.", Source::Artifact(matrices::errors)),
    ("predicted", "Predicted and measured error", "The prediction is the smallest error of any matrix of that rank, before rounding (Eckart and Young). Points on the line reach it; the distance above it is the cost of rounding.", Source::Artifact(matrices::predicted_errors)),
    ("axiom", "Tail energy under the axiom gauge", "The tail energy of each layer by iteration; it should fall.", Source::Artifact(matrices::axiom_search)),
    ("sinks", "Attention sinks in the factors", "Factors that do not cover the direction of the first position distort attention.", Source::Artifact(matrices::sinks)),
    ("time", "Time by stage", "The seconds of every stage of the compilation.", Source::Artifact(facts::time)),
    ("estimates", "Estimates", "What was estimated before the work, and what was measured. Memory is the process's own, without mapped files.", Source::Artifact(facts::estimates)),
    ("notes", "Notes of the plan", "What differs from the request, and why.", Source::Artifact(facts::notes)),
    ("drift", "Drafts that learn", "A draft that learns from rejected tokens, beside the same draft unchanged, while the text changes. Lines are means over windows with two standard errors.", Source::Files(drift::figures)),
    ("origins", "Origins", "Sources, requests and programs. Digests are SHA-256.", Source::Files(facts::origins)),
];

#[rustfmt::skip]
const ANALYSES: [Spec; 9] = [
    ("spectra", "Spectra", "The part of a weight's energy Σσ² that its first directions hold. The earlier a curve rises, the better low rank fits.", Source::Analysis(analysis::spectra)),
    ("gauges", "Tail energy by gauge", "The smallest relative error at a rank, in the norm of each gauge: of the weights (none), of the weights by the size of each input (activation), of the outputs (whiten). Points are root mean squares over the layers; bars go from the best layer to the worst.", Source::Analysis(analysis::gauges)),
    ("excess", "Excess of a shared basis", "The energy that a basis shared by q, k and v, or by gate and up, loses, over what a basis of the projection's own loses at the same rank: 1 is no worse. Points are root mean squares over the layers; bars go from the best layer to the worst.", Source::Analysis(analysis::excess)),
    ("phases", "Phases", "The variance of the residual stream after each layer. A valley divides the depth into layers that mix, that compress and that refine.", Source::Analysis(analysis::phases)),
    ("depth", "Depth sink", "The part of the variance of all layers that the leading directions of the layers so far explain. On a plateau later layers reuse directions of earlier ones.", Source::Analysis(analysis::depth_sink)),
    ("dimension", "Intrinsic dimension", "The dimensions that the residual stream uses: principal components with 95 % of its variance, and the estimate from the distances to the two nearest neighbours (TwoNN).", Source::Analysis(analysis::dimension)),
    ("manifold", "Curvature, axioms and symmetry", "The curvature of the neighbourhood graph of the residual stream, the principal directions that are found again in held-out text, and the heads that read nearly the same subspace.", Source::Analysis(analysis::manifold)),
    ("outliers", "Attention sinks", "Positions, mostly the first, whose activations lie far out along one direction. A shared basis that does not cover the direction distorts attention.", Source::Analysis(analysis::sinks)),
    ("origins", "Origins", "Models and texts. Digests are SHA-256.", Source::Analysis(facts::analysis_origin)),
];

/// Returns the only page about some files, or the main one; `None` above [`template::MAX_PAGE`]
/// bytes. With [two pages](Inputs::need_two_pages), `analysis` is the file name of the other.
pub fn main_page(inputs: &Inputs, analysis: Option<&OsStr>) -> Option<String> {
    let data = PageData::new(inputs);
    let specs: &[Spec] = if inputs.have_only_analyses() {
        &ANALYSES
    } else {
        &ARTIFACTS
    };
    let page = Page {
        title: title(&data),
        verdict: quality::verdict(&data),
        tiles: quality::tiles(&data),
        sections: specs.iter().map(|s| section(s, &data)).collect(),
        links: analysis
            .map(|name| Link::new("Analysis of the model", name))
            .into_iter()
            .collect(),
        footer: vec![missing(&data), made_by()],
    };
    page.render()
}

/// Returns the page of the analyses beside the main page; `None` above [`template::MAX_PAGE`] bytes.
pub fn analysis_page(inputs: &Inputs, main: &OsStr) -> Option<String> {
    let data = PageData::new(inputs);
    let page = Page {
        title: title_of_analyses(&data),
        sections: ANALYSES.iter().map(|s| section(s, &data)).collect(),
        links: vec![Link::new("The report", main)],
        footer: vec![made_by()],
        ..Page::default()
    };
    page.render()
}

fn made_by() -> String {
    format!("Made by htc {}.", env!("CARGO_PKG_VERSION"))
}

fn section((id, title, lead, source): &Spec, data: &PageData) -> Section {
    let prefix = |name: &str, count: usize| {
        if count > 1 {
            format!("{name}: ")
        } else {
            String::new()
        }
    };
    let content = html! {
        @match source {
            Source::Files(make) => { (make(data)) }
            Source::Artifact(make) => { @for one in &data.artifacts { (make(one, &prefix(&one.name, data.artifacts.len()))) } }
            Source::Analysis(make) => { @for (name, one) in &data.analyses { (make(one, &prefix(name, data.analyses.len()))) } }
        }
    };
    Section {
        id,
        title,
        lead,
        content,
    }
}

fn title(data: &PageData) -> String {
    match (&data.artifacts[..], &data.analyses[..]) {
        ([], []) => "Measurements of models".to_owned(),
        ([], _) => title_of_analyses(data),
        ([one], _) => match &one.source {
            Some(source) => format!("{source}, compressed"),
            None => format!("{}, a compressed model", one.name),
        },
        (several, _) => format!("{} compressed models", several.len()),
    }
}

fn title_of_analyses(data: &PageData) -> String {
    match &data.analyses[..] {
        [(model, _)] => format!("Analysis of {model}"),
        several => format!("Analysis of {} models", several.len()),
    }
}

fn missing(data: &PageData) -> String {
    let compiled = data.artifacts.iter().any(|a| a.report.is_some());
    let measured = data.artifacts.iter().any(|a| a.scores.is_some());
    let calibrated = data
        .analyses
        .iter()
        .any(|(_, a)| a["calibration"].is_object());
    let commands = [
        (compiled, "htc compile --report FILE"),
        (
            measured || !data.evaluated.is_empty(),
            "htc eval --text TEXT --reference MODEL --json",
        ),
        (calibrated, "htc analyse --calibration TEXT --json"),
    ];
    let missing = commands.iter().filter(|(found, _)| !found);
    let missing: Vec<&str> = missing.map(|(_, command)| *command).collect();
    if missing.is_empty() {
        return String::new();
    }
    format!("More sections need the output of: {}.", missing.join("; "))
}

#[cfg(test)]
mod tests;
