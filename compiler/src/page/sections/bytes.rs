//! Where the bytes went, by kind of tensor.

use htc_formats::htz::ProjectionRecord;
use htc_formats::model::{ProjectionKind, Role};

use super::super::html::{Block, Figure, Legend, Section};
use super::super::plot::{Axis, Bars, Colour, Group, Kind, PlotError};
use super::super::subject::{Given, Subject};
use super::empty;

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "bytes",
        "Where the bytes went",
        "Each kind of slot in all layers together, and what is no slot, in the source and in the artifact.",
    );
    for subject in &given.subjects {
        let bars = Bars {
            title: "Bytes by kind of tensor, before and after".into(),
            axis: Axis::new("bytes", Kind::Bytes),
            series: vec![
                ("before".into(), Colour::Muted),
                ("after".into(), Colour::Thing(0)),
            ],
            groups: groups(subject),
        };
        let about = format!("{}Bytes by kind of tensor", given.of(subject));
        section.blocks.push(Block::Figure(Figure {
            caption: format!(
                "{about}. “Everything else” is vocabulary, biases, metadata and alignment."
            ),
            plots: vec![bars.draw()?],
            legend: Legend::Keys(
                bars.series
                    .iter()
                    .map(|(name, colour)| (*colour, Some('■'), name.clone()))
                    .collect(),
            ),
            table: bars.table(about, "kind"),
        }));
    }
    Ok(section)
}

/// A kind of tensor, with its bytes before and after.
type Row = (String, Option<u64>, Option<u64>);

fn groups(subject: &Subject) -> Vec<Group> {
    let sum = |slot: ProjectionKind, of: fn(&ProjectionRecord) -> u64| -> u64 {
        let own = subject.plan.slots.iter().filter(|s| s.slot == slot);
        own.map(of).fold(0, u64::saturating_add)
    };
    let mut rows: Vec<Row> = ProjectionKind::ALL
        .into_iter()
        .map(|slot| {
            let (before, after) = (sum(slot, |s| s.bytes_before), sum(slot, |s| s.bytes_after));
            (slot.name().to_owned(), Some(before), Some(after))
        })
        .collect();
    let bases = subject.plan.bases.iter().map(|b| b.bytes);
    let bases = bases.fold(0, u64::saturating_add);
    if bases > 0 {
        rows.push(("shared bases".into(), None, Some(bases)));
    }
    let added = subject.report.map(|r| r.summary.biases);
    if let Some(added) = added.filter(|added| added.bytes > 0) {
        rows.push(("biases added".into(), None, Some(added.bytes)));
    }
    if let Some(artifact) = subject.artifact {
        let tensors = artifact.manifest.tensors.iter();
        let own = tensors.filter(|t| is_kv(t.role));
        let bytes = own.map(|t| t.length).fold(0, u64::saturating_add);
        if bytes > 0 {
            rows.push(("KV cache bases".into(), None, Some(bytes)));
        }
    }
    // What is no slot passes through as it is, so it had as many bytes before, but for what the plan
    // says otherwise of.
    if let Some(artifact) = subject.artifact {
        for (name, kind) in [("embeddings", Kept::Embedding), ("norms", Kept::Norm)] {
            let tensors = artifact.manifest.tensors.iter();
            let own = tensors.filter(|t| kept(t.role) == Some(kind));
            let bytes = own.map(|t| t.length).fold(0, u64::saturating_add);
            let records = subject.plan.matrices.iter();
            let records = records.filter(|_| kind == Kept::Embedding);
            let before = records.fold(bytes, |sum, record| {
                let others = sum.saturating_sub(record.bytes_after);
                others.saturating_add(record.bytes_before)
            });
            if bytes > 0 {
                rows.push((name.into(), Some(before), Some(bytes)));
            }
        }
    }
    let told =
        |of: fn(&Row) -> Option<u64>| rows.iter().filter_map(of).fold(0, u64::saturating_add);
    let (before, after) = (told(|r| r.1), told(|r| r.2));
    let rest = if subject.artifact.is_some() {
        "everything else"
    } else {
        "no slot"
    };
    rows.push((
        rest.into(),
        Some(subject.before.saturating_sub(before)),
        Some(subject.after.saturating_sub(after)),
    ));
    rows.into_iter()
        .map(|(name, before, after)| Group {
            name,
            values: vec![before.map(|b| b as f64), after.map(|b| b as f64)],
        })
        .collect()
}

/// Whether a tensor is of bases for a KV cache, which no source has.
fn is_kv(role: Role) -> bool {
    matches!(role, Role::KvBasis { .. } | Role::KvEnergies { .. })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Embedding,
    Norm,
}

/// What a tensor is that is no slot's weight.
fn kept(role: Role) -> Option<Kept> {
    match role {
        Role::TokenEmbedding | Role::Output | Role::OutputFactor { .. } => Some(Kept::Embedding),
        Role::Basis { .. } | Role::Linear { .. } | Role::RopeFactors | Role::LongRopeFactors => {
            None
        }
        role if is_kv(role) => None,
        _ => Some(Kept::Norm),
    }
}
