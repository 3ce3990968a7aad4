//! Sequential submission of launches and copies.

use cudarc::driver::sys::{self, CUfunction, CUresult};

use super::api;
use super::{Shared, State};
use crate::cuda::device::DeviceError;
use crate::cuda::step::{Launch, Step, StepOperation};

impl Shared {
    pub(super) fn submit_launches(&self, state: &mut State) -> Result<(), DeviceError> {
        let step = std::mem::take(&mut state.record.step);
        let done = step
            .nodes()
            .iter()
            .try_for_each(|node| self.submit_node(state, &step, node));
        state.record.step = step;
        done
    }

    fn submit_node(
        &self,
        state: &mut State,
        step: &Step,
        node: &StepOperation,
    ) -> Result<(), DeviceError> {
        match node {
            StepOperation::Launch(launch) => self.launch(state, step, launch),
            &StepOperation::Copy { from, to, bytes } => {
                // SAFETY: both spans were checked when the copy was recorded, and memory dropped
                // meanwhile is freed after the step.
                let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
                self.check_launch(state.last_kernel, code, "copying on the device")
            }
        }
    }

    pub(super) fn function(
        &self,
        state: &mut State,
        launch: &Launch,
    ) -> Result<CUfunction, DeviceError> {
        let most = self.found.max_shared_bytes;
        if launch.shared > most {
            return Err(DeviceError::Kernel {
                kernel: launch.kernel,
                message: format!(
                    "{} bytes of shared memory, this device has {most}",
                    launch.shared
                ),
            });
        }
        state.modules.function(launch.kernel, launch.shared)
    }

    fn launch(&self, state: &mut State, step: &Step, launch: &Launch) -> Result<(), DeviceError> {
        let kernel = launch.kernel;
        let failed = |message| DeviceError::Kernel { kernel, message };
        let function = self.function(state, launch)?;
        let before = std::mem::replace(&mut state.last_kernel, kernel);
        let [x, y, z] = launch.grid;
        let arguments = step.arguments(launch).as_ptr();
        let mut parameters = [arguments.cast_mut().cast()];
        let (threads, shared, stream) = (launch.threads, launch.shared as u32, self.stream);
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the context is current. The caller of `Device::launch` guarantees the memory
        // accesses of the kernel, and the arguments are those passed with it; the driver reads the
        // length that the kernel declares.
        let code = unsafe {
            sys::cuLaunchKernel(
                function, x, y, z, threads, 1, 1, shared, stream, parameters, extra,
            )
        };
        if code != CUresult::CUDA_SUCCESS {
            let meaning = api::error_description(code);
            return Err(
                if api::is_kernel_error(code)
                    && code != CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                {
                    // The error belongs to an earlier kernel; this one has not begun.
                    DeviceError::Kernel {
                        kernel: before,
                        message: format!("{meaning}, noticed when launching {kernel}"),
                    }
                } else {
                    failed(format!(
                        "{meaning}, with {x} x {y} x {z} blocks of {threads} threads and {shared} bytes of shared memory"
                    ))
                },
            );
        }
        if self.waiting {
            // SAFETY: the context is current and owns the stream.
            let code = unsafe { sys::cuStreamSynchronize(self.stream) };
            return self.check_launch(kernel, code, "waiting for it");
        }
        Ok(())
    }
}
