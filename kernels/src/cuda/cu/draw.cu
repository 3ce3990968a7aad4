// Sampling of a token by the softmax weights of its logits.
#include "dialect.cuh"

namespace drawing {

#define DRAW_THREADS 1024u
// Maximum values of a radix digit, two per thread, and copies of each histogram bin, so that
// adjacent lanes update different ones.
#define DIGITS (2 * DRAW_THREADS)
#define COPIES 2u
#define NO_PLACE 0xffffffffu

struct Draw {
    const float *x;
    // Two words: the token, and the index of the first non-finite element, or none.
    uint32_t *out;
    // In [0, 1).
    double uniform;
    uint32_t numbers;
    // Top-k; 0 for all.
    uint32_t top_k;
    // Top-p mass, from the largest weight down; 1 for all.
    float top_p;
    // Temperature, applied after top-k and top-p.
    float temperature;
};

// Returns a key with the order of the floats; both zeros are equal.
DEVICE uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float number_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// Returns the weight relative to the largest logit as an integer multiple of 2^-40: sums are the
// same in any order. Smaller weights are never drawn.
DEVICE uint64_t weight_of(float x, float largest, float temperature) {
    // Halved, so that the difference is finite.
    const float less = (x * 0.5f - largest * 0.5f) / temperature * 2.0f;
    return static_cast<uint64_t>((x == largest ? 1.0f : expf(less)) * 1099511627776.0f);
}

// Shared memory of the block.
struct SharedMemory {
    // One per thread.
    uint64_t *sums;
    // [digits, copies]
    uint64_t *bins;
    // Result found by one thread.
    uint64_t *found;
};

// Selected elements: those with larger keys, and the first `of_key` elements with this key.
struct Kept {
    uint32_t key;
    uint32_t of_key;
};

// Returns the exclusive prefix sum over the threads, and the total in `found[0]`.
DEVICE uint64_t sum_before(const SharedMemory &shared, uint64_t value) {
    __syncthreads();
    shared.sums[threadIdx.x] = value;
    __syncthreads();
    for (uint32_t apart = 1; apart < DRAW_THREADS; apart *= 2) {
        const uint64_t other = threadIdx.x >= apart ? shared.sums[threadIdx.x - apart] : 0;
        __syncthreads();
        shared.sums[threadIdx.x] += other;
        __syncthreads();
    }
    if (threadIdx.x == DRAW_THREADS - 1) shared.found[0] = shared.sums[threadIdx.x];
    const uint64_t before = threadIdx.x > 0 ? shared.sums[threadIdx.x - 1] : 0;
    __syncthreads();
    return before;
}

// Radix selection of the largest keys whose amounts together reach `wanted`, which is between 1 and
// the total. `amount` is the contribution of an element, `exists` filters keys. Of the last key,
// only as many elements as needed are taken.
template <class Exists, class Amount>
DEVICE Kept reach(const Draw &a, const SharedMemory &shared, uint64_t wanted, Exists exists, Amount amount) {
    uint32_t key = 0;
    // Digits of eleven, eleven and ten bits. The first contains the exponent and two more bits, so
    // that logits are spread over bins.
    for (int above = 32; above > 0;) {
        const int bits = above > 10 ? 11 : 10, shift = above - bits;
        for (uint32_t i = threadIdx.x; i < COPIES * DIGITS; i += DRAW_THREADS) shared.bins[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS) {
            const uint32_t own = key_of(a.x[i]);
            // Elements whose leading digits match.
            if (!exists(own) || (above < 32 && own >> above != key >> above)) continue;
            const uint64_t has = amount(a.x[i]);
            const uint32_t digit = own >> shift & ((1u << bits) - 1);
            if (has > 0) atomicAdd(shared.bins + COPIES * digit + threadIdx.x % COPIES, has);
        }
        __syncthreads();
        // Two digits per thread, the largest first.
        const uint32_t digit = DIGITS - 1 - 2 * threadIdx.x;
        uint64_t of_digits[2] = {};
        for (uint32_t i = 0; i < COPIES; i++) {
            of_digits[0] += shared.bins[COPIES * digit + i];
            of_digits[1] += shared.bins[COPIES * (digit - 1) + i];
        }
        const uint64_t before = sum_before(shared, of_digits[0] + of_digits[1]);
        if (before < wanted && wanted <= before + of_digits[0] + of_digits[1]) {
            const bool first = wanted <= before + of_digits[0];
            shared.found[0] = first ? digit : digit - 1;
            shared.found[1] = wanted - before - (first ? 0 : of_digits[0]);
        }
        __syncthreads();
        key |= static_cast<uint32_t>(shared.found[0]) << shift;
        wanted = shared.found[1];
        above = shift;
        // Wait for all readers before it is written again.
        __syncthreads();
    }
    // All elements of one key have the same amount.
    const uint64_t each = max(amount(number_of(key)), static_cast<uint64_t>(1));
    return {key, static_cast<uint32_t>((wanted + each - 1) / each)};
}

// A single block.
KERNEL(draw_token, Draw, DRAW_THREADS) {
    SHARED(uint64_t, sums, DRAW_THREADS);
    SHARED(uint64_t, bins, COPIES * DIGITS);
    SHARED(uint64_t, found, 2);
    SHARED(uint32_t, strange, 1);
    SHARED(uint32_t, top, 1);
    const SharedMemory shared = {sums, bins, found};
    if (threadIdx.x == 0) {
        strange[0] = NO_PLACE;
        top[0] = 0;
        a.out[0] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS) {
        const float x = a.x[i];
        // False for NaN as well.
        if (fabsf(x) < INFINITY) {
            atomicMax(top, key_of(x));
        } else {
            atomicMin(strange, i);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) a.out[1] = strange[0];
    if (strange[0] != NO_PLACE) return;
    const float largest = number_of(top[0]);
    // No float has the key 0.
    Kept kept = {0, 0};
    if (a.top_k > 0 && a.top_k < a.numbers)
        kept = reach(a, shared, a.top_k, [](uint32_t) { return true; }, [](float) { return static_cast<uint64_t>(1); });
    const auto weight = [&](float x) { return weight_of(x, largest, 1.0f); };
    if (a.top_p < 1.0f) {
        const Kept before = kept;
        uint64_t own = 0;
        for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS)
            if (key_of(a.x[i]) > before.key) own += weight(a.x[i]);
        sum_before(shared, own);
        uint64_t all = found[0];
        __syncthreads();
        if (before.key > 0) all += before.of_key * weight(number_of(before.key));
        const double part = static_cast<double>(a.top_p) * static_cast<double>(all);
        const uint64_t wanted = max(static_cast<uint64_t>(part), static_cast<uint64_t>(1));
        kept = reach(a, shared, wanted, [&](uint32_t key) { return key >= before.key; }, weight);
        if (kept.key == before.key) kept.of_key = min(kept.of_key, before.of_key);
    }
    // Contiguous tokens per thread, so that the draw follows token order.
    const uint32_t each = ceil_div(a.numbers, DRAW_THREADS);
    const uint32_t first = min(threadIdx.x * each, a.numbers), last = min(first + each, a.numbers);
    uint64_t of_key = 0;
    for (uint32_t i = first; i < last; i++) of_key += key_of(a.x[i]) == kept.key;
    of_key = sum_before(shared, of_key);
    const auto weight_if_kept = [&](uint32_t i, uint64_t &seen) {
        const uint32_t key = key_of(a.x[i]);
        const bool counts = key > kept.key || (key == kept.key && seen++ < kept.of_key);
        return counts ? weight_of(a.x[i], largest, a.temperature) : 0;
    };
    uint64_t own = 0, seen = of_key;
    for (uint32_t i = first; i < last; i++) own += weight_if_kept(i, seen);
    const uint64_t before = sum_before(shared, own);
    // Clamped below the total in case of rounding.
    const uint64_t all = found[0];
    const uint64_t at = min(static_cast<uint64_t>(a.uniform * static_cast<double>(all)), all - 1);
    if (before > at || before + own <= at) return;
    uint64_t past = before;
    seen = of_key;
    for (uint32_t i = first; i < last; i++) {
        past += weight_if_kept(i, seen);
        if (past > at) {
            a.out[0] = i;
            return;
        }
    }
}

}  // namespace drawing
