// Tiled products of block-quantised matrices with many vectors.
//
// A format is a `Rows` parameter of `tiles::multiply`, which defines the number of scales per 32
// elements and the presence of minima, the loading and unpacking of 32 codes, and the output of a
// product. Missing rows and blocks are zeros.
//
// Float weights use separate tiles: `float_tiles.cu`.
#include "blocks.cuh"
#include "tiles.cuh"

namespace products {

// A matrix of a launch.
struct OfMatrix {
    const MatrixProduct *matrix;
    // Blocks of 32 per row in use.
    uint32_t blocks;
};

DEVICE tiles::Codes signed_codes(const int first[4], const int second[4], uint32_t above) {
    // Subtracts `above` from each byte; the high bits prevent borrows.
    const uint32_t high = 0x80808080u, less = above * 0x01010101u;
    tiles::Codes to;
    UNROLL
    for (int i = 0; i < 4; i++) {
        to.first[i] = static_cast<int>(((static_cast<uint32_t>(first[i]) | high) - less) ^ high);
        to.second[i] = static_cast<int>(((static_cast<uint32_t>(second[i]) | high) - less) ^ high);
    }
    return to;
}

DEVICE tiles::Codes codes_of(int4 first, int4 second) {
    return {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
}

// Common part of all formats.
template <class Format> struct RowsOf {
    typedef OfMatrix Of;
    typedef typename Format::Raw Raw;
    static constexpr int SCALES = Format::SCALES;
    static constexpr bool MINIMA = Format::MINIMA, ROW_A_LANE = false;

    DEVICE Raw fetch(const OfMatrix &of, uint32_t row, uint32_t block) {
        if (row >= of.matrix->live || block >= of.blocks) return {};
        return Format::fetch(of.matrix->w, row, block);
    }

    DEVICE void unpack(const Raw &raw, uint32_t block, tiles::Codes &codes, tiles::Scales &of) {
        Format::unpack(raw, block, codes, of);
    }

    DEVICE void store(const OfMatrix &of, uint32_t row, uint32_t vector, float sum) {
        const MatrixProduct &matrix = *of.matrix;
        float *y = matrix.y + static_cast<size_t>(vector) * matrix.y_width + row;
        if (row < matrix.rows) put_product(y, matrix.adds, row < matrix.live ? sum : 0.0f);
    }
};

struct TilesQ8_0 {
    static constexpr int SCALES = 1;
    static constexpr bool MINIMA = false;
    struct Raw {
        int4 first, second;
        uint16_t scale;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        const size_t at = block_of(w, row, block, 32);
        return {read<int4>(w.codes, 2 * at), read<int4>(w.codes, 2 * at + 1), read<uint16_t>(w.scales, at)};
    }

    DEVICE void unpack(const Raw &raw, uint32_t, tiles::Codes &codes, tiles::Scales &of) {
        codes = codes_of(raw.first, raw.second);
        of.scales[0] = float_of_half(raw.scale);
    }
};

struct TilesQ4_0 {
    static constexpr int SCALES = 1;
    static constexpr bool MINIMA = false;
    struct Raw {
        uint4 codes;
        uint16_t scale;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        const size_t at = block_of(w, row, block, 32);
        return {read<uint4>(w.codes, at), read<uint16_t>(w.scales, at)};
    }

    DEVICE void unpack(const Raw &raw, uint32_t, tiles::Codes &codes, tiles::Scales &of) {
        const Codes found = nibbles(raw.codes);
        codes = signed_codes(found.first, found.second, 8);
        of.scales[0] = float_of_half(raw.scale);
    }
};

// Shared by q4_k and q5_k.
DEVICE void with_minimum(const Codes &found, uint4 header, uint32_t block, tiles::Codes &codes, tiles::Scales &of) {
    codes = signed_codes(found.first, found.second, 0);
    const ScaleMinimum both = scale_and_minimum(header, block);
    of.scales[0] = both.scale;
    of.minima[0] = -both.minimum;
}

struct TilesQ4K {
    static constexpr int SCALES = 1;
    static constexpr bool MINIMA = true;
    struct Raw {
        uint4 codes, header;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        return {read<uint4>(w.codes, block_of(w, row, block, 32)), read<uint4>(w.scales, block_of(w, row, block / 8, 256))};
    }

    DEVICE void unpack(const Raw &raw, uint32_t block, tiles::Codes &codes, tiles::Scales &of) {
        with_minimum(nibbles(raw.codes), raw.header, block, codes, of);
    }
};

struct TilesQ5K {
    static constexpr int SCALES = 1;
    static constexpr bool MINIMA = true;
    struct Raw {
        uint4 codes, header;
        uint32_t fifth;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        const size_t at = block_of(w, row, block, 32);
        return {read<uint4>(w.codes, at), read<uint4>(w.scales, block_of(w, row, block / 8, 256)), read<uint32_t>(w.high, at)};
    }

    DEVICE void unpack(const Raw &raw, uint32_t block, tiles::Codes &codes, tiles::Scales &of) {
        Codes found = nibbles(raw.codes);
        add_fifth_bits(found, raw.fifth);
        with_minimum(found, raw.header, block, codes, of);
    }
};

struct TilesQ6K {
    static constexpr int SCALES = 2;
    static constexpr bool MINIMA = false;
    struct Raw {
        uint4 codes;
        uint2 high;
        uint16_t scales, super;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        const size_t at = block_of(w, row, block, 32);
        return {read<uint4>(w.codes, at), read<uint2>(w.high, at), read<uint16_t>(w.scales, at),
                read<uint16_t>(w.supers, block_of(w, row, block / 8, 256))};
    }

    DEVICE void unpack(const Raw &raw, uint32_t, tiles::Codes &codes, tiles::Scales &of) {
        Codes found = nibbles(raw.codes);
        add_high_bits(found, raw.high);
        codes = signed_codes(found.first, found.second, 32);
        // Exact: eleven bits by eight.
        const float super = float_of_half(raw.super);
        of.scales[0] = super * static_cast<float>(static_cast<int8_t>(raw.scales & 255));
        of.scales[1] = super * static_cast<float>(static_cast<int8_t>(raw.scales >> 8));
    }
};

// With zero minima if the format has none.
struct TilesWide {
    static constexpr int SCALES = 2;
    static constexpr bool MINIMA = true;
    struct Raw {
        int4 first, second;
        float2 scales, minima;
    };

    DEVICE Raw fetch(const Planes &w, uint32_t row, uint32_t block) {
        const size_t at = block_of(w, row, block, 32);
        Raw raw = {read<int4>(w.codes, 2 * at), read<int4>(w.codes, 2 * at + 1), read<float2>(w.scales, at), {}};
        if (w.supers != nullptr) raw.minima = read<float2>(w.supers, at);
        return raw;
    }

    DEVICE void unpack(const Raw &raw, uint32_t, tiles::Codes &codes, tiles::Scales &of) {
        codes = codes_of(raw.first, raw.second);
        of = {{raw.scales.x, raw.scales.y}, {raw.minima.x, raw.minima.y}};
    }
};

// Grid: the tiles of all matrices, and groups of vectors.
template <class Format> DEVICE void multiply_tile(const Product &product) {
    uint32_t index = blockIdx.x;
    const MatrixProduct &matrix = matrix_of(product, &index);
    const Vectors &a = matrix.vectors;
    const tiles::Vectors x = {a.codes, a.steps, a.sums, a.n, a.width / 32};
    tiles::multiply<RowsOf<Format>>({&matrix, x.blocks}, x, index * tiles::ROWS, blockIdx.y * tiles::VECTORS);
}

KERNEL_OF_BLOCKS(q8_0_tiles, Product, 256, 3) { multiply_tile<TilesQ8_0>(a); }
KERNEL_OF_BLOCKS(q4_0_tiles, Product, 256, 3) { multiply_tile<TilesQ4_0>(a); }
KERNEL_OF_BLOCKS(q4_k_tiles, Product, 256, 3) { multiply_tile<TilesQ4K>(a); }
KERNEL_OF_BLOCKS(q5_k_tiles, Product, 256, 3) { multiply_tile<TilesQ5K>(a); }
KERNEL_OF_BLOCKS(q6_k_tiles, Product, 256, 3) { multiply_tile<TilesQ6K>(a); }
// Scales and minima need too many registers for three blocks.
KERNEL_OF_BLOCKS(wide_tiles, Product, 256, 2) { multiply_tile<TilesWide>(a); }

}  // namespace products
