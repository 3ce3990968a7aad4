// The subset of CUDA C++ used by the kernels, implemented by GPU compilers and, through
// `emulate.h`, by C++ compilers for the processor.
//
// A kernel takes one structure, which `ops/` declares with the same name and layout; its pointers
// are device addresses. Shared memory is declared with SHARED or DYNAMIC_SHARED. Half precision is
// stored as 16 bits and computed as float.
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

// Programmatic dependent launch: after this wait, the results of the previous kernel and all before
// it are visible. Every kernel waits, even if it reads nothing of them, because the next one only
// waits for this one.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define WAIT_FOR_DEPENDENCIES() asm volatile("griddepcontrol.wait;" ::: "memory")
#define LAUNCH_DEPENDENTS() asm volatile("griddepcontrol.launch_dependents;")
#else
#define WAIT_FOR_DEPENDENCIES()
#define LAUNCH_DEPENDENTS()
#endif

#define BODY_BEHIND(name, Arguments, bounds)                                   \
    static __device__ __forceinline__ void behind_##name(const Arguments &a);  \
    extern "C" __global__ void bounds name(const __grid_constant__ Arguments a) { \
        LAUNCH_DEPENDENTS();                                                   \
        WAIT_FOR_DEPENDENCIES();                                               \
        behind_##name(a);                                                      \
    }                                                                          \
    static __device__ __forceinline__ void behind_##name(const Arguments &a)

// Declares a kernel with its arguments `a` and its maximum block size.
#define KERNEL(name, Arguments, threads) BODY_BEHIND(name, Arguments, __launch_bounds__(threads))

// Declares a kernel with registers for exactly `blocks` blocks per multiprocessor: the compiler
// neither spills registers for higher occupancy nor uses so many that too few warps have loads in
// flight.
#define KERNEL_OF_BLOCKS(name, Arguments, threads, blocks) \
    BODY_BEHIND(name, Arguments, __launch_bounds__(threads, blocks))

// `count` elements shared by a block.
#define SHARED(type, name, count) __shared__ type name[count]

// Dynamic shared memory as `type`.
#define DYNAMIC_SHARED(type, name)                  \
    extern __shared__ uint4 htc_dynamic_shared[];   \
    type *name = reinterpret_cast<type *>(htc_dynamic_shared)

#define DEVICE static __device__ __forceinline__

// Pause between polls of a value that other blocks write.
DEVICE void wait_for_blocks() { __nanosleep(20); }

// Asynchronous copy of 16 bytes to shared memory, visible to the thread after it has waited for its
// copies.
DEVICE void copy_to_shared(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#ifndef INFINITY
#define INFINITY __uint_as_float(0x7f800000u)
#endif
// Unrolls the following loop, fully or by a factor.
#define PRAGMA(text) _Pragma(#text)
#define UNROLL PRAGMA(unroll)
#define UNROLL_BY(times) PRAGMA(unroll times)

DEVICE float float_of_half(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rounds to nearest, ties to even; infinite on overflow.
DEVICE uint16_t half_of_float(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Packs two floats as half precision or bf16, the first in the low half.
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

// Threads that exchange values without a barrier.
#define WARP 32
#define EVERY_LANE 0xffffffffu

DEVICE float float_of_bf16(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

#ifdef HTC_EMULATED
// In the emulation a single exchange gives the sum in the same order at lower cost.
#define sum_of_warp(value) emulate::reduce(emulate::Exchange::Sum, __LINE__, value)
#define max_of_warp(value) emulate::reduce(emulate::Exchange::Max, __LINE__, value)
#else
// Returns the sum over the lanes to every lane, with a fixed order of summation.
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

// Returns the sum over the threads of a block of whole warps to every thread. `shared` has one
// element per warp and may be reused after the next barrier of the block.
DEVICE float sum_of_block(float value, float *shared) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    value = sum_of_warp(value);
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++) sum += shared[i];
    return sum;
}

// Operands of an int8 tensor core product, four values per register: a lane's part of 16 rows of 32
// values and of 8 columns of 32. With `group = lane / 4` and `of = lane % 4` these are values 4
// `of` to 4 `of` + 3 of rows `group` and `group + 8`, the values 16 further of both rows, and
// values 4 `of` to 4 `of` + 3 and those 16 further of column `group`: the fragments of
// `mma.m16n8k32` in NVIDIA's "PTX ISA". Of the 16 by 8 results it holds those of rows `group` and
// `group + 8` for columns 2 `of` and 2 `of` + 1.
struct Fragment {
    uint32_t rows[4];
    uint32_t columns[2];
};

#if defined(HTC_EMULATED) || defined(HTC_PLAIN_MMA)
// The same with warp shuffles, for devices without tensor cores and for comparison: integer sums
// are exact in any order.
DEVICE void add_products(int sums[4], const Fragment &x) {
    const uint32_t lane = threadIdx.x % WARP, group = lane / 4, of = lane % 4;
    const uint64_t near = static_cast<uint64_t>(x.rows[1]) << 32 | x.rows[0];
    const uint64_t far = static_cast<uint64_t>(x.rows[3]) << 32 | x.rows[2];
    const uint64_t column = static_cast<uint64_t>(x.columns[1]) << 32 | x.columns[0];
    for (uint32_t four = 0; four < 4; four++) {
        // Lanes of a group hold its two rows; lanes of group c hold column c.
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

// Uses only the first or only the last 16 values of rows and columns.
template <int HALF> DEVICE void add_products_of_half(int sums[4], const Fragment &x) {
    add_products(sums, {{x.rows[2 * HALF], x.rows[2 * HALF + 1], 0, 0}, {x.columns[HALF], 0}});
}
#else
// Volatile, so that the compiler does not move a warp-wide operation into divergent code.
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

// Grid barrier. All blocks of the grid must be resident; writes before the barrier are visible
// after it. `meeting` holds the number of arrived blocks, zero before and after, and the number of
// completed barriers.
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
