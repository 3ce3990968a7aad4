// A cuSOLVER for a GPU that is not there: the functions that the program calls, on the memory and the stream of
// libcuda.cpp, by rotations of Jacobi and reflections of Householder. What the library refuses is refused, and what it may
// leave as it likes is overwritten. HTC_FAKE chooses what is wrong with it.
#include "hooks.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace fake;

namespace {

enum Status {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 2,
    INVALID_VALUE = 3,
    EXECUTION_FAILED = 6,
    NOT_SUPPORTED = 9,
};
enum { SAME_RESULTS = 1, F64 = 1, LOWER = 0 };

Handles handles_of_solver;
std::set<int *> parameters;

struct Room {
    void *device;
    size_t device_bytes;
    void *host;
    size_t host_bytes;
    int *info;
};

// Sizes that are no round numbers, so that one in the place of another is noticed.
size_t on_device(int64_t numbers) { return sizeof(double) * numbers + 40; }
size_t on_host(int64_t numbers) { return sizeof(double) * numbers + 3; }

Status begins(Handle *handle, int *params, bool types, bool sizes) {
    if (!handles_of_solver.computes(handle, SAME_RESULTS)) return NOT_INITIALIZED;
    if (!allowed(parameters.count(params) != 0, "parameters that are not there")) return INVALID_VALUE;
    if (!allowed(types, "types of numbers") || !allowed(sizes, "sizes of a matrix")) return INVALID_VALUE;
    return SUCCESS;
}

// Work with a room of at least the size that was told.
Status queue(Handle *handle, size_t device, size_t host, const Room &room, std::vector<Range> ranges, Work work) {
    if (!allowed(room.device_bytes >= device && room.host_bytes >= host && room.host != nullptr, "too little room"))
        return INVALID_VALUE;
    ranges.push_back({reinterpret_cast<Address>(room.device), room.device_bytes});
    ranges.push_back({reinterpret_cast<Address>(room.info), sizeof(int)});
    for (const Range &range : ranges)
        if (!allowed(holds(range), "memory that is not there")) return INVALID_VALUE;
    if (is("solver-fails")) return EXECUTION_FAILED;
    const bool queued = later(handle->stream, ranges, [=] {
        memset(room.device, 0x5a, room.device_bytes);
        memset(room.host, 0x5a, room.host_bytes);
        *room.info = is("no-convergence") ? 2 : is("an-argument") ? -4 : 0;
        // What did not converge looks like numbers all the same.
        if (*room.info >= 0) work();
    });
    return queued ? SUCCESS : EXECUTION_FAILED;
}

void forget(const Matrix &a) {
    for (int64_t j = 0; j < a.columns; j++) std::fill_n(&a(0, j), a.rows, 1e300);
}

// Turns two columns by an angle of this tangent.
void turn(const Matrix &a, int64_t p, int64_t q, double tangent) {
    const double cosine = 1 / std::sqrt(1 + tangent * tangent), sine = cosine * tangent;
    for (int64_t i = 0; i < a.rows; i++) {
        const double x = a(i, p), y = a(i, q);
        a(i, p) = cosine * x - sine * y;
        a(i, q) = sine * x + cosine * y;
    }
}

double tangent(double difference, double twice) {
    const double ratio = difference / twice;
    return (ratio < 0 ? -1 : 1) / (std::fabs(ratio) + std::sqrt(1 + ratio * ratio));
}

std::vector<double> identity(int64_t n) {
    std::vector<double> one(n * n);
    for (int64_t i = 0; i < n; i++) one[i * n + i] = 1;
    return one;
}

// One-sided rotations until the columns are orthogonal: their lengths are the singular values.
void orthogonalize(const Matrix &a, const Matrix &v) {
    for (int sweep = 0; sweep < 60; sweep++) {
        bool turned = false;
        for (int64_t p = 0; p < a.columns; p++)
            for (int64_t q = p + 1; q < a.columns; q++) {
                double pp = 0, qq = 0, pq = 0;
                for (int64_t i = 0; i < a.rows; i++) {
                    pp += a(i, p) * a(i, p);
                    qq += a(i, q) * a(i, q);
                    pq += a(i, p) * a(i, q);
                }
                if (std::fabs(pq) <= 1e-15 * std::sqrt(pp * qq)) continue;
                turned = true;
                const double t = tangent(qq - pp, 2 * pq);
                turn(a, p, q, t);
                turn(v, p, q, t);
            }
        if (!turned) return;
    }
}

// Two-sided rotations of a symmetric matrix until it is diagonal.
void diagonalize(const Matrix &a, const Matrix &v) {
    const int64_t n = a.rows;
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0, all = 0;
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < n; i++) {
                all += a(i, j) * a(i, j);
                if (i != j) off += a(i, j) * a(i, j);
            }
        if (!(off > 1e-30 * all)) return;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                if (a(p, q) == 0) continue;
                const double t = tangent(a(q, q) - a(p, p), 2 * a(p, q));
                turn(a, p, q, t);
                const Matrix turned{a.at, n, n, n};
                const double cosine = 1 / std::sqrt(1 + t * t), sine = cosine * t;
                for (int64_t j = 0; j < n; j++) {
                    const double x = turned(p, j), y = turned(q, j);
                    turned(p, j) = cosine * x - sine * y;
                    turned(q, j) = sine * x + cosine * y;
                }
                turn(v, p, q, t);
            }
    }
}

// Indices by values, ascending or descending.
std::vector<int64_t> order(const std::vector<double> &values, bool ascending) {
    std::vector<int64_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
        return ascending ? values[i] < values[j] : values[i] > values[j];
    });
    return order;
}

void eigen(const Matrix &a, int triangle, bool vectors, double *values) {
    const int64_t n = a.rows;
    std::vector<double> whole(n * n), turns = identity(n), found(n);
    const Matrix w{whole.data(), n, n, n}, v{turns.data(), n, n, n};
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = j; i < n; i++) w(i, j) = w(j, i) = triangle == LOWER ? a(i, j) : a(j, i);
    diagonalize(w, v);
    for (int64_t j = 0; j < n; j++) found[j] = w(j, j);
    forget(a);
    const std::vector<int64_t> sorted = order(found, true);
    for (int64_t j = 0; j < n; j++) {
        values[j] = found[sorted[j]];
        if (vectors) std::copy_n(&v(0, sorted[j]), n, &a(0, j));
    }
}

void singular(const Matrix &a, double *values, const Matrix &right) {
    const int64_t n = a.columns;
    std::vector<double> turns = identity(n), found(n);
    const Matrix v{turns.data(), n, n, n};
    orthogonalize(a, v);
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a.rows; i++) sum += a(i, j) * a(i, j);
        found[j] = std::sqrt(sum);
    }
    forget(a);
    const std::vector<int64_t> sorted = order(found, false);
    for (int64_t j = 0; j < n; j++) {
        values[j] = found[sorted[j]];
        for (int64_t i = 0; i < n; i++) right(j, i) = v(i, sorted[j]);
    }
}

// Reflections, whose vectors are left below the diagonal.
void triangle(const Matrix &a, double *scales) {
    for (int64_t j = 0; j < a.columns; j++) {
        double below = 0;
        for (int64_t i = j + 1; i < a.rows; i++) below += a(i, j) * a(i, j);
        scales[j] = 0;
        if (below == 0) continue;
        const double length = std::sqrt(below + a(j, j) * a(j, j));
        const double diagonal = a(j, j) > 0 ? -length : length;
        scales[j] = (diagonal - a(j, j)) / diagonal;
        for (int64_t i = j + 1; i < a.rows; i++) a(i, j) /= a(j, j) - diagonal;
        a(j, j) = diagonal;
        for (int64_t l = j + 1; l < a.columns; l++) {
            double sum = a(j, l);
            for (int64_t i = j + 1; i < a.rows; i++) sum += a(i, j) * a(i, l);
            a(j, l) -= scales[j] * sum;
            for (int64_t i = j + 1; i < a.rows; i++) a(i, l) -= scales[j] * sum * a(i, j);
        }
    }
}

Range vector(void *at, int64_t numbers) {
    return {reinterpret_cast<Address>(at), sizeof(double) * static_cast<size_t>(numbers)};
}

}  // namespace

API cusolverDnCreate(Handle **handle) {
    if (!ready() || is("no-start-of-solver")) return NOT_INITIALIZED;
    if (is("no-room-for-solver")) return ALLOC_FAILED;
    return *handle = handles_of_solver.create(), SUCCESS;
}
API cusolverDnDestroy(Handle *handle) { return handles_of_solver.destroy(handle) ? SUCCESS : NOT_INITIALIZED; }
API cusolverDnCreateParams(int **params) {
    if (is("no-parameters")) return ALLOC_FAILED;
    *params = new int;
    parameters.insert(*params);
    handles(1);
    return SUCCESS;
}
API cusolverDnDestroyParams(int *params) {
    if (parameters.erase(params) == 0) return INVALID_VALUE;
    handles(-1);
    delete params;
    return SUCCESS;
}
API cusolverDnSetStream(Handle *handle, void *stream) {
    if (!handles_of_solver.has(handle)) return NOT_INITIALIZED;
    return handle->stream = stream, SUCCESS;
}
#ifndef HTC_SHORT
API cusolverDnSetDeterministicMode(Handle *handle, int mode) {
    if (!handles_of_solver.has(handle)) return NOT_INITIALIZED;
    return handle->mode = mode, SUCCESS;
}
#endif
API cusolverGetProperty(int which, int *value) { return *value = 11 - which, SUCCESS; }

API cusolverDnXsyevd_bufferSize(Handle *handle, int *params, int, int, int64_t n, int type_a, void *a, int64_t lda,
                                int type_w, void *, int type, size_t *device, size_t *host) {
    const Matrix matrix{static_cast<double *>(a), n, n, lda};
    const bool types = type_a == F64 && type_w == F64 && type == F64;
    if (Status status = begins(handle, params, types, n >= 0 && matrix.fits())) return status;
    return *device = on_device(n * n), *host = on_host(n), SUCCESS;
}
API cusolverDnXsyevd(Handle *handle, int *params, int job, int which, int64_t n, int type_a, void *a, int64_t lda,
                     int type_w, void *w, int type, void *device, size_t device_bytes, void *host, size_t host_bytes,
                     int *info) {
    const Matrix matrix{static_cast<double *>(a), n, n, lda};
    const bool types = type_a == F64 && type_w == F64 && type == F64;
    const bool sizes = n >= 0 && matrix.fits() && (job == 0 || job == 1) && (which == 0 || which == 1);
    if (Status status = begins(handle, params, types, sizes)) return status;
    log((job == 1 ? "eigenvectors of " : "eigenvalues of ") + std::to_string(n));
    return queue(handle, on_device(n * n), on_host(n), {device, device_bytes, host, host_bytes, info},
                 {matrix.range(), vector(w, n)}, [=] { eigen(matrix, which, job == 1, static_cast<double *>(w)); });
}

API cusolverDnXgeqrf_bufferSize(Handle *handle, int *params, int64_t m, int64_t n, int type_a, void *a, int64_t lda,
                                int type_tau, void *, int type, size_t *device, size_t *host) {
    const Matrix matrix{static_cast<double *>(a), m, n, lda};
    const bool types = type_a == F64 && type_tau == F64 && type == F64;
    if (Status status = begins(handle, params, types, m >= 0 && n >= 0 && matrix.fits())) return status;
    return *device = on_device(2 * n), *host = on_host(0), SUCCESS;
}
API cusolverDnXgeqrf(Handle *handle, int *params, int64_t m, int64_t n, int type_a, void *a, int64_t lda, int type_tau,
                     void *tau, int type, void *device, size_t device_bytes, void *host, size_t host_bytes, int *info) {
    const Matrix matrix{static_cast<double *>(a), m, n, lda};
    const bool types = type_a == F64 && type_tau == F64 && type == F64;
    if (Status status = begins(handle, params, types, m >= n && n >= 0 && matrix.fits())) return status;
    log("triangle of " + std::to_string(m) + " x " + std::to_string(n));
    return queue(handle, on_device(2 * n), on_host(0), {device, device_bytes, host, host_bytes, info},
                 {matrix.range(), vector(tau, n)}, [=] { triangle(matrix, static_cast<double *>(tau)); });
}

API cusolverDnXgesvd_bufferSize(Handle *handle, int *params, signed char, signed char, int64_t m, int64_t n, int type_a,
                                void *a, int64_t lda, int type_s, void *, int type_u, void *, int64_t, int type_vt,
                                void *, int64_t, int type, size_t *device, size_t *host) {
    const Matrix matrix{static_cast<double *>(a), m, n, lda};
    const bool types = type_a == F64 && type_s == F64 && type_u == F64 && type_vt == F64 && type == F64;
    if (Status status = begins(handle, params, types, m >= n && n >= 0 && matrix.fits())) return status;
    return *device = on_device(m + 3 * n), *host = on_host(2 * n), SUCCESS;
}
API cusolverDnXgesvd(Handle *handle, int *params, signed char left_job, signed char right_job, int64_t m, int64_t n,
                     int type_a, void *a, int64_t lda, int type_s, void *s, int type_u, void *u, int64_t ldu,
                     int type_vt, void *vt, int64_t ldvt, int type, void *device, size_t device_bytes, void *host,
                     size_t host_bytes, int *info) {
    const Matrix matrix{static_cast<double *>(a), m, n, lda}, left{static_cast<double *>(u), m, n, ldu},
        right{static_cast<double *>(vt), n, n, ldvt};
    const bool types = type_a == F64 && type_s == F64 && type_u == F64 && type_vt == F64 && type == F64;
    const bool sizes = m >= n && n >= 0 && matrix.fits() && left.fits() && right.fits();
    if (Status status = begins(handle, params, types, sizes)) return status;
    if (!allowed(left_job == 'N' && (right_job == 'A' || right_job == 'S'), "vectors on the left")) return NOT_SUPPORTED;
    log("singular values of " + std::to_string(m) + " x " + std::to_string(n));
    return queue(handle, on_device(m + 3 * n), on_host(2 * n), {device, device_bytes, host, host_bytes, info},
                 {matrix.range(), left.range(), right.range(), vector(s, n)}, [=] {
                     forget(left);
                     singular(matrix, static_cast<double *>(s), right);
                 });
}
