//! Column-group matrices in tiles of 32 rows, the layout of `bands.cu`.

use htc_formats::bands::{
    BAND, Bands, CHUNK, ClassedBands, Code, Codes, GROUP_ROWS, Kind, MAP_ROWS, MAX_CLASSES, QUAD,
    QUADS, SCALE_BYTES, STATES, STRIP_ROWS, Trellis, code_at, level, level_scales,
};

use super::format::undecodable;
use super::{STAGED, aligned, in_pieces};
use crate::Pool;
use crate::cuda::device::{Device, DeviceError, Memory, Span};

/// Rows of a tile, one per lane of a warp.
const TILE: usize = 32;

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Place {
    pub class: u8,
    pub row: u32,
}

/// Kernel argument: a matrix whose rows have the same codes. Layout as in `bands.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in super::super) struct Tiles {
    words: Span,
    codes: Span,
    tables: Span,
    of_levels: Span,
    of_trellises: Span,
    columns: Span,
    places: Span,
    rows: u32,
    bands: u32,
    tile_words: u32,
    table_bytes: u32,
}

pub(in super::super) struct BandsPart<D: Device> {
    memory: D::Memory,
    layout: Layout,
    pub rows: usize,
    pub bands: usize,
    pub rotated: bool,
    /// Input vectors are multiplied by column scales.
    pub scaled: bool,
}

#[derive(Debug)]
struct Layout {
    /// For each column group its first word in a tile and its kernel code.
    bands: Vec<[u32; 2]>,
    tables: Vec<u8>,
    tile_words: usize,
    /// Offset and length of each part in bytes, in the order of [`Tiles`]; zero length if absent.
    parts: [(usize, usize); 7],
    bytes: usize,
}

const TRELLIS: u32 = 16;

/// Row scales of a codebook column group in a tile, in 32-bit words.
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
                    tables.extend(table(code));
                    tables.resize(tables.len().next_multiple_of(16), 0);
                    seen.push((code, at));
                    at
                }
            };
            let bits = u32::from(code.bits());
            let is_trellis = code.kind() == Kind::Trellis;
            let kind = if is_trellis { TRELLIS } else { 0 };
            bands.push([tile_words as u32, bits | kind | table << 8]);
            tile_words += code.bits() as usize * TILE;
            if !is_trellis {
                tile_words += SCALE_WORDS;
            }
        }
        let tiles = rows.div_ceil(TILE);
        let has = |kind| usize::from(codes.has(kind));
        let sizes = [
            4 * tile_words * tiles,
            8 * codes.len(),
            tables.len(),
            2 * rows * has(Kind::Levels),
            2 * rows * has(Kind::Trellis),
            2 * BAND * codes.len() * has(Kind::Trellis),
            4 * rows * usize::from(has_places),
        ];
        let mut bytes = 0;
        let parts = sizes.map(|size| {
            let start = bytes;
            bytes += aligned(size);
            (start, size)
        });
        Layout {
            bands,
            tables,
            tile_words,
            parts,
            bytes,
        }
    }
}

/// Returns the lookup table of a code; 8-bit codebook codes need none.
fn table(code: Code) -> Vec<u8> {
    let bits = code.bits();
    match Trellis::of(code) {
        Some(trellis) => (0..STATES)
            .map(|state| trellis.value(state).cast_unsigned())
            .collect(),
        None if bits == 8 => Vec::new(),
        None => (0..1 << bits)
            .map(|code| level(bits, code).cast_unsigned())
            .collect(),
    }
}

pub(super) fn bytes_of(source: Bands<'_>, has_places: bool) -> usize {
    Layout::new(source.codes(), source.rows(), has_places).bytes
}

pub(super) fn places(classes: &ClassedBands<'_>) -> Result<Vec<Place>, DeviceError> {
    let mut counts = [0_u32; MAX_CLASSES];
    let rows: Vec<usize> = classes.classes().map(|class| class.rows()).collect();
    let mut places = Vec::with_capacity(classes.rows());
    for first in (0..classes.rows()).step_by(MAP_ROWS) {
        let block = classes.block(first / MAP_ROWS);
        for row in 0..MAP_ROWS.min(classes.rows() - first) {
            let class = block.class(row);
            let place = counts[class];
            if rows.get(class).is_none_or(|&rows| place as usize >= rows) {
                let row = first + row;
                return Err(undecodable(format!(
                    "row {row} is one more than its class {class} has"
                )));
            }
            counts[class] += 1;
            places.push(Place {
                class: class as u8,
                row: place,
            });
        }
    }
    Ok(places)
}

pub(super) fn rows_of_class(places: &[Place], class: usize, rows: usize) -> Vec<u32> {
    let mut of_class = Vec::with_capacity(rows);
    for (row, place) in (0..).zip(places) {
        if usize::from(place.class) == class {
            of_class.push(row);
        }
    }
    of_class
}

impl<D: Device> BandsPart<D> {
    pub(super) fn new(
        pool: Option<&Pool>,
        device: &D,
        source: Bands<'_>,
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
        put(of_codes, &le_bytes(layout.bands.as_flattened()))?;
        put(tables, &layout.tables)?;
        put(levels, source.row_scale_bytes(Kind::Levels))?;
        put(trellises, source.row_scale_bytes(Kind::Trellis))?;
        put(to, &le_bytes(places.unwrap_or(&[])))?;
        let scaled = codes.has(Kind::Trellis);
        if scaled {
            put(columns, &column_scales(source))?;
        }
        let tile_bytes = 4 * layout.tile_words;
        let tiles = source.rows().div_ceil(TILE);
        let at_a_time = (STAGED / tile_bytes.max(1)).max(1);
        in_pieces(pool, tiles.div_ceil(at_a_time), |piece| {
            let first = piece * at_a_time;
            let count = at_a_time.min(tiles - first);
            let part = (words + first * tile_bytes, count * tile_bytes);
            device.upload_parts(&memory, &[part], &mut |bytes| {
                let mut staged = vec![0; count * layout.tile_words];
                for (tile, out) in (first..).zip(staged.chunks_exact_mut(layout.tile_words)) {
                    lay_out(source, &layout, tile, out);
                }
                for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&staged) {
                    *to = word.to_le_bytes();
                }
                Ok(())
            })
        })?;
        Ok(BandsPart {
            memory,
            layout,
            rows: source.rows(),
            bands: codes.len(),
            rotated: codes.is_rotated(),
            scaled,
        })
    }

    /// Returns the kernel arguments.
    pub(in super::super) fn tiles(&self) -> Result<Tiles, DeviceError> {
        let mut spans = [Span::NONE; 7];
        for (span, (start, bytes)) in spans.iter_mut().zip(self.layout.parts) {
            if bytes > 0 {
                *span = self
                    .memory
                    .span("a part of a matrix in bands", start, bytes)?;
            }
        }
        let [
            words,
            codes,
            tables,
            of_levels,
            of_trellises,
            columns,
            places,
        ] = spans;
        let count = super::super::count;
        Ok(Tiles {
            words,
            codes,
            tables,
            of_levels,
            of_trellises,
            columns,
            places,
            rows: count("rows of a matrix", self.rows)?,
            bands: count("bands of a matrix", self.bands)?,
            tile_words: count("words of a tile", self.layout.tile_words)?,
            table_bytes: count("bytes of tables", self.table_bytes())?,
        })
    }

    /// Returns the column scales, or [`Span::NONE`].
    pub(in super::super) fn columns(&self) -> Result<Span, DeviceError> {
        match self.layout.parts[5] {
            (_, 0) => Ok(Span::NONE),
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

fn column_scales(source: Bands<'_>) -> Vec<u8> {
    let mut scales = Vec::with_capacity(2 * BAND * source.codes().len());
    for band in 0..source.codes().len() {
        match source.column_scale_bytes(band) {
            [] => scales.extend([half::f16::ONE.to_le_bytes(); BAND].as_flattened()),
            bytes => scales.extend(bytes),
        }
    }
    scales
}

fn lay_out(source: Bands<'_>, layout: &Layout, tile: usize, out: &mut [u32]) {
    let first = tile * TILE;
    let (strip, in_strip) = (first / STRIP_ROWS, first % STRIP_ROWS);
    for (band, (&code, &[start, _])) in source.codes().iter().zip(&layout.bands).enumerate() {
        let bytes = source.band(strip, band);
        let groups = bytes.len() / code.group_bytes();
        let rows = (groups * GROUP_ROWS - in_strip).min(TILE);
        let bits = usize::from(code.bits());
        let out = &mut out[start as usize..];
        for lane in 0..rows {
            let row = in_strip + lane;
            for quad in 0..QUADS {
                let field = match code.kind() {
                    Kind::Levels => level_field(bytes, groups, bits, row, quad),
                    Kind::Trellis => trellis_field(bytes, bits, row, quad),
                };
                let at = 4 * bits * quad;
                let wide = u64::from(field) << (at % 32);
                out[at / 32 * TILE + lane] |= wide as u32;
                if at % 32 + 4 * bits > 32 {
                    out[(at / 32 + 1) * TILE + lane] |= (wide >> 32) as u32;
                }
            }
        }
        if code.kind() == Kind::Levels {
            let packed = bytes.as_chunks::<SCALE_BYTES>().0;
            let scales = &mut out[bits * TILE..][..SCALE_WORDS];
            for lane in 0..rows {
                let row = in_strip + lane;
                let scale = level_scales(&packed[row / GROUP_ROWS])[row % GROUP_ROWS];
                scales[lane / 4] |= u32::from(scale) << (lane % 4 * 8);
            }
        }
    }
}

/// Returns the bits that four weights of a row add to the trellis state.
fn trellis_field(band: &[u8], bits: usize, row: usize, quad: usize) -> u32 {
    let length = band.len() / QUADS;
    let stream = &band[quad * length..][..length];
    let bit = row * QUAD * bits;
    // At most twenty bits that begin at a nibble.
    let mut word = 0;
    for (i, byte) in stream[bit / 8..].iter().take(3).enumerate() {
        word |= u32::from(*byte) << (8 * i);
    }
    word >> (bit % 8) & ((1 << (QUAD * bits)) - 1)
}

fn level_field(band: &[u8], groups: usize, bits: usize, row: usize, quad: usize) -> u32 {
    let chunk = row / GROUP_ROWS * QUADS + quad;
    let bytes = CHUNK * bits / 8;
    let chunk = &band[groups * SCALE_BYTES + chunk * bytes..][..bytes];
    let mut field = 0;
    for i in 0..QUAD {
        let mut code = u32::from(code_at(chunk, bits, row % GROUP_ROWS * QUAD + i));
        if bits == 8 {
            // The lowest 8-bit code is not used by the symmetric codebook.
            code = u32::from(level(8, code as u8).cast_unsigned());
        }
        field |= code << (bits * i);
    }
    field
}
