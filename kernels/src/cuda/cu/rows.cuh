// What kernels do to numbers of a row, in one place for those that do one thing and those that join several: each gives the
// same bits wherever it is used, and so products are kept apart from sums, or joined with them, by name.
#pragma once
#include "dialect.cuh"

// Threads among which the squares of a row are added up, at most: four neighbouring numbers for each, in whole warps.
#define NORM_THREADS 1024u

// So many they are, whichever kernel adds them up.
DEVICE uint32_t norm_threads(uint32_t width) {
    return min(NORM_THREADS, max(1u, ceil_div(width, 4 * WARP)) * WARP);
}

DEVICE float add_square(float sum, float x) { return fmaf(x, x, sum); }

// Four neighbouring numbers of a row of floats, zeros behind its end.
DEVICE float4 four_of(const float *row, uint32_t column, uint32_t width) {
    if (width % 4 == 0) return column < width ? *reinterpret_cast<const float4 *>(row + column) : float4{0, 0, 0, 0};
    float4 x = {0, 0, 0, 0};
    if (column < width) x.x = row[column];
    if (column + 1 < width) x.y = row[column + 1];
    if (column + 2 < width) x.z = row[column + 2];
    if (column + 3 < width) x.w = row[column + 3];
    return x;
}

DEVICE void put_four(float *row, uint32_t column, uint32_t width, float4 x) {
    if (width % 4 == 0) {
        if (column < width) *reinterpret_cast<float4 *>(row + column) = x;
        return;
    }
    if (column < width) row[column] = x.x;
    if (column + 1 < width) row[column + 1] = x.y;
    if (column + 2 < width) row[column + 2] = x.z;
    if (column + 3 < width) row[column + 3] = x.w;
}

// Those behind a row are zeros, which leave the sum as it is.
DEVICE float add_squares(float sum, float4 x) {
    return add_square(add_square(add_square(add_square(sum, x.x), x.y), x.z), x.w);
}

DEVICE float norm_factor(float squares, uint32_t width, float epsilon) {
    return 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
}

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// The form of GELU with a hyperbolic tangent.
DEVICE float gelu(float x) {
    const float inner = 0.7978845608028654f * fmaf(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

// A pair of numbers, turned by an angle.
DEVICE void turn(float *first, float *second, float cosine, float sine) {
    const float p = *first, q = *second;
    *first = __fadd_rn(__fmul_rn(p, cosine), -__fmul_rn(q, sine));
    *second = __fadd_rn(__fmul_rn(p, sine), __fmul_rn(q, cosine));
}
