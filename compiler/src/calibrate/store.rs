//! File format of the statistics of a layer and of the head's input.
//!
//! Little-endian: magic; cache key; layer (the head follows the last); digest of the residual
//! stream after the layer; the moments in a fixed order, second moments in float32 (those of
//! experts' inputs [shrunk](super::experts)). For layers
//! also: norms, branches, mean inputs at the first position, samples, norms at every position. Last
//! the digest of everything before. All lengths follow from the shapes.

use std::ffi::OsStr;
use std::io::{self, Read, Write};

use htc_formats::folder::Folder;
use htc_formats::htz::{Digest, Hasher};
use htc_formats::map::MappedFile;
use htc_formats::model::{ActivationPoint, BlockInput, HyperParameters};

use super::experts;
use super::moments::{MomentSums, diagonal_index};
use super::statistics::{LayerSums, STREAM_POINTS, block_inputs, sample_count, sample_windows};
use crate::system::disk;

const MAGIC: [u8; 8] = *b"htccal\0\x02";

/// Files with another identity are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub key: Digest,
    /// The head follows the last.
    pub layer: usize,
}

/// Size of the calibration text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextExtent {
    /// Tokens per window.
    pub context: usize,
    pub windows: usize,
}

/// Mean and second moment of one stream of vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredMoment {
    /// Number of vectors.
    pub count: u64,
    /// `E[x]`.
    pub mean: Vec<f64>,
    /// Lower triangle of `E[x xᵀ]`, row by row.
    pub second: Vec<f32>,
}

impl StoredMoment {
    /// Returns `E‖x − E[x]‖² / n`, the mean variance of a component.
    pub fn variance(&self) -> f64 {
        let n = self.mean.len();
        let diagonal = (0..n).map(|i| f64::from(self.second[diagonal_index(i)]));
        let squares: f64 = self.mean.iter().map(|mean| mean * mean).sum();
        ((diagonal.sum::<f64>() - squares) / n.max(1) as f64).max(0.0)
    }

    /// Returns the [`variance`](Self::variance) of the union with other vectors.
    pub fn variance_with(&self, others: &StoredMoment) -> f64 {
        let counts = [self.count as f64, others.count as f64];
        let total = (counts[0] + counts[1]).max(1.0);
        let mixed = |a: f64, b: f64| (counts[0] * a + counts[1] * b) / total;
        let means = self.mean.iter().zip(&others.mean);
        let squares: f64 = means.map(|(&a, &b)| mixed(a, b).powi(2)).sum();
        let energy = |moment: &StoredMoment| moment.diagonal().iter().sum::<f64>();
        let energy = mixed(energy(self), energy(others));
        ((energy - squares) / self.mean.len().max(1) as f64).max(0.0)
    }

    /// Returns `E[x xᵀ] [n, n]`, row by row, in float64; zero above the diagonal.
    pub fn lower(&self) -> Vec<f64> {
        let n = self.mean.len();
        let mut full = vec![0.0; n * n];
        let mut at = 0;
        for row in 0..n {
            for (to, &from) in full[row * n..].iter_mut().zip(&self.second[at..=at + row]) {
                *to = f64::from(from);
            }
            at += row + 1;
        }
        full
    }

    /// Returns `E[x_i²]`.
    pub fn diagonal(&self) -> Vec<f64> {
        let at = |i| f64::from(self.second[diagonal_index(i)]);
        (0..self.mean.len()).map(at).collect()
    }
}

fn orders(hyper: &HyperParameters, inputs: &[BlockInput]) -> Vec<usize> {
    let mut orders: Vec<usize> = inputs.iter().map(|input| input.width).collect();
    // Residual stream, and its first positions.
    orders.extend([hyper.width; 2]);
    orders.extend(std::iter::repeat_n(hyper.head_size, 3 * hyper.kv_heads));
    orders
}

fn moment_bytes(order: usize) -> usize {
    8 + 8 * order + 4 * (order * (order + 1) / 2)
}

fn positions(extent: TextExtent) -> usize {
    extent.context.saturating_mul(extent.windows)
}

const HEADER: usize = 8 + 32 + 8 + 32;

pub(crate) const CONTENT_OFFSET: usize = HEADER;

pub(crate) fn sealed_bytes(content: usize) -> usize {
    content.saturating_add(HEADER + 32)
}

pub fn head_bytes(hyper: &HyperParameters) -> usize {
    HEADER + moment_bytes(hyper.width) + 32
}

/// Returns the bytes of the file of a layer.
pub fn file_bytes(hyper: &HyperParameters, layer: usize, extent: TextExtent) -> usize {
    let orders = orders(hyper, &block_inputs(hyper, layer));
    let moments: usize = orders.into_iter().map(moment_bytes).sum();
    let first_inputs = 8 * STREAM_POINTS.len() * hyper.width;
    let sample = 4 * sample_count(extent) * hyper.width;
    let token_norms = 4 * positions(extent);
    HEADER + moments + 8 * (extent.context + 2) + first_inputs + sample + token_norms + 32
}

pub fn write_layer(
    folder: &Folder,
    name: &OsStr,
    identity: Identity,
    stream: Digest,
    sums: &LayerSums,
) -> io::Result<()> {
    write_sealed(folder, name, identity, stream, |to| {
        let heads = sums.heads.iter().flatten();
        experts::for_each_moment(&sums.sites, |moment| {
            write_moment(to, moment.count, &moment.mean, &moment.second)
        })?;
        for moments in [&sums.stream, &sums.sink].into_iter().chain(heads) {
            write_moments(to, moments)?;
        }
        let windows = sums.sink.weight();
        let positions = sums.stream.weight();
        let norms = sums.norms.iter().map(|sum| sum / windows);
        let branches = sums.branches.iter().map(|sum| sum / positions);
        let first = sums.first_inputs.iter().flatten();
        let first = first.map(|sum| sum / windows);
        for number in norms.chain(branches).chain(first) {
            to.write_all(&number.to_le_bytes())?;
        }
        for number in sums.sample.iter().chain(&sums.token_norms) {
            to.write_all(&number.to_le_bytes())?;
        }
        Ok(())
    })
}

pub fn write_head(
    folder: &Folder,
    name: &OsStr,
    identity: Identity,
    sums: &MomentSums,
) -> io::Result<()> {
    let behind = Hasher::default().finish();
    write_sealed(folder, name, identity, behind, |to| write_moments(to, sums))
}

/// Identity, output of `write`, digest.
pub(crate) fn write_sealed(
    folder: &Folder,
    name: &OsStr,
    identity: Identity,
    stream: Digest,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    disk::write_in(folder, name, true, |to| {
        let mut to = HashedStream {
            to,
            hasher: Hasher::default(),
        };
        to.write_all(&MAGIC)?;
        to.write_all(&identity.key.0)?;
        to.write_all(&(identity.layer as u64).to_le_bytes())?;
        to.write_all(&stream.0)?;
        write(&mut to)?;
        let digest = to.hasher.clone().finish();
        to.to.write_all(&digest.0)
    })
}

fn write_moments(to: &mut dyn Write, moments: &MomentSums) -> io::Result<()> {
    let (mean, second) = (moments.mean(), moments.second_moment());
    write_moment(to, moments.count(), &mean, &second)
}

fn write_moment(to: &mut dyn Write, count: u64, mean: &[f64], second: &[f64]) -> io::Result<()> {
    to.write_all(&count.to_le_bytes())?;
    for mean in mean {
        to.write_all(&mean.to_le_bytes())?;
    }
    for number in second {
        to.write_all(&(*number as f32).to_le_bytes())?;
    }
    Ok(())
}

pub struct HashedStream<W> {
    pub to: W,
    pub hasher: Hasher,
}

impl<R: Read> Read for HashedStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.to.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

impl<W: Write> Write for HashedStream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Validated file of a layer's statistics.
#[derive(Debug)]
pub struct StoredLayer {
    file: MappedFile,
    /// Inputs of the projections, whose moments come first.
    inputs: Vec<BlockInput>,
    moments: Vec<(usize, usize)>,
    extent: TextExtent,
    kv_heads: usize,
    width: usize,
}

impl StoredLayer {
    /// Opens the file of a layer; `None` if missing, or if invalid, after calling `damaged`.
    pub fn open(
        folder: &Folder,
        name: &OsStr,
        identity: Identity,
        hyper: &HyperParameters,
        extent: TextExtent,
        damaged: impl FnOnce(&str),
    ) -> Option<StoredLayer> {
        let inputs = block_inputs(hyper, identity.layer);
        let expected = file_bytes(hyper, identity.layer, extent);
        let file = open_sealed(folder, name, identity, expected, damaged)?;
        let mut at = HEADER;
        let moments = orders(hyper, &inputs).into_iter().map(|order| {
            let start = at;
            at += moment_bytes(order);
            (start, order)
        });
        let moments = moments.collect();
        Some(StoredLayer {
            file,
            inputs,
            moments,
            extent,
            kv_heads: hyper.kv_heads,
            width: hyper.width,
        })
    }

    /// Returns the digest of the residual stream after the layer.
    pub fn stream_digest(&self) -> Digest {
        Digest(*array_at(&self.file, HEADER - 32))
    }

    /// Returns the input moments at an activation point; empty if the layer does not have it.
    pub fn site(&self, site: ActivationPoint) -> StoredMoment {
        let index = self.inputs.iter().position(|input| input.point == site);
        index.map_or_else(StoredMoment::default, |index| self.moment(index))
    }

    /// Returns the inputs of the projections with the number of vectors of each.
    pub fn counts(&self) -> impl Iterator<Item = (BlockInput, u64)> {
        let starts = self.inputs.iter().zip(&self.moments);
        starts.map(|(input, (start, _))| {
            let count = u64::from_le_bytes(*array_at(&self.file, *start));
            (*input, count)
        })
    }

    /// Returns the moments of the residual stream without first positions.
    pub fn stream(&self) -> StoredMoment {
        self.moment(self.inputs.len())
    }

    /// Returns the moments of the residual stream at first positions.
    pub fn sink(&self) -> StoredMoment {
        self.moment(self.inputs.len() + 1)
    }

    /// Returns the number of key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Returns the moments of queries, keys and values of a kv head.
    pub fn head(&self, kv_head: usize) -> [StoredMoment; 3] {
        let first = self.inputs.len() + 2 + 3 * kv_head;
        [0, 1, 2].map(|part| self.moment(first + part))
    }

    /// Returns the mean norms of the residual stream, by position.
    pub fn norms(&self) -> Vec<f64> {
        self.numbers(self.after_moments(), self.extent.context)
    }

    /// Returns the mean squared norms of the attention and feed-forward outputs.
    pub fn branches(&self) -> [f64; 2] {
        let numbers = self.numbers(self.after_branches() - 16, 2);
        [numbers[0], numbers[1]]
    }

    /// Returns the mean input at first positions, for readers of the residual stream; for experts
    /// that of all, whether or not the router sends them first positions.
    pub fn first_input(&self, site: ActivationPoint) -> Option<Vec<f64>> {
        let site = match site {
            ActivationPoint::ExpertInput(_) => ActivationPoint::Ffn,
            site => site,
        };
        let index = STREAM_POINTS.iter().position(|of| *of == site)?;
        let start = self.after_branches() + 8 * index * self.width;
        Some(self.numbers(start, self.width))
    }

    /// Returns `[n, width]`: samples of the residual stream.
    pub fn sample(&self) -> Vec<f32> {
        let count = sample_count(self.extent) * self.width;
        self.float32(self.after_branches() + self.first_inputs(), count)
    }

    /// Returns the window of each vector of the [`sample`](Self::sample), ascending.
    pub fn sample_windows(&self) -> Vec<usize> {
        sample_windows(self.extent)
    }

    /// Returns `[windows, context]`: the norm of the residual stream at every position.
    pub fn token_norms(&self) -> Vec<f32> {
        let sample = 4 * sample_count(self.extent) * self.width;
        let start = self.after_branches() + self.first_inputs() + sample;
        self.float32(start, positions(self.extent))
    }

    /// Returns the window length.
    pub fn context(&self) -> usize {
        self.extent.context
    }

    fn first_inputs(&self) -> usize {
        8 * STREAM_POINTS.len() * self.width
    }

    fn moment(&self, index: usize) -> StoredMoment {
        let (start, order) = self.moments[index];
        moment_at(&self.file, start, order)
    }

    fn after_moments(&self) -> usize {
        let end = |&(start, order): &(usize, usize)| start + moment_bytes(order);
        self.moments.last().map_or(HEADER, end)
    }

    fn after_branches(&self) -> usize {
        self.after_moments() + 8 * (self.extent.context + 2)
    }

    fn float32(&self, at: usize, count: usize) -> Vec<f32> {
        float32(&self.file, at, count)
    }

    fn numbers(&self, at: usize, count: usize) -> Vec<f64> {
        float64(&self.file, at, count)
    }
}

/// Validated file of the statistics of the head's input.
#[derive(Debug)]
pub struct StoredHead {
    file: MappedFile,
    width: usize,
}

impl StoredHead {
    /// Opens the file of the head, as [`StoredLayer::open`].
    pub fn open(
        folder: &Folder,
        name: &OsStr,
        identity: Identity,
        hyper: &HyperParameters,
        damaged: impl FnOnce(&str),
    ) -> Option<StoredHead> {
        let file = open_sealed(folder, name, identity, head_bytes(hyper), damaged)?;
        let width = hyper.width;
        Some(StoredHead { file, width })
    }

    /// Returns the moments of the head's input at all positions.
    pub fn inputs(&self) -> StoredMoment {
        moment_at(&self.file, HEADER, self.width)
    }
}

/// Opens a sealed file of `expected` bytes; `None` if missing, or if invalid, after calling
/// `damaged`.
pub(crate) fn open_sealed(
    folder: &Folder,
    name: &OsStr,
    identity: Identity,
    expected: usize,
    damaged: impl FnOnce(&str),
) -> Option<MappedFile> {
    let found = match folder.open_for_reading(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        found => found.map_err(|error| error.to_string()),
    };
    let found = found.and_then(|file| {
        let map = MappedFile::from_file(folder.path().join(name), &file);
        map.map_err(|error| error.into_io().to_string())
    });
    let checked = found.and_then(|file| {
        let length = file.len();
        if length != expected {
            return Err(format!("{length} bytes, expected {expected}"));
        }
        let (content, digest) = file.split_at(length - 32);
        if Digest::of_bytes(content).0 != digest {
            return Err("its digest is another".to_owned());
        }
        let layer = (identity.layer as u64).to_le_bytes();
        let parts: [&[u8]; 3] = [&MAGIC, &identity.key.0, &layer];
        if !content.starts_with(&parts.concat()) {
            return Err("it is of another calibration".to_owned());
        }
        Ok(file)
    });
    checked.map_err(|why| damaged(&why)).ok()
}

fn moment_at(file: &[u8], start: usize, order: usize) -> StoredMoment {
    let mean = start + 8;
    StoredMoment {
        count: u64::from_le_bytes(*array_at(file, start)),
        mean: float64(file, mean, order),
        second: float32(file, mean + 8 * order, order * (order + 1) / 2),
    }
}

pub(crate) fn float32(file: &[u8], at: usize, count: usize) -> Vec<f32> {
    let numbers = file[at..at + 4 * count].as_chunks::<4>().0.iter();
    numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn float64(file: &[u8], at: usize, count: usize) -> Vec<f64> {
    let numbers = file[at..at + 8 * count].as_chunks::<8>().0.iter();
    numbers.map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let (parts, _) = bytes[at..at + N].as_chunks::<N>();
    &parts[0]
}
