//! GPUs under measurement.

use htc_kernels::cuda::{Device, DeviceError, DeviceMemory, StepCounts};
use htc_loader::Model;
use htc_loader::backend::{GpuMemoryEstimate, PlannedSession};
use htc_loader::device::{Executor, GpuExecutor};
use htc_loader::kv::KvKind;
use serde_json::{Value, json};

use super::on::{BenchmarkExecutor, CopyFn, Outcome, best_copy_rate};

/// A device that describes itself.
pub trait DescribedDevice: Device {
    fn describe(&self) -> Value;
    fn counts(&self) -> StepCounts;

    /// Opens the same device with a separate stream.
    fn open_second_stream(&self) -> Result<Self, DeviceError>;
}

#[cfg(feature = "cuda")]
impl DescribedDevice for htc_loader::backend::CudaDevice {
    fn describe(&self) -> Value {
        let found = self.properties();
        json!({
            "kind": "cuda",
            "name": found.name,
            "index": found.index,
            "identifier": found.uuid_string(),
            "architecture": found.architecture.to_string(),
            "multiprocessors": found.multiprocessors,
            "l2_bytes": found.l2_bytes,
            "code": self.code_origin(),
        })
    }

    fn counts(&self) -> StepCounts {
        self.step_counts()
    }

    fn open_second_stream(&self) -> Result<Self, DeviceError> {
        let index = htc_loader::device::DeviceSelector::Index(self.properties().index);
        htc_loader::device::open_cuda(index, None)
    }
}

#[cfg(feature = "emulated")]
impl DescribedDevice for htc_loader::backend::EmulatedDevice {
    fn describe(&self) -> Value {
        json!({ "kind": "emulated", "name": self.name() })
    }

    fn counts(&self) -> StepCounts {
        self.step_counts()
    }
    fn open_second_stream(&self) -> Result<Self, DeviceError> {
        Ok(Self::new(1))
    }
}

impl<D: DescribedDevice> BenchmarkExecutor for GpuExecutor<D> {
    fn check_memory(&self, model: &Model, positions: usize) -> Outcome<()> {
        let kind = KvKind::default();
        let planned = PlannedSession {
            model,
            positions,
            kind,
        };
        Ok(GpuMemoryEstimate::for_sessions::<D>(&[planned]).check(&self.0)?)
    }

    fn device(&self) -> Value {
        let mut all = self.0.describe();
        if let Ok([free, total]) = self.0.memory_info() {
            all["memory_free"] = free.into();
            all["memory"] = total.into();
        }
        all
    }

    fn copy_rate(&self, bytes: usize) -> Outcome<Option<f64>> {
        let device = &self.0;
        let bytes = bytes.min(device.memory_info()?[0] / 4);
        let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
        let mut copy = || Ok(device.copy(from.at(0), to.at(0), bytes)?);
        best_copy_rate(bytes, &mut copy, || Ok(device.synchronize()?))
    }

    fn single_launch_backend(&self) -> Option<Self::Backend> {
        Some(self.backend().in_one_launch())
    }

    fn launches(&self) -> Option<[u64; 2]> {
        let counts = self.0.counts();
        Some([counts.kernels, counts.copies])
    }

    fn steps(&self) -> Value {
        let counts = self.0.counts();
        json!({
            "replayed": counts.replayed,
            "updated": counts.updated,
            "changed": counts.changed_operations,
            "made": counts.created,
            "plain": counts.launched,
            "interrupted": counts.interrupted,
        })
    }

    fn cache_evictor(&self, bytes: usize) -> Outcome<CopyFn> {
        copy_function(self.0.clone(), bytes, 1)
    }

    fn background_copy(&self, bytes: usize) -> Outcome<CopyFn> {
        // With a separate stream, so that the measured work does not wait for it; reads half and
        // writes half.
        copy_function(self.0.open_second_stream()?, bytes / 2, 16)
    }

    fn begin(&self) -> Outcome<()> {
        Ok(self.0.begin_step()?)
    }

    fn end(&self) -> Outcome<()> {
        Ok(self.0.end_step()?)
    }
}

fn copy_function<D: Device>(device: D, bytes: usize, times: usize) -> Outcome<CopyFn> {
    let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
    Ok(Box::new(move || {
        for _ in 0..times {
            device.copy(from.at(0), to.at(0), bytes)?;
        }
        device.synchronize()
    }))
}
