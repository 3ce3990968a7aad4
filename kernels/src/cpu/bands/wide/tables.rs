//! Where weights are cut out of bytes, and the tables that they are looked up in.

use htc_formats::bands::{GROUP_ROWS, LEVEL_TABLES, QUAD, SCALE_BYTES, TRELLIS_TABLES, Trellis};

/// Bytes of a register.
pub(in crate::cpu::bands) const WIDTH: usize = 64;

/// A register's bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(in crate::cpu::bands) struct Bytes(pub [u8; WIDTH]);

const NO_BYTES: Bytes = Bytes([0; WIDTH]);

/// Bytes of a stream of the largest width in a strip, and those behind it that are read with its last.
pub(in crate::cpu::bands) const STREAM: usize = 640 + WIDTH;

/// How the windows of a chunk are cut out of its bytes: where each word's are; and the bits from which a
/// window of each half of the state begins in it.
pub(in crate::cpu::bands) struct Windows {
    pub bytes: Bytes,
    pub low: Bytes,
    pub high: Bytes,
}

/// Those of 2 to 5 bits.
pub(in crate::cpu::bands) static WINDOWS: [Windows; 4] =
    [windows(2), windows(3), windows(4), windows(5)];

const fn windows(bits: usize) -> Windows {
    let mut windows = Windows {
        bytes: NO_BYTES,
        low: NO_BYTES,
        high: NO_BYTES,
    };
    let mut i = 0;
    while i < WIDTH {
        windows.bytes.0[i] = (i / 8 * bits + i % 8) as u8;
        windows.low.0[i] = (i % 8 * bits) as u8;
        windows.high.0[i] = (i % 8 * bits + 6) as u8;
        i += 1;
    }
    windows
}

/// The tables of a trellis, the first with 128 above its values.
pub(in crate::cpu::bands) type Tables = [Bytes; 2];

/// Those of each version.
pub(in crate::cpu::bands) static TRELLISES: [[Tables; 4]; TRELLIS_TABLES.len()] =
    [trellises(0), trellises(1)];

const fn trellises(version: usize) -> [Tables; 4] {
    let tables = &TRELLIS_TABLES[version];
    [
        trellis(&tables[0]),
        trellis(&tables[1]),
        trellis(&tables[2]),
        trellis(&tables[3]),
    ]
}

const fn trellis(Trellis { low, high, .. }: &Trellis) -> Tables {
    let mut tables = [NO_BYTES; 2];
    let mut i = 0;
    while i < WIDTH {
        tables[0].0[i] = low[i].wrapping_add(-128).cast_unsigned();
        tables[1].0[i] = high[i].cast_unsigned();
        i += 1;
    }
    tables
}

/// A part of codes that lies together: where each weight's byte is, from which bit of its word on a byte
/// is to be cut so that the part is in its place, and which bits are those of this part or of one before.
#[derive(Clone, Copy)]
pub(in crate::cpu::bands) struct Plane {
    pub bytes: Bytes,
    pub from: Bytes,
    pub mask: Bytes,
}

const NO_PLANE: Plane = Plane {
    bytes: NO_BYTES,
    from: NO_BYTES,
    mask: NO_BYTES,
};

/// How levels are read.
pub(in crate::cpu::bands) struct Levels {
    /// Planes of four, two and one bits, of which there are so many.
    pub planes: [Plane; 3],
    pub count: usize,
    /// The values of codes, 128 above, as often as they fit.
    pub tables: [Bytes; 2],
}

/// Those of 2 to 7 bits.
pub(in crate::cpu::bands) static LEVELS: [Levels; 6] = [
    levels(2),
    levels(3),
    levels(4),
    levels(5),
    levels(6),
    levels(7),
];

const fn levels(bits: usize) -> Levels {
    let mut levels = Levels {
        planes: [NO_PLANE; 3],
        count: 0,
        tables: [NO_BYTES; 2],
    };
    let (mut at, mut place, mut width) = (0, 0, 4);
    while width > 0 {
        if bits & width != 0 {
            levels.planes[levels.count] = plane(width, at, place);
            levels.count += 1;
            (at, place) = (at + 8 * width, place + width);
        }
        width /= 2;
    }
    let table = LEVEL_TABLES[bits - 2];
    let mut code = 0;
    while code < 2 * WIDTH {
        let magnitude = table[code % table.len()];
        let negative = code / table.len() % 2 == 1;
        let value = if negative { -magnitude } else { magnitude };
        levels.tables[code / WIDTH].0[code % WIDTH] = value.wrapping_add(-128).cast_unsigned();
        code += 1;
    }
    levels
}

/// A plane of `width` bits that begins at byte `at` of a chunk and belongs at bit `place` of codes.
const fn plane(width: usize, at: usize, place: usize) -> Plane {
    let mut plane = NO_PLANE;
    let bytes = 8 * width;
    let mut i = 0;
    while i < WIDTH {
        plane.bytes.0[i] = (at + i % bytes) as u8;
        let from = 8 * (i % 8) + i / bytes * width;
        plane.from.0[i] = ((from + 64 - place) % 64) as u8;
        plane.mask.0[i] = ((1_u16 << (place + width)) - 1) as u8;
        i += 1;
    }
    plane
}

/// Bytes of the scales of four groups.
pub(in crate::cpu::bands) const FOUR_SCALES: usize = 4 * SCALE_BYTES;

/// How the scales of the rows of four groups are cut out of their bytes, twelve a group: the lower four
/// bits, and the upper two in their place.
pub(in crate::cpu::bands) static SCALES: [Plane; 2] = scales();

const fn scales() -> [Plane; 2] {
    let mut planes = [NO_PLANE; 2];
    let mut i = 0;
    while i < WIDTH {
        let (first, j) = (i / GROUP_ROWS * SCALE_BYTES, i % GROUP_ROWS);
        planes[0].bytes.0[i] = (first + j % 8) as u8;
        planes[0].from.0[i] = (8 * (j % 8) + j / 8 * 4) as u8;
        planes[0].mask.0[i] = 15;
        planes[1].bytes.0[i] = (first + 8 + j % 4) as u8;
        planes[1].from.0[i] = ((8 * (j % 8) + j / 4 * 2 + 64 - 4) % 64) as u8;
        planes[1].mask.0[i] = 63;
        i += 1;
    }
    planes
}

/// How levels of three bits are read, four quads to a register, in 96 bytes of which the second register
/// has those from byte 32 on.
pub(in crate::cpu::bands) struct Threes {
    /// Where the pairs of lower bits are, sixteen bytes of each quad.
    pub pairs: Bytes,
    /// Where the third bits are, twice the eight bytes of each quad.
    pub thirds: Bytes,
    /// From which bits third bits are cut so that those of the first and third sixteen weights are the
    /// bits 2 and 6 of bytes; and those of the second and fourth.
    pub cuts: [Bytes; 2],
    /// The bits of pairs in such bytes.
    pub mask: Bytes,
}

pub(in crate::cpu::bands) static THREES: Threes = threes();

const fn threes() -> Threes {
    let mut threes = Threes {
        pairs: NO_BYTES,
        thirds: NO_BYTES,
        cuts: [NO_BYTES; 2],
        mask: Bytes([0x33; WIDTH]),
    };
    let mut i = 0;
    while i < WIDTH {
        let quad = i / 16 * 24;
        threes.pairs.0[i] = of_two(quad + i % 16);
        threes.thirds.0[i] = of_two(quad + 16 + i % 8);
        let (from, second) = (8 * (i % 8), i / 8 % 2);
        threes.cuts[0].0[i] = ((from + second + 64 - 2) % 64) as u8;
        threes.cuts[1].0[i] = (from + second) as u8;
        i += 1;
    }
    threes
}

/// The place of a byte in two registers, the second of which begins at byte 32.
const fn of_two(byte: usize) -> u8 {
    if byte < WIDTH {
        byte as u8
    } else {
        (WIDTH + byte - WIDTH / 2) as u8
    }
}

/// How a product with one vector takes a trellis: some groups of rows together, whose part of a stream is
/// a block. Each word of eight bytes holds eight or more weights that can be cut out of it; those that have
/// the same place in all words are a part.
pub(in crate::cpu::bands) struct Blocks {
    /// Parts of eight weights to a word, and groups of a block.
    pub parts: usize,
    /// From which byte of the block on the last part is read.
    pub second: usize,
    /// Where the bytes of each word are, where they are not in their places.
    pub bytes: Option<Bytes>,
    /// The bits from which the windows of each half of the state begin, of every part.
    pub cuts: [[Bytes; 2]; MOST_PARTS],
}

/// Parts of a block, at most.
pub(in crate::cpu::bands) const MOST_PARTS: usize = 4;

impl Blocks {
    /// Of 2 to 5 bits. With two and four bits the words lie as they are read, but for a last part, which
    /// is read so many bytes further on that its windows end in the word. With three a word of eight
    /// bytes has just the bits of sixteen weights.
    pub const fn of(bits: usize) -> Blocks {
        let (parts, second) = match bits {
            2 => (4, 2),
            3 => (2, 0),
            4 => (2, 4),
            _ => (1, 0),
        };
        let bytes = if second == 0 {
            Some(word_bytes(bits * parts))
        } else {
            None
        };
        let mut cuts = [[NO_BYTES; 2]; MOST_PARTS];
        let mut p = 0;
        while p < parts {
            let behind = if p + 1 == parts { second } else { 0 };
            let mut i = 0;
            while i < WIDTH {
                let from = 8 * bits * p + i % 8 * bits - 8 * behind;
                assert!(from + 12 <= 64);
                cuts[p][0].0[i] = from as u8;
                cuts[p][1].0[i] = (from + 6) as u8;
                i += 1;
            }
            p += 1;
        }
        Blocks {
            parts,
            second,
            bytes,
            cuts,
        }
    }
}

/// The places of words of eight bytes that begin every so many bytes.
const fn word_bytes(apart: usize) -> Bytes {
    let mut bytes = NO_BYTES;
    let mut i = 0;
    while i < WIDTH {
        bytes.0[i] = (i / 8 * apart + i % 8) as u8;
        i += 1;
    }
    bytes
}

/// The lower halves of two registers in turn, so many bytes of each, and the upper ones.
pub(in crate::cpu::bands) const fn interleaved(unit: usize) -> [Bytes; 2] {
    let mut both = [NO_BYTES; 2];
    let mut i = 0;
    while i < 2 * WIDTH {
        let (of, within) = (i / unit % 2, i / unit / 2 * unit + i % unit);
        both[i / WIDTH].0[i % WIDTH] = (of * WIDTH + within) as u8;
        i += 1;
    }
    both
}

/// Every second unit of so many bytes, of one register and then of another: the first ones, and those
/// behind.
pub(in crate::cpu::bands) const fn separated(unit: usize) -> [Bytes; 2] {
    let mut both = [NO_BYTES; 2];
    let mut i = 0;
    while i < WIDTH {
        let from = i / unit * 2 * unit + i % unit;
        both[0].0[i] = from as u8;
        both[1].0[i] = (from + unit) as u8;
        i += 1;
    }
    both
}

/// The codes of a vector for some quads whose weights lie in a register, as many bytes of each: those of
/// every register of a band.
pub(in crate::cpu::bands) const fn spread(unit: usize) -> [Bytes; 4] {
    let mut registers = [NO_BYTES; 4];
    let quads = WIDTH / unit;
    let mut i = 0;
    while i < 4 * WIDTH {
        let quad = i / WIDTH * quads + i % WIDTH / unit;
        registers[i / WIDTH].0[i % WIDTH] = (quad * QUAD + i % QUAD) as u8;
        i += 1;
    }
    registers
}
