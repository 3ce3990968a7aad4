// A cuBLAS for a GPU that is not there: the functions that the program calls, on the memory and the stream of libcuda.cpp.
// What the library refuses is refused. HTC_FAKE chooses what is wrong with it.
#include "hooks.hpp"

using namespace fake;

namespace {

enum Status {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
};
enum { NO_ATOMICS = 1 };  // one more than the library's, to know it from nothing
enum { LOWER = 0, AS_IT_IS = 0 };

Handles handles_of_blas;

bool held(const std::vector<Range> &ranges) {
    for (const Range &range : ranges)
        if (!allowed(holds(range), "memory that is not there")) return false;
    return true;
}

Status queue(Handle *handle, const std::vector<Range> &ranges, Work work) {
    if (!held(ranges)) return INVALID_VALUE;
    std::vector<Range> touched = ranges;
    if (is("their-kernel")) touched.push_back({1, 1});
    return later(handle->stream, touched, std::move(work)) ? SUCCESS : EXECUTION_FAILED;
}

}  // namespace

API cublasCreate_v2(Handle **handle) {
    if (!ready() || is("no-start-of-blas")) return NOT_INITIALIZED;
    if (is("no-room-for-blas")) return ALLOC_FAILED;
    return *handle = handles_of_blas.create(), SUCCESS;
}
API cublasDestroy_v2(Handle *handle) { return handles_of_blas.destroy(handle) ? SUCCESS : NOT_INITIALIZED; }
API cublasSetStream_v2(Handle *handle, void *stream) {
    if (!handles_of_blas.has(handle)) return NOT_INITIALIZED;
    return handle->stream = stream, SUCCESS;
}
API cublasSetAtomicsMode(Handle *handle, int mode) {
    if (!handles_of_blas.has(handle)) return NOT_INITIALIZED;
    return handle->mode = mode + 1, SUCCESS;
}
API cublasGetProperty(int which, int *value) { return *value = 12 - which, SUCCESS; }
extern "C" const char *cublasGetStatusName(int status) {
    switch (status) {
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "unknown";
    }
}
extern "C" const char *cublasGetStatusString(int status) {
    switch (status) {
    case NOT_INITIALIZED: return "the library was not initialized";
    case ALLOC_FAILED: return "the resource allocation failed";
    case EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return "unknown";
    }
}

API cublasDgemm_v2_64(Handle *handle, int left_as, int right_as, int64_t m, int64_t n, int64_t k, const double *alpha,
                      double *a, int64_t lda, double *b, int64_t ldb, const double *beta, double *c, int64_t ldc) {
    if (!handles_of_blas.computes(handle, NO_ATOMICS)) return NOT_INITIALIZED;
    const Matrix left{a, m, k, lda}, right{b, k, n, ldb}, out{c, m, n, ldc};
    const bool plain = left_as == AS_IT_IS && right_as == AS_IT_IS && m >= 0 && n >= 0 && k >= 0;
    if (!allowed(plain && left.fits() && right.fits() && out.fits(), "sizes of a product")) return INVALID_VALUE;
    if (is("blas-fails")) return EXECUTION_FAILED;
    log("product of " + std::to_string(m) + " x " + std::to_string(k) + " and " + std::to_string(n));
    return queue(handle, {left.range(), right.range(), out.range()}, [=, alpha = *alpha, beta = *beta] {
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++) sum += left(i, l) * right(l, j);
                // What is multiplied by zero may be anything.
                out(i, j) = alpha * sum + (beta == 0 ? 0 : beta * out(i, j));
            }
    });
}
API cublasDsyrk_v2_64(Handle *handle, int triangle, int as, int64_t n, int64_t k, const double *alpha, double *a,
                      int64_t lda, const double *beta, double *c, int64_t ldc) {
    if (!handles_of_blas.computes(handle, NO_ATOMICS)) return NOT_INITIALIZED;
    const Matrix vectors{a, n, k, lda}, out{c, n, n, ldc};
    if (!allowed(as == AS_IT_IS && (triangle == 0 || triangle == 1) && n >= 0 && k >= 0 && vectors.fits() && out.fits(),
                 "sizes of sums"))
        return INVALID_VALUE;
    if (is("blas-fails")) return EXECUTION_FAILED;
    log("sums of " + std::to_string(k) + " x " + std::to_string(n));
    return queue(handle, {vectors.range(), out.range()}, [=, alpha = *alpha, beta = *beta] {
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < n; i++) {
                if (triangle == LOWER ? i < j : i > j) continue;
                double sum = 0;
                for (int64_t l = 0; l < k; l++) sum += vectors(i, l) * vectors(j, l);
                out(i, j) = alpha * sum + (beta == 0 ? 0 : beta * out(i, j));
            }
    });
}
#ifndef HTC_SHORT
API cublasDscal_v2_64(Handle *handle, int64_t n, const double *alpha, double *x, int64_t step) {
    if (!handles_of_blas.computes(handle, NO_ATOMICS)) return NOT_INITIALIZED;
    if (!allowed(n >= 0 && step == 1, "sizes of a vector")) return INVALID_VALUE;
    const Matrix vector{x, n, 1, n};
    return queue(handle, {vector.range()}, [=, alpha = *alpha] {
        for (int64_t i = 0; i < n; i++) x[i] *= alpha;
    });
}
#endif
