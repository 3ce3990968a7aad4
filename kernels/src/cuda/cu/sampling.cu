// The largest of many numbers, of which a token is drawn.
#include "dialect.cuh"

namespace sampling {

#define THREADS 256u
// Numbers that a thread looks at, in its registers.
#define EACH 16u
#define NO_PLACE 0xffffffffu

struct Seek {
    // The numbers of a first pass; of a later one none, but the records of the pass before.
    const float *x;
    const uint32_t *before;
    // A record of each block: the place of the first number that is not finite, or none, then so many of the largest and their
    // places, the larger first and of equal ones that of the lower place; NO_PLACE where there are no more.
    uint32_t *out;
    // Of `x`, or places of all records before.
    uint32_t numbers;
    uint32_t most;
};

DEVICE bool is_before(float a, uint32_t place_a, float b, uint32_t place_b) {
    return a > b || (a == b && place_a < place_b);
}

// Every block finds those of its EACH * THREADS numbers, one after the other.
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
            // False for what is no number, too.
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
        // All have read before the next is written.
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = strange[0];
}

}  // namespace sampling
