//! Validation of plans: units must fit the model and each other.

use std::collections::HashMap;

use htc_formats::CodecError;
use htc_formats::bands::CodeLayout;
use htc_formats::model::{HyperParameters, MatrixId};
use htc_formats::{DType, block};
use thiserror::Error;

use super::form::MatrixForm;
use super::kind::MAX_ASPECT;
use super::sources::SourceTypes;
use super::unit::{UnitMatrix, UnitPlan, matrix_name};
use crate::options::Method;

/// Mismatch in a plan. Messages begin with the key of the plan's file.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PlanMismatch {
    /// A unit without matrices, or with matrices that cannot form one unit.
    #[error("projections: expected {expected}, found {found}")]
    Members {
        /// Expected members.
        expected: &'static str,
        /// Members in the plan.
        found: String,
    },
    /// A matrix that the model does not have.
    #[error("{matrix}: the model has none{}", if *matrix == MatrixId::Head { " of its own: it uses the embedding as head, too, so that the embedding is what can be decided about" } else { "" })]
    Absent {
        /// Name of the matrix.
        matrix: MatrixId,
    },
    /// A matrix that belongs to two units.
    #[error("projections: {matrix} belongs to two units")]
    Twice {
        /// Name of the matrix.
        matrix: MatrixId,
        /// Index of the first unit that contains it.
        first: usize,
    },
    /// A shape that differs from the model's.
    #[error("{matrix}: expected {} x {}, found {} x {}", expected.0, expected.1, found.0, found.1)]
    Shape {
        /// Name of the matrix.
        matrix: MatrixId,
        /// Rows and columns in the model.
        expected: (usize, usize),
        /// Rows and columns in the plan.
        found: (usize, usize),
    },
    /// A form that the matrix cannot have.
    #[error("form: expected {expected}, found {found}")]
    Form {
        /// Allowed forms.
        expected: &'static str,
        /// Form in the plan.
        found: &'static str,
    },
    /// A shared basis that would be disproportionately large.
    #[error(
        "projections: {cols} inputs are out of proportion to {outs} outputs; keep the unit dense"
    )]
    TooWide {
        /// Width of the input.
        cols: usize,
        /// Total number of outputs.
        outs: usize,
    },
    /// A rank out of range.
    #[error("rank: expected a whole number from 1 to {limit}, found {found}")]
    Rank {
        /// Largest valid rank.
        limit: usize,
        /// Rank in the plan.
        found: usize,
    },
    /// A type that can be read but not written.
    #[error("types.{key}: expected a type that is written, found {found}")]
    NotWritten {
        /// Key of the type.
        key: &'static str,
        /// Type in the plan.
        found: DType,
    },
    /// Codes that do not match the columns.
    #[error("types.weight: {0}")]
    Codes(CodecError),
    /// Row classes in a matrix without them, or for other rows.
    #[error("types.weight: expected {expected} for {matrix}, found {found}")]
    Classes {
        /// Name of the matrix.
        matrix: MatrixId,
        /// Expected classes.
        expected: String,
        /// Classes in the plan.
        found: String,
    },
    /// Rows that are not whole blocks of the type.
    #[error(
        "types.{key}: rows of {length} numbers are not whole blocks of {}, which {dtype} has; \
         expected f32, f16 or bf16{}",
        dtype.block_len(),
        if *of_rank { ", or another rank" } else { "" }
    )]
    Blocks {
        /// Key of the type.
        key: &'static str,
        /// Row length in elements.
        length: usize,
        /// Block type.
        dtype: DType,
        /// True if the row length is the rank, or the tensor belongs to a factorisation.
        of_rank: bool,
    },
}

pub(super) fn rank_limit(shared: bool, members: &[UnitMatrix]) -> usize {
    let cols = members.first().map_or(0, |member| member.cols);
    let outs: usize = members.iter().map(|member| member.rows).sum();
    // A basis of the whole input is the identity.
    if shared { cols } else { outs.min(cols) }
}

pub(super) fn check_members(
    method: Method,
    matrices: &[MatrixId],
    shared: bool,
) -> Option<PlanMismatch> {
    let group = |matrix: &MatrixId| {
        matrix
            .projection()
            .and_then(|projection| projection.group())
    };
    let first = matrices.first()?;
    let one_input = group(first).is_some()
        && matrices
            .iter()
            .all(|m| group(m) == group(first) && m.layer() == first.layer());
    let expected = match method {
        Method::PerProjection if matrices.len() > 1 => "one projection with the method low-rank",
        Method::Quantise if matrices.len() > 1 && !shared => {
            "one projection, unless it shares a basis"
        }
        Method::Quantise if shared && !one_input => "some of q, k, v, or of gate, up",
        Method::SharedBasis if !one_input && (shared || matrices.len() > 1) => {
            "some of q, k, v, or of gate, up, with the method shared-basis"
        }
        _ => return None,
    };
    let names: Vec<String> = matrices.iter().map(|&m| matrix_name(m)).collect();
    let found = names.join(", ");
    Some(PlanMismatch::Members { expected, found })
}

pub(super) const fn allowed_forms(method: Method, matrix: MatrixId) -> &'static str {
    match (matrix, method) {
        (MatrixId::Embedding, _) => "dense, since rows of an embedding are looked up",
        (MatrixId::Head, Method::Quantise) => "dense or low_rank with the method quantise",
        (MatrixId::Projection { .. }, Method::Quantise) => {
            "dense, low_rank or shared_basis with the method quantise"
        }
        (MatrixId::Head, _) => "dense or low_rank or residual",
        (MatrixId::Projection { .. }, Method::PerProjection) => {
            "dense or low_rank or residual with the method low-rank"
        }
        (MatrixId::Projection { .. }, Method::SharedBasis) => {
            "dense or shared_basis, or residual for one projection, with the method shared-basis"
        }
    }
}

pub(super) fn is_form_allowed(method: Method, matrices: &[MatrixId], form: &str) -> bool {
    let alone = matrices.len() == 1;
    match (matrices.first(), form) {
        (None, _) => false,
        (_, "dense") => true,
        (Some(MatrixId::Embedding), _) => false,
        // Its error has no dominant directions.
        (Some(_), "residual") if method == Method::Quantise => false,
        (Some(MatrixId::Head), form) => matches!(form, "low_rank" | "residual"),
        (Some(MatrixId::Projection { .. }), "low_rank") => {
            alone && matches!(method, Method::PerProjection | Method::Quantise)
        }
        (Some(MatrixId::Projection { .. }), "shared_basis") => {
            matches!(method, Method::SharedBasis | Method::Quantise)
        }
        (Some(MatrixId::Projection { .. }), form) => form == "residual" && alone,
    }
}

pub(super) struct PlanChecker<'a, S> {
    pub(super) hyper: &'a HyperParameters,
    method: Method,
    pub(super) source_type: &'a S,
    seen: HashMap<MatrixId, usize>,
    units: usize,
}

impl<'a, S: SourceTypes> PlanChecker<'a, S> {
    pub(super) fn new(hyper: &'a HyperParameters, method: Method, source_type: &'a S) -> Self {
        PlanChecker {
            hyper,
            method,
            source_type,
            seen: HashMap::new(),
            units: 0,
        }
    }

    pub(super) fn check_unit(&mut self, unit: &UnitPlan) -> Vec<PlanMismatch> {
        let number = self.units;
        self.units += 1;
        let matrices: Vec<MatrixId> = unit.members.iter().map(|m| m.matrix).collect();
        let shared = matches!(unit.form, MatrixForm::SharedBasis { .. });
        let Some(&first) = matrices.first() else {
            let (expected, found) = ("at least one", "none".to_owned());
            return vec![PlanMismatch::Members { expected, found }];
        };
        if let Some(fault) = check_members(self.method, &matrices, shared) {
            return vec![fault];
        }
        let name = unit.form.to_stored(DType::F32).form().name();
        if !is_form_allowed(self.method, &matrices, name) {
            let (expected, found) = (allowed_forms(self.method, first), name);
            return vec![PlanMismatch::Form { expected, found }];
        }
        let mut faults = Vec::new();
        for member in &unit.members {
            faults.extend(self.check_member(member, number));
        }
        faults.extend(check_form(&unit.form, &unit.members));
        faults
    }

    fn check_member(&mut self, member: &UnitMatrix, number: usize) -> Option<PlanMismatch> {
        let matrix = member.matrix;
        let in_model = matrix.layer().is_none_or(|layer| layer < self.hyper.layers);
        if !in_model || self.source_type.dtype(matrix).is_none() {
            return Some(PlanMismatch::Absent { matrix });
        }
        let (expected, found) = (matrix.shape(self.hyper), (member.rows, member.cols));
        if expected != found {
            return Some(PlanMismatch::Shape {
                matrix,
                expected,
                found,
            });
        }
        let first = self.seen.insert(matrix, number)?;
        Some(PlanMismatch::Twice { matrix, first })
    }
}

fn check_form(form: &MatrixForm, members: &[UnitMatrix]) -> Vec<PlanMismatch> {
    let mut faults = Vec::new();
    let cols = members.first().map_or(0, |member| member.cols);
    let outs: usize = members.iter().map(|member| member.rows).sum();
    let shared = matches!(form, MatrixForm::SharedBasis { .. });
    if shared && cols > MAX_ASPECT * outs {
        faults.push(PlanMismatch::TooWide { cols, outs });
    }
    let limit = rank_limit(shared, members);
    let possible = |rank: &usize| (1..=limit).contains(rank);
    if let Some(found) = form.rank().filter(|rank| !possible(rank)) {
        faults.push(PlanMismatch::Rank { limit, found });
    }
    if let MatrixForm::ColumnGroups { codes } = form
        && let Some(misfit) = codes.width_error(cols)
    {
        faults.push(PlanMismatch::Codes(misfit));
    }
    if let MatrixForm::ColumnGroups {
        codes: codes @ CodeLayout::Classes(_),
    } = form
        && let Some(&UnitMatrix { matrix, rows, .. }) = members
            .iter()
            .find(|member| member.matrix.projection().is_some() || !codes.has_rows(member.rows))
    {
        let expected = match matrix.projection() {
            Some(_) => "codes without classes of rows".to_owned(),
            None => format!("classes of {rows} rows together"),
        };
        let found = codes.to_string();
        faults.push(PlanMismatch::Classes {
            matrix,
            expected,
            found,
        });
    }
    for (key, dtype) in form.types() {
        let of_factors = form.rank().is_some() && key != "base";
        let length = match (key, form.rank()) {
            ("b" | "projected", Some(rank)) if !possible(&rank) => continue,
            ("b" | "projected", Some(rank)) => rank,
            _ => cols,
        };
        if !block::writable_types().contains(&dtype) {
            faults.push(PlanMismatch::NotWritten { key, found: dtype });
        } else if !length.is_multiple_of(dtype.block_len()) {
            faults.push(PlanMismatch::Blocks {
                key,
                length,
                dtype,
                of_rank: of_factors,
            });
        }
    }
    faults
}
