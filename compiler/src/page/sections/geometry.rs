//! Intrinsic dimension, curvature, symmetry and axioms of the residual stream.

use super::super::html::{Block, Figure, Legend, Section};
use super::super::number::{number, percent};
use super::super::plot::{Axis, Colour, Kind, Marker, PlotError, Point, Series, Xy};
use super::super::subject::Given;
use super::empty;
use crate::analyse::record::{Dimension, Manifold};

/// A series by layer with the look of a number.
fn series(name: &str, look: usize, points: Vec<Point>) -> Series {
    Series {
        name: name.into(),
        colour: Colour::Thing(look),
        marker: Some(Marker::of(look)),
        line: true,
        points,
    }
}

fn plot(title: &str, axis: &str, kind: Kind, all: Vec<Series>) -> Xy {
    let mut xy = Xy::new(
        title,
        Axis::new("layer", Kind::Whole),
        Axis::new(axis, kind),
    );
    xy.series = all;
    xy.series.retain(|s| !s.points.is_empty());
    xy
}

/// A figure of the plots that have something in them; their series are the table's columns.
fn figure(caption: String, said: &str, plots: Vec<Xy>) -> Result<Option<Block>, PlotError> {
    let plots: Vec<Xy> = plots
        .into_iter()
        .filter(|xy| !xy.series.is_empty())
        .collect();
    let Some(first) = plots.first() else {
        return Ok(None);
    };
    let mut all = first.clone();
    all.series = plots.iter().flat_map(|xy| xy.series.clone()).collect();
    let key = |s: &Series| (s.colour, s.marker.map(Marker::letter), s.name.clone());
    let drawn: Result<Vec<_>, _> = plots.iter().map(Xy::draw).collect();
    Ok(Some(Block::Figure(Figure {
        plots: drawn?,
        legend: Legend::Keys(all.series.iter().map(key).collect()),
        table: all.table(&caption, true),
        caption: format!("{caption}. {said}"),
    })))
}

/// Intrinsic dimensions.
pub fn dimension(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "dimension",
        "Intrinsic dimension",
        "How many dimensions the residual stream really uses: the principal components that hold 95 % of its variance, and what the distances to the two nearest neighbours say (TwoNN).",
    );
    for (name, analysis) in &given.analyses {
        if let Some(dimension) = &analysis.dimension {
            let caption = format!("{}Intrinsic dimension by layer", given.of_analysis(name));
            section.blocks.extend(dimensions(caption, dimension)?);
        }
    }
    Ok(section)
}

fn dimensions(caption: String, dimension: &Dimension) -> Result<Option<Block>, PlotError> {
    let of = |value: &dyn Fn(usize) -> Option<Point>| -> Vec<Point> {
        (0..dimension.layers.len()).filter_map(value).collect()
    };
    let layer = |i: usize| dimension.layers[i].layer as f64;
    let whole = of(&|i| {
        let pca = &dimension.layers[i].pca;
        Some(Point {
            interval: pca.interval.map(|(low, high)| (low as f64, high as f64)),
            ..Point::new(layer(i), pca.value as f64)
        })
    });
    let sample = of(&|i| {
        let pca = &dimension.layers[i].pca;
        Some(Point::new(layer(i), pca.sample_value as f64))
    });
    let neighbours = of(&|i| {
        let twonn = dimension.layers[i].twonn.as_ref()?;
        Some(Point {
            interval: twonn.interval,
            ..Point::new(layer(i), twonn.value)
        })
    });
    let stable = dimension.layers.iter().filter_map(|l| l.stability.as_ref());
    let (pca, twonn, all) = stable.fold((0, 0, 0), |(p, t, n), s| {
        (
            p + u32::from(s.pca_stable),
            t + u32::from(s.twonn_stable),
            n + 1,
        )
    });
    let said = format!(
        "Bars are {} intervals by resampling the windows of the sample: {} replicates for PCA, each with its own components, {} for TwoNN. Small samples agree to one dimension in {pca} of {all} layers for PCA, in {twonn} for TwoNN.",
        percent(dimension.confidence),
        number(dimension.pca_replicates as f64),
        number(dimension.replicates as f64),
    );
    figure(
        caption,
        &said,
        vec![
            plot(
                "Principal components with 95 % of the variance",
                "dimensions",
                Kind::FromZero,
                vec![
                    series("PCA, all vectors", 0, whole),
                    series("PCA, sample", 1, sample),
                ],
            ),
            plot(
                "Two nearest neighbours",
                "dimensions",
                Kind::FromZero,
                vec![series("TwoNN", 2, neighbours)],
            ),
        ],
    )
}

/// Symmetry, curvature and axioms.
pub fn manifold(given: &Given) -> Result<Section, PlotError> {
    let mut section = empty(
        "manifold",
        "Curvature, axioms and symmetry",
        "The manifold that the residual stream lies on: the curvature of its neighbourhood graph, the principal directions that are found again in text held out, and the heads that look at nearly the same subspace.",
    );
    for (name, analysis) in &given.analyses {
        if let Some(manifold) = &analysis.manifold {
            let prefix = given.of_analysis(name);
            section.blocks.extend(shape(&prefix, manifold)?);
            section.blocks.extend(symmetry(&prefix, manifold)?);
        }
    }
    Ok(section)
}

fn shape(prefix: &str, manifold: &Manifold) -> Result<Option<Block>, PlotError> {
    let layers = || manifold.layers.iter();
    let curvature = layers().filter_map(|l| {
        let c = l.curvature?;
        Some(Point {
            interval: Some((c.mean - c.deviation, c.mean + c.deviation)),
            ..Point::new(l.layer as f64, c.mean)
        })
    });
    let negative = layers().filter_map(|l| Some(Point::new(l.layer as f64, l.curvature?.negative)));
    let found = layers().filter_map(|l| Some(Point::new(l.layer as f64, l.axioms?.consistency)));
    let said = format!(
        "Curvature is {} in a graph of {} neighbours, bars are one standard deviation over the edges. A direction survives where the rebuilt subspace misses at most {} of what chance would.",
        manifold.curvature.estimator,
        number(manifold.curvature.neighbours as f64),
        percent(manifold.axioms.missed),
    );
    figure(
        format!("{prefix}Curvature and axioms by layer"),
        &said,
        vec![
            plot(
                "Curvature",
                "mean curvature of the edges",
                Kind::Linear,
                vec![series("curvature", 0, curvature.collect())],
            ),
            plot(
                "Parts",
                "part",
                Kind::FromZero,
                vec![
                    series("edges with negative curvature", 1, negative.collect()),
                    series("axioms that survive", 2, found.collect()),
                ],
            ),
        ],
    )
}

fn symmetry(prefix: &str, manifold: &Manifold) -> Result<Option<Block>, PlotError> {
    let of = |what: &str, look: usize| {
        let points = manifold.layers.iter().flat_map(|layer| {
            let own = layer
                .symmetry
                .iter()
                .filter(|s| s.of == what && s.pairs > 0);
            own.map(|s| Point::new(layer.layer as f64, s.near_equal as f64 / s.pairs as f64))
        });
        series(what, look, points.collect())
    };
    let said = format!(
        "Subspaces hold {} of a head's energy; a pair counts from a mean cosine of {} on.",
        percent(manifold.symmetry.energy),
        number(manifold.symmetry.threshold),
    );
    figure(
        format!("{prefix}Pairs of heads that are nearly equal, as a part of all pairs"),
        &said,
        vec![plot(
            "Nearly equal heads",
            "part of the pairs",
            Kind::FromZero,
            vec![of("queries", 0), of("keys", 1), of("values", 2)],
        )],
    )
}
