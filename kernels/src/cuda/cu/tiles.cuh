// Products with many vectors with tensor cores: tiles of 64 rows by 64 vectors.
//
// A thread block processes 128 elements of its rows at a time, four blocks of 32 that share a step.
// Codes of rows and vectors are in shared memory as 8-bit integers for any format; the next are
// loaded into registers during the multiplication. A warp has 16 rows and 32 vectors. Integers are
// summed exactly within a block of 32, and blocks as floats in order: a row has the same bits with
// a vector at any index of any batch, but not the same as products summed by lanes.
//
// The limit is the handling of scales, not the tensor cores: each 16 by 8 products of 32 elements
// need a conversion and two float operations. So more bits per code cost nothing, and offsets are
// subtracted from codes instead of using a minimum where possible.
#pragma once
#include "dialect.cuh"

namespace tiles {

constexpr uint32_t ROWS = 64, VECTORS = 64;
// Blocks of 32 elements in shared memory at a time.
constexpr uint32_t BLOCKS = 4;
// Each thread loads a block of the rows and a block of the vectors.
constexpr uint32_t THREADS = ROWS * BLOCKS;
static_assert(ROWS == VECTORS, "threads bring as many blocks of rows as of vectors");
constexpr uint32_t OF_WARP_ROWS = 16, OF_WARP_VECTORS = 32;
// Vectors of a tensor core operation.
constexpr uint32_t COLUMNS = 8, COLUMN_GROUPS = OF_WARP_VECTORS / COLUMNS;
// Distance between blocks, padded so that lanes that write four blocks of eight rows use 32 banks.
constexpr uint32_t STRIDE = ROWS + 8;

// Quantised vectors of `blocks` blocks of 32.
struct Vectors {
    const int8_t *codes;
    const float *steps;
    const uint32_t *sums;
    uint32_t n;
    uint32_t blocks;
};

// Codes of the first and the last 16 of 32 elements.
struct Codes {
    int first[4], second[4];
};

// Factors and minima of a row, per 32 or per 16 elements.
struct Scales {
    float scales[2], minima[2];
};

// A block of a vector between global and shared memory.
struct OfVector {
    int4 first, second;
    float step;
    uint32_t sums;
};

// Shared memory. The words of both halves of a block alternate, so that those a lane needs are
// adjacent.
struct SharedMemory {
    int4 *rows, *vectors;
    // [scales and minima, blocks, rows].
    float *scales;
    // [blocks, vectors], and the sums of codes [halves, blocks, vectors].
    float *steps, *totals;
};

// Returns the index of the first of the eight words of a block, swizzled so that lanes that read
// eight bytes of four rows use 32 banks.
DEVICE uint32_t place_of(uint32_t row, uint32_t block) { return (row * BLOCKS + (block ^ row % BLOCKS)) * 8; }

DEVICE void put_codes(int4 *tile, uint32_t row, uint32_t block, const Codes &codes) {
    int4 *to = tile + place_of(row, block) / 4;
    to[0] = {codes.first[0], codes.second[0], codes.first[1], codes.second[1]};
    to[1] = {codes.first[2], codes.second[2], codes.first[3], codes.second[3]};
}

// Returns word `of` of both halves of a block.
DEVICE uint2 words_of(const int4 *tile, uint32_t row, uint32_t block, uint32_t of) {
    return reinterpret_cast<const uint2 *>(tile)[place_of(row, block) / 2 + of];
}

DEVICE OfVector fetch_vector(const Vectors &x, uint32_t vector, uint32_t block) {
    if (vector >= x.n || block >= x.blocks) return {};
    const size_t at = static_cast<size_t>(vector) * x.blocks + block;
    const int4 *codes = reinterpret_cast<const int4 *>(x.codes);
    return {codes[2 * at], codes[2 * at + 1], x.steps[at], x.sums[at]};
}

template <class Rows> DEVICE void put_vector(const SharedMemory &shared, uint32_t vector, uint32_t block, const OfVector &x) {
    const Codes codes = {{x.first.x, x.first.y, x.first.z, x.first.w}, {x.second.x, x.second.y, x.second.z, x.second.w}};
    put_codes(shared.vectors, vector, block, codes);
    const uint32_t at = block * STRIDE + vector;
    shared.steps[at] = x.step;
    if (!Rows::MINIMA) return;
    const int first = static_cast<int16_t>(x.sums & 0xffffu), second = static_cast<int>(x.sums) >> 16;
    if (Rows::SCALES == 1) {
        shared.totals[at] = static_cast<float>(first + second);
    } else {
        shared.totals[at] = static_cast<float>(first);
        shared.totals[BLOCKS * STRIDE + at] = static_cast<float>(second);
    }
}

template <class Rows> DEVICE void put_row(const SharedMemory &shared, uint32_t row, uint32_t block, const Codes &codes, const Scales &of) {
    put_codes(shared.rows, row, block, codes);
    UNROLL
    for (int i = 0; i < Rows::SCALES; i++) {
        shared.scales[(i * BLOCKS + block) * STRIDE + row] = of.scales[i];
        if (Rows::MINIMA) shared.scales[((Rows::SCALES + i) * BLOCKS + block) * STRIDE + row] = of.minima[i];
    }
}

// Adds the products of a warp's rows and vectors in shared memory. A lane has four sums per
// `COLUMNS` vectors, as in `Fragment`.
template <class Rows>
DEVICE void add(const SharedMemory &shared, uint32_t first_row, uint32_t first_vector, float sums[COLUMN_GROUPS][4]) {
    constexpr int SCALES = Rows::SCALES, PARTS = Rows::MINIMA ? 2 * SCALES : SCALES;
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    const uint32_t row = first_row + group;
    // One block keeps the tensor cores busy; unrolling would cost the registers of a third thread
    // block.
    UNROLL_BY(1)
    for (uint32_t block = 0; block < BLOCKS; block++) {
        const uint2 near = words_of(shared.rows, row, block, of), far = words_of(shared.rows, row + 8, block, of);
        float of_rows[PARTS][2];
        UNROLL
        for (int part = 0; part < PARTS; part++) {
            const float *from = shared.scales + (part * BLOCKS + block) * STRIDE + row;
            of_rows[part][0] = from[0];
            of_rows[part][1] = from[8];
        }
        UNROLL
        for (uint32_t i = 0; i < COLUMN_GROUPS; i++) {
            const uint32_t vector = first_vector + COLUMNS * i;
            const uint2 column = words_of(shared.vectors, vector + group, block, of);
            const Fragment x = {{near.x, far.x, near.y, far.y}, {column.x, column.y}};
            int products[SCALES][4] = {};
            if (SCALES == 1) {
                add_products(products[0], x);
            } else {
                add_products_of_half<0>(products[0], x);
                add_products_of_half<1>(products[SCALES - 1], x);
            }
            const uint32_t at = (block * STRIDE + vector) / 2 + of;
            const float2 steps = reinterpret_cast<const float2 *>(shared.steps)[at];
            float2 totals[SCALES] = {};
            if (Rows::MINIMA) {
                UNROLL
                for (int half = 0; half < SCALES; half++)
                    totals[half] = reinterpret_cast<const float2 *>(shared.totals)[half * (BLOCKS * STRIDE / 2) + at];
            }
            UNROLL
            for (int j = 0; j < 4; j++) {
                float sum = of_rows[0][j / 2] * static_cast<float>(products[0][j]);
                if (SCALES == 2)
                    sum = fmaf(of_rows[SCALES - 1][j / 2], static_cast<float>(products[SCALES - 1][j]), sum);
                if (Rows::MINIMA) {
                    UNROLL
                    for (int half = 0; half < SCALES; half++)
                        sum = fmaf(of_rows[PARTS - SCALES + half][j / 2], j % 2 ? totals[half].y : totals[half].x, sum);
                }
                sums[i][j] = fmaf(j % 2 ? steps.y : steps.x, sum, sums[i][j]);
            }
        }
    }
}

// Computes the tile at `first_row` and `first_vector`, with rows loaded, unpacked and stored by
// `Rows`.
template <class Rows>
DEVICE void multiply(const typename Rows::Of &rows, const Vectors &x, uint32_t first_row, uint32_t first_vector) {
    constexpr uint32_t SCALES = Rows::SCALES, PARTS = Rows::MINIMA ? 2 * SCALES : SCALES;
    SHARED(int4, of_rows, ROWS * BLOCKS * 2);
    SHARED(int4, of_vectors, VECTORS * BLOCKS * 2);
    SHARED(float, scales, PARTS * BLOCKS * STRIDE);
    SHARED(float2, steps, BLOCKS * STRIDE / 2);
    SHARED(float2, totals, Rows::MINIMA ? SCALES * BLOCKS * STRIDE / 2 : 1);
    const SharedMemory shared = {of_rows, of_vectors, scales, reinterpret_cast<float *>(steps), reinterpret_cast<float *>(totals)};
    const uint32_t thread = threadIdx.x, warp = thread / WARP;
    // Blocks loaded by the thread: adjacent threads take blocks of one row, or rows of one block.
    const uint32_t row = Rows::ROW_A_LANE ? thread % ROWS : thread / BLOCKS;
    const uint32_t of_row = Rows::ROW_A_LANE ? thread / ROWS : thread % BLOCKS;
    const uint32_t vector = thread / BLOCKS, of_vector = thread % BLOCKS;
    const uint32_t warp_row = warp % (ROWS / OF_WARP_ROWS) * OF_WARP_ROWS;
    const uint32_t warp_vector = warp / (ROWS / OF_WARP_ROWS) * OF_WARP_VECTORS;
    // Missing vectors are zeros; a warp without any vector skips the multiplication.
    const bool multiplies = first_vector + warp_vector < x.n;
    float sums[COLUMN_GROUPS][4] = {};
    typename Rows::Raw raw = Rows::fetch(rows, first_row + row, of_row);
    OfVector next = fetch_vector(x, first_vector + vector, of_vector);
    for (uint32_t done = 0; done < x.blocks; done += BLOCKS) {
        Codes codes;
        Scales of;
        Rows::unpack(raw, done + of_row, codes, of);
        put_row<Rows>(shared, row, of_row, codes, of);
        put_vector<Rows>(shared, vector, of_vector, next);
        __syncthreads();
        if (done + BLOCKS < x.blocks) {
            raw = Rows::fetch(rows, first_row + row, done + BLOCKS + of_row);
            next = fetch_vector(x, first_vector + vector, done + BLOCKS + of_vector);
        }
        if (multiplies) add<Rows>(shared, warp_row, warp_vector, sums);
        __syncthreads();
    }
    const uint32_t lane = thread % WARP;
    UNROLL
    for (uint32_t i = 0; i < COLUMN_GROUPS; i++) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t t = first_vector + warp_vector + COLUMNS * i + lane % 4 * 2 + j % 2;
            if (t < x.n) Rows::store(rows, first_row + warp_row + lane / 4 + j / 2 * 8, t, sums[i][j]);
        }
    }
}

}  // namespace tiles
