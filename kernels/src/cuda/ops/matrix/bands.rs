//! Column-group matrices in tiles of 32 rows, the layout of `bands.cu`.

use htc_formats::bands::{
    CHUNK, Code, CodeKind, Codes, ColumnGroups, GROUP_COLS, GROUP_ROWS, MAP_BLOCK_ROWS,
    MAX_CLASSES, QUAD, QUADS_PER_GROUP, RowClassMatrix, SCALE_BYTES, STATES, TILE_ROWS, Trellis,
    code_at, codebook_value, unpack_codebook_scales,
};

use super::format::decode_error;
use super::{STAGING_BYTES, align_allocation, run_pieces};
use crate::Pool;
use crate::cuda::device::{Device, DeviceError, DeviceMemory, DeviceSpan, kernel_arguments};

/// One row per lane of a warp.
const TILE: usize = 32;

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ClassRow {
    pub class: u8,
    pub row: u32,
}

kernel_arguments! {
    /// A matrix whose rows have the same codes, `Tiles` of `bands.cu`.
    #[derive(Debug)]
    pub(in super::super) struct TilesArgument {
        /// Words, codes, tables, row scales of codebooks and of trellises, column scales, places; in the
        /// order of `Tiles` in `bands.cu`.
        spans: [DeviceSpan; 7],
        rows: u32,
        bands: u32,
        tile_words: u32,
        table_bytes: u32,
    }
}

pub(in super::super) struct ColumnGroupPart<D: Device> {
    memory: D::Memory,
    layout: Layout,
    pub rows: usize,
    pub groups: usize,
    pub rotated: bool,
    /// Input vectors are multiplied by column scales.
    pub scaled: bool,
}

#[derive(Debug)]
struct Layout {
    /// First word in a tile and kernel code.
    groups: Vec<[u32; 2]>,
    tables: Vec<u8>,
    tile_words: usize,
    /// Offset and length in bytes, in the order of [`TilesArgument`]; zero length if absent.
    parts: [(usize, usize); 7],
    bytes: usize,
}

const TRELLIS: u32 = 16;

/// Index of the column scales in [`Layout::parts`].
const COLUMN_SCALES: usize = 5;

/// Scales of a tile, in 32-bit words.
const SCALE_WORDS: usize = TILE / 4;

impl Layout {
    fn new(codes: &Codes, rows: usize, has_places: bool) -> Layout {
        let mut tables = Vec::new();
        let mut seen: Vec<(Code, u32)> = Vec::new();
        let mut bands = Vec::with_capacity(codes.len());
        let mut tile_words = 0;
        for &code in codes.iter() {
            let table = match seen.iter().find(|(other, _)| *other == code) {
                Some(&(_, at)) => at,
                None => {
                    let at = tables.len() as u32;
                    tables.extend(lookup_table(code));
                    tables.resize(tables.len().next_multiple_of(16), 0);
                    seen.push((code, at));
                    at
                }
            };
            let bits = u32::from(code.bits());
            let is_trellis = code.kind() == CodeKind::Trellis;
            let kind = if is_trellis { TRELLIS } else { 0 };
            bands.push([tile_words as u32, bits | kind | table << 8]);
            tile_words += code.bits() as usize * TILE;
            if !is_trellis {
                tile_words += SCALE_WORDS;
            }
        }
        let tiles = rows.div_ceil(TILE);
        let has = |kind| usize::from(codes.contains_kind(kind));
        let sizes = [
            4 * tile_words * tiles,
            8 * codes.len(),
            tables.len(),
            2 * rows * has(CodeKind::Codebook),
            2 * rows * has(CodeKind::Trellis),
            2 * GROUP_COLS * codes.len() * has(CodeKind::Trellis),
            4 * rows * usize::from(has_places),
        ];
        let mut bytes = 0;
        let parts = sizes.map(|size| {
            let start = bytes;
            bytes += align_allocation(size);
            (start, size)
        });
        Layout {
            groups: bands,
            tables,
            tile_words,
            parts,
            bytes,
        }
    }
}

fn lookup_table(code: Code) -> Vec<u8> {
    let bits = code.bits();
    match Trellis::for_code(code) {
        Some(trellis) => (0..STATES)
            .map(|state| trellis.value(state).cast_unsigned())
            .collect(),
        None if bits == 8 => Vec::new(),
        None => (0..1 << bits)
            .map(|code| codebook_value(bits, code).cast_unsigned())
            .collect(),
    }
}

pub(super) fn estimated_bytes(source: ColumnGroups<'_>, has_places: bool) -> usize {
    Layout::new(source.codes(), source.rows(), has_places).bytes
}

pub(super) fn class_rows(classes: &RowClassMatrix<'_>) -> Result<Vec<ClassRow>, DeviceError> {
    let mut counts = [0_u32; MAX_CLASSES];
    let rows: Vec<usize> = classes.classes().map(|class| class.rows()).collect();
    let mut places = Vec::with_capacity(classes.rows());
    for first in (0..classes.rows()).step_by(MAP_BLOCK_ROWS) {
        let block = classes.block(first / MAP_BLOCK_ROWS);
        for row in 0..MAP_BLOCK_ROWS.min(classes.rows() - first) {
            let class = block.class(row);
            let place = counts[class];
            if rows.get(class).is_none_or(|&rows| place as usize >= rows) {
                let row = first + row;
                return Err(decode_error(format!(
                    "row {row} is one more than its class {class} has"
                )));
            }
            counts[class] += 1;
            places.push(ClassRow {
                class: class as u8,
                row: place,
            });
        }
    }
    Ok(places)
}

pub(super) fn rows_of_class(places: &[ClassRow], class: usize, rows: usize) -> Vec<u32> {
    let mut of_class = Vec::with_capacity(rows);
    for (row, place) in (0..).zip(places) {
        if usize::from(place.class) == class {
            of_class.push(row);
        }
    }
    of_class
}

impl<D: Device> ColumnGroupPart<D> {
    pub(super) fn new(
        pool: Option<&Pool>,
        device: &D,
        source: ColumnGroups<'_>,
        places: Option<&[u32]>,
    ) -> Result<Self, DeviceError> {
        let codes = source.codes();
        let layout = Layout::new(codes, source.rows(), places.is_some());
        let memory = device.allocate(layout.bytes)?;
        let [words, of_codes, tables, levels, trellises, columns, to] = layout.parts.map(|p| p.0);
        let put = |at: usize, bytes: &[u8]| match bytes {
            [] => Ok(()),
            bytes => device.upload(bytes, &memory, at),
        };
        put(of_codes, &le_bytes(layout.groups.as_flattened()))?;
        put(tables, &layout.tables)?;
        put(levels, source.row_scale_bytes(CodeKind::Codebook))?;
        put(trellises, source.row_scale_bytes(CodeKind::Trellis))?;
        put(to, &le_bytes(places.unwrap_or(&[])))?;
        let scaled = codes.contains_kind(CodeKind::Trellis);
        if scaled {
            put(columns, &column_scales(source))?;
        }
        let tile_bytes = 4 * layout.tile_words;
        let tiles = source.rows().div_ceil(TILE);
        let at_a_time = (STAGING_BYTES / tile_bytes.max(1)).max(1);
        run_pieces(pool, tiles.div_ceil(at_a_time), |piece| {
            let first = piece * at_a_time;
            let count = at_a_time.min(tiles - first);
            let part = (words + first * tile_bytes, count * tile_bytes);
            device.upload_parts(&memory, &[part], &mut |bytes| {
                let mut staged = vec![0; count * layout.tile_words];
                for (tile, out) in (first..).zip(staged.chunks_exact_mut(layout.tile_words)) {
                    pack_tile(source, &layout, tile, out);
                }
                for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&staged) {
                    *to = word.to_le_bytes();
                }
                Ok(())
            })
        })?;
        Ok(ColumnGroupPart {
            memory,
            layout,
            rows: source.rows(),
            groups: codes.len(),
            rotated: codes.is_rotated(),
            scaled,
        })
    }

    pub(in super::super) fn kernel_argument(&self) -> Result<TilesArgument, DeviceError> {
        let mut spans = [DeviceSpan::NULL; 7];
        for (span, (start, bytes)) in spans.iter_mut().zip(self.layout.parts) {
            if bytes > 0 {
                *span = self
                    .memory
                    .span("a part of a matrix in bands", start, bytes)?;
            }
        }
        let count = super::super::kernel_count;
        Ok(TilesArgument {
            spans,
            rows: count("rows of a matrix", self.rows)?,
            bands: count("bands of a matrix", self.groups)?,
            tile_words: count("words of a tile", self.layout.tile_words)?,
            table_bytes: count("bytes of tables", self.table_bytes())?,
        })
    }

    pub(in super::super) fn column_scales(&self) -> Result<DeviceSpan, DeviceError> {
        match self.layout.parts[COLUMN_SCALES] {
            (_, 0) => Ok(DeviceSpan::NULL),
            (start, bytes) => self.memory.span("the scales of columns", start, bytes),
        }
    }

    pub(in super::super) fn table_bytes(&self) -> usize {
        self.layout.tables.len()
    }
}

fn le_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn column_scales(source: ColumnGroups<'_>) -> Vec<u8> {
    let mut scales = Vec::with_capacity(2 * GROUP_COLS * source.codes().len());
    for band in 0..source.codes().len() {
        match source.column_scale_bytes(band) {
            [] => scales.extend([half::f16::ONE.to_le_bytes(); GROUP_COLS].as_flattened()),
            bytes => scales.extend(bytes),
        }
    }
    scales
}

fn pack_tile(source: ColumnGroups<'_>, layout: &Layout, tile: usize, out: &mut [u32]) {
    let first = tile * TILE;
    let (strip, in_strip) = (first / TILE_ROWS, first % TILE_ROWS);
    for (band, (&code, &[start, _])) in source.codes().iter().zip(&layout.groups).enumerate() {
        let bytes = source.tile_bytes(strip, band);
        let groups = bytes.len() / code.group_bytes();
        let rows = (groups * GROUP_ROWS - in_strip).min(TILE);
        let bits = usize::from(code.bits());
        let out = &mut out[start as usize..];
        for lane in 0..rows {
            let row = in_strip + lane;
            for quad in 0..QUADS_PER_GROUP {
                let field = match code.kind() {
                    CodeKind::Codebook => codebook_field(bytes, groups, bits, row, quad),
                    CodeKind::Trellis => trellis_field(bytes, bits, row, quad),
                };
                let at = 4 * bits * quad;
                let wide = u64::from(field) << (at % 32);
                out[at / 32 * TILE + lane] |= wide as u32;
                if at % 32 + 4 * bits > 32 {
                    out[(at / 32 + 1) * TILE + lane] |= (wide >> 32) as u32;
                }
            }
        }
        if code.kind() == CodeKind::Codebook {
            let packed = bytes.as_chunks::<SCALE_BYTES>().0;
            let scales = &mut out[bits * TILE..][..SCALE_WORDS];
            for lane in 0..rows {
                let row = in_strip + lane;
                let scale = unpack_codebook_scales(&packed[row / GROUP_ROWS])[row % GROUP_ROWS];
                scales[lane / 4] |= u32::from(scale) << (lane % 4 * 8);
            }
        }
    }
}

/// Returns the bits that four weights of a row add to the trellis state.
fn trellis_field(band: &[u8], bits: usize, row: usize, quad: usize) -> u32 {
    let length = band.len() / QUADS_PER_GROUP;
    let stream = &band[quad * length..][..length];
    let bit = row * QUAD * bits;
    let mut word = 0;
    for (i, byte) in stream[bit / 8..].iter().take(3).enumerate() {
        word |= u32::from(*byte) << (8 * i);
    }
    word >> (bit % 8) & ((1 << (QUAD * bits)) - 1)
}

fn codebook_field(band: &[u8], groups: usize, bits: usize, row: usize, quad: usize) -> u32 {
    let chunk = row / GROUP_ROWS * QUADS_PER_GROUP + quad;
    let bytes = CHUNK * bits / 8;
    let chunk = &band[groups * SCALE_BYTES + chunk * bytes..][..bytes];
    let mut field = 0;
    for i in 0..QUAD {
        let mut code = u32::from(code_at(chunk, bits, row % GROUP_ROWS * QUAD + i));
        if bits == 8 {
            // The lowest 8-bit code is not used by the symmetric codebook.
            code = u32::from(codebook_value(8, code as u8).cast_unsigned());
        }
        field |= code << (bits * i);
    }
    field
}
