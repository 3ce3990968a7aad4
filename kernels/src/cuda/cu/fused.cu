// Operations before a product, fused with the quantisation of their result. The float result is
// written as well for other readers.
#include "rows.cuh"
#include "vectors.cuh"

namespace fused {

struct NormQuantise {
    // [rows, width], to which `y` is added first, if not null.
    float *x;
    const float *y;
    const float *weight;
    float *out;
    uint32_t width;
    float epsilon;
    // Number of `to`.
    uint32_t count;
    uint32_t unused;
    vectors::Integers to[4];
};

// One block of `norm_threads` per row.
KERNEL(norm_quantise, NormQuantise, NORM_THREADS) {
    SHARED(float, shared, NORM_THREADS / WARP);
    const size_t start = static_cast<size_t>(blockIdx.x) * a.width;
    float *x = a.x + start;
    const uint32_t lanes = 8 * ceil_div(a.width, 32), threads = blockDim.x;
    const float4 weight = four_of(a.weight, 4 * threadIdx.x, a.width);
    // The first four elements of the thread are kept in registers; few rows have more per thread.
    float4 kept = {0, 0, 0, 0};
    float squares = 0;
    for (uint32_t part = threadIdx.x; 4 * part < a.width; part += threads) {
        float4 four = four_of(x, 4 * part, a.width);
        if (a.y != nullptr) {
            const float4 y = four_of(a.y + start, 4 * part, a.width);
            four = {four.x + y.x, four.y + y.y, four.z + y.z, four.w + y.w};
            put_four(x, 4 * part, a.width, four);
        }
        squares = add_squares(squares, four);
        if (part == threadIdx.x) kept = four;
    }
    const float factor = norm_factor(sum_of_block(squares, shared), a.width, a.epsilon);
    for (uint32_t base = 0; base < lanes; base += threads) {
        const uint32_t part = base + threadIdx.x, column = 4 * part;
        const float4 four = base == 0 ? kept : four_of(x, column, a.width);
        const float4 by = base == 0 ? weight : four_of(a.weight, column, a.width);
        const float numbers[4] = {four.x * factor * by.x, four.y * factor * by.y, four.z * factor * by.z,
                                  four.w * factor * by.w};
        put_four(a.out + start, column, a.width, {numbers[0], numbers[1], numbers[2], numbers[3]});
        const uint64_t at = static_cast<uint64_t>(blockIdx.x) * (lanes / 8) + part / 8;
        for (uint32_t k = 0; k < a.count; k++)
            vectors::quantise_four(a.to[k], at, column, a.width, part < lanes, numbers);
    }
}

struct GateQuantise {
    // [n, width]
    float *gate;
    const float *up;
    uint32_t n;
    uint32_t width;
    uint32_t count;
    uint32_t unused;
    vectors::Integers to[4];
};

struct Silu {
    DEVICE float of(float x) { return silu(x); }
};

struct Gelu {
    DEVICE float of(float x) { return gelu(x); }
};

template <class Function> DEVICE void gate_quantise(const GateQuantise &a) {
    const uint32_t blocks = ceil_div(a.width, 32), lane = threadIdx.x % 8;
    const uint64_t at = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
    const bool exists = at < static_cast<uint64_t>(a.n) * blocks;
    const uint32_t column = (exists ? static_cast<uint32_t>(at % blocks) : 0) * 32 + lane * 4;
    const size_t start = exists ? at / blocks * a.width : 0;
    float numbers[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const bool counts = exists && column + i < a.width;
        numbers[i] = counts ? Function::of(a.gate[start + column + i]) * a.up[start + column + i] : 0.0f;
        if (counts) a.gate[start + column + i] = numbers[i];
    }
    for (uint32_t k = 0; k < a.count; k++) vectors::quantise_four(a.to[k], at, column, a.width, exists, numbers);
}

// Eight threads per block of 32 elements.
KERNEL(silu_quantise, GateQuantise, 256) { gate_quantise<Silu>(a); }
KERNEL(gelu_quantise, GateQuantise, 256) { gate_quantise<Gelu>(a); }

}  // namespace fused
