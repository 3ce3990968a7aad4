//! What is measured on a model before its plan is made: only what the allocator looks at.

use htc_formats::source::ModelFile;

use crate::factorise::spectrum;
use crate::ordered;
use crate::pipeline::{CompileError, Event};
use crate::plan::allocate::Allocator;
use crate::plan::{Evidence, Method, Request, Unit};

/// What the caller says of the machine that the artifact is for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Target {
    /// Bytes of its second-level cache.
    pub cache: Option<u64>,
    /// Tokens that the dense model writes there per joule.
    pub tokens_per_joule: Option<f64>,
}

impl Target {
    /// What is known without a look at the weights.
    pub fn evidence(&self) -> Evidence {
        Evidence {
            cache: self.cache,
            tokens_per_joule: self.tokens_per_joule,
            ..Evidence::default()
        }
    }
}

/// Measures what the allocator of a request looks at; whatever it does not look at is left out, and
/// no weight is read for it. The numbers do not depend on the number of threads.
///
/// # Errors
/// [`CompileError::Unit`] where a weight does not decode or is not finite.
pub fn evidence(
    source: &ModelFile,
    units: &[Unit],
    request: &Request,
    target: &Target,
    threads: usize,
    progress: impl Fn(Event) + Sync,
) -> Result<Evidence, CompileError> {
    let mut evidence = target.evidence();
    if reads_weights(request, target) {
        evidence.spectra = Some(spectra(source, units, request, threads, progress)?);
    }
    Ok(evidence)
}

/// Whether the allocator of a request looks at the spectra of the weights.
pub fn reads_weights(request: &Request, target: &Target) -> bool {
    match request.allocation.allocator {
        Allocator::Waterfill => true,
        // Without the price of energy it is refused, whatever the spectra are.
        Allocator::DiffPlan => target.tokens_per_joule.is_some(),
        Allocator::Uniform
        | Allocator::Phase
        | Allocator::Curvature
        | Allocator::Whitened
        | Allocator::CacheFit => false,
    }
}

/// The singular values of every unit's weights. One unit per thread is in memory at a time.
fn spectra(
    source: &ModelFile,
    units: &[Unit],
    request: &Request,
    threads: usize,
    progress: impl Fn(Event) + Sync,
) -> Result<Vec<Vec<f64>>, CompileError> {
    let shared = request.method == Method::SharedBasis;
    progress(Event::Measuring(units.len()));
    let mut spectra = Vec::with_capacity(units.len());
    ordered::for_each(
        threads,
        units.len(),
        // A spectrum takes no room, so a slow unit need not hold up the others.
        units.len(),
        |index| {
            spectrum::of_unit(source, &units[index], shared).map_err(|error| CompileError::Unit {
                path: source.path.clone(),
                error,
            })
        },
        |index, spectrum| {
            progress(Event::Done(&units[index].label()));
            spectra.push(spectrum);
            Ok(())
        },
    )?;
    Ok(spectra)
}
