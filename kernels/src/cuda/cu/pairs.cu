// Two dependent products in one launch.
#include "products.cuh"

namespace products {

#define KERNELS_OF_PAIRS(name, Format)                                             \
    KERNEL_OF_BLOCKS(name##_pair_1, Pair, 128, 7) { multiply_pair<Format, 1>(a); } \
    KERNEL_OF_BLOCKS(name##_pair_4, Pair, 128, 5) { multiply_pair<Format, 4>(a); }

KERNELS_OF_PAIRS(f32, Floats<AsFloat>)
KERNELS_OF_PAIRS(f16, Floats<AsHalf>)
KERNELS_OF_PAIRS(bf16, Floats<AsBf16>)
KERNELS_OF_PAIRS(q8_0, Q8_0)
KERNELS_OF_PAIRS(q4_0, Q4_0)
KERNELS_OF_PAIRS(q4_k, Q4K)
KERNELS_OF_PAIRS(q5_k, Q5K)
KERNELS_OF_PAIRS(q6_k, Q6K)
KERNELS_OF_PAIRS(wide, Wide)
#undef KERNELS_OF_PAIRS

}  // namespace products
