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

/// Defines the kernels of [`ColumnGroupKernels`](super::ColumnGroupKernels) from register
/// operations in scope.
///
/// - `load_constant` is a register of the given bytes, `load` reads a slice padded with zeros,
///   `load_with_next` likewise with a 16-bit word after it;
/// - `permute` selects bytes by the lower six bits of an index, `permute_two` by seven bits from
///   two registers;
/// - `extract_bits` extracts eight bits starting at a given bit of each word (`vpmultishiftqb`);
/// - `shift_right_i16` shifts 16-bit words right; `select` takes the first operand where the mask
///   is set;
/// - `add_bytes` adds bytes, `add_i32` 32-bit words; `max_i8` is the maximum of signed bytes;
///   `flip_sign_bits` flips the highest bit of each byte;
/// - `dot` adds four products of unsigned with signed bytes; `broadcast_i32` broadcasts a 32-bit
///   word; `store` writes bytes;
/// - `accumulate` adds sums times a factor per row, `accumulate_with_factor` times one factor,
///   `accumulate_with_bytes` times a factor and unsigned bytes.
macro_rules! byte_permute_kernels {
    ($(#[$attribute:meta])*) => {
        /// Implements [`ColumnGroupKernels::unpack`](super::ColumnGroupKernels::unpack).
        $(#[$attribute])*
        pub(in super::super) fn unpack(
            code: Code,
            column_group: &[u8],
            groups: Range<usize>,
            out: &mut [GroupWeights],
        ) {
            let bits = usize::from(code.bits());
            if code.kind() == CodeKind::Trellis {
                let [low, high] = &TRELLISES[code.table_index()][bits - 2];
                let tables = [load_constant(low), load_constant(high)];
                for quad in 0..QUADS_PER_GROUP {
                    let mut scratch = [0; STREAM_BYTES];
                    copy_stream(bits, column_group, &groups, quad, &mut scratch);
                    for (g, group) in out.iter_mut().enumerate() {
                        let bytes = &scratch[g * 8 * bits..][..WIDTH];
                        let weights = trellis_weights(&WINDOWS[bits - 2], tables, bytes);
                        store(&mut group[quad], flip_sign_bits(weights));
                    }
                }
                return;
            }
            let (_, chunks) = split_scales(column_group, code);
            for (group, out) in groups.zip(out) {
                for (quad, out) in out.iter_mut().enumerate() {
                    let chunk = &chunks[(group * QUADS_PER_GROUP + quad) * 8 * bits..][..8 * bits];
                    store(out, flip_sign_bits(codebook_weights(bits, chunk)));
                }
            }
        }

        /// Implements [`ColumnGroupKernels::add`](super::ColumnGroupKernels::add). The weights of
        /// two row groups stay in registers for several vectors.
        $(#[$attribute])*
        pub(in super::super) fn add(
            integers: &[GroupWeights],
            factors: &[RowValues],
            vectors: &[VectorGroup<'_>],
            sums: &mut [RowValues],
        ) {
            let stride = integers.len();
            let (pairs, rest) = integers.as_chunks::<2>();
            let (factors_of_pairs, factors_of_rest) = factors.as_chunks::<2>();
            let together = sums.chunks_mut(MAX_VECTORS * stride);
            for (vectors, sums) in vectors.chunks(MAX_VECTORS).zip(together) {
                for (i, (pair, factors)) in pairs.iter().zip(factors_of_pairs).enumerate() {
                    multiply_tile(pair, factors, vectors, &mut sums[2 * i..], stride);
                }
                if let ([group], [factors]) = (rest, factors_of_rest) {
                    let (group, factors) = (&[*group], &[*factors]);
                    multiply_tile(group, factors, vectors, &mut sums[stride - 1..], stride);
                }
            }
        }

        /// Adds the products of `G` row groups with vectors, whose sums are `stride` groups apart.
        $(#[$attribute])*
        #[inline]
        fn multiply_tile<const G: usize>(
            integers: &[GroupWeights; G],
            factors: &[RowValues; G],
            vectors: &[VectorGroup<'_>],
            sums: &mut [RowValues],
            stride: usize,
        ) {
            let mut weights = [[broadcast_i32(0); QUADS_PER_GROUP]; G];
            for g in 0..G {
                for quad in 0..QUADS_PER_GROUP {
                    weights[g][quad] = flip_sign_bits(load_integers(&integers[g][quad]));
                }
            }
            for (t, vector) in vectors.iter().enumerate() {
                let four = pack_quads(vector.codes);
                let mut totals = [broadcast_i32(-128 * vector.sum); G];
                for quad in 0..QUADS_PER_GROUP {
                    let four = broadcast_i32(four[quad]);
                    for g in 0..G {
                        totals[g] = dot(totals[g], weights[g][quad], four);
                    }
                }
                let sums = &mut sums[t * stride..][..G];
                for g in 0..G {
                    accumulate(&mut sums[g], totals[g], vector.scale, &factors[g]);
                }
            }
        }

        /// Implements [`ColumnGroupKernels::multiply`](super::ColumnGroupKernels::multiply).
        $(#[$attribute])*
        pub(in super::super) fn multiply(
            code: Code,
            column_group: &[u8],
            groups: Range<usize>,
            vector: &VectorGroup<'_>,
            scratch: &mut GroupScratch,
            sums: &mut [RowValues],
        ) {
            by_bits!(code:
                multiply_trellis(code, column_group, groups, vector, sums),
                multiply_codebook(code, column_group, groups, vector, scratch, sums)
            )
        }

        #[inline(always)]
        fn pack_quads(codes: &[i8; GROUP_COLS]) -> [i32; QUADS_PER_GROUP] {
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
        fn multiply_trellis<const BITS: usize>(
            code: Code,
            column_group: &[u8],
            groups: Range<usize>,
            vector: &VectorGroup<'_>,
            sums: &mut [RowValues],
        ) {
            let tables = &TRELLISES[code.table_index()][BITS - 2];
            if sums.len() == GROUPS {
                multiply_streams::<BITS, true>(tables, column_group, groups, vector, sums);
            } else {
                multiply_streams::<BITS, false>(tables, column_group, groups, vector, sums);
            }
        }

        $(#[$attribute])*
        fn multiply_streams<const BITS: usize, const WHOLE: bool>(
            [low, high]: &TrellisTables,
            column_group: &[u8],
            groups: Range<usize>,
            vector: &VectorGroup<'_>,
            sums: &mut [RowValues],
        ) {
            let blocks = const { &StreamPattern::for_bits(BITS) };
            let tables = [load_constant(low), load_constant(high)];
            let length = column_group.len() / QUADS_PER_GROUP;
            let bytes = blocks.parts * 8 * BITS;
            let (start, end) = (groups.start * 8 * BITS, groups.end * 8 * BITS);
            let next_at = if WHOLE || end == length { 0 } else { end };
            let last = if WHOLE { GROUPS / blocks.parts - 1 } else { (groups.len() - 1) / blocks.parts };
            let four = pack_quads(vector.codes);
            let mut totals = [broadcast_i32(-128 * vector.sum); GROUPS];
            for quad in 0..QUADS_PER_GROUP {
                let stream = &column_group[quad * length..][..length];
                let next = u16::from_le_bytes(*subarray(stream, next_at));
                let read_streams = &stream[start..end];
                let four = broadcast_i32(four[quad]);
                for b in 0..last {
                    // At least one row group follows a whole block.
                    let block = &read_streams[b * bytes..];
                    let first = load_whole(subarray(block, 0));
                    let second = load_whole(subarray(block, blocks.second));
                    add_block::<BITS>(&mut totals, b * blocks.parts, tables, [first, second], four);
                }
                let block = &read_streams[last * bytes..];
                let first = load_with_next(block, next);
                let second = load_with_next(&block[blocks.second..], next);
                add_block::<BITS>(&mut totals, last * blocks.parts, tables, [first, second], four);
            }
            for (b, sums) in sums.chunks_mut(blocks.parts).enumerate() {
                let mut block_totals = [totals[0]; MAX_PARTS];
                for p in 0..blocks.parts {
                    block_totals[p] = totals[b * blocks.parts + p];
                }
                add_rows::<BITS>(block_totals, vector.scale, sums);
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
            let blocks = const { &StreamPattern::for_bits(BITS) };
            let [mut first, second] = bytes;
            if let Some(bytes) = &blocks.bytes {
                first = permute(first, load_constant(bytes));
            }
            for p in 0..blocks.parts {
                let last = blocks.second != 0 && p + 1 == blocks.parts;
                let bytes = if last { second } else { first };
                let [low, high] = &blocks.cuts[p];
                let low = permute(tables[0], extract_bits(load_constant(low), bytes));
                let high = permute(tables[1], extract_bits(load_constant(high), bytes));
                totals[at + p] = dot(totals[at + p], add_bytes(low, high), four);
            }
        }

        /// Adds a block's totals, two rows per word of each part, to the sums of its row groups.
        $(#[$attribute])*
        #[inline]
        fn add_rows<const BITS: usize>(
            mut totals: [Register; MAX_PARTS],
            scale: f32,
            sums: &mut [RowValues],
        ) {
            let parts = const { StreamPattern::for_bits(BITS).parts };
            let [low, high] = const { &interleaved(8) };
            let (low, high) = (load_constant(low), load_constant(high));
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
                let (low, high) = (load_constant(low), load_constant(high));
                totals = [
                    permute_two(lower, low),
                    permute_two(lower, high),
                    permute_two(upper, low),
                    permute_two(upper, high),
                ];
            }
            for g in 0..parts {
                if g < sums.len() {
                    accumulate_with_factor(&mut sums[g], totals[g], scale);
                }
            }
        }

        $(#[$attribute])*
        fn multiply_codebook<const BITS: usize>(
            code: Code,
            column_group: &[u8],
            groups: Range<usize>,
            vector: &VectorGroup<'_>,
            scratch: &mut GroupScratch,
            sums: &mut [RowValues],
        ) {
            let (scales, chunks) = split_scales(column_group, code);
            let bytes = 64 * BITS;
            let chunks = &chunks[groups.start * bytes..groups.end * bytes];
            let scales = &scales[groups.start * SCALE_BYTES..groups.end * SCALE_BYTES];
            unpack_row_scales(scales, scratch);
            let scales = scratch.0.as_chunks::<GROUP_ROWS>().0;
            let codes = SpreadCodes::new(vector.codes);
            let centre = broadcast_i32(-128 * vector.sum);
            for (g, sums) in sums.iter_mut().enumerate() {
                let group = &chunks[g * bytes..][..bytes];
                let totals = match BITS {
                    2 => sum_two_bits(group, &codes),
                    3 => sum_three_bits(group, &codes),
                    4 => sum_four_bits(group, &codes),
                    _ => sum_bit_planes::<BITS>(group, &codes),
                };
                accumulate_with_bytes(sums, add_i32(totals, centre), vector.scale, &scales[g]);
            }
        }

        /// Unpacks the scales of rows to bytes, four row groups at a time.
        $(#[$attribute])*
        #[inline]
        fn unpack_row_scales(packed: &[u8], scratch: &mut GroupScratch) {
            let [low, high] = &SCALES;
            let outputs = scratch.0.as_chunks_mut::<WIDTH>().0.iter_mut();
            for (packed, out) in packed.chunks(FOUR_SCALES).zip(outputs) {
                let packed = load(packed);
                let mut scales = cut_plane(high, packed);
                scales = select(load_constant(&low.mask), cut_plane(low, packed), scales);
                scales = select(load_constant(&high.mask), scales, broadcast_i32(0));
                let mut bytes = [0; WIDTH];
                store(&mut bytes, scales);
                *out = bytes.map(i8::cast_unsigned);
            }
        }

        struct SpreadCodes {
            ones: [i32; QUADS_PER_GROUP],
            pairs: [Register; 4],
            fours: [Register; 2],
        }

        impl SpreadCodes {
            $(#[$attribute])*
            #[inline]
            fn new(codes: &[i8; GROUP_COLS]) -> SpreadCodes {
                let bytes = load(&codes.map(i8::cast_unsigned));
                let (pairs, fours) = const { (&spread(32), &spread(16)) };
                let mut spread = SpreadCodes {
                    ones: pack_quads(codes),
                    pairs: [bytes; 4],
                    fours: [bytes; 2],
                };
                for i in 0..4 {
                    spread.pairs[i] = permute(bytes, load_constant(&pairs[i]));
                }
                for i in 0..2 {
                    spread.fours[i] = permute(bytes, load_constant(&fours[i]));
                }
                spread
            }
        }

        /// Returns the sums of a row group's rows for two bits, starting from zero.
        $(#[$attribute])*
        #[inline]
        fn sum_two_bits(group: &[u8], codes: &SpreadCodes) -> Register {
            let table = load_constant(&CODEBOOK_TABLES[0].tables[0]);
            let mut totals = [broadcast_i32(0); 4];
            for i in 0..2 {
                let bytes = load_whole(subarray(group, 64 * i));
                let shifted = [bytes, shift_right_i16::<2>(bytes), shift_right_i16::<4>(bytes), shift_right_i16::<6>(bytes)];
                for k in 0..4 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.fours[i]);
                }
            }
            sum_quarters(totals)
        }

        /// Same as [`sum_two_bits`] for three bits.
        $(#[$attribute])*
        #[inline]
        fn sum_three_bits(group: &[u8], codes: &SpreadCodes) -> Register {
            let table = load_constant(&CODEBOOK_TABLES[1].tables[0]);
            let mut totals = [broadcast_i32(0); 4];
            let mask = load_constant(&THREE_BITS.mask);
            for i in 0..2 {
                let bytes = [
                    load_whole(subarray(group, 96 * i)),
                    load_whole(subarray(group, 96 * i + 32)),
                ];
                let pairs = permute_two(bytes, load_constant(&THREE_BITS.pairs));
                let thirds = permute_two(bytes, load_constant(&THREE_BITS.thirds));
                let [even, odd] = &THREE_BITS.cuts;
                let even = select(mask, pairs, extract_bits(load_constant(even), thirds));
                let odd = select(mask, shift_right_i16::<2>(pairs), extract_bits(load_constant(odd), thirds));
                let shifted = [even, odd, shift_right_i16::<4>(even), shift_right_i16::<4>(odd)];
                for k in 0..4 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.fours[i]);
                }
            }
            sum_quarters(totals)
        }

        /// Same as [`sum_two_bits`] for four bits.
        $(#[$attribute])*
        #[inline]
        fn sum_four_bits(group: &[u8], codes: &SpreadCodes) -> Register {
            let table = load_constant(&CODEBOOK_TABLES[2].tables[0]);
            let mut totals = [broadcast_i32(0); 2];
            for i in 0..4 {
                let bytes = load_whole(subarray(group, 64 * i));
                let shifted = [bytes, shift_right_i16::<4>(bytes)];
                for k in 0..2 {
                    totals[k] = dot(totals[k], permute(table, shifted[k]), codes.pairs[i]);
                }
            }
            sum_of_separated(totals, const { &separated(32) })
        }

        /// Same as [`sum_two_bits`] for other widths, by bit planes.
        $(#[$attribute])*
        #[inline]
        fn sum_bit_planes<const BITS: usize>(group: &[u8], codes: &SpreadCodes) -> Register {
            let mut totals = broadcast_i32(0);
            for quad in 0..QUADS_PER_GROUP {
                let weights = codebook_weights(BITS, &group[quad * 8 * BITS..][..8 * BITS]);
                totals = dot(totals, weights, broadcast_i32(codes.ones[quad]));
            }
            totals
        }

        /// Sums over quads of four rows each, which are in the quarters of a register.
        $(#[$attribute])*
        #[inline]
        fn sum_quarters([a, b, c, d]: [Register; 4]) -> Register {
            let quarters = const { &separated(16) };
            let first = sum_of_separated([a, b], quarters);
            sum_of_separated([first, sum_of_separated([c, d], quarters)], quarters)
        }

        $(#[$attribute])*
        #[inline]
        fn sum_of_separated(pair: [Register; 2], [a, b]: &[Bytes; 2]) -> Register {
            add_i32(permute_two(pair, load_constant(a)), permute_two(pair, load_constant(b)))
        }

        /// Splits a codebook column group into scales and chunks.
        #[inline(always)]
        fn split_scales(column_group: &[u8], code: Code) -> (&[u8], &[u8]) {
            column_group.split_at(column_group.len() / code.group_bytes() * SCALE_BYTES)
        }

        /// Copies the part of a stream that some row groups read, followed by two bytes, which wrap
        /// around to the start of the stream.
        #[inline(always)]
        fn copy_stream(bits: usize, column_group: &[u8], groups: &Range<usize>, quad: usize, scratch: &mut [u8]) {
            let length = column_group.len() / QUADS_PER_GROUP;
            let stream = &column_group[quad * length..][..length];
            let (start, end) = (groups.start * 8 * bits, groups.end * 8 * bits);
            let count = end - start;
            scratch[..count].copy_from_slice(&stream[start..end]);
            for (i, byte) in scratch[count..][..2].iter_mut().enumerate() {
                *byte = stream[(end + i) % length];
            }
        }

        $(#[$attribute])*
        #[inline]
        fn trellis_weights(windows: &Windows, tables: [Register; 2], bytes: &[u8]) -> Register {
            let words = permute(load(bytes), load_constant(&windows.bytes));
            let low = permute(tables[0], extract_bits(load_constant(&windows.low), words));
            add_bytes(low, permute(tables[1], extract_bits(load_constant(&windows.high), words)))
        }

        $(#[$attribute])*
        #[inline]
        fn codebook_weights(bits: usize, chunk: &[u8]) -> Register {
            let bytes = load(chunk);
            let Some(levels) = CODEBOOK_TABLES.get(bits - 2) else {
                return flip_sign_bits(max_i8(bytes, -127));
            };
            let mut codes = cut_plane(&levels.planes[0], bytes);
            for i in 1..levels.count {
                let mask = load_constant(&levels.planes[i - 1].mask);
                codes = select(mask, codes, cut_plane(&levels.planes[i], bytes));
            }
            let [low, high] = &levels.tables;
            if bits < 7 {
                permute(load_constant(low), codes)
            } else {
                permute_two([load_constant(low), load_constant(high)], codes)
            }
        }

        /// Moves the bits of a plane to their position; the bits above are undefined unless masked.
        $(#[$attribute])*
        #[inline]
        fn cut_plane(plane: &Plane, bytes: Register) -> Register {
            extract_bits(load_constant(&plane.from), permute(bytes, load_constant(&plane.bytes)))
        }
    };
}
pub(super) use byte_permute_kernels;
