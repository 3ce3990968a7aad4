// The subset of CUDA C++ that kernels use, for a processor; see emulate.cpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

struct uint3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emulate {

struct Kernel {
    const char *name;
    size_t argument_bytes;
    int most_threads;
    void (*run)(const void *arguments);
    const Kernel *next;
};
extern const Kernel *kernels;

struct Registration {
    Kernel kernel;
    Registration(const char *name, size_t bytes, int threads, void (*run)(const void *))
        : kernel{name, bytes, threads, run, kernels} {
        kernels = &kernel;
    }
};

// Indices of the running thread.
struct Place {
    uint3 thread, block, threads, blocks;
};
extern Place place;

// Warp operations; `line` distinguishes calls.
enum class Exchange { Shuffle, ShuffleXor, Sum, Max, Together };
uint64_t exchange(Exchange kind, int line, uint32_t mask, uint64_t value, int lane);
void barrier(int line);
// Yields to other threads, including those of other blocks.
void wait_for_blocks();
// Returns block-shared memory, the same for all threads with the same `key`.
void *shared(int key, size_t bytes);
void *dynamic_shared();

template <class T> T shuffle(Exchange kind, int line, uint32_t mask, T value, int lane) {
    static_assert(sizeof(T) <= 8, "lanes exchange 32 or 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = exchange(kind, line, mask, bits, lane);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

// Returns the sum or maximum over the lanes, with the result of exchanges with the lanes 16, 8, 4,
// 2 and 1 apart.
static inline float reduce(Exchange kind, int line, float value) { return shuffle(kind, line, 0xffffffffu, value, 0); }

// Runs `act` once for all lanes of a warp after all have arrived, with the operands of each.
typedef void Act(void *const lanes[32]);
struct Meeting {
    Act *act;
    void *own;
};
static inline void together(int line, Act *act, void *own) {
    Meeting meeting = {act, own};
    exchange(Exchange::Together, line, 0xffffffffu, reinterpret_cast<uintptr_t>(&meeting), 0);
}

}  // namespace emulate

#define threadIdx (emulate::place.thread)
#define blockIdx (emulate::place.block)
#define blockDim (emulate::place.threads)
#define gridDim (emulate::place.blocks)

#define KERNEL(name, Arguments, threads)                                                       \
    static void name(const Arguments &a);                                                      \
    static emulate::Registration registration_of_##name(                                       \
        #name, sizeof(Arguments), threads,                                                     \
        [](const void *a) { name(*static_cast<const Arguments *>(a)); });                      \
    static void name(const Arguments &a)
#define KERNEL_OF_BLOCKS(name, Arguments, threads, blocks) KERNEL(name, Arguments, threads)
#define SHARED(type, name, count) \
    type *const name = static_cast<type *>(emulate::shared(__COUNTER__, sizeof(type) * (count)))
#define DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(emulate::dynamic_shared())
#define DEVICE static inline
#define UNROLL
#define UNROLL_BY(times)
#define __forceinline__ inline

#define __syncthreads() emulate::barrier(__LINE__)
#define __shfl_sync(mask, value, lane) \
    emulate::shuffle(emulate::Exchange::Shuffle, __LINE__, mask, value, lane)
#define __shfl_xor_sync(mask, value, lane) \
    emulate::shuffle(emulate::Exchange::ShuffleXor, __LINE__, mask, value, lane)

static inline void __threadfence() {}
static inline void copy_to_shared(void *to, const void *from) { memcpy(to, from, 16); }
static inline void wait_for_copies() {}
static inline void wait_for_blocks() { emulate::wait_for_blocks(); }

template <class T> static inline T atomicAdd(T *to, T value) {
    const T before = *to;
    *to = before + value;
    return before;
}

template <class T> static inline T atomicMin(T *to, T value) {
    const T before = *to;
    if (value < before) *to = value;
    return before;
}

template <class T> static inline T atomicMax(T *to, T value) {
    const T before = *to;
    if (value > before) *to = value;
    return before;
}

static inline uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

static inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    return c;
}
// Selects four of eight bytes by the low three bits of each nibble; the fourth bit replicates the
// sign of the byte.
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t which) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = which >> 4 * i & 15;
        uint32_t byte = static_cast<uint32_t>(bytes >> 8 * (nibble & 7)) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31));
}

// By arithmetic, since a compiler without F16C calls a function for a conversion of `_Float16`.
static inline float float_of_half(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = static_cast<uint32_t>(bits & 0x7fff) << 13;
    // The exponent of a half has a bias of 15 instead of 127; the product is exact, subnormal numbers included.
    const float scaled = __uint_as_float(rest) * 0x1p112f;
    // Infinity and NaN keep their exponent of ones; a NaN becomes a quiet one, as by hardware.
    const uint32_t special = rest | 0x7f800000u | (rest > 0x0f800000u ? 0x400000u : 0u);
    return __uint_as_float(sign | (rest >= 0x0f800000u ? special : __float_as_uint(scaled)));
}
static inline uint16_t half_of_float(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
static inline uint32_t halves_of_floats(float first, float second) {
    return half_of_float(first) | static_cast<uint32_t>(half_of_float(second)) << 16;
}
// Rounds to nearest, ties to even.
static inline uint32_t bf16_of_float(float value) {
    const uint32_t bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t bf16s_of_floats(float first, float second) {
    return bf16_of_float(first) | bf16_of_float(second) << 16;
}
