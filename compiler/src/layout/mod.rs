//! Layout of the artifact: its tensors, their order, and the plan's records.

use htc_formats::DType;
use htc_formats::htz::{
    AllocationRecord, BasisRecord, Budget as BudgetRecord, CalibrationRecord, DepthSinkRecord,
    Digest, Manifest, MatrixRecord, PlanRecord, Provenance, QualityRecord, TensorEntry,
    TreatmentRecord, TuningRecord,
};
use htc_formats::model::{MatrixId, Part, Role, StoredTensor};
use htc_formats::source::{Container, ModelFile, ModelTensor};
use htc_formats::vocab::Vocabulary;

use crate::calibrate::Calibration;
use crate::geometry::probe;
use crate::options::{GaugeKind, Shrinkage, SinkProtection, Treatment};
use crate::plan::allocate::Allocation;
use crate::plan::{Budget, MatrixForm, Plan, PlanRequest, UnitPlan};
use crate::unit::{kv_bases, stored_tensors};

/// Step of writing the artifact, in execution order.
#[derive(Clone, Copy, Debug)]
pub enum WriteStep<'a> {
    /// Copies a tensor in its source format.
    PassThrough(&'a ModelTensor),
    /// Computes the tensors of a unit: factors, or values in another type.
    Compute(&'a UnitPlan),
    /// Computes the KV cache bases of a layer from the calibration.
    KvBases(usize),
}

/// Returns the steps of writing.
pub fn write_steps<'a>(source: &'a ModelFile, plan: &'a Plan, biases: bool) -> Vec<WriteStep<'a>> {
    let bases = 0..if plan.has_kv_bases() {
        source.hyper.layers
    } else {
        0
    };
    source
        .tensors
        .iter()
        .filter(|tensor| !(biases && is_corrected(plan, tensor.role)))
        .filter_map(|tensor| match replacing_unit(plan, tensor.role) {
            Some((unit, matrix)) => {
                (unit.members[0].matrix == matrix).then_some(WriteStep::Compute(unit))
            }
            None => Some(WriteStep::PassThrough(tensor)),
        })
        .chain(bases.map(WriteStep::KvBases))
        .collect()
}

fn replacing_unit(plan: &Plan, role: Role) -> Option<(&UnitPlan, MatrixId)> {
    let (matrix, Part::Weight) = MatrixId::from_role(role)? else {
        return None;
    };
    let unit = plan.unit_of(matrix)?;
    (unit.form != MatrixForm::Unchanged).then_some((unit, matrix))
}

fn is_corrected(plan: &Plan, role: Role) -> bool {
    match MatrixId::from_role(role) {
        Some((matrix, Part::Bias)) => plan.unit_of(matrix).is_some_and(|u| u.rank().is_some()),
        _ => false,
    }
}

/// A unit's tensors need not be adjacent: if Q and V share a basis, K is between them.
fn tensor_entries(source: &ModelFile, plan: &Plan, biases: bool) -> Vec<TensorEntry> {
    let mut entries = Vec::new();
    let kept = |tensor: &&ModelTensor| !(biases && is_corrected(plan, tensor.role));
    for tensor in source.tensors.iter().filter(kept) {
        match replacing_unit(plan, tensor.role) {
            None => entries.push(
                TensorEntry::new(
                    &tensor.name,
                    tensor.role,
                    tensor.dtype,
                    tensor.rows,
                    tensor.cols,
                )
                .with_codes(tensor.codes.clone()),
            ),
            Some((unit, matrix)) => {
                let first = unit.members[0].matrix == matrix;
                let mine = |role: Role| match MatrixId::from_role(role) {
                    Some((own, _)) => own == matrix,
                    None => first,
                };
                let stored = stored_tensors(unit, biases);
                let stored = stored.into_iter().filter(|s| mine(s.role));
                entries.extend(stored.map(|s| {
                    let name = factor_name(source, s.role);
                    TensorEntry::new(name, s.role, s.dtype, s.rows, s.cols).with_codes(s.codes)
                }));
            }
        }
    }
    if plan.has_kv_bases() {
        let layers = 0..source.hyper.layers;
        let stored = layers.flat_map(|layer| kv_bases::stored_tensors(&source.hyper, layer));
        entries.extend(stored.map(|s| {
            let name = factor_name(source, s.role);
            TensorEntry::new(name, s.role, s.dtype, s.rows, s.cols)
        }));
    }
    entries
}

/// `blk.0.attn_q.weight` becomes `blk.0.attn_q.a`; bases are named by role.
fn factor_name(source: &ModelFile, role: Role) -> String {
    let found = MatrixId::from_role(role);
    let found = found.and_then(|(m, part)| Some((source.tensor(m.weight())?, part)));
    match found {
        Some((t, Part::Weight)) => t.name.clone(),
        Some((t, part)) => {
            let own = t.name.strip_suffix(".weight").unwrap_or(&t.name);
            format!("{own}.{}", part.name())
        }
        None => role.to_string(),
    }
}

/// Inputs of an artifact that its provenance names.
#[derive(Clone, Copy)]
pub struct ManifestInputs<'a> {
    /// Digest of the source.
    pub source_sha256: Digest,
    /// Calibration, if any.
    pub calibration: Option<&'a Calibration>,
    /// Name of the linear algebra.
    pub linear_algebra: &'a str,
    /// Digest of the channel permutation, if any.
    pub order: Option<Digest>,
}

/// Creates the manifest before factorisation, with space for the quality if `measured`.
pub fn draft_manifest(
    source: &ModelFile,
    plan: &Plan,
    inputs: ManifestInputs<'_>,
    treatment: &Treatment,
    measured: bool,
) -> Manifest {
    let ManifestInputs {
        source_sha256,
        calibration,
        linear_algebra,
        order,
    } = inputs;
    let treatment = &plan.treatment_of_factors(*treatment, calibration.is_some());
    let tensors = tensor_entries(source, plan, treatment.bias);
    let mut requires = Manifest::required_features(&source.hyper, &tensors);
    let needs = |needed: fn(&Vocabulary) -> bool| source.vocabulary.as_ref().is_ok_and(needed);
    for (feature, needed) in [
        (Manifest::VOCABULARY, needs(Vocabulary::needs_format_1_1)),
        (
            Manifest::TOKENIZER_RULES,
            needs(Vocabulary::needs_tokenizer_rules),
        ),
    ] {
        if needed {
            requires.push(feature.to_owned());
        }
    }
    let depth_sink = DepthSinkRecord::from_depth(source.hyper.layers);
    Manifest {
        requires,
        hyper: source.hyper.clone(),
        geometry: Some(probe::empty_record(&source.hyper, &tensors, depth_sink)),
        tensors,
        sections: Vec::new(),
        plan: plan_record(source, plan),
        provenance: Provenance {
            program: "htc".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            source_sha256,
            source_bytes: source.size(),
            source_format: match source.container {
                Container::Gguf { version } => format!("gguf v{version}"),
                Container::Safetensors { shards } => format!("safetensors, files: {shards}"),
                Container::Htz { major, minor } => format!("htz {major}.{minor}"),
                Container::EmbeddedSource { .. } => "in an htz".to_owned(),
            },
            instruction_set: calibration.map_or_else(
                || htc_kernels::cpu::instruction_set().to_owned(),
                |found| found.arithmetic.clone(),
            ),
            linear_algebra: linear_algebra.to_owned(),
            calibration: calibration.map(|found| calibration_record(found, treatment.gauge)),
            treatment: treatment_record(treatment),
            order,
            tuning: None,
        },
        quality: measured.then(QualityRecord::draft),
        dial: Vec::new(),
        source: None,
    }
}

/// Reserves space for the tuning record if `tuned`.
pub fn reserve_tuning(mut draft: Manifest, tuned: bool) -> Manifest {
    draft.provenance.tuning = tuned.then(TuningRecord::draft);
    draft
}

fn calibration_record(calibration: &Calibration, gauge: GaugeKind) -> CalibrationRecord {
    CalibrationRecord {
        text_sha256: calibration.text_digest(),
        tokens: calibration.tokens() as u64,
        context: calibration.context as u64,
        gauge: gauge.name().to_owned(),
    }
}

fn treatment_record(treatment: &Treatment) -> Option<TreatmentRecord> {
    let Treatment {
        gauge,
        sink,
        bias,
        shrinkage: _,
    } = *treatment;
    let told = matches!(gauge, GaugeKind::None | GaugeKind::Activation);
    let plain = told && sink == SinkProtection::Off && !bias;
    (!plain).then(|| TreatmentRecord {
        gauge: gauge.name().to_owned(),
        sink: (sink != SinkProtection::Off).then(|| sink.to_string()),
        bias,
        shrinkage: treatment.applied_shrinkage().map(Shrinkage::value),
    })
}

/// Creates the record of a plan, without errors.
pub fn plan_record(source: &ModelFile, plan: &Plan) -> PlanRecord {
    let spec = source.spec();
    let projections = spec.projections();
    let projections =
        projections.map(|projection| matrix_record(source, plan, projection.matrix()));
    let projections = projections.collect();
    let mut bases = Vec::new();
    for unit in plan.units() {
        for stored in unit.tensors() {
            if let Role::Basis { layer, group } = stored.role {
                bases.push(BasisRecord {
                    layer,
                    group,
                    rank: stored.rows,
                    parameters: stored.parameters(),
                    bytes: stored.bytes(),
                });
            }
        }
    }
    let outside = plan.units().iter().filter(|unit| unit.layer().is_none());
    let decided =
        outside.filter(|unit| unit.form != MatrixForm::Unchanged || !unit.notes.is_empty());
    let matrices = decided.flat_map(|unit| &unit.members);
    PlanRecord {
        method: plan.request().method.name().into(),
        budget: match plan.request().budget {
            Budget::Rank(n) => BudgetRecord::Rank(n),
            Budget::FullRank => BudgetRecord::Full,
            Budget::Ratio(r) => BudgetRecord::Ratio(r),
            // A manifest has no other kinds of budget.
            Budget::Parameters(_)
            | Budget::Bytes(_)
            | Budget::MeanRank(_)
            | Budget::FileSize(_)
            | Budget::SourceFraction(_)
            | Budget::Bits(_)
            | Budget::Energy => BudgetRecord::Ratio(plan.ratio()),
        },
        factor_type: plan.request().factor_type,
        projections,
        bases,
        matrices: matrices
            .map(|m| matrix_record(source, plan, m.matrix))
            .collect(),
        allocation: allocation_record(plan),
    }
}

fn allocation_record(plan: &Plan) -> Option<AllocationRecord> {
    let PlanRequest {
        budget, allocation, ..
    } = *plan.request();
    let told = matches!(
        budget,
        Budget::Rank(_) | Budget::FullRank | Budget::Ratio(_)
    );
    let plain = allocation == Allocation::default();
    (!plain || !told || !plan.notes().is_empty()).then(|| AllocationRecord {
        allocator: allocation.allocator.name().to_owned(),
        budget: (!told).then(|| budget.to_string().trim_start_matches('-').to_owned()),
        rank_floor: allocation.floor.map(|floor| floor.to_string()),
        rank_cap: allocation.cap.map(|cap| cap as u64),
        notes: plan.notes().to_vec(),
    })
}

/// Returns the error field of a matrix.
pub fn error_field_mut(plan: &mut PlanRecord, id: MatrixId) -> Option<&mut Option<f64>> {
    // Both lists are sorted by `MatrixId`.
    let records = match id {
        MatrixId::Projection { .. } => &mut plan.projections,
        MatrixId::Embedding | MatrixId::Head => &mut plan.matrices,
    };
    let index = records.binary_search_by_key(&id, |record| record.id).ok()?;
    Some(&mut records[index].error)
}

fn matrix_record(source: &ModelFile, plan: &Plan, id: MatrixId) -> MatrixRecord {
    let (rows, cols) = id.shape(&source.hyper);
    let weight = source.tensor(id.weight());
    let parameters = rows as u64 * cols as u64;
    let bytes = weight.map_or(0, |t| t.place.len() as u64);
    let unit = plan.unit_of(id);
    let form = unit.map_or(&MatrixForm::Unchanged, |unit| &unit.form);
    let stored = form.to_stored(weight.map_or(DType::F32, |tensor| tensor.dtype));
    // Shared bases are counted separately.
    let own = stored.tensors(id, (rows, cols));
    let sum = |of: fn(&StoredTensor) -> u64| own.iter().map(of).sum();
    MatrixRecord {
        id,
        form: stored.form(),
        rank: stored.rank(),
        rows: rows as u64,
        cols: cols as u64,
        parameters_before: parameters,
        parameters_after: sum(StoredTensor::parameters),
        bytes_before: bytes,
        bytes_after: sum(StoredTensor::bytes),
        error: None,
        note: unit.and_then(|u| (!u.notes.is_empty()).then(|| u.notes.join("; "))),
    }
}

#[cfg(test)]
mod tests;
