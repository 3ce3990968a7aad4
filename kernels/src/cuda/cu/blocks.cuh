// Device layout of block-quantised matrices, their operands, and unpacking of their codes.
//
// Matrices are repacked on upload: codes, which lanes read 16 bytes at a time, are separate from
// scales, and each of these arrays has contiguous rows, so that a prefix of the columns is a matrix
// as well.
#pragma once
#include "vectors.cuh"

namespace products {

struct Planes {
    const uint8_t *codes;
    // Upper bits of codes.
    const uint8_t *high;
    const uint8_t *scales;
    // Scales of scales, or minima.
    const uint8_t *supers;
    // Elements per stored row.
    uint32_t stride;
    uint32_t unused;
};

// Input vectors.
struct Vectors {
    // Floats [n, width], for float weights.
    const float *x;
    // Or quantised vectors as written by `quantise`.
    const int8_t *codes;
    const float *steps;
    const uint32_t *sums;
    uint32_t n;
    // Elements per vector, and columns of a row in use.
    uint32_t width;
};

// A matrix and its output.
struct MatrixProduct {
    Vectors vectors;
    Planes w;
    // [n, y_width].
    float *y;
    // Quantised output, written when all 32 rows of a group are complete: arrival counters of
    // thread blocks per group, zero before and after a launch; null if not needed.
    uint32_t *arrived;
    vectors::Integers to;
    // Rows to compute; those from `live` on are zero.
    uint32_t rows;
    uint32_t live;
    uint32_t y_width;
    // Warps per row: 1, 2 or 4.
    uint32_t split;
    // Thread blocks of its rows.
    uint32_t blocks;
    // Accumulates into `y`.
    uint32_t adds;
};

// Matrices of one format with the same number of vectors.
struct Product {
    uint32_t count;
    uint32_t unused;
    MatrixProduct matrices[4];
};

// Writes a product, or adds it with the bits of a separate sum.
DEVICE void put_product(float *y, uint32_t adds, float product) { *y = adds ? __fadd_rn(*y, product) : product; }

// Returns the matrix of a block index, and reduces the index to that within the matrix.
DEVICE const MatrixProduct &matrix_of(const Product &product, uint32_t *block) {
    uint32_t which = 0;
    while (which + 1 < product.count && *block >= product.matrices[which].blocks) *block -= product.matrices[which++].blocks;
    return product.matrices[which];
}

template <class T> DEVICE T read(const void *from, size_t index) { return static_cast<const T *>(from)[index]; }

// Returns the index of block `block`, of `length` elements, of a row.
DEVICE size_t block_of(const Planes &w, uint32_t row, uint32_t block, uint32_t length) {
    return static_cast<size_t>(row) * (w.stride / length) + block;
}

DEVICE int first_sum(uint32_t sums) { return static_cast<int16_t>(sums & 0xffffu); }
DEVICE int second_sum(uint32_t sums) { return static_cast<int>(sums) >> 16; }

// Codes of the first and the last 16 of 32 elements: four bits, plus upper bits if any.
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

// Scale and minimum of 32 of the 256 elements of q4_k and q5_k, decoded from the 16-byte header of
// a block: both super-scales in half precision, and eight 6-bit factors of each.
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

// Adds the fifth bits of q5_k. A word holds those of 32 codes: bit 8 k + j for element 4 j + k of
// the first sixteen, bit 8 k + 4 + j for the others.
DEVICE void add_fifth_bits(Codes &codes, uint32_t fifth) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        codes.first[i] |= static_cast<int>(fifth >> i << 4 & 0x10101010u);
        codes.second[i] |= static_cast<int>(fifth >> i & 0x10101010u);
    }
}

// Adds the upper two bits of q6_k. Two words hold those of 32 codes, one for each sixteen: bits 8 k
// + 2 j and the next for element 4 j + k.
DEVICE void add_high_bits(Codes &codes, uint2 high) {
    UNROLL
    for (int i = 0; i < 4; i++) {
        codes.first[i] |= static_cast<int>((high.x >> 2 * i & 0x03030303u) << 4);
        codes.second[i] |= static_cast<int>((high.y >> 2 * i & 0x03030303u) << 4);
    }
}

}  // namespace products
