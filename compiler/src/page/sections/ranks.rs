//! The rank of every slot, layer by layer.

use htc_formats::model::ProjectionKind;

use super::super::html::{Block, Figure, Section};
use super::super::plot::{Axis, Kind, PlotError, Point, Series, Xy};
use super::super::subject::{Given, Subject};
use super::{empty, look, slot_keys};

/// The section.
pub fn section(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "ranks",
        "Rank by layer",
        "How many directions each slot keeps. A slot that stays dense keeps all of them and has no point.",
    );
    for subject in &given.subjects {
        let of = |slots: &[ProjectionKind], title: &str| {
            let mut xy = Xy::new(
                title,
                Axis::new("layer", Kind::Whole),
                Axis::new("rank", Kind::FromZero),
            );
            xy.series = slots.iter().map(|&slot| ranks(subject, slot)).collect();
            xy.series.retain(|s| !s.points.is_empty());
            xy.sight = vec![0.0, subject.layers().saturating_sub(1) as f64];
            // Between are layers where the slot is dense.
            xy.longest_step = 1.0;
            xy
        };
        let attention = of(&ProjectionKind::ALL[..4], "Rank in attention");
        let feed_forward = of(
            &ProjectionKind::ALL[4..],
            "Rank in the feed-forward network",
        );
        let plots: Vec<Xy> = [attention, feed_forward]
            .into_iter()
            .filter(|xy| !xy.series.is_empty())
            .collect();
        if plots.is_empty() {
            continue;
        }
        let mut all = Xy::new("", plots[0].x.clone(), plots[0].y.clone());
        all.series = ProjectionKind::ALL
            .iter()
            .map(|&slot| ranks(subject, slot))
            .collect();
        all.series.retain(|s| !s.points.is_empty());
        let drawn: Result<Vec<_>, _> = plots.iter().map(Xy::draw).collect();
        let caption = format!("{}Rank of each factorised slot", given.of(subject));
        section.blocks.push(Block::Figure(Figure {
            caption: format!(
                "{caption}, as the allocator {} gave it.",
                subject
                    .plan
                    .allocation
                    .as_ref()
                    .map_or("uniform", |a| a.allocator.as_str())
            ),
            plots: drawn?,
            legend: slot_keys(&factorised(subject)),
            table: all.table(caption, true),
        }));
    }
    Ok(section)
}

/// The slots that are factorised in some layer.
fn factorised(subject: &Subject) -> Vec<ProjectionKind> {
    let has = |slot: &ProjectionKind| {
        let own = subject.plan.slots.iter().filter(|s| s.slot == *slot);
        own.filter_map(|s| s.rank).next().is_some()
    };
    ProjectionKind::ALL.into_iter().filter(has).collect()
}

fn ranks(subject: &Subject, slot: ProjectionKind) -> Series {
    let (colour, marker) = look(slot);
    let own = subject.plan.slots.iter().filter(|s| s.slot == slot);
    let mut points: Vec<Point> = own
        .filter_map(|s| Some(Point::new(s.layer as f64, s.rank? as f64)))
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    Series {
        name: slot.name().into(),
        colour,
        marker: Some(marker),
        line: true,
        points,
    }
}
