// Causal attention over whatever a layer holds: rows in full, and rows in low rank between the first of them and the others.
#include "kv.cuh"
#include "vectors.cuh"

// Threads of a block, and positions that they score at a time, one each.
#define ATTEND_THREADS 128u

struct Attend {
    // [n, heads, size]
    const float *q;
    // [n, heads, splits, 2 + size + rank of values]: the largest score, the sum of weights, sums of values and of coordinates.
    float *partial;
    KvRows keys;
    KvRows values;
    // Coordinates in half precision [kv_heads, low_capacity, rank], and bases [kv_heads, rank, size].
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
    // Rows in full before those in low rank, and how many those are.
    uint32_t front;
    uint32_t compressed;
    // Positions held before the batch.
    uint32_t start;
    // Positions that one sees, itself included; 0 for all.
    uint32_t window;
    uint32_t splits;
    // Positions of a split.
    uint32_t split;
    // Query heads of a block, which read the same kv head.
    uint32_t together;
    float scale;
    float softcap;
    uint32_t unused;
};

// Scores of one position with the queries of the block.
template <uint32_t TYPE>
DEVICE void score(const Attend &a, uint32_t kv_head, uint32_t position, const float *q, const float *low_q, float *scores) {
    const bool low = position >= a.front && position < a.front + a.compressed;
    const uint32_t row = low ? position - a.front : position < a.front ? position : position - a.compressed;
    const uint16_t *coordinates =
        a.low_keys + (static_cast<size_t>(kv_head) * a.low_capacity + row) * a.rank_of_keys;
    for (uint32_t g = 0; g < a.together; g++) {
        const float s = low ? dot_of_half_row(coordinates, low_q + g * a.rank_of_keys, a.rank_of_keys)
                            : kv_dot<TYPE>(a.keys, static_cast<size_t>(kv_head) * a.keys.capacity + row, a.size,
                                           q + g * a.size);
        scores[g * ATTEND_THREADS + threadIdx.x] = capped(s, a.softcap);
    }
}

// Adds values of positions `from .. to`, all of them in full or all in low rank, to number `d` of a sum.
template <uint32_t TYPE>
DEVICE float add_values(const Attend &a, uint32_t kv_head, uint32_t from, uint32_t to, uint32_t first, bool low,
                        uint32_t d, const float *weights, float sum) {
    for (uint32_t position = from; position < to; position++) {
        const float weight = weights[position - first];
        if (low) {
            const size_t row = static_cast<size_t>(kv_head) * a.low_capacity + (position - a.front);
            sum += weight * float_of_half(a.low_values[row * a.rank_of_values + d]);
        } else {
            const uint32_t row = position < a.front ? position : position - a.compressed;
            sum += weight *
                   kv_number<TYPE>(a.values, static_cast<size_t>(kv_head) * a.values.capacity + row, a.size, d);
        }
    }
    return sum;
}

template <uint32_t TYPE> DEVICE void attend(const Attend &a, float *room) {
    const uint32_t group = a.heads / a.kv_heads, parts = group / a.together;
    const uint32_t part = blockIdx.x % parts, kv_head = blockIdx.x / parts % a.kv_heads;
    const uint32_t row = blockIdx.x / parts / a.kv_heads, head = kv_head * group + part * a.together;
    const uint32_t wide = a.size + a.rank_of_values;
    float *q = room;
    float *low_q = q + a.together * a.size;
    float *sums = low_q + a.together * a.rank_of_keys;
    float *scores = sums + a.together * wide;
    float *most = scores + a.together * ATTEND_THREADS;
    float *weight = most + a.together;
    float *factor = weight + a.together;

    const uint32_t end = a.start + row + 1;
    const uint32_t seen = a.window > 0 && end > a.window ? end - a.window : 0;
    const uint32_t first = max(seen, blockIdx.y * a.split);
    const uint32_t last = min(end, (blockIdx.y + 1) * a.split);
    for (uint32_t i = threadIdx.x; i < a.together * a.size; i += blockDim.x)
        q[i] = a.q[(static_cast<size_t>(row) * a.heads + head) * a.size + i] * a.scale;
    for (uint32_t i = threadIdx.x; i < a.together * wide; i += blockDim.x) sums[i] = 0;
    for (uint32_t i = threadIdx.x; i < a.together; i += blockDim.x) {
        most[i] = -INFINITY;
        weight[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.together * a.rank_of_keys; i += blockDim.x) {
        const uint32_t component = i % a.rank_of_keys;
        const float *basis = a.key_basis + (static_cast<size_t>(kv_head) * a.rank_of_keys + component) * a.size;
        float sum = 0;
        for (uint32_t d = 0; d < a.size; d++) sum += basis[d] * q[i / a.rank_of_keys * a.size + d];
        low_q[i] = sum;
    }
    __syncthreads();
    for (uint32_t tile = first; tile < last; tile += ATTEND_THREADS) {
        const uint32_t count = min(ATTEND_THREADS, last - tile);
        if (threadIdx.x < count) score<TYPE>(a, kv_head, tile + threadIdx.x, q, low_q, scores);
        __syncthreads();
        const uint32_t lane = threadIdx.x % WARP;
        for (uint32_t g = threadIdx.x / WARP; g < a.together; g += ATTEND_THREADS / WARP) {
            float *of_head = scores + g * ATTEND_THREADS;
            float largest = -INFINITY, sum = 0;
            for (uint32_t i = lane; i < count; i += WARP) largest = fmaxf(largest, of_head[i]);
            largest = fmaxf(max_of_warp(largest), most[g]);
            for (uint32_t i = lane; i < count; i += WARP) {
                of_head[i] = expf(of_head[i] - largest);
                sum += of_head[i];
            }
            sum = sum_of_warp(sum);
            if (lane == 0) {
                factor[g] = expf(most[g] - largest);
                weight[g] = weight[g] * factor[g] + sum;
                most[g] = largest;
            }
        }
        __syncthreads();
        // Of the tile: in full, in low rank, in full again.
        const uint32_t past = tile + count;
        const uint32_t low_from = min(max(a.front, tile), past);
        const uint32_t low_to = min(max(a.front + a.compressed, low_from), past);
        for (uint32_t i = threadIdx.x; i < a.together * wide; i += blockDim.x) {
            const uint32_t g = i / wide, d = i % wide;
            const float *weights = scores + g * ATTEND_THREADS;
            float sum = sums[i] * factor[g];
            if (d < a.size) {
                sum = add_values<TYPE>(a, kv_head, tile, low_from, tile, false, d, weights, sum);
                sum = add_values<TYPE>(a, kv_head, low_to, past, tile, false, d, weights, sum);
            } else {
                sum = add_values<TYPE>(a, kv_head, low_from, low_to, tile, true, d - a.size, weights, sum);
            }
            sums[i] = sum;
        }
        __syncthreads();
    }
    const size_t record = 2 + wide;
    for (uint32_t i = threadIdx.x; i < a.together * wide; i += blockDim.x) {
        const uint32_t g = i / wide;
        float *to = a.partial + ((static_cast<size_t>(row) * a.heads + head + g) * a.splits + blockIdx.y) * record;
        to[2 + i % wide] = sums[i];
        if (i % wide == 0) {
            to[0] = most[g];
            to[1] = weight[g];
        }
    }
}

// A block for each row, kv head and `together` of the heads that read it; and for each split.
KERNEL_OF_BLOCKS(attend_split, Attend, ATTEND_THREADS, 4) {
    DYNAMIC_SHARED(float, room);
    switch (a.keys.type) {
    case KV_F32: attend<KV_F32>(a, room); break;
    case KV_F16: attend<KV_F16>(a, room); break;
    case KV_Q8_0: attend<KV_Q8_0>(a, room); break;
    default: attend<KV_Q4_0>(a, room); break;
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

// What the splits of a head say together.
struct Joined {
    const float *partial;
    size_t record;
    uint32_t splits;
    float most;
    float weight;

};

DEVICE float share_of(const Joined &of, uint32_t split) { return expf(of.partial[split * of.record] - of.most); }

DEVICE Joined join_splits(const Join &a) {
    Joined to = {nullptr, 2 + static_cast<size_t>(a.size) + a.rank, a.splits, -INFINITY, 0};
    to.partial = a.partial + static_cast<size_t>(blockIdx.x) * a.splits * to.record;
    for (uint32_t split = 0; split < a.splits; split++) to.most = fmaxf(to.most, to.partial[split * to.record]);
    for (uint32_t split = 0; split < a.splits; split++)
        to.weight = fmaf(share_of(to, split), to.partial[split * to.record + 1], to.weight);
    return to;
}

DEVICE float joined_number(const Joined &of, uint32_t i) {
    float sum = 0;
    for (uint32_t split = 0; split < of.splits; split++)
        sum = fmaf(share_of(of, split), of.partial[split * of.record + 2 + i], sum);
    return sum / of.weight;
}

// A block for each row and head, with room for the sum of coordinates.
KERNEL(attend_join, Join, ATTEND_THREADS) {
    DYNAMIC_SHARED(float, low);
    const uint32_t head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    const Joined joined = join_splits(a);
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
    // Without coordinates, of heads of whole blocks of 32 numbers.
    Join join;
    uint32_t count;
    uint32_t unused;
    vectors::Integers to[4];
};

// As `attend_join`, and the numbers as integers.
KERNEL(join_quantise, JoinQuantise, ATTEND_THREADS) {
    const Joined joined = join_splits(a.join);
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
    // [queries, heads, 2]: the largest score and the sum of weights.
    float *scale_of;
    // [kv_heads, end]
    float *out;
    KvRows keys;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t size;
    uint32_t queries;
    // Positions up to the last query's, itself included.
    uint32_t end;
    uint32_t window;
    float scale;
    float softcap;
};

// A key that a query sees, and its score.
template <uint32_t TYPE>
DEVICE float importance_score(const Importance &a, uint32_t query, uint32_t head, uint32_t position, bool *sees) {
    const uint32_t own = a.end - a.queries + query;
    *sees = position <= own && (a.window == 0 || own - position < a.window);
    if (!*sees) return -INFINITY;
    const uint32_t kv_head = head / (a.heads / a.kv_heads);
    const float *q = a.q + (static_cast<size_t>(query) * a.heads + head) * a.size;
    const size_t row = static_cast<size_t>(kv_head) * a.keys.capacity + position;
    return capped(a.scale * kv_dot<TYPE>(a.keys, row, a.size, q), a.softcap);
}

template <uint32_t TYPE> DEVICE void importance_scale(const Importance &a, float *room) {
    const uint32_t query = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    bool sees;
    float most = -INFINITY, sum = 0;
    for (uint32_t p = threadIdx.x; p < a.end; p += blockDim.x)
        most = fmaxf(most, importance_score<TYPE>(a, query, head, p, &sees));
    most = max_of_warp(most);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = most;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / WARP; i++) most = fmaxf(most, room[i]);
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < a.end; p += blockDim.x) {
        const float s = importance_score<TYPE>(a, query, head, p, &sees);
        if (sees) sum += expf(s - most);
    }
    sum = sum_of_block(sum, room);
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

// A block for each query and head.
KERNEL(importance_of_queries, Importance, ATTEND_THREADS) {
    SHARED(float, room, ATTEND_THREADS / WARP);
    switch (a.keys.type) {
    case KV_F32: importance_scale<KV_F32>(a, room); break;
    case KV_F16: importance_scale<KV_F16>(a, room); break;
    case KV_Q8_0: importance_scale<KV_Q8_0>(a, room); break;
    default: importance_scale<KV_Q4_0>(a, room); break;
    }
}

// A thread for each kv head and position.
KERNEL(importance_of_positions, Importance, ATTEND_THREADS) {
    switch (a.keys.type) {
    case KV_F32: importance_sum<KV_F32>(a); break;
    case KV_F16: importance_sum<KV_F16>(a); break;
    case KV_Q8_0: importance_sum<KV_Q8_0>(a); break;
    default: importance_sum<KV_Q4_0>(a); break;
    }
}
