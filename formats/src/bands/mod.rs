//! Column-group matrices: every 32 columns have their own code; an incomplete last column group is
//! padded.
//!
//! A **codebook** is a non-uniform symmetric table of 2 to 8 bits, with a scale for each row and
//! column group. A **trellis** has 2 to 5 bits per weight, a scale for each row and one for each
//! column. Each weight shifts new bits into a state of twelve bits; its value is the sum of two
//! table entries, one for each half of the state: the bitshift trellis of QTIP (Tseng et al. 2024)
//! with additive tables.
//!
//! Sixteen rows of four columns are 64 weights that a matrix-vector product decodes together.
//! `SPEC.md`, section "Column groups", is normative.
//!
//! [`Codes`] holds the code of each column group and determines all sizes. [`ColumnGroups`] reads,
//! [`ColumnGroupWriter`] writes. [`CodeLayout`] and [`ColumnGroupMatrix`] add row classes.

mod classes;
mod code;
mod pack;
mod rotation;
mod scaled;
mod tables;
mod text;
mod view;

pub use classes::{
    CodeLayout, ColumnGroupMatrix, MAP_BLOCK_ROWS, MAX_CLASSES, MapBlock, RowClass, RowClassMatrix,
    RowClasses,
};
pub use code::{Code, CodeKind, Codes};
pub use pack::{ColumnGroupWriter, stored_scale};
pub use rotation::{ROTATION_UNIT, rotate};
pub use tables::{CODEBOOKS, TABLES_VERSION, TRELLIS_TABLES, Trellis, codebook_value};
pub(crate) use text::count_groups;
pub use view::{ColumnGroups, code_at, unpack_codebook_scales};

/// Columns of a column group.
pub const GROUP_COLS: usize = 32;

/// Rows of a tile, down which a trellis runs; the last tile may have fewer.
pub const TILE_ROWS: usize = 256;

/// Rows of a row group; rows are padded to a multiple of it.
pub const GROUP_ROWS: usize = 16;

/// Columns that one trellis sequence covers.
pub const QUAD: usize = 4;

/// Weights that are decoded together.
pub const CHUNK: usize = GROUP_ROWS * QUAD;

/// Quads of a column group.
pub const QUADS_PER_GROUP: usize = GROUP_COLS / QUAD;

/// Bits of a trellis state.
pub const STATE_BITS: u32 = 12;

/// Number of trellis states.
pub const STATES: usize = 1 << STATE_BITS;

/// Bytes of the sixteen 6-bit scales of a row group in a codebook column group.
pub const SCALE_BYTES: usize = 12;

/// Largest scale of a row in a codebook column group.
pub const MAX_CODEBOOK_SCALE: u8 = 63;

/// Unit of codebook values and their scales: the largest of both multiply to about one.
pub const CODEBOOK_UNIT: f32 = 1.0 / 8192.0;
