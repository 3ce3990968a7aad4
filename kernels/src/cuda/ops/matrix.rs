//! Quantised matrices in device layout.

mod bands;
mod format;
mod wide;

use std::sync::OnceLock;

use htc_formats::bands::Banded;

pub(super) use bands::{BandsPart, Place, Tiles};
pub(super) use format::{Format, Planes};

use crate::cuda::device::{Device, DeviceError, Memory, Span};
use crate::{Matrix, Pool};

/// A matrix in host memory.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// In quantisation blocks.
    Blocks(Matrix<'a>),
    /// In column groups; a class map must be [checked](Banded::check).
    Bands(Banded<'a>),
}

impl Source<'_> {
    fn shape(&self) -> [usize; 2] {
        match self {
            Source::Blocks(matrix) => [matrix.rows(), matrix.cols()],
            Source::Bands(bands) => [bands.rows(), bands.cols()],
        }
    }
}

/// A matrix on a device, in the layout of the kernels.
pub struct DeviceMatrix<D: Device> {
    rows: usize,
    cols: usize,
    bytes: usize,
    held: Held<D>,
}

pub(super) enum Held<D: Device> {
    Blocks(Blocks<D>),
    Bands(Bands<D>),
}

/// A block-quantised matrix as separate arrays.
pub(super) struct Blocks<D: Device> {
    pub format: Format,
    memory: D::Memory,
    /// Offset and length of each array in bytes.
    places: [(usize, usize); Format::PLANES],
    /// Elements per stored row.
    stride: usize,
}

/// A column-group matrix, with each class of rows as a separate part.
pub(super) struct Bands<D: Device> {
    pub parts: Vec<BandsPart<D>>,
    /// Class and index in the class of each row; empty without classes.
    pub places: Vec<Place>,
}

impl<D: Device> DeviceMatrix<D> {
    /// Uploads a matrix, repacked some rows at a time.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or another device error.
    pub fn new(device: &D, source: Source<'_>) -> Result<Self, DeviceError> {
        Self::laid_out_by(None, device, source)
    }

    /// As [`DeviceMatrix::new`], with the threads of a pool; each reads, repacks and uploads
    /// separate rows.
    ///
    /// # Errors
    /// As [`DeviceMatrix::new`].
    pub fn laid_out_by(
        pool: Option<&Pool>,
        device: &D,
        source: Source<'_>,
    ) -> Result<Self, DeviceError> {
        let [rows, cols] = source.shape();
        let held = match source {
            Source::Blocks(matrix) => Held::Blocks(Blocks::new(pool, device, matrix)?),
            Source::Bands(Banded::Whole(whole)) => Held::Bands(Bands {
                parts: vec![BandsPart::new(pool, device, whole, None)?],
                places: Vec::new(),
            }),
            Source::Bands(Banded::Classes(classes)) => {
                let places = bands::places(&classes)?;
                let mut parts = Vec::new();
                for (index, class) in classes.classes().enumerate() {
                    let rows = bands::rows_of_class(&places, index, class.rows());
                    parts.push(BandsPart::new(pool, device, class, Some(&rows))?);
                }
                Held::Bands(Bands { parts, places })
            }
        };
        Ok(DeviceMatrix {
            rows,
            cols,
            bytes: Self::bytes_of(source),
            held,
        })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the size on the device in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the name of the stored format: that of the source, or another that represents the
    /// same values.
    pub fn held_as(&self) -> &'static str {
        match &self.held {
            Held::Blocks(blocks) => blocks.format.name(),
            Held::Bands(_) => "bands",
        }
    }

    /// Returns the size in bytes that a matrix will have on a device.
    pub fn bytes_of(source: Source<'_>) -> usize {
        match source {
            Source::Blocks(matrix) => {
                let format = Format::of(matrix.dtype());
                format.places(matrix.rows(), matrix.cols()).1
            }
            Source::Bands(Banded::Whole(whole)) => bands::bytes_of(whole, false),
            Source::Bands(Banded::Classes(classes)) => classes
                .classes()
                .map(|class| bands::bytes_of(class, true))
                .sum(),
        }
    }

    pub(super) fn held(&self) -> &Held<D> {
        &self.held
    }
}

/// Bytes that a thread repacks in host memory before an upload.
pub(super) const STAGED: usize = 4 << 20;

/// Runs `pieces` pieces of work, on a pool if given. Returns the error of a failed piece, after
/// which no other is started.
pub(super) fn in_pieces(
    pool: Option<&Pool>,
    pieces: usize,
    piece: impl Fn(usize) -> Result<(), DeviceError> + Sync,
) -> Result<(), DeviceError> {
    let Some(pool) = pool else {
        return (0..pieces).try_for_each(piece);
    };
    let failed = OnceLock::new();
    pool.run(pieces, |index| {
        if failed.get().is_none()
            && let Err(error) = piece(index)
        {
            // Any of several errors may be kept.
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

impl<D: Device> Blocks<D> {
    fn new(pool: Option<&Pool>, device: &D, matrix: Matrix<'_>) -> Result<Self, DeviceError> {
        let format = Format::of(matrix.dtype());
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (places, bytes) = format.places(rows, cols);
        let memory = device.allocate(bytes)?;
        let stride = format.stride(cols);
        let of_row = format.row_bytes(stride);
        let at_a_time = (STAGED / of_row.iter().sum::<usize>().max(1)).max(1);
        in_pieces(pool, rows.div_ceil(at_a_time), |piece| {
            let first = piece * at_a_time;
            let count = at_a_time.min(rows - first);
            let mut parts = [(0, 0); Format::PLANES];
            for ((part, (start, _)), bytes) in parts.iter_mut().zip(places).zip(of_row) {
                *part = (start + first * bytes, count * bytes);
            }
            device.upload_parts(&memory, &parts, &mut |mut staged| {
                staged.fill(0);
                let mut planes = of_row.map(|bytes| {
                    let (plane, behind) = std::mem::take(&mut staged).split_at_mut(count * bytes);
                    staged = behind;
                    plane
                });
                for row in first..first + count {
                    let mut of_planes: [&mut [u8]; Format::PLANES] = Default::default();
                    let each = of_planes.iter_mut().zip(&mut planes).zip(of_row);
                    for ((of_plane, plane), bytes) in each {
                        let (numbers, behind) = std::mem::take(plane).split_at_mut(bytes);
                        (*of_plane, *plane) = (numbers, behind);
                    }
                    format.lay_out(&matrix, row, of_planes)?;
                }
                Ok(())
            })
        })?;
        Ok(Blocks {
            format,
            memory,
            places,
            stride,
        })
    }

    /// Returns the kernel arguments.
    pub(super) fn planes(&self) -> Result<Planes, DeviceError> {
        let mut spans = [Span::NONE; Format::PLANES];
        for (span, (start, bytes)) in spans.iter_mut().zip(self.places) {
            if bytes > 0 {
                *span = self.memory.span("a plane of a matrix", start, bytes)?;
            }
        }
        Ok(Planes {
            spans,
            stride: super::count("columns of a matrix", self.stride)?,
            unused: 0,
        })
    }
}
