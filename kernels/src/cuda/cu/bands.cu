// Products of column-group matrices with vectors, and dequantisation of their rows.
//
// In device layout a matrix consists of tiles of 32 rows, one row per lane; those of a strip of 256
// rows are contiguous. A tile stores its column groups one after the other. The codes of a row in a
// column group are `bits` words, a bit stream of 32 codes; lanes read adjacent words, so a column
// group has `bits` times 32 words. Codebook column groups are followed by one byte per row, its
// scale. The state of a trellis continues in the next row, and from the last row of a strip in its
// first.
//
// The column groups of a tile are distributed over partial sums, and these over any number of warps
// of a block; the partial sums are added in order. All sums use `fmaf`, so that the compiler rounds
// them the same way for any number of vectors.
#include "tiles.cuh"

namespace bands {

// A matrix whose rows have the same codes.
struct Tiles {
    const uint32_t *words;
    // For each column group its first word in a tile and its code: bits, plus 16 for a trellis,
    // with the table offset from bit 8 on.
    const uint2 *codes;
    // Lookup tables of the codes that need them.
    const int8_t *tables;
    // Row scales in half precision; null without column groups of this kind.
    const uint16_t *of_levels;
    const uint16_t *of_trellises;
    // Column scales in half precision [bands, 32].
    const uint16_t *columns;
    // Output index of each row; null for the identity.
    const uint32_t *places;
    uint32_t rows;
    uint32_t bands;
    uint32_t tile_words;
    uint32_t table_bytes;
};

// A matrix, its input vectors and its output.
struct MatrixProduct {
    Tiles w;
    // Quantised vectors as written by `quantise`, [n, bands, 32] and [n, bands].
    const int8_t *codes;
    const float *steps;
    const uint32_t *sums;
    // [n, y_width].
    float *y;
    // Rows of the output; those from `live` on are zero.
    uint32_t rows;
    uint32_t live;
    uint32_t y_width;
    // Thread blocks that share its tiles.
    uint32_t blocks;
    // Accumulates into `y`.
    uint32_t adds;
    uint32_t unused;
};

struct Product {
    uint32_t n;
    uint32_t count;
    MatrixProduct matrices[4];
};

constexpr uint32_t STRIP = 256, GROUP = 16, TRELLIS = 16;
constexpr uint32_t STATES = 4096;
constexpr float LEVEL_UNIT = 1.0f / 8192.0f;
constexpr float ROTATION_UNIT = 0.1767767f;   // 1 / sqrt(32), as all have it
// Number of partial sums of a row. Each takes every 32nd column group, independent of the warp that
// computes it.
constexpr uint32_t PARTS = 32;

// Offsets of the words of a row and of the next two rows.
struct Place {
    size_t own, next, after;
};

DEVICE size_t words_of_row(const Tiles &w, uint32_t row) {
    return static_cast<size_t>(row / WARP) * w.tile_words + row % WARP;
}

DEVICE Place place_of(const Tiles &w, uint32_t row) {
    const uint32_t strip = row / STRIP * STRIP, padded = ceil_div(w.rows, GROUP) * GROUP - strip;
    const uint32_t rows = padded < STRIP ? padded : STRIP;
    // Lanes after the last row group read existing data; their results are discarded.
    return {words_of_row(w, row), words_of_row(w, strip + (row - strip + 1) % rows),
            words_of_row(w, strip + (row - strip + 2) % rows)};
}

// Returns the `width` bits of quad `quad` of a row of `BITS` words.
template <int BITS> DEVICE uint32_t field(const uint32_t *words, int quad) {
    const int bit = 4 * BITS * quad, word = bit / 32, by = bit % 32;
    const uint32_t bits = by + 4 * BITS > 32 ? __funnelshift_r(words[word], words[(word + 1) % BITS], by) : words[word] >> by;
    return 4 * BITS == 32 ? bits : bits & ((1u << (4 * BITS % 32)) - 1);
}

template <int BITS> DEVICE void load(const uint32_t *from, uint32_t words[BITS]) {
    UNROLL
    for (int i = 0; i < BITS; i++) words[i] = from[i * WARP];
}

// Words per row of a column group that are prefetched one iteration ahead, enough for most codes.
constexpr int AHEAD = 4;

// Loads the first words of a row; the rest, if any, is loaded on use.
DEVICE void load_ahead(uint32_t code, const uint32_t *from, uint32_t words[AHEAD]) {
    const int bits = static_cast<int>(code & 15);
    UNROLL
    for (int i = 0; i < AHEAD; i++) words[i] = i < bits ? from[i * WARP] : 0;
}

template <int BITS> DEVICE void load_rest(const uint32_t *from, const uint32_t ahead[AHEAD], uint32_t words[BITS]) {
    UNROLL
    for (int i = 0; i < BITS; i++) words[i] = i < AHEAD ? ahead[i < AHEAD ? i : 0] : from[i * WARP];
}

// Expands four codes of `BITS` bits, at most four, to nibbles.
template <int BITS> DEVICE uint32_t nibbles(uint32_t codes) {
    constexpr uint32_t MASK = (1u << BITS) - 1;
    return (codes & MASK) | (codes << (4 - BITS) & MASK << 4) | (codes << 2 * (4 - BITS) & MASK << 8) |
           (codes << 3 * (4 - BITS) & MASK << 12);
}

// Looks up the integers of a row's quads, four bytes each. Tables of 16 stay in four registers,
// larger ones in memory.
template <int BITS>
DEVICE void levels(const uint32_t *band, const Place &at, const uint32_t ahead[AHEAD], const int8_t *table, int quads[8]) {
    uint32_t words[BITS];
    load_rest<BITS>(band + at.own, ahead, words);
    uint4 sixteen = {};
    if (BITS <= 4) sixteen = *reinterpret_cast<const uint4 *>(table);
    UNROLL
    for (int quad = 0; quad < 8; quad++) {
        const uint32_t codes = field<BITS>(words, quad);
        uint32_t packed = codes;
        if (BITS <= 4) {
            const uint32_t which = nibbles<BITS <= 4 ? BITS : 4>(codes);
            packed = __byte_perm(sixteen.x, sixteen.y, which & 0x7777);
            // The fourth bit of a nibble selects the second eight entries.
            if (BITS == 4)
                packed = __byte_perm(packed, __byte_perm(sixteen.z, sixteen.w, which & 0x7777),
                                     0x3210 | (which >> 1 & 0x4444));
        } else if (BITS < 8) {
            packed = 0;
            UNROLL
            for (int i = 0; i < 4; i++) {
                const uint32_t code = codes >> BITS * i & ((1u << BITS) - 1);
                packed |= static_cast<uint32_t>(static_cast<uint8_t>(table[code])) << 8 * i;
            }
        }
        quads[quad] = static_cast<int>(packed);
    }
}

template <int BITS>
DEVICE void trellis(const uint32_t *band, const Place &at, const uint32_t ahead[AHEAD], const int8_t *table, int quads[8]) {
    // Twelve bits from the last of four codes on reach into the second row below for rows of eight
    // bits.
    constexpr bool TWO_BELOW = 3 * BITS + 12 > 8 * BITS;
    uint32_t own[BITS], next[BITS], after[BITS] = {};
    load_rest<BITS>(band + at.own, ahead, own);
    load<BITS>(band + at.next, next);
    if (TWO_BELOW) load<BITS>(band + at.after, after);
    UNROLL
    for (int quad = 0; quad < 8; quad++) {
        uint32_t window = field<BITS>(own, quad) | field<BITS>(next, quad) << 4 * BITS;
        if (TWO_BELOW) window |= field<BITS>(after, quad) << (8 * BITS & 31);
        uint32_t packed = 0;
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t state = window >> BITS * i & (STATES - 1);
            packed |= static_cast<uint32_t>(static_cast<uint8_t>(table[state])) << 8 * i;
        }
        quads[quad] = static_cast<int>(packed);
    }
}

// Unpacks a row of a column group to integers. All lanes of a warp share the column group.
DEVICE void unpack_band(uint32_t code, const uint32_t *band, const Place &at, const uint32_t ahead[AHEAD], const int8_t *table,
                        int quads[8]) {
    switch (code & 31) {
    case 2: return levels<2>(band, at, ahead, table, quads);
    case 3: return levels<3>(band, at, ahead, table, quads);
    case 4: return levels<4>(band, at, ahead, table, quads);
    case 5: return levels<5>(band, at, ahead, table, quads);
    case 6: return levels<6>(band, at, ahead, table, quads);
    case 7: return levels<7>(band, at, ahead, table, quads);
    case 8: return levels<8>(band, at, ahead, table, quads);
    case TRELLIS + 2: return trellis<2>(band, at, ahead, table, quads);
    case TRELLIS + 3: return trellis<3>(band, at, ahead, table, quads);
    case TRELLIS + 4: return trellis<4>(band, at, ahead, table, quads);
    default: return trellis<5>(band, at, ahead, table, quads);
    }
}

// Returns the scale of a row in a codebook column group.
DEVICE float scale_of(uint32_t code, const uint32_t *band, size_t tile, uint32_t row) {
    const uint8_t *scales = reinterpret_cast<const uint8_t *>(band + tile + (code & 15) * WARP);
    return static_cast<float>(scales[row % WARP]);
}

// Copies the lookup tables to shared memory; the caller synchronises the block.
DEVICE void bring_tables(const Tiles &w, int8_t *tables) {
    for (uint32_t i = threadIdx.x; i < w.table_bytes / 16; i += blockDim.x)
        reinterpret_cast<uint4 *>(tables)[i] = reinterpret_cast<const uint4 *>(w.tables)[i];
    __syncthreads();
}

// Returns the matrix of a block index, and reduces the index to that within the matrix.
DEVICE const MatrixProduct &matrix_of(const Product &a, uint32_t *index) {
    uint32_t which = 0;
    while (which + 1 < a.count && *index >= a.matrices[which].blocks) *index -= a.matrices[which++].blocks;
    return a.matrices[which];
}

// Writes a product, or adds it with the bits of a separate sum.
DEVICE void put_product(const MatrixProduct &matrix, uint32_t vector, uint32_t row, float product) {
    float *y = matrix.y + static_cast<size_t>(vector) * matrix.y_width + row;
    const float wanted = row < matrix.live ? product : 0.0f;
    *y = matrix.adds ? __fadd_rn(*y, wanted) : wanted;
}

// Returns the next column group of a warp in order of partial sums, or the number of column groups
// after the last.
DEVICE uint32_t band_behind(const Tiles &w, uint32_t warps, uint32_t b) {
    if (b + PARTS < w.bands) return b + PARTS;
    const uint32_t part = b % PARTS + warps;
    return part < PARTS ? part : w.bands;
}

// Returns offset and code of a column group, or zeros past the end.
DEVICE uint2 band_code(const Tiles &w, uint32_t b) { return b < w.bands ? w.codes[b] : uint2{0, 0}; }

// Shared memory: the tables, then two sums per row, part and vector.
template <int COUNT> DEVICE void multiply(const Product &a) {
    DYNAMIC_SHARED(int8_t, tables);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const uint32_t first = blockIdx.y * COUNT;
    uint32_t index = blockIdx.x;
    const MatrixProduct &matrix = matrix_of(a, &index);
    const Tiles &w = matrix.w;
    const uint32_t tiles = ceil_div(w.rows, WARP);
    float *shared = reinterpret_cast<float *>(tables + ceil_div(w.table_bytes, 16) * 16);
    bring_tables(w, tables);
    for (uint32_t tile = index; tile < tiles; tile += matrix.blocks) {
        const uint32_t row = tile * WARP + lane;
        const Place at = place_of(w, row);
        // Words are loaded one iteration ahead, their offsets two ahead.
        uint32_t ahead = band_behind(w, warps, warp);
        uint2 of = band_code(w, warp), next = band_code(w, ahead);
        uint32_t words[AHEAD];
        load_ahead(of.y, w.words + of.x + at.own, words);
        for (uint32_t part = warp; part < PARTS; part += warps) {
            // Codebook and trellis sums.
            float sums[2][COUNT] = {};
            for (uint32_t b = part; b < w.bands; b += PARTS) {
                const uint32_t *band = w.words + of.x;
                uint32_t words_ahead[AHEAD];
                load_ahead(next.y, w.words + next.x + at.own, words_ahead);
                if (ahead < w.bands) ahead = band_behind(w, warps, ahead);
                const uint2 behind = band_code(w, ahead);
                int quads[8];
                unpack_band(of.y, band, at, words, tables + (of.y >> 8), quads);
                const bool is_trellis = of.y & TRELLIS;
                const float factor = is_trellis ? 1.0f : scale_of(of.y, band, at.own - lane, row);
                UNROLL
                for (int j = 0; j < COUNT; j++) {
                    const uint32_t t = first + j < a.n ? first + j : a.n - 1;
                    const size_t block = static_cast<size_t>(t) * w.bands + b;
                    const int4 low = reinterpret_cast<const int4 *>(matrix.codes)[2 * block];
                    const int4 high = reinterpret_cast<const int4 *>(matrix.codes)[2 * block + 1];
                    int sum = __dp4a(quads[0], low.x, 0);
                    sum = __dp4a(quads[1], low.y, sum);
                    sum = __dp4a(quads[2], low.z, sum);
                    sum = __dp4a(quads[3], low.w, sum);
                    sum = __dp4a(quads[4], high.x, sum);
                    sum = __dp4a(quads[5], high.y, sum);
                    sum = __dp4a(quads[6], high.z, sum);
                    sum = __dp4a(quads[7], high.w, sum);
                    const float product = static_cast<float>(sum), step = matrix.steps[block] * factor;
                    if (is_trellis) {
                        sums[1][j] = fmaf(product, step, sums[1][j]);
                    } else {
                        sums[0][j] = fmaf(product, step, sums[0][j]);
                    }
                }
                of = next;
                next = behind;
                UNROLL
                for (int i = 0; i < AHEAD; i++) words[i] = words_ahead[i];
            }
            UNROLL
            for (int j = 0; j < COUNT; j++) {
                shared[(part * COUNT + j) * 2 * WARP + lane] = sums[0][j];
                shared[(part * COUNT + j) * 2 * WARP + WARP + lane] = sums[1][j];
            }
        }
        __syncthreads();
        // One warp per vector.
        const uint32_t to = row < w.rows ? (w.places == nullptr ? row : w.places[row]) : matrix.rows;
        if (warp < COUNT && first + warp < a.n && to < matrix.rows) {
            float levels = 0, trellises = 0;
            for (uint32_t i = 0; i < PARTS; i++) {
                levels += shared[(i * COUNT + warp) * 2 * WARP + lane];
                trellises += shared[(i * COUNT + warp) * 2 * WARP + WARP + lane];
            }
            const float of_levels = w.of_levels == nullptr ? 0.0f : float_of_half(w.of_levels[row]) * LEVEL_UNIT;
            const float of_trellises = w.of_trellises == nullptr ? 0.0f : float_of_half(w.of_trellises[row]);
            const float sum = __fadd_rn(__fmul_rn(levels, of_levels), __fmul_rn(trellises, of_trellises));
            put_product(matrix, first + warp, to, sum);
        }
        __syncthreads();
    }
}

KERNEL_OF_BLOCKS(bands_1, Product, 512, 2) { multiply<1>(a); }
// For few rows; a block has the multiprocessor alone.
KERNEL_OF_BLOCKS(bands_1_alone, Product, 1024, 1) { multiply<1>(a); }
KERNEL_OF_BLOCKS(bands_2, Product, 512, 1) { multiply<2>(a); }
KERNEL_OF_BLOCKS(bands_4, Product, 512, 1) { multiply<4>(a); }
KERNEL_OF_BLOCKS(bands_8, Product, 512, 1) { multiply<8>(a); }

// Rows of tiles for many vectors: lanes hold rows of one column group, decoded on loading, because
// the word count depends on the code.
struct TileRows {
    struct Of {
        const MatrixProduct *matrix;
        const int8_t *tables;
    };
    struct Raw {
        int quads[8];
        float scale;
    };
    static constexpr int SCALES = 1;
    static constexpr bool MINIMA = false, ROW_A_LANE = true;

    DEVICE Raw fetch(const Of &of, uint32_t row, uint32_t b) {
        const Tiles &w = of.matrix->w;
        Raw raw = {};
        if (row >= w.rows || b >= w.bands) return raw;
        const uint2 code = w.codes[b];
        const uint32_t *band = w.words + code.x;
        const Place at = place_of(w, row);
        uint32_t ahead[AHEAD];
        load_ahead(code.y, band + at.own, ahead);
        unpack_band(code.y, band, at, ahead, of.tables + (code.y >> 8), raw.quads);
        // Exact: eleven bits, times six for a codebook column group.
        if (code.y & TRELLIS) {
            raw.scale = float_of_half(w.of_trellises[row]);
        } else {
            raw.scale = float_of_half(w.of_levels[row]) * (scale_of(code.y, band, at.own - row % WARP, row) * LEVEL_UNIT);
        }
        return raw;
    }

    DEVICE void unpack(const Raw &raw, uint32_t, tiles::Codes &codes, tiles::Scales &of) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            codes.first[i] = raw.quads[i];
            codes.second[i] = raw.quads[4 + i];
        }
        of.scales[0] = raw.scale;
    }

    DEVICE void store(const Of &of, uint32_t row, uint32_t vector, float sum) {
        const MatrixProduct &matrix = *of.matrix;
        if (row >= matrix.w.rows) return;
        const uint32_t to = matrix.w.places == nullptr ? row : matrix.w.places[row];
        if (to < matrix.rows) put_product(matrix, vector, to, sum);
    }
};

KERNEL_OF_BLOCKS(bands_tiles, Product, 256, 3) {
    DYNAMIC_SHARED(int8_t, tables);
    uint32_t index = blockIdx.x;
    const MatrixProduct &matrix = matrix_of(a, &index);
    bring_tables(matrix.w, tables);
    const tiles::Vectors x = {matrix.codes, matrix.steps, matrix.sums, a.n, matrix.w.bands};
    tiles::multiply<TileRows>({&matrix, tables}, x, index * tiles::ROWS, blockIdx.y * tiles::VECTORS);
}

struct Embed {
    Tiles w;
    // [rows, width].
    float *out;
    // Columns of the matrix without padding.
    uint32_t width;
    float factor;
    // Applies the inverse rotation to whole column groups.
    uint32_t rotated;
    uint32_t count;
    // Matrix rows and their output indices.
    uint32_t rows[128];
    uint32_t to[128];
};

// One warp per column group, one lane per column.
KERNEL(bands_embed, Embed, 128) {
    const uint32_t lane = threadIdx.x % WARP, column = blockIdx.x * blockDim.x + threadIdx.x, b = column / 32;
    const uint32_t row = a.rows[blockIdx.y];
    float x = 0;
    if (b < a.w.bands) {
        const uint2 of = a.w.codes[b];
        const uint32_t *band = a.w.words + of.x;
        const Place at = place_of(a.w, row);
        int quads[8];
        uint32_t ahead[AHEAD];
        load_ahead(of.y, band + at.own, ahead);
        unpack_band(of.y, band, at, ahead, a.w.tables + (of.y >> 8), quads);
        // Selected by the bits of the lane index, so that the compiler creates no array in local
        // memory.
        const int half[4] = {lane & 16 ? quads[4] : quads[0], lane & 16 ? quads[5] : quads[1],
                             lane & 16 ? quads[6] : quads[2], lane & 16 ? quads[7] : quads[3]};
        const int first = lane & 8 ? half[2] : half[0], second = lane & 8 ? half[3] : half[1];
        const int mine = lane & 4 ? second : first;
        const float integer = static_cast<float>(static_cast<int8_t>(mine >> lane % 4 * 8));
        const float scale = of.y & TRELLIS
                                ? float_of_half(a.w.of_trellises[row]) * float_of_half(a.w.columns[column])
                                : float_of_half(a.w.of_levels[row]) *
                                      (scale_of(of.y, band, at.own - row % WARP, row) * LEVEL_UNIT);
        // Rounded here, because it is summed below.
        x = __fmul_rn(scale, integer);
    }
    if (a.rotated) {
        float turned = x;
        for (uint32_t apart = 16; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(EVERY_LANE, turned, apart);
            turned = lane & apart ? other - turned : turned + other;
        }
        // A padded last column group is not rotated.
        if (b * 32 + 32 <= a.width) x = turned * ROTATION_UNIT;
    }
    if (column < a.width) a.out[static_cast<size_t>(a.to[blockIdx.y]) * a.width + column] = x * a.factor;
}

}  // namespace bands
