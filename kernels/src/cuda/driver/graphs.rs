//! Execution of a step as a CUDA graph, which is instantiated once and then replayed or updated
//! with new arguments.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUgraph, CUgraphDependencyType, CUgraphEdgeData,
    CUgraphExec, CUgraphNode, CUmemorytype,
};

use super::api;
use super::{Shared, State};
use crate::cuda::device::DeviceError;
use crate::cuda::step::{Launch, Step, StepOperation};

/// Enough for steps with and without logits and those of a draft model.
const MAX_GRAPHS: usize = 8;

const MAX_FAILURES: u32 = 3;

struct CachedGraph {
    step: Step,
    /// The graph from which `graph` was instantiated; updates name its nodes.
    template: CUgraph,
    /// Nodes of the graph, in the order of the step.
    nodes: Vec<CUgraphNode>,
    /// Null until instantiated.
    executable: CUgraphExec,
}

impl CachedGraph {
    /// # Safety
    /// The context is current.
    unsafe fn free(self) {
        // SAFETY: both handles are of the driver, and no other references exist.
        unsafe {
            if !self.executable.is_null() {
                let _ = sys::cuGraphExecDestroy(self.executable);
            }
            let _ = sys::cuGraphDestroy(self.template);
        }
    }
}

/// Cached graphs in order of last use.
#[derive(Default)]
pub(super) struct GraphCache {
    cached: Vec<CachedGraph>,
    /// Steps for which creating a graph failed, but launching succeeded.
    failures: u32,
    last_error: Option<DeviceError>,
}

impl GraphCache {
    pub(super) fn disabled_reason(&self) -> Option<&DeviceError> {
        let given_up = self.failures >= MAX_FAILURES;
        self.last_error.as_ref().filter(|_| given_up)
    }

    /// # Safety
    /// The context is current, and no graph is running.
    pub(super) unsafe fn free(&mut self) {
        for kept in self.cached.drain(..) {
            // SAFETY: as above.
            unsafe { kept.free() };
        }
    }
}

enum GraphUse {
    Replayed,
    /// Number of launches and copies with new arguments.
    Updated(u64),
    Created,
}

impl Shared {
    /// Launches the recorded step as a graph, or launch by launch if the driver cannot create one.
    /// The context is current.
    pub(super) fn submit_as_graph(&self, state: &mut State) -> Result<(), DeviceError> {
        let asked = state.graphs.failures < MAX_FAILURES;
        let made = asked.then(|| self.prepare_graph(state));
        if let Some(Ok(how)) = made {
            let counts = &mut state.counts;
            match how {
                GraphUse::Replayed => counts.replayed += 1,
                GraphUse::Updated(changed) => {
                    counts.updated += 1;
                    counts.changed_operations += changed;
                }
                GraphUse::Created => counts.created += 1,
            }
            let graph = state.graphs.cached.last().map(|kept| kept.executable);
            let graph = graph.unwrap_or(std::ptr::null_mut());
            state.last_kernel = last_kernel(&state.record.step).unwrap_or(state.last_kernel);
            // SAFETY: the context is current and the graph was created in it.
            let code = unsafe { sys::cuGraphLaunch(graph, self.stream) };
            return self.check_launch(state.last_kernel, code, "launching a step");
        }
        state.counts.launched += 1;
        let launched = self.submit_launches(state);
        if let (Some(Err(why)), Ok(())) = (made, &launched) {
            state.graphs.failures += 1;
            state.graphs.last_error = Some(why);
        }
        launched
    }

    fn prepare_graph(&self, state: &mut State) -> Result<GraphUse, DeviceError> {
        let step = std::mem::take(&mut state.record.step);
        let how = self.find_or_create_graph(state, &step);
        state.record.step = step;
        how
    }

    fn find_or_create_graph(
        &self,
        state: &mut State,
        step: &Step,
    ) -> Result<GraphUse, DeviceError> {
        let kept = &mut state.graphs.cached;
        if let Some(at) = kept.iter().rposition(|kept| kept.step == *step) {
            let same = kept.remove(at);
            kept.push(same);
            return Ok(GraphUse::Replayed);
        }
        if let Some(at) = nearest_graph(kept, step) {
            let mut like = kept.remove(at);
            match self.update_nodes(state, &mut like, step) {
                Ok(changed) => {
                    state.graphs.cached.push(like);
                    return Ok(GraphUse::Updated(changed));
                }
                // SAFETY: the context is current. The graph may be partly updated, so it matches no
                // step any more.
                Err(_) => unsafe { like.free() },
            }
        }
        let overlap = state.overlap;
        let made = match self.create_graph(state, step) {
            // If it also fails without early launches, they were not the cause.
            Err(_) if overlap && !state.overlap => {
                let again = self.create_graph(state, step);
                again.inspect_err(|_| state.overlap = true)?
            }
            made => made?,
        };
        let kept = &mut state.graphs.cached;
        if kept.len() == MAX_GRAPHS {
            // SAFETY: the context is current.
            unsafe { kept.remove(0).free() };
        }
        kept.push(made);
        Ok(GraphUse::Created)
    }

    fn create_graph(&self, state: &mut State, step: &Step) -> Result<CachedGraph, DeviceError> {
        let mut template: CUgraph = std::ptr::null_mut();
        // SAFETY: the context is current.
        let code = unsafe { sys::cuGraphCreate(&mut template, 0) };
        api::check_driver(code, "beginning a graph")?;
        let mut made = CachedGraph {
            step: step.clone(),
            template,
            nodes: Vec::with_capacity(step.nodes().len()),
            executable: std::ptr::null_mut(),
        };
        match self.add_nodes(state, &mut made) {
            Ok(()) => Ok(made),
            Err(error) => {
                // SAFETY: the context is current.
                unsafe { made.free() };
                Err(error)
            }
        }
    }

    fn add_nodes(&self, state: &mut State, made: &mut CachedGraph) -> Result<(), DeviceError> {
        let overlap = state.overlap && state.modules.overlap;
        let mut early = false;
        let nodes = made.step.nodes();
        for (at, node) in nodes.iter().enumerate() {
            let before = made.nodes.last();
            let of_before = at.checked_sub(1).and_then(|at| nodes.get(at));
            let overlaps = overlap && can_overlap(of_before, node);
            let (behind, count) = match before {
                Some(node) if !overlaps => (std::ptr::from_ref(node), 1),
                _ => (std::ptr::null(), 0),
            };
            let mut new: CUgraphNode = std::ptr::null_mut();
            let code = match node {
                StepOperation::Launch(launch) => {
                    let mut arguments = parameter_array(&made.step, launch);
                    let launch = self.launch_node_params(state, launch, &mut arguments)?;
                    // SAFETY: the graph is under construction and owns the previous node; the
                    // driver copies the arguments, in the length that the kernel declares, before
                    // it returns.
                    unsafe {
                        sys::cuGraphAddKernelNode_v2(
                            &mut new,
                            made.template,
                            behind,
                            count,
                            &launch,
                        )
                    }
                }
                &StepOperation::Copy { from, to, bytes } => {
                    let copy = copy_node_params(from, to, bytes);
                    // SAFETY: as above; both spans were checked when the copy was recorded.
                    unsafe {
                        sys::cuGraphAddMemcpyNode(
                            &mut new,
                            made.template,
                            behind,
                            count,
                            &copy,
                            self.context,
                        )
                    }
                }
            };
            api::check_driver(code, "adding to a graph")?;
            if let Some(&before) = before.filter(|_| overlaps) {
                early = true;
                let ordered = add_programmatic_dependency(made.template, before, new);
                ordered.inspect_err(|_| state.overlap = false)?;
            }
            made.nodes.push(new);
        }
        // SAFETY: the context is current and the graph is complete.
        let code =
            unsafe { sys::cuGraphInstantiateWithFlags(&mut made.executable, made.template, 0) };
        // The driver may reject programmatic dependencies.
        let whole = api::check_driver(code, "making a graph");
        whole.inspect_err(|_| state.overlap &= !early)
    }

    fn update_nodes(
        &self,
        state: &mut State,
        like: &mut CachedGraph,
        step: &Step,
    ) -> Result<u64, DeviceError> {
        let mut changed = 0;
        for at in step.changed_operations(&like.step) {
            let (Some(node), Some(&name)) = (step.nodes().get(at), like.nodes.get(at)) else {
                continue;
            };
            let code = match node {
                StepOperation::Launch(launch) => {
                    let mut arguments = parameter_array(step, launch);
                    let launch = self.launch_node_params(state, launch, &mut arguments)?;
                    // SAFETY: the executable graph was instantiated from the graph of the node, and
                    // a running launch keeps its arguments; arguments as on creation.
                    unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(like.executable, name, &launch)
                    }
                }
                &StepOperation::Copy { from, to, bytes } => {
                    let copy = copy_node_params(from, to, bytes);
                    // SAFETY: as above; both spans were checked when the copy was recorded.
                    unsafe {
                        sys::cuGraphExecMemcpyNodeSetParams(
                            like.executable,
                            name,
                            &copy,
                            self.context,
                        )
                    }
                }
            };
            api::check_driver(code, "changing a graph")?;
            changed += 1;
        }
        like.step.clone_from(step);
        Ok(changed)
    }

    fn launch_node_params(
        &self,
        state: &mut State,
        launch: &Launch,
        arguments: &mut [*mut c_void; 1],
    ) -> Result<CUDA_KERNEL_NODE_PARAMS, DeviceError> {
        let [x, y, z] = launch.grid;
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: self.function(state, launch)?,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared as u32,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
    }
}

/// Lets the launch begin when all blocks of the previous one have begun; it waits for their end
/// itself.
fn add_programmatic_dependency(
    template: CUgraph,
    before: CUgraphNode,
    new: CUgraphNode,
) -> Result<(), DeviceError> {
    let edge = CUgraphEdgeData {
        from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
        to_port: 0,
        type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
        reserved: [0; 5],
    };
    // SAFETY: the function was checked; both nodes are launches of the graph under construction.
    let code = unsafe { sys::cuGraphAddDependencies_v2(template, &before, &new, &edge, 1) };
    api::check_driver(code, "ordering a graph")
}

/// Decides if a launch may begin before the previous one has ended. Large blocks would be placed in
/// pairs on the multiprocessors that are free first, and stay there when others become free.
fn can_overlap(before: Option<&StepOperation>, node: &StepOperation) -> bool {
    const LARGE: u32 = 512;
    match (before, node) {
        (Some(StepOperation::Launch(_)), StepOperation::Launch(launch)) => {
            launch.threads < LARGE || launch.grid == [1, 1, 1]
        }
        _ => false,
    }
}

/// Returns the cached graph of the same launches with the fewest changed arguments. While the cache
/// has free entries, graphs in which most launches differ are excluded, because they belong to
/// another session or model.
fn nearest_graph(kept: &[CachedGraph], step: &Step) -> Option<usize> {
    let nodes = step.nodes().len();
    let mut fewest = 1 + if kept.len() < MAX_GRAPHS {
        nodes / 2
    } else {
        nodes
    };
    let mut nearest = None;
    for (at, kept) in kept.iter().enumerate().rev() {
        if !kept.step.has_same_operations(step) {
            continue;
        }
        let changes = step.changed_operations(&kept.step).take(fewest).count();
        if changes < fewest {
            (nearest, fewest) = (Some(at), changes);
        }
    }
    nearest
}

fn parameter_array(step: &Step, launch: &Launch) -> [*mut c_void; 1] {
    [step.arguments(launch).as_ptr().cast_mut().cast()]
}

fn copy_node_params(from: u64, to: u64, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        reserved0: std::ptr::null_mut(),
        srcPitch: bytes,
        srcHeight: 1,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: std::ptr::null_mut(),
        reserved1: std::ptr::null_mut(),
        dstPitch: bytes,
        dstHeight: 1,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
    }
}

fn last_kernel(step: &Step) -> Option<&'static str> {
    step.nodes().iter().rev().find_map(|node| match node {
        StepOperation::Launch(launch) => Some(launch.kernel),
        StepOperation::Copy { .. } => None,
    })
}
