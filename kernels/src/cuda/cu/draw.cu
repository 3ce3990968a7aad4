// One of many tokens, drawn by what their logits weigh.
#include "dialect.cuh"

namespace drawing {

#define DRAW_THREADS 1024u
// Values of a digit of a key at most, two for each thread, and sums of each: lanes side by side add to different ones.
#define DIGITS (2 * DRAW_THREADS)
#define COPIES 2u
#define NO_PLACE 0xffffffffu

struct Draw {
    const float *x;
    // Two words: the token, and the place of the first number that is not finite, or none.
    uint32_t *out;
    // Of [0, 1).
    double uniform;
    uint32_t numbers;
    // How many of the largest count; 0 for all.
    uint32_t top_k;
    // What part of the weight of those counts, the largest first; 1 for all.
    float top_p;
    // Divides them, only behind what counts.
    float temperature;
};

// Keys in the order of the numbers, both zeros alike.
DEVICE uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float number_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// What a number weighs beside the largest, in whole parts of 2^-40: their sums are the same in any order. What weighs less than one
// of them is never drawn.
DEVICE uint64_t weight_of(float x, float largest, float temperature) {
    // Halves, whose difference is finite.
    const float less = (x * 0.5f - largest * 0.5f) / temperature * 2.0f;
    return static_cast<uint64_t>((x == largest ? 1.0f : expf(less)) * 1099511627776.0f);
}

// What the threads of the block share.
struct Room {
    // A number for each.
    uint64_t *sums;
    // [digits, copies]
    uint64_t *bins;
    // What one of them has found.
    uint64_t *found;
};

// Numbers that count: those of larger keys, and so many of those of this one, that of the lower place first.
struct Kept {
    uint32_t key;
    uint32_t of_key;
};

// The sum of a number of each thread before it; of all of them in `found[0]`.
DEVICE uint64_t sum_before(const Room &room, uint64_t value) {
    __syncthreads();
    room.sums[threadIdx.x] = value;
    __syncthreads();
    for (uint32_t apart = 1; apart < DRAW_THREADS; apart *= 2) {
        const uint64_t other = threadIdx.x >= apart ? room.sums[threadIdx.x - apart] : 0;
        __syncthreads();
        room.sums[threadIdx.x] += other;
        __syncthreads();
    }
    if (threadIdx.x == DRAW_THREADS - 1) room.found[0] = room.sums[threadIdx.x];
    const uint64_t before = threadIdx.x > 0 ? room.sums[threadIdx.x - 1] : 0;
    __syncthreads();
    return before;
}

// The largest keys whose amounts together reach `wanted`, which is at least 1 and at most that of all that count: `amount` is what one of
// them has. Of the last key, as many as it takes. `exists` says which count.
template <class Exists, class Amount>
DEVICE Kept reach(const Draw &a, const Room &room, uint64_t wanted, Exists exists, Amount amount) {
    uint32_t key = 0;
    // Keys in digits of eleven, eleven and ten bits. The first has the exponent and two bits more, so that logits are spread.
    for (int above = 32; above > 0;) {
        const int bits = above > 10 ? 11 : 10, shift = above - bits;
        for (uint32_t i = threadIdx.x; i < COPIES * DIGITS; i += DRAW_THREADS) room.bins[i] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS) {
            const uint32_t own = key_of(a.x[i]);
            // Those that begin as the key does.
            if (!exists(own) || (above < 32 && own >> above != key >> above)) continue;
            const uint64_t has = amount(a.x[i]);
            const uint32_t digit = own >> shift & ((1u << bits) - 1);
            if (has > 0) atomicAdd(room.bins + COPIES * digit + threadIdx.x % COPIES, has);
        }
        __syncthreads();
        // Two digits for each thread, the largest first.
        const uint32_t digit = DIGITS - 1 - 2 * threadIdx.x;
        uint64_t of_digits[2] = {};
        for (uint32_t i = 0; i < COPIES; i++) {
            of_digits[0] += room.bins[COPIES * digit + i];
            of_digits[1] += room.bins[COPIES * (digit - 1) + i];
        }
        const uint64_t before = sum_before(room, of_digits[0] + of_digits[1]);
        if (before < wanted && wanted <= before + of_digits[0] + of_digits[1]) {
            const bool first = wanted <= before + of_digits[0];
            room.found[0] = first ? digit : digit - 1;
            room.found[1] = wanted - before - (first ? 0 : of_digits[0]);
        }
        __syncthreads();
        key |= static_cast<uint32_t>(room.found[0]) << shift;
        wanted = room.found[1];
        above = shift;
        // It is written again only once all have read.
        __syncthreads();
    }
    // All of one key have the same amount.
    const uint64_t each = max(amount(number_of(key)), static_cast<uint64_t>(1));
    return {key, static_cast<uint32_t>((wanted + each - 1) / each)};
}

// One block.
KERNEL(draw_token, Draw, DRAW_THREADS) {
    SHARED(uint64_t, sums, DRAW_THREADS);
    SHARED(uint64_t, bins, COPIES * DIGITS);
    SHARED(uint64_t, found, 2);
    SHARED(uint32_t, strange, 1);
    SHARED(uint32_t, top, 1);
    const Room room = {sums, bins, found};
    if (threadIdx.x == 0) {
        strange[0] = NO_PLACE;
        top[0] = 0;
        a.out[0] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS) {
        const float x = a.x[i];
        // False for what is no number, too.
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
    // No number has the key 0.
    Kept kept = {0, 0};
    if (a.top_k > 0 && a.top_k < a.numbers)
        kept = reach(a, room, a.top_k, [](uint32_t) { return true; }, [](float) { return static_cast<uint64_t>(1); });
    const auto weight = [&](float x) { return weight_of(x, largest, 1.0f); };
    if (a.top_p < 1.0f) {
        const Kept before = kept;
        uint64_t own = 0;
        for (uint32_t i = threadIdx.x; i < a.numbers; i += DRAW_THREADS)
            if (key_of(a.x[i]) > before.key) own += weight(a.x[i]);
        sum_before(room, own);
        uint64_t all = found[0];
        __syncthreads();
        if (before.key > 0) all += before.of_key * weight(number_of(before.key));
        const double part = static_cast<double>(a.top_p) * static_cast<double>(all);
        const uint64_t wanted = max(static_cast<uint64_t>(part), static_cast<uint64_t>(1));
        kept = reach(a, room, wanted, [&](uint32_t key) { return key >= before.key; }, weight);
        if (kept.key == before.key) kept.of_key = min(kept.of_key, before.of_key);
    }
    // Neighbouring tokens for each thread, so that draws go along the vocabulary.
    const uint32_t each = ceil_div(a.numbers, DRAW_THREADS);
    const uint32_t first = min(threadIdx.x * each, a.numbers), last = min(first + each, a.numbers);
    uint64_t of_key = 0;
    for (uint32_t i = first; i < last; i++) of_key += key_of(a.x[i]) == kept.key;
    of_key = sum_before(room, of_key);
    const auto weight_if_kept = [&](uint32_t i, uint64_t &seen) {
        const uint32_t key = key_of(a.x[i]);
        const bool counts = key > kept.key || (key == kept.key && seen++ < kept.of_key);
        return counts ? weight_of(a.x[i], largest, a.temperature) : 0;
    };
    uint64_t own = 0, seen = of_key;
    for (uint32_t i = first; i < last; i++) own += weight_if_kept(i, seen);
    const uint64_t before = sum_before(room, own);
    // Below the sum of all, however it is rounded.
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
