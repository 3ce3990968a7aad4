//! Dequantisation of matrix rows (token embedding).

use super::matrix::{BlockArrays, ColumnGroupPart, DeviceLayout, DeviceMatrix, TilesArgument};
use super::{F32_BYTES, byte_span, kernel_count};
use crate::cuda::device::{Device, DeviceError, DeviceSpan, Kernel, kernel_arguments};

/// Rows per launch; their indices are passed as arguments.
const ROWS_PER_LAUNCH: usize = 128;

kernel_arguments! {
    /// `Embed` of `products.cuh`.
    struct Embed {
        w: BlockArrays,
        out: DeviceSpan,
        width: u32,
        factor: f32,
        count: u32,
        unused: u32,
        rows: [u32; ROWS_PER_LAUNCH],
        to: [u32; ROWS_PER_LAUNCH],
    }

    /// `Embed` of `bands.cu`.
    struct BandsEmbed {
        w: TilesArgument,
        out: DeviceSpan,
        width: u32,
        factor: f32,
        rotated: u32,
        count: u32,
        rows: [u32; ROWS_PER_LAUNCH],
        to: [u32; ROWS_PER_LAUNCH],
    }
}

/// Dequantises the matrix rows given by `tokens` and scales them: `out [tokens.len(), cols]`.
pub fn dequantise_rows<D: Device>(
    device: &D,
    matrix: &DeviceMatrix<D>,
    tokens: &[u32],
    scale: Option<f32>,
    out: &D::Memory,
) -> Result<(), DeviceError> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    if let Some(&beyond) = tokens.iter().find(|&&token| token as usize >= rows) {
        return Err(DeviceError::OutOfBounds {
            operand: "a row of the embedding",
            start: beyond as usize,
            needed: 1,
            available: rows,
        });
    }
    let out = byte_span(out, "out", 0, &[tokens.len(), cols], F32_BYTES)?;
    let to = EmbedOutput {
        out,
        width: kernel_count("columns", cols)?,
        factor: scale.unwrap_or(1.0),
    };
    kernel_count("tokens", tokens.len())?;
    match matrix.layout() {
        DeviceLayout::Blocks(blocks) => {
            let name = blocks.format.kernel_names().embed;
            for (rows, places, count) in group_rows_by_launch(tokens.iter().copied().zip(0..)) {
                let arguments = Embed {
                    w: blocks.kernel_argument()?,
                    out: to.out,
                    width: to.width,
                    factor: to.factor,
                    count,
                    unused: 0,
                    rows,
                    to: places,
                };
                let kernel = Kernel::<Embed>::new(name, 128);
                let grid = [to.width.div_ceil(kernel.threads), count, 1];
                // SAFETY: a thread reads an element of an existing row and writes one of `out`,
                // which the span covers.
                unsafe { device.launch(&kernel, grid, 0, &arguments)? };
            }
            Ok(())
        }
        DeviceLayout::ColumnGroups(bands) => {
            for (class, part) in bands.parts.iter().enumerate() {
                let of_class = tokens.iter().zip(0..).filter_map(|(&token, to)| {
                    match bands.row_classes.get(token as usize) {
                        None => Some((token, to)),
                        Some(place) => {
                            (usize::from(place.class) == class).then_some((place.row, to))
                        }
                    }
                });
                embed_bands(device, part, of_class, to)?;
            }
            Ok(())
        }
    }
}

#[derive(Clone, Copy)]
struct EmbedOutput {
    out: DeviceSpan,
    width: u32,
    factor: f32,
}

fn group_rows_by_launch(
    mut rows: impl Iterator<Item = (u32, u32)>,
) -> impl Iterator<Item = ([u32; ROWS_PER_LAUNCH], [u32; ROWS_PER_LAUNCH], u32)> {
    std::iter::from_fn(move || {
        let (mut from, mut to, mut count) = ([0; ROWS_PER_LAUNCH], [0; ROWS_PER_LAUNCH], 0);
        for ((row, place), index) in rows.by_ref().take(ROWS_PER_LAUNCH).zip(0..) {
            (from[index], to[index]) = (row, place);
            count += 1;
        }
        (count > 0).then_some((from, to, count))
    })
}

fn embed_bands<D: Device>(
    device: &D,
    part: &ColumnGroupPart<D>,
    rows: impl Iterator<Item = (u32, u32)>,
    to: EmbedOutput,
) -> Result<(), DeviceError> {
    const KERNEL: Kernel<BandsEmbed> = Kernel::new("bands_embed", 128);
    for (rows, places, count) in group_rows_by_launch(rows) {
        let arguments = BandsEmbed {
            w: part.kernel_argument()?,
            out: to.out,
            width: to.width,
            factor: to.factor,
            rotated: part.rotated.into(),
            count,
            rows,
            to: places,
        };
        let grid = [to.width.div_ceil(KERNEL.threads), count, 1];
        // SAFETY: a warp reads a column group of an existing row and writes those of its columns
        // that the matrix has, which the span covers.
        unsafe { device.launch(&KERNEL, grid, 0, &arguments)? };
    }
    Ok(())
}
