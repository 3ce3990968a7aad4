//! Third stage: the plan and its candidates.

use htc_formats::htz::{DepthSinkOrigin, DepthSinkRecord, Digest, HtzError, HtzWriter};

use super::calibrated::CalibratedSource;
use super::source::check_kv_bases;
use super::{CompileContext, CompileError};
use crate::analyse;
use crate::choose::ChoiceRequest;
use crate::event::Task;
use crate::layout;
use crate::make::ArtifactBuilder;
use crate::make::work::WorkFolder;
use crate::options::{CompileOptions, Treatment};
use crate::order::ChannelPermutation;
use crate::plan::{Method, Plan, PlanRequest};
use crate::planner::Planner;

/// A source with its plan and the request for the selection among candidates.
#[derive(Debug)]
pub(super) struct PlannedModel<'a> {
    pub calibrated: &'a CalibratedSource<'a>,
    pub planner: Planner<'a>,
    pub request: ChoiceRequest,
    /// First treatment of the weights; others may be tried.
    pub treatment: Treatment,
}

impl<'a> PlannedModel<'a> {
    pub fn new(
        context: CompileContext,
        calibrated: &'a CalibratedSource<'a>,
    ) -> Result<Self, CompileError> {
        let options = context.options;
        let planner = calibrated.plan(context)?;
        let plan = planner.plan();
        let plan_request = plan.request();
        check_kv_bases(plan_request, options)?;
        let calibration = calibrated.calibration.as_ref();
        let held_out = calibration.is_some_and(|c| c.held_out.is_some());
        let plans = 1 + planner.alternatives(plan)?.len();
        let request = choice_request(
            options,
            plan_request,
            calibration.is_some(),
            held_out,
            plans,
        )?;
        let treatment = request.treatment.resolve(request.calibrated)?;
        treatment.check(plan)?;
        Ok(PlannedModel {
            calibrated,
            planner,
            request,
            treatment,
        })
    }

    fn measures(&self) -> bool {
        self.request.measures(self.calibrated.calibration.as_ref())
    }

    /// Returns the bytes of the artifact of a plan.
    pub fn artifact_bytes(&self, context: CompileContext, plan: &Plan) -> Result<u64, HtzError> {
        let CalibratedSource {
            checked,
            calibration,
            permutation,
            ..
        } = self.calibrated;
        let draft = layout::draft_manifest(
            checked.file(),
            plan,
            layout::ManifestInputs {
                source_sha256: Digest::default(),
                calibration: calibration.as_ref(),
                linear_algebra: &context.device.algebra().name(),
                order: permutation.as_ref().map(ChannelPermutation::digest),
            },
            &self.treatment,
            self.measures(),
        );
        let draft = layout::reserve_tuning(draft, self.request.tune > 0);
        HtzWriter::predict_length(draft, checked.sections())
    }

    /// Returns the requested layer for probes, else the layer at which the residual stream stops
    /// growing dimensionally; a guess without calibration, or if there is no plateau.
    pub fn depth_sink(&self, context: CompileContext) -> Result<DepthSinkRecord, CompileError> {
        if let Some(layer) = context.options.artifact.probe_layer {
            return Ok(DepthSinkRecord {
                layer,
                origin: DepthSinkOrigin::Asked,
            });
        }
        let source = self.calibrated.checked.file();
        let layers = source.hyper.layers;
        let guess = DepthSinkRecord::from_depth(layers);
        let Some(calibration) = &self.calibrated.calibration else {
            return Ok(guess);
        };
        let (device, progress) = (context.device, context.progress);
        progress.begin(Task::Depth, layers);
        device.unload_idle_models();
        let (threads, algebra) = (device.pool().threads(), device.algebra());
        let found = analyse::depth_sink(source, calibration, threads, algebra, progress)?;
        Ok(found.layer.map_or(guess, |layer| DepthSinkRecord {
            layer,
            origin: DepthSinkOrigin::Measured,
        }))
    }

    /// Returns the builder of candidates.
    pub fn artifact_builder(
        &'a self,
        context: CompileContext<'a>,
        work: &'a WorkFolder,
        depth_sink: DepthSinkRecord,
    ) -> ArtifactBuilder<'a> {
        let calibrated = self.calibrated;
        ArtifactBuilder {
            source: calibrated.checked.file(),
            digest: calibrated.checked.digest(context),
            calibration: calibrated.calibration.as_ref(),
            gradients: calibrated.gradients.as_ref(),
            permutation: calibrated.permutation.as_ref(),
            depth_sink,
            sections: calibrated.checked.sections(),
            reserve_quality: self.measures(),
            reserve_tuning: self.request.tune > 0,
            is_base: context.options.artifact.planes == 2,
            device: context.device,
            work,
            progress: context.progress,
        }
    }
}

/// Returns the request for a choice among the treatments of `plans` plans.
pub(super) fn choice_request(
    options: &CompileOptions,
    request: &PlanRequest,
    calibrated: bool,
    held_out: bool,
    plans: usize,
) -> Result<ChoiceRequest, CompileError> {
    let treatment = options.treatment.or_else_from(request.treatment);
    let artifact = &options.artifact;
    Ok(ChoiceRequest {
        plans,
        treatment: match request.method {
            Method::Quantise => treatment.check_codes_only()?,
            Method::PerProjection | Method::SharedBasis => treatment,
        },
        limit: options.limit,
        calibrated,
        held_out,
        tune: if held_out {
            artifact.tune_steps(request.method, request.effort)
        } else {
            0
        },
        tune_is_explicit: artifact.tune.is_some_and(|steps| steps > 0),
    })
}
