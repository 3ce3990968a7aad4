//! Matrices in bands: every 32 columns have a code of their own, and where columns are left, they have one, too,
//! in a band that is padded.
//!
//! Two kinds of code share one order of the weights. **Levels** are non-uniform symmetric tables of 2
//! to 8 bits, with a scale for each row and band. A **trellis** has 2 to 5 bits: each weight brings so
//! many new bits into a state of twelve, and its value is the sum of two table entries, one for each
//! half of the state (the bitshift trellis of QTIP, Tseng et al. 2024, with additive tables of our own, which
//! are sums themselves, one entry for each nibble of the state), with a scale for each row and one for each
//! column.
//!
//! The order serves a product with a vector: sixteen rows of four columns are 64 weights that are
//! decoded together and multiplied by one broadcast of four numbers into sixteen sums. `SPEC.md`, under
//! "Bands", is normative.
//!
//! [`Codes`] says which code each band has, and with it every size; [`Bands`] reads, [`Packer`] writes. Rows may have
//! classes with codes of their own: [`Layout`] says which, [`Banded`] reads either.

mod classes;
mod code;
mod error;
mod pack;
mod rotation;
mod scaled;
mod tables;
mod text;
mod view;

pub use classes::{
    Banded, ClassedBands, Layout, MAP_ROWS, MAX_CLASSES, MapBlock, RowClass, RowClasses,
};
pub use code::{Code, Codes, Kind};
pub use error::CodesError;
pub use pack::{Packer, stored_scale};
pub use rotation::{ROTATION_UNIT, rotate};
pub use tables::{LEVEL_TABLES, TABLES_VERSION, TRELLIS_TABLES, Trellis, level};
pub use view::{Bands, BandsError, code_at, level_scales};

/// Columns of a band.
pub const BAND: usize = 32;

/// Rows of a strip; the last one may have fewer. A trellis runs down a strip.
pub const STRIP_ROWS: usize = 256;

/// Rows of a group; rows are padded to a multiple of it.
pub const GROUP_ROWS: usize = 16;

/// Columns that a sequence of a trellis covers, and neighbours that are multiplied together.
pub const QUAD: usize = 4;

/// Weights that are decoded together: a [`QUAD`] of columns of a group.
pub const CHUNK: usize = GROUP_ROWS * QUAD;

/// Quads of a band.
pub const QUADS: usize = BAND / QUAD;

/// Bits of a trellis' state.
pub const STATE_BITS: u32 = 12;

/// States of a trellis.
pub const STATES: usize = 1 << STATE_BITS;

/// Bytes of the sixteen 6-bit scales of a group in a band of levels.
pub const SCALE_BYTES: usize = 12;

/// The largest scale of a row in a band of levels.
pub const MAX_SCALE: u8 = 63;

/// The unit of levels and their scales: the largest of both make about one.
pub const LEVEL_UNIT: f32 = 1.0 / 8192.0;
