//! Notes on matrices with padded column groups.

use htc_formats::bands::BAND;

use super::form::Form;
use super::unit::UnitPlan;

const BEGINS: &str = "padded to whole bands of ";

struct Padded {
    cols: usize,
    names: Vec<&'static str>,
    count: usize,
}

/// Adds one note on padded matrices and their columns to a plan, and removes outdated ones from an
/// edited file.
pub(super) fn say(units: &[UnitPlan], notes: &mut Vec<String>) {
    let said = note(units);
    notes.retain(|note| !note.starts_with(BEGINS) || Some(note) == said.as_ref());
    if let Some(said) = said
        && !notes.contains(&said)
    {
        notes.push(said);
    }
}

fn note(units: &[UnitPlan]) -> Option<String> {
    let mut found: Vec<Padded> = Vec::new();
    for unit in units {
        let Form::Bands { codes } = &unit.form else {
            continue;
        };
        if codes.padding() == 0 {
            continue;
        }
        for member in &unit.members {
            let cols = member.cols;
            let at = found.iter().position(|of| of.cols == cols);
            let at = at.unwrap_or_else(|| {
                let (names, count) = (Vec::new(), 0);
                found.push(Padded { cols, names, count });
                found.len() - 1
            });
            let of = &mut found[at];
            let name = member.matrix.name();
            if !of.names.contains(&name) {
                of.names.push(name);
            }
            of.count += 1;
        }
    }
    let each = found.iter().map(|of| {
        let (names, cols) = (of.names.join(", "), of.cols);
        let matrices = match of.count {
            1 => "1 matrix".to_owned(),
            count => format!("{count} matrices"),
        };
        let padding = cols.next_multiple_of(BAND) - cols;
        format!("{names} ({matrices} of {cols} columns) by {padding}")
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("{BEGINS}{BAND} columns: {}", each.join("; ")))
}
