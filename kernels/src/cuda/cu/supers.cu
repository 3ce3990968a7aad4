// Products with matrices of two-level scales.
#include "products.cuh"

namespace products {

KERNELS_OF_PRODUCTS(q4_k, Q4K, 6)
KERNELS_OF_PRODUCTS(q5_k, Q5K, 6)
KERNELS_OF_PRODUCTS(q6_k, Q6K, 5)

}  // namespace products
