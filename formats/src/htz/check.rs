//! Consistency checks of a manifest and the layout of the file.

mod walk;

use std::fmt::Display;

use super::features::{PROBE, required_features};
use super::layout::{self, ALIGNMENT};
use super::manifest::{
    Budget, Manifest, MatrixRecord, PlanRecord, Provenance, SectionEntry, TensorEntry,
};
use super::{DepthSinkOrigin, Encoding, HtzError, Record, dial, geometry, quality};
use crate::limits::MAX_TENSOR_NAME_BYTES;
use crate::model::{Form, HyperParameters, MatrixId};
use crate::wire;
use walk::{StoredMatrix, StoredModel, walk_tensor_table};

pub(super) fn check_tensor_table(
    hyper: &HyperParameters,
    table: &[TensorEntry],
) -> Result<(), HtzError> {
    walk_tensor_table(hyper, table).map(|_| ())
}

pub(super) fn check_contents(manifest: &Manifest) -> Result<(), HtzError> {
    manifest.hyper.check()?;
    for feature in required_features(&manifest.hyper, &manifest.tensors) {
        if !manifest.requires.contains(&feature) {
            return Err(HtzError::FeatureNotRequired { feature });
        }
    }
    let stored = walk_tensor_table(&manifest.hyper, &manifest.tensors)?;
    check_plan(&manifest.hyper, &manifest.plan, &stored)?;
    if let Some(record) = &manifest.geometry {
        if record.depth_sink.origin == DepthSinkOrigin::Asked
            && !manifest.requires.iter().any(|name| name == PROBE)
        {
            return Err(HtzError::FeatureNotRequired {
                feature: PROBE.to_owned(),
            });
        }
        let mut projections = Vec::with_capacity(stored.projections.len());
        for found in &stored.projections {
            let rows = found.matrix.shape(&manifest.hyper).0 as u64;
            let components = match found.form {
                Form::Dense => rows,
                Form::LowRank | Form::SharedBasis => found.rank.unwrap_or(rows),
                Form::Residual => rows + found.rank.unwrap_or(0),
            };
            projections.push((found.matrix, components));
        }
        geometry::check(&manifest.hyper, record, projections.into_iter())?;
    }
    check_provenance(&manifest.provenance)?;
    manifest
        .quality
        .as_ref()
        .map_or(Ok(()), quality::check_record)?;
    dial::check_points(manifest)?;
    check_sections(&manifest.sections)?;
    manifest.check_source()
}

fn check_provenance(provenance: &Provenance) -> Result<(), HtzError> {
    let treatment = provenance.treatment.as_ref();
    if let Some(part) = treatment.and_then(|found| found.shrinkage)
        && !(0.0..=1.0).contains(&part)
    {
        let expected = "a number from 0 to 1";
        return Err(Record::Provenance.error("treatment.shrinkage", expected, part));
    }
    let Some(tuning) = provenance.tuning else {
        return Ok(());
    };
    if tuning.steps == 0 {
        return Err(Record::Provenance.error("tuning.steps", "at least 1", 0));
    }
    for (property, kl) in [
        ("tuning.kl_before", tuning.kl_before),
        ("tuning.kl_after", tuning.kl_after),
    ] {
        if kl.is_nan() || kl < 0.0 {
            return Err(Record::Provenance.error(property, "no negative number", kl));
        }
    }
    Ok(())
}

/// Checks the offsets of all tensors and sections, and returns the length of the file. Each
/// manifest has exactly one valid layout.
pub(super) fn check_layout(manifest: &Manifest, data_offset: u64) -> Result<u64, HtzError> {
    let mut end = data_offset;
    for entry in &manifest.tensors {
        let expected = allocate_aligned(&mut end, entry.length);
        if expected != Some(entry.offset) {
            return Err(entry.error("offset", describe_offset(expected), entry.offset));
        }
    }
    for entry in &manifest.sections {
        let expected = allocate_aligned(&mut end, entry.length);
        if expected != Some(entry.offset) {
            return Err(entry.error("offset", describe_offset(expected), entry.offset));
        }
    }
    Ok(end)
}

fn describe_offset(offset: Option<u64>) -> String {
    offset.map_or_else(|| "one that fits".to_owned(), |offset| offset.to_string())
}

/// Returns the offset of an item of `length` bytes after `end`, and advances `end` past it.
pub(super) fn allocate_aligned(end: &mut u64, length: u64) -> Option<u64> {
    let offset = wire::align_up(*end, ALIGNMENT)?;
    *end = offset.checked_add(length)?;
    Some(offset)
}

fn check_plan(
    h: &HyperParameters,
    plan: &PlanRecord,
    stored: &StoredModel,
) -> Result<(), HtzError> {
    let whole = Record::Plan("the whole".to_owned());
    match plan.budget {
        Budget::Rank(0) => return Err(whole.error("rank", "1 at least", 0)),
        Budget::Ratio(ratio) if !(ratio.is_finite() && ratio > 0.0) => {
            return Err(whole.error("ratio", "a positive finite number", ratio));
        }
        Budget::Rank(_) | Budget::Full | Budget::Ratio(_) => {}
    }
    let stored_count = stored.projections.len();
    whole.expect_equal(
        "number of projections",
        stored_count,
        plan.projections.len(),
    )?;
    whole.expect_equal("number of bases", stored.bases.len(), plan.bases.len())?;
    for (record, projection) in plan.projections.iter().zip(&stored.projections) {
        let agree = Record::Plan(projection.matrix.to_string());
        agree.expect_equal("id", projection.matrix, record.id)?;
        check_matrix(&agree, h, projection, record)?;
    }
    let mut outside = stored.outside_layers.iter();
    for record in &plan.matrices {
        let Some(found) = outside.find(|found| found.matrix == record.id) else {
            let expected = format!(
                "{}, then {} where the model has its own, each once",
                MatrixId::Embedding,
                MatrixId::Head
            );
            return Err(Record::Plan("matrices".to_owned()).error("id", expected, record.id));
        };
        let agree = Record::Plan(found.matrix.to_string());
        check_matrix(&agree, h, found, record)?;
    }
    for (record, basis) in plan.bases.iter().zip(&stored.bases) {
        let agree = Record::Plan(basis.role().to_string());
        agree.expect_equal("layer", basis.layer, record.layer)?;
        agree.expect_equal("group", basis.group.name(), record.group.name())?;
        agree.expect_equal("rank", basis.rank, record.rank as u64)?;
        agree.expect_equal("parameters", basis.parameters, record.parameters)?;
        agree.expect_equal("bytes", basis.bytes, record.bytes)?;
    }
    Ok(())
}

fn check_matrix(
    place: &Record,
    h: &HyperParameters,
    stored: &StoredMatrix,
    record: &MatrixRecord,
) -> Result<(), HtzError> {
    let (rows, cols) = stored.matrix.shape(h);
    let (rows, cols) = (rows as u64, cols as u64);
    place.expect_equal("form", stored.form.name(), record.form.name())?;
    place.expect_equal(
        "rank",
        DisplayRank(stored.rank),
        DisplayRank(record.rank.map(|rank| rank as u64)),
    )?;
    place.expect_equal("number of rows", rows, record.rows)?;
    place.expect_equal("number of columns", cols, record.cols)?;
    place.expect_equal("parameters before", rows * cols, record.parameters_before)?;
    place.expect_equal(
        "parameters after",
        stored.parameters,
        record.parameters_after,
    )?;
    place.expect_equal("bytes after", stored.bytes, record.bytes_after)?;
    match record.error {
        Some(error) if !(error.is_finite() && error >= 0.0) => {
            Err(place.error("error", "a finite number, not negative", error))
        }
        _ => Ok(()),
    }
}

#[derive(PartialEq)]
struct DisplayRank(Option<u64>);

impl Display for DisplayRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => rank.fmt(f),
            None => f.write_str("none"),
        }
    }
}

fn check_sections(sections: &[SectionEntry]) -> Result<(), HtzError> {
    let mut names = std::collections::BTreeSet::new();
    for entry in sections {
        if entry.name.is_empty() || entry.name.len() as u64 > MAX_TENSOR_NAME_BYTES {
            let expected = format!("1 to {MAX_TENSOR_NAME_BYTES} bytes");
            let length = entry.name.len();
            return Err(entry.error("length of the name", expected, length));
        }
        if !names.insert(&entry.name) {
            return Err(entry.error("name", "a new one", "used already"));
        }
        let most = match entry.encoding {
            Encoding::Raw => {
                if entry.decoded_length != entry.length {
                    let (expected, found) = (entry.length, entry.decoded_length);
                    return Err(entry.error("decoded length", expected, found));
                }
                layout::MAX_SECTION_BYTES
            }
            Encoding::Zstd => max_decoded_length(entry.length),
        };
        if entry.decoded_length > most {
            let expected = format!("at most {most}");
            return Err(entry.error("decoded length", expected, entry.decoded_length));
        }
    }
    Ok(())
}

pub(super) fn max_decoded_length(length: u64) -> u64 {
    length
        .saturating_mul(layout::MAX_SECTION_EXPANSION)
        .saturating_add(layout::UNBOUNDED_EXPANSION_BYTES)
        .min(layout::MAX_SECTION_BYTES)
}
