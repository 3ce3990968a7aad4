// Rows of keys or values `[kv_heads, capacity, size]` in a KV cache type.
#pragma once
#include "dialect.cuh"

enum KvType : uint32_t { KV_F32 = 0, KV_F16 = 1, KV_Q8_0 = 2, KV_Q4_0 = 3 };

// Elements per scale in block types.
#define KV_BLOCK 32u

struct KvRows {
    // Elements or codes. For 4-bit types the first sixteen of a block are in the low nibbles of its
    // sixteen bytes.
    uint8_t *codes;
    // Half-precision scale per block, for block types.
    uint16_t *scales;
    uint32_t type;
    uint32_t capacity;
};

// A row in global or shared memory.
struct KvRow {
    const uint8_t *codes;
    const uint16_t *scales;
};

// Returns the bytes of the codes of a row.
template <uint32_t TYPE> DEVICE uint32_t kv_bytes(uint32_t size) {
    return TYPE == KV_F32 ? 4 * size : TYPE == KV_F16 ? 2 * size : TYPE == KV_Q8_0 ? size : size / 2;
}

// Returns a row by its index over all heads.
template <uint32_t TYPE> DEVICE KvRow kv_row(const KvRows &rows, size_t row, uint32_t size) {
    return {rows.codes + row * kv_bytes<TYPE>(size), rows.scales + row * (size / KV_BLOCK)};
}

// Returns element `d` of a row.
template <uint32_t TYPE> DEVICE float kv_number(const KvRow &row, uint32_t d) {
    if (TYPE == KV_F32) return reinterpret_cast<const float *>(row.codes)[d];
    if (TYPE == KV_F16) return float_of_half(reinterpret_cast<const uint16_t *>(row.codes)[d]);
    const float scale = float_of_half(row.scales[d / KV_BLOCK]);
    if (TYPE == KV_Q8_0) return scale * static_cast<float>(reinterpret_cast<const int8_t *>(row.codes)[d]);
    const uint8_t both = row.codes[d / KV_BLOCK * (KV_BLOCK / 2) + d % (KV_BLOCK / 2)];
    const int code = d % KV_BLOCK < KV_BLOCK / 2 ? both & 15 : both >> 4;
    return scale * static_cast<float>(code - 8);
}

// Returns the dot product of eight half-precision elements with two float4.
DEVICE float dot_of_halves(uint4 halves, const float4 *x) {
    const float4 first = x[0], second = x[1];
    const float with[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    const uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
    float sum = 0;
    UNROLL for (int i = 0; i < 4; i++) {
        sum = fmaf(float_of_half(static_cast<uint16_t>(words[i] & 0xffffu)), with[2 * i], sum);
        sum = fmaf(float_of_half(static_cast<uint16_t>(words[i] >> 16)), with[2 * i + 1], sum);
    }
    return sum;
}

// Returns the dot product of `size` half-precision elements with floats, 16 bytes at a time for
// aligned rows.
DEVICE float dot_of_half_row(const uint16_t *row, const float *x, uint32_t size) {
    float sum = 0;
    if (size % 8 == 0) {
        const uint4 *words = reinterpret_cast<const uint4 *>(row);
        const float4 *with = reinterpret_cast<const float4 *>(x);
        UNROLL_BY(4)
        for (uint32_t i = 0; i < size / 8; i++) sum += dot_of_halves(words[i], with + 2 * i);
        return sum;
    }
    for (uint32_t d = 0; d < size; d++) sum += float_of_half(row[d]) * x[d];
    return sum;
}

// Returns the dot product of a row with `x [size]`.
template <uint32_t TYPE> DEVICE float kv_dot(const KvRow &row, uint32_t size, const float *x) {
    if (TYPE == KV_F16) return dot_of_half_row(reinterpret_cast<const uint16_t *>(row.codes), x, size);
    float sum = 0;
    if (TYPE == KV_F32) {
        const float *numbers = reinterpret_cast<const float *>(row.codes);
        for (uint32_t d = 0; d < size; d++) sum += numbers[d] * x[d];
        return sum;
    }
    for (uint32_t block = 0; block < size / KV_BLOCK; block++) {
        float of_block = 0;
        if (TYPE == KV_Q8_0) {
            const uint4 *words = reinterpret_cast<const uint4 *>(row.codes + block * KV_BLOCK);
            UNROLL for (uint32_t i = 0; i < KV_BLOCK / 16; i++) {
                const uint4 word = words[i];
                const uint32_t parts[4] = {word.x, word.y, word.z, word.w};
                UNROLL for (uint32_t j = 0; j < 16; j++) {
                    const int8_t code = static_cast<int8_t>(parts[j / 4] >> 8 * (j % 4));
                    of_block += static_cast<float>(code) * x[block * KV_BLOCK + 16 * i + j];
                }
            }
        } else {
            const uint4 word = *reinterpret_cast<const uint4 *>(row.codes + block * (KV_BLOCK / 2));
            const uint32_t parts[4] = {word.x, word.y, word.z, word.w};
            UNROLL for (uint32_t j = 0; j < KV_BLOCK / 2; j++) {
                const uint32_t both = parts[j / 4] >> 8 * (j % 4) & 255;
                of_block += static_cast<float>(static_cast<int>(both & 15) - 8) * x[block * KV_BLOCK + j];
                of_block +=
                    static_cast<float>(static_cast<int>(both >> 4) - 8) * x[block * KV_BLOCK + KV_BLOCK / 2 + j];
            }
        }
        sum += float_of_half(row.scales[block]) * of_block;
    }
    return sum;
}

// Applies the soft cap to a score, before masking.
DEVICE float capped(float score, float cap) { return cap > 0 ? cap * tanhf(score / cap) : score; }
