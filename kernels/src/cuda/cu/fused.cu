// What is done to rows in front of a product, and their rounding to the integers that it reads, in one launch. Numbers are
// written as well: others may read them.
#include "rows.cuh"
#include "vectors.cuh"

namespace fused {

struct NormQuantise {
    // [rows, width], to which `y` is added first, where there is one.
    float *x;
    const float *y;
    const float *weight;
    float *out;
    uint32_t width;
    float epsilon;
    // Of `to`.
    uint32_t count;
    uint32_t unused;
    vectors::Integers to[4];
};

// Numbers that a thread has under way at a time.
constexpr uint32_t UNDER_WAY = 8;

// A block for each row.
KERNEL(norm_quantise, NormQuantise, NORM_THREADS) {
    SHARED(float, room, NORM_THREADS / WARP);
    const size_t start = static_cast<size_t>(blockIdx.x) * a.width;
    float *x = a.x + start;
    float squares = 0;
    for (uint32_t base = threadIdx.x; base < a.width; base += UNDER_WAY * NORM_THREADS) {
        float numbers[UNDER_WAY];
        UNROLL
        for (uint32_t k = 0; k < UNDER_WAY; k++) {
            const uint32_t i = base + k * NORM_THREADS;
            numbers[k] = i < a.width ? x[i] : 0.0f;
        }
        if (a.y != nullptr) {
            UNROLL
            for (uint32_t k = 0; k < UNDER_WAY; k++) {
                const uint32_t i = base + k * NORM_THREADS;
                if (i < a.width) numbers[k] += a.y[start + i];
            }
            UNROLL
            for (uint32_t k = 0; k < UNDER_WAY; k++) {
                const uint32_t i = base + k * NORM_THREADS;
                if (i < a.width) x[i] = numbers[k];
            }
        }
        // Those behind the row are zeros, which leave the sum as it is.
        UNROLL
        for (uint32_t k = 0; k < UNDER_WAY; k++) squares = add_square(squares, numbers[k]);
    }
    const float factor = norm_factor(sum_of_block(squares, room), a.width, a.epsilon);
    // The block has met: every thread sees the whole row.
    const uint32_t lanes = 8 * ceil_div(a.width, 32);
    for (uint32_t base = 0; base < lanes; base += NORM_THREADS) {
        const uint32_t part = base + threadIdx.x, column = 4 * part;
        const bool exists = part < lanes;
        float numbers[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const bool counts = column + i < a.width;
            numbers[i] = counts ? x[column + i] * factor * a.weight[column + i] : 0.0f;
            if (counts) a.out[start + column + i] = numbers[i];
        }
        const uint64_t at = static_cast<uint64_t>(blockIdx.x) * (lanes / 8) + part / 8;
        for (uint32_t k = 0; k < a.count; k++)
            vectors::quantise_four(a.to[k], at, column, a.width, exists, numbers);
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

// Eight threads for each block of 32 numbers.
KERNEL(silu_quantise, GateQuantise, 256) { gate_quantise<Silu>(a); }
KERNEL(gelu_quantise, GateQuantise, 256) { gate_quantise<Gelu>(a); }

}  // namespace fused
