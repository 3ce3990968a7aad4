// A kernel that commits violations, for the tests of the emulation.
#include "../cuda/cu/parts.cuh"

struct Trial {
    float *to;
    uint32_t what;
    uint32_t unused;
};

KERNEL(trial, Trial, 64) {
    const uint32_t thread = threadIdx.x, lane = thread % WARP;
    float found = sum_of_warp(static_cast<float>(lane));
    switch (a.what) {
    case 1:
        if (thread >= 32) return;
        __syncthreads();
        break;
    case 2:
        if (thread >= 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        break;
    case 3:
        if (lane == 31) return;
        found = sum_of_warp(found);
        break;
    case 4: found = __shfl_sync(~(1u << lane), found, 0); break;
    case 5:
        if (lane % 2 == 0) {
            found = __shfl_sync(EVERY_LANE, found, 0);
        } else {
            found = __shfl_sync(EVERY_LANE, found, 1);
        }
        break;
    case 6: {
        DYNAMIC_SHARED(float, shared);
        found = shared[0];
        break;
    }
    case 7:
        if (lane < 16) found = __shfl_sync(0xffffu, found, 20);
        break;
    case 8: {
        SHARED(float, shared, 64);
        found = shared[thread];
        break;
    }
    case 10: {
        // The definition of `sum_of_warp` on a device.
        float value = static_cast<float>(lane * lane) * 0.37f;
        const float once = sum_of_warp(value);
        const float most = max_of_warp(value);
        float largest = value;
        for (int apart = WARP / 2; apart > 0; apart /= 2) {
            value += __shfl_xor_sync(EVERY_LANE, value, apart);
            largest = fmaxf(largest, __shfl_xor_sync(EVERY_LANE, largest, apart));
        }
        found = value == once && largest == most ? value : -1.0f;
        break;
    }
    case 9: {
        SHARED(float, shared, 1);
        shared[0] = static_cast<float>(thread);
        __syncthreads();
        found = shared[0];
        break;
    }
    case 11: meet_blocks(reinterpret_cast<uint32_t *>(a.to)); return;
    case 12: {
        // Two threads write each element.
        SHARED(float, shared, 32);
        shared[thread] = found;
        break;
    }
    case 13: found = reinterpret_cast<const float4 *>(a.to + 1)->x; break;
    default: break;
    }
    a.to[thread] = found;
}

// Products of 16 rows of 32 integers with 8 columns of 32, in fragments with the layout of NVIDIA's
// "PTX ISA", element by element.
struct FragmentTrial {
    // [16, 32], [32, 8] and [16, 8].
    const int8_t *rows;
    const int8_t *columns;
    int *products;
    // All elements, the first sixteen, or the last sixteen.
    uint32_t what;
    uint32_t unused;
};

KERNEL(fragment_trial, FragmentTrial, 32) {
    const uint32_t group = threadIdx.x >> 2, of = threadIdx.x % 4;
    Fragment x = {};
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t row = i < 4 || (8 <= i && i < 12) ? group : group + 8;
        const uint32_t column = of * 4 + (i & 3) + (i < 8 ? 0 : 16);
        x.rows[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(a.rows[row * 32 + column])) << i % 4 * 8;
    }
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = of * 4 + (i & 3) + (i < 4 ? 0 : 16), column = group;
        x.columns[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(a.columns[row * 8 + column])) << i % 4 * 8;
    }
    int sums[4];
    for (uint32_t i = 0; i < 4; i++) sums[i] = a.products[(i < 2 ? group : group + 8) * 8 + of * 2 + (i & 1)];
    switch (a.what) {
    case 0: add_products(sums, x); break;
    case 1: add_products_of_half<0>(sums, x); break;
    default: add_products_of_half<1>(sums, x); break;
    }
    for (uint32_t i = 0; i < 4; i++) a.products[(i < 2 ? group : group + 8) * 8 + of * 2 + (i & 1)] = sums[i];
}

// As `FragmentTrial` for 16-bit floats.
struct FloatFragmentTrial {
    // [16, 16], [16, 8] and [16, 8].
    const uint16_t *rows;
    const uint16_t *columns;
    float *products;
    // bf16 instead of half precision.
    uint32_t bf16;
    // With warp shuffles, as on a device without tensor cores.
    uint32_t by_lanes;
};

KERNEL(float_fragment_trial, FloatFragmentTrial, 32) {
    const uint32_t group = threadIdx.x >> 2, of = threadIdx.x % 4;
    Fragment x = {};
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        const uint32_t column = of * 2 + (i & 1) + (i < 4 ? 0 : 8);
        x.rows[i / 2] |= static_cast<uint32_t>(a.rows[row * 16 + column]) << i % 2 * 16;
    }
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = of * 2 + (i & 1) + (i < 2 ? 0 : 8), column = group;
        x.columns[i / 2] |= static_cast<uint32_t>(a.columns[row * 8 + column]) << i % 2 * 16;
    }
    float sums[4];
    for (uint32_t i = 0; i < 4; i++) sums[i] = a.products[(i < 2 ? group : group + 8) * 8 + of * 2 + (i & 1)];
    if (a.bf16) {
        a.by_lanes ? parts::add_products_by_lanes<parts::Bf16>(sums, x) : parts::add_products<parts::Bf16>(sums, x);
    } else {
        a.by_lanes ? parts::add_products_by_lanes<parts::Half>(sums, x) : parts::add_products<parts::Half>(sums, x);
    }
    for (uint32_t i = 0; i < 4; i++) a.products[(i < 2 ? group : group + 8) * 8 + of * 2 + (i & 1)] = sums[i];
}
