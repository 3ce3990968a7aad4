//! On which device a compilation executes models.

use std::sync::Arc;

use htc_formats::model::{HyperParameters, Site};
use htc_formats::source::ModelFile;
use htc_kernels::Pool;
use htc_loader::Model;
use htc_loader::backend::Planned;
use htc_loader::device::DeviceChoice;
use htc_loader::kv::KvKind;

use super::CompileError;
use crate::calibrate::{self, CalibrateError};
use crate::device::{self, Device, Matrices};
use crate::event::{Event, Watch};
use crate::request::CompileOptions;

/// Does something with the device that is asked for, on which the model has room.
pub(super) fn on_device<T>(
    options: &CompileOptions,
    source: &ModelFile,
    watch: Watch,
    work: impl FnOnce(&dyn Device) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    let Some(calibration) = &options.calibration else {
        return without_text(options, source, watch, work);
    };
    let pool = Arc::new(Pool::new(options.threads)?);
    let model = Model::bind(source.clone()).map_err(|error| CalibrateError::Load {
        path: source.path.clone(),
        error,
    })?;
    let planned = Planned {
        model: &model,
        positions: calibration.window(source.hyper.context),
        kind: KvKind::F32,
    };
    let told = |error: &_| watch.tell(Event::Note(&format!("on the processor: {error}")));
    // What is measured beside it is refused when it is brought there, where it has no room.
    let matrices = Matrices {
        sums: calibrate::device_bytes(&source.hyper),
        decomposition: decomposition_bytes(&source.hyper, &Site::ALL, options.threads),
    };
    let planned = (vec![planned], matrices);
    device::on(options.device, &pool, planned, told, |device| {
        if options.device != DeviceChoice::Cpu {
            let name = device.name();
            watch.tell(Event::Note(&format!("the model is executed by {name}")));
        }
        tell_algebra(
            device,
            "second moments are summed and weights decomposed",
            watch,
        );
        work(device)
    })?
}

/// Sites whose inputs are no wider than what is decomposed without statistics: of the hidden layer that is the narrower side.
const NARROW: [Site; 3] = [Site::Attention, Site::AttentionOutput, Site::Ffn];

/// Bytes that a device takes to decompose the widest matrix of inputs, with its vectors and what its library needs, beside the sums
/// of every thread.
fn decomposition_bytes(hyper: &HyperParameters, sites: &[Site], threads: usize) -> u64 {
    let widths = sites
        .iter()
        .map(|&site| calibrate::site_width(hyper, site) as u64);
    let widest = widths.fold(0, u64::max);
    let one = widest.saturating_mul(widest).saturating_mul(4 * 8);
    let sums = device::sums(hyper.width).saturating_mul(threads as u64);
    one.saturating_add(sums)
}

/// The same where no model is executed: a GPU has weights to decompose, whatever else there is has nothing to do.
fn without_text<T>(
    options: &CompileOptions,
    source: &ModelFile,
    watch: Watch,
    work: impl FnOnce(&dyn Device) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    let device = options.device;
    match device {
        DeviceChoice::Cuda(_) | DeviceChoice::Auto => {
            let pool = Arc::new(Pool::new(options.threads)?);
            let matrices = Matrices {
                sums: 0,
                decomposition: decomposition_bytes(&source.hyper, &NARROW, options.threads),
            };
            let told = |error: &_| watch.tell(Event::Note(&format!("on the processor: {error}")));
            let planned = (Vec::new(), matrices);
            device::on(device, &pool, planned, told, |device| {
                tell_algebra(device, "weights are decomposed", watch);
                work(device)
            })?
        }
        DeviceChoice::Cpu => device::on_processor(options.threads, work),
        _ => {
            watch.tell(Event::Warning(&format!(
                "the device {device} has nothing to do: without a text to calibrate on no model is executed"
            )));
            device::on_processor(options.threads, work)
        }
    }
}

/// Says what does so with matrices, where that is not the processor or might have been something else.
fn tell_algebra(device: &dyn Device, does: &str, watch: Watch) {
    match device.own_algebra() {
        Ok(None) => {}
        Ok(Some(algebra)) => {
            let name = algebra.name();
            watch.tell(Event::Note(&format!("{does} by {name}")));
        }
        Err(error) => watch.tell(Event::Warning(&format!("{does} by the processor: {error}"))),
    }
}
