//! The analysis of a model: spectra, gauges, residual stream, attention sinks.

use htc_formats::model::Slot;
use maud::{Markup, html};

use super::chart::{Band, Chart, Point, Series, Xy, optional, over_layers};
use super::number::{count, number, percent};
use super::scale::{Axis, Kind};
use super::template::{Table, figure};
use crate::analyse::record::{
    Analysis, DepthSink, Profile, SinkLayer, SinkTokens, Spectrum, Tails,
};

fn indexed(values: &[f64]) -> impl Iterator<Item = Point> {
    let values = values.iter().enumerate();
    values.map(|(layer, &v)| Point::new(layer as f64, v))
}

/// Creates the points of the layers that have a value.
fn points<T>(layers: &[T], point: impl Fn(&T) -> Option<(usize, f64)>) -> Vec<Point> {
    let points = layers.iter().filter_map(point);
    points
        .map(|(layer, y)| Point::new(layer as f64, y))
        .collect()
}

fn of_projection(analysis: &Analysis, slot: Slot) -> Vec<&Spectrum> {
    let spectra = analysis.spectra.slots.iter().filter(|s| s.slot == slot);
    let mut spectra: Vec<&Spectrum> = spectra.collect();
    spectra.sort_by_key(|s| s.layer);
    spectra
}

/// Draws the spectra of the weights.
pub fn spectra(analysis: &Analysis, prefix: &str) -> Markup {
    let slots = &analysis.spectra.slots;
    let layers = slots.iter().map(|s| s.layer + 1).max().unwrap_or(0);
    let curves = Slot::ALL.map(|slot| {
        let curve = |s: &&Spectrum| {
            let points = s.curve.iter();
            let points = points.map(|&(rank, energy)| Point::new(rank as f64, energy));
            Series::layer(s.layer, layers, points)
        };
        let (x, y) = (
            Axis::new("rank", Kind::Linear),
            Axis::new("energy", Kind::Linear),
        );
        let series = of_projection(analysis, slot).iter().map(curve).collect();
        Xy::new(slot.name(), x, y, series).draw()
    });
    let by_projection = |title: &str, quantity: &str, value: &dyn Fn(&Spectrum) -> Option<f64>| {
        let series = Slot::ALL.map(|slot| {
            let spectra = of_projection(analysis, slot);
            let points = points(&spectra, |s| Some((s.layer, value(s)?)));
            Series::line(slot.name(), slot as usize, points)
        });
        over_layers(title, quantity, Kind::Linear, series.into())
    };
    let energies = &analysis.spectra.energies;
    let rank_95 = energies.iter().position(|&e| (e - 0.95).abs() < 1e-9);
    let rank_95 = |s: &Spectrum| {
        let rank = *s.ranks.get(rank_95?)? as f64;
        Some(rank / s.rows.min(s.cols).max(1) as f64)
    };
    html! {
        (figure(&format!("{prefix}Energy kept by rank"), "One curve for each layer.", curves))
        (figure(&format!("{prefix}Stable rank ‖W‖² / σ₁²"), "", [by_projection("", "stable rank", &|s| Some(s.stable_rank))]))
        (figure(&format!("{prefix}Rank that holds 95 % of the energy"), "", [by_projection("", "rank / full rank", &rank_95)]))
    }
}

/// The tail energies of a gauge.
type Tail = fn(&Tails) -> Option<&Vec<f64>>;

/// Draws the tail energy by rank under each gauge.
pub fn gauges(analysis: &Analysis, prefix: &str) -> Markup {
    let gauges: [(&str, Tail); 3] = [
        ("none", |t| Some(&t.none)),
        ("activation", |t| t.activation.as_ref()),
        ("whiten", |t| t.whiten.as_ref()),
    ];
    let charts = Slot::ALL.map(|slot| {
        let spectra = of_projection(analysis, slot);
        let series = gauges.iter().enumerate().map(|(number, (gauge, tail))| {
            let value = |s: &&Spectrum, i: usize| tail(&s.tails)?.get(i).copied();
            let at = |i: usize| spectra.iter().filter_map(|s| value(s, i)).collect();
            Series::line(*gauge, number, by_fraction(analysis, at))
        });
        let (x, y) = ("part of the full rank", "relative error");
        let (x, y) = (Axis::new(x, Kind::Linear), Axis::new(y, Kind::Linear));
        Xy::new(slot.name(), x, y, series.collect()).draw()
    });
    // Without a second gauge the spectra show the same.
    let compares = |chart: &Chart| chart.legend.keys().len() > 1;
    let shown = charts.iter().any(compares);
    let caption = format!("{prefix}Tail energy by rank and gauge");
    figure(&caption, "", charts.into_iter().filter(|_| shown))
}

/// Draws what a shared basis loses beyond one of a projection's own.
pub fn excess(analysis: &Analysis, prefix: &str) -> Markup {
    let series = Slot::ALL.map(|slot| {
        let members = || analysis.spectra.groups.iter().flat_map(|g| &g.members);
        let of_slot = || members().filter(|m| m.slot == slot);
        let at = |i: usize| of_slot().filter_map(|m| *m.excess.get(i)?).collect();
        Series::line(slot.name(), slot as usize, by_fraction(analysis, at))
    });
    let x = Axis::new("rank of the basis, part of the width", Kind::Linear);
    let y = Axis::new("energy lost / of its own basis (logarithmic)", Kind::Log);
    let chart = Xy::new("", x, y, series.into()).draw();
    figure(
        &format!("{prefix}Excess by rank and projection"),
        "",
        [chart],
    )
}

/// Creates, at each fraction of the rank, the root mean square of values, from the least to the largest.
fn by_fraction(analysis: &Analysis, values: impl Fn(usize) -> Vec<f64>) -> Vec<Point> {
    let point = |(i, &fraction): (usize, &f64)| {
        let values = values(i);
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let squares: f64 = values.iter().map(|v| v * v / values.len() as f64).sum();
        Some(Point::new(fraction, squares.sqrt()).within(Some((low, high))))
    };
    let fractions = analysis.spectra.fractions.iter().enumerate();
    fractions.filter_map(point).collect()
}

/// Draws the variance of the residual stream with its phases.
pub fn phases(analysis: &Analysis, prefix: &str) -> Markup {
    let one = |profile: &Profile, positions: &str| {
        let note = match (&profile.phases, &profile.reason) {
            (Some(_), _) => String::new(),
            (None, Some(reason)) => format!("There are no phases: {reason}."),
            (None, None) => "There are no phases.".into(),
        };
        let caption = format!("{prefix}Variance of the residual stream {positions}");
        figure(&caption, &note, [phase_chart(profile)])
    };
    html! {
        @if let Some(profiles) = &analysis.phases {
            (one(&profiles.without_first, "without the first position of each window"))
            (one(&profiles.with_first, "at all positions"))
        }
    }
}

fn phase_chart(profile: &Profile) -> Chart {
    let variance = Series::muted("variance", 4, indexed(&profile.variance));
    let smoothed = Series {
        marker: None,
        ..Series::line("mean over three layers", 0, indexed(&profile.smoothed))
    };
    let x = Axis::new("layer", Kind::Whole);
    let y = Axis::new("variance (logarithmic)", Kind::Log);
    let mut xy = Xy::new("", x, y, vec![variance, smoothed]);
    let phases = profile.phases.as_deref().unwrap_or_default();
    for (layer, phase) in phases.iter().enumerate() {
        let (from, to) = (layer as f64 - 0.5, layer as f64 + 0.5);
        if let Some(band) = xy.bands.last_mut().filter(|band| band.name == *phase) {
            band.to = to;
            continue;
        }
        let (name, shade) = match phase.as_str() {
            "mix" => (phase.clone(), 0.35),
            "compress" => (phase.clone(), 1.0),
            _ => (phase.clone(), 0.0),
        };
        xy.bands.push(Band {
            from,
            to,
            name,
            shade,
        });
    }
    xy.draw()
}

/// Draws from which layer on later layers reuse directions.
pub fn depth_sink(analysis: &Analysis, prefix: &str) -> Markup {
    let Some(depth) = &analysis.depth else {
        return html! {};
    };
    let start = depth.layer;
    let start = start.and_then(|l| Some(Point::new(l as f64, *depth.curve.get(l)?)));
    let explained = vec![
        Series::line("part explained", 0, indexed(&depth.curve)),
        Series::scatter("plateau begins", 2, start),
    ];
    let weights = vec![Series::line("weight", 3, indexed(&depth.weights))];
    let title = "Variance explained by the layers so far";
    let charts = [
        over_layers(title, "part explained", Kind::Linear, explained),
        over_layers(
            "Weight of a layer's covariance, 1 / trace",
            "weight (logarithmic)",
            Kind::Log,
            weights,
        ),
    ];
    figure(&format!("{prefix}{title}"), &depth_note(depth), charts)
}

fn depth_note(depth: &DepthSink) -> String {
    let relative = depth
        .relative
        .map(|r| format!(", {} of the depth", percent(r)));
    let agreement = match depth.agrees {
        Some(true) => ", which agrees within one layer",
        Some(false) => ", which does not agree",
        None => "",
    };
    let plateau = match (depth.layer, &depth.reason) {
        (Some(layer), _) => format!(
            "The plateau begins at layer {layer}{}; the two-thirds rule says layer {}{agreement}.",
            relative.unwrap_or_default(),
            depth.two_thirds,
        ),
        (None, Some(reason)) => format!("The analysis found {reason}."),
        (None, None) => "There is no plateau.".to_owned(),
    };
    format!(
        "In {} directions, which hold 95 % of the variance of all layers. {plateau} The plateau is what lies within {} of the last value; the covariance of every layer has the same weight.",
        count(depth.rank as u64),
        number(depth.tolerance)
    )
}

/// Draws the intrinsic dimension of the residual stream.
pub fn dimension(analysis: &Analysis, prefix: &str) -> Markup {
    let Some(dimension) = &analysis.dimension else {
        return html! {};
    };
    let layers = &dimension.layers;
    let all = layers.iter().map(|l| {
        let interval = l.pca.interval.map(|(low, high)| (low as f64, high as f64));
        Point::new(l.layer as f64, l.pca.value as f64).within(interval)
    });
    let sample = points(layers, |l| Some((l.layer, l.pca.sample_value as f64)));
    let neighbours = layers.iter().filter_map(|l| {
        let twonn = l.twonn.as_ref()?;
        Some(Point::new(l.layer as f64, twonn.value).within(twonn.interval))
    });
    let tested = || layers.iter().filter_map(|l| l.stability.as_ref());
    let note = format!(
        "Bars are {} intervals by resampling the windows of the sample: {} replicates for PCA, each with its own components, {} for TwoNN. Small samples agree within one dimension in {} of {} layers for PCA, in {} for TwoNN.",
        percent(dimension.confidence),
        number(dimension.pca_replicates as f64),
        number(dimension.replicates as f64),
        tested().filter(|s| s.pca_stable).count(),
        tested().count(),
        tested().filter(|s| s.twonn_stable).count(),
    );
    let components = vec![
        Series::line("PCA, all vectors", 0, all),
        Series::line("PCA, sample", 1, sample),
    ];
    let neighbours = vec![Series::line("TwoNN", 2, neighbours)];
    let title = "Principal components with 95 % of the variance";
    let charts = [
        over_layers(title, "dimensions", Kind::Linear, components),
        over_layers(
            "Two nearest neighbours",
            "dimensions",
            Kind::Linear,
            neighbours,
        ),
    ];
    figure(
        &format!("{prefix}Intrinsic dimension by layer"),
        &note,
        charts,
    )
}

/// Draws curvature, axioms and symmetry of the residual stream.
pub fn manifold(analysis: &Analysis, prefix: &str) -> Markup {
    let Some(manifold) = &analysis.manifold else {
        return html! {};
    };
    let layers = &manifold.layers;
    let curvature = layers.iter().filter_map(|l| {
        let c = l.curvature?;
        let interval = (c.mean - c.deviation, c.mean + c.deviation);
        Some(Point::new(l.layer as f64, c.mean).within(Some(interval)))
    });
    let curvature = vec![Series::line("curvature", 0, curvature)];
    let negative = points(layers, |l| Some((l.layer, l.curvature?.negative)));
    let survived = points(layers, |l| Some((l.layer, l.axioms?.consistency)));
    let parts = vec![
        Series::line("edges with negative curvature", 1, negative),
        Series::line("axioms that survive", 2, survived),
    ];
    let heads = ["queries", "keys", "values"].into_iter().enumerate();
    let heads = heads.map(|(number, of)| {
        let compared = |s: &&crate::analyse::record::Symmetry| s.of == of && s.pairs > 0;
        let points = points(layers, |l| {
            let s = l.symmetry.iter().find(compared)?;
            Some((l.layer, s.near_equal as f64 / s.pairs as f64))
        });
        Series::line(of, number, points)
    });
    let heads = over_layers("", "part of the pairs", Kind::Linear, heads.collect());
    let charts = [
        over_layers(
            "Curvature",
            "mean curvature of the edges",
            Kind::Linear,
            curvature,
        ),
        over_layers("Parts", "part", Kind::Linear, parts),
    ];
    let note = format!(
        "Curvature is {} in a graph of {} neighbours; bars are one standard deviation over the edges. A direction survives where the rebuilt subspace misses at most {} of what chance would.",
        manifold.curvature.estimator,
        number(manifold.curvature.neighbours as f64),
        percent(manifold.axioms.missed),
    );
    let heads_note = format!(
        "As a part of all pairs. Subspaces hold {} of a head's energy; a pair counts from a mean cosine of {} on.",
        percent(manifold.symmetry.energy),
        number(manifold.symmetry.threshold),
    );
    html! {
        (figure(&format!("{prefix}Curvature and axioms by layer"), &note, charts))
        (figure(&format!("{prefix}Pairs of heads that are nearly equal"), &heads_note, [heads]))
    }
}

/// Draws attention sinks and how shared bases cover them.
pub fn sinks(analysis: &Analysis, prefix: &str) -> Markup {
    let Some(sinks) = &analysis.sinks else {
        return html! {};
    };
    let coverages = || sinks.layers.iter().flat_map(|l| &l.coverage);
    let mut fractions: Vec<f64> = coverages().map(|c| c.fraction).collect();
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    fractions.truncate(7);
    let covered = fractions.iter().enumerate().map(|(number, &fraction)| {
        let points = points(&sinks.layers, |l| {
            let coverage = l.coverage.iter().find(|c| c.fraction == fraction)?;
            Some((l.layer, coverage.norm))
        });
        let name = format!("basis of {} of the width", percent(fraction));
        Series::line(name, number + 1, points)
    });
    let random = fractions.iter().filter_map(|&fraction| {
        let random = coverages().find(|c| c.fraction == fraction)?.random;
        Some(format!("{} at {}", number(random), percent(fraction)))
    });
    let random: Vec<String> = random.collect();
    let note = format!(
        "Left: the part of the first position's energy along the sink direction. Right: how much of it the basis shared by q, k and v covers; a basis in random directions covers {}.",
        random.join(", ")
    );
    let share = points(&sinks.layers, |l| Some((l.layer, l.share)));
    let share = vec![Series::line("energy along the sink", 0, share)];
    let charts = [
        over_layers(
            "Energy along the sink direction",
            "part of the energy",
            Kind::Linear,
            share,
        ),
        over_layers(
            "Coverage by a shared basis",
            "‖V ŝ‖",
            Kind::Linear,
            covered.collect(),
        ),
    ];
    let mut table = Table::new(&[
        "layer",
        "positions with outliers",
        "largest norm / mean",
        "other outlier tokens",
        "the largest",
        "channels by energy",
    ]);
    table.rows = sinks.layers.iter().map(outliers).collect();
    let caption = format!(
        "{prefix}Outliers: norms more than {} standard deviations above the mean, and the input channels of attention with most energy",
        number(sinks.deviations)
    );
    html! {
        (figure(&format!("{prefix}The sink direction by layer"), &note, charts))
        (table.render(&caption))
    }
}

/// Returns the row of a layer in the table of outliers.
fn outliers(layer: &SinkLayer) -> Vec<String> {
    let quoted = |text: &String| format!("“{}”", htc_formats::escape::escaped(text));
    let positions = layer.positions.iter().map(|p| {
        let text = p.text.as_ref().map(|text| format!(" {}", quoted(text)));
        format!("{}{}", p.position, text.unwrap_or_default())
    });
    let more = layer.positions_found.saturating_sub(layer.positions.len());
    let more = (more > 0).then(|| format!("and {more} more"));
    let positions: Vec<String> = positions.chain(more).collect();
    let largest = layer.positions.iter().map(|p| p.norm).reduce(f64::max);
    let largest = largest.filter(|_| layer.norm_mean > 0.0);
    let largest_token = |tokens: &SinkTokens| {
        let token = tokens.largest.first()?;
        let text = token
            .text
            .as_ref()
            .map(|text| format!("{}, ", quoted(text)));
        Some(format!(
            "{}window {}, position {}: {} times the mean",
            text.unwrap_or_default(),
            token.window,
            token.position,
            number(token.norm / tokens.norm_mean)
        ))
    };
    let channels = layer.channels.iter().take(4);
    let channels = channels.map(|c| format!("{} ({})", c.channel, percent(c.share)));
    let tokens = layer.tokens.as_ref();
    vec![
        layer.layer.to_string(),
        optional((!positions.is_empty()).then_some(positions), |p| {
            p.join(", ")
        }),
        optional(largest, |norm| number(norm / layer.norm_mean)),
        optional(tokens, |t| count(t.found as u64)),
        optional(tokens.and_then(largest_token), |text| text),
        channels.collect::<Vec<_>>().join(", "),
    ]
}
