//! Consistency of a manifest: with itself, and with the place of every byte in the file.
//!
//! The reader and the writer both run these checks, so nothing can be written that would be
//! refused when it is opened.

use std::fmt::Display;

use super::layout::{self, ALIGNMENT, FORMAT_MAJOR};
use super::manifest::{Budget, Form, Manifest, PlanRecord, SectionEntry, TensorEntry};
use super::{Encoding, HtzError, TOKENIZER, geometry};
use crate::DType;
use crate::escape::one_line;
use crate::limits::{MAX_TENSOR_NAME_BYTES, MAX_VOCABULARY};
use crate::model::{HyperParameters, InputGroup, Part, Role, Slot};
use crate::wire;

/// Features of minor versions that this build knows.
const KNOWN_FEATURES: [&str; 4] = [FORWARD, ROLES, TYPES, VOCABULARY];

/// The hyper-parameters have a `forward`.
const FORWARD: &str = "forward";

/// There are roles that format 1.0 does not have.
const ROLES: &str = "roles";

/// There are element types that format 1.0 does not have.
const TYPES: &str = "types";

/// Sections that this build knows.
const KNOWN_SECTIONS: [&str; 1] = [TOKENIZER];

/// Checks that this build knows all that an artifact of format 1.`minor` needs: features, and
/// sections given by name and whether they are required.
pub(super) fn needs<'a>(
    features: &[String],
    mut sections: impl Iterator<Item = (&'a str, bool)>,
    minor: u16,
) -> Result<(), HtzError> {
    let unknown = features
        .iter()
        .map(String::as_str)
        .find(|feature| !KNOWN_FEATURES.contains(feature))
        .or_else(|| {
            sections
                .find(|(name, required)| *required && !KNOWN_SECTIONS.contains(name))
                .map(|(name, _)| name)
        });
    match unknown {
        None => Ok(()),
        Some(feature) => Err(HtzError::Unsupported {
            feature: one_line(feature),
            major: FORMAT_MAJOR,
            minor,
        }),
    }
}

/// The vocabulary splits a text in ways that format 1.0 does not know.
pub(super) const VOCABULARY: &str = "vocabulary";

/// The features that a manifest must require, by what is in it.
pub(super) fn required_features(hyper: &HyperParameters, tensors: &[TensorEntry]) -> Vec<String> {
    let new_role = |role: Role| match role {
        Role::LongRopeFactors
        | Role::QueryNorm { .. }
        | Role::KeyNorm { .. }
        | Role::PostAttentionNorm { .. }
        | Role::PostFfnNorm { .. }
        | Role::Linear {
            part: Part::Bias, ..
        } => true,
        Role::TokenEmbedding
        | Role::RopeFactors
        | Role::AttentionNorm { .. }
        | Role::Basis { .. }
        | Role::Linear { .. }
        | Role::FfnNorm { .. }
        | Role::OutputNorm
        | Role::Output => false,
    };
    let new_type = |dtype: DType| {
        !matches!(
            dtype,
            DType::F32
                | DType::F16
                | DType::BF16
                | DType::Q8_0
                | DType::Q4_0
                | DType::Q4K
                | DType::Q5K
                | DType::Q6K
        )
    };
    [
        (FORWARD, !hyper.forward.is_plain()),
        (ROLES, tensors.iter().any(|entry| new_role(entry.role))),
        (TYPES, tensors.iter().any(|entry| new_type(entry.dtype))),
    ]
    .into_iter()
    .filter(|(_, needed)| *needed)
    .map(|(feature, _)| feature.to_owned())
    .collect()
}

/// Checks everything but the places of the tensors and sections.
pub(super) fn contents(manifest: &Manifest) -> Result<(), HtzError> {
    manifest.hyper.check()?;
    for feature in required_features(&manifest.hyper, &manifest.tensors) {
        if !manifest.requires.contains(&feature) {
            return Err(HtzError::Undeclared { feature });
        }
    }
    let stored = tensors(&manifest.hyper, &manifest.tensors)?;
    plan(&manifest.hyper, &manifest.plan, &stored)?;
    if let Some(record) = &manifest.geometry {
        let components = |slot: &StoredSlot| {
            let rows = manifest.hyper.slot_shape(slot.slot).0 as u64;
            (slot.layer, slot.slot, slot.rank.unwrap_or(rows))
        };
        geometry::check(&manifest.hyper, record, stored.slots.iter().map(components))?;
    }
    sections(&manifest.sections)
}

/// Checks that tensors and sections lie where they must if the data begin at `data_offset`,
/// and returns the length of the file. There is exactly one valid layout for a manifest, so
/// this leaves no overlap and no gap but the padding.
pub(super) fn layout(manifest: &Manifest, data_offset: u64) -> Result<u64, HtzError> {
    let mut end = data_offset;
    for entry in &manifest.tensors {
        let expected = place(&mut end, entry.length);
        if expected != Some(entry.offset) {
            return Err(tensor(entry, "offset", described(expected), entry.offset));
        }
    }
    for entry in &manifest.sections {
        let expected = place(&mut end, entry.length);
        if expected != Some(entry.offset) {
            return Err(section(entry, "offset", described(expected), entry.offset));
        }
    }
    Ok(end)
}

fn described(offset: Option<u64>) -> String {
    offset.map_or_else(|| "one that fits".to_owned(), |offset| offset.to_string())
}

/// Where an item of `length` bytes lies that follows `end`; moves `end` behind it.
pub(super) fn place(end: &mut u64, length: u64) -> Option<u64> {
    let offset = wire::align_up(*end, ALIGNMENT)?;
    *end = offset.checked_add(length)?;
    Some(offset)
}

/// What is stored for the slots and the shared bases, in the order of execution.
#[derive(Default)]
struct Stored {
    slots: Vec<StoredSlot>,
    bases: Vec<StoredBasis>,
}

struct StoredSlot {
    layer: usize,
    slot: Slot,
    form: Form,
    rank: Option<u64>,
    parameters: u64,
    bytes: u64,
}

struct StoredBasis {
    layer: usize,
    group: InputGroup,
    rank: u64,
    parameters: u64,
    bytes: u64,
}

/// Walks through the table in the order of execution. That order is the same for every model,
/// so the walk finds a missing, repeated, misplaced or foreign tensor alike; and it stops with
/// the table, so that no hyper-parameter makes it long.
fn tensors(h: &HyperParameters, table: &[TensorEntry]) -> Result<Stored, HtzError> {
    let mut walk = Walk { h, table, index: 0 };
    let mut stored = Stored::default();
    let (vocabulary, width) = (h.vocabulary as u64, h.width as u64);
    walk.matrix(Role::TokenEmbedding, vocabulary, width)?;
    let pairs = h.rope_dimensions as u64 / 2;
    walk.optional_vector(Role::RopeFactors, pairs)?;
    // One without the other could not be executed.
    if h.forward.long_rope.is_some() {
        walk.vector(Role::LongRopeFactors, pairs)?;
    }
    let head = h.head_size as u64;
    for layer in 0..h.layers {
        walk.vector(Role::AttentionNorm { layer }, width)?;
        walk.group(
            layer,
            Some(InputGroup::Qkv),
            &[Slot::Q, Slot::K, Slot::V],
            &mut stored,
        )?;
        walk.optional_vector(Role::QueryNorm { layer }, head)?;
        walk.optional_vector(Role::KeyNorm { layer }, head)?;
        walk.group(layer, None, &[Slot::O], &mut stored)?;
        walk.optional_vector(Role::PostAttentionNorm { layer }, width)?;
        walk.vector(Role::FfnNorm { layer }, width)?;
        walk.group(
            layer,
            Some(InputGroup::GateUp),
            &[Slot::Gate, Slot::Up],
            &mut stored,
        )?;
        walk.group(layer, None, &[Slot::Down], &mut stored)?;
        walk.optional_vector(Role::PostFfnNorm { layer }, width)?;
    }
    walk.vector(Role::OutputNorm, width)?;
    if walk.next_is(Role::Output) {
        walk.matrix(Role::Output, vocabulary, width)?;
    }
    match walk.table.get(walk.index) {
        None => Ok(stored),
        Some(_) => Err(walk.order("the end of the table")),
    }
}

struct Walk<'a> {
    h: &'a HyperParameters,
    table: &'a [TensorEntry],
    index: usize,
}

impl<'a> Walk<'a> {
    fn next_is(&self, role: Role) -> bool {
        self.table
            .get(self.index)
            .is_some_and(|entry| entry.role == role)
    }

    fn order(&self, expected: impl Display) -> HtzError {
        HtzError::TensorOrder {
            index: self.index,
            expected: expected.to_string(),
            found: match self.table.get(self.index) {
                Some(entry) => entry.role.to_string(),
                None => "missing".to_owned(),
            },
        }
    }

    /// The next tensor, which must have `role`; its shape is not looked at.
    fn entry(&mut self, role: Role) -> Result<&'a TensorEntry, HtzError> {
        match self.table.get(self.index) {
            Some(entry) if entry.role == role => {
                self.index += 1;
                if entry.name.len() as u64 > MAX_TENSOR_NAME_BYTES {
                    let expected = format!("at most {MAX_TENSOR_NAME_BYTES} bytes");
                    return Err(tensor(
                        entry,
                        "length of the name",
                        expected,
                        entry.name.len(),
                    ));
                }
                for (property, side) in [
                    ("number of rows", entry.rows),
                    ("number of columns", entry.cols),
                ] {
                    if side == 0 || side > MAX_VOCABULARY as u64 {
                        let expected = format!("1 to {MAX_VOCABULARY}");
                        return Err(tensor(entry, property, expected, side));
                    }
                }
                match entry.stored_bytes() {
                    Some(bytes) if bytes == entry.length => Ok(entry),
                    Some(bytes) => Err(tensor(entry, "length", bytes, entry.length)),
                    None => {
                        let block = entry.dtype.block_len();
                        let expected = format!("a multiple of {block} for {}", entry.dtype);
                        Err(tensor(entry, "number of columns", expected, entry.cols))
                    }
                }
            }
            _ => Err(self.order(role)),
        }
    }

    fn matrix(&mut self, role: Role, rows: u64, cols: u64) -> Result<&'a TensorEntry, HtzError> {
        let entry = self.entry(role)?;
        if (entry.rows, entry.cols) != (rows, cols) {
            let found = format!("[{}, {}]", entry.rows, entry.cols);
            return Err(tensor(entry, "shape", format!("[{rows}, {cols}]"), found));
        }
        Ok(entry)
    }

    /// A row of plain numbers: they are read as they are, so no block type is allowed.
    fn vector(&mut self, role: Role, cols: u64) -> Result<(), HtzError> {
        let entry = self.matrix(role, 1, cols)?;
        match entry.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            other => Err(tensor(entry, "type", "f32, f16 or bf16", other)),
        }
    }

    fn optional_vector(&mut self, role: Role, cols: u64) -> Result<(), HtzError> {
        if self.next_is(role) {
            self.vector(role, cols)
        } else {
            Ok(())
        }
    }

    /// Slots that read the same input, after the basis that some of them may share.
    fn group(
        &mut self,
        layer: usize,
        group: Option<InputGroup>,
        slots: &[Slot],
        stored: &mut Stored,
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
        for &slot in slots {
            let found = self.slot(layer, slot, basis)?;
            projected |= found.form == Form::SharedBasis;
            stored.slots.push(found);
        }
        match basis {
            Some(basis) if !projected => {
                let expected = "one at least";
                Err(tensor(basis, "number of slots that use it", expected, 0))
            }
            _ => Ok(()),
        }
    }

    /// A first factor `[rank, cols]` with a rank of at most `cols`.
    fn factor(&mut self, role: Role, cols: usize) -> Result<&'a TensorEntry, HtzError> {
        let entry = self.entry(role)?;
        if entry.cols != cols as u64 || entry.rows > cols as u64 {
            let found = format!("[{}, {}]", entry.rows, entry.cols);
            let expected = format!("[1 to {cols}, {cols}]");
            return Err(tensor(entry, "shape", expected, found));
        }
        Ok(entry)
    }

    fn slot(
        &mut self,
        layer: usize,
        slot: Slot,
        basis: Option<&TensorEntry>,
    ) -> Result<StoredSlot, HtzError> {
        let (rows, cols) = self.h.slot_shape(slot);
        let role = |part| Role::Linear { layer, slot, part };
        let mut found = StoredSlot {
            layer,
            slot,
            form: Form::Dense,
            rank: None,
            parameters: 0,
            bytes: 0,
        };
        if self.next_is(role(Part::A)) {
            let a = self.factor(role(Part::A), cols)?;
            let b = self.matrix(role(Part::B), rows as u64, a.rows)?;
            if a.rows > rows as u64 {
                return Err(tensor(a, "rank", format!("at most {rows}"), a.rows));
            }
            found.form = Form::LowRank;
            found.rank = Some(a.rows);
            found.parameters = a.parameters() + b.parameters();
            found.bytes = a.length.saturating_add(b.length);
        } else if let (true, Some(basis)) = (self.next_is(role(Part::Projected)), basis) {
            let entry = self.matrix(role(Part::Projected), rows as u64, basis.rows)?;
            found.form = Form::SharedBasis;
            found.rank = Some(basis.rows);
            found.parameters = entry.parameters();
            found.bytes = entry.length;
        } else if self.next_is(role(Part::Weight)) {
            let entry = self.matrix(role(Part::Weight), rows as u64, cols as u64)?;
            found.parameters = entry.parameters();
            found.bytes = entry.length;
        } else {
            let mut expected = format!("{} or {}", role(Part::Weight), role(Part::A));
            if basis.is_some() {
                expected = format!("{expected} or {}", role(Part::Projected));
            }
            return Err(self.order(expected));
        }
        self.optional_vector(role(Part::Bias), rows as u64)?;
        Ok(found)
    }
}

fn plan(h: &HyperParameters, plan: &PlanRecord, stored: &Stored) -> Result<(), HtzError> {
    let whole = |property, expected: &str, found: String| HtzError::Plan {
        place: "the whole".to_owned(),
        property,
        expected: expected.to_owned(),
        found,
    };
    match plan.budget {
        Budget::Rank(0) => return Err(whole("rank", "1 at least", "0".to_owned())),
        Budget::Ratio(ratio) if !(ratio.is_finite() && ratio > 0.0) => {
            return Err(whole(
                "ratio",
                "a positive finite number",
                ratio.to_string(),
            ));
        }
        Budget::Rank(_) | Budget::Full | Budget::Ratio(_) => {}
    }
    for (property, expected, found) in [
        ("number of slots", stored.slots.len(), plan.slots.len()),
        ("number of bases", stored.bases.len(), plan.bases.len()),
    ] {
        if expected != found {
            return Err(whole(property, &expected.to_string(), found.to_string()));
        }
    }
    for (record, slot) in plan.slots.iter().zip(&stored.slots) {
        let agree = Agree {
            place: format!("layers.{}.{}", slot.layer, slot.slot),
        };
        let (rows, cols) = h.slot_shape(slot.slot);
        let (rows, cols) = (rows as u64, cols as u64);
        agree.on("layer", slot.layer, record.layer)?;
        agree.on("slot", slot.slot, record.slot)?;
        agree.on("form", slot.form.name(), record.form.name())?;
        agree.on(
            "rank",
            Rank(slot.rank),
            Rank(record.rank.map(|rank| rank as u64)),
        )?;
        agree.on("number of rows", rows, record.rows)?;
        agree.on("number of columns", cols, record.cols)?;
        agree.on("parameters before", rows * cols, record.parameters_before)?;
        agree.on("parameters after", slot.parameters, record.parameters_after)?;
        agree.on("bytes after", slot.bytes, record.bytes_after)?;
        match record.error {
            Some(error) if !(error.is_finite() && error >= 0.0) => {
                return Err(HtzError::Plan {
                    place: agree.place,
                    property: "error",
                    expected: "a finite number, not negative".to_owned(),
                    found: error.to_string(),
                });
            }
            _ => {}
        }
    }
    for (record, basis) in plan.bases.iter().zip(&stored.bases) {
        let agree = Agree {
            place: format!("layers.{}.{}", basis.layer, basis.group.name()),
        };
        agree.on("layer", basis.layer, record.layer)?;
        agree.on("group", basis.group.name(), record.group.name())?;
        agree.on("rank", basis.rank, record.rank as u64)?;
        agree.on("parameters", basis.parameters, record.parameters)?;
        agree.on("bytes", basis.bytes, record.bytes)?;
    }
    Ok(())
}

/// Compares a record of the plan with what the tensors say.
struct Agree {
    place: String,
}

impl Agree {
    fn on<T: PartialEq + Display>(
        &self,
        property: &'static str,
        expected: T,
        found: T,
    ) -> Result<(), HtzError> {
        if expected == found {
            return Ok(());
        }
        Err(HtzError::Plan {
            place: self.place.clone(),
            property,
            expected: expected.to_string(),
            found: found.to_string(),
        })
    }
}

#[derive(PartialEq)]
struct Rank(Option<u64>);

impl Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => rank.fmt(f),
            None => f.write_str("none"),
        }
    }
}

fn sections(sections: &[SectionEntry]) -> Result<(), HtzError> {
    let mut names = std::collections::BTreeSet::new();
    for entry in sections {
        if entry.name.is_empty() || entry.name.len() as u64 > MAX_TENSOR_NAME_BYTES {
            let expected = format!("1 to {MAX_TENSOR_NAME_BYTES} bytes");
            let length = entry.name.len();
            return Err(section(entry, "length of the name", expected, length));
        }
        if !names.insert(&entry.name) {
            return Err(section(entry, "name", "a new one", "used already"));
        }
        let most = match entry.encoding {
            Encoding::Raw => {
                if entry.decoded_length != entry.length {
                    let (expected, found) = (entry.length, entry.decoded_length);
                    return Err(section(entry, "decoded length", expected, found));
                }
                layout::MAX_SECTION_BYTES
            }
            Encoding::Zstd => most_decoded(entry.length),
        };
        if entry.decoded_length > most {
            let expected = format!("at most {most}");
            return Err(section(
                entry,
                "decoded length",
                expected,
                entry.decoded_length,
            ));
        }
    }
    Ok(())
}

/// Most bytes that a zstd frame of `length` bytes may decode to.
pub(super) fn most_decoded(length: u64) -> u64 {
    length
        .saturating_mul(layout::MAX_SECTION_EXPANSION)
        .saturating_add(layout::FREE_SECTION_BYTES)
        .min(layout::MAX_SECTION_BYTES)
}

fn tensor(
    entry: &TensorEntry,
    property: &'static str,
    expected: impl Display,
    found: impl Display,
) -> HtzError {
    HtzError::Tensor {
        tensor: entry.role.to_string(),
        property,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

fn section(
    entry: &SectionEntry,
    property: &'static str,
    expected: impl Display,
    found: impl Display,
) -> HtzError {
    HtzError::Section {
        section: one_line(&entry.name),
        property,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}
