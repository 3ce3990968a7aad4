//! A step as one graph: made once, then replayed as it is, or with other arguments of those launches that have others.

use std::ffi::c_void;

use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUgraph, CUgraphDependencyType, CUgraphEdgeData,
    CUgraphExec, CUgraphNode, CUmemorytype,
};

use super::api;
use super::{Shared, State};
use crate::cuda::device::DeviceError;
use crate::cuda::step::{Launch, Node, Step};

/// Graphs that are kept: what sessions alternate between, as steps with and without logits, and a draft's.
const KEPT: usize = 8;

/// Steps without a graph behind which none is asked for again.
const REFUSALS: u32 = 3;

/// A step that the driver has as a graph.
struct Kept {
    step: Step,
    /// What runs was made of it, and is changed by the names of its nodes.
    template: CUgraph,
    /// A node for each launch and copy of the step, in order.
    nodes: Vec<CUgraphNode>,
    /// What runs; null until it is made.
    graph: CUgraphExec,
}

impl Kept {
    /// Gives it back; the driver keeps what runs until it has ended.
    ///
    /// # Safety
    /// The context is current.
    unsafe fn free(self) {
        // SAFETY: both are of the driver, and nobody else has them.
        unsafe {
            if !self.graph.is_null() {
                let _ = sys::cuGraphExecDestroy(self.graph);
            }
            let _ = sys::cuGraphDestroy(self.template);
        }
    }
}

/// Graphs of the last steps, the last of them at the end.
#[derive(Default)]
pub(super) struct Graphs {
    kept: Vec<Kept>,
    /// Steps that the driver could make none of and could launch.
    refused: u32,
    /// Why, at last.
    why: Option<DeviceError>,
}

impl Graphs {
    /// Why the driver is not asked for graphs any more, if it is not.
    pub(super) fn given_up(&self) -> Option<&DeviceError> {
        let given_up = self.refused >= REFUSALS;
        self.why.as_ref().filter(|_| given_up)
    }

    /// Gives all of them back.
    ///
    /// # Safety
    /// The context is current, and none of them runs.
    pub(super) unsafe fn free(&mut self) {
        for kept in self.kept.drain(..) {
            // SAFETY: as above.
            unsafe { kept.free() };
        }
    }
}

enum How {
    Replayed,
    /// With so many launches and copies that have other arguments.
    Updated(u64),
    Made,
}

impl Shared {
    /// Launches what was kept as one; launch by launch where the driver makes no graph of it, which tells what is at
    /// fault where one of the launches is. The context is current.
    pub(super) fn as_one(&self, state: &mut State) -> Result<(), DeviceError> {
        let asked = state.graphs.refused < REFUSALS;
        let made = asked.then(|| self.graph(state));
        if let Some(Ok(how)) = made {
            let counts = &mut state.counts;
            match how {
                How::Replayed => counts.replayed += 1,
                How::Updated(changed) => {
                    counts.updated += 1;
                    counts.changed += changed;
                }
                How::Made => counts.made += 1,
            }
            let graph = state.graphs.kept.last().map(|kept| kept.graph);
            let graph = graph.unwrap_or(std::ptr::null_mut());
            state.last = last_kernel(&state.record.step).unwrap_or(state.last);
            // SAFETY: the context is current and the graph was made in it.
            let code = unsafe { sys::cuGraphLaunch(graph, self.stream) };
            return self.explain(state.last, code, "launching a step");
        }
        state.counts.plain += 1;
        let launched = self.plainly(state);
        if let (Some(Err(why)), Ok(())) = (made, &launched) {
            state.graphs.refused += 1;
            state.graphs.why = Some(why);
        }
        launched
    }

    /// Puts the graph of the step that was kept behind the others.
    fn graph(&self, state: &mut State) -> Result<How, DeviceError> {
        let step = std::mem::take(&mut state.record.step);
        let how = self.graph_of(state, &step);
        state.record.step = step;
        how
    }

    fn graph_of(&self, state: &mut State, step: &Step) -> Result<How, DeviceError> {
        let kept = &mut state.graphs.kept;
        if let Some(at) = kept.iter().rposition(|kept| kept.step == *step) {
            let same = kept.remove(at);
            kept.push(same);
            return Ok(How::Replayed);
        }
        if let Some(at) = nearest(kept, step) {
            let mut like = kept.remove(at);
            match self.change(state, &mut like, step) {
                Ok(changed) => {
                    state.graphs.kept.push(like);
                    return Ok(How::Updated(changed));
                }
                // Some of it may be changed, so it is of no step any more.
                // SAFETY: the context is current.
                Err(_) => unsafe { like.free() },
            }
        }
        let overlap = state.overlap;
        let made = match self.make(state, step) {
            // Where it fails without, too, that was not it.
            Err(_) if overlap && !state.overlap => {
                let again = self.make(state, step);
                again.inspect_err(|_| state.overlap = true)?
            }
            made => made?,
        };
        let kept = &mut state.graphs.kept;
        if kept.len() == KEPT {
            // SAFETY: the context is current.
            unsafe { kept.remove(0).free() };
        }
        kept.push(made);
        Ok(How::Made)
    }

    /// A graph of a step, whose launches and copies follow one another.
    fn make(&self, state: &mut State, step: &Step) -> Result<Kept, DeviceError> {
        let mut template: CUgraph = std::ptr::null_mut();
        // SAFETY: the context is current.
        let code = unsafe { sys::cuGraphCreate(&mut template, 0) };
        api::check(code, "beginning a graph")?;
        let mut made = Kept {
            step: step.clone(),
            template,
            nodes: Vec::with_capacity(step.nodes().len()),
            graph: std::ptr::null_mut(),
        };
        match self.fill(state, &mut made) {
            Ok(()) => Ok(made),
            Err(error) => {
                // SAFETY: the context is current.
                unsafe { made.free() };
                Err(error)
            }
        }
    }

    fn fill(&self, state: &mut State, made: &mut Kept) -> Result<(), DeviceError> {
        let overlap = state.overlap && state.modules.overlap;
        let mut early = false;
        let nodes = made.step.nodes();
        for (at, node) in nodes.iter().enumerate() {
            let before = made.nodes.last();
            let of_before = at.checked_sub(1).and_then(|at| nodes.get(at));
            let overlaps = overlap && may_overlap(of_before, node);
            let (behind, count) = match before {
                Some(node) if !overlaps => (std::ptr::from_ref(node), 1),
                _ => (std::ptr::null(), 0),
            };
            let mut new: CUgraphNode = std::ptr::null_mut();
            let code = match node {
                Node::Launch(launch) => {
                    let mut arguments = arguments(&made.step, launch);
                    let launch = self.node_of_launch(state, launch, &mut arguments)?;
                    // SAFETY: the graph is being made, the node before is its; the driver copies the arguments, as many
                    // bytes as the kernel declares, before it returns.
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
                &Node::Copy { from, to, bytes } => {
                    let copy = node_of_copy(from, to, bytes);
                    // SAFETY: as above; the spans of both were checked when the copy was kept.
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
            api::check(code, "adding to a graph")?;
            if let Some(&before) = before.filter(|_| overlaps) {
                early = true;
                let ordered = let_begin_early(made.template, before, new);
                ordered.inspect_err(|_| state.overlap = false)?;
            }
            made.nodes.push(new);
        }
        // SAFETY: the context is current and the graph is whole.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut made.graph, made.template, 0) };
        // It may be what begins early that the driver does not make.
        let whole = api::check(code, "making a graph");
        whole.inspect_err(|_| state.overlap &= !early)
    }

    /// Changes what is not as it was in a graph of the same launches: how many of them.
    fn change(&self, state: &mut State, like: &mut Kept, step: &Step) -> Result<u64, DeviceError> {
        let mut changed = 0;
        for at in step.changed_from(&like.step) {
            let (Some(node), Some(&name)) = (step.nodes().get(at), like.nodes.get(at)) else {
                continue;
            };
            let code = match node {
                Node::Launch(launch) => {
                    let mut arguments = arguments(step, launch);
                    let launch = self.node_of_launch(state, launch, &mut arguments)?;
                    // SAFETY: what runs was made of the graph that the node is of, and one that runs ends as it began;
                    // arguments as when it was made.
                    unsafe { sys::cuGraphExecKernelNodeSetParams_v2(like.graph, name, &launch) }
                }
                &Node::Copy { from, to, bytes } => {
                    let copy = node_of_copy(from, to, bytes);
                    // SAFETY: as above; the spans of both were checked when the copy was kept.
                    unsafe {
                        sys::cuGraphExecMemcpyNodeSetParams(like.graph, name, &copy, self.context)
                    }
                }
            };
            api::check(code, "changing a graph")?;
            changed += 1;
        }
        like.step.clone_from(step);
        Ok(changed)
    }

    /// A launch as a graph has it, whose arguments begin where `arguments` says.
    fn node_of_launch(
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

/// Orders a launch behind another, so that its blocks begin when all of that one have, and wait for its end themselves.
fn let_begin_early(
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
    // SAFETY: the function was looked for; both nodes are launches of the graph, which is being made.
    let code = unsafe { sys::cuGraphAddDependencies_v2(template, &before, &new, &edge, 1) };
    api::check(code, "ordering a graph")
}

/// Whether a launch may begin before the one in front of it has ended. Large blocks of a grid would be put two and two on those
/// multiprocessors that are free first, and stay there when others are. What a graph was made with stays, whatever grids its launches
/// are given later.
fn may_overlap(before: Option<&Node>, node: &Node) -> bool {
    const LARGE: u32 = 512;
    match (before, node) {
        (Some(Node::Launch(_)), Node::Launch(launch)) => {
            launch.threads < LARGE || launch.grid == [1, 1, 1]
        }
        _ => false,
    }
}

/// The graph of the same launches with the fewest other arguments; while there is room for another, none of those that have other
/// ones in most launches: of two sessions, or of a model and its draft, steps are alike but for nearly everything.
fn nearest(kept: &[Kept], step: &Step) -> Option<usize> {
    let nodes = step.nodes().len();
    let mut fewest = 1 + match kept.len() < KEPT {
        true => nodes / 2,
        false => nodes,
    };
    let mut nearest = None;
    for (at, kept) in kept.iter().enumerate().rev() {
        if !kept.step.is_like(step) {
            continue;
        }
        let changes = step.changed_from(&kept.step).take(fewest).count();
        if changes < fewest {
            (nearest, fewest) = (Some(at), changes);
        }
    }
    nearest
}

/// Where the one parameter of a launch is, a structure.
fn arguments(step: &Step, launch: &Launch) -> [*mut c_void; 1] {
    [step.arguments(launch).as_ptr().cast_mut().cast()]
}

/// A copy as a graph has it: a box of one row.
fn node_of_copy(from: u64, to: u64, bytes: usize) -> CUDA_MEMCPY3D {
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
        Node::Launch(launch) => Some(launch.kernel),
        Node::Copy { .. } => None,
    })
}
