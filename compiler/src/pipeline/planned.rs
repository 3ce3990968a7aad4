//! Third stage: the plan, its candidates, and the resources that they take.

use htc_formats::htz::{DepthSinkOrigin, DepthSinkRecord, Digest, HtzError, HtzWriter};

use super::calibrated::CalibratedSource;
use super::source::check_kv_bases;
use super::{CompileContext, CompileError};
use crate::analyse;
use crate::choose::ChoiceRequest;
use crate::estimate::duration::Speed;
use crate::estimate::{self, Estimate, EstimateInputs};
use crate::event::{Event, Measurement};
use crate::layout;
use crate::make::ArtifactBuilder;
use crate::make::work::WorkFolder;
use crate::options::{BASE_FRACTION, CompileOptions, Treatment};
use crate::order::ChannelPermutation;
use crate::plan::{Method, Plan};
use crate::planner::Planner;
use crate::system::disk;
use crate::system::memory;

/// Projections of all kinds are factorised there, with ranks close to their maximum.
const ESTIMATE_RATIO: f64 = 0.5;

/// A source with its plan and the request for the selection among candidates.
#[derive(Debug)]
pub(super) struct PlannedModel<'a> {
    pub calibrated: &'a CalibratedSource<'a>,
    pub planner: Planner<'a>,
    pub request: ChoiceRequest,
    /// First treatment of the weights; others may be tried.
    pub treatment: Treatment,
}

/// Predicted costs of a compilation, and the disk space that it has.
pub(super) struct Resources {
    /// Disk space needed, with the unfinished work.
    pub disk_bytes: u64,
    /// Predicted costs; the bytes of the artifact are exact.
    pub estimate: Estimate,
    /// Free bytes in the output's folder.
    pub free_bytes: Option<u64>,
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
        let treatment = options.treatment.or_else_from(plan_request.treatment);
        let artifact = &options.artifact;
        let request = ChoiceRequest {
            plans: 1 + planner.alternatives(plan)?.len(),
            treatment: match plan_request.method {
                Method::Quantise => treatment.check_codes_only()?,
                Method::PerProjection | Method::SharedBasis => treatment,
            },
            limit: options.limit,
            calibrated: calibration.is_some(),
            held_out,
            tune: if held_out {
                artifact.tune_steps(plan_request.method, plan_request.effort)
            } else {
                0
            },
            tune_is_explicit: artifact.tune.is_some_and(|steps| steps > 0),
        };
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

    /// Predicts the costs and checks that disk and memory suffice.
    ///
    /// # Errors
    /// [`CompileError::NoSpace`], [`CompileError::NoMemory`].
    pub fn check_resources(
        &self,
        context: CompileContext,
        speed: Speed,
    ) -> Result<Resources, CompileError> {
        let CompileContext {
            options, device, ..
        } = context;
        let bytes = self.artifact_bytes(context, self.planner.plan())?;
        let needed = self.disk_space_needed(options, bytes);
        let free_bytes = disk::free_bytes(disk::folder_of(&options.output));
        if let Some(free) = free_bytes.filter(|free| *free < needed) {
            return Err(CompileError::NoSpace {
                path: options.output.clone(),
                needed,
                free,
            });
        }
        let searches = !options.limit.is_none();
        let searched = searches.then(|| self.planner.plan_at(ESTIMATE_RATIO).ok());
        let searched = searched.flatten();
        let checked = self.calibrated.checked;
        let vocabulary = checked.model_sections().first();
        let inputs = EstimateInputs {
            source: checked.file(),
            plan: searched.as_ref().unwrap_or(self.planner.plan()),
            treatment: self.treatment,
            calibration: self.calibrated.calibration.as_ref(),
            candidates: self.expected_candidates(searches),
            tune: self.request.tune,
            bytes,
            vocabulary: vocabulary.map_or(0, |of| of.entry().decoded_length),
            speed,
            uses_device_memory: device.has_own_memory(),
            uses_device_algebra: device.device_algebra().is_some(),
        };
        let estimate = estimate::estimate(options, inputs);
        match memory::available() {
            Some(available) if available < estimate.peak_memory => Err(CompileError::NoMemory {
                needed: estimate.peak_memory,
                available,
            }),
            _ => Ok(Resources {
                disk_bytes: needed,
                estimate,
                free_bytes,
            }),
        }
    }

    fn expected_candidates(&self, searches: bool) -> usize {
        match self.planner.plan().request().method {
            Method::Quantise if searches => {
                let others = self.request.plans.saturating_sub(1);
                self.request
                    .candidates()
                    .min(estimate::SEARCH_CANDIDATES + others)
            }
            _ => self.request.candidates(),
        }
    }

    /// Returns the bytes of disk space needed. A replaced artifact stays until the new one is
    /// complete.
    fn disk_space_needed(&self, options: &CompileOptions, bytes: u64) -> u64 {
        let is_elastic = options.artifact.planes == 2;
        // With a requested size, the plan of an elastic artifact covers only the bases.
        let whole = if is_elastic && options.limit.is_none() {
            (bytes as f64 / BASE_FRACTION) as u64
        } else {
            bytes
        };
        let candidates = self.request.candidates() + usize::from(self.request.tune > 0);
        let compares = self.measures() && self.planner.is_computed();
        let compares = compares && self.max_comparison_files(options) > 0;
        let mut needed = candidates.min(2) as u64 * bytes;
        needed += 2 * whole * (u64::from(is_elastic) + u64::from(compares));
        if options.artifact.with_source {
            let source = self.calibrated.checked.file();
            needed = needed.saturating_add(whole + source.tensor_bytes());
        }
        needed.saturating_sub(WorkFolder::bytes(&options.output))
    }

    /// Returns the maximum number of single-type files for comparison.
    pub fn max_comparison_files(&self, options: &CompileOptions) -> usize {
        let request = self.planner.plan().request();
        let artifact = &options.artifact;
        artifact.max_comparison_files(request.method, request.effort)
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
        progress.report(Event::Measuring(Measurement::Depth, layers));
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
            digest: calibrated.digest(context),
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
