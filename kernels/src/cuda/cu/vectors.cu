// Quantisation of vectors.
#include "vectors.cuh"

namespace vectors {

struct Quantise {
    const float *x;
    uint32_t n;
    // Elements per row of `x`; the rest of the last block is zero.
    uint32_t width;
    // One per layer of the grid.
    Integers to[4];
};

// Eight threads per block. Surplus threads take part in warp exchanges.
KERNEL(quantise, Quantise, 256) {
    const uint32_t blocks = ceil_div(a.width, 32), lane = threadIdx.x % 8;
    const uint64_t at = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
    const bool exists = at < static_cast<uint64_t>(a.n) * blocks;
    const uint32_t column = (exists ? static_cast<uint32_t>(at % blocks) : 0) * 32 + lane * 4;
    const float *row = a.x + (exists ? at / blocks * a.width : 0);
    float x[4];
    UNROLL
    for (int i = 0; i < 4; i++) x[i] = exists && column + i < a.width ? row[column + i] : 0.0f;
    quantise_four(a.to[blockIdx.y], at, column, a.width, exists, x);
}

}  // namespace vectors
