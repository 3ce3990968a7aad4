// Causal attention over the KV cache of a layer: full rows, with optional low-rank rows between the
// first of them and the rest.
#include "kv.cuh"
#include "vectors.cuh"

namespace attention {

constexpr uint32_t ATTEND_THREADS = 128;

// Heads whose weights for a position are contiguous.
constexpr uint32_t FOUR = 4;

// Minimum positions of a split and maximum splits of a context.
constexpr uint32_t LEAST_SPLIT = 32, MOST_SPLITS = 64;

struct Attend {
    // [n, heads, size]
    const float *q;
    // [n, heads, splits, 2 + size + rank of values]: maximum score, sum of weights, weighted sums
    // of values and of coordinates.
    float *partial;
    KvRows keys;
    KvRows values;
    // Coordinates in half precision [kv_heads, low_capacity, rank], and bases [kv_heads, rank,
    // size].
    const uint16_t *low_keys;
    const uint16_t *low_values;
    const float *key_basis;
    const float *value_basis;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t rank_of_keys;
    uint32_t rank_of_values;
    uint32_t low_capacity;
    // Full rows before the low-rank ones, and the number of low-rank rows.
    uint32_t front;
    uint32_t compressed;
    // Positions before the batch.
    uint32_t start;
    // Sliding window including the current position; 0 for none.
    uint32_t window;
    uint32_t splits;
    // Positions of a split; 0 to derive it from the end of each row.
    uint32_t split;
    // Query heads of a block; they share a kv head.
    uint32_t together;
    float scale;
    float softcap;
    // Positions in shared memory at a time, at most 32.
    uint32_t tile;
};

// Keys or values of a tile in shared memory: rows `pitch` bytes apart, followed by their scales.
struct Side {
    uint8_t *codes;
    uint16_t *scales;
    uint32_t pitch;
};

// Row pitch in bytes, padded by 16 so that lanes that read the same part of different rows use
// different banks.
DEVICE uint32_t pitch_of(uint32_t bytes, uint32_t rank) { return ceil_div(max(bytes, 2 * rank), 16) * 16 + 16; }

DEVICE uint32_t side_bytes(uint32_t tile, uint32_t pitch, uint32_t size) {
    return tile * pitch + ceil_div(tile * (size / KV_BLOCK) * 2, 16) * 16;
}

// Copies the bytes of a row with the lanes of a warp.
DEVICE void bring(void *to, const void *from, uint32_t bytes) {
    const uint32_t lane = threadIdx.x % WARP;
    if (bytes % 16 == 0) {
        for (uint32_t i = lane; i < bytes / 16; i += WARP)
            copy_to_shared(static_cast<uint8_t *>(to) + 16 * i, static_cast<const uint8_t *>(from) + 16 * i);
    } else {
        for (uint32_t i = lane; i < bytes / 2; i += WARP)
            static_cast<uint16_t *>(to)[i] = static_cast<const uint16_t *>(from)[i];
    }
}

// Low-rank positions of a tile.
struct Low {
    uint32_t from;
    uint32_t to;
};

// Copies keys or values of `count` positions from `first` on, some of them low-rank.
template <uint32_t TYPE>
DEVICE void bring_mixed(const Attend &a, const KvRows &rows, const uint16_t *coordinates, uint32_t rank, uint32_t kv_head,
                        uint32_t first, uint32_t count, Low low, const Side &to) {
    const uint32_t scales = TYPE == KV_Q8_0 || TYPE == KV_Q4_0 ? a.size / KV_BLOCK : 0;
    for (uint32_t p = threadIdx.x / WARP; p < count; p += ATTEND_THREADS / WARP) {
        const uint32_t position = first + p;
        if (p >= low.from && p < low.to) {
            const size_t row = static_cast<size_t>(kv_head) * a.low_capacity + (position - a.front);
            bring(to.codes + p * to.pitch, coordinates + row * rank, 2 * rank);
            continue;
        }
        const size_t row = static_cast<size_t>(kv_head) * rows.capacity + (position < a.front ? position : position - a.compressed);
        const KvRow from = kv_row<TYPE>(rows, row, a.size);
        bring(to.codes + p * to.pitch, from.codes, kv_bytes<TYPE>(a.size));
        for (uint32_t i = threadIdx.x % WARP; i < scales; i += WARP) to.scales[p * scales + i] = from.scales[i];
    }
}

// Copies keys or values of `count` positions from `first` on. Contiguous full rows, the common
// case, are copied 16 bytes per thread.
template <uint32_t TYPE>
DEVICE void bring_side(const Attend &a, const KvRows &rows, const uint16_t *coordinates, uint32_t rank, uint32_t kv_head,
                       uint32_t first, uint32_t count, Low low, const Side &to) {
    const uint32_t bytes = kv_bytes<TYPE>(a.size), chunks = bytes / 16;
    const bool adjoin = a.compressed == 0 || first + count <= a.front || first >= a.front + a.compressed;
    if (!adjoin || bytes % 16 != 0) {
        bring_mixed<TYPE>(a, rows, coordinates, rank, kv_head, first, count, low, to);
        return;
    }
    const uint32_t place = first < a.front ? first : first - a.compressed;
    const KvRow from = kv_row<TYPE>(rows, static_cast<size_t>(kv_head) * rows.capacity + place, a.size);
    UNROLL_BY(4)
    for (uint32_t i = threadIdx.x; i < count * chunks; i += ATTEND_THREADS)
        copy_to_shared(to.codes + 16 * i + i / chunks * (to.pitch - bytes), from.codes + 16 * i);
    if (TYPE != KV_Q8_0 && TYPE != KV_Q4_0) return;
    for (uint32_t i = threadIdx.x; i < count * (a.size / KV_BLOCK); i += ATTEND_THREADS) to.scales[i] = from.scales[i];
}

// Returns the index of the weight of a head for a position of the tile.
DEVICE uint32_t place_of_weight(const Attend &a, uint32_t g, uint32_t p) { return (g / FOUR * a.tile + p) * FOUR + g % FOUR; }

// Returns the split size for a context length, such that the number of splits is bounded.
DEVICE uint32_t split_of(uint32_t end) {
    uint32_t split = LEAST_SPLIT;
    while (ceil_div(end, split) > MOST_SPLITS) split *= 2;
    return split;
}

// State of the heads of a block in shared memory.
struct Heads {
    float *q;
    float *low_q;
    // [together, size + rank of values]
    float *sums;
    // Indexed by `place_of_weight`: scores, then weights.
    float *weights;
    float *most;
    float *weight;
    float *factor;
};

// Computes the scores of the positions of a tile.
template <uint32_t TYPE> DEVICE void score(const Attend &a, const Heads &heads, const Side &keys, uint32_t count, Low low) {
    for (uint32_t i = threadIdx.x; i < a.tile * a.together; i += ATTEND_THREADS) {
        const uint32_t p = i % a.tile, g = i / a.tile;
        if (p >= count) continue;
        const uint8_t *codes = keys.codes + p * keys.pitch;
        const float s = p >= low.from && p < low.to
                            ? dot_of_half_row(reinterpret_cast<const uint16_t *>(codes), heads.low_q + g * a.rank_of_keys, a.rank_of_keys)
                            : kv_dot<TYPE>({codes, keys.scales + p * (a.size / KV_BLOCK)}, a.size, heads.q + g * a.size);
        heads.weights[place_of_weight(a, g, p)] = capped(s, a.softcap);
    }
}

// Computes the weights of a tile, one position per lane, and the factors that rescale the previous
// sums.
DEVICE void weigh(const Attend &a, const Heads &heads, uint32_t count) {
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t g = threadIdx.x / WARP; g < a.together; g += ATTEND_THREADS / WARP) {
        float *mine = heads.weights + place_of_weight(a, g, lane);
        const float s = lane < count ? *mine : -INFINITY;
        const float largest = fmaxf(max_of_warp(s), heads.most[g]);
        const float share = lane < count ? expf(s - largest) : 0.0f;
        if (lane < count) *mine = share;
        const float sum = sum_of_warp(share);
        if (lane == 0) {
            heads.factor[g] = expf(heads.most[g] - largest);
            heads.weight[g] = heads.weight[g] * heads.factor[g] + sum;
            heads.most[g] = largest;
        }
    }
}

// Adds element `d` of the rows of some positions, weighted for four heads.
template <uint32_t TYPE>
DEVICE void add_values(const Side &values, uint32_t scales, uint32_t from, uint32_t to, uint32_t d, const float4 *weights, float sums[FOUR]) {
    UNROLL_BY(4)
    for (uint32_t p = from; p < to; p++) {
        const float x = kv_number<TYPE>({values.codes + p * values.pitch, values.scales + p * scales}, d);
        const float4 weight = weights[p];
        sums[0] = fmaf(weight.x, x, sums[0]);
        sums[1] = fmaf(weight.y, x, sums[1]);
        sums[2] = fmaf(weight.z, x, sums[2]);
        sums[3] = fmaf(weight.w, x, sums[3]);
    }
}

// Adds the weighted values of a tile: full, low-rank, full. Each thread always handles the same
// elements of all heads.
template <uint32_t TYPE>
DEVICE void add_tile(const Attend &a, const Heads &heads, const Side &values, uint32_t count, Low low) {
    const uint32_t wide = a.size + a.rank_of_values, scales = a.size / KV_BLOCK;
    for (uint32_t d = threadIdx.x; d < wide; d += ATTEND_THREADS) {
        for (uint32_t g = 0; g < a.together; g += FOUR) {
            const float4 *weights = reinterpret_cast<const float4 *>(heads.weights) + g / FOUR * a.tile;
            float sums[FOUR];
            UNROLL
            for (uint32_t i = 0; i < FOUR; i++)
                sums[i] = g + i < a.together ? heads.sums[(g + i) * wide + d] * heads.factor[g + i] : 0.0f;
            if (d < a.size) {
                add_values<TYPE>(values, scales, 0, low.from, d, weights, sums);
                add_values<TYPE>(values, scales, low.to, count, d, weights, sums);
            } else {
                add_values<KV_F16>(values, 0, low.from, low.to, d - a.size, weights, sums);
            }
            UNROLL
            for (uint32_t i = 0; i < FOUR; i++)
                if (g + i < a.together) heads.sums[(g + i) * wide + d] = sums[i];
        }
    }
}

template <uint32_t TYPE> DEVICE void attend(const Attend &a, uint8_t *shared) {
    const uint32_t group = a.heads / a.kv_heads, parts = group / a.together;
    const uint32_t part = blockIdx.x % parts, kv_head = blockIdx.x / parts % a.kv_heads;
    const uint32_t row = blockIdx.x / parts / a.kv_heads, head = kv_head * group + part * a.together;
    const uint32_t wide = a.size + a.rank_of_values, bytes = kv_bytes<TYPE>(a.size);
    Side keys = {shared, nullptr, pitch_of(bytes, a.rank_of_keys)};
    keys.scales = reinterpret_cast<uint16_t *>(keys.codes + a.tile * keys.pitch);
    Side values = {shared + side_bytes(a.tile, keys.pitch, a.size), nullptr, pitch_of(bytes, a.rank_of_values)};
    values.scales = reinterpret_cast<uint16_t *>(values.codes + a.tile * values.pitch);
    Heads heads;
    heads.weights = reinterpret_cast<float *>(values.codes + side_bytes(a.tile, values.pitch, a.size));
    heads.q = heads.weights + ceil_div(a.together, FOUR) * FOUR * a.tile;
    // Aligned to 16 bytes.
    heads.low_q = heads.q + ceil_div(a.together * a.size, 4) * 4;
    heads.sums = heads.low_q + a.together * a.rank_of_keys;
    heads.most = heads.sums + a.together * wide;
    heads.weight = heads.most + a.together;
    heads.factor = heads.weight + a.together;

    const uint32_t end = a.start + row + 1;
    const uint32_t seen = a.window > 0 && end > a.window ? end - a.window : 0;
    const uint32_t split = a.split > 0 ? a.split : split_of(end);
    const uint32_t first = max(seen, blockIdx.y * split), last = min(end, (blockIdx.y + 1) * split);
    // Positions of the tile in shared memory, and the low-rank ones among them.
    uint32_t count = 0;
    Low low = {0, 0};
    const auto bring_tile = [&](uint32_t tile) {
        const uint32_t past = tile + min(a.tile, last - tile);
        count = past - tile;
        low.from = min(max(a.front, tile), past) - tile;
        low.to = min(max(a.front + a.compressed, tile + low.from), past) - tile;
        bring_side<TYPE>(a, a.keys, a.low_keys, a.rank_of_keys, kv_head, tile, count, low, keys);
        bring_side<TYPE>(a, a.values, a.low_values, a.rank_of_values, kv_head, tile, count, low, values);
    };
    // Copied while the queries are read.
    if (first < last) bring_tile(first);
    for (uint32_t i = threadIdx.x; i < a.together * a.size; i += blockDim.x)
        heads.q[i] = a.q[(static_cast<size_t>(row) * a.heads + head) * a.size + i] * a.scale;
    for (uint32_t i = threadIdx.x; i < a.together * wide; i += blockDim.x) heads.sums[i] = 0;
    // Weights of padding heads are never written.
    for (uint32_t i = threadIdx.x; i < ceil_div(a.together, FOUR) * FOUR * a.tile; i += blockDim.x) heads.weights[i] = 0;
    for (uint32_t i = threadIdx.x; i < a.together; i += blockDim.x) {
        heads.most[i] = -INFINITY;
        heads.weight[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.together * a.rank_of_keys; i += blockDim.x) {
        const uint32_t component = i % a.rank_of_keys;
        const float *basis = a.key_basis + (static_cast<size_t>(kv_head) * a.rank_of_keys + component) * a.size;
        float sum = 0;
        for (uint32_t d = 0; d < a.size; d++) sum += basis[d] * heads.q[i / a.rank_of_keys * a.size + d];
        heads.low_q[i] = sum;
    }
    for (uint32_t tile = first; tile < last; tile += a.tile) {
        wait_for_copies();
        __syncthreads();
        score<TYPE>(a, heads, keys, count, low);
        __syncthreads();
        weigh(a, heads, count);
        __syncthreads();
        add_tile<TYPE>(a, heads, values, count, low);
        __syncthreads();
        if (tile + a.tile < last) bring_tile(tile + a.tile);
    }
    const size_t record = 2 + wide;
    for (uint32_t i = threadIdx.x; i < a.together * wide; i += blockDim.x) {
        const uint32_t g = i / wide;
        float *to = a.partial + ((static_cast<size_t>(row) * a.heads + head + g) * a.splits + blockIdx.y) * record;
        to[2 + i % wide] = heads.sums[i];
        if (i % wide == 0) {
            to[0] = heads.most[g];
            to[1] = heads.weight[g];
        }
    }
}

// One block per row, kv head and `together` query heads, and per split.
KERNEL_OF_BLOCKS(attend_split, Attend, ATTEND_THREADS, 4) {
    DYNAMIC_SHARED(uint8_t, shared);
    switch (a.keys.type) {
    case KV_F32: attend<KV_F32>(a, shared); break;
    case KV_F16: attend<KV_F16>(a, shared); break;
    case KV_Q8_0: attend<KV_Q8_0>(a, shared); break;
    default: attend<KV_Q4_0>(a, shared); break;
    }
}

struct Join {
    const float *partial;
    const float *value_basis;
    // [n, heads, size]
    float *out;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t rank;
    uint32_t splits;
    uint32_t unused;
};

// Combined result of the splits of a head.
struct Joined {
    const float *partial;
    size_t record;
    // In shared memory, one per split.
    const float *shares;
    uint32_t splits;
    float weight;
};

// `shared` holds two floats per split.
DEVICE Joined join_splits(const Join &a, float *shared) {
    Joined to = {nullptr, 2 + static_cast<size_t>(a.size) + a.rank, shared, a.splits, 0};
    to.partial = a.partial + static_cast<size_t>(blockIdx.x) * a.splits * to.record;
    float *shares = shared, *weights = shared + a.splits;
    for (uint32_t split = threadIdx.x; split < a.splits; split += blockDim.x) {
        shares[split] = to.partial[split * to.record];
        weights[split] = to.partial[split * to.record + 1];
    }
    __syncthreads();
    float most = -INFINITY;
    for (uint32_t split = 0; split < a.splits; split++) most = fmaxf(most, shares[split]);
    __syncthreads();
    for (uint32_t split = threadIdx.x; split < a.splits; split += blockDim.x) shares[split] = expf(shares[split] - most);
    __syncthreads();
    for (uint32_t split = 0; split < a.splits; split++) to.weight = fmaf(shares[split], weights[split], to.weight);
    return to;
}

DEVICE float joined_number(const Joined &of, uint32_t i) {
    float sum = 0;
    UNROLL_BY(4)
    for (uint32_t split = 0; split < of.splits; split++)
        sum = fmaf(of.shares[split], of.partial[split * of.record + 2 + i], sum);
    return sum / of.weight;
}

// One block per row and head. Dynamic shared memory holds two floats per split and the sum of
// coordinates.
KERNEL(attend_join, Join, ATTEND_THREADS) {
    DYNAMIC_SHARED(float, shared);
    float *low = shared + 2 * a.splits;
    const uint32_t head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    const Joined joined = join_splits(a, shared);
    for (uint32_t i = threadIdx.x; i < a.rank; i += blockDim.x) low[i] = joined_number(joined, a.size + i);
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < a.size; d += blockDim.x) {
        float sum = joined_number(joined, d);
        for (uint32_t i = 0; i < a.rank; i++)
            sum += low[i] * a.value_basis[(static_cast<size_t>(kv_head) * a.rank + i) * a.size + d];
        a.out[static_cast<size_t>(blockIdx.x) * a.size + d] = sum;
    }
}

struct JoinQuantise {
    // Without coordinates; the head size is a multiple of 32.
    Join join;
    uint32_t count;
    uint32_t unused;
    vectors::Integers to[4];
};

// As `attend_join`, with quantised output in addition.
KERNEL(join_quantise, JoinQuantise, ATTEND_THREADS) {
    DYNAMIC_SHARED(float, shared);
    const Joined joined = join_splits(a.join, shared);
    const uint32_t size = a.join.size, width = a.join.heads * size;
    const uint32_t row = blockIdx.x / a.join.heads, first = blockIdx.x % a.join.heads * size;
    for (uint32_t base = 0; base < size; base += 4 * ATTEND_THREADS) {
        const uint32_t d = base + 4 * threadIdx.x;
        const bool exists = d < size;
        float numbers[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            numbers[i] = exists ? joined_number(joined, d + i) : 0.0f;
            if (exists) a.join.out[static_cast<size_t>(blockIdx.x) * size + d + i] = numbers[i];
        }
        const uint64_t at = static_cast<uint64_t>(row) * (width / 32) + (first + d) / 32;
        for (uint32_t k = 0; k < a.count; k++)
            vectors::quantise_four(a.to[k], at, first + d, width, exists, numbers);
    }
}

struct Importance {
    // The last `queries` rows of queries, [queries, heads, size].
    const float *q;
    // [queries, heads, 2]: maximum score and sum of weights.
    float *scale_of;
    // [kv_heads, end]
    float *out;
    KvRows keys;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t queries;
    // Number of positions up to and including the last query.
    uint32_t end;
    uint32_t window;
    float scale;
    float softcap;
};

// Returns the score of a query and a key, and sets `sees` if the key is visible.
template <uint32_t TYPE>
DEVICE float importance_score(const Importance &a, uint32_t query, uint32_t head, uint32_t position, bool *sees) {
    const uint32_t own = a.end - a.queries + query;
    *sees = position <= own && (a.window == 0 || own - position < a.window);
    if (!*sees) return -INFINITY;
    const uint32_t kv_head = head / (a.heads / a.kv_heads);
    const float *q = a.q + (static_cast<size_t>(query) * a.heads + head) * a.size;
    const size_t row = static_cast<size_t>(kv_head) * a.keys.capacity + position;
    return capped(a.scale * kv_dot<TYPE>(kv_row<TYPE>(a.keys, row, a.size), a.size, q), a.softcap);
}

template <uint32_t TYPE> DEVICE void importance_scale(const Importance &a, float *shared) {
    const uint32_t query = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    bool sees;
    float most = -INFINITY, sum = 0;
    for (uint32_t p = threadIdx.x; p < a.end; p += blockDim.x)
        most = fmaxf(most, importance_score<TYPE>(a, query, head, p, &sees));
    most = max_of_warp(most);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = most;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) most = fmaxf(most, shared[i]);
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < a.end; p += blockDim.x) {
        const float s = importance_score<TYPE>(a, query, head, p, &sees);
        if (sees) sum += expf(s - most);
    }
    sum = sum_of_block(sum, shared);
    if (threadIdx.x == 0) {
        a.scale_of[2 * static_cast<size_t>(blockIdx.x)] = most;
        a.scale_of[2 * static_cast<size_t>(blockIdx.x) + 1] = sum;
    }
}

template <uint32_t TYPE> DEVICE void importance_sum(const Importance &a) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.kv_heads * a.end) return;
    const uint32_t kv_head = i / a.end, position = i % a.end, group = a.heads / a.kv_heads;
    float sum = 0;
    for (uint32_t query = 0; query < a.queries; query++) {
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            bool sees;
            const float s = importance_score<TYPE>(a, query, head, position, &sees);
            const float *scale = a.scale_of + 2 * (static_cast<size_t>(query) * a.heads + head);
            if (sees) sum += expf(s - scale[0]) / scale[1];
        }
    }
    a.out[i] = sum;
}

// One block per query and head.
KERNEL(importance_of_queries, Importance, ATTEND_THREADS) {
    SHARED(float, shared, ATTEND_THREADS / WARP);
    switch (a.keys.type) {
    case KV_F32: importance_scale<KV_F32>(a, shared); break;
    case KV_F16: importance_scale<KV_F16>(a, shared); break;
    case KV_Q8_0: importance_scale<KV_Q8_0>(a, shared); break;
    default: importance_scale<KV_Q4_0>(a, shared); break;
    }
}

// One thread per kv head and position.
KERNEL(importance_of_positions, Importance, ATTEND_THREADS) {
    switch (a.keys.type) {
    case KV_F32: importance_sum<KV_F32>(a); break;
    case KV_F16: importance_sum<KV_F16>(a); break;
    case KV_Q8_0: importance_sum<KV_Q8_0>(a); break;
    default: importance_sum<KV_Q4_0>(a); break;
    }
}

}  // namespace attention
