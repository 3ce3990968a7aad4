// Norms, sums, activations and rotary embeddings.
#include "rows.cuh"

struct RmsNorm {
    const float *x;
    const float *weight;
    float *out;
    uint32_t width;
    float epsilon;
};

// One block of `norm_threads` per row of `x [rows, width]`; `out` may be `x`.
KERNEL(rms_norm, RmsNorm, NORM_THREADS) {
    SHARED(float, shared, NORM_THREADS / WARP);
    const float *x = a.x + static_cast<size_t>(blockIdx.x) * a.width;
    float *out = a.out + static_cast<size_t>(blockIdx.x) * a.width;
    float squares = 0;
    for (uint32_t i = 4 * threadIdx.x; i < a.width; i += 4 * blockDim.x)
        squares = add_squares(squares, four_of(x, i, a.width));
    const float factor = norm_factor(sum_of_block(squares, shared), a.width, a.epsilon);
    for (uint32_t i = 4 * threadIdx.x; i < a.width; i += 4 * blockDim.x) {
        const float4 four = four_of(x, i, a.width), by = four_of(a.weight, i, a.width);
        put_four(out, i, a.width, {four.x * factor * by.x, four.y * factor * by.y, four.z * factor * by.z, four.w * factor * by.w});
    }
}

struct Add {
    float *x;
    const float *y;
    uint64_t numbers;
    // Elements of `y`, which is added to each row of `x` of that width.
    uint32_t width;
    uint32_t unused;
};

KERNEL(add, Add, 256) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.numbers) a.x[i] += a.y[i];
}

KERNEL(add_rows, Add, 256) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.numbers) a.x[i] += a.y[i % a.width];
}

struct Activate {
    float *gate;
    const float *up;
    uint64_t numbers;
};

KERNEL(silu_mul, Activate, 256) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.numbers) a.gate[i] = silu(a.gate[i]) * a.up[i];
}

KERNEL(gelu_mul, Activate, 256) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.numbers) a.gate[i] = gelu(a.gate[i]) * a.up[i];
}

struct Softcap {
    float *x;
    uint64_t numbers;
    float cap;
    uint32_t unused;
};

KERNEL(softcap, Softcap, 256) {
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < a.numbers) a.x[i] = a.cap * tanhf(a.x[i] / a.cap);
}

struct Rotate {
    const double *frequencies;
    // [n, pairs] each.
    float *cosines;
    float *sines;
    uint64_t start;
    uint32_t pairs;
    uint32_t n;
    float factor;
    uint32_t unused;
};

// Angles in double precision: at position 100,000 a float is off by 0.004 radians.
KERNEL(rotate_to, Rotate, 64) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.pairs * a.n) return;
    const double angle = static_cast<double>(a.start + i / a.pairs) * a.frequencies[i % a.pairs];
    a.cosines[i] = static_cast<float>(cos(angle)) * a.factor;
    a.sines[i] = static_cast<float>(sin(angle)) * a.factor;
}

struct Rope {
    float *x;
    const float *cosines;
    const float *sines;
    uint32_t heads;
    uint32_t size;
    uint32_t pairs;
    // Pairs are adjacent elements, not one of each half.
    uint32_t neighbours;
};

// One block per row; `x [rows, heads, size]`.
KERNEL(rope, Rope, 256) {
    float *x = a.x + static_cast<size_t>(blockIdx.x) * a.heads * a.size;
    const float *cosines = a.cosines + static_cast<size_t>(blockIdx.x) * a.pairs;
    const float *sines = a.sines + static_cast<size_t>(blockIdx.x) * a.pairs;
    for (uint32_t i = threadIdx.x; i < a.heads * a.pairs; i += blockDim.x) {
        const uint32_t pair = i % a.pairs;
        float *head = x + i / a.pairs * a.size;
        float *first = head + (a.neighbours ? 2 * pair : pair);
        float *second = a.neighbours ? first + 1 : first + a.pairs;
        turn(first, second, cosines[pair], sines[pair]);
    }
}

struct Hadamard {
    float *x;
    // Elements per transform, a power of two, and its normalisation.
    uint32_t size;
    float factor;
};

// One thread block per transform, which is held in shared memory.
KERNEL(hadamard, Hadamard, 128) {
    DYNAMIC_SHARED(float, shared);
    float *x = a.x + static_cast<size_t>(blockIdx.x) * a.size;
    for (uint32_t i = threadIdx.x; i < a.size; i += blockDim.x) shared[i] = x[i];
    __syncthreads();
    for (uint32_t apart = 1; apart < a.size; apart *= 2) {
        for (uint32_t i = threadIdx.x; i < a.size / 2; i += blockDim.x) {
            const uint32_t at = i / apart * 2 * apart + i % apart;
            const float p = shared[at], q = shared[at + apart];
            shared[at] = p + q;
            shared[at + apart] = p - q;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < a.size; i += blockDim.x) x[i] = shared[i] * a.factor;
}
