//! What is to be known first: how much smaller, and at what quality.

use super::super::html::Tile;
use super::super::number::{brief, bytes, number, percent};
use super::super::subject::{Given, Subject};
use crate::measure::{Evaluation, Interval};

/// What the page is about.
pub fn heading(given: &Given) -> String {
    match (&given.subjects[..], &given.analyses[..]) {
        ([], [(model, _)]) => format!("What {model} looks like to a compressor"),
        ([one], _) => match one.source {
            Some(source) => format!("{source}, compressed"),
            None => format!("{}, a compressed model", one.name),
        },
        ([], []) => "Measurements of models".to_owned(),
        ([], several) => format!("What {} models look like to a compressor", several.len()),
        (several, _) => {
            let first = several[0].source;
            match first.filter(|_| several.iter().all(|s| s.source == first)) {
                Some(source) => format!("{source}, compressed in {} ways", several.len()),
                None => format!("{} compressed models", several.len()),
            }
        }
    }
}

/// One sentence for each artifact, or for what is there instead.
pub fn summary(given: &Given) -> Vec<String> {
    let mut said: Vec<String> = given.subjects.iter().map(of_subject).collect();
    if said.is_empty() {
        said.extend(given.analyses.iter().map(|(model, analysis)| {
            let shape = &analysis.shape;
            format!(
                "{model} ({}) has {} layers of width {}; {} spectra were computed{}. No artifact was given: htc compile makes one, and its --report belongs here.",
                shape.architecture,
                shape.layers,
                shape.width,
                analysis.spectra.slots.len(),
                match &analysis.calibration {
                    Some(text) => format!(" and {} tokens of {} measured", number(text.tokens as f64), text.text),
                    None => String::new(),
                },
            )
        }));
    }
    if said.is_empty() {
        said.extend(given.evaluated.iter().map(|of| {
            format!(
                "{} ({}): {}.",
                of.model.name,
                bytes(of.model.bytes as f64),
                quality(&of.evaluation, &of.text)
            )
        }));
    }
    said
}

fn of_subject(subject: &Subject) -> String {
    let source = subject.source.unwrap_or("its source");
    let times = subject.before as f64 / subject.after.max(1) as f64;
    let smaller = if times >= 1.0 {
        format!("{} times smaller", number((times * 100.0).round() / 100.0))
    } else {
        "larger".to_owned()
    };
    let size = format!(
        "{} is {source} at {} of its bytes ({smaller}: {} instead of {})",
        subject.name,
        percent(subject.share()),
        bytes(subject.after as f64),
        bytes(subject.before as f64),
    );
    let told = subject.artifact.and_then(|of| of.manifest.quality.as_ref());
    match (subject.scores, told) {
        (Some((scores, text)), _) => format!("{size}; {}.", quality(scores, text)),
        (None, Some(told)) => format!(
            "{size}; as it says itself, on {} tokens of held-out text its perplexity is {} times the original's{}, and the KL divergence from it {} nats.",
            number(told.tokens as f64),
            number(told.perplexity_ratio.value),
            interval(told.perplexity_ratio.interval),
            brief(told.kl.value),
        ),
        (None, None) => format!(
            "{size}. Its quality was not measured: htc eval {} --text TEXT --reference {} --json measures it, and what that writes belongs here.",
            subject.name,
            subject.source.unwrap_or("MODEL"),
        ),
    }
}

fn interval(of: Option<Interval>) -> String {
    match of {
        Some((low, high)) => format!(" (95 % interval {} to {})", number(low), number(high)),
        None => String::new(),
    }
}

/// What an evaluation says, in part of a sentence.
fn quality(scores: &Evaluation, text: &str) -> String {
    let on = format!("on {} tokens of {text}", number(scores.tokens as f64));
    match &scores.reference {
        Some(found) => format!(
            "{on} its perplexity is {} times the original's{}, and the KL divergence from it {} nats",
            number(found.perplexity_ratio),
            interval(found.perplexity_ratio_interval),
            brief(found.kl),
        ),
        None => format!(
            "{on} its perplexity is {}{}, with no reference to compare it with",
            number(scores.perplexity),
            interval(scores.perplexity_interval),
        ),
    }
}

/// Numbers that stand for the whole, where there is one artifact.
pub fn tiles(given: &Given) -> Vec<Tile> {
    let [subject] = &given.subjects[..] else {
        return Vec::new();
    };
    let tile = |number: String, about: &str| Tile {
        number,
        about: about.to_owned(),
    };
    let mut tiles = vec![
        tile(percent(subject.share()), "of the source's bytes"),
        tile(bytes(subject.after as f64), "in the artifact"),
    ];
    if let Some(report) = subject.report {
        let parameters = report.summary.parameters;
        let part = parameters.after as f64 / parameters.before.max(1) as f64;
        tiles.push(tile(percent(part), "of the parameters"));
    }
    match subject.scores {
        Some((
            Evaluation {
                reference: Some(found),
                ..
            },
            _,
        )) => {
            let about = match found.perplexity_ratio_interval {
                Some((low, high)) => format!(
                    "the original's perplexity (95 %: {} to {})",
                    number(low),
                    number(high)
                ),
                None => "the original's perplexity".to_owned(),
            };
            tiles.push(tile(
                format!("{} ×", number(found.perplexity_ratio)),
                &about,
            ));
            tiles.push(tile(brief(found.kl), "nats of KL divergence"));
            tiles.push(tile(percent(found.top1), "same likeliest token"));
        }
        Some((scores, _)) => tiles.push(tile(number(scores.perplexity), "perplexity")),
        None => {}
    }
    tiles
}
