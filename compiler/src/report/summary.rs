//! Summary of a plan.

use std::collections::BTreeSet;
use std::fmt;

use htc_formats::htz::{Form, MatrixRecord, PlanRecord};
use htc_formats::model::{MatrixId, Part, ProjectionKind, Role};
use htc_formats::source::{ModelFile, ModelTensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BeforeAfter, percent, rms_and_largest};
use crate::options::{Effort, PlanOptions, QualityLimit};
use crate::plan::{Budget, Method, Plan, PlanRequest, UnitPlan};
use crate::system::show::{format_bytes, format_count};
use crate::unit::{kv_bases, stored_tensors};

/// Figures of a plan; with errors after the measurement.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The request.
    pub request: PlanOptions,
    #[serde(skip)]
    asked: String,
    /// Parameters of all tensors.
    pub parameters: BeforeAfter,
    /// Parameters of the selected projections.
    pub selected_parameters: BeforeAfter,
    /// Bytes of the selected projections, without alignment.
    pub selected_bytes: BeforeAfter,
    /// Selected parameters after over before.
    pub ratio: f64,
    /// One line per kind of projection.
    pub projections: Vec<ProjectionSummary>,
    /// Shared bases.
    pub bases: Bases,
    #[serde(skip)]
    matrices: Vec<MatrixRecord>,
    /// Correcting biases of factorised projections; not counted in the ratio.
    pub biases: Biases,
    /// Bytes of KV cache bases; absent if there are none.
    #[serde(default, skip_serializing_if = "is_no_byte")]
    pub kv_bases: u64,
    /// Deviations from the request, each once.
    pub notes: Vec<String>,
}

/// Shared bases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Bases {
    /// Number of bases.
    pub count: usize,
    /// Total bytes.
    pub bytes: u64,
}

/// Correcting biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Biases {
    /// Number of biases.
    pub count: usize,
    /// Total parameters.
    pub parameters: u64,
    /// Total bytes.
    pub bytes: u64,
}

impl Biases {
    fn new(plan: &Plan) -> Biases {
        let units = plan.units().iter().flat_map(|unit| {
            let stored = stored_tensors(unit, true).into_iter();
            let bias = |role| {
                matches!(
                    role,
                    Role::Linear {
                        part: Part::Bias,
                        ..
                    }
                )
            };
            stored.filter(move |shape| bias(shape.role))
        });
        units.fold(Biases::default(), |sum, shape| Biases {
            count: sum.count + 1,
            parameters: sum.parameters + shape.cols as u64,
            bytes: sum.bytes + shape.dtype.matrix_bytes(1, shape.cols).unwrap_or(0) as u64,
        })
    }
}

/// All projections of one kind; gate, up and down are those of experts in a mixture.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ProjectionSummary {
    /// Projection.
    pub projection: ProjectionKind,
    /// Matrices that are factorised, one per layer without experts.
    pub factorised: usize,
    /// Matrices that are dense.
    pub dense: usize,
    /// Matrices that are dense in another type than the source's; absent if zero.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub encoded: usize,
    /// Smallest and largest rank; absent if dense in all layers.
    pub rank: Option<(usize, usize)>,
    /// Bytes, without shared bases.
    pub bytes: BeforeAfter,
    /// Root mean square over the layers of `‖W − Ŵ‖_F / ‖W‖_F`.
    pub error: Option<f64>,
    /// Largest error of a layer.
    pub largest_error: Option<f64>,
}

impl Summary {
    /// Creates the summary; with `biases` every factorised projection gets a correcting bias.
    pub fn new(source: &ModelFile, plan: &Plan, record: &PlanRecord, biases: bool) -> Summary {
        let is_weight = |t: &&ModelTensor| {
            let part = Part::Weight;
            matches!(t.role, Role::Linear { part: own, .. } if own == part)
        };
        let others: u64 = source
            .tensors
            .iter()
            .filter(|t| !is_weight(t))
            .map(|t| t.rows as u64 * t.cols as u64)
            .sum();
        let bases: u64 = record.bases.iter().map(|b| b.parameters).sum();
        let basis_bytes: u64 = record.bases.iter().map(|b| b.bytes).sum();
        let projections = record.projections.iter();
        let projections: BTreeSet<ProjectionKind> = projections.filter_map(kind).collect();
        let projections: Vec<ProjectionKind> = projections.into_iter().collect();
        let sum = |of: &dyn Fn(&MatrixRecord) -> u64, chosen: &[ProjectionKind]| -> u64 {
            let chosen = |s: &&MatrixRecord| kind(s).is_some_and(|kind| chosen.contains(&kind));
            record.projections.iter().filter(chosen).map(of).sum()
        };
        let counted = |chosen: &[ProjectionKind], others: u64| BeforeAfter {
            before: others + sum(&|s| s.parameters_before, chosen),
            after: others + bases + sum(&|s| s.parameters_after, chosen),
        };
        let biases = if biases {
            Biases::new(plan)
        } else {
            Biases::default()
        };
        let mut parameters = counted(&projections, others);
        let outside = |of: fn(&MatrixRecord) -> u64| record.matrices.iter().map(of).sum::<u64>();
        parameters.after += outside(|m| m.parameters_after);
        parameters.after -= outside(|m| m.parameters_before);
        let own = source.tensors.iter().filter(|tensor| {
            let bias = |unit: &UnitPlan| biases.count > 0 && unit.rank().is_some();
            match MatrixId::from_role(tensor.role) {
                Some((matrix, Part::Bias)) => plan.unit_of(matrix).is_some_and(bias),
                _ => false,
            }
        });
        let own: u64 = own.map(|tensor| tensor.cols as u64).sum();
        parameters.after += biases.parameters - own;
        let selected = &plan.request().projections;
        let selected_parameters = counted(selected, 0);
        let ratio = match selected_parameters.before {
            0 => 1.0,
            before => selected_parameters.after as f64 / before as f64,
        };
        Summary {
            request: PlanOptions {
                projections: Vec::new(),
                ..plan.request().options()
            },
            asked: plan.request().to_string(),
            parameters,
            selected_parameters,
            selected_bytes: BeforeAfter {
                before: sum(&|s| s.bytes_before, selected),
                after: basis_bytes + sum(&|s| s.bytes_after, selected),
            },
            ratio,
            projections: projections
                .into_iter()
                .map(|projection| summarise_projection(record, projection))
                .collect(),
            bases: Bases {
                count: record.bases.len(),
                bytes: basis_bytes,
            },
            matrices: record.matrices.clone(),
            biases,
            kv_bases: if plan.has_kv_bases() {
                source.hyper.layers as u64 * kv_bases::layer_bytes(&source.hyper)
            } else {
                0
            },
            notes: all_notes(plan, record, ratio),
        }
    }
}

impl Summary {
    /// Shows the requested quality limit in place of the resulting file size.
    pub(crate) fn show_limit(&mut self, limit: QualityLimit, request: &PlanRequest) {
        let PlanRequest { method, effort, .. } = *request;
        if method == Method::Quantise {
            self.asked = format!("--method {} {limit}", method.name());
            if request.layout.kv_bases.is_on() {
                self.asked += " --kv-bases";
            }
            if effort != Effort::default() {
                self.asked += &format!(" --effort {effort}");
            }
        }
    }
}

fn is_no_byte(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Returns the projection of a record; that of all experts for the matrix of one.
fn kind(record: &MatrixRecord) -> Option<ProjectionKind> {
    record.id.projection().map(ProjectionKind::dense)
}

fn summarise_projection(plan: &PlanRecord, projection: ProjectionKind) -> ProjectionSummary {
    let records: Vec<_> = plan
        .projections
        .iter()
        .filter(|s| kind(s) == Some(projection))
        .collect();
    let ranks = || records.iter().filter_map(|s| s.rank);
    let errors: Vec<f64> = records.iter().filter_map(|s| s.error).collect();
    let (error, largest_error) = rms_and_largest(&errors).unzip();
    let dense = |s: &&&MatrixRecord| s.form == Form::Dense;
    let encoded =
        |s: &&&MatrixRecord| dense(s) && (s.error.is_some() || s.bytes_after != s.bytes_before);
    let encoded = records.iter().filter(encoded).count();
    let dense = records.iter().filter(dense).count();
    ProjectionSummary {
        projection,
        factorised: records.len() - dense,
        dense,
        encoded,
        rank: ranks().min().zip(ranks().max()),
        bytes: BeforeAfter {
            before: records.iter().map(|s| s.bytes_before).sum(),
            after: records.iter().map(|s| s.bytes_after).sum(),
        },
        error,
        largest_error,
    }
}

fn all_notes(plan: &Plan, record: &PlanRecord, ratio: f64) -> Vec<String> {
    let mut said = plan.notes().to_vec();
    said.extend(notes(record));
    if let Budget::Ratio(asked) = plan.request().budget
        && ratio > asked
    {
        said.push(format!(
            "the ratio is {ratio:.3}, {asked} was requested: projections were kept dense because their \
             factors would take more bytes; a smaller --ratio or --factor-type makes them pay"
        ));
    }
    said
}

/// Returns the notes of all projections, each once, then the others.
pub fn notes(plan: &PlanRecord) -> Vec<String> {
    let mut said: Vec<(&str, Vec<ProjectionKind>, usize)> = Vec::new();
    for record in &plan.projections {
        if let Some(note) = &record.note {
            let (_, projections, count) = match said.iter().position(|(text, ..)| text == note) {
                Some(known) => &mut said[known],
                None => {
                    said.push((note, Vec::new(), 0));
                    let last = said.len() - 1;
                    &mut said[last]
                }
            };
            *count += 1;
            if let Some(projection) = kind(record)
                && !projections.contains(&projection)
            {
                projections.push(projection);
            }
        }
    }
    said.into_iter()
        .map(|(note, projections, count)| {
            let names: Vec<_> = projections.iter().map(|s| s.name()).collect();
            let count = format_count(count, "projection");
            format!("{} ({count}): {note}", names.join(", "))
        })
        .chain(plan.matrices.iter().filter_map(|matrix| {
            let note = matrix.note.as_ref()?;
            Some(format!("{}: {note}", matrix.id.name()))
        }))
        .collect()
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  parameters  {:>12} -> {:>12}  ({:.1} %; {:.1} % of the selected projections)",
            self.parameters.before,
            self.parameters.after,
            percent(self.parameters.after, self.parameters.before),
            100.0 * self.ratio,
        )?;
        writeln!(f, "  request     {}", self.asked)?;
        writeln!(f)?;
        let measured = self.projections.iter().any(|s| s.error.is_some());
        let of_errors = if measured {
            "                     error (rms)  error (max)"
        } else {
            ""
        };
        writeln!(f, "  projection   count  rank       bytes{of_errors}")?;
        let shown = |s: &&ProjectionSummary| s.factorised > 0 || s.encoded > 0;
        for summary in self.projections.iter().filter(shown) {
            let rank = match summary.rank {
                Some((low, high)) if low == high => low.to_string(),
                Some((low, high)) => format!("{low}..{high}"),
                None => "dense".to_owned(),
            };
            write!(
                f,
                "  {:<10}  {:>6}  {:<9}  {:>9} -> {:>9}",
                summary.projection.name(),
                summary.factorised + summary.encoded,
                rank,
                format_bytes(summary.bytes.before),
                format_bytes(summary.bytes.after),
            )?;
            if measured {
                let number = |e: Option<f64>| e.map_or_else(String::new, |e| format!("{e:.5}"));
                let (rms, largest) = (number(summary.error), number(summary.largest_error));
                write!(f, "  {rms:>14}  {largest:>11}")?;
            }
            writeln!(f)?;
        }
        for matrix in &self.matrices {
            let rank = matrix
                .rank
                .map_or_else(|| "dense".to_owned(), |r| r.to_string());
            write!(
                f,
                "  {:<18}  {rank:<9}  {:>9} -> {:>9}",
                matrix.id.name(),
                format_bytes(matrix.bytes_before),
                format_bytes(matrix.bytes_after),
            )?;
            match matrix.error {
                Some(error) => writeln!(f, "  {error:>14.5}")?,
                None => writeln!(f)?,
            }
        }
        let others = [
            ("bases", self.bases.count, self.bases.bytes),
            ("biases", self.biases.count, self.biases.bytes),
        ];
        for (name, count, bytes) in others.into_iter().filter(|(_, count, _)| *count > 0) {
            let bytes = format_bytes(bytes);
            writeln!(f, "  {name:<10}  {count:>6}  {bytes:>34}")?;
        }
        if self.kv_bases > 0 {
            let bytes = format_bytes(self.kv_bases);
            writeln!(f, "  KV cache bases      {bytes:>34}")?;
        }
        let factorised: usize = self.projections.iter().map(|s| s.factorised).sum();
        let encoded: usize = self.projections.iter().map(|s| s.encoded).sum();
        if factorised + encoded == 0 {
            writeln!(f, "  no projection is factorised")?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}
