//! Walk through a tensor table, which determines the form of each matrix and checks shapes.

use std::fmt::Display;

use super::HtzError;
use crate::DType;
use crate::bands::GROUP_COLS;
use crate::htz::manifest::TensorEntry;
use crate::limits::{MAX_TENSOR_NAME_BYTES, MAX_VOCABULARY};
use crate::model::{
    Form, HyperParameters, InputGroup, KvSide, MatrixId, Part, ProjectionKind, Role, StoredForm,
};

#[derive(Default)]
pub(super) struct StoredModel {
    /// Projections of the layers.
    pub projections: Vec<StoredMatrix>,
    pub outside_layers: Vec<StoredMatrix>,
    pub bases: Vec<StoredBasis>,
    /// Refined matrices, in the order of activation.
    pub refined: Vec<MatrixId>,
}

pub(super) struct StoredMatrix {
    pub matrix: MatrixId,
    pub form: Form,
    pub rank: Option<u64>,
    pub parameters: u64,
    pub bytes: u64,
}

pub(super) struct StoredBasis {
    pub layer: usize,
    pub group: InputGroup,
    pub rank: u64,
    pub parameters: u64,
    pub bytes: u64,
}

impl StoredBasis {
    pub fn role(&self) -> Role {
        Role::Basis {
            layer: self.layer,
            group: self.group,
        }
    }
}

/// Walks through the table in execution order, which is the same for every model. This detects
/// missing, repeated, misplaced and unknown tensors, and the table bounds the work.
pub(super) fn walk_tensor_table(
    h: &HyperParameters,
    table: &[TensorEntry],
) -> Result<StoredModel, HtzError> {
    let mut walk = TensorTableWalk { h, table, index: 0 };
    let mut stored = StoredModel::default();
    let width = h.width as u64;
    let embedding = walk.stored_matrix(MatrixId::Embedding, None)?;
    stored.outside_layers.push(embedding);
    let pairs = h.rope_dimensions as u64 / 2;
    walk.optional_vector(Role::RopeFactors, pairs)?;
    if h.forward.long_rope.is_some() {
        walk.vector(Role::LongRopeFactors, pairs)?;
    }
    let head = h.head_size as u64;
    for layer in 0..h.layers {
        walk.vector(Role::AttentionNorm { layer }, width)?;
        walk.group(
            layer,
            Some(InputGroup::Qkv),
            &[ProjectionKind::Q, ProjectionKind::K, ProjectionKind::V],
            &mut stored,
        )?;
        walk.optional_vector(Role::QueryNorm { layer }, head)?;
        walk.optional_vector(Role::KeyNorm { layer }, head)?;
        walk.group(layer, None, &[ProjectionKind::O], &mut stored)?;
        walk.optional_vector(Role::PostAttentionNorm { layer }, width)?;
        walk.vector(Role::FfnNorm { layer }, width)?;
        match h.forward.experts {
            Some(experts) => walk.experts(layer, experts.count, &mut stored)?,
            None => {
                let gate_up = &[ProjectionKind::Gate, ProjectionKind::Up];
                walk.group(layer, Some(InputGroup::GateUp), gate_up, &mut stored)?;
                walk.group(layer, None, &[ProjectionKind::Down], &mut stored)?;
            }
        }
        walk.optional_vector(Role::PostFfnNorm { layer }, width)?;
    }
    walk.vector(Role::OutputNorm, width)?;
    // The head defaults to the embedding.
    if walk.next_is(Role::Output) || walk.next_is(Role::OutputFactor { part: Part::A }) {
        let head = walk.stored_matrix(MatrixId::Head, None)?;
        stored.outside_layers.push(head);
    }
    walk.kv_bases()?;
    walk.refinements(&mut stored)?;
    match walk.table.get(walk.index) {
        None => Ok(stored),
        Some(_) => Err(walk.order_error("the end of the table")),
    }
}

fn describe_codes(cols: u64) -> String {
    let every = format!("one for every {GROUP_COLS} of {cols} columns");
    match cols.next_multiple_of(GROUP_COLS as u64) - cols {
        0 => every,
        padding => format!("{every}, the last padded by {padding}, which is -{padding} at the end"),
    }
}

struct TensorTableWalk<'a> {
    h: &'a HyperParameters,
    table: &'a [TensorEntry],
    index: usize,
}

impl<'a> TensorTableWalk<'a> {
    fn next_is(&self, role: Role) -> bool {
        self.table
            .get(self.index)
            .is_some_and(|entry| entry.role == role)
    }

    fn order_error(&self, expected: impl Display) -> HtzError {
        HtzError::TensorOrder {
            index: self.index,
            expected: expected.to_string(),
            found: match self.table.get(self.index) {
                Some(entry) => entry.role.to_string(),
                None => "missing".to_owned(),
            },
        }
    }

    /// Returns the next entry, not in column groups, without checking its shape.
    fn next_without_column_groups(&mut self, role: Role) -> Result<&'a TensorEntry, HtzError> {
        let entry = self.next_entry(role)?;
        if entry.dtype == DType::Bands {
            let expected = "one of blocks, since only a dense matrix is in bands";
            return Err(entry.error("type", expected, entry.dtype));
        }
        Ok(entry)
    }

    fn next_entry(&mut self, role: Role) -> Result<&'a TensorEntry, HtzError> {
        match self.table.get(self.index) {
            Some(entry) if entry.role == role => {
                self.index += 1;
                if entry.name.len() as u64 > MAX_TENSOR_NAME_BYTES {
                    let expected = format!("at most {MAX_TENSOR_NAME_BYTES} bytes");
                    return Err(entry.error("length of the name", expected, entry.name.len()));
                }
                for (property, side) in [
                    ("number of rows", entry.rows),
                    ("number of columns", entry.cols),
                ] {
                    if side == 0 || side > MAX_VOCABULARY as u64 {
                        let expected = format!("1 to {MAX_VOCABULARY}");
                        return Err(entry.error(property, expected, side));
                    }
                }
                if (entry.dtype == DType::Bands) != entry.codes.is_some() {
                    let codes = entry.codes.as_ref();
                    let found = codes.map_or("none".to_owned(), ToString::to_string);
                    let expected = format!("those of its bands with the type {}", DType::Bands);
                    return Err(entry.error("list of codes", expected, found));
                }
                if let Some(codes) = &entry.codes
                    && codes.cols() as u64 != entry.cols
                {
                    return Err(entry.error("list of codes", describe_codes(entry.cols), codes));
                }
                if let Some(codes) = &entry.codes
                    && !usize::try_from(entry.rows).is_ok_and(|rows| codes.has_rows(rows))
                {
                    let expected = format!("classes of {} rows together", entry.rows);
                    return Err(entry.error("list of codes", expected, codes));
                }
                match entry.stored_bytes() {
                    Some(bytes) if bytes == entry.length => Ok(entry),
                    Some(bytes) => Err(entry.error("length", bytes, entry.length)),
                    None => {
                        let block = entry.dtype.block_len();
                        let expected = format!("a multiple of {block} for {}", entry.dtype);
                        Err(entry.error("number of columns", expected, entry.cols))
                    }
                }
            }
            _ => Err(self.order_error(role)),
        }
    }

    fn matrix(&mut self, role: Role, rows: u64, cols: u64) -> Result<&'a TensorEntry, HtzError> {
        let entry = self.next_without_column_groups(role)?;
        self.shaped(entry, rows, cols)
    }

    fn shaped(
        &self,
        entry: &'a TensorEntry,
        rows: u64,
        cols: u64,
    ) -> Result<&'a TensorEntry, HtzError> {
        if (entry.rows, entry.cols) != (rows, cols) {
            let found = format!("[{}, {}]", entry.rows, entry.cols);
            return Err(entry.error("shape", format!("[{rows}, {cols}]"), found));
        }
        Ok(entry)
    }

    /// Refinements of dense matrices, each at most once, in the order of activation. An embedding
    /// used for look-up only costs one row and is not refined.
    fn refinements(&mut self, stored: &mut StoredModel) -> Result<(), HtzError> {
        while let Some(Role::Refinement { matrix }) = self.table.get(self.index).map(|e| e.role) {
            let role = Role::Refinement { matrix };
            let of = stored.projections.iter().chain(&stored.outside_layers);
            let base = of.clone().find(|found| found.matrix == matrix);
            let tied = !of.clone().any(|found| found.matrix == MatrixId::Head);
            let looked_up = matrix == MatrixId::Embedding && !tied;
            let is_dense = base.is_some_and(|base| base.form == Form::Dense) && !looked_up;
            if !is_dense || stored.refined.contains(&matrix) {
                return Err(self.order_error(
                    "the refinement of a dense matrix that has none yet, or the end",
                ));
            }
            let (rows, cols) = matrix.shape(self.h);
            let entry = self.next_entry(role)?;
            self.shaped(entry, rows as u64, cols as u64)?;
            if entry.dtype != DType::Bands {
                return Err(entry.error("type", DType::Bands, entry.dtype));
            }
            stored.refined.push(matrix);
        }
        Ok(())
    }

    /// Bases and energies of a KV cache, for keys and values of every layer, or none.
    fn kv_bases(&mut self) -> Result<(), HtzError> {
        let first = Role::KvBasis {
            layer: 0,
            side: KvSide::Key,
        };
        if !self.next_is(first) {
            return Ok(());
        }
        let (heads, size) = (self.h.kv_heads as u64, self.h.head_size as u64);
        for layer in 0..self.h.layers {
            for side in KvSide::ALL {
                self.plain_matrix(Role::KvBasis { layer, side }, heads * size, size)?;
                self.plain_matrix(Role::KvEnergies { layer, side }, heads, size)?;
            }
        }
        Ok(())
    }

    fn vector(&mut self, role: Role, cols: u64) -> Result<(), HtzError> {
        self.plain_matrix(role, 1, cols)
    }

    /// A matrix of a plain type, which is read without decoding.
    fn plain_matrix(&mut self, role: Role, rows: u64, cols: u64) -> Result<(), HtzError> {
        let entry = self.matrix(role, rows, cols)?;
        match entry.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            other => Err(entry.error("type", "f32, f16 or bf16", other)),
        }
    }

    fn optional_vector(&mut self, role: Role, cols: u64) -> Result<(), HtzError> {
        if self.next_is(role) {
            self.vector(role, cols)
        } else {
            Ok(())
        }
    }

    fn group(
        &mut self,
        layer: usize,
        group: Option<InputGroup>,
        projections: &[ProjectionKind],
        stored: &mut StoredModel,
    ) -> Result<(), HtzError> {
        let mut basis = None;
        if let Some(group) = group {
            let role = Role::Basis { layer, group };
            if self.next_is(role) {
                let entry = self.factor(role, self.h.width)?;
                basis = Some(entry);
                stored.bases.push(StoredBasis {
                    layer,
                    group,
                    rank: entry.rows,
                    parameters: entry.parameters(),
                    bytes: entry.length,
                });
            }
        }
        let mut projected = false;
        for &projection in projections {
            let found = self.projection(layer, projection, basis)?;
            projected |= found.form == Form::SharedBasis;
            stored.projections.push(found);
        }
        match basis {
            Some(basis) if !projected => {
                let expected = "one at least";
                Err(basis.error("number of projections that use it", expected, 0))
            }
            _ => Ok(()),
        }
    }

    /// The router and the experts of a block.
    fn experts(
        &mut self,
        layer: usize,
        count: usize,
        stored: &mut StoredModel,
    ) -> Result<(), HtzError> {
        self.group(layer, None, &[ProjectionKind::Router], stored)?;
        // Lossless: the number of experts is limited.
        for expert in 0..count as u16 {
            let projections = [
                ProjectionKind::ExpertGate(expert),
                ProjectionKind::ExpertUp(expert),
                ProjectionKind::ExpertDown(expert),
            ];
            self.group(layer, None, &projections, stored)?;
        }
        Ok(())
    }

    /// A first factor `[rank, cols]` with a rank of at most `cols`.
    fn factor(&mut self, role: Role, cols: usize) -> Result<&'a TensorEntry, HtzError> {
        let entry = self.next_without_column_groups(role)?;
        if entry.cols != cols as u64 || entry.rows > cols as u64 {
            let found = format!("[{}, {}]", entry.rows, entry.cols);
            let expected = format!("[1 to {cols}, {cols}]");
            return Err(entry.error("shape", expected, found));
        }
        Ok(entry)
    }

    fn projection(
        &mut self,
        layer: usize,
        projection: ProjectionKind,
        basis: Option<&TensorEntry>,
    ) -> Result<StoredMatrix, HtzError> {
        let found = self.stored_matrix(MatrixId::Projection { layer, projection }, basis)?;
        let (rows, _) = self.h.projection_shape(projection);
        let part = Part::Bias;
        self.optional_vector(
            Role::Linear {
                layer,
                projection,
                part,
            },
            rows as u64,
        )?;
        Ok(found)
    }

    /// Reads the tensors of a matrix in any form. Types and rank of factors are taken from the
    /// table.
    fn stored_matrix(
        &mut self,
        matrix: MatrixId,
        basis: Option<&TensorEntry>,
    ) -> Result<StoredMatrix, HtzError> {
        let shape = matrix.shape(self.h);
        let form = self.detect_form(matrix, basis.is_some())?;
        let ahead = |part| self.peek_part(matrix, part);
        let dtype = |part| ahead(part).map_or(DType::F32, |entry| entry.dtype);
        let rank = |part| ahead(part).map_or(0, |entry| usize::try_from(entry.rows).unwrap_or(0));
        let stored = match form {
            Form::Dense => match ahead(Part::Weight).and_then(|entry| entry.codes.clone()) {
                Some(codes) => StoredForm::Bands { codes },
                None => StoredForm::Dense {
                    weight: dtype(Part::Weight),
                },
            },
            Form::LowRank => StoredForm::LowRank {
                rank: rank(Part::A),
                a: dtype(Part::A),
                b: dtype(Part::B),
            },
            Form::SharedBasis => StoredForm::SharedBasis {
                rank: basis.map_or(0, |basis| usize::try_from(basis.rows).unwrap_or(0)),
                basis: basis.map_or(DType::F32, |basis| basis.dtype),
                projected: dtype(Part::Projected),
            },
            Form::Residual => StoredForm::Residual {
                base: dtype(Part::Weight),
                rank: rank(Part::ResidualA),
                a: dtype(Part::ResidualA),
                b: dtype(Part::ResidualB),
            },
        };
        let mut found = StoredMatrix {
            matrix,
            form,
            rank: stored.rank().map(|rank| rank as u64),
            parameters: 0,
            bytes: 0,
        };
        for expected in stored.tensors(matrix, shape) {
            let entry = match MatrixId::from_role(expected.role) {
                Some((_, Part::A | Part::ResidualA)) => {
                    let entry = self.factor(expected.role, shape.1)?;
                    if entry.rows > shape.0 as u64 {
                        let most = format!("at most {}", shape.0);
                        return Err(entry.error("rank", most, entry.rows));
                    }
                    entry
                }
                _ => {
                    let (rows, cols) = (expected.rows as u64, expected.cols as u64);
                    match expected.codes {
                        Some(_) => {
                            let entry = self.next_entry(expected.role)?;
                            self.shaped(entry, rows, cols)?
                        }
                        None => self.matrix(expected.role, rows, cols)?,
                    }
                }
            };
            found.parameters = found.parameters.saturating_add(entry.parameters());
            found.bytes = found.bytes.saturating_add(entry.length);
        }
        Ok(found)
    }

    /// Returns a part of a matrix among the next tensors, as many as a form has.
    fn peek_part(&self, matrix: MatrixId, part: Part) -> Option<&'a TensorEntry> {
        let role = matrix.role(part)?;
        let next = self.table.get(self.index..).unwrap_or_default();
        let most = Form::Residual.parts().len();
        next.iter().take(most).find(|entry| entry.role == role)
    }

    /// Returns the form of the next tensors; a shared basis is allowed only if `shared`.
    fn detect_form(&self, matrix: MatrixId, shared: bool) -> Result<Form, HtzError> {
        let begins = [Form::Dense, Form::LowRank, Form::SharedBasis].into_iter();
        let firsts = begins.filter_map(|form| {
            let role = matrix.role(*form.parts().first()?)?;
            (form != Form::SharedBasis || shared).then_some((form, role))
        });
        match firsts.clone().find(|(_, role)| self.next_is(*role)) {
            Some((Form::Dense, _)) => {
                let has = |part| self.peek_part(matrix, part).is_some();
                Ok(Form::from_parts(has).unwrap_or(Form::Dense))
            }
            Some((form, _)) => Ok(form),
            None => {
                let names: Vec<String> = firsts.map(|(_, role)| role.to_string()).collect();
                Err(self.order_error(names.join(" or ")))
            }
        }
    }
}
