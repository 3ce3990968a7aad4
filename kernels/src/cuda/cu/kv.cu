// Writing, moving and compressing keys and values.
#include "kv.cuh"
#include "rows.cuh"

// Records the first unrepresentable value that a launch writes: its row in the high bits, its float
// bits in the low ones. All ones if none.
DEVICE void fault(uint64_t *faults, uint32_t row, float value) {
    atomicMin(reinterpret_cast<unsigned long long *>(faults),
              static_cast<unsigned long long>(row) << 32 | __float_as_uint(value));
}

DEVICE bool is_finite(float value) { return fabsf(value) <= 3.402823466e38f; }

DEVICE bool half_is_finite(uint16_t bits) { return (bits & 0x7c00u) != 0x7c00u; }

struct Append {
    // [n, kv_heads, size]
    const float *x;
    KvRows rows;
    uint64_t *fault;
    uint32_t n;
    uint32_t kv_heads;
    uint32_t size;
    // Cache row of the first row.
    uint32_t first;
    // Position that faults report for it.
    uint32_t position;
    uint32_t unused;
};

DEVICE size_t appended_row(const Append &a, uint32_t t, uint32_t head) {
    return static_cast<size_t>(head) * a.rows.capacity + a.first + t;
}

// Writes one element of a type without blocks at index `at`.
DEVICE void append_number(const KvRows &rows, uint64_t *faults, uint32_t position, size_t at, float value) {
    if (rows.type == KV_F16) {
        const uint16_t bits = half_of_float(value);
        if (!half_is_finite(bits)) return fault(faults, position, value);
        reinterpret_cast<uint16_t *>(rows.codes)[at] = bits;
    } else {
        if (!is_finite(value)) return fault(faults, position, value);
        reinterpret_cast<float *>(rows.codes)[at] = value;
    }
}

// One thread per element, for types without blocks.
KERNEL(kv_append, Append, 256) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n * a.kv_heads * a.size) return;
    const uint32_t d = i % a.size, head = i / a.size % a.kv_heads, t = i / a.size / a.kv_heads;
    append_number(a.rows, a.fault, a.position + t, appended_row(a, t, head) * a.size + d, a.x[i]);
}

// Rounds to an integer from `low` to `high`, ties to even, by adding 1.5 * 2^23.
DEVICE int nearest_level(float value, float inverse, float low, float high) {
    const float whole = fminf(fmaxf(value * inverse, low), high) + 12582912.0f;
    return static_cast<int>(__float_as_uint(whole)) - static_cast<int>(__float_as_uint(12582912.0f));
}

DEVICE float inverse_of(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// Quantises block `at` with the arithmetic of the CPU implementation, in the same order.
DEVICE void append_block(const KvRows &rows, uint64_t *faults, uint32_t position, size_t at, const float *x) {
    float extreme = 0;
    for (uint32_t d = 0; d < KV_BLOCK; d++) {
        // Magnitudes compare as their bits, with infinity and NaN above all others.
        const float value = x[d];
        if ((__float_as_uint(value) & 0x7fffffffu) > (__float_as_uint(extreme) & 0x7fffffffu)) extreme = value;
    }
    if (rows.type == KV_Q8_0) {
        const uint16_t bits = half_of_float(fabsf(extreme) / 127.0f);
        if (!half_is_finite(bits)) return fault(faults, position, extreme);
        const float inverse = inverse_of(float_of_half(bits));
        for (uint32_t d = 0; d < KV_BLOCK; d++)
            rows.codes[at * KV_BLOCK + d] = static_cast<uint8_t>(nearest_level(x[d], inverse, -127.0f, 127.0f));
        rows.scales[at] = bits;
        return;
    }
    const float of_extreme[4] = {-8.5f, -7.9f, -7.3f, -6.8f};
    float least = INFINITY;
    uint16_t best = 0;
    for (int which = 0; which < 4; which++) {
        const uint16_t bits = half_of_float(extreme / of_extreme[which]);
        if (which == 0 && !half_is_finite(bits)) return fault(faults, position, extreme);
        const float scale = float_of_half(bits), inverse = inverse_of(scale);
        float lanes[8] = {};
        for (uint32_t d = 0; d < KV_BLOCK; d++) {
            const float level = static_cast<float>(nearest_level(x[d], inverse, -8.0f, 7.0f));
            const float off = x[d] - scale * level;
            lanes[d % 8] += off * off;
        }
        float squares = 0;
        for (int lane = 0; lane < 8; lane++) squares += lanes[lane];
        if (squares < least || which == 0) {
            least = squares;
            best = bits;
        }
    }
    const float inverse = inverse_of(float_of_half(best));
    for (uint32_t d = 0; d < KV_BLOCK / 2; d++) {
        const int low = nearest_level(x[d], inverse, -8.0f, 7.0f) + 8;
        const int high = nearest_level(x[d + KV_BLOCK / 2], inverse, -8.0f, 7.0f) + 8;
        rows.codes[at * (KV_BLOCK / 2) + d] = static_cast<uint8_t>(low | high << 4);
    }
    rows.scales[at] = best;
}

// One thread per block of elements.
KERNEL(kv_append_blocks, Append, 64) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t blocks = a.size / KV_BLOCK;
    if (i >= a.n * a.kv_heads * blocks) return;
    const uint32_t block = i % blocks, head = i / blocks % a.kv_heads, t = i / blocks / a.kv_heads;
    const float *x = a.x + static_cast<size_t>(i) * KV_BLOCK;
    append_block(a.rows, a.fault, a.position + t, appended_row(a, t, head) * blocks + block, x);
}

struct HeadsPart {
    // [n, heads, size]
    float *x;
    // [heads, size], added first; null for none.
    const float *bias;
    // [size], weight of a norm of each head; null for none.
    const float *weight;
    // Cache rows to which the result is also written.
    KvRows rows;
    uint64_t *fault;
    uint32_t heads;
    float epsilon;
    uint32_t turned;
    uint32_t appended;
};

struct Heads {
    // [n, pairs]
    const float *cosines;
    const float *sines;
    uint32_t n;
    uint32_t size;
    uint32_t pairs;
    // Pairs are adjacent elements, not one of each half.
    uint32_t neighbours;
    // Cache row of the first row, and the position that faults report for it.
    uint32_t first;
    uint32_t position;
    uint32_t count;
    uint32_t unused;
    HeadsPart parts[3];
};

// Returns the norm factor of elements in shared memory, with the summation order of the separate
// norm kernel.
DEVICE float head_factor(const float *head, uint32_t size, float epsilon, float *shared) {
    const uint32_t lane = threadIdx.x % WARP, threads = norm_threads(size);
    for (uint32_t warp = threadIdx.x / WARP; warp < threads / WARP; warp += blockDim.x / WARP) {
        float squares = 0;
        for (uint32_t i = 4 * (warp * WARP + lane); i < size; i += 4 * threads)
            squares = add_squares(squares, four_of(head, i, size));
        squares = sum_of_warp(squares);
        if (lane == 0) shared[warp] = squares;
    }
    __syncthreads();
    float sum = 0;
    for (uint32_t warp = 0; warp < threads / WARP; warp++) sum += shared[warp];
    return norm_factor(sum, size, epsilon);
}

// One block per head and row of queries, keys and values, with the head in shared memory: adds the
// bias, normalises, rotates and appends.
KERNEL(heads_ready, Heads, 64) {
    SHARED(float, shared, NORM_THREADS / WARP);
    DYNAMIC_SHARED(float, numbers);
    uint32_t which = 0, block = blockIdx.x;
    while (which + 1 < a.count && block >= a.n * a.parts[which].heads) block -= a.n * a.parts[which++].heads;
    const HeadsPart &part = a.parts[which];
    const uint32_t head = block % part.heads, t = block / part.heads;
    float *x = part.x + static_cast<size_t>(block) * a.size;
    for (uint32_t i = threadIdx.x; i < a.size; i += blockDim.x)
        numbers[i] = part.bias == nullptr ? x[i] : x[i] + part.bias[head * a.size + i];
    __syncthreads();
    if (part.weight != nullptr) {
        const float factor = head_factor(numbers, a.size, part.epsilon, shared);
        for (uint32_t i = threadIdx.x; i < a.size; i += blockDim.x) numbers[i] = numbers[i] * factor * part.weight[i];
        __syncthreads();
    }
    if (part.turned) {
        for (uint32_t pair = threadIdx.x; pair < a.pairs; pair += blockDim.x) {
            float *first = numbers + (a.neighbours ? 2 * pair : pair);
            const size_t angle = static_cast<size_t>(t) * a.pairs + pair;
            turn(first, a.neighbours ? first + 1 : first + a.pairs, a.cosines[angle], a.sines[angle]);
        }
        __syncthreads();
    }
    if (part.bias != nullptr || part.weight != nullptr || part.turned)
        for (uint32_t i = threadIdx.x; i < a.size; i += blockDim.x) x[i] = numbers[i];
    if (!part.appended) return;
    const size_t row = static_cast<size_t>(head) * part.rows.capacity + a.first + t;
    if (part.rows.type == KV_F32 || part.rows.type == KV_F16) {
        for (uint32_t d = threadIdx.x; d < a.size; d += blockDim.x)
            append_number(part.rows, part.fault, a.position + t, row * a.size + d, numbers[d]);
    } else {
        const uint32_t blocks = a.size / KV_BLOCK;
        for (uint32_t i = threadIdx.x; i < blocks; i += blockDim.x)
            append_block(part.rows, part.fault, a.position + t, row * blocks + i, numbers + i * KV_BLOCK);
    }
}

struct Gather {
    const uint8_t *from;
    uint8_t *to;
    // Rows `[kv_heads, count]` of `from` that become the first of `to`; null for the identity.
    const uint32_t *rows;
    uint32_t kv_heads;
    uint32_t count;
    uint32_t from_capacity;
    uint32_t to_capacity;
    // Bytes per row, an even number.
    uint32_t bytes;
    uint32_t unused;
};

// One block per head and row.
KERNEL(kv_gather, Gather, 64) {
    const uint32_t head = blockIdx.x / a.count, row = blockIdx.x % a.count;
    const uint32_t source = a.rows == nullptr ? row : a.rows[blockIdx.x];
    const uint16_t *from =
        reinterpret_cast<const uint16_t *>(a.from + (static_cast<size_t>(head) * a.from_capacity + source) * a.bytes);
    uint16_t *to = reinterpret_cast<uint16_t *>(a.to + (static_cast<size_t>(head) * a.to_capacity + row) * a.bytes);
    for (uint32_t i = threadIdx.x; i < a.bytes / 2; i += blockDim.x) to[i] = from[i];
}

struct Widen {
    KvRows rows;
    // [kv_heads, count, size], or with `to_capacity` rows per head.
    float *to;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t first;
    uint32_t count;
    uint32_t to_first;
    uint32_t to_capacity;
};

template <uint32_t TYPE> DEVICE void widen(const Widen &a) {
    const uint32_t head = blockIdx.x / a.count, row = blockIdx.x % a.count;
    const size_t from = static_cast<size_t>(head) * a.rows.capacity + a.first + row;
    float *to = a.to + (static_cast<size_t>(head) * a.to_capacity + a.to_first + row) * a.size;
    for (uint32_t d = threadIdx.x; d < a.size; d += blockDim.x) to[d] = kv_number<TYPE>(kv_row<TYPE>(a.rows, from, a.size), d);
}

// One block per head and row: full rows as floats.
KERNEL(kv_widen, Widen, 64) {
    switch (a.rows.type) {
    case KV_F32: widen<KV_F32>(a); break;
    case KV_F16: widen<KV_F16>(a); break;
    case KV_Q8_0: widen<KV_Q8_0>(a); break;
    default: widen<KV_Q4_0>(a); break;
    }
}

struct Expand {
    const uint16_t *coordinates;
    const float *basis;
    float *to;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t rank;
    uint32_t capacity;
    uint32_t count;
    uint32_t to_first;
    uint32_t to_capacity;
    uint32_t unused;
};

// One block per head and row: expands coordinates to floats.
KERNEL(kv_expand, Expand, 64) {
    const uint32_t head = blockIdx.x / a.count, row = blockIdx.x % a.count;
    const uint16_t *from = a.coordinates + (static_cast<size_t>(head) * a.capacity + row) * a.rank;
    const float *basis = a.basis + static_cast<size_t>(head) * a.rank * a.size;
    float *to = a.to + (static_cast<size_t>(head) * a.to_capacity + a.to_first + row) * a.size;
    for (uint32_t d = threadIdx.x; d < a.size; d += blockDim.x) {
        float sum = 0;
        for (uint32_t i = 0; i < a.rank; i++) sum += float_of_half(from[i]) * basis[static_cast<size_t>(i) * a.size + d];
        to[d] = sum;
    }
}

struct Map {
    // Half-precision rows [kv_heads, from_capacity, from_size].
    const uint16_t *from;
    // [kv_heads, to_size, from_size]
    const float *matrix;
    // [kv_heads, to_capacity, to_size]
    uint16_t *to;
    uint64_t *fault;
    // [kv_heads, count, 2]: squared norms of a row before and after.
    float *squares;
    uint32_t kv_heads;
    uint32_t count;
    uint32_t from_capacity;
    uint32_t from_size;
    uint32_t from_first;
    uint32_t to_capacity;
    uint32_t to_size;
    uint32_t to_first;
};

// One block per head and row: the product with the head's matrix, rounded to half precision.
KERNEL(kv_map, Map, 64) {
    SHARED(float, shared, 64 / WARP);
    DYNAMIC_SHARED(float, x);
    const uint32_t head = blockIdx.x / a.count, row = blockIdx.x % a.count;
    const uint16_t *from =
        a.from + (static_cast<size_t>(head) * a.from_capacity + a.from_first + row) * a.from_size;
    uint16_t *to = a.to + (static_cast<size_t>(head) * a.to_capacity + a.to_first + row) * a.to_size;
    const float *matrix = a.matrix + static_cast<size_t>(head) * a.to_size * a.from_size;
    float before = 0, behind = 0;
    for (uint32_t d = threadIdx.x; d < a.from_size; d += blockDim.x) {
        x[d] = float_of_half(from[d]);
        before += x[d] * x[d];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.to_size; i += blockDim.x) {
        float sum = 0;
        for (uint32_t d = 0; d < a.from_size; d++) sum += matrix[static_cast<size_t>(i) * a.from_size + d] * x[d];
        behind += sum * sum;
        const uint16_t bits = half_of_float(sum);
        if (half_is_finite(bits)) {
            to[i] = bits;
        } else {
            fault(a.fault, row, sum);
        }
    }
    before = sum_of_block(before, shared);
    __syncthreads();
    behind = sum_of_block(behind, shared);
    if (threadIdx.x == 0) {
        a.squares[2 * static_cast<size_t>(blockIdx.x)] = before;
        a.squares[2 * static_cast<size_t>(blockIdx.x) + 1] = behind;
    }
}
