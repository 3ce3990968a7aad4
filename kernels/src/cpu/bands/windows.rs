//! Windows of six bits, cut out of bytes that many lanes have in common: what processors without a table
//! of 64 entries in one instruction need.
//!
//! Where every lane of a register holds the byte at the same place of its own part of a stream, a window
//! lies in the same bits of all lanes. It need not be cut out whole then: the index of a table of sixteen
//! is a nibble that the window covers, at whichever place it has one, and the two bits that remain choose
//! among four such tables; the entries are stored in the order that follows. The nibbles and most of the
//! choices of neighbouring windows are the same.

use htc_formats::bands::TRELLIS_TABLES;

/// The entries of a table of 64 as four tables of sixteen, twice each: number `2 s1 + s0` is chosen by two
/// bits.
pub(super) type Entries = [[i8; 16]; 4];

/// The tables of a trellis, in the order of the windows that begin at each bit of a byte.
pub(super) struct Tables {
    /// The one by the low half of the state, its entries above by 128 (modulo 256), so that sums are
    /// unsigned.
    pub low: [Entries; 8],
    /// The one by the high half.
    pub high: [Entries; 8],
}

/// The tables of 2 to 5 bits.
pub(super) static TABLES: [Tables; 4] = [of(0), of(1), of(2), of(3)];

const fn of(trellis: usize) -> Tables {
    let (low, high) = (&TRELLIS_TABLES[trellis].low, &TRELLIS_TABLES[trellis].high);
    let mut tables = Tables {
        low: [[[0; 16]; 4]; 8],
        high: [[[0; 16]; 4]; 8],
    };
    let mut phase = 0;
    while phase < 8 {
        let mut i = 0;
        while i < 64 {
            let window = window(phase, i % 16, i / 16);
            tables.low[phase][i / 16][i % 16] = low[window].wrapping_add(-128);
            tables.high[phase][i / 16][i % 16] = high[window];
            i += 1;
        }
        phase += 1;
    }
    tables
}

/// The window that begins at bit `phase`, by its nibble and the bits that choose. See the instruction
/// sets' `nibble` and `choices` for where these are taken from.
const fn window(phase: usize, nibble: usize, choices: usize) -> usize {
    let (first, second) = (choices % 2, choices / 2);
    match phase {
        // The nibble is the low one of a byte or begins at bit 1: bits 0 to 3 of the window.
        0 | 1 | 4 => nibble | first << 4 | second << 5,
        // Bits 2 to 5 of the window.
        2 | 6 => nibble << 2 | first | second << 1,
        // Bits 1 to 4.
        3 | 7 => nibble << 1 | first | second << 5,
        // Bits 0 to 2 in the nibble's upper bits, and bit 3 in its lowest.
        _ => nibble >> 1 | (nibble & 1) << 3 | first << 4 | second << 5,
    }
}
