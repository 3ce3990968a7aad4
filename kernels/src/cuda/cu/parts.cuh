// Floats split into sums of 16-bit floats, which tensor cores multiply without rounding.
//
// A 24-bit significand is exactly the sum of three bf16 values. Two half-precision values hold 22
// bits of it, if scaled to the accurate range first. Products are summed in single precision, which
// tensor cores truncate: so they sum few of them, from zero on, and the results are added with
// rounding to nearest (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores
// while surpassing the FP32 theoretical peak performance", 2022, sections 3 and 4).
#pragma once
#include "dialect.cuh"

namespace parts {

// Type of the parts.
struct Half {
    DEVICE uint32_t pair(float first, float second) { return halves_of_floats(first, second); }
    // Returns the first part of both values.
    DEVICE uint32_t largest(float first, float second) { return pair(first, second); }
    DEVICE float first(uint32_t pair) { return float_of_half(static_cast<uint16_t>(pair & 0xffffu)); }
    DEVICE float second(uint32_t pair) { return float_of_half(static_cast<uint16_t>(pair >> 16)); }

#if !defined(HTC_EMULATED) && !defined(HTC_PLAIN_MMA)
    // Volatile, so that the compiler does not move a warp-wide operation into divergent code.
    DEVICE void multiply(float sums[4], const Fragment &x) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(x.rows[0]), "r"(x.rows[1]), "r"(x.rows[2]), "r"(x.rows[3]), "r"(x.columns[0]), "r"(x.columns[1]));
    }
#endif
};

struct Bf16 {
    DEVICE uint32_t pair(float first, float second) { return bf16s_of_floats(first, second); }
    // Clamps to the largest bf16 value; the excess goes to the next part.
    DEVICE float within(float x) {
        const float most = __uint_as_float(0x7f7f0000u);
        return fminf(fmaxf(x, -most), most);
    }
    DEVICE uint32_t largest(float first, float second) { return pair(within(first), within(second)); }
    DEVICE float first(uint32_t pair) { return __uint_as_float(pair << 16); }
    DEVICE float second(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

#if !defined(HTC_EMULATED) && !defined(HTC_PLAIN_MMA)
    // Volatile, so that the compiler does not move a warp-wide operation into divergent code.
    DEVICE void multiply(float sums[4], const Fragment &x) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(x.rows[0]), "r"(x.rows[1]), "r"(x.rows[2]), "r"(x.rows[3]), "r"(x.columns[0]), "r"(x.columns[1]));
    }
#endif
};

// Splits two values into parts, the largest first. A non-finite value gives a NaN part.
template <class Type, int COUNT> DEVICE void split(float first, float second, uint32_t to[COUNT]) {
    UNROLL
    for (int i = 0; i < COUNT; i++) {
        to[i] = i == 0 ? Type::largest(first, second) : Type::pair(first, second);
        first -= Type::first(to[i]);
        second -= Type::second(to[i]);
    }
}

#if defined(HTC_EMULATED) || defined(HTC_PLAIN_MMA)
DEVICE float add_product(float sum, float x, float y) { return __fadd_rn(sum, __fmul_rn(x, y)); }

// Adds the products of two pairs.
template <class Type> DEVICE float add_pair(float sum, uint32_t x, uint32_t y) {
    return add_product(add_product(sum, Type::first(x), Type::first(y)), Type::second(x), Type::second(y));
}

// `add_products` with warp shuffles, for devices without tensor cores and for comparison.
template <class Type> DEVICE void add_products_by_lanes(float sums[4], const Fragment &x) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    const uint64_t near = static_cast<uint64_t>(x.rows[2]) << 32 | x.rows[0];
    const uint64_t far = static_cast<uint64_t>(x.rows[3]) << 32 | x.rows[1];
    const uint64_t column = static_cast<uint64_t>(x.columns[1]) << 32 | x.columns[0];
    for (uint32_t four = 0; four < 4; four++) {
        // Lanes of a group hold its two rows; lanes of group c hold column c.
        const uint64_t rows[2] = {__shfl_sync(EVERY_LANE, near, static_cast<int>(4 * group + four)),
                                  __shfl_sync(EVERY_LANE, far, static_cast<int>(4 * group + four))};
        const uint64_t columns[2] = {__shfl_sync(EVERY_LANE, column, static_cast<int>(4 * (2 * of) + four)),
                                     __shfl_sync(EVERY_LANE, column, static_cast<int>(4 * (2 * of + 1) + four))};
        for (int i = 0; i < 4; i++) {
            for (int by = 0; by < 64; by += 32)
                sums[i] = add_pair<Type>(sums[i], static_cast<uint32_t>(rows[i / 2] >> by), static_cast<uint32_t>(columns[i % 2] >> by));
        }
    }
}
#endif

#ifdef HTC_EMULATED
// The same for a whole warp at once, because each exchange of the emulation is costly.
template <class Type> struct OfLane {
    float *sums;
    Fragment x;

    // Where the sum of a row and a column is.
    static float *place(void *const lanes[WARP], uint32_t row, uint32_t column) {
        return static_cast<const OfLane *>(lanes[row % 8 * 4 + column / 2])->sums + row / 8 * 2 + column % 2;
    }

    static void act(void *const lanes[WARP]) {
        // Each value is converted once: rows of 16 values, and columns with eight side by side.
        float rows[16][16], columns[16][8];
        for (uint32_t lane = 0; lane < WARP; lane++) {
            const Fragment &x = static_cast<const OfLane *>(lanes[lane])->x;
            const uint32_t group = lane / 4, k = lane % 4 * 4;
            for (uint32_t half = 0; half < 2; half++) {
                for (uint32_t far = 0; far < 2; far++) {
                    rows[group + 8 * far][k + 2 * half] = Type::first(x.rows[far + 2 * half]);
                    rows[group + 8 * far][k + 2 * half + 1] = Type::second(x.rows[far + 2 * half]);
                }
                columns[k + 2 * half][group] = Type::first(x.columns[half]);
                columns[k + 2 * half + 1][group] = Type::second(x.columns[half]);
            }
        }
        for (uint32_t row = 0; row < 16; row++) {
            float sums[8];
            for (uint32_t column = 0; column < 8; column++) sums[column] = *place(lanes, row, column);
            for (uint32_t k = 0; k < 16; k++)
                for (uint32_t column = 0; column < 8; column++)
                    sums[column] = add_product(sums[column], rows[row][k], columns[k][column]);
            for (uint32_t column = 0; column < 8; column++) *place(lanes, row, column) = sums[column];
        }
    }
};
#endif

// Adds the products of 16 rows of 16 values and 8 columns of 16 in single precision. Fragments are
// as for integers with a pair of values per register instead of four, the layout of `mma.m16n8k16`.
template <class Type> DEVICE void add_products(float sums[4], const Fragment &x) {
#if defined(HTC_EMULATED)
    OfLane<Type> own = {sums, x};
    emulate::together(__LINE__, OfLane<Type>::act, &own);
#elif defined(HTC_PLAIN_MMA)
    add_products_by_lanes<Type>(sums, x);
#else
    Type::multiply(sums, x);
#endif
}

// Scale for values whose maximum magnitude has the bits `largest`, bringing it to about 2^14 in
// half precision, and the inverse scale for the products: powers of two. Non-finite values give NaN
// products.
struct Scale {
    float to;
    float back;
};

DEVICE Scale scale_of(uint32_t largest) {
    if (largest >= 0x7f800000u) return {0.0f, __uint_as_float(0x7fc00000u)};
    // Both powers are normal numbers.
    const uint32_t exponent = max(largest >> 23, 15u);
    return {__uint_as_float((268u - exponent) << 23), __uint_as_float((exponent - 14u) << 23)};
}

// Elements that a lane multiplies of 32: 16 bytes of 16-bit values.
constexpr uint32_t CHUNK = 8, CHUNKS = 32 / CHUNK;

template <class Type, int COUNT> DEVICE void split_chunk(const float x[CHUNK], uint4 to[COUNT]) {
    uint32_t words[CHUNK / 2][COUNT];
    UNROLL
    for (uint32_t i = 0; i < CHUNK / 2; i++) split<Type, COUNT>(x[2 * i], x[2 * i + 1], words[i]);
    UNROLL
    for (int part = 0; part < COUNT; part++) to[part] = {words[0][part], words[1][part], words[2][part], words[3][part]};
}

// Splits 32 values, of which four consecutive lanes hold a chunk each, with a common scale if
// `SCALED`. Returns the factor of their products.
template <class Type, int COUNT, bool SCALED> DEVICE float split_of_four(float x[CHUNK], uint4 to[COUNT]) {
    float back = 1;
    if (SCALED) {
        uint32_t largest = 0;
        UNROLL
        for (uint32_t i = 0; i < CHUNK; i++) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
        for (int apart = 2; apart > 0; apart /= 2) {
            const uint32_t other = __shfl_xor_sync(EVERY_LANE, largest, apart);
            largest = max(largest, other);
        }
        const Scale scale = scale_of(largest);
        UNROLL
        for (uint32_t i = 0; i < CHUNK; i++) x[i] = largest < 0x7f800000u ? x[i] * scale.to : 0.0f;
        back = scale.back;
    }
    split_chunk<Type, COUNT>(x, to);
    return back;
}

// Adds the products of chunks of two rows and a column that four consecutive lanes hold, 32
// elements each. The order within the 32 does not matter, as long as it is the same for rows and
// columns.
template <class Type> DEVICE void add_chunks(float sums[4], const uint4 &near, const uint4 &far, const uint4 &column) {
    add_products<Type>(sums, {{near.x, far.x, near.y, far.y}, {column.x, column.y}});
    add_products<Type>(sums, {{near.z, far.z, near.w, far.w}, {column.z, column.w}});
}

}  // namespace parts
