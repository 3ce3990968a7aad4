//! Extraction patterns and lookup tables of the kernels for 64-byte registers.

use htc_formats::bands::{CODEBOOKS, GROUP_ROWS, QUAD, SCALE_BYTES, TRELLIS_TABLES, Trellis};

/// Bytes of a register.
pub(in crate::cpu::bands) const WIDTH: usize = 64;

/// Content of a register.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(in crate::cpu::bands) struct Bytes(pub [u8; WIDTH]);

const NO_BYTES: Bytes = Bytes([0; WIDTH]);

/// Bytes of a tile's stream at the largest width, plus overread.
pub(in crate::cpu::bands) const STREAM_BYTES: usize = 640 + WIDTH;

/// Extraction of the windows of a chunk: byte indices of each word, and first bits of the windows
/// of each half of the state.
pub(in crate::cpu::bands) struct Windows {
    pub bytes: Bytes,
    pub low: Bytes,
    pub high: Bytes,
}

/// Windows for 2 to 5 bits.
pub(in crate::cpu::bands) static WINDOWS: [Windows; 4] =
    [windows(2), windows(3), windows(4), windows(5)];

const fn windows(bits: usize) -> Windows {
    let mut windows = Windows {
        bytes: NO_BYTES,
        low: NO_BYTES,
        high: NO_BYTES,
    };
    const_for!(i in 0..WIDTH => {
        windows.bytes.0[i] = (i / 8 * bits + i % 8) as u8;
        windows.low.0[i] = (i % 8 * bits) as u8;
        windows.high.0[i] = (i % 8 * bits + 6) as u8;
    });
    windows
}

/// Tables of a trellis; the first is raised by 128.
pub(in crate::cpu::bands) type TrellisTables = [Bytes; 2];

/// Tables of each version.
pub(in crate::cpu::bands) static TRELLISES: [[TrellisTables; 4]; TRELLIS_TABLES.len()] =
    [trellises(0), trellises(1)];

const fn trellises(version: usize) -> [TrellisTables; 4] {
    let tables = &TRELLIS_TABLES[version];
    [
        trellis_tables(&tables[0]),
        trellis_tables(&tables[1]),
        trellis_tables(&tables[2]),
        trellis_tables(&tables[3]),
    ]
}

const fn trellis_tables(Trellis { low, high, .. }: &Trellis) -> TrellisTables {
    let mut tables = [NO_BYTES; 2];
    const_for!(i in 0..WIDTH => {
        tables[0].0[i] = low[i].wrapping_add(-128).cast_unsigned();
        tables[1].0[i] = high[i].cast_unsigned();
    });
    tables
}

/// Contiguous part of the bits of codes: byte index of each weight, first bit to extract so that
/// the part is in position, and mask of the bits of this part and earlier ones.
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

/// Extraction and lookup of codebook codes.
pub(in crate::cpu::bands) struct CodebookTables {
    /// Planes of four, two and one bits; only the first `count` are used.
    pub planes: [Plane; 3],
    pub count: usize,
    /// Values of codes, raised by 128, repeated to fill the registers.
    pub tables: [Bytes; 2],
}

/// Tables for 2 to 7 bits.
pub(in crate::cpu::bands) static CODEBOOK_TABLES: [CodebookTables; 6] = [
    codebook_tables(2),
    codebook_tables(3),
    codebook_tables(4),
    codebook_tables(5),
    codebook_tables(6),
    codebook_tables(7),
];

const fn codebook_tables(bits: usize) -> CodebookTables {
    let mut levels = CodebookTables {
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
    let table = CODEBOOKS[bits - 2];
    const_for!(code in 0..2 * WIDTH => {
        let magnitude = table[code % table.len()];
        let negative = code / table.len() % 2 == 1;
        let value = if negative { -magnitude } else { magnitude };
        levels.tables[code / WIDTH].0[code % WIDTH] = value.wrapping_add(-128).cast_unsigned();
    });
    levels
}

/// Returns a plane of `width` bits at byte `at` of a chunk for bit `place` of the codes.
const fn plane(width: usize, at: usize, place: usize) -> Plane {
    let mut plane = NO_PLANE;
    let bytes = 8 * width;
    const_for!(i in 0..WIDTH => {
        plane.bytes.0[i] = (at + i % bytes) as u8;
        let from = 8 * (i % 8) + i / bytes * width;
        plane.from.0[i] = ((from + 64 - place) % 64) as u8;
        plane.mask.0[i] = ((1_u16 << (place + width)) - 1) as u8;
    });
    plane
}

/// Bytes of the scales of four row groups.
pub(in crate::cpu::bands) const FOUR_SCALES: usize = 4 * SCALE_BYTES;

/// Extraction of the row scales of four row groups, twelve bytes each: the lower four bits, then
/// the upper two in position.
pub(in crate::cpu::bands) static SCALES: [Plane; 2] = scales();

const fn scales() -> [Plane; 2] {
    let mut planes = [NO_PLANE; 2];
    const_for!(i in 0..WIDTH => {
        let (first, j) = (i / GROUP_ROWS * SCALE_BYTES, i % GROUP_ROWS);
        planes[0].bytes.0[i] = (first + j % 8) as u8;
        planes[0].from.0[i] = (8 * (j % 8) + j / 8 * 4) as u8;
        planes[0].mask.0[i] = 15;
        planes[1].bytes.0[i] = (first + 8 + j % 4) as u8;
        planes[1].from.0[i] = ((8 * (j % 8) + j / 4 * 2 + 64 - 4) % 64) as u8;
        planes[1].mask.0[i] = 63;
    });
    planes
}

/// Extraction of three-bit codes, four quads per register, from 96 bytes; the second register
/// starts at byte 32.
pub(in crate::cpu::bands) struct ThreeBitPattern {
    /// Indices of the pairs of lower bits, sixteen bytes per quad.
    pub pairs: Bytes,
    /// Indices of the third bits, the eight bytes of each quad twice.
    pub thirds: Bytes,
    /// First bits that move the third bits of the first and third sixteen weights to bits 2 and 6
    /// of bytes; and those of the second and fourth.
    pub cuts: [Bytes; 2],
    /// Mask of the pairs.
    pub mask: Bytes,
}

pub(in crate::cpu::bands) static THREE_BITS: ThreeBitPattern = three_bit_pattern();

const fn three_bit_pattern() -> ThreeBitPattern {
    let mut threes = ThreeBitPattern {
        pairs: NO_BYTES,
        thirds: NO_BYTES,
        cuts: [NO_BYTES; 2],
        mask: Bytes([0x33; WIDTH]),
    };
    const_for!(i in 0..WIDTH => {
        let quad = i / 16 * 24;
        threes.pairs.0[i] = two_register_index(quad + i % 16);
        threes.thirds.0[i] = two_register_index(quad + 16 + i % 8);
        let (from, second) = (8 * (i % 8), i / 8 % 2);
        threes.cuts[0].0[i] = ((from + second + 64 - 2) % 64) as u8;
        threes.cuts[1].0[i] = (from + second) as u8;
    });
    threes
}

/// Returns the permutation index of a byte in two registers, the second of which begins at byte 32.
const fn two_register_index(byte: usize) -> u8 {
    if byte < WIDTH {
        byte as u8
    } else {
        (WIDTH + byte - WIDTH / 2) as u8
    }
}

/// Reading pattern of a trellis for one vector. The streams of several row groups form a block.
/// Each eight-byte word holds at least eight extractable weights; weights at the same position in
/// all words form a part.
pub(in crate::cpu::bands) struct StreamPattern {
    /// Parts of eight weights per word; also the row groups of a block.
    pub parts: usize,
    /// Byte of the block at which the last part is read.
    pub second: usize,
    /// Byte indices of each word, if not contiguous.
    pub bytes: Option<Bytes>,
    /// First bits of the windows of each half of the state, per part.
    pub cuts: [[Bytes; 2]; MAX_PARTS],
}

/// Maximum number of parts of a block.
pub(in crate::cpu::bands) const MAX_PARTS: usize = 4;

impl StreamPattern {
    /// Returns the pattern for 2 to 5 bits. With two and four bits, words are used as stored,
    /// except for the last part, which is read a few bytes further so that its windows end within
    /// the word. With three bits, an eight-byte word holds exactly the bits of sixteen weights.
    pub const fn for_bits(bits: usize) -> StreamPattern {
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
        let mut cuts = [[NO_BYTES; 2]; MAX_PARTS];
        const_for!(p in 0..parts => {
            let skipped_bytes = if p + 1 == parts { second } else { 0 };
            const_for!(i in 0..WIDTH => {
                let from = 8 * bits * p + i % 8 * bits - 8 * skipped_bytes;
                assert!(from + 12 <= 64);
                cuts[p][0].0[i] = from as u8;
                cuts[p][1].0[i] = (from + 6) as u8;
            });
        });
        StreamPattern {
            parts,
            second,
            bytes,
            cuts,
        }
    }
}

const fn word_bytes(stride: usize) -> Bytes {
    let mut bytes = NO_BYTES;
    const_for!(i in 0..WIDTH => {
        bytes.0[i] = (i / 8 * stride + i % 8) as u8;
    });
    bytes
}

/// Interleaves units of `unit` bytes of two registers: the lower halves, and the upper halves.
pub(in crate::cpu::bands) const fn interleaved(unit: usize) -> [Bytes; 2] {
    let mut both = [NO_BYTES; 2];
    const_for!(i in 0..2 * WIDTH => {
        let (of, within) = (i / unit % 2, i / unit / 2 * unit + i % unit);
        both[i / WIDTH].0[i % WIDTH] = (of * WIDTH + within) as u8;
    });
    both
}

/// Separates even and odd units of `unit` bytes of two registers.
pub(in crate::cpu::bands) const fn separated(unit: usize) -> [Bytes; 2] {
    let mut both = [NO_BYTES; 2];
    const_for!(i in 0..WIDTH => {
        let from = i / unit * 2 * unit + i % unit;
        both[0].0[i] = from as u8;
        both[1].0[i] = (from + unit) as u8;
    });
    both
}

/// Spreads the codes of a vector for quads of `unit` bytes each in a register, for all registers of
/// a column group.
pub(in crate::cpu::bands) const fn spread(unit: usize) -> [Bytes; 4] {
    let mut registers = [NO_BYTES; 4];
    let quads = WIDTH / unit;
    const_for!(i in 0..4 * WIDTH => {
        let quad = i / WIDTH * quads + i % WIDTH / unit;
        registers[i / WIDTH].0[i % WIDTH] = (quad * QUAD + i % QUAD) as u8;
    });
    registers
}
