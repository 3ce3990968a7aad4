//! Produces the bytes of an output's tensors in portions.

use std::ops::Range;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::{Hasher, Htz};

use super::ExportError;
use super::order::HeadPermutation;
use super::output::{Content, OutputTensor, Piece};
use super::rows::{RowDecoder, StoredTensor};
use crate::event::Progress;
use crate::system::ordered;

/// Short enough to react to cancellation.
const ENCODE_CHUNK: usize = 1 << 17;

const COPY_CHUNK: usize = 1 << 22;

pub(super) struct Producer<'a> {
    pub artifact: &'a Htz,
    pub threads: usize,
    pub watch: Progress<'a>,
}

/// Gets the bytes of a tensor in order.
pub(super) type ByteSink<'a> = dyn FnMut(&[u8]) -> Result<(), ExportError> + 'a;

impl Producer<'_> {
    /// Verifies the digests of the sources and passes the bytes to the sink.
    pub fn tensor(
        &self,
        output: &OutputTensor<'_>,
        sink: &mut ByteSink<'_>,
    ) -> Result<(), ExportError> {
        for piece in &output.pieces {
            for stored in piece.content.tensors()? {
                self.verify(stored)?;
            }
            match &piece.content {
                Content::Stored(stored) => self.copy(*stored, piece.order, sink)?,
                Content::Vector(stored, add) => {
                    let mut values = vec![0.0; output.cols];
                    stored.decode(0..1, &mut values)?;
                    if let Some(order) = piece.order {
                        order.apply(&mut values, 1);
                    }
                    values.iter_mut().for_each(|value| *value += add);
                    sink(&encode(output, &values)?)?;
                }
                Content::Zeros => self.zeros(output, piece, sink)?,
                Content::Matrix(_) | Content::Tensor(_) => {
                    if let Some(rows) = piece.content.rows()? {
                        self.encode(output, piece, &rows, sink)?;
                    }
                }
            }
        }
        Ok(self.watch.step_done(&output.name)?)
    }

    pub fn verify(&self, stored: StoredTensor<'_>) -> Result<(), ExportError> {
        let Some(entry) = self.artifact.manifest().tensor(stored.tensor.role) else {
            return Ok(());
        };
        let mut hasher = Hasher::default();
        for portion in stored.bytes.chunks(COPY_CHUNK) {
            self.watch.check_cancelled()?;
            hasher.update(portion);
        }
        if hasher.finish() != entry.sha256 {
            let path = self.artifact.map().path();
            let verified = self.artifact.verify_tensor(entry);
            verified.map_err(|error| error.in_file(path))?;
        }
        Ok(())
    }

    fn copy(
        &self,
        stored: StoredTensor<'_>,
        order: Option<HeadPermutation>,
        sink: &mut ByteSink<'_>,
    ) -> Result<(), ExportError> {
        let (rows, role) = (stored.tensor.rows, stored.tensor.role);
        let row_bytes = stored.bytes.len() / rows.max(1);
        for range in row_ranges(COPY_CHUNK, rows, row_bytes, order) {
            self.watch.check_cancelled()?;
            let bytes = stored.row_bytes(range).ok_or(ExportError::Missing(role))?;
            match order {
                None => sink(bytes)?,
                Some(order) => {
                    let mut moved = bytes.to_vec();
                    order.apply(&mut moved, row_bytes);
                    sink(&moved)?;
                }
            }
        }
        Ok(())
    }

    fn zeros(
        &self,
        output: &OutputTensor<'_>,
        piece: &Piece<'_>,
        sink: &mut ByteSink<'_>,
    ) -> Result<(), ExportError> {
        let row_bytes = output.dtype.row_bytes(output.cols).unwrap_or(0);
        for range in row_ranges(COPY_CHUNK, piece.rows, row_bytes, None) {
            sink(&vec![0; range.len() * row_bytes])?;
        }
        Ok(())
    }

    /// Decodes and encodes on all threads; the bytes do not depend on the number of threads.
    fn encode(
        &self,
        output: &OutputTensor<'_>,
        piece: &Piece<'_>,
        rows: &RowDecoder<'_>,
        sink: &mut ByteSink<'_>,
    ) -> Result<(), ExportError> {
        let portions = row_ranges(ENCODE_CHUNK, piece.rows, output.cols, piece.order);
        let portions: Vec<Range<usize>> = portions.collect();
        ordered::for_each(
            self.threads,
            portions.len(),
            2 * self.threads,
            |portion| {
                self.watch.check_cancelled()?;
                let range = portions[portion].clone();
                let mut values = vec![0.0; range.len() * output.cols];
                rows.decode(range, &mut values)?;
                if let Some(order) = piece.order {
                    order.apply(&mut values, output.cols);
                }
                encode(output, &values)
            },
            |_, bytes| sink(&bytes),
        )
    }
}

fn row_ranges(
    entries: usize,
    rows: usize,
    row: usize,
    order: Option<HeadPermutation>,
) -> impl Iterator<Item = Range<usize>> {
    let step = (entries / row.max(1)).max(1);
    let step = step.next_multiple_of(order.map_or(1, |order| order.head));
    (0..rows)
        .step_by(step)
        .map(move |row| row..rows.min(row + step))
}

fn encode(output: &OutputTensor<'_>, values: &[f32]) -> Result<Vec<u8>, ExportError> {
    let dtype = output.dtype;
    let bytes = values.len() / dtype.block_len() * dtype.block_bytes();
    let mut bytes = vec![0; bytes];
    let failed = |error| ExportError::Block {
        tensor: output.name.clone(),
        error,
    };
    block::encode(dtype, values, &mut bytes).map_err(failed)?;
    if matches!(dtype, DType::F16 | DType::BF16) {
        let mut stored = vec![0.0; values.len()];
        block::decode(dtype, &bytes, &mut stored).map_err(failed)?;
        let mut pairs = values.iter().zip(&stored);
        let beyond = pairs.find(|(value, stored)| value.is_finite() && !stored.is_finite());
        if let Some((&value, _)) = beyond {
            return Err(ExportError::Overflow {
                tensor: output.name.clone(),
                value,
                dtype,
            });
        }
    }
    Ok(bytes)
}
