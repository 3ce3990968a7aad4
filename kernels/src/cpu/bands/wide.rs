//! Column group kernels for 64-byte registers with byte permutations and unaligned bit extraction,
//! as in AVX-512 with VBMI and VNNI.
//!
//! Table entries are raised by 128, so that weights are unsigned; this is subtracted at the end. A
//! permutation ignores the upper two bits of an index, so windows need no mask, and codebook tables
//! are repeated to fill the register, so the bits above a code may be arbitrary.
//!
//! The matrix-vector product is limited by permutations, bit extractions, shifts and products: each
//! takes a cycle per 64 bytes on Zen 4, where one unit runs permutations, another extractions and
//! products, and a third serves both. A trellis takes two lookups and two extractions, and with
//! three and five bits one more instruction to gather words of sixteen or eight weights: per 64
//! weights 4 (two and four bits: words are used as stored), 4.5 (three) and 5 (five). For codebooks
//! of two to four bits, whole registers are shifted so that the codes of some quads are in the
//! lowest bits: 2.5,
//! 2.75 and 1.5, plus the reordering of sums. Others are read as bit planes ([`Plane`]), two
//! instructions each and one or two lookups: 5 to 8.

mod tables;

pub(super) use tables::*;

/// Defines the kernels of [`BandKernels`](super::BandKernels) from register operations in scope.
///
/// - `constant` is a register of the given bytes, `load` reads a slice padded with zeros, `load_behind`
///   likewise with a 16-bit word after it;
/// - `permute` selects bytes by the lower six bits of an index, `permute_two` by seven bits from two
///   registers;
/// - `cut` extracts eight bits starting at a given bit of each word (`vpmultishiftqb`);
/// - `shift` shifts 16-bit words right; `select` takes the first operand where the mask is set;
/// - `add_bytes` adds bytes, `add_words` 32-bit words; `at_least` is the maximum of signed bytes; `flip`
///   flips the highest bit of each byte;
/// - `dot` adds four products of unsigned with signed bytes; `words` broadcasts a 32-bit word; `store`
///   writes bytes;
/// - `finish` adds sums times a factor per row, `finish_same` times one factor, `finish_scaled` times a
///   factor and unsigned bytes.
macro_rules! wide {
    ($(#[$attribute:meta])*) => {
        /// Implements [`BandKernels::unpack`](super::BandKernels::unpack).
        $(#[$attribute])*
        pub(in super::super) fn unpack(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            out: &mut [Group],
        ) {
            let bits = usize::from(code.bits());
            if code.kind() == CodeKind::Trellis {
                let [low, high] = &TRELLISES[code.table_index()][bits - 2];
                let tables = [constant(low), constant(high)];
                for quad in 0..QUADS_PER_GROUP {
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
                    let chunk = &chunks[(group * QUADS_PER_GROUP + quad) * 8 * bits..][..8 * bits];
                    store(out, flip(level_weights(bits, chunk)));
                }
            }
        }

        /// Implements [`BandKernels::add`](super::BandKernels::add). The weights of two row groups
        /// stay in registers for several vectors.
        $(#[$attribute])*
        pub(in super::super) fn add(
            integers: &[Group],
            factors: &[Group16],
            vectors: &[Part<'_>],
            sums: &mut [Group16],
        ) {
            let stride = integers.len();
            let (pairs, rest) = integers.as_chunks::<2>();
            let (factors_of_pairs, factors_of_rest) = factors.as_chunks::<2>();
            let together = sums.chunks_mut(TOGETHER * stride);
            for (vectors, sums) in vectors.chunks(TOGETHER).zip(together) {
                let mut centres = [0; TOGETHER];
                for (centre, vector) in centres.iter_mut().zip(vectors) {
                    for &code in vector.codes {
                        *centre -= 128 * i32::from(code);
                    }
                }
                for (i, (pair, factors)) in pairs.iter().zip(factors_of_pairs).enumerate() {
                    tile(pair, factors, vectors, &centres, &mut sums[2 * i..], stride);
                }
                if let ([group], [factors]) = (rest, factors_of_rest) {
                    let (group, factors) = (&[*group], &[*factors]);
                    tile(group, factors, vectors, &centres, &mut sums[stride - 1..], stride);
                }
            }
        }

        /// Adds the products of `G` row groups with vectors, whose sums are `stride` groups apart.
        $(#[$attribute])*
        #[inline]
        fn tile<const G: usize>(
            integers: &[Group; G],
            factors: &[Group16; G],
            vectors: &[Part<'_>],
            centres: &[i32; TOGETHER],
            sums: &mut [Group16],
            stride: usize,
        ) {
            let mut weights = [[words(0); QUADS_PER_GROUP]; G];
            for g in 0..G {
                for quad in 0..QUADS_PER_GROUP {
                    weights[g][quad] = flip(load_integers(&integers[g][quad]));
                }
            }
            for (t, (vector, &centre)) in vectors.iter().zip(centres).enumerate() {
                let four = words_of(vector.codes);
                let mut totals = [words(centre); G];
                for quad in 0..QUADS_PER_GROUP {
                    let four = words(four[quad]);
                    for g in 0..G {
                        totals[g] = dot(totals[g], weights[g][quad], four);
                    }
                }
                let sums = &mut sums[t * stride..][..G];
                for g in 0..G {
                    finish(&mut sums[g], totals[g], vector.scale, &factors[g]);
                }
            }
        }

        /// Implements [`BandKernels::dot`](super::BandKernels::dot).
        $(#[$attribute])*
        pub(in super::super) fn multiply(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            vector: &Vector<'_>,
            room: &mut Room,
            sums: &mut [Group16],
        ) {
            match (code.kind(), code.bits()) {
                (CodeKind::Trellis, 2) => trellis::<2>(code, band, groups, vector, sums),
                (CodeKind::Trellis, 3) => trellis::<3>(code, band, groups, vector, sums),
                (CodeKind::Trellis, 4) => trellis::<4>(code, band, groups, vector, sums),
                (CodeKind::Trellis, _) => trellis::<5>(code, band, groups, vector, sums),
                (CodeKind::Codebook, 2) => levels::<2>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, 3) => levels::<3>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, 4) => levels::<4>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, 5) => levels::<5>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, 6) => levels::<6>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, 7) => levels::<7>(code, band, groups, vector, room, sums),
                (CodeKind::Codebook, _) => levels::<8>(code, band, groups, vector, room, sums),
            }
        }

        #[inline(always)]
        fn words_of(codes: &[i8; GROUP_COLS]) -> [i32; QUADS_PER_GROUP] {
            let mut words = [0; QUADS_PER_GROUP];
            for quad in 0..QUADS_PER_GROUP {
                let four = &codes.as_chunks::<4>().0[quad];
                words[quad] = i32::from_le_bytes(four.map(i8::cast_unsigned));
            }
            words
        }

        /// Processes one stream after another, for sequential reads; for a whole tile the sums stay
        /// in registers.
        $(#[$attribute])*
        #[inline]
        fn trellis<const BITS: usize>(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            vector: &Vector<'_>,
            sums: &mut [Group16],
        ) {
            let tables = &TRELLISES[code.table_index()][BITS - 2];
            if sums.len() == GROUPS {
                streams::<BITS, true>(tables, band, groups, vector, sums);
            } else {
                streams::<BITS, false>(tables, band, groups, vector, sums);
            }
        }

        $(#[$attribute])*
        fn streams<const BITS: usize, const WHOLE: bool>(
            [low, high]: &Tables,
            band: &[u8],
            groups: Range<usize>,
            vector: &Vector<'_>,
            sums: &mut [Group16],
        ) {
            let blocks = const { &Blocks::of(BITS) };
            let tables = [constant(low), constant(high)];
            let length = band.len() / QUADS_PER_GROUP;
            let bytes = blocks.parts * 8 * BITS;
            let (start, end) = (groups.start * 8 * BITS, groups.end * 8 * BITS);
            let behind = if WHOLE || end == length { 0 } else { end };
            let last = if WHOLE { GROUPS / blocks.parts - 1 } else { (groups.len() - 1) / blocks.parts };
            let four = words_of(vector.codes);
            let mut totals = [words(-128 * vector.sum); GROUPS];
            for quad in 0..QUADS_PER_GROUP {
                let stream = &band[quad * length..][..length];
                let behind = u16::from_le_bytes(*part(stream, behind));
                let blocks_of = &stream[start..end];
                let four = words(four[quad]);
                for b in 0..last {
                    // At least one row group follows a whole block.
                    let block = &blocks_of[b * bytes..];
                    let first = load_whole(part(block, 0));
                    let second = load_whole(part(block, blocks.second));
                    add_block::<BITS>(&mut totals, b * blocks.parts, tables, [first, second], four);
                }
                let block = &blocks_of[last * bytes..];
                let first = load_behind(block, behind);
                let second = load_behind(&block[blocks.second..], behind);
                add_block::<BITS>(&mut totals, last * blocks.parts, tables, [first, second], four);
            }
            for (b, sums) in sums.chunks_mut(blocks.parts).enumerate() {
                let mut of_block = [totals[0]; MOST_PARTS];
                for p in 0..blocks.parts {
                    of_block[p] = totals[b * blocks.parts + p];
                }
                add_rows::<BITS>(of_block, vector.scale, sums);
            }
        }

        $(#[$attribute])*
        #[inline]
        fn add_block<const BITS: usize>(
            totals: &mut [Register; GROUPS],
            at: usize,
            tables: [Register; 2],
            bytes: [Register; 2],
            four: Register,
        ) {
            let blocks = const { &Blocks::of(BITS) };
            let [mut first, second] = bytes;
            if let Some(bytes) = &blocks.bytes {
                first = permute(first, constant(bytes));
            }
            for p in 0..blocks.parts {
                let last = blocks.second != 0 && p + 1 == blocks.parts;
                let bytes = if last { second } else { first };
                let [low, high] = &blocks.cuts[p];
                let low = permute(tables[0], cut(constant(low), bytes));
                let high = permute(tables[1], cut(constant(high), bytes));
                totals[at + p] = dot(totals[at + p], add_bytes(low, high), four);
            }
        }

        /// Adds a block's totals, two rows per word of each part, to the sums of its row groups.
        $(#[$attribute])*
        #[inline]
        fn add_rows<const BITS: usize>(
            mut totals: [Register; MOST_PARTS],
            scale: f32,
            sums: &mut [Group16],
        ) {
            let parts = const { Blocks::of(BITS).parts };
            let [low, high] = const { &interleaved(8) };
            let (low, high) = (constant(low), constant(high));
            if parts == 2 {
                let pair = [totals[0], totals[1]];
                totals = [permute_two(pair, low), permute_two(pair, high), pair[0], pair[1]];
            }
            if parts == 4 {
                let [a, b, c, d] = totals;
                let (first, second) = ([a, b], [c, d]);
                let lower = [permute_two(first, low), permute_two(second, low)];
                let upper = [permute_two(first, high), permute_two(second, high)];
                let [low, high] = const { &interleaved(16) };
                let (low, high) = (constant(low), constant(high));
                totals = [
                    permute_two(lower, low),
                    permute_two(lower, high),
                    permute_two(upper, low),
                    permute_two(upper, high),
                ];
            }
            for g in 0..parts {
                if g < sums.len() {
                    finish_same(&mut sums[g], totals[g], scale);
                }
            }
        }

        $(#[$attribute])*
        fn levels<const BITS: usize>(
            code: Code,
            band: &[u8],
            groups: Range<usize>,
            vector: &Vector<'_>,
            room: &mut Room,
            sums: &mut [Group16],
        ) {
            let (scales, chunks) = parts(band, code);
            let bytes = 64 * BITS;
            let chunks = &chunks[groups.start * bytes..groups.end * bytes];
            let scales = &scales[groups.start * SCALE_BYTES..groups.end * SCALE_BYTES];
            scales_of_rows(scales, room);
            let scales = room.0.as_chunks::<GROUP_ROWS>().0;
            let codes = Spread::new(vector.codes);
            let centre = words(-128 * vector.sum);
            for (g, sums) in sums.iter_mut().enumerate() {
                let group = &chunks[g * bytes..][..bytes];
                let totals = match BITS {
                    2 => twos(group, &codes),
                    3 => threes(group, &codes),
                    4 => fours(group, &codes),
                    _ => by_planes::<BITS>(group, &codes),
                };
                finish_scaled(sums, add_words(totals, centre), vector.scale, &scales[g]);
            }
        }

        /// Unpacks the scales of rows to bytes, four row groups at a time.
        $(#[$attribute])*
        #[inline]
        fn scales_of_rows(packed: &[u8], room: &mut Room) {
            let [low, high] = &SCALES;
            let rooms = room.0.as_chunks_mut::<WIDTH>().0.iter_mut();
            for (packed, room) in packed.chunks(FOUR_SCALES).zip(rooms) {
                let packed = load(packed);
                let mut scales = cut_plane(high, packed);
                scales = select(constant(&low.mask), cut_plane(low, packed), scales);
                scales = select(constant(&high.mask), scales, words(0));
                let mut bytes = [0; WIDTH];
                store(&mut bytes, scales);
                *room = bytes.map(i8::cast_unsigned);
            }
        }

        struct Spread {
            ones: [i32; QUADS_PER_GROUP],
            pairs: [Register; 4],
            fours: [Register; 2],
        }

        impl Spread {
            $(#[$attribute])*
            #[inline]
            fn new(codes: &[i8; GROUP_COLS]) -> Spread {
                let bytes = load(&codes.map(i8::cast_unsigned));
                let (pairs, fours) = const { (&spread(32), &spread(16)) };
                let mut spread = Spread {
                    ones: words_of(codes),
                    pairs: [bytes; 4],
                    fours: [bytes; 2],
                };
                for i in 0..4 {
                    spread.pairs[i] = permute(bytes, constant(&pairs[i]));
                }
                for i in 0..2 {
                    spread.fours[i] = permute(bytes, constant(&fours[i]));
                }
                spread
            }
        }

        /// Returns the sums of a row group's rows for two bits, starting from zero.
        $(#[$attribute])*
        #[inline]
        fn twos(group: &[u8], codes: &Spread) -> Register {
            let table = constant(&LEVELS[0].tables[0]);
            let mut totals = [words(0); 4];
            for i in 0..2 {
                let bytes = load_whole(part(group, 64 * i));
                let shifted = [bytes, shift::<2>(bytes), shift::<4>(bytes), shift::<6>(bytes)];
                for k in 0..4 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.fours[i]);
                }
            }
            of_quarters(totals)
        }

        /// Same as [`twos`] for three bits.
        $(#[$attribute])*
        #[inline]
        fn threes(group: &[u8], codes: &Spread) -> Register {
            let table = constant(&LEVELS[1].tables[0]);
            let mut totals = [words(0); 4];
            let mask = constant(&THREES.mask);
            for i in 0..2 {
                let bytes = [
                    load_whole(part(group, 96 * i)),
                    load_whole(part(group, 96 * i + 32)),
                ];
                let pairs = permute_two(bytes, constant(&THREES.pairs));
                let thirds = permute_two(bytes, constant(&THREES.thirds));
                let [even, odd] = &THREES.cuts;
                let even = select(mask, pairs, cut(constant(even), thirds));
                let odd = select(mask, shift::<2>(pairs), cut(constant(odd), thirds));
                let shifted = [even, odd, shift::<4>(even), shift::<4>(odd)];
                for k in 0..4 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.fours[i]);
                }
            }
            of_quarters(totals)
        }

        /// Same as [`twos`] for four bits.
        $(#[$attribute])*
        #[inline]
        fn fours(group: &[u8], codes: &Spread) -> Register {
            let table = constant(&LEVELS[2].tables[0]);
            let mut totals = [words(0); 2];
            for i in 0..4 {
                let bytes = load_whole(part(group, 64 * i));
                let shifted = [bytes, shift::<4>(bytes)];
                for k in 0..2 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.pairs[i]);
                }
            }
            sum_of_separated(totals, const { &separated(32) })
        }

        /// Same as [`twos`] for other widths, by bit planes.
        $(#[$attribute])*
        #[inline]
        fn by_planes<const BITS: usize>(group: &[u8], codes: &Spread) -> Register {
            let mut totals = words(0);
            for quad in 0..QUADS_PER_GROUP {
                let weights = level_weights(BITS, &group[quad * 8 * BITS..][..8 * BITS]);
                totals = dot(totals, weights, words(codes.ones[quad]));
            }
            totals
        }

        /// Sums over quads of four rows each, which are in the quarters of a register.
        $(#[$attribute])*
        #[inline]
        fn of_quarters([a, b, c, d]: [Register; 4]) -> Register {
            let quarters = const { &separated(16) };
            let first = sum_of_separated([a, b], quarters);
            sum_of_separated([first, sum_of_separated([c, d], quarters)], quarters)
        }

        $(#[$attribute])*
        #[inline]
        fn sum_of_separated(pair: [Register; 2], [a, b]: &[Bytes; 2]) -> Register {
            add_words(permute_two(pair, constant(a)), permute_two(pair, constant(b)))
        }

        /// Splits a codebook column group into scales and chunks.
        #[inline(always)]
        fn parts(band: &[u8], code: Code) -> (&[u8], &[u8]) {
            band.split_at(band.len() / code.group_bytes() * SCALE_BYTES)
        }

        /// Copies the part of a stream that some row groups read, followed by two bytes, which wrap
        /// around to the start of the stream.
        #[inline(always)]
        fn stream(bits: usize, band: &[u8], groups: &Range<usize>, quad: usize, room: &mut [u8]) {
            let length = band.len() / QUADS_PER_GROUP;
            let stream = &band[quad * length..][..length];
            let (start, end) = (groups.start * 8 * bits, groups.end * 8 * bits);
            let count = end - start;
            room[..count].copy_from_slice(&stream[start..end]);
            for (i, byte) in room[count..][..2].iter_mut().enumerate() {
                *byte = stream[(end + i) % length];
            }
        }

        $(#[$attribute])*
        #[inline]
        fn trellis_weights(windows: &Windows, tables: [Register; 2], bytes: &[u8]) -> Register {
            let words = permute(load(bytes), constant(&windows.bytes));
            let low = permute(tables[0], cut(constant(&windows.low), words));
            add_bytes(low, permute(tables[1], cut(constant(&windows.high), words)))
        }

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

        /// Moves the bits of a plane to their position; the bits above are undefined unless masked.
        $(#[$attribute])*
        #[inline]
        fn cut_plane(plane: &Plane, bytes: Register) -> Register {
            cut(constant(&plane.from), permute(bytes, constant(&plane.bytes)))
        }
    };
}
pub(super) use wide;
