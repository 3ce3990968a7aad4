//! Launches and copies one after the other.

use cudarc::driver::sys::{self, CUfunction, CUresult};

use super::api;
use super::{Shared, State};
use crate::cuda::device::DeviceError;
use crate::cuda::step::{Launch, Node, Step};

impl Shared {
    /// Launches what was kept, one after the other; the context is current.
    pub(super) fn plainly(&self, state: &mut State) -> Result<(), DeviceError> {
        let step = std::mem::take(&mut state.record.step);
        let done = step
            .nodes()
            .iter()
            .try_for_each(|node| self.node(state, &step, node));
        state.record.step = step;
        done
    }

    /// Launches one thing of a step; the context is current.
    fn node(&self, state: &mut State, step: &Step, node: &Node) -> Result<(), DeviceError> {
        match node {
            Node::Launch(launch) => self.launch(state, step, launch),
            &Node::Copy { from, to, bytes } => {
                // SAFETY: the spans of both were checked when the copy was kept, and what is dropped meanwhile is freed
                // behind the step.
                let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream) };
                self.explain(state.last, code, "copying on the device")
            }
        }
    }

    /// The function of a launch, which may have the shared memory that it asks for; the context is current.
    pub(super) fn function(
        &self,
        state: &mut State,
        launch: &Launch,
    ) -> Result<CUfunction, DeviceError> {
        let most = self.found.shared_bytes;
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
        let before = std::mem::replace(&mut state.last, kernel);
        let [x, y, z] = launch.grid;
        let arguments = step.arguments(launch).as_ptr();
        // One parameter, a structure, which the driver copies before it returns.
        let mut parameters = [arguments.cast_mut().cast()];
        // SAFETY: the context is current. The caller of `Device::launch` answers for what the kernel touches, and its
        // arguments are those that were passed with it; the driver reads as many bytes of them as the kernel declares.
        let code = unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                launch.shared as u32,
                self.stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if code != CUresult::CUDA_SUCCESS {
            let meaning = api::meaning(code);
            return Err(
                if api::is_of_a_kernel(code) && code != CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                {
                    // It was found now, and was none of this one, which has not begun.
                    DeviceError::Kernel {
                        kernel: before,
                        message: format!("{meaning}, noticed when launching {kernel}"),
                    }
                } else {
                    let (threads, shared) = (launch.threads, launch.shared);
                    failed(format!(
                        "{meaning}, with {x} x {y} x {z} blocks of {threads} threads and {shared} bytes of shared memory"
                    ))
                },
            );
        }
        if self.waiting {
            // SAFETY: the context is current and the stream is its.
            let code = unsafe { sys::cuStreamSynchronize(self.stream) };
            return self.explain(kernel, code, "waiting for it");
        }
        Ok(())
    }
}
