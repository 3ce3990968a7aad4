//! Notes on matrices with padded column groups.

use crate::system::show::format_count;
use htc_formats::bands::GROUP_COLS;

use super::form::MatrixForm;
use super::unit::UnitPlan;

const NOTE_PREFIX: &str = "padded to whole bands of ";

struct PaddedMatrices {
    cols: usize,
    names: Vec<&'static str>,
    count: usize,
}

/// Removes outdated notes from an edited file.
pub(super) fn update_padding_note(units: &[UnitPlan], notes: &mut Vec<String>) {
    let said = padding_note(units);
    notes.retain(|note| !note.starts_with(NOTE_PREFIX) || Some(note) == said.as_ref());
    if let Some(said) = said
        && !notes.contains(&said)
    {
        notes.push(said);
    }
}

fn padding_note(units: &[UnitPlan]) -> Option<String> {
    let mut found: Vec<PaddedMatrices> = Vec::new();
    for unit in units {
        let MatrixForm::ColumnGroups { codes } = &unit.form else {
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
                found.push(PaddedMatrices { cols, names, count });
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
        let matrices = format_count(of.count, "matrix");
        let padding = cols.next_multiple_of(GROUP_COLS) - cols;
        format!("{names} ({matrices} of {cols} columns) by {padding}")
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("{NOTE_PREFIX}{GROUP_COLS} columns: {}", each.join("; ")))
}
