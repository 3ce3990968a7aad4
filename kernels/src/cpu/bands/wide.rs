//! Kernels for registers of 64 bytes and a processor that permutes bytes across them and cuts bytes out of
//! words at any bit, as AVX-512 with VBMI and VNNI does.
//!
//! A register is a chunk: sixteen rows of four columns. Of a trellis eight weights are in one word of eight
//! bytes each: one permutation brings its bytes there, two instructions cut all windows of six bits, two
//! look them up, one adds, one multiplies and adds, 8 for 64 weights with the load; tables have 128 above
//! their values, so that weights are unsigned, which is taken back at the end. Of levels each plane of bits
//! takes a permutation and a cut, two planes a selection, and looking up one permutation, two with seven
//! bits: 5 to 11 for 64 weights with four of the scales of rows.

use htc_formats::bands::{LEVEL_TABLES, TRELLIS_TABLES};

/// Bytes of a register.
pub(super) const WIDTH: usize = 64;

/// A register's bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bytes(pub [u8; WIDTH]);

/// Bytes of a stream of the largest width in a strip, and those behind it that are read with its last.
pub(super) const STREAM: usize = 640 + WIDTH;

/// How the windows of a chunk are cut out of its bytes: where each word's are; and the bits from which a
/// window of each half of the state begins in it.
pub(super) struct Windows {
    pub bytes: Bytes,
    pub low: Bytes,
    pub high: Bytes,
}

/// Those of 2 to 5 bits.
pub(super) static WINDOWS: [Windows; 4] = [windows(2), windows(3), windows(4), windows(5)];

const fn windows(bits: usize) -> Windows {
    let mut windows = Windows {
        bytes: Bytes([0; WIDTH]),
        low: Bytes([0; WIDTH]),
        high: Bytes([0; WIDTH]),
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
pub(super) static TRELLISES: [[Bytes; 2]; 4] = [trellis(0), trellis(1), trellis(2), trellis(3)];

const fn trellis(index: usize) -> [Bytes; 2] {
    let (low, high) = (&TRELLIS_TABLES[index].low, &TRELLIS_TABLES[index].high);
    let mut tables = [Bytes([0; WIDTH]); 2];
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
pub(super) struct Plane {
    pub bytes: Bytes,
    pub from: Bytes,
    pub mask: Bytes,
}

/// How levels are read.
pub(super) struct Levels {
    /// Planes of four, two and one bits, of which there are so many.
    pub planes: [Plane; 3],
    pub count: usize,
    /// The values of codes, 128 above, as often as they fit.
    pub tables: [Bytes; 2],
}

/// Those of 2 to 7 bits.
pub(super) static LEVELS: [Levels; 6] = [
    levels(2),
    levels(3),
    levels(4),
    levels(5),
    levels(6),
    levels(7),
];

const fn levels(bits: usize) -> Levels {
    let none = Plane {
        bytes: Bytes([0; WIDTH]),
        from: Bytes([0; WIDTH]),
        mask: Bytes([0; WIDTH]),
    };
    let mut levels = Levels {
        planes: [none; 3],
        count: 0,
        tables: [Bytes([0; WIDTH]); 2],
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
    let mut plane = Plane {
        bytes: Bytes([0; WIDTH]),
        from: Bytes([0; WIDTH]),
        mask: Bytes([0; WIDTH]),
    };
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

/// How the scales of a group's rows are cut out of their twelve bytes: the lower four bits, and the upper
/// two in their place.
pub(super) static SCALES: [Plane; 2] = scales();

const fn scales() -> [Plane; 2] {
    let none = Plane {
        bytes: Bytes([0; WIDTH]),
        from: Bytes([0; WIDTH]),
        mask: Bytes([0; WIDTH]),
    };
    let mut planes = [none; 2];
    let mut j = 0;
    while j < 16 {
        planes[0].bytes.0[j] = (j % 8) as u8;
        planes[0].from.0[j] = (8 * (j % 8) + j / 8 * 4) as u8;
        planes[0].mask.0[j] = 15;
        planes[1].bytes.0[j] = (8 + j % 4) as u8;
        planes[1].from.0[j] = ((8 * (j % 8) + j / 4 * 2 + 64 - 4) % 64) as u8;
        planes[1].mask.0[j] = 63;
        j += 1;
    }
    planes
}

/// The kernels of [`BandKernels`](super::BandKernels) from the operations on registers in scope.
///
/// `constant` is a register of these bytes, `load` one of as many as there are, zeros behind; `permute`
/// takes the byte that the lower six bits of each choose, `permute_two` by seven bits out of two
/// registers; `cut` takes the eight bits from a bit of each word on; `select` takes the first where a
/// mask's bits are set; `add_bytes`; `at_least` the larger of signed bytes; `flip` the other highest bit
/// of each byte; `dot` adds four products of unsigned with signed bytes; `words` the same number in all
/// lanes; `store` bytes; `finish` adds sums times a scale, and `finish_scaled` those times unsigned bytes,
/// the first sixteen of a register.
macro_rules! wide {
    ($(#[$attribute:meta])*) => {
        /// As [`BandKernels::unpack`](super::BandKernels::unpack).
        $(#[$attribute])*
        pub(in super::super) fn unpack(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            out: &mut [Group],
        ) {
            let bits = usize::from(code.bits());
            if code.kind() == Kind::Trellis {
                let [low, high] = &TRELLISES[bits - 2];
                let tables = [constant(low), constant(high)];
                for quad in 0..QUADS {
                    let mut room = [0; STREAM];
                    stream(bits, band, &groups, quad, &mut room);
                    for (g, group) in out.iter_mut().enumerate() {
                        let bytes = &room[g * 8 * bits..][..WIDTH];
                        let weights = trellis_weights(&WINDOWS[bits - 2], tables, bytes);
                        store(&mut group[quad], flip(weights));
                    }
                }
                return;
            }
            let (_, chunks) = parts(band, code);
            for (group, out) in groups.zip(out) {
                for (quad, out) in out.iter_mut().enumerate() {
                    let chunk = &chunks[(group * QUADS + quad) * 8 * bits..][..8 * bits];
                    store(out, flip(level_weights(bits, chunk)));
                }
            }
        }

        /// As [`BandKernels::add`](super::BandKernels::add).
        $(#[$attribute])*
        pub(in super::super) fn add(
            integers: &[Group],
            factors: &[Group16],
            vectors: &[Part<'_>],
            sums: &mut [Group16],
        ) {
            for (part, sums) in vectors.iter().zip(sums.chunks_exact_mut(integers.len())) {
                let sum: i32 = part.codes.iter().map(|&code| i32::from(code)).sum();
                let mut four = [words(0); QUADS];
                for (four, codes) in four.iter_mut().zip(part.codes.as_chunks::<4>().0) {
                    *four = words(word(*codes));
                }
                for ((group, factors), sums) in integers.iter().zip(factors).zip(sums) {
                    let mut totals = words(-128 * sum);
                    for (chunk, four) in group.iter().zip(four) {
                        let bytes = chunk.map(i8::cast_unsigned);
                        totals = dot(totals, flip(constant(&Bytes(bytes))), four);
                    }
                    finish(sums, totals, &factors.map(|factor| part.scale * factor));
                }
            }
        }

        /// As [`BandKernels::dot`](super::BandKernels::dot).
        $(#[$attribute])*
        pub(in super::super) fn multiply(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            vector: &Vector<'_>,
            room: &mut Room,
            sums: &mut [Group16],
        ) {
            let bits = usize::from(code.bits());
            let mut four = [0; QUADS];
            for (four, codes) in four.iter_mut().zip(vector.codes.as_chunks::<4>().0) {
                *four = word(*codes);
            }
            let centre = words(-128 * vector.sum);
            let next = band.as_ptr().wrapping_add(band.len());
            if code.kind() == Kind::Trellis {
                let [low, high] = &TRELLISES[bits - 2];
                let tables = [constant(low), constant(high)];
                for (quad, room) in room.0.chunks_exact_mut(STREAM).take(QUADS).enumerate() {
                    stream(bits, band, &groups, quad, room);
                }
                let scale = [vector.scale; GROUP_ROWS];
                for (g, sums) in sums.iter_mut().enumerate() {
                    let group_bytes = 8 * bits * QUADS;
                    for line in (0..group_bytes).step_by(64) {
                        prefetch(next.wrapping_add(g * group_bytes + line));
                    }
                    let mut totals = centre;
                    for quad in 0..QUADS {
                        let bytes = &room.0[quad * STREAM + g * 8 * bits..][..WIDTH];
                        let weights = trellis_weights(&WINDOWS[bits - 2], tables, bytes);
                        totals = dot(totals, weights, words(four[quad]));
                    }
                    finish(sums, totals, &scale);
                }
                return;
            }
            let (scales, chunks) = parts(band, code);
            let [low, high] = &SCALES;
            for (group, sums) in groups.zip(sums) {
                let mut totals = centre;
                for quad in 0..QUADS {
                    let chunk = &chunks[(group * QUADS + quad) * 8 * bits..][..8 * bits];
                    prefetch(chunk.as_ptr().wrapping_add(1024));
                    totals = dot(totals, level_weights(bits, chunk), words(four[quad]));
                }
                let packed = load(&scales[group * SCALE_BYTES..][..SCALE_BYTES]);
                let scales = select(
                    constant(&low.mask),
                    cut_plane(low, packed),
                    cut_plane(high, packed),
                );
                finish_scaled(sums, totals, vector.scale, scales);
            }
        }

        /// The scales and the chunks of a band of levels.
        #[inline(always)]
        fn parts(band: &[u8], code: Code) -> (&[u8], &[u8]) {
            band.split_at(band.len() / code.group_bytes() * SCALE_BYTES)
        }

        /// Four codes as a word.
        #[inline(always)]
        fn word(codes: [i8; 4]) -> i32 {
            i32::from_le_bytes(codes.map(i8::cast_unsigned))
        }

        /// The part of a sequence that some groups read, with two bytes behind it, which are its first
        /// ones behind its last.
        #[inline(always)]
        fn stream(bits: usize, band: &[u8], groups: &Range<usize>, quad: usize, room: &mut [u8]) {
            let length = band.len() / QUADS;
            let stream = &band[quad * length..][..length];
            let (start, end) = (groups.start * 8 * bits, groups.end * 8 * bits);
            let count = end - start;
            room[..count].copy_from_slice(&stream[start..end]);
            for (i, byte) in room[count..][..2].iter_mut().enumerate() {
                *byte = stream[(end + i) % length];
            }
        }

        /// The weights of a chunk of a trellis, above by 128.
        $(#[$attribute])*
        #[inline]
        fn trellis_weights(windows: &Windows, tables: [Register; 2], bytes: &[u8]) -> Register {
            let words = permute(load(bytes), constant(&windows.bytes));
            let low = permute(tables[0], cut(constant(&windows.low), words));
            add_bytes(low, permute(tables[1], cut(constant(&windows.high), words)))
        }

        /// The weights of a chunk of levels, above by 128.
        $(#[$attribute])*
        #[inline]
        fn level_weights(bits: usize, chunk: &[u8]) -> Register {
            let bytes = load(chunk);
            let Some(levels) = LEVELS.get(bits - 2) else {
                return flip(at_least(bytes, -127));
            };
            let mut codes = cut_plane(&levels.planes[0], bytes);
            for i in 1..levels.count {
                let mask = constant(&levels.planes[i - 1].mask);
                codes = select(mask, codes, cut_plane(&levels.planes[i], bytes));
            }
            let [low, high] = &levels.tables;
            if bits < 7 {
                permute(constant(low), codes)
            } else {
                permute_two([constant(low), constant(high)], codes)
            }
        }

        /// The bits of a plane in their place; those above are of no meaning where nothing masks them.
        $(#[$attribute])*
        #[inline]
        fn cut_plane(plane: &Plane, bytes: Register) -> Register {
            cut(constant(&plane.from), permute(bytes, constant(&plane.bytes)))
        }
    };
}
pub(super) use wide;
