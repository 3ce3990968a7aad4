//! Text output of an analysis.

use crate::system::show::format_count;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use htc_formats::escape::escape;
use htc_formats::model::ProjectionKind;

use super::record::{Analysis, Profile, Spectrum, Tails};

const SHOWN_FRACTION: f64 = 0.5;

const TOKENS: usize = 8;

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.shape;
        writeln!(
            f,
            "{}: {}, {} of width {}, {} on {} of {} numbers, feed-forward {}",
            escape(&self.model),
            escape(&shape.architecture),
            format_count(shape.layers, "layer"),
            shape.width,
            format_count(shape.heads, "head"),
            shape.kv_heads,
            shape.head_size,
            shape.ffn
        )?;
        self.write_spectra(f)?;
        let Some(calibration) = &self.calibration else {
            return writeln!(
                f,
                "without --calibration: no gauges, phases, sinks, depth sink, dimensions or manifold"
            );
        };
        writeln!(
            f,
            "residual stream, on {}: {} in windows of {}",
            calibration.text,
            format_count(calibration.tokens, "token"),
            calibration.context
        )?;
        self.write_depth(f)?;
        self.write_tokens(f)?;
        self.write_layers(f)
    }
}

impl Analysis {
    fn write_spectra(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "spectra, lowest to highest of all layers; errors at half of the full rank"
        )?;
        writeln!(
            f,
            "  projection  shape         norm           stable rank   rank for 95 %  for 99 %     error          activation     whiten"
        )?;
        let Some(shown) = self
            .spectra
            .fractions
            .iter()
            .position(|x| *x == SHOWN_FRACTION)
        else {
            return Ok(());
        };
        let spectra = &self.spectra;
        let energy = |part: f64| spectra.energies.iter().position(|e| *e == part);
        let (e95, e99) = (energy(0.95), energy(0.99));
        let kinds = spectra.projections.iter().map(|s| s.projection.dense());
        let projections: BTreeSet<ProjectionKind> = kinds.collect();
        for &projection in &projections {
            let all = spectra.projections.iter();
            let found: Vec<&Spectrum> =
                all.filter(|s| s.projection.dense() == projection).collect();
            let Some(first) = found.first() else { continue };
            let range = |of: &dyn Fn(&Spectrum) -> Option<f64>, digits| {
                range(found.iter().filter_map(|s| of(s)), digits)
            };
            let rank = |at: Option<usize>| move |s: &Spectrum| Some(*s.ranks.get(at?)? as f64);
            let tail = |of: fn(&Tails) -> Option<&Vec<f64>>| {
                move |s: &Spectrum| of(&s.tails)?.get(shown).copied()
            };
            let line = format!(
                "  {:<11} {:<13} {:<14} {:<13} {:<14} {:<12} {:<14} {:<14} {}",
                projection.name(),
                format!("{}x{}", first.rows, first.cols),
                range(&|s| Some(s.norm), 3),
                range(&|s| Some(s.stable_rank), 1),
                range(&rank(e95), 0),
                range(&rank(e99), 0),
                range(&tail(|t| Some(&t.none)), 4),
                range(&tail(|t| t.activation.as_ref()), 4),
                range(&tail(|t| t.whiten.as_ref()), 4),
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let of_projection = |projection: ProjectionKind| {
            let members = spectra.groups.iter().flat_map(|g| &g.members);
            let members = members.filter(|member| member.projection == projection);
            let errors = members.filter_map(|member| member.errors.get(shown).copied());
            let range = range(errors, 4);
            (!range.is_empty()).then(|| format!("{projection} {range}"))
        };
        let shared: Vec<String> = projections.into_iter().filter_map(of_projection).collect();
        writeln!(
            f,
            "  errors in a basis of half the width: shared by q, k, v and by gate, up: {}",
            shared.join(", ")
        )
    }

    fn write_depth(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(phases) = &self.phases {
            writeln!(f, "  phases          {}", runs(&phases.without_first))?;
            writeln!(
                f,
                "    with the first positions: {}",
                runs(&phases.with_first)
            )?;
        }
        if let Some(depth) = &self.depth {
            let guess = depth.two_thirds;
            match (depth.layer, depth.relative, &depth.reason) {
                (Some(layer), Some(relative), _) => writeln!(
                    f,
                    "  depth sink      layer {layer}, {relative:.3} of the depth; two thirds would be layer {guess}: {}",
                    match depth.agrees {
                        Some(true) => "they agree within a layer",
                        _ => "they do not agree",
                    }
                )?,
                (_, _, reason) => writeln!(
                    f,
                    "  depth sink      none: {}; two thirds would be layer {guess}",
                    reason.as_deref().unwrap_or_default()
                )?,
            }
            if let Some((low, high)) = ends(depth.weights.iter().copied()) {
                writeln!(
                    f,
                    "    every layer counts the same: its covariance times 1/trace, {} to {}",
                    four_digits(low),
                    four_digits(high)
                )?;
            }
        }
        if let Some(dimension) = &self.dimension {
            let of = |test: fn(&super::record::Stability) -> bool| {
                let tried = dimension.layers.iter().filter_map(|l| l.stability.as_ref());
                let (mut stable, mut all) = (0, 0);
                for tried in tried {
                    all += 1;
                    stable += usize::from(test(tried));
                }
                format!("{stable} of {all}")
            };
            writeln!(
                f,
                "  dimensions      of 64 vectors stable to ±1 in {} layers by PCA, in {} by TwoNN",
                of(|s| s.pca_stable),
                of(|s| s.twonn_stable)
            )?;
        }
        Ok(())
    }

    fn write_tokens(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.sinks.iter().flat_map(|sinks| &sinks.layers);
        let found = layers.clone().flat_map(|layer| {
            let tokens = layer.tokens.as_ref();
            tokens.into_iter().flat_map(|of| {
                let times = |norm: f64| norm / of.norm_mean;
                of.largest
                    .iter()
                    .filter_map(move |token| Some((token.text.as_deref()?, times(token.norm))))
            })
        });
        let first = layers.flat_map(|layer| &layer.positions);
        let first = first.filter(|found| found.position == 0);
        let first = first.filter_map(|found| found.text.as_deref()).next();
        let mut largest: Vec<(&str, f64)> = Vec::new();
        for (text, times) in found {
            match largest.iter_mut().find(|(known, _)| *known == text) {
                Some((_, most)) => *most = most.max(times),
                None => largest.push((text, times)),
            }
        }
        largest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let quoted = |text: &str| format!("\"{}\"", escape(text));
        if let Some(text) = first {
            writeln!(f, "  first position  {} in every window", quoted(text))?;
        }
        if !largest.is_empty() {
            let shown = largest.iter().take(TOKENS);
            let shown: Vec<String> = shown
                .map(|(text, times)| format!("{} {}", quoted(text), four_digits(*times)))
                .collect();
            writeln!(
                f,
                "  other tokens    of the largest norms, in times the mean of a layer: {}",
                shown.join(", ")
            )?;
        }
        Ok(())
    }

    fn write_layers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(phases), Some(sinks), Some(depth), Some(dimension), Some(manifold)) = (
            &self.phases,
            &self.sinks,
            &self.depth,
            &self.dimension,
            &self.manifold,
        ) else {
            return Ok(());
        };
        let random = sinks.layers.iter().find(|sink| !sink.coverage.is_empty());
        if let Some(sink) = random {
            let random = sink.coverage.iter().map(|c| format!("{:.3}", c.random));
            let random = random.collect::<Vec<_>>().join(" and ");
            writeln!(
                f,
                "  a basis in random directions covers {random} of any direction"
            )?;
        }
        writeln!(
            f,
            "        variance  phase    explained  sinks  tokens  covered 1/4  1/2    channel  PCA-95 (interval)   TwoNN (interval)      curvature  axioms     equal heads q k v"
        )?;
        for layer in 0..self.shape.layers {
            let mut line = format!("  {layer:>4}");
            let phase = phases.without_first.phases.as_ref();
            let phase = phase.and_then(|p| p.get(layer)).map_or("-", String::as_str);
            let variance = phases.without_first.variance.get(layer);
            let explained = depth.curve.get(layer);
            write!(
                line,
                "  {:>8}  {:<8} {:<9}",
                variance.map_or(String::new(), |v| four_digits(*v)),
                phase,
                explained.map_or(String::new(), |v| format!("{v:.4}"))
            )?;
            if let Some(sink) = sinks.layers.get(layer) {
                let covered = |at: usize| {
                    let found = sink.coverage.get(at);
                    found.map_or("-".to_owned(), |c| format!("{:.3}", c.norm))
                };
                write!(
                    line,
                    "  {:>5}  {:>6}  {:>11}  {:<5}  {:>7}",
                    sink.positions_found,
                    sink.tokens
                        .as_ref()
                        .map_or("-".to_owned(), |tokens| tokens.found.to_string()),
                    covered(0),
                    covered(1),
                    sink.channels
                        .first()
                        .map_or(String::new(), |c| format!("{:.3}", c.share))
                )?;
            }
            if let Some(found) = dimension.layers.get(layer) {
                let pca = found
                    .pca
                    .interval
                    .map(|(low, high)| format!(" ({low}-{high})"));
                let pca = format!("{}{}", found.pca.value, pca.unwrap_or_default());
                let twonn = found.twonn.as_ref().map_or("-".to_owned(), |t| {
                    let interval = t
                        .interval
                        .map(|(low, high)| format!(" ({low:.1}-{high:.1})"));
                    format!("{:.1}{}", t.value, interval.unwrap_or_default())
                });
                write!(line, "  {pca:<18}  {twonn:<20}")?;
            }
            if let Some(found) = manifold.layers.get(layer) {
                let curvature = found
                    .curvature
                    .map_or("-".to_owned(), |c| format!("{:.2}", c.mean));
                let axioms = found.axioms.map_or("-".to_owned(), |a| {
                    format!("{}/{}", a.survived, a.candidates)
                });
                let heads: Vec<String> = found
                    .symmetry
                    .iter()
                    .map(|s| format!("{}/{}", s.near_equal, s.pairs))
                    .collect();
                write!(line, "  {curvature:<9}  {axioms:<9}  {}", heads.join(" "))?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

fn range(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let Some((low, high)) = ends(values) else {
        return String::new();
    };
    let (low, high) = (format!("{low:.digits$}"), format!("{high:.digits$}"));
    if low == high {
        low
    } else {
        format!("{low}-{high}")
    }
}

fn four_digits(number: f64) -> String {
    if (1e-3..1e6).contains(&number) {
        let digits = (3 - number.log10().floor() as i32).max(0) as usize;
        format!("{number:.digits$}")
    } else if number == 0.0 {
        "0".to_owned()
    } else {
        format!("{number:.3e}")
    }
}

fn runs(profile: &Profile) -> String {
    let Some(phases) = &profile.phases else {
        return format!("none: {}", profile.reason.as_deref().unwrap_or_default());
    };
    let mut runs: Vec<(&str, usize, usize)> = Vec::new();
    for (layer, phase) in phases.iter().enumerate() {
        match runs.last_mut() {
            Some((name, _, last)) if *name == phase.as_str() => *last = layer,
            _ => runs.push((phase.as_str(), layer, layer)),
        }
    }
    let runs = runs.into_iter().map(|(name, first, last)| {
        if first == last {
            format!("{name} {first}")
        } else {
            format!("{name} {first}-{last}")
        }
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
