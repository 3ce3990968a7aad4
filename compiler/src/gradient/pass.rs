//! Forward and backward pass of a text, block by block.

use std::fmt;
use std::ops::Range;

use htc_formats::map::MappedFile;
use htc_formats::model::{MatrixId, ModelSpec, Register, Role};
use htc_kernels::cpu::Cpu;
use htc_loader::Model;

use super::files::{Files, Name, Stage};
use super::head::{Head, HeadWork};
use super::shares::{ExpertShares, LayerOutput};
use super::store::{write_means, write_sums};
use super::sums::OutputSums;
use super::values::{ValueGradients, Values};
use super::weights::{Blocks, Stored, required};
use crate::calibrate::PassError;
use crate::calibrate::store::CONTENT_OFFSET;
use crate::calibrate::windows::WeightedWindows;
use crate::event::Progress;
use crate::system::random::Rng;

/// Seed of the drawn tokens.
const SEED: u64 = 0x6772_6164_6965_6e74;

/// Positions per block call, if their activations do not exceed [`ACTIVATIONS`]: enough tasks for
/// many threads.
const POSITIONS: usize = 2048;

/// Largest number of activations of one kind, unless a single window has more.
const ACTIVATIONS: usize = 1 << 24;

pub(super) fn windows_at_a_time(spec: &ModelSpec, context: usize) -> usize {
    let widths = Register::ALL.map(|register| spec.register_width(register));
    let widest = widths.into_iter().max().unwrap_or(0).max(1);
    let positions = POSITIONS.min(ACTIVATIONS / widest);
    (positions / context.max(1)).max(1)
}

struct Group {
    windows: Range<usize>,
    /// Factor of the previous sums.
    factor: Option<f64>,
}

pub(super) struct Pass<'a> {
    files: &'a Files<'a>,
    text: &'a WeightedWindows,
    blocks: Blocks<'a, f32>,
    cpu: Cpu,
    watch: Progress<'a>,
    groups: Vec<Group>,
    values: Values<f32>,
    gradients: ValueGradients<f32>,
    /// Residual stream and gradients of a group.
    x: Vec<f32>,
    d: Vec<f32>,
}

enum Source<'a> {
    Tokens(Stored<'a>),
    File(MappedFile),
}

impl<'a> Pass<'a> {
    pub fn new(
        files: &'a Files<'a>,
        text: &'a WeightedWindows,
        model: &'a Model,
        cpu: Cpu,
        watch: Progress<'a>,
    ) -> Self {
        let windows = text.windows();
        let most = windows_at_a_time(model.spec(), windows.context());
        let mut groups: Vec<Group> = Vec::new();
        for window in 0..windows.count() {
            let factor = text.reweigh_factor_at(window);
            match groups.last_mut() {
                Some(last) if factor.is_none() && last.windows.len() < most => {
                    last.windows.end += 1;
                }
                _ => groups.push(Group {
                    windows: window..window + 1,
                    factor,
                }),
            }
        }
        Pass {
            files,
            text,
            blocks: Blocks::new(model, windows.context()),
            cpu,
            watch,
            groups,
            values: Values::default(),
            gradients: ValueGradients::default(),
            x: Vec::new(),
            d: Vec::new(),
        }
    }

    /// Executes a step; its results are files.
    pub fn step(&mut self, step: Stage) -> Result<(), PassError> {
        match step {
            Stage::Forward(layer) => self.forward(layer),
            Stage::Head => self.head(),
            Stage::Back(layer) => self.back(layer),
            Stage::Embedding => self.embedding(),
            Stage::Done => Ok(()),
        }
    }

    fn positions(&self, windows: &Range<usize>) -> Range<usize> {
        let context = self.text.windows().context();
        windows.start * context..windows.end * context
    }

    fn source(&self, layer: usize) -> Result<Source<'a>, PassError> {
        match layer {
            0 => {
                let role = MatrixId::Embedding.weight();
                Ok(Source::Tokens(Stored::new(self.blocks.model.file(), role)?))
            }
            _ => {
                let file = self.files.again(Name::Stream(layer), self.watch)?;
                Ok(Source::File(file))
            }
        }
    }

    /// Reads the residual stream of a group into `x`.
    fn read(&mut self, source: &Source, group: usize) -> Result<(), PassError> {
        let windows = self.groups[group].windows.clone();
        let (width, positions) = (self.blocks.model.hyper().width, self.positions(&windows));
        match source {
            Source::File(file) => read_numbers(file, &positions, width, &mut self.x),
            Source::Tokens(embedding) => {
                self.x.resize(positions.len() * width, 0.0);
                embedding.look_up(self.text.windows().tokens_at(positions), &mut self.x)?;
            }
        }
        Ok(())
    }

    fn forward(&mut self, layer: usize) -> Result<(), PassError> {
        let (cpu, files, model) = (self.cpu.clone(), self.files, self.blocks.model);
        let block = self.blocks.load(layer, cpu.pool())?;
        let source = self.source(layer)?;
        files.write(Name::Stream(layer + 1), |to| {
            for group in 0..self.groups.len() {
                self.read(&source, group)?;
                let out = block.forward(cpu.pool(), &self.x, &mut self.values);
                check_finite(model, out, format_args!("layer {layer}"))?;
                to.numbers(out)?;
                self.watch.check_cancelled()?;
            }
            Ok(())
        })
    }

    fn head(&mut self) -> Result<(), PassError> {
        let (cpu, files, model) = (self.cpu.clone(), self.files, self.blocks.model);
        let hyper = model.hyper();
        let (matrix, norm) = (
            Stored::head(model.file())?,
            required(model.file(), Role::OutputNorm)?,
        );
        let head = Head::new(model, &norm, &matrix);
        let source = self.source(hyper.layers)?;
        let mut diagonal = vec![0.0; hyper.vocabulary];
        let (mut weight, mut work) = (0.0, HeadWork::default());
        let batch = super::head::batch(hyper.vocabulary);
        files.write(Name::Gradient(hyper.layers), |to| {
            for group in 0..self.groups.len() {
                if let Some(factor) = self.groups[group].factor {
                    weight *= factor;
                    diagonal.iter_mut().for_each(|sum| *sum *= factor);
                }
                self.read(&source, group)?;
                let mut position = self.positions(&self.groups[group].windows).start;
                for x in self.x.chunks(batch * hyper.width) {
                    let n = x.len() / hyper.width;
                    let draws: Vec<f64> = (position..position + n).map(draw).collect();
                    self.d.resize(x.len(), 0.0);
                    let d = &mut self.d[..];
                    head.back(cpu.pool(), x, &draws, &mut work, &mut diagonal, d)?;
                    check_finite(model, &self.d, "head")?;
                    to.numbers(&self.d)?;
                    position += n;
                    weight += n as f64;
                    self.watch.check_cancelled()?;
                }
            }
            Ok(())
        })?;
        files.write(Name::Outputs(hyper.layers), |to| {
            let means = diagonal.iter().map(|sum| sum / weight);
            to.write(|to| write_means(to, means))
        })
    }

    fn back(&mut self, layer: usize) -> Result<(), PassError> {
        let (cpu, files, model) = (self.cpu.clone(), self.files, self.blocks.model);
        let block = self.blocks.load(layer, cpu.pool())?;
        let source = self.source(layer)?;
        let behind = files.again(Name::Gradient(layer + 1), self.watch)?;
        let rows = block.projections().map(|p| p.matrix.rows);
        let mut sums: Vec<OutputSums> = rows.map(OutputSums::new).collect();
        let mut weight = 0.0;
        files.write(Name::Gradient(layer), |to| {
            for group in 0..self.groups.len() {
                if let Some(factor) = self.groups[group].factor {
                    sums.iter_mut().for_each(|sums| sums.reweigh(factor));
                    weight *= factor;
                }
                self.read(&source, group)?;
                let positions = self.positions(&self.groups[group].windows);
                weight += positions.len() as f64;
                read_numbers(&behind, &positions, model.hyper().width, &mut self.d);
                block.forward(cpu.pool(), &self.x, &mut self.values);
                let (values, gradients) = (&self.values, &mut self.gradients);
                let d = block.backward(cpu.pool(), &self.d, values, gradients);
                check_finite(model, d, format_args!("layer {layer}"))?;
                to.numbers(d)?;
                for (projection, sums) in block.projections().zip(&mut sums) {
                    sums.add(&cpu, self.gradients.get(projection.y));
                }
                self.watch.check_cancelled()?;
            }
            Ok(())
        })?;
        let are_finite = sums.iter().all(OutputSums::is_finite);
        require_finite(model, are_finite, format_args!("layer {layer}"))?;
        let outputs: Vec<LayerOutput> = block
            .projections()
            .zip(sums)
            .map(|(projection, sums)| LayerOutput {
                kind: projection.kind,
                sums,
            })
            .collect();
        let shares = ExpertShares::new(&outputs, weight);
        files.write(Name::Outputs(layer), |to| {
            to.write(|to| {
                let mut outputs = outputs.iter();
                outputs.try_for_each(|output| shares.write(to, output))
            })
        })
    }

    fn embedding(&mut self) -> Result<(), PassError> {
        let (files, hyper) = (self.files, self.blocks.model.hyper());
        let scale = hyper.forward.embedding_scale.unwrap_or(1.0);
        let behind = files.again(Name::Gradient(0), self.watch)?;
        let mut sums = OutputSums::new(hyper.width);
        let (mut shares, mut weight) = (vec![0.0; hyper.vocabulary], 0.0);
        for group in &self.groups {
            if let Some(factor) = group.factor {
                weight *= factor;
                shares.iter_mut().for_each(|sum| *sum *= factor);
                sums.reweigh(factor);
            }
            let positions = self.positions(&group.windows);
            read_numbers(&behind, &positions, hyper.width, &mut self.d);
            self.d.iter_mut().for_each(|d| *d *= scale);
            sums.add(&self.cpu, &self.d);
            weight += positions.len() as f64;
            for &token in self.text.windows().tokens_at(positions) {
                shares[token as usize] += 1.0;
            }
        }
        require_finite(self.blocks.model, sums.is_finite(), "embedding")?;
        files.write(Name::Embedding, |to| {
            to.write(|to| write_sums(to, &sums))?;
            to.write(|to| write_means(to, shares.iter().map(|sum| sum / weight)))
        })
    }
}

/// Checks that numbers in a pass of a model are finite. `place` names where they are.
pub(super) fn check_finite(
    model: &Model,
    numbers: &[f32],
    place: impl fmt::Display,
) -> Result<(), PassError> {
    // No early exit, so that it vectorises.
    let are_finite = numbers.iter().fold(true, |all, x| all & x.is_finite());
    require_finite(model, are_finite, place)
}

/// Returns the error of numbers that are not finite unless they are.
pub(super) fn require_finite(
    model: &Model,
    are_finite: bool,
    place: impl fmt::Display,
) -> Result<(), PassError> {
    if are_finite {
        return Ok(());
    }
    Err(PassError::NotFinite {
        path: model.file().path.clone(),
        place: place.to_string(),
        quantity: "a gradient",
    })
}

/// Returns the random number in [0, 1) that chooses the token at a position.
pub(super) fn draw(position: usize) -> f64 {
    Rng(SEED.wrapping_add(position as u64)).unit()
}

fn read_numbers(file: &MappedFile, positions: &Range<usize>, width: usize, out: &mut Vec<f32>) {
    let [start, end] = [positions.start, positions.end].map(|p| CONTENT_OFFSET + 4 * p * width);
    let numbers = file[start..end].as_chunks::<4>().0.iter();
    out.clear();
    out.extend(numbers.map(|bytes| f32::from_le_bytes(*bytes)));
}
