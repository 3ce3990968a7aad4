//! Encoders of the codes of [bands](htc_formats::bands): numbers in, codes and what they decode to out.
//!
//! Nothing here knows of a whole matrix. Whoever encodes one chooses the scales of its rows and columns,
//! hands over a column, or four of them, of a strip of at most 256 rows, in units of the integers of the
//! tables, and packs the codes with [`Packer`](htc_formats::bands::Packer). [`encode_bands`] is the plain
//! way to do so, without calibration.

mod levels;
mod matrix;
mod trellis;

pub use levels::{Levels, Nearest};
pub use matrix::{BandsEncodeError, encode_bands};

pub use trellis::Viterbi;
