// Matrices in blocks as they lie on a GPU, what they are multiplied with, and how their codes are read.
//
// Matrices are laid out for a GPU when they are uploaded: what lanes read sixteen bytes at a time, the codes of weights, lies
// apart from scales, and each of these planes has its rows one behind the other, so that the first columns of each are a matrix,
// too.
#pragma once
#include "vectors.cuh"

namespace products {

struct Planes {
    const uint8_t *codes;
    // Further bits of codes.
    const uint8_t *high;
    const uint8_t *scales;
    // Scales of scales, or minima.
    const uint8_t *supers;
    // Numbers of a row as it is stored.
    uint32_t stride;
    uint32_t unused;
};

// What a matrix is multiplied with.
struct Vectors {
    // Numbers [n, width], for weights that are floats.
    const float *x;
    // Or integers, as `quantise` writes them.
    const int8_t *codes;
    const float *steps;
    const uint32_t *sums;
    uint32_t n;
    // Numbers of a vector, and of a row as far as it is in use.
    uint32_t width;
};

// A matrix, and where its products go.
struct Slot {
    Vectors vectors;
    Planes w;
    // [n, y_width].
    float *y;
    // Where they go as integers as well, once all of 32 are there: how many blocks of threads have arrived at each 32, zero before
    // and behind a launch; none where nobody reads them so.
    uint32_t *arrived;
    vectors::Integers to;
    // Rows to compute; those from `live` on are zero.
    uint32_t rows;
    uint32_t live;
    uint32_t y_width;
    // Warps for a row: 1, 2 or 4.
    uint32_t split;
    // Blocks of threads that have its rows.
    uint32_t blocks;
    // Whether products are added to what is there.
    uint32_t adds;
};

// Matrices of one format, multiplied with as many vectors each.
struct Product {
    uint32_t count;
    uint32_t unused;
    Slot slots[4];
};

// Puts a product where it goes, or adds it to what is there as a sum of both would.
DEVICE void put_product(float *y, uint32_t adds, float product) { *y = adds ? __fadd_rn(*y, product) : product; }

// The matrix that a block of those of one after the other has rows of, and which of its blocks that is.
DEVICE const Slot &slot_of(const Product &product, uint32_t *block) {
    uint32_t which = 0;
    while (which + 1 < product.count && *block >= product.slots[which].blocks) *block -= product.slots[which++].blocks;
    return product.slots[which];
}

template <class T> DEVICE T read(const void *from, size_t index) { return static_cast<const T *>(from)[index]; }

// Block `block`, of `length` numbers, of a row.
DEVICE size_t block_of(const Planes &w, uint32_t row, uint32_t block, uint32_t length) {
    return static_cast<size_t>(row) * (w.stride / length) + block;
}

DEVICE int first_sum(uint32_t sums) { return static_cast<int16_t>(sums & 0xffffu); }
DEVICE int second_sum(uint32_t sums) { return static_cast<int>(sums) >> 16; }

// The codes of 32 numbers, four bits each, and more where there is a further plane: those of the first sixteen and of the others.
struct Codes {
    int first[4], second[4];
};

DEVICE Codes nibbles(uint4 q) {
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
    Codes codes;
    UNROLL
    for (int i = 0; i < 4; i++) {
        codes.first[i] = static_cast<int>(words[i] & 0x0f0f0f0fu);
        codes.second[i] = static_cast<int>(words[i] >> 4 & 0x0f0f0f0fu);
    }
    return codes;
}

DEVICE Codes nibbles(const Planes &w, size_t block) { return nibbles(read<uint4>(w.codes, block)); }

DEVICE int nibble(const Planes &w, size_t block, uint32_t i) {
    const uint8_t pair = w.codes[block * 16 + i % 16];
    return i < 16 ? pair & 15 : pair >> 4;
}

// The scale and the minimum of 32 of 256 numbers of q4_k and q5_k, from the sixteen bytes that a block begins with: both scales
// of these in half precision, and eight of each in six bits.
struct ScaleMinimum {
    float scale, minimum;
};

DEVICE ScaleMinimum scale_and_minimum(uint4 header, uint32_t sub) {
    const uint32_t which = sub % 8, by = which % 4 * 8;
    const uint32_t a = header.y >> by, b = header.z >> by, c = header.w >> by;
    const uint32_t scale = which < 4 ? a & 63 : (c & 15) | (a >> 2 & 0x30);
    const uint32_t minimum = which < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 0x30);
    return {float_of_half(header.x & 0xffffu) * static_cast<float>(scale),
            float_of_half(header.x >> 16) * static_cast<float>(minimum)};
}

DEVICE ScaleMinimum scale_and_minimum(const Planes &w, uint32_t row, uint32_t sub) {
    return scale_and_minimum(read<uint4>(w.scales, block_of(w, row, sub / 8, 256)), sub);
}

// Adds what q5_k has beside q4_k: the fifth bits of 32 codes are a word, of number 4 j + k of the first sixteen bit 8 k + j, of
// the others bit 8 k + 4 + j.
DEVICE void add_fifth_bits(Codes &codes, uint32_t fifth) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        codes.first[i] |= static_cast<int>(fifth >> i << 4 & 0x10101010u);
        codes.second[i] |= static_cast<int>(fifth >> i & 0x10101010u);
    }
}

// Adds what q6_k has beside four bits: the high two of 32 codes are two words, one for each sixteen, of number 4 j + k bits
// 8 k + 2 j and the next.
DEVICE void add_high_bits(Codes &codes, uint2 high) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        codes.first[i] |= static_cast<int>((high.x >> 2 * i & 0x03030303u) << 4);
        codes.second[i] |= static_cast<int>((high.y >> 2 * i & 0x03030303u) << 4);
    }
}

}  // namespace products
