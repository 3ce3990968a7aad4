// What kernels are written in: the part of CUDA C++ that the compiler for GPUs and, by `emulate.h`, one for processors
// both have.
//
// A kernel takes one structure, which `ops/` has under the same name with the same layout; pointers in it are the
// device's. Shared memory is named by SHARED or DYNAMIC_SHARED. Half precision is moved as 16 bits and computed as float.
#pragma once

#ifdef HTC_EMULATED
#include "emulate.h"
#else

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Where kernels of a step begin before the one in front has ended: from here on there is what that has written, and all before.
// Every kernel waits, also one that reads nothing of it: the one behind knows of the end of this one alone.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define WAIT_FOR_THE_ONE_BEFORE() asm volatile("griddepcontrol.wait;" ::: "memory")
#define LET_THE_NEXT_BEGIN() asm volatile("griddepcontrol.launch_dependents;")
#else
#define WAIT_FOR_THE_ONE_BEFORE()
#define LET_THE_NEXT_BEGIN()
#endif

#define BODY_BEHIND(name, Arguments, bounds)                                   \
    static __device__ __forceinline__ void behind_##name(const Arguments &a);  \
    extern "C" __global__ void bounds name(const __grid_constant__ Arguments a) { \
        LET_THE_NEXT_BEGIN();                                                  \
        WAIT_FOR_THE_ONE_BEFORE();                                             \
        behind_##name(a);                                                      \
    }                                                                          \
    static __device__ __forceinline__ void behind_##name(const Arguments &a)

// A kernel by name, its structure `a`, and the threads of a block at most.
#define KERNEL(name, Arguments, threads) BODY_BEHIND(name, Arguments, __launch_bounds__(threads))

// One that has registers for so many blocks on a multiprocessor, and no more: the compiler neither saves them for others at the
// price of memory nor takes so many that loads of too few warps are under way.
#define KERNEL_OF_BLOCKS(name, Arguments, threads, blocks) \
    BODY_BEHIND(name, Arguments, __launch_bounds__(threads, blocks))

// `count` numbers that the threads of a block share.
#define SHARED(type, name, count) __shared__ type name[count]

// As many as the launch asks for, as `type`.
#define DYNAMIC_SHARED(type, name)                  \
    extern __shared__ uint4 htc_dynamic_shared[];   \
    type *name = reinterpret_cast<type *>(htc_dynamic_shared)

#define DEVICE static __device__ __forceinline__

// Between two looks at what other blocks are to write.
DEVICE void wait_for_blocks() { __nanosleep(20); }

// Copies sixteen bytes to shared memory, which are there for the thread once it has waited for its copies.
DEVICE void copy_to_shared(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#ifndef INFINITY
#define INFINITY __uint_as_float(0x7f800000u)
#endif
// A loop behind it is unrolled, wholly or so many times.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL PRAGMA(unroll)
#define UNROLL_BY(times) PRAGMA(unroll times)

DEVICE float float_of_half(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// To the nearest, ties to even; infinite beyond.
DEVICE uint16_t half_of_float(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two numbers in half precision or as bf16, the first in the low half.
DEVICE uint32_t halves_of_floats(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
DEVICE uint32_t bf16s_of_floats(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

#endif

// Threads that exchange numbers without a barrier.
#define WARP 32
#define EVERY_LANE 0xffffffffu

DEVICE float float_of_bf16(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

#ifdef HTC_EMULATED
// The same in one exchange where each has a price: the sum in the same order.
#define sum_of_warp(value) emulate::reduce(emulate::Exchange::Sum, __LINE__, value)
#define max_of_warp(value) emulate::reduce(emulate::Exchange::Max, __LINE__, value)
#else
// The sum of a number of each lane, in every lane, added up in the same order wherever it is called.
DEVICE float sum_of_warp(float value) {
    for (int apart = WARP / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(EVERY_LANE, value, apart);
    return value;
}

DEVICE float max_of_warp(float value) {
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, apart));
    return value;
}
#endif

// The sum of a number of each thread of a block of whole warps, in every thread. `room` has a number for each warp, and may
// be used again once the block has met.
DEVICE float sum_of_block(float value, float *room) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = sum_of_warp(value);
    if (lane == 0) room[warp] = value;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++) sum += room[i];
    return sum;
}

// Integers of eight bits as tensor cores multiply them, four in a register: what a lane has of 16 rows of 32 numbers and of 8
// columns of as many. With `group = lane / 4` and `of = lane % 4` these are the four numbers from 4 `of` on of row `group` and of
// row `group + 8`, those sixteen further of both rows, and the four from 4 `of` on and those sixteen further of column `group`: the
// fragments of `mma.m16n8k32` in NVIDIA's "PTX ISA". Of the products, 16 by 8, it has those of row `group` with columns 2 `of` and
// 2 `of` + 1, and of row `group + 8` with the same.
struct Fragment {
    uint32_t rows[4];
    uint32_t columns[2];
};

#if defined(HTC_EMULATED) || defined(HTC_PLAIN_MMA)
// The same by exchanges of the warp, where there are no tensor cores, or to hold them against it: integers are exact in any order.
DEVICE void add_products(int sums[4], const Fragment &x) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    const uint64_t near = static_cast<uint64_t>(x.rows[1]) << 32 | x.rows[0];
    const uint64_t far = static_cast<uint64_t>(x.rows[3]) << 32 | x.rows[2];
    const uint64_t column = static_cast<uint64_t>(x.columns[1]) << 32 | x.columns[0];
    for (uint32_t four = 0; four < 4; four++) {
        // Lanes of a group have its two rows; those of group c have column c.
        const uint64_t a = __shfl_sync(EVERY_LANE, near, static_cast<int>(4 * group + four));
        const uint64_t b = __shfl_sync(EVERY_LANE, far, static_cast<int>(4 * group + four));
        const uint64_t first = __shfl_sync(EVERY_LANE, column, static_cast<int>(4 * (2 * of) + four));
        const uint64_t second = __shfl_sync(EVERY_LANE, column, static_cast<int>(4 * (2 * of + 1) + four));
        for (int i = 0; i < 4; i++) {
            const uint64_t with = i % 2 == 0 ? first : second;
            const int by = i / 2 * 32;
            sums[i] = __dp4a(static_cast<int>(a >> by), static_cast<int>(with), sums[i]);
            sums[i] = __dp4a(static_cast<int>(b >> by), static_cast<int>(with >> 32), sums[i]);
        }
    }
}

// Of the first sixteen numbers of rows and columns alone, or of the others.
template <int HALF> DEVICE void add_products_of_half(int sums[4], const Fragment &x) {
    add_products(sums, {{x.rows[2 * HALF], x.rows[2 * HALF + 1], 0, 0}, {x.columns[HALF], 0}});
}
#else
// Volatile, so that no compiler moves what a whole warp does to where some of its lanes are.
DEVICE void add_products(int sums[4], const Fragment &x) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(x.rows[0]), "r"(x.rows[1]), "r"(x.rows[2]), "r"(x.rows[3]), "r"(x.columns[0]), "r"(x.columns[1]));
}

template <int HALF> DEVICE void add_products_of_half(int sums[4], const Fragment &x) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(x.rows[2 * HALF]), "r"(x.rows[2 * HALF + 1]), "r"(x.columns[HALF]));
}
#endif

// Meets all blocks of the grid, of which all have to be on the device at a time; what each has written before is there for all
// behind it. `meeting` is how many have arrived, zero before and behind, and how often they have met.
DEVICE void meet_blocks(uint32_t *meeting) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        volatile uint32_t *met = meeting + 1;
        const uint32_t before = *met;
        if (atomicAdd(meeting, 1u) + 1 == gridDim.x * gridDim.y * gridDim.z) {
            meeting[0] = 0;
            __threadfence();
            *met = before + 1;
        } else {
            while (*met == before) wait_for_blocks();
        }
        __threadfence();
    }
    __syncthreads();
}

DEVICE uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
