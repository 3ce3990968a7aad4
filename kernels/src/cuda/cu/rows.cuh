// Row operations shared by separate and fused kernels. Each gives the same bits wherever it is
// used, so products and sums are explicitly rounded separately or fused.
#pragma once
#include "dialect.cuh"

// Maximum threads that sum the squares of a row: four adjacent elements each, in whole warps.
#define NORM_THREADS 1024u

// Returns the number of these threads, the same in every kernel.
DEVICE uint32_t norm_threads(uint32_t width) {
    return min(NORM_THREADS, max(1u, ceil_div(width, 4 * WARP)) * WARP);
}

DEVICE float add_square(float sum, float x) { return fmaf(x, x, sum); }

// Returns four adjacent elements of a row, zeros past its end.
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

// Zeros past the end do not change the sum.
DEVICE float add_squares(float sum, float4 x) {
    return add_square(add_square(add_square(add_square(sum, x.x), x.y), x.z), x.w);
}

DEVICE float norm_factor(float squares, uint32_t width, float epsilon) {
    return 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
}

DEVICE float silu(float x) { return x / (1.0f + expf(-x)); }

// GELU with the tanh approximation.
DEVICE float gelu(float x) {
    const float inner = 0.7978845608028654f * fmaf(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

// Rotates a pair of elements by an angle.
DEVICE void turn(float *first, float *second, float cosine, float sine) {
    const float p = *first, q = *second;
    *first = __fadd_rn(__fmul_rn(p, cosine), -__fmul_rn(q, sine));
    *second = __fadd_rn(__fmul_rn(p, sine), __fmul_rn(q, cosine));
}
