//! From the plan to the artifact's draft: which tensors it holds, in which order, and what is
//! said of every slot.

use htc_formats::htz::{
    AllocationRecord, BasisRecord, Budget as BudgetRecord, CalibrationRecord, DepthSinkRecord,
    Digest, Form as FormRecord, Manifest, PlanRecord, Provenance, SlotRecord, TensorEntry,
    TreatmentRecord,
};
use htc_formats::model::{Part, Role, Slot};
use htc_formats::source::{Container, ModelFile, ModelTensor};
use htc_formats::vocab::Vocabulary;

use crate::calibrate::Calibration;
use crate::geometry::probe;
use crate::math::BACKEND;
use crate::plan::allocate::Allocation;
use crate::plan::{Budget, Form, Plan, Request, UnitPlan};
use crate::request::{GaugeKind, SinkProtection, Treatment};
use crate::unit::{stored_shapes, stored_tensors};

/// A step of writing the artifact; the steps are in the order of execution.
#[derive(Clone, Copy, Debug)]
pub enum Job<'a> {
    /// A tensor goes through in its source format.
    PassThrough(&'a ModelTensor),
    /// A unit is factorised.
    Factorise(&'a UnitPlan),
}

/// The steps for a source and a plan; with `biases` every factorised slot gets one, which its own goes
/// into.
pub fn jobs<'a>(source: &'a ModelFile, plan: &'a Plan, biases: bool) -> Vec<Job<'a>> {
    source
        .tensors
        .iter()
        .filter(|tensor| !(biases && is_corrected(plan, tensor.role)))
        .filter_map(|tensor| match factorised(plan, tensor.role) {
            // The first member of a unit stands for all of them.
            Some((unit, slot)) => (unit.members[0].slot == slot).then_some(Job::Factorise(unit)),
            None => Some(Job::PassThrough(tensor)),
        })
        .collect()
}

/// The unit that replaces a tensor of the source, and the tensor's slot; `None` for what passes
/// through.
fn factorised(plan: &Plan, role: Role) -> Option<(&UnitPlan, Slot)> {
    let Role::Linear {
        layer,
        slot,
        part: Part::Weight,
    } = role
    else {
        return None;
    };
    let unit = plan.unit_of(layer, slot)?;
    (unit.form != Form::Dense).then_some((unit, slot))
}

/// Whether a tensor is the bias of a factorised slot.
fn is_corrected(plan: &Plan, role: Role) -> bool {
    let Role::Linear {
        layer,
        slot,
        part: Part::Bias,
    } = role
    else {
        return false;
    };
    let unit = plan.unit_of(layer, slot);
    unit.is_some_and(|unit| unit.form != Form::Dense)
}

/// The tensors of the artifact in the order of execution. A unit's tensors may have others
/// between them: with Q and V sharing a basis, K stands where it always does.
fn entries(source: &ModelFile, plan: &Plan, biases: bool) -> Vec<TensorEntry> {
    let mut entries = Vec::new();
    let kept = |tensor: &&ModelTensor| !(biases && is_corrected(plan, tensor.role));
    for tensor in source.tensors.iter().filter(kept) {
        match factorised(plan, tensor.role) {
            None => entries.push(TensorEntry::new(
                &tensor.name,
                tensor.role,
                tensor.dtype,
                tensor.rows,
                tensor.cols,
            )),
            Some((unit, slot)) => {
                let first = unit.members[0].slot == slot;
                let mine = |role: Role| match role {
                    Role::Linear { slot: own, .. } => own == slot,
                    _ => first,
                };
                let shapes = stored_tensors(unit, biases);
                let shapes = shapes.into_iter().filter(|s| mine(s.role));
                entries.extend(shapes.map(|s| {
                    let name = factor_name(source, s.role);
                    TensorEntry::new(name, s.role, s.dtype, s.rows, s.cols)
                }));
            }
        }
    }
    entries
}

/// `blk.0.attn_q.weight` becomes `blk.0.attn_q.a`; a basis has no tensor of its own in the
/// source and is called by its role.
fn factor_name(source: &ModelFile, role: Role) -> String {
    let Role::Linear { layer, slot, .. } = role else {
        return role.to_string();
    };
    let weight = Role::Linear {
        layer,
        slot,
        part: Part::Weight,
    };
    let text = role.to_string();
    let part = text.rsplit('.').next().unwrap_or_default();
    match source.tensor(weight) {
        Some(t) => format!(
            "{}.{part}",
            t.name.strip_suffix(".weight").unwrap_or(&t.name)
        ),
        None => text,
    }
}

/// Everything about the artifact that is known before the first factor is.
pub fn draft(
    source: &ModelFile,
    source_sha256: Digest,
    plan: &Plan,
    calibration: Option<&Calibration>,
    treatment: &Treatment,
) -> Manifest {
    let tensors = entries(source, plan, treatment.bias);
    let mut requires = Manifest::required_features(&source.hyper, &tensors);
    if source
        .vocabulary
        .as_ref()
        .is_ok_and(Vocabulary::needs_format_1_1)
    {
        requires.push(Manifest::VOCABULARY.to_owned());
    }
    let depth_sink = DepthSinkRecord::guess(source.hyper.layers);
    Manifest {
        requires,
        hyper: source.hyper.clone(),
        geometry: Some(probe::draft(&source.hyper, &tensors, depth_sink)),
        tensors,
        sections: Vec::new(),
        plan: record(source, plan),
        provenance: Provenance {
            program: "htc".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            source_sha256,
            source_bytes: source.size(),
            source_format: match source.container {
                Container::Gguf { version } => format!("gguf v{version}"),
                Container::Safetensors { shards } => format!("safetensors, files: {shards}"),
                Container::Htz { major, minor } => format!("htz {major}.{minor}"),
            },
            instruction_set: htc_kernels::cpu::instruction_set().into(),
            linear_algebra: BACKEND.into(),
            calibration: calibration.map(|found| calibration_record(found, treatment.gauge)),
            treatment: treatment_record(treatment),
        },
    }
}

/// What the artifact says of its calibration.
fn calibration_record(calibration: &Calibration, gauge: GaugeKind) -> CalibrationRecord {
    CalibrationRecord {
        text_sha256: calibration.text,
        tokens: calibration.tokens as u64,
        context: calibration.context as u64,
        gauge: gauge.name().to_owned(),
    }
}

/// What the artifact says of the treatment, where the record of a calibration has no word for it.
fn treatment_record(treatment: &Treatment) -> Option<TreatmentRecord> {
    let Treatment { gauge, sink, bias } = *treatment;
    let told = matches!(
        gauge,
        GaugeKind::None | GaugeKind::Activation | GaugeKind::Whiten
    );
    let plain = told && sink == SinkProtection::Off && !bias;
    (!plain).then(|| TreatmentRecord {
        gauge: gauge.name().to_owned(),
        sink: (sink != SinkProtection::Off).then(|| sink.to_string()),
        bias,
    })
}

/// What the artifact says of its plan; errors are not measured yet.
pub fn record(source: &ModelFile, plan: &Plan) -> PlanRecord {
    let hyper = &source.hyper;
    let mut slots = Vec::with_capacity(hyper.layers * Slot::ALL.len());
    let mut bases = Vec::new();
    for layer in 0..hyper.layers {
        for slot in Slot::ALL {
            slots.push(slot_record(source, plan, layer, slot));
        }
    }
    for unit in &plan.units {
        for shape in stored_shapes(unit) {
            if let Role::Basis { layer, group } = shape.role {
                bases.push(BasisRecord {
                    layer,
                    group,
                    rank: shape.rows,
                    parameters: shape.rows as u64 * shape.cols as u64,
                    bytes: shape
                        .dtype
                        .matrix_bytes(shape.rows, shape.cols)
                        .unwrap_or(0) as u64,
                });
            }
        }
    }
    PlanRecord {
        method: plan.request.method.name().into(),
        budget: match plan.request.budget {
            Budget::Rank(n) => BudgetRecord::Rank(n),
            Budget::FullRank => BudgetRecord::Full,
            Budget::Ratio(r) => BudgetRecord::Ratio(r),
            // A manifest knows no other budgets, so it says what they came to.
            Budget::Parameters(_) | Budget::Bytes(_) | Budget::MeanRank(_) => {
                BudgetRecord::Ratio(plan.ratio())
            }
        },
        factor_type: plan.request.factor_type,
        slots,
        bases,
        allocation: allocation(plan),
    }
}

/// How the budget was shared out, where there is anything to say.
fn allocation(plan: &Plan) -> Option<AllocationRecord> {
    let Request {
        budget, allocation, ..
    } = plan.request;
    let told = matches!(
        budget,
        Budget::Rank(_) | Budget::FullRank | Budget::Ratio(_)
    );
    let plain = allocation == Allocation::default();
    (!plain || !told || !plan.notes.is_empty()).then(|| AllocationRecord {
        allocator: allocation.allocator.name().to_owned(),
        budget: (!told).then(|| budget.to_string().trim_start_matches('-').to_owned()),
        rank_floor: allocation.floor.map(|floor| floor.to_string()),
        rank_cap: allocation.cap.map(|cap| cap as u64),
        notes: plan.notes.clone(),
    })
}

/// The record of a slot; [`draft`] makes one for each slot of each layer, in order.
pub fn record_of(plan: &mut PlanRecord, layer: usize, slot: Slot) -> Option<&mut SlotRecord> {
    let found = plan.slots.get_mut(layer * Slot::ALL.len() + slot as usize);
    found.filter(|record| (record.layer, record.slot) == (layer, slot))
}

fn slot_record(source: &ModelFile, plan: &Plan, layer: usize, slot: Slot) -> SlotRecord {
    let (rows, cols) = source.hyper.slot_shape(slot);
    let weight = Role::Linear {
        layer,
        slot,
        part: Part::Weight,
    };
    let parameters = rows as u64 * cols as u64;
    let bytes = source.tensor(weight).map_or(0, |t| t.place.len() as u64);
    let unit = plan.unit_of(layer, slot);
    let form = match unit.map(|u| u.form) {
        None | Some(Form::Dense) => FormRecord::Dense,
        Some(Form::LowRank { .. }) => FormRecord::LowRank,
        Some(Form::SharedBasis { .. }) => FormRecord::SharedBasis,
    };
    let note = unit.and_then(|u| (!u.notes.is_empty()).then(|| u.notes.join("; ")));
    // What the slot stores of its own; a shared basis is counted apart.
    let (parameters_after, bytes_after) = match unit {
        Some(unit) if unit.form != Form::Dense => stored_shapes(unit)
            .iter()
            .filter(|s| matches!(s.role, Role::Linear { slot: own, .. } if own == slot))
            .fold((0, 0), |(p, b), s| {
                let bytes = s.dtype.matrix_bytes(s.rows, s.cols).unwrap_or(0);
                (p + s.rows as u64 * s.cols as u64, b + bytes as u64)
            }),
        _ => (parameters, bytes),
    };
    SlotRecord {
        layer,
        slot,
        form,
        rank: unit.and_then(UnitPlan::rank),
        rows: rows as u64,
        cols: cols as u64,
        parameters_before: parameters,
        parameters_after,
        bytes_before: bytes,
        bytes_after,
        error: None,
        note,
    }
}
