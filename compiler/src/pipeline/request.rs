//! The request for a plan, checked against the shapes of the source before anything is measured.

use htc_formats::source::ModelFile;

use super::source::CheckedSource;
use super::{CompileContext, CompileError, order};
use crate::estimate::stages;
use crate::options::{PlanSource, TargetMachine};
use crate::plan::{self, Method, ModelFileTypes, Plan, PlanError, PlanRequest};
use crate::planner::ArtifactParts;
use crate::profile::is_measured;

/// A plan from a file, or the request to compute one, checked against the shapes of the source.
#[derive(Debug)]
pub(super) enum CheckedRequest<'a> {
    Plan(Plan),
    Compute {
        request: PlanRequest,
        target: &'a TargetMachine,
        /// The plan if nothing has to be measured for it.
        known: Option<Box<Plan>>,
    },
}

impl<'a> CheckedRequest<'a> {
    /// Reads the plan, or checks the request for one.
    pub fn new(context: CompileContext<'a>, checked: &CheckedSource) -> Result<Self, CompileError> {
        let source = checked.file();
        let types = ModelFileTypes(source);
        match &context.options.planning {
            // Read only once: the file may be a pipe.
            PlanSource::File(path) => {
                let digest = || checked.digest(context);
                let plan = plan::json::read(path, &source.hyper, digest, types)?;
                order::check(source, plan.request().layout.order)?;
                Ok(CheckedRequest::Plan(plan))
            }
            PlanSource::Compute { request, target } => {
                let mut request = request.clone();
                request.layout.order = order::resolve_setting(source, &request, context.progress)?;
                let evidence = target.evidence();
                let calibrated = context.options.calibration.is_some();
                let known = match plan::compute(&source.hyper, request.clone(), &evidence, types) {
                    Ok(plan) => Some(Box::new(plan)),
                    Err(PlanError::NoEvidence { .. } | PlanError::NoMeasurement { .. })
                        if is_measured(&request, target, calibrated) =>
                    {
                        None
                    }
                    Err(error) => return Err(error.into()),
                };
                if request.method == Method::Quantise {
                    let parts = ArtifactParts {
                        source,
                        calibration: None,
                        sections: checked.model_sections(),
                        linear_algebra: context.device.algebra().name(),
                    };
                    parts.check_size(&request)?;
                }
                Ok(CheckedRequest::Compute {
                    request,
                    target,
                    known,
                })
            }
        }
    }

    /// Returns the request of the plan.
    pub fn request(&self) -> &PlanRequest {
        match self {
            CheckedRequest::Plan(plan) => plan.request(),
            CheckedRequest::Compute { request, .. } => request,
        }
    }

    /// Returns true if gradients decide on codes.
    pub fn needs_gradients(&self) -> bool {
        match self {
            CheckedRequest::Plan(plan) => plan.needs_gradients(),
            CheckedRequest::Compute { request, .. } => request.method == Method::Quantise,
        }
    }

    /// Returns a plan that takes about as long as the requested one and as much memory; `None` if
    /// that depends on measurements.
    pub fn representative_plan(&self, source: &ModelFile) -> Result<Option<Plan>, PlanError> {
        match self {
            CheckedRequest::Plan(plan) => Ok(Some(plan.clone())),
            CheckedRequest::Compute {
                known: Some(plan), ..
            } => Ok(Some(Plan::clone(plan))),
            CheckedRequest::Compute { request, .. } if request.method == Method::Quantise => {
                let slowest = stages::slowest_type(request.codes.kinds());
                let (hyper, types) = (&source.hyper, ModelFileTypes(source));
                plan::any_size_single_type_plan(hyper, request.clone(), types, slowest)
            }
            CheckedRequest::Compute { .. } => Ok(None),
        }
    }
}
