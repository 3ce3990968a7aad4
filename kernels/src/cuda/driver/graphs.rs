//! A step as one graph: made once, replayed as it is, or with other arguments.

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use super::api;
use super::{Shared, State};
use crate::cuda::device::DeviceError;
use crate::cuda::step::{Launch, Node, Step};

/// Graphs that are kept: what a session alternates between, as steps with and without logits.
const KEPT: usize = 4;

struct Kept {
    step: Step,
    graph: CUgraphExec,
}

/// Graphs of the last steps, the last of them at the end.
#[derive(Default)]
pub(super) struct Graphs {
    kept: Vec<Kept>,
    /// Whether the driver could not make one; it is not asked again.
    refused: bool,
}

impl Graphs {
    /// Gives all of them back.
    ///
    /// # Safety
    /// The context is current, and none of them runs.
    pub(super) unsafe fn free(&mut self) {
        for kept in self.kept.drain(..) {
            // SAFETY: it was made by `make`.
            let _ = unsafe { sys::cuGraphExecDestroy(kept.graph) };
        }
    }
}

enum How {
    Replayed,
    Updated,
    Made,
}

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

    /// Launches what was kept as one; launch by launch where the driver makes no graph of it. The context is current.
    pub(super) fn as_one(&self, state: &mut State) -> Result<(), DeviceError> {
        if !state.graphs.refused {
            match self.graph(state) {
                Ok(Some(how)) => {
                    let counts = &mut state.counts;
                    match how {
                        How::Replayed => counts.replayed += 1,
                        How::Updated => counts.updated += 1,
                        How::Made => counts.made += 1,
                    }
                    let graph = state.graphs.kept.last().map(|kept| kept.graph);
                    let graph = graph.unwrap_or(std::ptr::null_mut());
                    state.last = last_kernel(&state.record.step).unwrap_or(state.last);
                    // SAFETY: the context is current and the graph was made in it.
                    let code = unsafe { sys::cuGraphLaunch(graph, self.stream) };
                    return self.explain(state.last, code, "launching a step");
                }
                Ok(None) => {}
                Err(_) => state.graphs.refused = true,
            }
        }
        state.counts.plain += 1;
        self.plainly(state)
    }

    /// Puts the graph of the step that was kept behind the others. None where one of its launches is at fault, which
    /// launching it again tells.
    fn graph(&self, state: &mut State) -> Result<Option<How>, DeviceError> {
        let kept = &mut state.graphs.kept;
        if let Some(at) = kept.iter().rposition(|kept| kept.step == state.record.step) {
            let same = kept.remove(at);
            kept.push(same);
            return Ok(Some(How::Replayed));
        }
        let step = std::mem::take(&mut state.record.step);
        let captured = self.capture(state, &step);
        let how = match captured {
            Ok(Some(graph)) => {
                let how = self.take(state, &step, graph);
                // SAFETY: the captured graph is not that which runs, and nobody has it any more.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
                how.map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        state.record.step = step;
        how
    }

    /// The launches of a step as a graph that cannot run yet.
    fn capture(&self, state: &mut State, step: &Step) -> Result<Option<CUgraph>, DeviceError> {
        // Functions that are looked up or given more memory while launches are captured could end that.
        for node in step.nodes() {
            if let Node::Launch(launch) = node
                && state
                    .modules
                    .function(launch.kernel, launch.shared)
                    .is_err()
            {
                return Ok(None);
            }
        }
        // Nothing but these launches happens meanwhile on the stream, and what other threads do is their business.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the context is current and the stream is its.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) };
        api::check(code, "beginning a graph")?;
        let launched = step
            .nodes()
            .iter()
            .try_for_each(|node| self.node(state, step, node));
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: as above; a capture that has failed ends, too, and gives none.
        let code = unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) };
        if launched.is_err() || code != CUresult::CUDA_SUCCESS {
            if !graph.is_null() {
                // SAFETY: nobody else has it.
                let _ = unsafe { sys::cuGraphDestroy(graph) };
            }
            if launched.is_err() {
                return Ok(None);
            }
            api::check(code, "ending a graph")?;
        }
        Ok(Some(graph))
    }

    /// Makes a graph that runs: by changing one of the same launches, or anew.
    fn take(&self, state: &mut State, step: &Step, graph: CUgraph) -> Result<How, DeviceError> {
        let kept = &mut state.graphs.kept;
        if let Some(at) = kept.iter().rposition(|kept| kept.step.is_like(step)) {
            let mut like = kept.remove(at);
            let mut result = sys::CUgraphExecUpdateResultInfo {
                result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR,
                errorNode: std::ptr::null_mut(),
                errorFromNode: std::ptr::null_mut(),
            };
            // SAFETY: both graphs are alive; one that runs ends as it began.
            let code = unsafe { sys::cuGraphExecUpdate_v2(like.graph, graph, &mut result) };
            if code == CUresult::CUDA_SUCCESS {
                like.step.clone_from(step);
                kept.push(like);
                return Ok(How::Updated);
            }
            // SAFETY: nobody has it any more; the driver keeps one that runs until it has ended.
            let _ = unsafe { sys::cuGraphExecDestroy(like.graph) };
        }
        let mut made: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the context is current and the graph is alive.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut made, graph, 0) };
        api::check(code, "making a graph")?;
        if kept.len() == KEPT {
            let oldest = kept.remove(0);
            // SAFETY: as above.
            let _ = unsafe { sys::cuGraphExecDestroy(oldest.graph) };
        }
        kept.push(Kept {
            step: step.clone(),
            graph: made,
        });
        Ok(How::Made)
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

    fn launch(&self, state: &mut State, step: &Step, launch: &Launch) -> Result<(), DeviceError> {
        let kernel = launch.kernel;
        let failed = |message| DeviceError::Kernel { kernel, message };
        let most = self.found.shared_bytes;
        if launch.shared > most {
            return Err(failed(format!(
                "{} bytes of shared memory, this device has {most}",
                launch.shared
            )));
        }
        let function = state.modules.function(kernel, launch.shared)?;
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

fn last_kernel(step: &Step) -> Option<&'static str> {
    step.nodes().iter().rev().find_map(|node| match node {
        Node::Launch(launch) => Some(launch.kernel),
        Node::Copy { .. } => None,
    })
}
