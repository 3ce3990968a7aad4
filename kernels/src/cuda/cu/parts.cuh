// Numbers as sums of numbers of sixteen bits, which tensor cores multiply without rounding.
//
// A number of 24 bits is one of bf16 and two more of what is left, exactly. In half precision two have 22 bits of it, if it is
// brought to where that is precise first. Products are added up in single precision, which tensor cores truncate: so they add few of
// them, from zero on, and what these come to is added where sums are rounded to the nearest (Ootomo and Yokota, "Recovering single
// precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022, sections 3 and 4).
#pragma once
#include "dialect.cuh"

namespace parts {

// Of what type parts are.
struct Half {
    DEVICE uint32_t pair(float first, float second) { return halves_of_floats(first, second); }
    // The first part of a number.
    DEVICE uint32_t largest(float first, float second) { return pair(first, second); }
    DEVICE float first(uint32_t pair) { return float_of_half(static_cast<uint16_t>(pair & 0xffffu)); }
    DEVICE float second(uint32_t pair) { return float_of_half(static_cast<uint16_t>(pair >> 16)); }

#if !defined(HTC_EMULATED) && !defined(HTC_PLAIN_MMA)
    // Volatile, so that no compiler moves what a whole warp does to where some of its lanes are.
    DEVICE void multiply(float sums[4], const Fragment &x) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(x.rows[0]), "r"(x.rows[1]), "r"(x.rows[2]), "r"(x.rows[3]), "r"(x.columns[0]), "r"(x.columns[1]));
    }
#endif
};

struct Bf16 {
    DEVICE uint32_t pair(float first, float second) { return bf16s_of_floats(first, second); }
    // Numbers beyond the largest of bf16 have that, and a rest.
    DEVICE float within(float x) {
        const float most = __uint_as_float(0x7f7f0000u);
        return fminf(fmaxf(x, -most), most);
    }
    DEVICE uint32_t largest(float first, float second) { return pair(within(first), within(second)); }
    DEVICE float first(uint32_t pair) { return __uint_as_float(pair << 16); }
    DEVICE float second(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

#if !defined(HTC_EMULATED) && !defined(HTC_PLAIN_MMA)
    // Volatile, so that no compiler moves what a whole warp does to where some of its lanes are.
    DEVICE void multiply(float sums[4], const Fragment &x) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(x.rows[0]), "r"(x.rows[1]), "r"(x.rows[2]), "r"(x.rows[3]), "r"(x.columns[0]), "r"(x.columns[1]));
    }
#endif
};

// Two numbers in parts, the largest first. What is not finite has a part that is no number.
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

// Both numbers of a pair with those of another.
template <class Type> DEVICE float add_pair(float sum, uint32_t x, uint32_t y) {
    return add_product(add_product(sum, Type::first(x), Type::first(y)), Type::second(x), Type::second(y));
}

// `add_products` by exchanges of the warp, where there are no tensor cores, or to hold them against it.
template <class Type> DEVICE void add_products_by_lanes(float sums[4], const Fragment &x) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    const uint64_t near = static_cast<uint64_t>(x.rows[2]) << 32 | x.rows[0];
    const uint64_t far = static_cast<uint64_t>(x.rows[3]) << 32 | x.rows[1];
    const uint64_t column = static_cast<uint64_t>(x.columns[1]) << 32 | x.columns[0];
    for (uint32_t four = 0; four < 4; four++) {
        // Lanes of a group have its two rows; those of group c have column c.
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
// The same at once, for a whole warp: a price is paid for each exchange.
template <class Type> struct OfLane {
    float *sums;
    Fragment x;

    static void act(void *const lanes[WARP]) {
        for (uint32_t lane = 0; lane < WARP; lane++) {
            const uint32_t group = lane / 4, of = lane % 4;
            float *sums = static_cast<const OfLane *>(lanes[lane])->sums;
            for (uint32_t four = 0; four < 4; four++) {
                const Fragment &row = static_cast<const OfLane *>(lanes[4 * group + four])->x;
                for (uint32_t i = 0; i < 4; i++) {
                    const Fragment &column = static_cast<const OfLane *>(lanes[4 * (2 * of + i % 2) + four])->x;
                    for (uint32_t half = 0; half < 2; half++)
                        sums[i] = add_pair<Type>(sums[i], row.rows[i / 2 + 2 * half], column.columns[half]);
                }
            }
        }
    }
};
#endif

// Adds the products of 16 rows of 16 numbers and 8 columns of as many, in single precision: fragments as those of integers are, but
// that a register has a pair of numbers instead of four; these are those of `mma.m16n8k16`.
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

// By what numbers are multiplied whose largest magnitude has these bits, so that it is about 2^14 in half precision, and by what
// products are then: powers of two, whose product is one. Where one is not finite, products are no numbers.
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

// Numbers that a lane multiplies of 32: sixteen bytes of sixteen bits.
constexpr uint32_t CHUNK = 8, CHUNKS = 32 / CHUNK;

template <class Type, int COUNT> DEVICE void split_chunk(const float x[CHUNK], uint4 to[COUNT]) {
    uint32_t words[CHUNK / 2][COUNT];
    UNROLL
    for (uint32_t i = 0; i < CHUNK / 2; i++) split<Type, COUNT>(x[2 * i], x[2 * i + 1], words[i]);
    UNROLL
    for (int part = 0; part < COUNT; part++) to[part] = {words[0][part], words[1][part], words[2][part], words[3][part]};
}

// Thirty-two numbers, of which four lanes in a row have a chunk each: all of them scaled alike where `SCALED` says so. By what their
// products are multiplied.
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

// Adds the products of chunks that four lanes in a row have of two rows and of a column, 32 numbers of each: which of them are taken
// together is all the same to the sum, as long as they are those of rows and of columns alike.
template <class Type> DEVICE void add_chunks(float sums[4], const uint4 &near, const uint4 &far, const uint4 &column) {
    add_products<Type>(sums, {{near.x, far.x, near.y, far.y}, {column.x, column.y}});
    add_products<Type>(sums, {{near.z, far.z, near.w, far.w}, {column.z, column.w}});
}

}  // namespace parts
