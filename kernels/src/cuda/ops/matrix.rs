//! Quantised matrices in device layout.

mod bands;
mod format;
mod wide;

use std::sync::OnceLock;

use htc_formats::bands::ColumnGroupMatrix;

pub(super) use bands::{ClassRow, ColumnGroupPart, TilesArgument};
pub(super) use format::{BlockArrays, Format};

use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan};
use crate::{Matrix, Pool};

/// A matrix in host memory.
#[derive(Clone, Copy, Debug)]
pub enum MatrixSource<'a> {
    /// In quantisation blocks.
    Blocks(Matrix<'a>),
    /// In column groups; a class map must be [checked](ColumnGroupMatrix::check).
    ColumnGroups(ColumnGroupMatrix<'a>),
}

impl MatrixSource<'_> {
    fn shape(&self) -> [usize; 2] {
        match self {
            MatrixSource::Blocks(matrix) => [matrix.rows(), matrix.cols()],
            MatrixSource::ColumnGroups(bands) => [bands.rows(), bands.cols()],
        }
    }
}

/// A matrix on a device, in the layout of the kernels.
pub struct DeviceMatrix<D: Device> {
    rows: usize,
    cols: usize,
    bytes: usize,
    held: DeviceLayout<D>,
}

pub(super) enum DeviceLayout<D: Device> {
    Blocks(BlockMatrix<D>),
    ColumnGroups(DeviceColumnGroups<D>),
}

pub(super) struct BlockMatrix<D: Device> {
    pub format: Format,
    memory: D::Memory,
    /// Offset and length in bytes.
    arrays: [(usize, usize); Format::ARRAYS],
    /// Elements per stored row.
    stride: usize,
}

/// A column-group matrix, with each class of rows as a separate part.
pub(super) struct DeviceColumnGroups<D: Device> {
    pub parts: Vec<ColumnGroupPart<D>>,
    /// Empty without classes.
    pub row_classes: Vec<ClassRow>,
}

impl<D: Device> DeviceMatrix<D> {
    /// Uploads a matrix, repacked some rows at a time.
    pub fn new(device: &D, source: MatrixSource<'_>) -> Result<Self, DeviceError> {
        Self::new_with_pool(None, device, source)
    }

    /// As [`DeviceMatrix::new`], with the threads of a pool; each reads, repacks and uploads
    /// separate rows.
    pub fn new_with_pool(
        pool: Option<&Pool>,
        device: &D,
        source: MatrixSource<'_>,
    ) -> Result<Self, DeviceError> {
        let [rows, cols] = source.shape();
        let held = match source {
            MatrixSource::Blocks(matrix) => {
                DeviceLayout::Blocks(BlockMatrix::new(pool, device, matrix)?)
            }
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(whole)) => {
                DeviceLayout::ColumnGroups(DeviceColumnGroups {
                    parts: vec![ColumnGroupPart::new(pool, device, whole, None)?],
                    row_classes: Vec::new(),
                })
            }
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Classes(classes)) => {
                let places = bands::class_rows(&classes)?;
                let mut parts = Vec::new();
                for (index, class) in classes.classes().enumerate() {
                    let rows = bands::rows_of_class(&places, index, class.rows());
                    parts.push(ColumnGroupPart::new(pool, device, class, Some(&rows))?);
                }
                DeviceLayout::ColumnGroups(DeviceColumnGroups {
                    parts,
                    row_classes: places,
                })
            }
        };
        Ok(DeviceMatrix {
            rows,
            cols,
            bytes: Self::estimated_bytes(source),
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
    #[cfg(all(test, feature = "emulated"))]
    pub(crate) fn stored_format(&self) -> &'static str {
        match &self.held {
            DeviceLayout::Blocks(blocks) => blocks.format.kernel_names().format,
            DeviceLayout::ColumnGroups(_) => "bands",
        }
    }

    /// Returns the size in bytes that a matrix will have on a device.
    pub fn estimated_bytes(source: MatrixSource<'_>) -> usize {
        match source {
            MatrixSource::Blocks(matrix) => {
                let format = Format::for_dtype(matrix.dtype());
                format.array_ranges(matrix.rows(), matrix.cols()).1
            }
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Uniform(whole)) => {
                bands::estimated_bytes(whole, false)
            }
            MatrixSource::ColumnGroups(ColumnGroupMatrix::Classes(classes)) => classes
                .classes()
                .map(|class| bands::estimated_bytes(class, true))
                .sum(),
        }
    }

    pub(super) fn layout(&self) -> &DeviceLayout<D> {
        &self.held
    }
}

/// Bytes repacked in host memory before an upload.
pub(super) const STAGING_BYTES: usize = 4 << 20;

/// Runs pieces of work, on a pool if given; stops at the first error.
pub(super) fn run_pieces(
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
            let _ = failed.set(error);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

fn align_allocation(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

impl<D: Device> BlockMatrix<D> {
    fn new(pool: Option<&Pool>, device: &D, matrix: Matrix<'_>) -> Result<Self, DeviceError> {
        let format = Format::for_dtype(matrix.dtype());
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (places, bytes) = format.array_ranges(rows, cols);
        let memory = device.allocate(bytes)?;
        let stride = format.stride(cols);
        let of_row = format.row_bytes(stride);
        let at_a_time = (STAGING_BYTES / of_row.iter().sum::<usize>().max(1)).max(1);
        run_pieces(pool, rows.div_ceil(at_a_time), |piece| {
            let first = piece * at_a_time;
            let count = at_a_time.min(rows - first);
            let mut parts = [(0, 0); Format::ARRAYS];
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
                    let mut of_planes: [&mut [u8]; Format::ARRAYS] = Default::default();
                    let each = of_planes.iter_mut().zip(&mut planes).zip(of_row);
                    for ((of_plane, plane), bytes) in each {
                        let (numbers, behind) = std::mem::take(plane).split_at_mut(bytes);
                        (*of_plane, *plane) = (numbers, behind);
                    }
                    format.pack_row(&matrix, row, of_planes)?;
                }
                Ok(())
            })
        })?;
        Ok(BlockMatrix {
            format,
            memory,
            arrays: places,
            stride,
        })
    }

    pub(super) fn kernel_argument(&self) -> Result<BlockArrays, DeviceError> {
        let mut spans = [DeviceSpan::NULL; Format::ARRAYS];
        for (span, (start, bytes)) in spans.iter_mut().zip(self.arrays) {
            if bytes > 0 {
                *span = self.memory.span("a plane of a matrix", start, bytes)?;
            }
        }
        Ok(BlockArrays {
            spans,
            stride: super::kernel_count("columns of a matrix", self.stride)?,
            unused: 0,
        })
    }
}
