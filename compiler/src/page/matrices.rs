use std::collections::BTreeMap;

use htc_formats::bands::CodeLayout;
use htc_formats::htz::{MatrixRecord, TensorEntry};
use htc_formats::model::{ActivationPoint, MatrixId, Part, ProjectionKind, Role};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::chart::{Chart, Colour, Group, Heat, Point, Series, Xy, bars, means, over_layers, xy};
use super::data::ArtifactData;
use super::json::table;
use super::number::{bytes, number, percent};
use super::scale::{Axis, Kind};
use super::template::{self, figure};
use crate::make::{MeasuredProjection, SinkCoverage};
use crate::system::show;
use crate::unit::Norm;

/// Maximum columns of the chart; more column groups are averaged.
const MAX_GROUPS: usize = 64;

const MAX_SETS: usize = 9;

const PREDICTIONS: [(&str, &str); 5] = [
    ("layer", "layer"),
    ("projection", "projection"),
    ("predicted", "predicted"),
    ("measured, weights", "error"),
    ("measured, outputs", "output_error"),
];

pub fn bytes_by_kind(artifact: &ArtifactData, prefix: &str) -> Markup {
    let series = [("before", Colour::Muted), ("after", Colour::Thing(0))];
    let title = "Bytes by kind of tensor";
    let groups = kinds(artifact).into_iter();
    let groups = groups.map(|(name, sizes)| {
        let sizes = sizes.map(|bytes| bytes.map(|bytes| bytes as f64));
        (name.to_owned(), sizes.into())
    });
    let axis = Axis::new("bytes", Kind::Bytes);
    let chart = bars(title, &axis, &series, &groups.collect::<Vec<Group>>());
    let note = "“Everything else” is what no other kind names, with metadata and alignment.";
    figure(&format!("{prefix}{title}"), note, [chart])
}

fn total(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

/// Returns each kind of tensor with its bytes before and after.
fn kinds<'a>(artifact: &ArtifactData) -> Vec<(&'a str, [Option<u64>; 2])> {
    let mut kinds: Vec<(&str, [Option<u64>; 2])> = Vec::new();
    for projection in artifact.projections() {
        let bytes = |of: fn(&MatrixRecord) -> u64| total(artifact.records_of(projection).map(of));
        let (before, after) = (bytes(|s| s.bytes_before), bytes(|s| s.bytes_after));
        kinds.push((projection.name(), [Some(before), Some(after)]));
    }
    let stored = |is_kind: fn(Role) -> bool| {
        let of_kind = artifact.tensors().iter().filter(|t| is_kind(t.role));
        total(of_kind.map(|t| t.length))
    };
    let (embeddings, norms) = (stored(is_vocabulary), stored(is_norm));
    let source = artifact.plan.matrices.iter().fold(embeddings, |sum, m| {
        let others = sum.saturating_sub(m.bytes_after);
        others.saturating_add(m.bytes_before)
    });
    let bases = total(artifact.plan.bases.iter().map(|b| b.bytes));
    let biases = artifact.report.map_or(0, |r| r.summary.biases.bytes);
    let others = [
        ("shared bases", None, bases),
        ("biases added", None, biases),
        ("KV cache bases", None, stored(is_kv_basis)),
        ("embeddings", Some(source), embeddings),
        ("norms", Some(norms), norms),
    ];
    let others = others.into_iter().filter(|(_, _, after)| *after > 0);
    kinds.extend(others.map(|(name, before, after)| (name, [before, Some(after)])));
    let named = [0, 1].map(|at| total(kinds.iter().filter_map(|k| k.1[at])));
    let rest = [
        artifact.before.saturating_sub(named[0]),
        artifact.after.saturating_sub(named[1]),
    ];
    kinds.push(("everything else", rest.map(Some)));
    kinds
}

fn is_vocabulary(role: Role) -> bool {
    let factor = matches!(role, Role::OutputFactor { .. });
    factor || matches!(role, Role::TokenEmbedding | Role::Output)
}

fn is_kv_basis(role: Role) -> bool {
    matches!(role, Role::KvBasis { .. } | Role::KvEnergies { .. })
}

fn is_norm(role: Role) -> bool {
    let weight = matches!(role, Role::Basis { .. } | Role::Linear { .. });
    let rope = matches!(role, Role::RopeFactors | Role::LongRopeFactors);
    !weight && !rope && !is_vocabulary(role) && !is_kv_basis(role)
}

fn by_layer(
    artifact: &ArtifactData,
    title: &str,
    quantity: &str,
    value: impl Fn(usize, ProjectionKind) -> Option<f64>,
) -> Heat {
    let names = artifact.projections().into_iter();
    let rows = names
        .map(|projection| projection.to_string())
        .zip(cells(artifact, value));
    Heat {
        title: title.to_owned(),
        quantity: quantity.to_owned(),
        columns_are: "layer",
        columns: (0..artifact.layers()).map(|l| l.to_string()).collect(),
        rows: rows.collect(),
        ..Heat::default()
    }
}

/// Returns a cell for each projection and layer.
fn cells<T>(artifact: &ArtifactData, cell: impl Fn(usize, ProjectionKind) -> T) -> Vec<Vec<T>> {
    let layers = 0..artifact.layers();
    let row = |projection| {
        layers
            .clone()
            .map(|layer| cell(layer, projection))
            .collect()
    };
    artifact.projections().into_iter().map(row).collect()
}

fn size(records: &[&MatrixRecord]) -> u64 {
    total(records.iter().map(|record| record.bytes_after))
}

/// Returns the bits per weight of some matrices together.
fn bits(records: &[&MatrixRecord]) -> f64 {
    let weights = total(records.iter().map(|record| record.parameters_before));
    show::bits_per_weight(size(records), weights)
}

/// Draws the bits of every matrix and of every column group.
pub fn bits_per_weight(artifact: &ArtifactData, prefix: &str) -> Markup {
    let title = "Bits per weight by projection and layer";
    let mut heat = by_layer(artifact, title, "bits per weight", |layer, projection| {
        let records: Vec<_> = artifact.records_in(layer, projection).collect();
        (!records.is_empty()).then(|| bits(&records))
    });
    heat.tips = cells(artifact, |layer, projection| {
        let records: Vec<_> = artifact.records_in(layer, projection).collect();
        describe_all(artifact, &records)
    });
    let outside = artifact.plan.matrices.iter();
    let outside = outside.map(|record| describe(artifact, record));
    let outside = outside.reduce(|all, one| format!("{all}; {one}"));
    let note = format!(
        "Point at a cell for its details. Changed matrices outside of the layers: {}.",
        outside.unwrap_or("none".into())
    );
    let groups_note = "A row for each layer; groups from left to right in the order in which columns are stored. The vocabulary has a row for each class of tokens.";
    html! {
        (figure(&format!("{prefix}{title}"), &note, [heat.draw()]))
        (figure(&format!("{prefix}Bits of groups of 32 columns"), groups_note, bits_by_group(artifact)))
    }
}

fn describe(artifact: &ArtifactData, record: &MatrixRecord) -> String {
    let id = record.id;
    let size = bytes(record.bytes_after as f64);
    let bits_per_weight = number(bits(&[record]));
    let text = format!("{id}: {size}, {bits_per_weight} bits");
    let predicted = artifact.report.and_then(|r| r.foreseen.as_ref());
    let Some((all, own)) = predicted.and_then(|all| Some((all, all.matrix(id)?))) else {
        return text;
    };
    let part = percent(own.kl / all.kl().max(f64::MIN_POSITIVE));
    format!("{text}, {}, {part} of the predicted divergence", own.form)
}

/// Describes a matrix, or those of all experts together.
fn describe_all(artifact: &ArtifactData, records: &[&MatrixRecord]) -> String {
    let (first, last) = match records {
        [] => return String::new(),
        [record] => return describe(artifact, record),
        [first, .., last] => (first.id, last.id),
    };
    let (size, bits_per_weight) = (bytes(size(records) as f64), number(bits(records)));
    let text = format!("{first} to {last}: {size}, {bits_per_weight} bits");
    let predicted = artifact.report.and_then(|r| r.foreseen.as_ref());
    let Some(all) = predicted else {
        return text;
    };
    let own = records.iter().filter_map(|record| all.matrix(record.id));
    let own: f64 = own.map(|own| own.kl).sum();
    let part = percent(own / all.kl().max(f64::MIN_POSITIVE));
    format!("{text}, {part} of the predicted divergence")
}

/// Returns the mean; `None` of nothing.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0_usize);
    for value in values {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / count as f64)
}

/// Draws a heat map for each projection, of layers by column groups, and one for each matrix of the
/// vocabulary, of classes of tokens by column groups. Experts are averaged.
fn bits_by_group(artifact: &ArtifactData) -> Vec<Chart> {
    let weights: Vec<_> = artifact.tensors().iter().filter_map(coded_weight).collect();
    let mut maps: Vec<Heat> = Vec::new();
    for projection in artifact.projections() {
        let own = weights.iter().filter(|(matrix, ..)| {
            matrix.projection().map(ProjectionKind::dense) == Some(projection)
        });
        let mut layers: BTreeMap<usize, Vec<Vec<f64>>> = BTreeMap::new();
        for (matrix, _, layout) in own {
            let of_layer = layers.entry(matrix.layer().unwrap_or(0)).or_default();
            of_layer.push(mean_bits(layout));
        }
        let rows = layers.into_iter();
        let rows = rows.map(|(layer, experts)| (layer.to_string(), mean_of_experts(&experts)));
        maps.extend(group_map(projection.name(), rows.collect()));
    }
    for (matrix, rows, layout) in weights
        .iter()
        .filter(|(matrix, ..)| matrix.projection().is_none())
    {
        let classes = layout.codes_with_rows(*rows).map(|(rows, codes)| {
            let bits = codes.iter().map(|code| f64::from(code.bits()));
            (rows.to_string(), bits.collect())
        });
        maps.extend(group_map(&matrix.to_string(), classes.collect()));
    }
    let ranges = maps.iter().filter_map(Heat::range);
    let range = ranges.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]);
    for map in &mut maps {
        map.shared_range = range;
    }
    maps.iter().map(Heat::draw).collect()
}

/// Returns the matrix of a tensor, its rows and the codes of its column groups, where groups have
/// codes of their own.
fn coded_weight(entry: &TensorEntry) -> Option<(MatrixId, usize, &CodeLayout)> {
    let part = Part::Weight;
    let matrix = match entry.role {
        Role::TokenEmbedding => MatrixId::Embedding,
        Role::Output => MatrixId::Head,
        Role::Linear {
            layer,
            projection,
            part: own,
        } if own == part => MatrixId::Projection { layer, projection },
        _ => return None,
    };
    Some((matrix, entry.rows as usize, entry.codes.as_ref()?))
}

/// Averaged over classes of rows.
fn mean_bits(layout: &CodeLayout) -> Vec<f64> {
    let (mut sums, mut all): (Vec<f64>, f64) = (Vec::new(), 0.0);
    for (rows, codes) in layout.codes_with_rows(1) {
        sums.resize(codes.len(), 0.0);
        for (sum, code) in sums.iter_mut().zip(codes.iter()) {
            *sum += rows as f64 * f64::from(code.bits());
        }
        all += rows as f64;
    }
    sums.into_iter().map(|sum| sum / all).collect()
}

/// Returns the mean of each column group.
fn mean_of_experts(experts: &[Vec<f64>]) -> Vec<f64> {
    let groups = experts.iter().map(Vec::len).max().unwrap_or(0);
    let of_group = |group: usize| mean(experts.iter().filter_map(|bits| bits.get(group).copied()));
    (0..groups).filter_map(of_group).collect()
}

fn group_map(name: &str, rows: Vec<(String, Vec<f64>)>) -> Option<Heat> {
    let groups = rows.iter().map(|(_, bits)| bits.len()).max()?;
    let columns = groups.min(MAX_GROUPS);
    let first = |column: usize| column * groups / columns.max(1);
    let mean = |bits: &[f64], column: usize| {
        let part = bits.get(first(column)..first(column + 1).min(bits.len()))?;
        (!part.is_empty()).then(|| part.iter().sum::<f64>() / part.len() as f64)
    };
    let means = |bits: Vec<f64>| (0..columns).map(|column| mean(&bits, column)).collect();
    Some(Heat {
        title: format!("Bits of the column groups of {name}"),
        quantity: format!("{name}, bits"),
        columns_are: "group",
        columns: (0..columns)
            .map(|column| first(column).to_string())
            .collect(),
        rows: rows
            .into_iter()
            .map(|(name, bits)| (name, means(bits)))
            .collect(),
        ..Heat::default()
    })
}

/// Draws series with the look of each projection.
fn by_projection(
    artifact: &ArtifactData,
    series: impl Fn(ProjectionKind, usize) -> Series,
    shown: impl Fn(ProjectionKind) -> bool,
) -> Vec<Series> {
    let projections = artifact.projections().into_iter().enumerate();
    let projections = projections.filter(|(_, projection)| shown(*projection));
    projections
        .map(|(number, projection)| series(projection, number))
        .collect()
}

fn experts_note(artifact: &ArtifactData) -> &'static str {
    let records = artifact.plan.projections.iter();
    template::experts_note(records.filter_map(|record| record.id.projection()))
}

pub fn ranks(artifact: &ArtifactData, prefix: &str) -> Markup {
    let series = |projection: ProjectionKind, number| {
        let records = artifact.records_of(projection);
        let ranks = records.filter_map(|s| Some(Point::new(s.id.layer()? as f64, s.rank? as f64)));
        Series::line(projection.name(), number, means(ranks))
    };
    let chart = |title: &str, inputs: [ActivationPoint; 2]| {
        let series = by_projection(artifact, series, |of| inputs.contains(&of.input()));
        let x = Axis::new("layer", Kind::Whole);
        let mut xy = Xy::new(title, x, Axis::linear("rank"), series);
        // In the layers between, the projection is dense.
        xy.longest_step = 1.0;
        xy.draw()
    };
    let allocation = artifact.plan.allocation.as_ref();
    let allocator = allocation.map_or("uniform", |a| a.allocator.as_str());
    use ActivationPoint::{Attention, AttentionOutput, Ffn, FfnHidden};
    let charts = [
        chart("Rank in attention", [Attention, AttentionOutput]),
        chart("Rank in the feed-forward network", [Ffn, FfnHidden]),
    ];
    let caption = format!("{prefix}Rank of each factorised projection");
    let note = format!("Allocator: {allocator}.{}", experts_note(artifact));
    figure(&caption, &note, charts)
}

/// Draws the errors of weights and of outputs by projection and layer.
pub fn errors(artifact: &ArtifactData, prefix: &str) -> Markup {
    let outputs = |layer, projection| {
        let measured = artifact.report?.treated.measured.iter();
        let own = measured.filter(|m| (m.layer, m.projection.dense()) == (layer, projection));
        mean(own.filter_map(|m| m.output_error))
    };
    let weights = |layer, projection| {
        let records = artifact.records_in(layer, projection);
        mean(records.filter_map(|record| record.error))
    };
    let weights = by_layer(artifact, "", "‖W − Ŵ‖ / ‖W‖", weights);
    let outputs = by_layer(artifact, "", "error of the outputs", outputs);
    let note = experts_note(artifact).trim_start();
    html! {
        (figure(&format!("{prefix}Relative error of the weights by projection and layer"), note, [weights.draw()]))
        (figure(&format!("{prefix}Relative error of the outputs on the calibration text"), note, [outputs.draw()]))
    }
}

/// Draws predicted and measured errors of single projections.
pub fn predicted_errors(artifact: &ArtifactData, prefix: &str) -> Markup {
    let measured = artifact.report.map_or(&[][..], |r| &r.treated.measured);
    let in_norm = |norm: Norm| measured.iter().filter(move |m| m.norm == norm);
    html! {
        @for norm in Norm::ALL {
            @if matches!(norm, Norm::Frobenius | Norm::Output) {
                (figure(&format!("{prefix}Predicted and measured error in the norm “{norm}”"),
                    "One point for each projection and layer.", [scatter(artifact, &in_norm(norm).collect::<Vec<_>>(), norm == Norm::Output)]))
            } @else {
                // Has no measurement in the same norm.
                (table(&in_norm(norm).map(|m| json!(m)).collect::<Vec<_>>(), &PREDICTIONS).render(&format!("{prefix}Predicted in the coordinates of the gauge “{norm}”, measured in other norms")))
            }
        }
    }
}

fn scatter(artifact: &ArtifactData, measured: &[&MeasuredProjection], of_outputs: bool) -> Chart {
    let point = |m: &&MeasuredProjection| {
        let error = if of_outputs { m.output_error? } else { m.error };
        let name = match m.projection.expert() {
            Some(expert) => format!("layer {}, expert {expert}", m.layer),
            None => format!("layer {}", m.layer),
        };
        Some(Point::new(m.predicted?, error).named(name))
    };
    let series = |projection: ProjectionKind, number| {
        let own = measured
            .iter()
            .filter(|m| m.projection.dense() == projection);
        Series::scatter(projection.name(), number, own.filter_map(point))
    };
    let side = if of_outputs { "outputs" } else { "weights" };
    let y = Axis::linear(&format!("measured, {side}"));
    let series = by_projection(artifact, series, |_| true);
    let mut xy = Xy::new("", Axis::linear("predicted"), y, series);
    xy.diagonal = true;
    xy.draw()
}

/// Draws the tail energy by iteration of the axiom gauge.
pub fn axiom_search(artifact: &ArtifactData, prefix: &str) -> Markup {
    let searches = artifact.report.map_or(&[][..], |r| &r.treated.axiom);
    let layers = searches.iter().map(|s| s.layer + 1).max().unwrap_or(0);
    let series = searches.iter().map(|search| {
        let steps = search.trace.iter().enumerate();
        let points = steps.map(|(step, &v)| Point::new(step as f64, v));
        Series::layer(search.layer, layers, points)
    });
    let x = Axis::new("iteration", Kind::Whole);
    let chart = xy("", x, Axis::linear("tail energy"), series);
    let caption = format!("{prefix}Tail energy by iteration of the axiom gauge");
    figure(&caption, "One curve for each layer.", [chart])
}

/// Draws the coverage of attention sinks, and lists the exempt channels.
pub fn sinks(artifact: &ArtifactData, prefix: &str) -> Markup {
    let Some(treated) = artifact.report.map(|r| &r.treated) else {
        return html! {};
    };
    let dense = |sink: &SinkCoverage| -> Vec<ProjectionKind> {
        let projections = sink.projections.iter();
        projections.map(|projection| projection.dense()).collect()
    };
    let mut sets: Vec<_> = treated.sinks.iter().map(dense).collect();
    sets.sort_unstable();
    sets.dedup();
    type Quantity = (&'static str, fn(&SinkCoverage) -> f64);
    let quantities: [Quantity; 2] = [
        ("norm of the projection", |s| s.coverage),
        ("largest component", |s| s.largest),
    ];
    let mut series = Vec::new();
    for projections in sets.into_iter().take(MAX_SETS) {
        let names: Vec<&str> = projections.iter().map(|s| s.name()).collect();
        for (quantity, value) in quantities {
            let of_set = treated.sinks.iter().filter(|s| dense(s) == projections);
            let points = means(of_set.map(|s| Point::new(s.layer as f64, value(s))));
            let name = format!("{}: {quantity}", names.join(" "));
            series.push(Series::line(&name, series.len(), points));
        }
    }
    let chart = over_layers("", Axis::linear("coverage"), series);
    let [least, most] = treated.sink_thresholds().map(number);
    let note = format!(
        "Coverage without help. The direction was appended to {} of {} bases, which cover less of it than random ones of their ranks would ({least} to {most}).{}",
        treated.sinks.iter().filter(|s| s.appended).count(),
        treated.sinks.len(),
        experts_note(artifact),
    );
    let exempt: Vec<Value> = treated.exempt.iter().map(|e| json!(e)).collect();
    let columns = ["layer", "projections", "channels"].map(|name| (name, name));
    html! {
        (figure(&format!("{prefix}Coverage of the sink direction by the factors"), &note, [chart]))
        (table(&exempt, &columns).render(&format!("{prefix}Channels that are kept exact")))
    }
}
