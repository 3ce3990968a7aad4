//! Second stage: the statistics of the source on the calibration text.

use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::source::ModelFile;
use htc_loader::ExecError;

use super::request::CheckedRequest;
use super::source::CheckedSource;
use super::{CompileContext, CompileError, order};
use crate::calibrate::{self, Calibration, PassError};
use crate::device::Device;
use crate::event::{Event, Progress};
use crate::gradient::{self, Gradients};
use crate::options::CalibrationOptions;
use crate::order::ChannelPermutation;
use crate::plan::{self, ModelFileTypes};
use crate::planner::{ArtifactParts, Planner};
use crate::profile::{self, ProfileInputs};
use crate::system::clock::Stage;
use crate::unit::{MakeError, check_tensor_finite};

/// A source with its statistics, and the request for its plan.
#[derive(Debug)]
pub(super) struct CalibratedSource<'a> {
    pub checked: &'a CheckedSource,
    pub calibration: Option<Calibration>,
    /// Costs of errors at the outputs of matrices, if codes are chosen by them.
    pub gradients: Option<Gradients>,
    pub permutation: Option<ChannelPermutation>,
    request: CheckedRequest<'a>,
}

impl<'a> CalibratedSource<'a> {
    /// Runs the calibration text through the source.
    pub fn new(
        context: CompileContext<'a>,
        checked: &'a CheckedSource,
        request: CheckedRequest<'a>,
    ) -> Result<Self, CompileError> {
        let CompileContext {
            options,
            device,
            clock,
            progress,
        } = context;
        let source = checked.file();
        let threads = device.pool().threads();
        let calibration = match &options.calibration {
            None => None,
            Some(options) => {
                options.check(&source.hyper)?;
                let digest = checked.digest(context);
                Some(clock.time(Stage::Calibrate, || {
                    calibrate(source, digest, options, device, progress)
                })?)
            }
        };
        let plan_request = request.request();
        let permutation = order::find_permutation(
            source,
            plan_request,
            calibration.as_ref(),
            threads,
            progress,
        )?;
        let gradients = match &options.calibration {
            Some(text) if request.needs_gradients() => {
                Some(clock.time(Stage::Calibrate, || {
                    let tokens = plan_request.effort.settings().gradient_tokens;
                    let digest = checked.digest(context);
                    let model = calibrate::bind(source)?;
                    let found =
                        gradient::gradients(&model, digest, text, tokens, threads, progress)
                            .map_err(|error| name_damaged_tensor(source, error))?;
                    if found.is_new && source.digest() != digest {
                        gradient::forget(text, found.key)?;
                        return Err(CompileError::SourceChanged(source.path.clone()));
                    }
                    Ok(found)
                })?)
            }
            _ => None,
        };
        Ok(CalibratedSource {
            checked,
            calibration,
            gradients,
            permutation,
            request,
        })
    }

    /// Makes the plan, with the measurements that its allocator needs.
    pub fn plan(&'a self, context: CompileContext) -> Result<Planner<'a>, CompileError> {
        let source = self.checked.file();
        let (request, target) = match &self.request {
            CheckedRequest::Plan(plan) => return Ok(plan.clone().into()),
            CheckedRequest::Compute {
                request, target, ..
            } => (request, target),
        };
        let units = plan::units(&source.hyper, request, ModelFileTypes(source))?;
        let measured = ProfileInputs {
            source,
            units: &units,
            calibration: self.calibration.as_ref(),
            gradients: self.gradients.as_ref(),
            order: self.permutation.as_ref(),
            device: context.device,
        };
        let evidence = profile::measure(measured, request, target, context.progress)?;
        let summary = evidence.factor_summary.clone();
        let parts = ArtifactParts {
            source,
            calibration: self.calibration.as_ref(),
            sections: self.checked.model_sections(),
            linear_algebra: context.device.algebra().name(),
        };
        let planner = Planner::compute(request.clone(), evidence, parts, context.options.limit)?;
        if let Some(summary) = summary {
            context.progress.report(Event::Note(&summary));
        }
        Ok(planner)
    }
}

/// Replaces the error of a pass with numbers that are not finite by that of the first tensor that
/// has some, if any.
fn name_damaged_tensor(source: &ModelFile, error: PassError) -> CompileError {
    match error {
        // The cache holds f32, which refuses only numbers that are not finite.
        PassError::NotFinite { .. }
        | PassError::Exec {
            error: ExecError::KvRange { .. },
            ..
        } => {
            let mut tensors = source.tensors.iter();
            let damage = tensors.find_map(|tensor| check_tensor_finite(source, tensor).err());
            match damage.map(MakeError::with_source_path(source)) {
                Some(damage) => damage.into(),
                None => error.into(),
            }
        }
        _ => error.into(),
    }
}

/// Calibrates a source on the text of `options`.
pub fn calibrate(
    source: &ModelFile,
    digest: Digest,
    options: &CalibrationOptions,
    device: &dyn Device,
    progress: Progress,
) -> Result<Calibration, CompileError> {
    let model = Arc::new(calibrate::bind(source)?);
    let calibrated = calibrate::calibrate(&model, digest, options, device, progress)
        .map_err(|error| name_damaged_tensor(source, error))?;
    // Must not stay in the cache under this digest.
    if calibrated.is_new && source.digest() != digest {
        calibrate::remove_entry(options, calibrated.key)?;
        return Err(CompileError::SourceChanged(source.path.clone()));
    }
    Ok(calibrated)
}
