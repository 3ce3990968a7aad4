// Vectors as integers, which products with quantised weights read.
//
// Thirty-two numbers share the step `max|x| / 127`; the code of a number is the nearest whole number of steps, half of one
// away from zero. A block with a number that is not finite has the step NaN, and so every product with it is NaN. One whose
// numbers are all below `SMALLEST` counts as zero: the reciprocal of its step would leave the range of float.
#pragma once
#include "dialect.cuh"

namespace vectors {

// What one matrix reads.
struct Integers {
    // [n, blocks, 32].
    int8_t *codes;
    // [n, blocks].
    float *steps;
    // [n, blocks]: of the codes of the first sixteen numbers in the low half, of the others in the high half.
    uint32_t *sums;
    // Half precision [blocks, 32], or none: factors of the columns of a matrix in bands.
    const uint16_t *columns;
    // Whether whole blocks are rotated first.
    uint32_t rotated;
    uint32_t unused;
};

constexpr float SMALLEST = 7.888609052210118e-31f;     // 2^-100
constexpr float ROTATION_UNIT = 0.1767767f;   // 1 / sqrt(32), as all have it
constexpr float BELOW_HALF = 0.49999997f;

// Eight lanes have a block, four numbers each: pairs 16, 8 and 4 apart are in different lanes.
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

// The step of a block, and whether its numbers count.
struct Step {
    float length;
    float inverse;
    bool counts;
};

// Of the bits of its largest magnitude.
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

// Rounds four numbers of a row, those from `column` on, for one matrix. Eight lanes in a row have a block, whose index among
// those of all rows is `at`; lanes of no block take part in what others exchange.
DEVICE void quantise_four(const Integers &to, uint64_t at, uint32_t column, uint32_t width, bool exists,
                          const float given[4]) {
    const uint32_t lane = column / 4 % 8, block = column / 32;
    float x[4] = {given[0], given[1], given[2], given[3]};
    if (to.rotated) {
        // A last block that is not whole stays as it is, but its lanes exchange with the others of the warp.
        float turned[4] = {x[0], x[1], x[2], x[3]};
        rotate_block(turned, lane);
        UNROLL
        for (int i = 0; i < 4; i++) x[i] = block * 32 + 32 <= width ? turned[i] : x[i];
    }
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < 4; i++) {
        // Columns of padding have factors, too.
        if (to.columns != nullptr && column + i < width) x[i] *= float_of_half(to.columns[column + i]);
        // Magnitudes are in the order of their bits, infinity and NaN above all others.
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

// Rounds a number of each lane of a warp, all of one block, for matrices that read them as they are.
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
