// Causal attention of many rows over full rows with tensor cores: tiles of 64 queries of a head by
// 32 positions.
//
// Queries, keys, weights and values are split into 16-bit parts (`parts.cuh`): half-precision keys
// and values are one part, those of other types three bf16 parts. Tensor cores sum 32 products of a
// score, or 32 positions of a value; these sums are added to the previous ones in single precision.
// Weights are relative to the running maximum, as in FlashAttention-2 (Dao, "Faster attention with
// better parallelism and work partitioning", 2023, section 3.1), and pass from the score registers
// directly to the operands of the value product.
//
// Tiles of positions begin at multiples of 32, and a tile that a row does not see changes none of
// its bits: for the same splits a row has the same bits in any tile of queries. A NaN value would
// spread to earlier rows, so none is admitted to the cache.
#include "kv.cuh"
#include "parts.cuh"

namespace attention_tiles {

using parts::CHUNK;
using parts::CHUNKS;

constexpr uint32_t QUERIES = 64, POSITIONS = 32, THREADS = 128, OF_WARP = 16;
static_assert(THREADS / WARP * OF_WARP == QUERIES, "warps have the whole tile");
// Groups of eight positions, and pairs of positions.
constexpr uint32_t GROUPS = POSITIONS / 8, PAIRS = POSITIONS / 2;

struct AttendTiles {
    // [rows, heads, size]
    const float *q;
    // [rows, heads, splits, 2 + size]: maximum score, sum of weights, weighted sums of values.
    float *partial;
    KvRows keys;
    KvRows values;
    uint32_t rows;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t size;
    // Positions before the batch.
    uint32_t start;
    // Sliding window including the current position; 0 for none.
    uint32_t window;
    uint32_t splits;
    // Positions of a split, a multiple of the tile, and the first position of the first split.
    uint32_t split;
    uint32_t first;
    uint32_t unused;
    float scale;
    float softcap;
};

// Half-precision keys and values. Weights are scaled to the range in which half precision is
// accurate.
struct InHalf {
    typedef parts::Half Type;
    static constexpr int PARTS = 2, KV_PARTS = 1;
    static constexpr bool SCALED = true;
    static constexpr float WEIGHT = 16384;
};

// Any other type.
struct InBf16 {
    typedef parts::Bf16 Type;
    static constexpr int PARTS = 3, KV_PARTS = 3;
    static constexpr bool SCALED = false;
    static constexpr float WEIGHT = 1;
};

// Shared memory.
struct SharedMemory {
    // [parts, queries, chunks], and the factors of their products [queries, chunks / 4].
    uint4 *queries;
    float *steps;
    // [parts, positions, chunks].
    uint4 *keys;
    // [parts, elements, pairs of positions].
    uint32_t *values;
    // Chunks per row, for a multiple of 32 elements.
    uint32_t chunks;
};

// Returns the index of a chunk, swizzled so that adjacent rows use different banks.
DEVICE uint32_t place_of(const SharedMemory &shared, uint32_t row, uint32_t chunk) {
    return row * shared.chunks + (shared.chunks % 8 == 0 ? chunk ^ row % 2 * 4 : chunk);
}

// Returns the index of a pair of positions of an element, swizzled so that eight consecutive
// elements use different banks.
DEVICE uint32_t place_of_pair(uint32_t number, uint32_t pair) { return number * PAIRS + (pair ^ number / 2 % 4 * 4); }

// Reads the eight elements of chunk `chunk` of a row, zeros past its end.
template <uint32_t TYPE> DEVICE void numbers_of(const KvRow &row, uint32_t size, uint32_t chunk, float x[CHUNK]) {
    UNROLL
    for (uint32_t i = 0; i < CHUNK; i++) x[i] = chunk * CHUNK + i < size ? kv_number<TYPE>(row, chunk * CHUNK + i) : 0.0f;
}

// The same for an existing position.
DEVICE void fetch(const KvRows &rows, uint32_t kv_head, uint32_t position, uint32_t size, uint32_t chunk, float x[CHUNK]) {
    const size_t row = static_cast<size_t>(kv_head) * rows.capacity + position;
    switch (rows.type) {
    case KV_F32: numbers_of<KV_F32>(kv_row<KV_F32>(rows, row, size), size, chunk, x); break;
    case KV_F16: numbers_of<KV_F16>(kv_row<KV_F16>(rows, row, size), size, chunk, x); break;
    case KV_Q8_0: numbers_of<KV_Q8_0>(kv_row<KV_Q8_0>(rows, row, size), size, chunk, x); break;
    default: numbers_of<KV_Q4_0>(kv_row<KV_Q4_0>(rows, row, size), size, chunk, x); break;
    }
}

// Returns eight half-precision elements without conversion.
DEVICE uint4 fetch_halves(const KvRows &rows, uint32_t kv_head, uint32_t position, uint32_t size, uint32_t chunk) {
    const size_t row = static_cast<size_t>(kv_head) * rows.capacity + position;
    const uint16_t *from = reinterpret_cast<const uint16_t *>(rows.codes) + row * size + chunk * CHUNK;
    if (size % CHUNK == 0) return chunk * CHUNK < size ? *reinterpret_cast<const uint4 *>(from) : uint4{0, 0, 0, 0};
    uint32_t words[CHUNK / 2];
    UNROLL
    for (uint32_t i = 0; i < CHUNK / 2; i++) {
        const uint32_t d = chunk * CHUNK + 2 * i;
        words[i] = d < size ? from[2 * i] : 0u;
        if (d + 1 < size) words[i] |= static_cast<uint32_t>(from[2 * i + 1]) << 16;
    }
    return {words[0], words[1], words[2], words[3]};
}

template <class Format> DEVICE void bring_queries(const AttendTiles &a, const SharedMemory &shared, uint32_t first, uint32_t head) {
    for (uint32_t i = threadIdx.x; i < QUERIES * shared.chunks; i += THREADS) {
        const uint32_t query = i / shared.chunks, chunk = i % shared.chunks, row = first + query;
        const float *q = a.q + (static_cast<size_t>(row) * a.heads + head) * a.size + chunk * CHUNK;
        float x[CHUNK];
        UNROLL
        for (uint32_t d = 0; d < CHUNK; d++) x[d] = row < a.rows && chunk * CHUNK + d < a.size ? q[d] * a.scale : 0.0f;
        uint4 parts[Format::PARTS];
        const float step = parts::split_of_four<typename Format::Type, Format::PARTS, Format::SCALED>(x, parts);
        if (chunk % CHUNKS == 0) shared.steps[i / CHUNKS] = step;
        UNROLL
        for (int part = 0; part < Format::PARTS; part++)
            shared.queries[part * QUERIES * shared.chunks + place_of(shared, query, chunk)] = parts[part];
    }
}

// Loads the keys of the positions from `first` to `last`, zeros after them.
template <class Format>
DEVICE void bring_keys(const AttendTiles &a, const SharedMemory &shared, uint32_t kv_head, uint32_t first, uint32_t last) {
    UNROLL_BY(2)
    for (uint32_t i = threadIdx.x; i < POSITIONS * shared.chunks; i += THREADS) {
        const uint32_t position = i / shared.chunks, chunk = i % shared.chunks;
        const bool exists = first + position < last;
        uint4 parts[Format::KV_PARTS] = {};
        if (Format::KV_PARTS == 1) {
            if (exists) parts[0] = fetch_halves(a.keys, kv_head, first + position, a.size, chunk);
        } else if (exists) {
            float x[CHUNK];
            fetch(a.keys, kv_head, first + position, a.size, chunk, x);
            parts::split_chunk<typename Format::Type, Format::KV_PARTS>(x, parts);
        }
        UNROLL
        for (int part = 0; part < Format::KV_PARTS; part++)
            shared.keys[part * POSITIONS * shared.chunks + place_of(shared, position, chunk)] = parts[part];
    }
}

// Loads `count` value elements of these positions from `number` on, with adjacent positions in
// pairs.
template <class Format, uint32_t WIDE>
DEVICE void bring_values(const AttendTiles &a, const SharedMemory &shared, uint32_t kv_head, uint32_t number, uint32_t first, uint32_t last) {
    const uint32_t chunks = ceil_div(min(WIDE, a.size - number), CHUNK);
    for (uint32_t i = threadIdx.x; i < PAIRS * chunks; i += THREADS) {
        const uint32_t pair = i % PAIRS, chunk = i / PAIRS, position = first + 2 * pair;
        uint32_t words[CHUNK][Format::KV_PARTS];
        if (Format::KV_PARTS == 1) {
            uint4 both[2] = {};
            UNROLL
            for (uint32_t j = 0; j < 2; j++)
                if (position + j < last) both[j] = fetch_halves(a.values, kv_head, position + j, a.size, number / CHUNK + chunk);
            const uint32_t x[4] = {both[0].x, both[0].y, both[0].z, both[0].w}, y[4] = {both[1].x, both[1].y, both[1].z, both[1].w};
            UNROLL
            for (uint32_t d = 0; d < CHUNK; d++) words[d][0] = __byte_perm(x[d / 2], y[d / 2], d % 2 ? 0x7632u : 0x5410u);
        } else {
            float x[CHUNK] = {}, y[CHUNK] = {};
            if (position < last) fetch(a.values, kv_head, position, a.size, number / CHUNK + chunk, x);
            if (position + 1 < last) fetch(a.values, kv_head, position + 1, a.size, number / CHUNK + chunk, y);
            UNROLL
            for (uint32_t d = 0; d < CHUNK; d++) parts::split<typename Format::Type, Format::KV_PARTS>(x[d], y[d], words[d]);
        }
        UNROLL
        for (uint32_t d = 0; d < CHUNK; d++) {
            UNROLL
            for (int part = 0; part < Format::KV_PARTS; part++)
                shared.values[part * WIDE * PAIRS + place_of_pair(chunk * CHUNK + d, pair)] = words[d][part];
        }
    }
}

// Computes the scores of a warp's queries for the positions of a tile. As in `Fragment`, a lane
// holds those of two queries for two of every eight positions.
template <class Format> DEVICE void score(const SharedMemory &shared, uint32_t query, float scores[GROUPS][4]) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4, blocks = shared.chunks / CHUNKS;
    UNROLL_BY(1)
    for (uint32_t block = 0; block < blocks; block++) {
        const uint32_t chunk = CHUNKS * block + of;
        uint4 near[Format::PARTS], far[Format::PARTS];
        UNROLL
        for (int part = 0; part < Format::PARTS; part++) {
            const uint4 *from = shared.queries + part * QUERIES * shared.chunks;
            near[part] = from[place_of(shared, query + group, chunk)];
            far[part] = from[place_of(shared, query + group + 8, chunk)];
        }
        const float steps[2] = {shared.steps[(query + group) * blocks + block], shared.steps[(query + group + 8) * blocks + block]};
        UNROLL
        for (uint32_t i = 0; i < GROUPS; i++) {
            float products[4] = {};
            UNROLL
            for (int part = Format::KV_PARTS - 1; part >= 0; part--) {
                const uint4 key = shared.keys[part * POSITIONS * shared.chunks + place_of(shared, 8 * i + group, chunk)];
                UNROLL
                for (int of_query = Format::PARTS - 1 - part; of_query >= 0; of_query--)
                    parts::add_chunks<typename Format::Type>(products, near[of_query], far[of_query], key);
            }
            UNROLL
            for (uint32_t j = 0; j < 4; j++) scores[i][j] = fmaf(steps[j / 2], products[j], scores[i][j]);
        }
    }
}

// Splits the weights of a tile into parts, in the row layout of a fragment for each 16 positions.
template <class Format> DEVICE void split_weights(const float weights[GROUPS][4], uint32_t to[GROUPS / 2][Format::PARTS][4]) {
    UNROLL
    for (uint32_t i = 0; i < GROUPS; i++) {
        UNROLL
        for (uint32_t row = 0; row < 2; row++) {
            uint32_t parts[Format::PARTS];
            parts::split<typename Format::Type, Format::PARTS>(weights[i][2 * row] * Format::WEIGHT,
                                                               weights[i][2 * row + 1] * Format::WEIGHT, parts);
            UNROLL
            for (int part = 0; part < Format::PARTS; part++) to[i / 2][part][2 * (i % 2) + row] = parts[part];
        }
    }
}

// Rescales the sums, with one factor for each of two queries, and adds the weighted values of a
// tile. A lane holds two of every eight of the `count` elements.
template <class Format, uint32_t WIDE>
DEVICE void add_values(const SharedMemory &shared, const uint32_t weights[GROUPS / 2][Format::PARTS][4], const float factors[2], uint32_t count,
                       float sums[WIDE / 8][4]) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    UNROLL
    for (uint32_t i = 0; i < WIDE / 8; i++) {
        if (8 * i >= count) continue;
        float products[4] = {};
        UNROLL
        for (uint32_t half = 0; half < GROUPS / 2; half++) {
            UNROLL
            for (int part = Format::KV_PARTS - 1; part >= 0; part--) {
                const uint32_t *from = shared.values + part * WIDE * PAIRS;
                const uint32_t column[2] = {from[place_of_pair(8 * i + group, 8 * half + of)],
                                            from[place_of_pair(8 * i + group, 8 * half + 4 + of)]};
                UNROLL
                for (int weight = Format::PARTS - 1 - part; weight >= 0; weight--) {
                    const uint32_t *rows = weights[half][weight];
                    parts::add_products<typename Format::Type>(products, {{rows[0], rows[1], rows[2], rows[3]}, {column[0], column[1]}});
                }
            }
        }
        UNROLL
        for (uint32_t j = 0; j < 4; j++) sums[i][j] = fmaf(factors[j / 2], sums[i][j], products[j] * (1.0f / Format::WEIGHT));
    }
}

// State of a lane for its two queries.
struct Rows {
    float most[2];
    // Sum of the weights computed by this lane.
    float weight[2];
};

// Converts scores to weights and sets the factors that rescale the previous sums.
DEVICE void weigh(const AttendTiles &a, uint32_t tile, uint32_t last, uint32_t own, Rows &rows, float scores[GROUPS][4],
                  float factors[2]) {
    const uint32_t of = threadIdx.x % 4;
    UNROLL
    for (uint32_t row = 0; row < 2; row++) {
        const uint32_t end = own + 8 * row;
        float most = rows.most[row];
        UNROLL
        for (uint32_t i = 0; i < GROUPS; i++) {
            UNROLL
            for (uint32_t j = 2 * row; j < 2 * row + 2; j++) {
                const uint32_t position = tile + 8 * i + 2 * of + j % 2;
                const bool sees = position < min(end, last) && (a.window == 0 || position + a.window >= end);
                scores[i][j] = sees ? capped(scores[i][j], a.softcap) : -INFINITY;
                most = fmaxf(most, scores[i][j]);
            }
        }
        most = fmaxf(most, __shfl_xor_sync(EVERY_LANE, most, 1));
        most = fmaxf(most, __shfl_xor_sync(EVERY_LANE, most, 2));
        // A row that has seen no position yet has no maximum.
        const float base = most == -INFINITY ? 0.0f : most;
        factors[row] = expf(rows.most[row] - base);
        rows.most[row] = most;
        float sum = 0;
        UNROLL
        for (uint32_t i = 0; i < GROUPS; i++) {
            UNROLL
            for (uint32_t j = 2 * row; j < 2 * row + 2; j++) {
                scores[i][j] = expf(scores[i][j] - base);
                sum += scores[i][j];
            }
        }
        rows.weight[row] = fmaf(rows.weight[row], factors[row], sum);
    }
}

// Grid: heads and tiles of queries (last first), splits, and groups of value columns.
template <class Format, uint32_t WIDE> DEVICE void attend(const AttendTiles &a, uint8_t *memory) {
    const uint32_t head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    const uint32_t first = (gridDim.x / a.heads - 1 - blockIdx.x / a.heads) * QUERIES;
    const uint32_t number = blockIdx.z * WIDE, count = min(WIDE, a.size - number);
    SharedMemory shared;
    shared.chunks = ceil_div(a.size, 32) * CHUNKS;
    shared.queries = reinterpret_cast<uint4 *>(memory);
    shared.keys = shared.queries + Format::PARTS * QUERIES * shared.chunks;
    shared.values = reinterpret_cast<uint32_t *>(shared.keys + Format::KV_PARTS * POSITIONS * shared.chunks);
    shared.steps = reinterpret_cast<float *>(shared.values + Format::KV_PARTS * WIDE * PAIRS);
    bring_queries<Format>(a, shared, first, head);

    const uint32_t lane = threadIdx.x % WARP, query = threadIdx.x / WARP * OF_WARP, of = lane % 4;
    // Position after the lane's first query, after the last query of the warp, and after that of
    // the tile.
    const uint32_t own = a.start + first + query + lane / 4 + 1, of_warp = a.start + first + query + OF_WARP;
    const uint32_t end = a.start + min(first + QUERIES, a.rows), from = a.first + blockIdx.y * a.split;
    const uint32_t seen = a.window > 0 && a.start + first + 1 > a.window ? a.start + first + 1 - a.window : 0;
    const uint32_t last = min(end, from + a.split);
    float sums[WIDE / 8][4] = {};
    Rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    for (uint32_t tile = max(seen / POSITIONS * POSITIONS, from); tile < last; tile += POSITIONS) {
        __syncthreads();
        bring_keys<Format>(a, shared, kv_head, tile, last);
        bring_values<Format, WIDE>(a, shared, kv_head, number, tile, last);
        __syncthreads();
        if (tile >= of_warp) continue;
        float scores[GROUPS][4] = {}, factors[2];
        score<Format>(shared, query, scores);
        weigh(a, tile, last, own, rows, scores, factors);
        uint32_t weights[GROUPS / 2][Format::PARTS][4];
        split_weights<Format>(scores, weights);
        add_values<Format, WIDE>(shared, weights, factors, count, sums);
    }
    const size_t record = 2 + a.size;
    UNROLL
    for (uint32_t row = 0; row < 2; row++) {
        float weight = rows.weight[row];
        weight += __shfl_xor_sync(EVERY_LANE, weight, 1);
        weight += __shfl_xor_sync(EVERY_LANE, weight, 2);
        const uint32_t at = first + query + lane / 4 + 8 * row;
        if (at >= a.rows) continue;
        float *to = a.partial + ((static_cast<size_t>(at) * a.heads + head) * a.splits + blockIdx.y) * record;
        if (of == 0 && number == 0) {
            to[0] = rows.most[row];
            to[1] = weight;
        }
        UNROLL
        for (uint32_t i = 0; i < WIDE / 8; i++) {
            UNROLL
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t d = 8 * i + 2 * of + j;
                if (d < count) to[2 + number + d] = sums[i][2 * row + j];
            }
        }
    }
}

// Blocks per multiprocessor limited by registers; with three parts, shared memory allows one or
// two.
KERNEL_OF_BLOCKS(attend_tiles_64, AttendTiles, THREADS, 2) {
    DYNAMIC_SHARED(uint8_t, memory);
    attend<InBf16, 64>(a, memory);
}

KERNEL_OF_BLOCKS(attend_tiles_128, AttendTiles, THREADS, 2) {
    DYNAMIC_SHARED(uint8_t, memory);
    attend<InBf16, 128>(a, memory);
}

KERNEL_OF_BLOCKS(attend_tiles_of_halves_64, AttendTiles, THREADS, 4) {
    DYNAMIC_SHARED(uint8_t, memory);
    attend<InHalf, 64>(a, memory);
}

KERNEL_OF_BLOCKS(attend_tiles_of_halves_128, AttendTiles, THREADS, 3) {
    DYNAMIC_SHARED(uint8_t, memory);
    attend<InHalf, 128>(a, memory);
}

}  // namespace attention_tiles
