// Products with matrices of single-level scales and quantised vectors.
#include "products.cuh"

namespace products {

KERNELS_OF_PRODUCTS(q8_0, Q8_0, 6)
KERNELS_OF_PRODUCTS(q4_0, Q4_0, 6)
KERNELS_OF_PRODUCTS(wide, Wide, 6)

}  // namespace products
