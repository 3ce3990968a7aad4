//! What runs cost in joules, and how warm the device was.

use super::{about, empty, figure, ratio_plot, run_plot, statistics};
use crate::bench::record::{PerJoule, Quantity, Record, Run};
use crate::page::html::{Block, Section};
use crate::page::number::number;
use crate::page::plot::PlotError;
use crate::page::table::{Cell, Table};

/// Tokens for each joule of both, their ratios, and what the sensor said of every run.
pub(super) fn section(record: &Record) -> Result<Section, PlotError> {
    let mut section = empty(
        "energy",
        "Energy",
        "Tokens written for each joule: over all that the device drew from the prompt on, over what was beyond the power at which it idles, \
         and behind the first token alone. Pauses, warm-up and loading count for nothing.",
    );
    let Some(energy) = &record.energy else {
        return Ok(section);
    };
    let found: Vec<(PerJoule, &Quantity)> = PerJoule::ALL
        .into_iter()
        .filter_map(|of| Some((of, energy.get(of)?)))
        .collect();
    let ratios = found.iter().filter_map(|&(of, quantity)| {
        let value = |run: &Run| run.per_joule(of);
        Some(ratio_plot(record, of.name(), quantity.comparison?, &value))
    });
    let caption = "Ratio of tokens per joule in every pair, and the mean of all with its 95 % interval (percentile bootstrap over pairs); \
         above 1 the subject pays less.";
    let ratios = figure(ratios.collect(), "tokens/J", caption)?;
    let runs = found.iter().map(|&(of, _)| {
        let value = |run: &Run| run.per_joule(of);
        run_plot(record, of.name(), "tokens/J", &value)
    });
    let caption = "Tokens per joule of every run, in the order of measuring.";
    let runs = figure(runs.collect(), "tokens/J", caption)?;
    section.blocks.extend(ratios.into_iter().chain(runs));
    if !found.is_empty() {
        let quantities: Vec<_> = found
            .iter()
            .map(|&(of, quantity)| (of.name().to_owned(), Some(quantity)))
            .collect();
        section.blocks.push(Block::Table(statistics(
            "Statistics of tokens per joule",
            "tokens/J",
            &quantities,
        )));
    }
    section.blocks.push(Block::Table(readings(record)));
    Ok(section)
}

/// What the sensor said, a row for each run.
fn readings(record: &Record) -> Table {
    let head = [
        "pair",
        "task",
        "whose",
        "J",
        "J beyond idling",
        "J of decode",
        "W",
        "°C before",
        "°C after",
        "highest °C",
    ];
    let mut table = Table::new("Readings", head.map(str::to_owned).into());
    let cell = |value: Option<f64>| value.map_or_else(Cell::none, |v| Cell::number(number(v)));
    for (at, pair) in (1..).zip(&record.pairs) {
        let sides = [
            ("subject", Some(&pair.subject)),
            ("baseline", pair.baseline.as_ref()),
        ];
        for (whose, run) in sides {
            let Some(energy) = run.and_then(|run| run.energy) else {
                continue;
            };
            let said = energy.reading;
            table.row(vec![
                Cell::number(at.to_string()),
                Cell::text(about(pair)),
                Cell::text(whose),
                cell(said.joules),
                cell(said.net_joules),
                cell(said.decode_joules),
                cell(said.power_watts),
                cell(said.temperature_before_celsius),
                cell(said.temperature_after_celsius),
                cell(said.temperature_celsius),
            ]);
        }
    }
    table
}
