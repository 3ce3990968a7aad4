// Top-k selection.
#include "dialect.cuh"

namespace sampling {

#define THREADS 256u
// Elements per thread, held in registers.
#define EACH 16u
#define NO_PLACE 0xffffffffu

struct Seek {
    // Input of the first pass; null in later ones, which read the records of the pass before.
    const float *x;
    const uint32_t *before;
    // One record per block: the index of the first non-finite element, or none, then the k largest
    // values with their indices in descending order, ties by index; NO_PLACE for missing entries.
    uint32_t *out;
    // Number of elements of `x`, or entries of all previous records.
    uint32_t numbers;
    uint32_t most;
};

DEVICE bool is_before(float a, uint32_t place_a, float b, uint32_t place_b) {
    return a > b || (a == b && place_a < place_b);
}

// Each block selects from EACH * THREADS consecutive elements.
KERNEL(largest, Seek, THREADS) {
    SHARED(float, values_of_warps, THREADS / WARP);
    SHARED(uint32_t, places_of_warps, THREADS / WARP);
    SHARED(uint32_t, strange, 1);
    const uint32_t record = 1 + 2 * a.most, first = blockIdx.x * EACH * THREADS;
    if (threadIdx.x == 0) strange[0] = NO_PLACE;
    __syncthreads();
    float x[EACH];
    uint32_t places[EACH];
    UNROLL
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t at = first + i * THREADS + threadIdx.x;
        x[i] = -INFINITY;
        places[i] = NO_PLACE;
        if (at >= a.numbers) continue;
        if (a.before == nullptr) {
            const float number = a.x[at];
            // False for NaN as well.
            if (fabsf(number) < INFINITY) {
                x[i] = number;
                places[i] = at;
            } else {
                atomicMin(strange, at);
            }
        } else {
            const uint32_t *of = a.before + at / a.most * record, rank = at % a.most;
            if (rank == 0 && of[0] != NO_PLACE) atomicMin(strange, of[0]);
            places[i] = of[2 + 2 * rank];
            if (places[i] != NO_PLACE) x[i] = __uint_as_float(of[1 + 2 * rank]);
        }
    }
    uint32_t *out = a.out + static_cast<size_t>(blockIdx.x) * record;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (uint32_t rank = 0; rank < a.most; rank++) {
        float value = -INFINITY;
        uint32_t place = NO_PLACE;
        UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            if (is_before(x[i], places[i], value, place)) {
                value = x[i];
                place = places[i];
            }
        }
        UNROLL
        for (int apart = WARP / 2; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(EVERY_LANE, value, apart);
            const uint32_t there = __shfl_xor_sync(EVERY_LANE, place, apart);
            if (is_before(other, there, value, place)) {
                value = other;
                place = there;
            }
        }
        if (lane == 0) {
            values_of_warps[warp] = value;
            places_of_warps[warp] = place;
        }
        __syncthreads();
        for (uint32_t i = 0; i < THREADS / WARP; i++) {
            if (is_before(values_of_warps[i], places_of_warps[i], value, place)) {
                value = values_of_warps[i];
                place = places_of_warps[i];
            }
        }
        if (threadIdx.x == 0) {
            out[1 + 2 * rank] = __float_as_uint(value);
            out[2 + 2 * rank] = place;
        }
        UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            if (places[i] == place) {
                x[i] = -INFINITY;
                places[i] = NO_PLACE;
            }
        }
        // Wait for all readers before the next write.
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = strange[0];
}

}  // namespace sampling
