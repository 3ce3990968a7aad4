//! The text on its way through the model, one block after the other.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use htc_formats::htz::{Digest, Hasher};
use htc_kernels::cpu::Cpu;
use htc_loader::kv::KvType;
use htc_loader::{ExecError, Model, Session};

use super::CalibrateError;
use super::files::{Files, failed};
use super::statistics::LayerSums;
use super::store::{Hashed, StoredLayer};
use super::windows::Mixture;
use crate::event::{Event, Watch};

/// The residual stream of the layer before, as it is read.
type Source = Hashed<BufReader<File>>;

/// All windows on their way through the model.
pub(super) struct Flow<'a> {
    files: &'a Files,
    text: &'a Mixture,
    model: &'a Arc<Model>,
    cpu: Cpu,
    session: Session,
    watch: Watch<'a>,
    /// The activations of a batch, and working memory.
    x: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'a> Flow<'a> {
    /// Before the layer `first`.
    pub(super) fn new(
        files: &'a Files,
        text: &'a Mixture,
        model: &'a Arc<Model>,
        first: usize,
        threads: usize,
        watch: Watch<'a>,
    ) -> Result<Self, CalibrateError> {
        let cpu = Cpu::with_threads(threads)?;
        let context = text.windows().context();
        let session =
            Session::with_kv_type(Arc::clone(model), cpu.clone().into(), context, KvType::F32);
        let session = session.map_err(|error| CalibrateError::Exec {
            path: model.file().path.clone(),
            layer: first,
            error,
        })?;
        Ok(Flow {
            files,
            text,
            model,
            cpu,
            session,
            watch,
            x: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// All windows through one layer, from the stream behind the layer `before` it: the layer's
    /// statistics, as they lie in the cache then.
    pub(super) fn layer(
        &mut self,
        layer: usize,
        before: Option<&StoredLayer>,
    ) -> Result<StoredLayer, CalibrateError> {
        let (cpu, files) = (self.cpu.clone(), self.files);
        let hyper = self.model.hyper();
        let mut sums = LayerSums::new(&cpu, hyper, files.extent());
        let mut source = before.map(|_| self.stream_before(layer)).transpose()?;
        // The stream behind the last layer is of no use.
        let digest = if layer + 1 < hyper.layers {
            self.write_stream(layer, &mut source, &mut sums)?
        } else {
            self.pass(layer, &mut source, &mut sums, None)?;
            Hasher::default().finish()
        };
        sums.finish();
        if !sums.is_finite() {
            return Err(self.not_finite(layer));
        }
        if let (Some(read), Some(before)) = (source, before)
            && read.hasher.finish() != before.stream_digest()
        {
            return Err(CalibrateError::Stream(files.stream(layer - 1)));
        }
        files.store(layer, hyper, digest, &sums, self.watch)
    }

    fn stream_before(&self, layer: usize) -> Result<Source, CalibrateError> {
        let file = self.files.read_stream(layer - 1);
        let file = file.map_err(|error| failed(&self.files.stream(layer - 1))(error))?;
        Ok(Hashed {
            to: BufReader::with_capacity(1 << 20, file),
            hasher: Hasher::default(),
        })
    }

    /// Writes the stream behind a layer; gives its digest.
    fn write_stream(
        &mut self,
        layer: usize,
        source: &mut Option<Source>,
        sums: &mut LayerSums,
    ) -> Result<Digest, CalibrateError> {
        let target = self.files.stream(layer);
        let mut outcome = Ok(Digest::default());
        let files = self.files;
        let written = files.write_stream(layer, |to| {
            let hasher = Hasher::default();
            let mut hashed = Hashed { to, hasher };
            let passed = self.pass(layer, source, sums, Some(&mut hashed));
            outcome = passed.map(|()| hashed.hasher.finish());
            // What is half written is not to take its name; the reason is in `outcome`.
            match &outcome {
                Ok(_) => Ok(()),
                Err(_) => Err(io::ErrorKind::Other.into()),
            }
        });
        let digest = outcome?;
        written.map_err(failed(&target))?;
        Ok(digest)
    }

    /// All windows through one layer.
    fn pass(
        &mut self,
        layer: usize,
        source: &mut Option<Source>,
        sums: &mut LayerSums,
        mut to: Option<&mut dyn Write>,
    ) -> Result<(), CalibrateError> {
        let width = self.model.hyper().width;
        let target: PathBuf = self.files.stream(layer);
        for (index, window) in self.text.windows().iter().enumerate() {
            if let Some(factor) = self.text.reweighed_at(index) {
                sums.reweigh(factor);
            }
            self.session.reset();
            let mut position = 0;
            for batch in window.chunks(self.session.batch()) {
                self.x.resize(batch.len() * width, 0.0);
                match source {
                    Some(source) => read_numbers(source, &mut self.x, &mut self.bytes)
                        .map_err(failed(&target))?,
                    None => {
                        let embedded = self.session.embed(batch, &mut self.x);
                        embedded.map_err(|error| self.exec(layer, error))?;
                    }
                }
                sums.begin(position);
                let done = self.session.block(layer, &mut self.x, sums);
                done.map_err(|error| self.exec(layer, error))?;
                if !all_finite(&self.x) {
                    return Err(self.not_finite(layer));
                }
                sums.behind(&self.x);
                if let Some(to) = &mut to {
                    write_numbers(to, &self.x, &mut self.bytes).map_err(failed(&target))?;
                }
                position += batch.len();
            }
            self.watch.tell(Event::Window);
            self.watch.check()?;
        }
        Ok(())
    }

    fn exec(&self, layer: usize, error: ExecError) -> CalibrateError {
        let path = self.model.file().path.clone();
        CalibrateError::Exec { path, layer, error }
    }

    fn not_finite(&self, layer: usize) -> CalibrateError {
        let path = self.model.file().path.clone();
        CalibrateError::NotFinite { path, layer }
    }
}

/// Whether no number is infinite or none at all. Without a way out, so that the compiler makes
/// vectors of it.
fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(true, |all, x| all & x.is_finite())
}

/// `bytes` is working memory.
fn read_numbers(from: &mut impl Read, out: &mut [f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * out.len(), 0);
    from.read_exact(bytes)?;
    for (number, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = f32::from_le_bytes(*bytes);
    }
    Ok(())
}

/// `bytes` is working memory.
fn write_numbers(to: &mut impl Write, x: &[f32], bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.resize(4 * x.len(), 0);
    for (bytes, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *bytes = number.to_le_bytes();
    }
    to.write_all(bytes)
}
