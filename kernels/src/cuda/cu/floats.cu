// Products with float matrices.
#include "products.cuh"

namespace products {

KERNELS_OF_PRODUCTS(f32, Floats<AsFloat>, 6)
KERNELS_OF_PRODUCTS(f16, Floats<AsHalf>, 6)
KERNELS_OF_PRODUCTS(bf16, Floats<AsBf16>, 6)

}  // namespace products
