// Products of block-quantised matrices with vectors, and dequantisation of their rows.
//
// A unit is the part of a row that a lane reads at a time: 16 bytes of codes.
//
// One or several warps of a block sum a row. The elements that a lane adds, and their order, depend
// on the matrix only, not on the number of vectors or blocks. All sums use `fmaf`, so that the
// compiler rounds them the same way for any number of vectors.
#pragma once
#include "blocks.cuh"

namespace products {

constexpr int WARPS = 4;

// Work distribution of a warp. With one vector, each read of it serves two rows, and more loads are
// in flight; for 4-bit codes, which are bound by arithmetic, more warps are faster.
template <class Format, int COUNT> struct OfWarp {
    static constexpr bool NIBBLES = Format::UNIT == 32;
    static constexpr int ROWS = COUNT == 1 && !NIBBLES ? 2 : 1;
    static constexpr int UNITS = COUNT == 1 && NIBBLES ? 8 : COUNT < 4 ? 4 : 1;
    // Blocks per multiprocessor limited by registers.
    static constexpr int BLOCKS = NIBBLES ? 8 : 7;
};

// Returns the index of vector `j` of a group; past the end it repeats the last, whose product is
// discarded.
DEVICE uint32_t vector_of(const Vectors &a, uint32_t first, int j) {
    const uint32_t t = first + j;
    return t < a.n ? t : a.n - 1;
}

DEVICE int dot(const int w[4], int4 x, int sum) {
    sum = __dp4a(w[0], x.x, sum);
    sum = __dp4a(w[1], x.y, sum);
    sum = __dp4a(w[2], x.z, sum);
    return __dp4a(w[3], x.w, sum);
}

// 32 bytes of codes and one scale.
struct Q8_0 {
    static constexpr uint32_t UNIT = 16;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const int4 q = read<int4>(w.codes, block_of(w, row, unit, 16));
        const int codes[4] = {q.x, q.y, q.z, q.w};
        const float scale = float_of_half(read<uint16_t>(w.scales, block_of(w, row, unit / 2, 32)));
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const size_t vector = static_cast<size_t>(vector_of(a, first, j)) * (a.width / 32);
            const int sum = dot(codes, read<int4>(a.codes, vector * 2 + unit), 0);
            sums[j] = fmaf(scale * a.steps[vector + unit / 2], static_cast<float>(sum), sums[j]);
        }
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const float scale = float_of_half(read<uint16_t>(w.scales, block_of(w, row, i / 32, 32)));
        return static_cast<float>(read<int8_t>(w.codes, block_of(w, row, i, 1))) * scale;
    }
};

// 16 bytes of 4-bit codes with an offset of 8, and one scale.
struct Q4_0 {
    static constexpr uint32_t UNIT = 32;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const size_t block = block_of(w, row, unit, 32);
        const Codes codes = nibbles(w, block);
        const float scale = float_of_half(read<uint16_t>(w.scales, block));
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const size_t at = static_cast<size_t>(vector_of(a, first, j)) * (a.width / 32) + unit;
            int sum = dot(codes.first, read<int4>(a.codes, 2 * at), 0);
            sum = dot(codes.second, read<int4>(a.codes, 2 * at + 1), sum);
            sum -= 8 * (first_sum(a.sums[at]) + second_sum(a.sums[at]));
            sums[j] = fmaf(scale * a.steps[at], static_cast<float>(sum), sums[j]);
        }
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const size_t block = block_of(w, row, i / 32, 32);
        const float scale = float_of_half(read<uint16_t>(w.scales, block));
        return scale * static_cast<float>(nibble(w, block, i % 32) - 8);
    }
};

template <int COUNT>
DEVICE void add_with_minimum(const Vectors &a, const Codes &codes, const ScaleMinimum &of, uint32_t unit, uint32_t first,
                             float *sums) {
    UNROLL
    for (int j = 0; j < COUNT; j++) {
        const size_t at = static_cast<size_t>(vector_of(a, first, j)) * (a.width / 32) + unit;
        int sum = dot(codes.first, read<int4>(a.codes, 2 * at), 0);
        sum = dot(codes.second, read<int4>(a.codes, 2 * at + 1), sum);
        const int total = first_sum(a.sums[at]) + second_sum(a.sums[at]);
        const float offset = of.minimum * static_cast<float>(total);
        sums[j] = fmaf(a.steps[at], fmaf(of.scale, static_cast<float>(sum), -offset), sums[j]);
    }
}

struct Q4K {
    static constexpr uint32_t UNIT = 32;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const Codes codes = nibbles(w, block_of(w, row, unit, 32));
        add_with_minimum<COUNT>(a, codes, scale_and_minimum(w, row, unit), unit, first, sums);
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const ScaleMinimum of = scale_and_minimum(w, row, i / 32);
        const int code = nibble(w, block_of(w, row, i / 32, 32), i % 32);
        return __fadd_rn(__fmul_rn(of.scale, static_cast<float>(code)), -of.minimum);
    }
};

// As q4_k, with the fifth bits in a separate array.
struct Q5K {
    static constexpr uint32_t UNIT = 32;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const size_t block = block_of(w, row, unit, 32);
        Codes codes = nibbles(w, block);
        add_fifth_bits(codes, read<uint32_t>(w.high, block));
        add_with_minimum<COUNT>(a, codes, scale_and_minimum(w, row, unit), unit, first, sums);
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const size_t block = block_of(w, row, i / 32, 32);
        const ScaleMinimum of = scale_and_minimum(w, row, i / 32);
        const uint32_t fifth = read<uint32_t>(w.high, block) >> (i % 4 * 8 + i % 16 / 4 + i % 32 / 16 * 4);
        const int code = nibble(w, block, i % 32) | static_cast<int>((fifth & 1) << 4);
        return __fadd_rn(__fmul_rn(of.scale, static_cast<float>(code)), -of.minimum);
    }
};

// With the upper two bits of codes in a separate array and an offset of 32. Every 16 elements have
// an 8-bit scale.
struct Q6K {
    static constexpr uint32_t UNIT = 32;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const size_t block = block_of(w, row, unit, 32);
        Codes codes = nibbles(w, block);
        add_high_bits(codes, read<uint2>(w.high, block));
        const uint16_t scales = read<uint16_t>(w.scales, block);
        const int of_first = static_cast<int8_t>(scales & 255), of_second = static_cast<int8_t>(scales >> 8);
        const float super = float_of_half(read<uint16_t>(w.supers, block_of(w, row, unit / 8, 256)));
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const size_t at = static_cast<size_t>(vector_of(a, first, j)) * (a.width / 32) + unit;
            const uint32_t totals = a.sums[at];
            const int low = dot(codes.first, read<int4>(a.codes, 2 * at), 0) - 32 * first_sum(totals);
            const int top = dot(codes.second, read<int4>(a.codes, 2 * at + 1), 0) - 32 * second_sum(totals);
            // Below 2^24, so exact as a float: 32 numbers of 127 by 32 by 128.
            const int sum = low * of_first + top * of_second;
            sums[j] = fmaf(super * a.steps[at], static_cast<float>(sum), sums[j]);
        }
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const size_t block = block_of(w, row, i / 32, 32);
        const uint32_t high = read<uint32_t>(w.high, 2 * block + i % 32 / 16) >> (i % 4 * 8 + i % 16 / 4 * 2);
        const int code = nibble(w, block, i % 32) | static_cast<int>((high & 3) << 4);
        const float super = float_of_half(read<uint16_t>(w.supers, block_of(w, row, i / 256, 256)));
        const float scale = super * static_cast<float>(read<int8_t>(w.scales, block_of(w, row, i / 16, 16)));
        return scale * static_cast<float>(code - 32);
    }
};

// Fallback for other formats: 8-bit codes with a scale per 16 elements and an optional minimum.
struct Wide {
    static constexpr uint32_t UNIT = 16;

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const size_t block = block_of(w, row, unit, 16);
        const int4 q = read<int4>(w.codes, block);
        const int codes[4] = {q.x, q.y, q.z, q.w};
        const float scale = read<float>(w.scales, block);
        const bool offset = w.supers != nullptr;
        const float minimum = offset ? read<float>(w.supers, block) : 0.0f;
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const size_t vector = static_cast<size_t>(vector_of(a, first, j)) * (a.width / 32);
            const int sum = dot(codes, read<int4>(a.codes, vector * 2 + unit), 0);
            const float step = a.steps[vector + unit / 2];
            float product = scale * static_cast<float>(sum);
            if (offset) {
                const uint32_t totals = a.sums[vector + unit / 2];
                const int total = unit % 2 ? second_sum(totals) : first_sum(totals);
                product = fmaf(minimum, static_cast<float>(total), product);
            }
            sums[j] = fmaf(step, product, sums[j]);
        }
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        const size_t block = block_of(w, row, i / 16, 16);
        const float code = static_cast<float>(read<int8_t>(w.codes, block_of(w, row, i, 1)));
        const float product = __fmul_rn(read<float>(w.scales, block), code);
        return w.supers == nullptr ? product : __fadd_rn(product, read<float>(w.supers, block));
    }
};

struct AsFloat {
    typedef uint32_t Bits;
    DEVICE float of(uint32_t bits) { return __uint_as_float(bits); }
};

struct AsHalf {
    typedef uint16_t Bits;
    DEVICE float of(uint16_t bits) { return float_of_half(bits); }
};

struct AsBf16 {
    typedef uint16_t Bits;
    DEVICE float of(uint16_t bits) { return float_of_bf16(bits); }
};

// Floats as stored, with rows zero-padded to 16 bytes.
template <class As> struct Floats {
    typedef typename As::Bits Bits;
    static constexpr uint32_t UNIT = 16 / sizeof(Bits);

    template <int COUNT>
    DEVICE void add(const Vectors &a, const Planes &w, uint32_t row, uint32_t unit, uint32_t first, float *sums) {
        const uint4 q = read<uint4>(w.codes, block_of(w, row, unit, UNIT));
        const uint32_t words[4] = {q.x, q.y, q.z, q.w};
        float numbers[UNIT];
        UNROLL
        for (uint32_t i = 0; i < UNIT; i++)
            numbers[i] = As::of(static_cast<Bits>(words[i * sizeof(Bits) / 4] >> i * sizeof(Bits) * 8 % 32));
        const uint32_t column = unit * UNIT;
        // All vectors are aligned to 16 bytes.
        const bool aligned = a.width % UNIT == 0;
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const float *x = a.x + static_cast<size_t>(vector_of(a, first, j)) * a.width + column;
            if (aligned) {
                UNROLL
                for (uint32_t i = 0; i < UNIT; i += 4) {
                    const float4 four = read<float4>(x, i / 4);
                    sums[j] = fmaf(numbers[i], four.x, sums[j]);
                    sums[j] = fmaf(numbers[i + 1], four.y, sums[j]);
                    sums[j] = fmaf(numbers[i + 2], four.z, sums[j]);
                    sums[j] = fmaf(numbers[i + 3], four.w, sums[j]);
                }
            } else {
                UNROLL
                for (uint32_t i = 0; i < UNIT; i++)
                    if (column + i < a.width) sums[j] = fmaf(numbers[i], x[i], sums[j]);
            }
        }
    }

    DEVICE float number(const Planes &w, uint32_t row, uint32_t i) {
        return As::of(read<Bits>(w.codes, block_of(w, row, i, 1)));
    }
};

// Quantises products of 32 rows in the block that arrives last: it sees the results of all others,
// which need not be resident. The next matrix then reads them without a launch in between.
template <int COUNT> DEVICE void round_behind_others(const MatrixProduct &matrix, uint32_t row, uint32_t of_block, uint32_t first) {
    SHARED(uint32_t, is_last, 1);
    const uint32_t which = row / 32;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint32_t blocks = ceil_div(min(32u, matrix.rows - 32 * which), of_block);
        is_last[0] = atomicAdd(matrix.arrived + which, 1u) + 1 == blocks;
        if (is_last[0]) matrix.arrived[which] = 0;
    }
    __syncthreads();
    if (!is_last[0]) return;
    __threadfence();
    const uint32_t lane = threadIdx.x % WARP, i = 32 * which + lane;
    for (uint32_t j = threadIdx.x / WARP; j < COUNT && first + j < matrix.vectors.n; j += WARPS) {
        // Bypasses the L1 cache, which may hold data from before other blocks wrote.
        const volatile float *y = matrix.y + static_cast<size_t>(first + j) * matrix.y_width;
        const uint64_t at = static_cast<uint64_t>(first + j) * ceil_div(matrix.rows, 32) + which;
        vectors::quantise_one(matrix.to, at, i < matrix.rows ? y[i] : 0.0f);
    }
}

// Multiplies the rows of block `block`, counted over all matrices, with a group of vectors.
template <class Format, int COUNT> DEVICE void multiply(const Product &product, uint32_t block, uint32_t group) {
    constexpr int ROWS = OfWarp<Format, COUNT>::ROWS;
    SHARED(float, shared, WARPS * ROWS * COUNT);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const MatrixProduct &matrix = matrix_of(product, &block);
    const uint32_t split = matrix.split, of_block = WARPS / split * ROWS;
    const uint32_t row = block * of_block + warp / split * ROWS;
    const Vectors &a = matrix.vectors;
    const uint32_t first = group * COUNT;
    float sums[ROWS][COUNT] = {};
    if (row < matrix.live) {
        const uint32_t units = ceil_div(a.width, Format::UNIT);
        UNROLL_BY((OfWarp<Format, COUNT>::UNITS))
        for (uint32_t unit = warp % split * WARP + lane; unit < units; unit += split * WARP) {
            UNROLL
            for (int i = 0; i < ROWS; i++)
                Format::template add<COUNT>(a, matrix.w, min(row + i, matrix.live - 1), unit, first, sums[i]);
        }
    }
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        UNROLL
        for (int j = 0; j < COUNT; j++) {
            const float sum = sum_of_warp(sums[i][j]);
            if (lane == 0) shared[(warp * ROWS + i) * COUNT + j] = row + i < matrix.live ? sum : 0.0f;
        }
    }
    __syncthreads();
    const uint32_t mine = threadIdx.x / COUNT, j = threadIdx.x % COUNT;
    const uint32_t to = block * of_block + mine;
    if (mine < of_block && to < matrix.rows && first + j < a.n) {
        const uint32_t first_warp = mine / ROWS * split, i = mine % ROWS;
        float sum = 0;
        for (uint32_t part = 0; part < split; part++) sum += shared[((first_warp + part) * ROWS + i) * COUNT + j];
        put_product(matrix.y + static_cast<size_t>(first + j) * matrix.y_width + to, matrix.adds, sum);
    }
    if (matrix.arrived != nullptr) round_behind_others<COUNT>(matrix, block * of_block, of_block, first);
}

// Grid: blocks, and groups of vectors.
template <class Format, int COUNT> DEVICE void multiply(const Product &product) {
    multiply<Format, COUNT>(product, blockIdx.x, blockIdx.y);
}

// Products, followed by products with their results.
struct Pair {
    Product first;
    Product second;
    // See `meet_blocks`.
    uint32_t *meeting;
};

// Runs all blocks of a product with at most `COUNT` vectors on a grid of any size. A single group
// of vectors: arrival counters of several would mix.
template <class Format, int COUNT> DEVICE void multiply_by_turns(const Product &product) {
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < product.count; i++) blocks += product.matrices[i].blocks;
    for (uint32_t turn = blockIdx.x; turn < blocks; turn += gridDim.x) {
        multiply<Format, COUNT>(product, turn, 0);
        // Wait for all readers of shared memory.
        __syncthreads();
    }
}

template <class Format, int COUNT> DEVICE void multiply_pair(const Pair &pair) {
    multiply_by_turns<Format, COUNT>(pair.first);
    meet_blocks(pair.meeting);
    multiply_by_turns<Format, COUNT>(pair.second);
}

struct Embed {
    Planes w;
    // [rows, width].
    float *out;
    uint32_t width;
    float factor;
    // Matrix rows and their output indices.
    uint32_t count;
    uint32_t unused;
    uint32_t rows[128];
    uint32_t to[128];
};

template <class Format> DEVICE void embed(const Embed &a) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.width) return;
    const uint32_t which = blockIdx.y;
    a.out[static_cast<size_t>(a.to[which]) * a.width + i] = Format::number(a.w, a.rows[which], i) * a.factor;
}

}  // namespace products

// Kernels of a format, with the number of resident blocks for four vectors that avoids register
// spills.
#define KERNELS_OF_PRODUCTS(name, Format, of_four)                             \
    KERNEL_OF_BLOCKS(name##_1, Product, 128, (OfWarp<Format, 1>::BLOCKS)) { multiply<Format, 1>(a); } \
    KERNEL_OF_BLOCKS(name##_2, Product, 128, 6) { multiply<Format, 2>(a); }    \
    KERNEL_OF_BLOCKS(name##_4, Product, 128, of_four) { multiply<Format, 4>(a); } \
    KERNEL_OF_BLOCKS(name##_8, Product, 128, 4) { multiply<Format, 8>(a); }    \
    KERNEL(name##_embed, Embed, 128) { embed<Format>(a); }
