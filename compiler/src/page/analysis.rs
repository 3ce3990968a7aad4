//! The analysis of a model: spectra, gauges, residual stream, attention sinks.

use maud::{Markup, html};
use serde_json::Value;

use super::chart::{Band, Chart, Colour, Point, Series, Xy, over_layers};
use super::json::{at, indexed, layers, list, num, points, show, table, text};
use super::scale::{Axis, Kind};
use super::template::figure;

fn of_projection<'a>(analysis: &'a Value, projection: &str) -> Vec<&'a Value> {
    let spectra = list(analysis, "spectra/projections").iter();
    spectra
        .filter(|s| text(s, "projection") == projection)
        .collect()
}

/// Returns the names of all projections, in the order of the first layer.
fn projection_names(analysis: &Value) -> Vec<&str> {
    let mut names = Vec::new();
    for name in list(analysis, "spectra/projections")
        .iter()
        .map(|s| text(s, "projection"))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

pub fn spectra(analysis: &Value, prefix: &str) -> Markup {
    let projections = list(analysis, "spectra/projections").iter();
    let last = projections
        .filter_map(|s| num(s, "layer"))
        .fold(0.0, f64::max) as usize;
    let curves = projection_names(analysis).into_iter().map(|projection| {
        let curve = |s: &&Value| {
            let points = points(list(s, "curve"), ["0", "1", "none"]);
            Series::layer(num(s, "layer").unwrap_or(0.0) as usize, last + 1, points)
        };
        let (x, y) = (
            Axis::new("rank", Kind::Linear),
            Axis::new("energy", Kind::Linear),
        );
        let series = of_projection(analysis, projection)
            .iter()
            .map(curve)
            .collect();
        Xy::new(projection, x, y, series).draw()
    });
    let by_projection = |quantity: &str, path: &str| {
        let projections = projection_names(analysis).into_iter().enumerate();
        let series = projections.map(|(number, projection)| {
            let points = points(of_projection(analysis, projection), ["layer", path, "none"]);
            Series::line(projection, number, points)
        });
        over_layers("", quantity, Kind::Linear, series.collect())
    };
    let mut energies = list(analysis, "spectra/energies").iter();
    let rank_95 = energies.position(|e| e.as_f64() == Some(0.95));
    let rank_95 = rank_95.map_or("none".to_owned(), |at| format!("ranks/{at}"));
    html! {
        (figure(&format!("{prefix}Energy kept by rank"), "One curve for each layer.", curves))
        (figure(&format!("{prefix}Stable rank ‖W‖² / σ₁²"), "", [by_projection("stable rank", "stable_rank")]))
        (figure(&format!("{prefix}Rank that holds 95 % of the energy"), "", [by_projection("rank", &rank_95)]))
    }
}

/// Draws the tail energy by rank under each gauge.
pub fn gauges(analysis: &Value, prefix: &str) -> Markup {
    let charts = projection_names(analysis).into_iter().map(|projection| {
        let spectra = of_projection(analysis, projection);
        let gauges = ["none", "activation", "whiten"].into_iter().enumerate();
        let series = gauges.map(|(number, gauge)| {
            let points = by_fraction(analysis, &spectra, &format!("tails/{gauge}"));
            Series::line(gauge, number, points)
        });
        let x = Axis::new("part of the full rank", Kind::Linear);
        let y = Axis::new("relative error", Kind::Linear);
        Xy::new(projection, x, y, series.collect()).draw()
    });
    let charts: Vec<Chart> = charts.collect();
    // Without a second gauge the spectra show the same.
    let shown = charts.iter().any(|chart| chart.legend.keys().len() > 1);
    let caption = format!("{prefix}Tail energy by rank and gauge");
    figure(&caption, "", charts.into_iter().filter(|_| shown))
}

/// Draws the additional loss of a shared basis.
pub fn excess(analysis: &Value, prefix: &str) -> Markup {
    let members = || {
        list(analysis, "spectra/groups")
            .iter()
            .flat_map(|g| list(g, "members"))
    };
    let projections = projection_names(analysis).into_iter().enumerate();
    let series = projections.map(|(number, projection)| {
        let own: Vec<&Value> = members()
            .filter(|m| text(m, "projection") == projection)
            .collect();
        Series::line(projection, number, by_fraction(analysis, &own, "excess"))
    });
    let x = Axis::new("rank of the basis, part of the width", Kind::Linear);
    let y = Axis::new("energy lost / of its own basis (logarithmic)", Kind::Log);
    let chart = Xy::new("", x, y, series.collect()).draw();
    figure(
        &format!("{prefix}Excess by rank and projection"),
        "",
        [chart],
    )
}

/// Creates, at each fraction of the rank, the root mean square and range over items.
fn by_fraction(analysis: &Value, items: &[&Value], path: &str) -> Vec<Point> {
    let fractions = list(analysis, "spectra/fractions").iter().enumerate();
    let points = fractions.filter_map(|(i, fraction)| {
        let values = items
            .iter()
            .filter_map(|item| num(item, &format!("{path}/{i}")));
        let values: Vec<f64> = values.collect();
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
        let reason = match text(profile, "reason") {
            "" => String::new(),
            reason => format!("There are no phases: {reason}."),
        };
        let caption = format!("{prefix}Variance of the residual stream {positions}");
        figure(&caption, &reason, [phase_chart(profile)])
    };
    html! {
        (one("phases/without_first", "without the first position of each window"))
        (one("phases/with_first", "at all positions"))
    }
}

fn phase_chart(profile: &Value) -> Chart {
    let smoothed = Series::line("mean over three layers", 0, indexed(profile, "smoothed"));
    let smoothed = smoothed.without_marker(Colour::Thing(0));
    let series = vec![
        Series::muted("variance", 4, indexed(profile, "variance")),
        smoothed,
    ];
    let x = Axis::new("layer", Kind::Whole);
    let mut xy = Xy::new(
        "",
        x,
        Axis::new("variance (logarithmic)", Kind::Log),
        series,
    );
    for (layer, phase) in list(profile, "phases").iter().enumerate() {
        let (from, to) = (layer as f64 - 0.5, layer as f64 + 0.5);
        let name = text(phase, "").to_owned();
        let shades = [("mix", 0.35), ("compress", 1.0)].into_iter();
        let shade = shades
            .filter(|(phase, _)| *phase == name)
            .map(|(_, shade)| shade)
            .sum();
        match xy.bands.last_mut().filter(|band| band.name == name) {
            Some(band) => band.to = to,
            None => xy.bands.push(Band {
                from,
                to,
                name,
                shade,
            }),
        }
    }
    xy.draw()
}

/// Draws from which layer on later layers reuse directions.
pub fn depth_sink(analysis: &Value, prefix: &str) -> Markup {
    let depth = at(analysis, "depth");
    let start = num(depth, "layer");
    let start = start.and_then(|l| Some(Point::new(l, num(depth, &format!("curve/{l}"))?)));
    let explained = vec![
        Series::line("part explained", 0, indexed(depth, "curve")),
        Series::scatter("plateau begins", 2, start),
    ];
    let weights = vec![Series::line("weight", 3, indexed(depth, "weights"))];
    let title = "Variance explained by the layers so far";
    let weight = "weight (logarithmic)";
    let charts = [
        over_layers(title, "part explained", Kind::Linear, explained),
        over_layers(
            "Weight of a layer's covariance, 1 / trace",
            weight,
            Kind::Log,
            weights,
        ),
    ];
    let reason = match text(depth, "reason") {
        "" => String::new(),
        reason => format!(" There is none: {reason}."),
    };
    let note = format!(
        "In {} directions, which hold 95 % of the variance of all layers. The plateau is what lies within {} of the last value; the covariance of every layer has the same weight. Plateau from layer: {}, part of the depth: {}; the two-thirds rule says layer {}, which agrees within one layer: {}.{reason}",
        show(depth, "rank"),
        show(depth, "tolerance"),
        show(depth, "layer"),
        show(depth, "relative"),
        show(depth, "two_thirds"),
        show(depth, "agrees"),
    );
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
        layers(items, title, "dimensions", Kind::Linear, &components),
        layers(
            items,
            "Two nearest neighbours",
            "dimensions",
            Kind::Linear,
            &neighbours,
        ),
    ];
    let tested = items
        .iter()
        .filter(|l| !at(l, "stability").is_null())
        .count();
    let stable = |path: &str| items.iter().filter(|l| at(l, path) == true).count();
    let note = format!(
        "Bars are intervals of confidence {} by resampling the windows of the sample: {} replicates for PCA, each with its own components, {} for TwoNN. Small samples agree within one dimension in {} of {tested} layers for PCA, in {} for TwoNN.",
        show(dimension, "confidence"),
        show(dimension, "pca_replicates"),
        show(dimension, "replicates"),
        stable("stability/pca_stable"),
        stable("stability/twonn_stable"),
    );
    figure(
        &format!("{prefix}Intrinsic dimension by layer"),
        &note,
        charts,
    )
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
    let curvature = vec![Series::line("curvature", 0, curvature)];
    let parts = [
        [
            "edges with negative curvature",
            "curvature/negative",
            "none",
        ],
        ["axioms that survive", "axioms/consistency", "none"],
    ];
    let charts = [
        over_layers(
            "Curvature",
            "mean curvature of the edges",
            Kind::Linear,
            curvature,
        ),
        layers(items, "Parts", "part", Kind::Linear, &parts),
    ];
    let heads = ["queries", "keys", "values"].into_iter().enumerate();
    let heads = heads.map(|(number, of)| {
        let points = items.iter().filter_map(|l| {
            let compared = list(l, "symmetry").iter().find(|s| text(s, "of") == of)?;
            let pairs = num(compared, "pairs").filter(|pairs| *pairs > 0.0)?;
            Some(Point::new(
                num(l, "layer")?,
                num(compared, "near_equal")? / pairs,
            ))
        });
        Series::line(of, number, points)
    });
    let heads = over_layers("", "part of the pairs", Kind::Linear, heads.collect());
    let note = format!(
        "Curvature is {} in a graph of {} neighbours; bars are one standard deviation over the edges. A direction survives where the rebuilt subspace misses at most {} of what chance would.",
        show(manifold, "curvature/estimator"),
        show(manifold, "curvature/neighbours"),
        show(manifold, "axioms/missed"),
    );
    let heads_note = format!(
        "As a part of all pairs. Subspaces hold {} of a head's energy; a pair counts from a mean cosine of {} on.",
        show(manifold, "symmetry/energy"),
        show(manifold, "symmetry/threshold"),
    );
    html! {
        (figure(&format!("{prefix}Curvature and axioms by layer"), &note, charts))
        (figure(&format!("{prefix}Pairs of heads that are nearly equal"), &heads_note, [heads]))
    }
}

/// Draws attention sinks and how shared bases cover them.
pub fn sinks(analysis: &Value, prefix: &str) -> Markup {
    let sinks = at(analysis, "sinks");
    let items = list(sinks, "layers");
    let bases = items.iter().map(|l| list(l, "coverage"));
    let bases = bases.max_by_key(|bases| bases.len()).unwrap_or_default();
    let covered = bases.iter().take(7).enumerate().map(|(number, basis)| {
        let points = points(items, ["layer", &format!("coverage/{number}/norm"), "none"]);
        let (width, random) = (show(basis, "fraction"), show(basis, "random"));
        let name = format!("basis of {width} of the width (in random directions {random})");
        Series::line(&name, number + 1, points)
    });
    let share = [["energy along the sink", "share", "none"]];
    let title = "Energy along the sink direction";
    let charts = [
        layers(items, title, "part of the energy", Kind::Linear, &share),
        over_layers(
            "Coverage by a shared basis",
            "‖V ŝ‖",
            Kind::Linear,
            covered.collect(),
        ),
    ];
    let note = "Left: the part of the first position's energy along the sink direction. Right: how much of it the basis shared by q, k and v covers.";
    let outliers = table(
        items,
        &[
            ("layer", "layer"),
            ("mean norm", "norm_mean"),
            ("positions with outliers", "positions_found"),
            ("the first", "positions/0"),
            ("other outlier tokens", "tokens/found"),
            ("their mean norm", "tokens/norm_mean"),
            ("the largest", "tokens/largest/0"),
            ("channel with most energy", "channels/0"),
            ("the second", "channels/1"),
        ],
    );
    let caption = format!(
        "{prefix}Outliers: norms more than {} standard deviations above the mean, and input channels of attention",
        show(sinks, "deviations")
    );
    html! {
        (figure(&format!("{prefix}The sink direction by layer"), note, charts))
        (outliers.render(&caption))
    }
}
