//! Bits of every band of columns: what a matrix in bands has where.

use htc_formats::bands::CodeLayout;
use htc_formats::htz::TensorEntry;
use htc_formats::model::{MatrixId, Part, ProjectionKind, Role};

use super::super::html::{Figure, Legend};
use super::super::plot::{Axis, Colour, Heat, Kind, PlotError, ROW};
use super::super::subject::{Given, Subject};
use super::super::table::{Cell, Table};

/// Columns of a field at most; of matrices with more bands several are one.
const COLUMNS: usize = 64;

/// Height of all rows of a field, about.
const HEIGHT: i32 = 220;

/// A matrix in bands: which, and its codes.
type Coded<'a> = (MatrixId, usize, &'a CodeLayout);

/// A field for each slot, layers by bands, and for the vocabulary's matrices one of classes by bands; `None` where the
/// artifact is not there, or has no bands.
pub fn figure(given: &Given, subject: &Subject) -> Result<Option<Figure>, PlotError> {
    let tensors = subject.artifact.map_or(&[][..], |a| &a.manifest.tensors);
    let coded: Vec<Coded> = tensors.iter().filter_map(in_bands).collect();
    let fields = fields(&coded);
    let values = || fields.iter().flat_map(Heat::values);
    let Some((low, high)) = values().reduce(f64::min).zip(values().reduce(f64::max)) else {
        return Ok(None);
    };
    let mut plots = Vec::new();
    for mut field in fields {
        field.range = Some([low, high]);
        plots.push(field.draw()?);
    }
    let caption = format!("{}Bits of bands of 32 columns", given.of(subject));
    let head = ["matrix", "rows", "codes of its bands"];
    let mut table = Table::new(&caption, head.map(str::to_owned).into());
    for (matrix, rows, layout) in &coded {
        for (rows, codes) in layout.codes_with_rows(*rows) {
            table.row(vec![
                Cell::text(matrix.to_string()),
                Cell::number(rows.to_string()),
                Cell::text(codes.to_string()),
            ]);
        }
    }
    let axis = Axis::new("bits", Kind::Linear);
    Ok(Some(Figure {
        plots,
        legend: Legend::Ramp {
            colour: Colour::Amount,
            low: axis.tell(low),
            high: axis.tell(high),
        },
        table,
        caption: format!(
            "{caption}: a field for each slot, a row for each layer, and bands from left to right in the order in which columns are stored. A vocabulary has a row for each class of tokens."
        ),
    }))
}

/// The matrix that a tensor is, where it is in bands and no refinement.
fn in_bands(entry: &TensorEntry) -> Option<Coded<'_>> {
    let matrix = match entry.role {
        Role::TokenEmbedding => MatrixId::Embedding,
        Role::Output => MatrixId::Head,
        Role::Linear {
            layer,
            slot,
            part: Part::Weight,
        } => MatrixId::Projection {
            layer,
            projection: slot,
        },
        _ => return None,
    };
    Some((matrix, entry.rows as usize, entry.codes.as_ref()?))
}

fn fields(coded: &[Coded]) -> Vec<Heat> {
    let mut fields = Vec::new();
    for slot in ProjectionKind::ALL {
        let own = coded.iter().filter(|(of, ..)| of.slot() == Some(slot));
        let rows = own.map(|(matrix, _, layout)| {
            let layer = matrix.layer().unwrap_or(0);
            (layer.to_string(), bits_of(layout))
        });
        fields.extend(field(slot.name(), rows.collect()));
    }
    for (matrix, rows, layout) in coded.iter().filter(|(of, ..)| of.slot().is_none()) {
        let classes = layout.codes_with_rows(*rows);
        let rows = classes.map(|(rows, codes)| {
            let bits = codes.iter().map(|code| f64::from(code.bits()));
            (rows.to_string(), bits.collect())
        });
        fields.extend(field(&matrix.to_string(), rows.collect()));
    }
    fields
}

/// Bits of every band, of classes on average.
fn bits_of(layout: &CodeLayout) -> Vec<f64> {
    let (mut sums, mut all) = (Vec::new(), 0.0);
    for (rows, codes) in layout.codes_with_rows(1) {
        let rows = rows as f64;
        sums.resize(codes.len(), 0.0);
        for (sum, code) in sums.iter_mut().zip(codes.iter()) {
            *sum += rows * f64::from(code.bits());
        }
        all += rows;
    }
    sums.into_iter().map(|sum| sum / all).collect()
}

/// A field of the bits of rows; `None` without rows.
fn field(name: &str, rows: Vec<(String, Vec<f64>)>) -> Option<Heat> {
    let bands = rows.iter().map(|(_, bits)| bits.len()).max()?;
    let columns = bands.min(COLUMNS);
    let first = |column: usize| column * bands / columns;
    let means = |bits: Vec<f64>| -> Vec<Option<f64>> {
        let of = |column| {
            let some = bits.get(first(column)..first(column + 1).min(bits.len()))?;
            (!some.is_empty()).then(|| some.iter().sum::<f64>() / some.len() as f64)
        };
        (0..columns).map(of).collect()
    };
    let height = (HEIGHT / i32::try_from(rows.len()).unwrap_or(i32::MAX).max(1)).clamp(4, ROW);
    Some(Heat {
        title: format!("Bits of the bands of {name}"),
        axis: Axis::new(format!("{name}, bits"), Kind::Linear),
        across: "band".into(),
        columns: (0..columns)
            .map(|column| first(column).to_string())
            .collect(),
        rows: rows
            .into_iter()
            .map(|(name, bits)| (name, means(bits)))
            .collect(),
        height,
        range: None,
    })
}
