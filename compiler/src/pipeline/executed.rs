//! The device on which a compilation executes models.

use std::sync::Arc;

use htc_formats::source::ModelFile;
use htc_kernels::Pool;
use htc_loader::backend::PlannedSession;
use htc_loader::device::DeviceChoice;
use htc_loader::kv::KvKind;

use super::CompileError;
use crate::calibrate;
use crate::device::{self, Device};
use crate::estimate::matrices;
use crate::event::{Event, Progress};
use crate::options::CompileOptions;

/// Calls `work` with the requested device. With a calibration text, the device must have memory for
/// the model. Without one, a GPU only decomposes weights and the test devices are not used.
pub(super) fn with_device<T>(
    options: &CompileOptions,
    source: &ModelFile,
    watch: Progress,
    work: impl FnOnce(&dyn Device) -> Result<T, CompileError>,
) -> Result<T, CompileError> {
    let choice = options.artifact.device;
    let text = options.calibration.as_ref();
    if text.is_none() && matches!(choice, DeviceChoice::Reference | DeviceChoice::Emulated) {
        watch.report(Event::Warning(&format!(
            "the device {choice} has nothing to do: without a text to calibrate on the model is executed by the processor alone, which measures the quality"
        )));
        return device::run_on_cpu(options.threads, work);
    }
    let pool = Arc::new(Pool::new(options.threads)?);
    let model = text.map(|_| calibrate::bind(source)).transpose()?;
    let sessions = model.iter().zip(text).map(|(model, text)| PlannedSession {
        model,
        positions: text.window_size(source.hyper.context),
        kind: KvKind::F32,
    });
    let matrices = matrices::device_bytes(&source.hyper, text.is_some(), options.threads);
    let told = |error: &_| watch.report(Event::Note(&format!("on the processor: {error}")));
    device::run_on_device(
        choice,
        &pool,
        sessions.collect(),
        matrices,
        told,
        |device| {
            if choice != DeviceChoice::Cpu {
                report_device(device, text.is_some(), watch);
            }
            work(device)
        },
    )
    .map_err(CompileError::Device)?
}

fn report_device(device: &dyn Device, calibrates: bool, watch: Progress) {
    let note = |said: String| watch.report(Event::Note(&said));
    if calibrates {
        note(format!("the model is executed by {}", device.name()));
    }
    let does = if calibrates {
        "second moments are summed and weights decomposed"
    } else {
        "weights are decomposed"
    };
    if let Some(algebra) = device.device_algebra() {
        note(format!("{does} by {}", algebra.name()));
    }
    if let Some(why) = device.host_algebra_reason() {
        watch.report(Event::Warning(&format!("{does} by the processor: {why}")));
    }
}
