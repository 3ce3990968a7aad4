//! On which device a compilation executes models.

use std::sync::Arc;

use htc_formats::source::ModelFile;
use htc_kernels::Pool;
use htc_loader::Model;
use htc_loader::backend::Planned;
use htc_loader::device::DeviceChoice;
use htc_loader::kv::KvKind;

use super::CompileError;
use crate::calibrate::CalibrateError;
use crate::device::{self, Device};
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
        return without_text(options, watch, work);
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
    device::on(options.device, &pool, vec![planned], told, |device| {
        if options.device != DeviceChoice::Cpu {
            let name = device.name();
            watch.tell(Event::Note(&format!("the model is executed by {name}")));
        }
        tell_algebra(device, watch);
        work(device)
    })?
}

/// The same where no model is executed: a GPU has weights to decompose, whatever else there is has nothing to do.
fn without_text<T>(
    options: &CompileOptions,
    watch: Watch,
    work: impl FnOnce(&dyn Device) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    let device = options.device;
    match device {
        DeviceChoice::Cuda(_) => {
            let pool = Arc::new(Pool::new(options.threads)?);
            device::on(
                device,
                &pool,
                Vec::new(),
                |_| (),
                |device| {
                    tell_algebra(device, watch);
                    work(device)
                },
            )?
        }
        DeviceChoice::Cpu | DeviceChoice::Auto => device::on_processor(options.threads, work),
        _ => {
            watch.tell(Event::Warning(&format!(
                "the device {device} has nothing to do: without a text to calibrate on no model is executed"
            )));
            device::on_processor(options.threads, work)
        }
    }
}

/// Says what multiplies and decomposes, where that is not the processor or might have been something else.
fn tell_algebra(device: &dyn Device, watch: Watch) {
    match device.own_algebra() {
        Ok(None) => {}
        Ok(Some(algebra)) => {
            let name = algebra.name();
            let said = format!("second moments are summed and weights decomposed by {name}");
            watch.tell(Event::Note(&said));
        }
        Err(error) => watch.tell(Event::Warning(&format!(
            "the processor sums second moments and decomposes weights: {error}"
        ))),
    }
}
