//! Produces the bytes of an output's tensors in portions.

use std::ops::Range;

use htc_formats::DType;
use htc_formats::block;
use htc_formats::htz::{Hasher, Htz};

use super::ExportError;
use super::order::HeadOrder;
use super::output::{Content, Output, Piece};
use super::rows::{Rows, Stored};
use crate::event::Watch;
use crate::system::ordered;

/// Approximate number of values encoded at a time; short enough to react to cancellation.
const ENCODED: usize = 1 << 17;

/// Approximate number of bytes copied at a time.
const COPIED: usize = 1 << 22;

pub(super) struct Producer<'a> {
    pub artifact: &'a Htz,
    pub threads: usize,
    pub watch: Watch<'a>,
}

/// Consumer of the bytes of a tensor, in order.
pub(super) type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), ExportError> + 'a;

impl Producer<'_> {
    /// Verifies the digests of a tensor's sources and passes its bytes to the sink.
    pub fn tensor(&self, output: &Output<'_>, sink: &mut Sink<'_>) -> Result<(), ExportError> {
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
                Content::Matrix(_) | Content::Numbers(_) => {
                    if let Some(rows) = piece.content.rows()? {
                        self.encode(output, piece, &rows, sink)?;
                    }
                }
            }
        }
        Ok(self.watch.done(&output.name)?)
    }

    pub fn verify(&self, stored: Stored<'_>) -> Result<(), ExportError> {
        let Some(entry) = self.artifact.manifest().tensor(stored.tensor.role) else {
            return Ok(());
        };
        let mut hasher = Hasher::default();
        for portion in stored.bytes.chunks(COPIED) {
            self.watch.check()?;
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
        stored: Stored<'_>,
        order: Option<HeadOrder>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ExportError> {
        let (rows, role) = (stored.tensor.rows, stored.tensor.role);
        let row_bytes = stored.bytes.len() / rows.max(1);
        for range in portions(COPIED, rows, row_bytes, order) {
            self.watch.check()?;
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
        output: &Output<'_>,
        piece: &Piece<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ExportError> {
        let row_bytes = output.dtype.row_bytes(output.cols).unwrap_or(0);
        for range in portions(COPIED, piece.rows, row_bytes, None) {
            sink(&vec![0; range.len() * row_bytes])?;
        }
        Ok(())
    }

    /// Decodes and encodes on all threads; the bytes do not depend on the number of threads.
    fn encode(
        &self,
        output: &Output<'_>,
        piece: &Piece<'_>,
        rows: &Rows<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), ExportError> {
        let portions = portions(ENCODED, piece.rows, output.cols, piece.order);
        let portions: Vec<Range<usize>> = portions.collect();
        ordered::for_each(
            self.threads,
            portions.len(),
            2 * self.threads,
            |portion| {
                self.watch.check()?;
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

fn portions(
    entries: usize,
    rows: usize,
    row: usize,
    order: Option<HeadOrder>,
) -> impl Iterator<Item = Range<usize>> {
    let step = (entries / row.max(1)).max(1);
    let step = step.next_multiple_of(order.map_or(1, |order| order.head));
    (0..rows)
        .step_by(step)
        .map(move |row| row..rows.min(row + step))
}

fn encode(output: &Output<'_>, values: &[f32]) -> Result<Vec<u8>, ExportError> {
    let dtype = output.dtype;
    let bytes = values.len() / dtype.block_len() * dtype.block_bytes();
    let mut bytes = vec![0; bytes];
    let failed = |error| ExportError::of_block(&output.name)(error);
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
