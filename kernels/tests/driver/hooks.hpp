// What libraries that compute on a stream need of libcuda.cpp, and what they have in common.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace fake {

using Address = unsigned long long;
using Work = std::function<void()>;

// A part of an allocation that is touched when the work is done.
struct Range {
    Address from;
    size_t bytes;
};

inline bool is(const char *what) {
    const char *fake = getenv("HTC_FAKE");
    return fake != nullptr && strstr(fake, what) != nullptr;
}

// A function of the driver's library, which was loaded before.
template <class F>
F *hook(const char *name) {
    static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = driver != nullptr ? dlsym(driver, name) : nullptr;
    if (found == nullptr) abort();
    return reinterpret_cast<F *>(found);
}

// Whether the device's context is current, and nothing went wrong.
inline bool ready() { return hook<int()>("htc_fake_ready")() != 0; }
inline void handles(int change) { hook<int(int)>("htc_fake_handles")(change); }
inline void log(const std::string &line) { hook<int(const char *)>("htc_fake_log")(line.c_str()); }

// Work on a stream, behind what was asked of it before. False where it takes none.
inline bool later(void *stream, const std::vector<Range> &ranges, Work work) {
    auto *later = hook<int(void *, const Range *, size_t, Work *)>("htc_fake_later");
    return later(stream, ranges.data(), ranges.size(), &work) == 0;
}

// A matrix of numbers of 64 bits, column-major, with `stride` numbers from one column to the next.
struct Matrix {
    double *at;
    int64_t rows, columns, stride;

    double &operator()(int64_t row, int64_t column) const { return at[row + column * stride]; }
    bool fits() const { return at != nullptr && stride >= (rows > 1 ? rows : 1); }
    Range range() const {
        const int64_t numbers = rows == 0 || columns == 0 ? 0 : (columns - 1) * stride + rows;
        return {reinterpret_cast<Address>(at), sizeof(double) * static_cast<size_t>(numbers)};
    }
};

inline bool holds(const Range &range) {
    return hook<int(Address, size_t)>("htc_fake_holds")(range.from, range.bytes) != 0;
}

// What a library keeps for a device.
struct Handle {
    void *stream = nullptr;
    int mode = 0;
};

// Those that were given, and why one is not taken.
struct Handles {
    std::set<Handle *> alive;

    Handle *create() {
        Handle *made = new Handle;
        alive.insert(made);
        handles(1);
        return made;
    }
    bool destroy(Handle *handle) {
        if (!ready()) log("refused: a handle is given back without the context");
        if (alive.erase(handle) == 0) return refuse("a handle that is not there");
        handles(-1);
        delete handle;
        return true;
    }
    bool has(Handle *handle) const {
        if (alive.count(handle) == 0) return refuse("a handle that is not there");
        if (!ready()) return refuse("no context");
        return true;
    }
    // The mode is the one without which results may differ.
    bool computes(Handle *handle, int mode) const {
        if (!has(handle)) return false;
        if (handle->stream == nullptr) return refuse("no stream was set");
        return handle->mode == mode || refuse("results that may differ");
    }
    static bool refuse(const char *why) {
        log(std::string("refused: ") + why);
        return false;
    }
};

inline bool allowed(bool may, const char *why) { return may || Handles::refuse(why); }

}  // namespace fake

#define API extern "C" __attribute__((visibility("default"))) int
