// Products of float matrices with many vectors with tensor cores, in tiles of 128 rows by 64
// vectors, or 64 by 64 for f32.
//
// Vectors, and f32 matrices, are split into 16-bit parts (`parts.cuh`). A thread block processes 32
// elements of its rows at a time; the next are loaded into registers during the multiplication.
// Tensor cores sum 32 products, which are then added to the previous ones in order: a row has the
// same bits with a vector at any index of any batch, but not the same as products summed by lanes.
#include "blocks.cuh"
#include "parts.cuh"

namespace products {
namespace float_tiles {

constexpr uint32_t VECTORS = 64, THREADS = 256;
using parts::CHUNK;
using parts::CHUNKS;
static_assert(VECTORS * CHUNKS == THREADS, "each thread brings a chunk of a vector");
// Units of 16 rows by 8 vectors. Four warps share the rows of a tile and two its vectors; a warp
// has this number of units of eight vectors.
constexpr uint32_t WARPS_OF_ROWS = 4, COLUMN_GROUPS = 4, OF_WARP_VECTORS = 8 * COLUMN_GROUPS;
static_assert(WARPS_OF_ROWS * (VECTORS / OF_WARP_VECTORS) * WARP == THREADS, "warps have the whole tile");

// A tile in which a warp has `GROUPS` units of 16 rows.
template <uint32_t GROUPS> struct Tile {
    static constexpr uint32_t ROW_GROUPS = GROUPS, OF_WARP_ROWS = 16 * GROUPS, ROWS = WARPS_OF_ROWS * OF_WARP_ROWS;
    // Row chunks loaded per thread.
    static constexpr uint32_t EACH = ROWS * CHUNKS / THREADS;
};

// Rows that are a single part as stored.
struct AsStored : Tile<2> {
    static constexpr uint32_t WORDS = 1;
    static constexpr int ROW_PARTS = 1;

    DEVICE void take(const uint4 raw[WORDS], uint4 to[ROW_PARTS]) { to[0] = raw[0]; }
};

// Half-precision weights: vectors are scaled in blocks of 32 and have 22 bits.
struct OfHalf : AsStored {
    typedef parts::Half Type;
    static constexpr int PARTS = 2;
    static constexpr bool SCALED = true;
};

// bf16 weights: vectors are exact.
struct OfBf16 : AsStored {
    typedef parts::Bf16 Type;
    static constexpr int PARTS = 3;
    static constexpr bool SCALED = false;
};

// f32 weights: both operands are exact in three parts each, which needs the registers of more rows.
// Products below the last bit of the largest are omitted.
struct OfFloat : Tile<1> {
    typedef parts::Bf16 Type;
    static constexpr uint32_t WORDS = 2;
    static constexpr int ROW_PARTS = 3, PARTS = 3;
    static constexpr bool SCALED = false;

    DEVICE void take(const uint4 raw[WORDS], uint4 to[ROW_PARTS]) {
        const float x[CHUNK] = {__uint_as_float(raw[0].x), __uint_as_float(raw[0].y), __uint_as_float(raw[0].z),
                                __uint_as_float(raw[0].w), __uint_as_float(raw[1].x), __uint_as_float(raw[1].y),
                                __uint_as_float(raw[1].z), __uint_as_float(raw[1].w)};
        parts::split_chunk<Type, ROW_PARTS>(x, to);
    }
};

// Shared memory: [parts, rows, chunks], the same for vectors, and the scales of their products.
struct SharedMemory {
    uint4 *rows, *vectors;
    float *steps;
};

// Loads eight elements of a row as stored, zeros outside the matrix. Elements after the used width
// within the last eight are multiplied by zeros.
template <class Format> DEVICE void fetch_row(const MatrixProduct &matrix, uint32_t row, uint32_t chunk, uint4 to[Format::WORDS]) {
    constexpr uint32_t UNIT = CHUNK / Format::WORDS;
    UNROLL
    for (uint32_t i = 0; i < Format::WORDS; i++) {
        const uint32_t unit = chunk * Format::WORDS + i;
        const bool exists = row < matrix.live && unit * UNIT < matrix.vectors.width;
        to[i] = exists ? read<uint4>(matrix.w.codes, block_of(matrix.w, row, unit, UNIT)) : uint4{0, 0, 0, 0};
    }
}

DEVICE void fetch_vector(const Vectors &a, uint32_t vector, uint32_t chunk, float to[CHUNK]) {
    const uint32_t column = chunk * CHUNK;
    const float *x = a.x + static_cast<size_t>(vector) * a.width + column;
    if (vector < a.n && a.width % CHUNK == 0 && column < a.width) {
        const float4 first = read<float4>(x, 0), second = read<float4>(x, 1);
        to[0] = first.x, to[1] = first.y, to[2] = first.z, to[3] = first.w;
        to[4] = second.x, to[5] = second.y, to[6] = second.z, to[7] = second.w;
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < CHUNK; i++) to[i] = vector < a.n && column + i < a.width ? x[i] : 0.0f;
}

// Four consecutive threads hold 32 elements of a vector.
template <class Format> DEVICE void put_vector(const SharedMemory &shared, uint32_t vector, uint32_t chunk, float x[CHUNK]) {
    uint4 parts[Format::PARTS];
    const float step = parts::split_of_four<typename Format::Type, Format::PARTS, Format::SCALED>(x, parts);
    if (Format::SCALED && chunk == 0) shared.steps[vector] = step;
    UNROLL
    for (int part = 0; part < Format::PARTS; part++) shared.vectors[(part * VECTORS + vector) * CHUNKS + chunk] = parts[part];
}

// Adds the products of a warp's rows and vectors in shared memory.
template <class Format>
DEVICE void add(const SharedMemory &shared, uint32_t first_row, uint32_t first_vector, float sums[Format::ROW_GROUPS][COLUMN_GROUPS][4]) {
    constexpr int PARTS = Format::PARTS, ROW_PARTS = Format::ROW_PARTS;
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    UNROLL
    for (uint32_t r = 0; r < Format::ROW_GROUPS; r++) {
        uint4 near[ROW_PARTS], far[ROW_PARTS];
        UNROLL
        for (int part = 0; part < ROW_PARTS; part++) {
            const uint4 *from = shared.rows + (part * Format::ROWS + first_row + 16 * r + group) * CHUNKS + of;
            near[part] = from[0];
            far[part] = from[8 * CHUNKS];
        }
        UNROLL
        for (uint32_t i = 0; i < COLUMN_GROUPS; i++) {
            const uint32_t vector = first_vector + 8 * i;
            float products[4] = {};
            // Smallest products first.
            UNROLL
            for (int both = PARTS - 1; both >= 0; both--) {
                UNROLL
                for (int part = 0; part < ROW_PARTS && part <= both; part++) {
                    const uint4 column = shared.vectors[((both - part) * VECTORS + vector + group) * CHUNKS + of];
                    parts::add_chunks<typename Format::Type>(products, near[part], far[part], column);
                }
            }
            UNROLL
            for (int j = 0; j < 4; j++) {
                const float step = Format::SCALED ? shared.steps[vector + 2 * of + j % 2] : 1.0f;
                sums[r][i][j] = fmaf(step, products[j], sums[r][i][j]);
            }
        }
    }
}

// Grid: the tiles of all matrices, and groups of vectors.
template <class Format> DEVICE void multiply(const Product &product) {
    constexpr uint32_t ROWS = Format::ROWS, EACH = Format::EACH;
    SHARED(uint4, of_rows, Format::ROW_PARTS * ROWS * CHUNKS);
    SHARED(uint4, of_vectors, Format::PARTS * VECTORS * CHUNKS);
    SHARED(float, steps, VECTORS);
    const SharedMemory shared = {of_rows, of_vectors, steps};
    uint32_t index = blockIdx.x;
    const MatrixProduct &matrix = matrix_of(product, &index);
    const Vectors &a = matrix.vectors;
    const uint32_t first_row = index * ROWS, first_vector = blockIdx.y * VECTORS;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const uint32_t warp_row = warp % WARPS_OF_ROWS * Format::OF_WARP_ROWS;
    const uint32_t warp_vector = warp / WARPS_OF_ROWS * OF_WARP_VECTORS;
    // Missing vectors are zeros; a warp without any vector skips the multiplication.
    const bool multiplies = first_vector + warp_vector < a.n && first_row + warp_row < matrix.live;
    float sums[Format::ROW_GROUPS][COLUMN_GROUPS][4] = {};
    uint4 raw[EACH][Format::WORDS];
    float x[CHUNK];
    const auto fetch = [&](uint32_t at) {
        UNROLL
        for (uint32_t i = 0; i < EACH; i++) fetch_row<Format>(matrix, first_row + own + i * (ROWS / EACH), at + chunk, raw[i]);
        fetch_vector(a, first_vector + own, at + chunk, x);
    };
    const uint32_t chunks = ceil_div(a.width, CHUNK);
    fetch(0);
    for (uint32_t done = 0; done < chunks; done += CHUNKS) {
        UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            uint4 parts[Format::ROW_PARTS];
            Format::take(raw[i], parts);
            UNROLL
            for (int part = 0; part < Format::ROW_PARTS; part++)
                shared.rows[(part * ROWS + own + i * (ROWS / EACH)) * CHUNKS + chunk] = parts[part];
        }
        put_vector<Format>(shared, own, chunk, x);
        __syncthreads();
        if (done + CHUNKS < chunks) fetch(done + CHUNKS);
        if (multiplies) add<Format>(shared, warp_row, warp_vector, sums);
        __syncthreads();
    }
    UNROLL
    for (uint32_t r = 0; r < Format::ROW_GROUPS; r++) {
        UNROLL
        for (uint32_t i = 0; i < COLUMN_GROUPS; i++) {
            UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t row = first_row + warp_row + 16 * r + lane / 4 + j / 2 * 8;
                const uint32_t vector = first_vector + warp_vector + 8 * i + lane % 4 * 2 + j % 2;
                if (row >= matrix.rows || vector >= a.n) continue;
                float *y = matrix.y + static_cast<size_t>(vector) * matrix.y_width + row;
                put_product(y, matrix.adds, row < matrix.live ? sums[r][i][j] : 0.0f);
            }
        }
    }
}

}  // namespace float_tiles

KERNEL_OF_BLOCKS(f32_tiles, Product, 256, 2) { float_tiles::multiply<float_tiles::OfFloat>(a); }
KERNEL_OF_BLOCKS(f16_tiles, Product, 256, 2) { float_tiles::multiply<float_tiles::OfHalf>(a); }
KERNEL_OF_BLOCKS(bf16_tiles, Product, 256, 2) { float_tiles::multiply<float_tiles::OfBf16>(a); }

}  // namespace products
