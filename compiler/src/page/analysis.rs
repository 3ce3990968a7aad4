//! The analysis of a model: spectra, gauges, residual stream, attention sinks.

use htc_formats::model::ProjectionKind;
use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Chart, Colour, Point, Series, Xy, means, over_layers, xy};
use super::json::{
    Group, at, fill, group_by_key, indexed, layers, lines, list, num, points, table, text,
};
use super::scale::{Axis, Kind};
use super::template::{experts_note, figure};

/// Groups items by projection, those of experts as `gate`, `up` and `down`, in the order of the
/// first layer.
fn by_projection<'a>(items: impl IntoIterator<Item = &'a Value>) -> Vec<Group<'a>> {
    let items = items.into_iter();
    let named = items.map(|item| (kind(item).map_or("", |kind| kind.dense().name()), item));
    group_by_key(named)
}

fn kind(item: &Value) -> Option<ProjectionKind> {
    text(item, "projection").parse().ok()
}

fn all_spectra(analysis: &Value) -> &[Value] {
    list(analysis, "spectra/projections")
}

pub fn spectra(analysis: &Value, prefix: &str) -> Markup {
    let all = all_spectra(analysis);
    let projections = by_projection(all);
    let layer = |spectrum: &Value| num(spectrum, "layer").unwrap_or(0.0) as usize;
    let count = all.iter().map(layer).max().unwrap_or(0) + 1;
    let curves = projections.iter().map(|(projection, spectra)| {
        let layers = group_by_key(spectra.iter().map(|spectrum| (layer(spectrum), *spectrum)));
        let series = layers.into_iter().map(|(layer, experts)| {
            let curves = experts.into_iter().flat_map(|s| list(s, "curve"));
            Series::layer(layer, count, means(points(curves, ["0", "1", "none"])))
        });
        let (x, y) = (Axis::linear("rank"), Axis::linear("energy"));
        xy(projection, x, y, series)
    });
    let by_layer = |quantity: &str, path: &str| {
        let series = projections.iter().enumerate();
        let series = series.map(|(number, (projection, spectra))| {
            let points = points(spectra.iter().copied(), ["layer", path, "none"]);
            Series::line(projection, number, means(points))
        });
        over_layers("", Axis::linear(quantity), series)
    };
    let mut energies = list(analysis, "spectra/energies").iter();
    let rank_95 = energies.position(|e| e.as_f64() == Some(0.95));
    let rank_95 = rank_95.map_or("none".to_owned(), |at| format!("ranks/{at}"));
    let experts = experts_note(all.iter().filter_map(kind));
    let note = experts.trim_start();
    html! {
        (figure(&format!("{prefix}Energy kept by rank"), &format!("One curve for each layer.{experts}"), curves))
        (figure(&format!("{prefix}Stable rank ‖W‖² / σ₁²"), note, [by_layer("stable rank", "stable_rank")]))
        (figure(&format!("{prefix}Rank that holds 95 % of the energy"), note, [by_layer("rank", &rank_95)]))
    }
}

/// Draws the tail energy by rank under each gauge.
pub fn gauges(analysis: &Value, prefix: &str) -> Markup {
    let charts = by_projection(all_spectra(analysis)).into_iter();
    let charts = charts.map(|(projection, spectra)| {
        let series = lines(["none", "activation", "whiten"], |gauge| {
            by_fraction(analysis, &spectra, &format!("tails/{gauge}"))
        });
        let x = Axis::linear("part of the full rank");
        xy(projection, x, Axis::linear("relative error"), series)
    });
    let charts: Vec<Chart> = charts.collect();
    // Without a second gauge the spectra show the same.
    let shown = charts.iter().any(|chart| chart.legend.keys().len() > 1);
    let caption = format!("{prefix}Tail energy by rank and gauge");
    figure(&caption, "", charts.into_iter().filter(|_| shown))
}

/// Draws the additional loss of a shared basis.
pub fn excess(analysis: &Value, prefix: &str) -> Markup {
    let groups = list(analysis, "spectra/groups").iter();
    let members = groups.flat_map(|group| list(group, "members"));
    let members = by_projection(members);
    let projections = by_projection(all_spectra(analysis)).into_iter();
    let projections = projections.map(|(name, _)| name);
    let series = lines(projections, |projection| {
        let own = members.iter().find(|(name, _)| *name == projection);
        own.map_or(Vec::new(), |(_, own)| by_fraction(analysis, own, "excess"))
    });
    let x = Axis::linear("rank of the basis, part of the width");
    let chart = xy("", x, Axis::log("energy lost / of its own basis"), series);
    let caption = format!("{prefix}Excess by rank and projection");
    figure(&caption, "", [chart])
}

/// Creates, at each fraction of the rank, the root mean square and range over items.
fn by_fraction(analysis: &Value, items: &[&Value], path: &str) -> Vec<Point> {
    let fractions = list(analysis, "spectra/fractions").iter().enumerate();
    let points = fractions.filter_map(|(i, fraction)| {
        let path = format!("{path}/{i}");
        let values: Vec<f64> = items.iter().filter_map(|item| num(item, &path)).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let squares: f64 = values.iter().map(|v| v * v / values.len() as f64).sum();
        Some(Point::new(fraction.as_f64()?, squares.sqrt()).within(Some((low, high))))
    });
    points.collect()
}

/// Draws the variance of the residual stream with its phases.
pub fn phases(analysis: &Value, prefix: &str) -> Markup {
    let one = |path: &str, positions: &str| {
        let profile = at(analysis, path);
        let reason = reason(profile, "There are no phases: {reason}.");
        let caption = format!("{prefix}Variance of the residual stream {positions}");
        figure(&caption, &reason, [phase_chart(profile)])
    };
    html! {
        (one("phases/without_first", "without the first position of each window"))
        (one("phases/with_first", "at all positions"))
    }
}

/// Returns why something was not found, if it was not.
fn reason(value: &Value, sentence: &str) -> String {
    let absent = text(value, "reason").is_empty();
    fill(if absent { "" } else { sentence }, value)
}

fn phase_chart(profile: &Value) -> Chart {
    let smoothed = Series::line("mean over three layers", 0, indexed(profile, "smoothed"));
    let series = [
        Series::muted("variance", 4, indexed(profile, "variance")),
        smoothed.without_marker(Colour::Thing(0)),
    ];
    let x = Axis::new("layer", Kind::Whole);
    let mut xy = Xy::new("", x, Axis::log("variance"), series);
    for (layer, phase) in list(profile, "phases").iter().enumerate() {
        let name = text(phase, "");
        let shade = match name {
            "mix" => 0.35,
            "compress" => 1.0,
            _ => 0.0,
        };
        xy.shade(layer as f64 - 0.5, layer as f64 + 0.5, name, shade);
    }
    xy.draw()
}

/// Draws from which layer on later layers reuse directions.
pub fn depth_sink(analysis: &Value, prefix: &str) -> Markup {
    let depth = at(analysis, "depth");
    let start = num(depth, "layer");
    let start = start.and_then(|l| Some(Point::new(l, num(depth, &format!("curve/{l}"))?)));
    let explained = [
        Series::line("part explained", 0, indexed(depth, "curve")),
        Series::scatter("plateau begins", 2, start),
    ];
    let weights = [Series::line("weight", 3, indexed(depth, "weights"))];
    let title = "Variance explained by the layers so far";
    let trace = "Weight of a layer's covariance, 1 / trace";
    let charts = [
        over_layers(title, Axis::linear("part explained"), explained),
        over_layers(trace, Axis::log("weight"), weights),
    ];
    let note = "In {rank} directions, which hold 95 % of the variance of all layers. The plateau is what lies within {tolerance} of the last value; the covariance of every layer has the same weight. Plateau from layer: {layer}, part of the depth: {relative}; the two-thirds rule says layer {two_thirds}, which agrees within one layer: {agrees}.";
    let note = fill(note, depth) + &reason(depth, " There is none: {reason}.");
    figure(&format!("{prefix}{title}"), &note, charts)
}

pub fn dimension(analysis: &Value, prefix: &str) -> Markup {
    let dimension = at(analysis, "dimension");
    let items = list(dimension, "layers");
    let components = [
        ["PCA, all vectors", "pca/value", "pca/interval"],
        ["PCA, sample", "pca/sample_value", "none"],
    ];
    let neighbours = [["TwoNN", "twonn/value", "twonn/interval"]];
    let title = "Principal components with 95 % of the variance";
    let charts = [
        layers(items, title, "dimensions", &components),
        layers(items, "Two nearest neighbours", "dimensions", &neighbours),
    ];
    let count = |stable: &dyn Fn(&Value) -> bool| items.iter().filter(|l| stable(l)).count();
    let note = "Bars are intervals of confidence {confidence} by resampling the windows of the sample: {pca_replicates} replicates for PCA, each with its own components, {replicates} for TwoNN.";
    let note = format!(
        "{} Small samples agree within one dimension in {} of {} layers for PCA, in {} for TwoNN.",
        fill(note, dimension),
        count(&|l| at(l, "stability/pca_stable") == true),
        count(&|l| !at(l, "stability").is_null()),
        count(&|l| at(l, "stability/twonn_stable") == true),
    );
    let caption = format!("{prefix}Intrinsic dimension by layer");
    figure(&caption, &note, charts)
}

/// Draws curvature, axioms and symmetry of the residual stream.
pub fn manifold(analysis: &Value, prefix: &str) -> Markup {
    let manifold = at(analysis, "manifold");
    let items = list(manifold, "layers");
    let curvature = items.iter().filter_map(|l| {
        let (mean, sd) = (num(l, "curvature/mean")?, num(l, "curvature/deviation")?);
        let point = Point::new(num(l, "layer")?, mean);
        Some(point.within(Some((mean - sd, mean + sd))))
    });
    let curvature = [Series::line("curvature", 0, curvature)];
    let negative = "edges with negative curvature";
    let parts = [
        [negative, "curvature/negative", "none"],
        ["axioms that survive", "axioms/consistency", "none"],
    ];
    let mean = Axis::linear("mean curvature of the edges");
    let charts = [
        over_layers("Curvature", mean, curvature),
        layers(items, "Parts", "part", &parts),
    ];
    let heads = lines(["queries", "keys", "values"], |of| {
        let points = items.iter().filter_map(|l| {
            let compared = list(l, "symmetry").iter().find(|s| text(s, "of") == of)?;
            let pairs = num(compared, "pairs").filter(|pairs| *pairs > 0.0)?;
            let equal = num(compared, "near_equal")? / pairs;
            Some(Point::new(num(l, "layer")?, equal))
        });
        points.collect()
    });
    let heads = over_layers("", Axis::linear("part of the pairs"), heads);
    let note = "Curvature is {curvature/estimator} in a graph of {curvature/neighbours} neighbours; bars are one standard deviation over the edges. A direction survives where the rebuilt subspace misses at most {axioms/missed} of what chance would.";
    let heads_note = "As a part of all pairs. Subspaces hold {symmetry/energy} of a head's energy; a pair counts from a mean cosine of {symmetry/threshold} on.";
    html! {
        (figure(&format!("{prefix}Curvature and axioms by layer"), &fill(note, manifold), charts))
        (figure(&format!("{prefix}Pairs of heads that are nearly equal"), &fill(heads_note, manifold), [heads]))
    }
}

const OUTLIERS: [(&str, &str); 9] = [
    ("layer", "layer"),
    ("mean norm", "norm_mean"),
    ("positions with outliers", "positions_found"),
    ("the first", "positions/0"),
    ("other outlier tokens", "tokens/found"),
    ("their mean norm", "tokens/norm_mean"),
    ("the largest", "tokens/largest/0"),
    ("channel with most energy", "channels/0"),
    ("the second", "channels/1"),
];

/// Draws attention sinks and how shared bases cover them.
pub fn sinks(analysis: &Value, prefix: &str) -> Markup {
    let sinks = at(analysis, "sinks");
    let items = list(sinks, "layers");
    let bases = items.iter().map(|l| list(l, "coverage"));
    let bases = bases.max_by_key(|bases| bases.len()).unwrap_or_default();
    let covered = bases.iter().take(7).enumerate().map(|(number, basis)| {
        let points = points(items, ["layer", &format!("coverage/{number}/norm"), "none"]);
        let name = "basis of {fraction} of the width (in random directions {random})";
        Series::line(&fill(name, basis), number + 1, points)
    });
    let share = [["energy along the sink", "share", "none"]];
    let title = "Energy along the sink direction";
    let coverage = "Coverage by a shared basis";
    let charts = [
        layers(items, title, "part of the energy", &share),
        over_layers(coverage, Axis::linear("‖V ŝ‖"), covered),
    ];
    let note = "Left: the part of the first position's energy along the sink direction. Right: how much of it the basis shared by q, k and v covers.";
    let caption = "Outliers: norms more than {deviations} standard deviations above the mean, and input channels of attention";
    html! {
        (figure(&format!("{prefix}The sink direction by layer"), note, charts))
        (table(items, &OUTLIERS).render(&format!("{prefix}{}", fill(caption, sinks))))
    }
}
