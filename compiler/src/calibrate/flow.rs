//! Forward pass of the calibration text, block by block.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::htz::{Digest, Hasher};
use htc_kernels::cpu::Cpu;
use htc_loader::kv::{KvOptions, KvType};
use htc_loader::{ExecError, Model};

use super::error::{PassError, Stage};
use super::files::{CalibrationFiles, cache_error};
use super::moments::MomentSums;
use super::statistics::LayerSums;
use super::store::{HashedStream, StoredHead, StoredLayer};
use super::windows::WeightedWindows;
use crate::device::{Device, Sequence};
use crate::event::Progress;
use crate::math::{Algebra, FactoriseError};

type StreamReader = HashedStream<BufReader<File>>;

trait Pass {
    fn reweigh(&mut self, factor: f64);

    fn check(&self) -> Result<(), FactoriseError>;

    /// `x [n, width]` is the residual stream from `position` on.
    fn batch(
        &mut self,
        sequence: &mut dyn Sequence,
        position: usize,
        x: &mut [f32],
    ) -> Result<(), ExecError>;
}

impl Pass for LayerSums<'_> {
    fn reweigh(&mut self, factor: f64) {
        LayerSums::reweigh(self, factor);
    }

    fn check(&self) -> Result<(), FactoriseError> {
        LayerSums::check(self)
    }

    fn batch(
        &mut self,
        sequence: &mut dyn Sequence,
        position: usize,
        x: &mut [f32],
    ) -> Result<(), ExecError> {
        self.set_position(position);
        sequence.block(self.layer, x, self)?;
        self.add_stream(x);
        Ok(())
    }
}

struct HeadNorm<'s> {
    cpu: &'s Cpu,
    sums: &'s mut MomentSums,
}

impl Pass for HeadNorm<'_> {
    fn reweigh(&mut self, factor: f64) {
        self.sums.reweigh(factor);
    }

    fn check(&self) -> Result<(), FactoriseError> {
        self.sums.check()
    }

    fn batch(
        &mut self,
        sequence: &mut dyn Sequence,
        _: usize,
        x: &mut [f32],
    ) -> Result<(), ExecError> {
        sequence.head_input(x)?;
        self.sums.add(self.cpu, x);
        Ok(())
    }
}

pub(super) struct ForwardPass<'a> {
    files: &'a CalibrationFiles,
    text: &'a WeightedWindows,
    model: &'a Arc<Model>,
    cpu: Cpu,
    algebra: Option<&'a dyn Algebra>,
    sequence: Box<dyn Sequence + 'a>,
    watch: Progress<'a>,
    x: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> ForwardPass<'a> {
    /// `first` is the stage for errors.
    pub(super) fn new(
        files: &'a CalibrationFiles,
        text: &'a WeightedWindows,
        model: &'a Arc<Model>,
        first: Stage,
        device: &'a dyn Device,
        watch: Progress<'a>,
    ) -> Result<Self, PassError> {
        let context = text.windows().context();
        let sequence = device.sequence(model, context, &KvOptions::new(KvType::F32));
        let path = || model.file().path.clone();
        let sequence = sequence.map_err(|error| match error {
            ExecError::Load(error) => PassError::Load {
                path: path(),
                error: *error,
            },
            error => PassError::Exec {
                path: path(),
                stage: first,
                error,
            },
        })?;
        Ok(ForwardPass {
            files,
            text,
            model,
            cpu: Cpu::new(Arc::clone(device.pool())),
            algebra: device.device_algebra(),
            sequence,
            watch,
            x: Vec::new(),
            bytes: Vec::new(),
        })
    }

    pub(super) fn layer(
        &mut self,
        layer: usize,
        before: Option<&StoredLayer>,
    ) -> Result<StoredLayer, PassError> {
        let (cpu, files) = (self.cpu.clone(), self.files);
        let hyper = self.model.hyper();
        let algebra = self.algebra;
        let failed = |error| self.sums(Stage::Layer(layer), error);
        let extent = files.extent;
        let mut sums = LayerSums::new(&cpu, algebra, hyper, layer, extent).map_err(failed)?;
        let mut source = before.map(|_| self.stream_before(layer)).transpose()?;
        let digest = self.write_stream(layer, &mut source, &mut sums)?;
        let finished = sums.finish();
        finished.map_err(|error| self.sums(Stage::Layer(layer), error))?;
        if !sums.is_finite() {
            return Err(self.not_finite(Stage::Layer(layer)));
        }
        self.check_read(layer, source, before)?;
        files.write_layer(layer, hyper, digest, &sums, self.watch)
    }

    pub(super) fn head(&mut self, before: Option<&StoredLayer>) -> Result<StoredHead, PassError> {
        let (cpu, files) = (self.cpu.clone(), self.files);
        let hyper = self.model.hyper();
        let sums = MomentSums::with_algebra(self.algebra, hyper.width);
        let mut sums = sums.map_err(|error| self.sums(Stage::Head, error))?;
        let mut source = before
            .map(|_| self.stream_before(hyper.layers))
            .transpose()?;
        let mut norm = HeadNorm {
            cpu: &cpu,
            sums: &mut sums,
        };
        self.pass(hyper.layers, &mut source, &mut norm, None)?;
        let settled = sums.fetch();
        settled.map_err(|error| self.sums(Stage::Head, error))?;
        if !sums.fits_float32() {
            return Err(self.not_finite(Stage::Head));
        }
        self.check_read(hyper.layers, source, before)?;
        files.write_head(hyper, &sums, self.watch)
    }

    fn check_read(
        &self,
        layer: usize,
        source: Option<StreamReader>,
        before: Option<&StoredLayer>,
    ) -> Result<(), PassError> {
        match (source, before) {
            (Some(read), Some(before))
                if read.hasher.clone().finish() != before.stream_digest() =>
            {
                Err(PassError::FileChanged(self.files.stream_path(layer - 1)))
            }
            _ => Ok(()),
        }
    }

    fn stream_before(&self, layer: usize) -> Result<StreamReader, PassError> {
        let file = self.files.read_stream(layer - 1);
        let file = file.map_err(|error| cache_error(&self.files.stream_path(layer - 1))(error))?;
        Ok(HashedStream {
            to: BufReader::with_capacity(1 << 20, file),
            hasher: Hasher::default(),
        })
    }

    fn write_stream(
        &mut self,
        layer: usize,
        source: &mut Option<StreamReader>,
        sums: &mut LayerSums,
    ) -> Result<Digest, PassError> {
        let target = self.files.stream_path(layer);
        let mut outcome = Ok(Digest::default());
        let files = self.files;
        let written = files.write_stream(layer, |to| {
            let hasher = Hasher::default();
            let mut hashed = HashedStream { to, hasher };
            let passed = self.pass(layer, source, sums, Some(&mut hashed));
            outcome = passed.map(|()| hashed.hasher.finish());
            match &outcome {
                Ok(_) => Ok(()),
                Err(_) => Err(io::ErrorKind::Other.into()),
            }
        });
        let digest = outcome?;
        written.map_err(cache_error(&target))?;
        Ok(digest)
    }

    fn pass(
        &mut self,
        layer: usize,
        source: &mut Option<StreamReader>,
        through: &mut dyn Pass,
        mut to: Option<&mut dyn Write>,
    ) -> Result<(), PassError> {
        let (width, layers) = (self.model.hyper().width, self.model.hyper().layers);
        let stage = if layer < layers {
            Stage::Layer(layer)
        } else {
            Stage::Head
        };
        let target: PathBuf = self.files.stream_path(layer);
        for (index, window) in self.text.windows().iter().enumerate() {
            if let Some(factor) = self.text.reweigh_factor_at(index) {
                through.reweigh(factor);
            }
            self.sequence.reset();
            let mut position = 0;
            for batch in window.chunks(self.sequence.batch()) {
                self.x.resize(batch.len() * width, 0.0);
                match source {
                    Some(source) => read_numbers(source, &mut self.x, &mut self.bytes)
                        .map_err(cache_error(&target))?,
                    None => {
                        let embedded = self.sequence.embed(batch, &mut self.x);
                        embedded.map_err(|error| self.exec(stage, error))?;
                    }
                }
                let done = through.batch(&mut *self.sequence, position, &mut self.x);
                done.map_err(|error| self.exec(stage, error))?;
                if !all_finite(&self.x) {
                    return Err(self.not_finite(stage));
                }
                if let Some(to) = &mut to {
                    write_numbers(to, &self.x, &mut self.bytes).map_err(cache_error(&target))?;
                }
                position += batch.len();
            }
            let summed = through.check();
            summed.map_err(|error| self.sums(stage, error))?;
            self.watch.step_done("")?;
        }
        Ok(())
    }

    fn exec(&self, stage: Stage, error: ExecError) -> PassError {
        let path = self.model.file().path.clone();
        PassError::Exec { path, stage, error }
    }

    fn sums(&self, stage: Stage, error: FactoriseError) -> PassError {
        let path = self.model.file().path.clone();
        PassError::DeviceSums { path, stage, error }
    }

    fn not_finite(&self, stage: Stage) -> PassError {
        let path = self.model.file().path.clone();
        PassError::NotFinite {
            path,
            place: stage.to_string(),
            quantity: "an activation",
        }
    }
}

/// No early exit, so that the compiler vectorises the loop.
fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(true, |all, x| all & x.is_finite())
}

/// `bytes` is scratch space.
fn read_numbers(from: &mut impl Read, out: &mut [f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * out.len(), 0);
    from.read_exact(bytes)?;
    for (number, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = f32::from_le_bytes(*bytes);
    }
    Ok(())
}

fn write_numbers(to: &mut impl Write, x: &[f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * x.len(), 0);
    for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *bytes = number.to_le_bytes();
    }
    to.write_all(bytes)
}
