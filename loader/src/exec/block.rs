//! Execution of one block, step by step.

use htc_formats::model::spec::{Branch, Heads};
use htc_formats::model::{InputGroup, Register};
use htc_kernels::cpu::Attention;

use super::project::{Output, project};
use super::tap::{Observer, Point, Tap};
use super::{AdaptedLayer, Buffers, Part, Runner};
use crate::backend::{Backend, HeadShape, SequenceRows};
use crate::dial::ActiveSetting;
use crate::error::Result;
use crate::kv::{Kv, Queries};
use crate::linear::{Linear, Placed};
use crate::model::{AttentionStep, Project, Projection, Step};

/// The state that the steps of a block share.
pub(super) struct Execution<'a, 'p, B: Backend> {
    pub backend: &'a mut B,
    parts: &'a mut [Part<'p, B>],
    pub buffers: &'a mut Buffers<B>,
    /// Index of the block.
    index: usize,
    /// Rows of the batch.
    pub n: usize,
    /// Width of the residual stream.
    pub width: usize,
    epsilon: f32,
    pub setting: ActiveSetting,
    /// Replacement of the Q, K and V projections and their basis.
    adapted: Option<&'a AdaptedLayer<B>>,
    pub look: Observer<'a>,
}

impl<B: Backend> Runner<B> {
    /// Executes block `index` on the `n` rows of the batch, which follow the positions that their
    /// sequences have read. The batch's rotations have to be set.
    pub(super) fn block(
        &mut self,
        index: usize,
        n: usize,
        parts: &mut [Part<'_, B>],
        tap: &mut dyn Tap,
    ) -> Result<()> {
        let hyper = self.model.hyper();
        let mut execution = Execution {
            backend: &mut self.backend,
            parts,
            buffers: &mut self.buffers,
            index,
            n,
            width: hyper.width,
            epsilon: hyper.norm_epsilon,
            setting: self.setting,
            adapted: self.adapted.as_deref().and_then(|a| a.layer(index)),
            look: Observer {
                tap,
                layer: index,
                n,
                host_buffer: &mut self.host_buffer,
            },
        };
        let steps = &self.model.blocks[index].steps;
        steps.iter().try_for_each(|step| execution.step(step))
    }
}

impl<B: Backend> Execution<'_, '_, B> {
    fn step(&mut self, step: &Step<B>) -> Result<()> {
        match step {
            Step::Norm {
                weight,
                input,
                output,
            } => self.norm(weight, *input, *output),
            Step::Project(step) => self.project(step),
            Step::HeadNorm { weight, heads } => {
                let rows = self.n * heads.count;
                let x = &mut self.buffers[heads.register];
                let epsilon = self.epsilon;
                self.backend.rms_norm_in_place(rows, x, weight, epsilon)
            }
            Step::Rope {
                heads,
                pairs,
                local,
            } => heads.iter().try_for_each(|heads| {
                let shape = self.shape(*heads);
                let (x, rotation) = self.buffers.with_rotation(heads.register, *local);
                self.backend.rope(*pairs, rotation, shape, x)
            }),
            Step::Attention(step) => self.attention(step),
            Step::Activate { activation, width } => {
                let [gate, up] = self.buffers.pair(Register::Gate, Register::Up);
                let numbers = self.n * width;
                self.backend.activate(*activation, numbers, gate, up)
            }
            Step::Experts(step) => self.experts(step),
            Step::Add { branch } => {
                let point = match branch {
                    Branch::Attention => Point::AttentionBranch,
                    Branch::Ffn => Point::FfnBranch,
                };
                self.observe(point, self.width, Register::Delta)?;
                let [x, delta] = self.buffers.pair(Register::Residual, Register::Delta);
                self.backend.add(self.n * self.width, x, delta)
            }
        }
    }

    fn shape(&self, heads: Heads) -> HeadShape {
        HeadShape {
            rows: self.n,
            heads: heads.count,
            size: heads.size,
        }
    }

    /// Shows a register to the tap.
    pub(super) fn observe(&mut self, point: Point, width: usize, register: Register) -> Result<()> {
        let x = &self.buffers[register];
        self.look.at(self.backend, point, width, x)
    }

    fn norm(&mut self, weight: &B::Vector, input: Register, output: Register) -> Result<()> {
        let (n, epsilon) = (self.n, self.epsilon);
        if input == output {
            let x = &mut self.buffers[input];
            return self.backend.rms_norm_in_place(n, x, weight, epsilon);
        }
        let [x, out] = self.buffers.pair(input, output);
        self.backend.rms_norm(n, x, weight, epsilon, out)
    }

    fn project(&mut self, step: &Project<B>) -> Result<()> {
        let first = step.projections.first();
        let cols = first.map_or(0, |projection| projection.cols);
        self.observe(Point::Input(step.point), cols, step.input)?;
        let adapted = self.adapted.filter(|_| step.group == Some(InputGroup::Qkv));
        // Adapted projections are always used at their full rank.
        let (basis, setting) = match adapted {
            Some(adapted) => (Some(&adapted.basis), ActiveSetting::FULL),
            None => (step.basis.as_ref(), self.setting),
        };
        let linears = step.projections.iter().map(|projection| &projection.linear);
        let linears: Vec<&Linear<B::Weight>> = match adapted {
            Some(adapted) => adapted.qkv.iter().collect(),
            None => linears.collect(),
        };
        debug_assert_eq!(linears.len(), step.projections.len());
        let maps = linears.into_iter().zip(&step.projections);
        self.apply(self.n, step.input, maps, basis, setting)
    }

    /// Applies linear maps with the biases and outputs of `maps` to the `n` rows of a register.
    pub(super) fn apply<'m>(
        &mut self,
        n: usize,
        input: Register,
        maps: impl Iterator<Item = (&'m Linear<B::Weight>, &'m Projection<B>)> + Clone,
        basis: Option<&Placed<B::Weight>>,
        setting: ActiveSetting,
    ) -> Result<()>
    where
        B: 'm,
    {
        // The outputs leave their registers while the input is borrowed.
        let registers = maps.clone().map(|(_, projection)| projection.output);
        let mut taken: Vec<B::Buffer> = registers
            .clone()
            .map(|register| std::mem::take(&mut self.buffers[register]))
            .collect();
        let outputs = maps.clone().zip(&mut taken);
        let outputs = outputs
            .map(|((linear, _), y)| Output { linear, y })
            .collect();
        let (x, extra) = self.buffers.with_extra(input);
        let projected = project(self.backend, n, x, basis, setting, outputs, extra);
        for (register, buffer) in registers.zip(taken) {
            self.buffers[register] = buffer;
        }
        projected?;
        for (_, projection) in maps {
            if let Some(bias) = &projection.bias {
                let y = &mut self.buffers[projection.output];
                self.backend.add_bias(n, y, bias)?;
            }
        }
        Ok(())
    }

    fn attention(&mut self, step: &AttentionStep) -> Result<()> {
        let AttentionStep { q, kv, attention } = step;
        let (queries, keys) = (self.shape(*q), self.shape(*kv));
        self.observe(Point::Queries, q.width(), Register::Query)?;
        self.observe(Point::Keys, kv.width(), Register::Key)?;
        self.observe(Point::Values, kv.width(), Register::Value)?;
        // Sequences of a batch store keys and values alike.
        let rotates = self.parts.iter().any(|part| part.sequence.is_rotated());
        if rotates {
            for (shape, register) in [
                (queries, Register::Query),
                (keys, Register::Key),
                (keys, Register::Value),
            ] {
                self.backend.hadamard(shape, &mut self.buffers[register])?;
            }
        }
        self.attend(queries, attention)?;
        if rotates {
            let attended = &mut self.buffers[Register::Attended];
            self.backend.hadamard(queries, attended)?;
        }
        Ok(())
    }

    /// Appends keys and values to the cache of each sequence, attends to it, and lets the cache's
    /// policy look at the queries.
    fn attend(&mut self, heads: HeadShape, attention: &Attention) -> Result<()> {
        let index = self.index;
        let [k, v] = self.buffers.pair(Register::Key, Register::Value);
        for Part { sequence, rows } in &mut *self.parts {
            let kv = &mut sequence.kv;
            kv.append(self.backend, index, rows.clone(), k, v)?;
        }
        let [q, out] = self.buffers.pair(Register::Query, Register::Attended);
        let batch = self.parts.iter();
        let batch: Vec<_> = batch
            .map(|part| SequenceRows {
                rows: part.rows.clone(),
                kv: &part.sequence.kv,
            })
            .collect();
        self.backend
            .attention(heads, q, &batch, index, attention, out)?;
        for Part { sequence, rows } in &mut *self.parts {
            let (rows, kv) = (rows.clone(), &sequence.kv);
            let rows = SequenceRows { rows, kv };
            let (policy, backend) = (&mut sequence.policy, &mut *self.backend);
            let queries = Queries {
                shape: heads,
                numbers: &*q,
            };
            policy.record_importance(backend, index, queries, rows, attention)?;
        }
        Ok(())
    }
}
