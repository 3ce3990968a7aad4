// Quantised vectors, the input of products with quantised weights.
//
// 32 elements share the step `max|x| / 127`; the code of an element is the nearest multiple of the
// step, with halves rounded away from zero. A block with a non-finite element has the step NaN, so
// every product with it is NaN. A block with all elements below `SMALLEST` is zero: the reciprocal
// of its step would overflow.
#pragma once
#include "dialect.cuh"

namespace vectors {

// Quantised vectors for one matrix.
struct Integers {
    // [n, blocks, 32].
    int8_t *codes;
    // [n, blocks].
    float *steps;
    // [n, blocks]: sum of the first sixteen codes in the low half, of the others in the high half.
    uint32_t *sums;
    // Column scales of a column-group matrix in half precision [blocks, 32], or null.
    const uint16_t *columns;
    // Rotates whole blocks first.
    uint32_t rotated;
    uint32_t unused;
};

constexpr float SMALLEST = 7.888609052210118e-31f;     // 2^-100
constexpr float ROTATION_UNIT = 0.1767767f;   // 1 / sqrt(32), as all have it
constexpr float BELOW_HALF = 0.49999997f;

// Eight lanes hold a block, four elements each: pairs 16, 8 and 4 apart are in different lanes.
DEVICE void rotate_block(float x[4], uint32_t lane) {
    for (uint32_t apart = 4; apart > 0; apart /= 2) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const float other = __shfl_xor_sync(EVERY_LANE, x[i], apart);
            x[i] = lane & apart ? other - x[i] : x[i] + other;
        }
    }
    const float a = x[0] + x[2], b = x[1] + x[3], c = x[0] - x[2], d = x[1] - x[3];
    x[0] = (a + b) * ROTATION_UNIT;
    x[1] = (a - b) * ROTATION_UNIT;
    x[2] = (c + d) * ROTATION_UNIT;
    x[3] = (c - d) * ROTATION_UNIT;
}

// Step of a block; without `counts` its elements are zero.
struct Step {
    float length;
    float inverse;
    bool counts;
};

// From the bits of the largest magnitude.
DEVICE Step step_of(uint32_t largest) {
    const float most = __uint_as_float(largest);
    const bool finite = largest < 0x7f800000u, counts = finite && most >= SMALLEST;
    const float length = finite ? (counts ? most / 127.0f : 0.0f) : __uint_as_float(0x7fc00000u);
    return {length, counts ? 127.0f / most : 0.0f, counts};
}

DEVICE int code_of(const Step &step, float x) {
    const float scaled = step.counts ? __fmul_rn(x, step.inverse) : 0.0f;
    return static_cast<int>(scaled + copysignf(BELOW_HALF, scaled));
}

// Quantises four elements of a row from `column` on for one matrix. Eight consecutive lanes hold
// the block with index `at` over all rows; surplus lanes take part in exchanges.
DEVICE void quantise_four(const Integers &to, uint64_t at, uint32_t column, uint32_t width, bool exists,
                          const float given[4]) {
    const uint32_t lane = column / 4 % 8, block = column / 32;
    float x[4] = {given[0], given[1], given[2], given[3]};
    if (to.rotated) {
        // A partial last block is not rotated, but its lanes take part in exchanges of the warp.
        float turned[4] = {x[0], x[1], x[2], x[3]};
        rotate_block(turned, lane);
        UNROLL
        for (int i = 0; i < 4; i++) x[i] = block * 32 + 32 <= width ? turned[i] : x[i];
    }
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        // Padding columns have scales, too.
        if (to.columns != nullptr && column + i < width) x[i] *= float_of_half(to.columns[column + i]);
        // Magnitudes compare as their bits, with infinity and NaN above all others.
        const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    for (int apart = 4; apart > 0; apart /= 2) {
        const uint32_t other = __shfl_xor_sync(EVERY_LANE, largest, apart);
        largest = other > largest ? other : largest;
    }
    const Step step = step_of(largest);
    uint32_t packed = 0;
    int sum = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int code = code_of(step, x[i]);
        packed |= static_cast<uint32_t>(code & 255) << 8 * i;
        sum += code;
    }
    sum += __shfl_xor_sync(EVERY_LANE, sum, 1);
    sum += __shfl_xor_sync(EVERY_LANE, sum, 2);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, 4);
    if (!exists) return;
    reinterpret_cast<uint32_t *>(to.codes)[at * 8 + lane] = packed;
    if (lane == 0) {
        to.steps[at] = step.length;
        to.sums[at] = static_cast<uint32_t>(sum & 0xffff) | static_cast<uint32_t>(other) << 16;
    }
}

// Quantises one element per lane, a block per warp, for matrices without rotation or column scales.
DEVICE void quantise_one(const Integers &to, uint64_t at, float x) {
    uint32_t largest = __float_as_uint(x) & 0x7fffffffu;
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        const uint32_t other = __shfl_xor_sync(EVERY_LANE, largest, apart);
        largest = other > largest ? other : largest;
    }
    const Step step = step_of(largest);
    const int code = code_of(step, x);
    int sum = code;
    for (int apart = WARP / 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(EVERY_LANE, sum, apart);
    const int other = __shfl_xor_sync(EVERY_LANE, sum, WARP / 2);
    const uint32_t lane = threadIdx.x % WARP;
    to.codes[at * 32 + lane] = static_cast<int8_t>(code);
    if (lane == 0) {
        to.steps[at] = step.length;
        to.sums[at] = static_cast<uint32_t>(sum & 0xffff) | static_cast<uint32_t>(other) << 16;
    }
}

}  // namespace vectors
