// What kernels do to numbers of a row, in one place for those that do one thing and those that join several: each gives the
// same bits wherever it is used, and so products are kept apart from sums, or joined with them, by name.
#pragma once
#include "dialect.cuh"

// Threads among which the squares of a row are added up, however many a block has.
#define NORM_THREADS 256u

DEVICE float add_square(float sum, float x) { return fmaf(x, x, sum); }

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
