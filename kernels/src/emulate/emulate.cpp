// Emulation of kernels on a processor, so that their indices, barriers, launch shapes and arguments
// are tested without a GPU.
//
// The threads of a block are fibres, which yield when they wait: at a block barrier, at a warp
// exchange, or for other blocks. The next fibre and the order of blocks are drawn from a seed.
// Reported errors: barriers that not all threads reach or that differ, warp exchanges with missing
// lanes, launches with a wrong shape or argument size, and writes past the end of an allocation.
// Shared memory is new for each block and filled with a NaN pattern. Under AddressSanitizer
// everything is a separate allocation, including shared arrays.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "../cuda/cu/dialect.cuh"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#if defined(__x86_64__)
// Saves the callee-saved registers on the stack and the stack pointer in `*from`, then continues
// with `to`.
asm(R"(
.text
.type htc_emulate_switch, @function
htc_emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size htc_emulate_switch, .-htc_emulate_switch
)");
constexpr size_t KEPT = 6;
constexpr size_t RETURN = 6;
constexpr size_t FRAME = 8;
#elif defined(__aarch64__)
asm(R"(
.text
.type htc_emulate_switch, %function
htc_emulate_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size htc_emulate_switch, .-htc_emulate_switch
)");
constexpr size_t RETURN = 11;
constexpr size_t FRAME = 20;
#else
#error "fibres are written for x86-64 and AArch64"
#endif

extern "C" void htc_emulate_switch(void **from, void *to);

namespace emulate {

const Kernel *kernels = nullptr;
Place place;

namespace {

constexpr size_t STACK = SANITIZED ? 256 << 10 : 64 << 10;
constexpr unsigned MOST_THREADS = 1024;
constexpr size_t MOST_SHARED = 227 << 10;
constexpr size_t MARGIN = 256;
// Waits of each block for other blocks after which a deadlock is reported.
constexpr size_t IN_VAIN = 10000;
constexpr unsigned char UNWRITTEN = 0xff;
constexpr unsigned char GUARD = 0xa5;

enum class State { Ready, Barrier, Exchange, Done };

struct Fibre {
    State state = State::Ready;
    bool begun = false;
    void *stack = nullptr;
    void *at = nullptr;
    void *fake = nullptr;
    // Operation that it waits for.
    int line = 0;
    emulate::Exchange kind{};
    uint32_t mask = 0;
    int lane = 0;
    uint64_t value = 0;
    Place place{};
};

struct Shared {
    int key;
    void *memory;
    size_t bytes;
};

struct Block {
    std::vector<Fibre> fibres;
    std::vector<unsigned> ready;
    unsigned running = 0;
    unsigned done = 0;
    unsigned at_barrier = 0;
    // Waiting lanes of each warp.
    unsigned waiting[MOST_THREADS / WARP] = {};
    std::vector<Shared> shared;
    void *dynamic = nullptr;
    size_t shared_bytes = 0;
};

struct Launch {
    const Kernel *kernel = nullptr;
    const void *arguments = nullptr;
    char error[512] = {};
    uint64_t random = 0;
    // The thread that yielded waits for other blocks, and the number of such waits since the last
    // progress.
    bool waits = false;
    size_t in_vain = 0;
    void *scheduler = nullptr;
    void *fake = nullptr;
    const void *scheduler_stack = nullptr;
    size_t scheduler_bytes = 0;
};

Launch launch;
// The running block.
Block *block = nullptr;
std::vector<void *> stacks;

// A step of PCG, for an order that is reproducible from the seed.
uint32_t draw(uint32_t below) {
    launch.random = launch.random * 6364136223846793005ull + 1442695040888963407ull;
    const uint32_t x = static_cast<uint32_t>((launch.random >> 18 ^ launch.random) >> 27);
    const uint32_t by = launch.random >> 59;
    return static_cast<uint64_t>(x >> by | x << (-by & 31)) * below >> 32;
}

template <class... T> void fail(const char *format, T... values) {
    if (launch.error[0] == 0) snprintf(launch.error, sizeof launch.error, format, values...);
}

// Switches from a fibre to the scheduler.
void give_up() {
    Fibre &fibre = block->fibres[block->running];
#if SANITIZED
    __sanitizer_start_switch_fiber(fibre.state == State::Done ? nullptr : &fibre.fake, launch.scheduler_stack,
                                   launch.scheduler_bytes);
#endif
    htc_emulate_switch(&fibre.at, launch.scheduler);
#if SANITIZED
    __sanitizer_finish_switch_fiber(block->fibres[block->running].fake, &launch.scheduler_stack, &launch.scheduler_bytes);
#endif
}

void first() {
#if SANITIZED
    __sanitizer_finish_switch_fiber(nullptr, &launch.scheduler_stack, &launch.scheduler_bytes);
#endif
    launch.kernel->run(launch.arguments);
    block->fibres[block->running].state = State::Done;
    block->done += 1;
    give_up();
    abort();
}

void go_on(unsigned index) {
    Fibre &fibre = block->fibres[index];
    block->running = index;
    place = fibre.place;
    if (!fibre.begun) {
        fibre.begun = true;
        if (stacks.empty()) {
            fibre.stack = malloc(STACK);
            if (fibre.stack == nullptr) return fail("no memory for the stack of a thread");
        } else {
            fibre.stack = stacks.back();
            stacks.pop_back();
#if SANITIZED
            // Left by the previous thread of this stack, which never returned.
            __asan_unpoison_memory_region(fibre.stack, STACK);
#endif
        }
        // Initial frame: a return address, and zeros for saved registers. Stacks begin at different
        // offsets of a page, because equal ones would compete for the same cache lines.
        uintptr_t top = reinterpret_cast<uintptr_t>(fibre.stack) + STACK - index % 64 * 192;
        top &= ~static_cast<uintptr_t>(63);
        void **frame = reinterpret_cast<void **>(top) - FRAME;
        memset(frame, 0, FRAME * sizeof(void *));
        frame[RETURN] = reinterpret_cast<void *>(first);
        fibre.at = frame;
    }
#if SANITIZED
    __sanitizer_start_switch_fiber(&launch.fake, fibre.stack, STACK);
#endif
    htc_emulate_switch(&launch.scheduler, fibre.at);
#if SANITIZED
    __sanitizer_finish_switch_fiber(launch.fake, nullptr, nullptr);
#endif
    if (fibre.state == State::Done) {
        stacks.push_back(fibre.stack);
        fibre.stack = nullptr;
    }
}

void wake(unsigned index) {
    block->fibres[index].state = State::Ready;
    block->ready.push_back(index);
}

const char *name_of(emulate::Exchange kind) {
    switch (kind) {
    case Exchange::Shuffle: return "__shfl_sync";
    case Exchange::ShuffleXor: return "__shfl_xor_sync";
    case Exchange::Sum: return "sum_of_warp";
    case Exchange::Max: return "max_of_warp";
    case Exchange::Together: return "what a warp does together";
    }
    return "?";
}

// Computes the result of five exchanges with the lanes 16, 8, 4, 2 and 1 apart.
void reduced(uint64_t (&values)[WARP], emulate::Exchange kind) {
    float numbers[WARP];
    for (int lane = 0; lane < WARP; lane++) numbers[lane] = __uint_as_float(static_cast<uint32_t>(values[lane]));
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        float before[WARP];
        memcpy(before, numbers, sizeof before);
        for (int lane = 0; lane < WARP; lane++) {
            const float own = before[lane], other = before[lane ^ apart];
            numbers[lane] = kind == Exchange::Sum ? own + other : fmaxf(own, other);
        }
    }
    for (int lane = 0; lane < WARP; lane++) values[lane] = __float_as_uint(numbers[lane]);
}

// Resumes the lanes of a mask once all of them have arrived, or reports the error if they never
// will.
void meet_lanes(unsigned index) {
    const Fibre &last = block->fibres[index];
    const unsigned first = index / WARP * WARP;
    const unsigned lanes = block->fibres.size() - first;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(last.mask >> lane & 1)) continue;
        if (lane >= lanes)
            return fail("%s at line %d names lane %u, which the block of %zu threads has not", name_of(last.kind),
                        last.line, lane, block->fibres.size());
        const Fibre &other = block->fibres[first + lane];
        if (other.state == State::Done)
            return fail("%s at line %d waits for lane %u, which has ended", name_of(last.kind), last.line, lane);
        if (other.state != State::Exchange) return;
        if (other.line != last.line || other.kind != last.kind || other.mask != last.mask)
            return fail("%s at line %d meets %s at line %d, or with another mask", name_of(last.kind), last.line,
                        name_of(other.kind), other.line);
    }
    uint64_t values[WARP] = {};
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(last.mask >> lane & 1)) continue;
        values[lane] = block->fibres[first + lane].value;
    }
    if (last.kind == Exchange::Sum || last.kind == Exchange::Max) reduced(values, last.kind);
    if (last.kind == Exchange::Together) {
        void *own[WARP];
        Act *act = reinterpret_cast<const Meeting *>(values[0])->act;
        for (unsigned lane = 0; lane < WARP; lane++) {
            const Meeting &meeting = *reinterpret_cast<const Meeting *>(values[lane]);
            if (meeting.act != act) return fail("%s at line %d is not the same for all lanes", name_of(last.kind), last.line);
            own[lane] = meeting.own;
        }
        act(own);
    }
    for (int lane = 0; lane < WARP; lane++) {
        if (!(last.mask >> lane & 1)) continue;
        Fibre &fibre = block->fibres[first + lane];
        int from = lane;
        switch (fibre.kind) {
        case Exchange::Shuffle: from = fibre.lane & (WARP - 1); break;
        case Exchange::ShuffleXor: from = lane ^ fibre.lane; break;
        default: break;
        }
        // A lane index outside the warp returns the thread's own value.
        if (from < 0 || from >= WARP) from = lane;
        if (!(last.mask >> from & 1))
            return fail("%s at line %d reads lane %d, which its mask does not name", name_of(last.kind), last.line, from);
        fibre.value = values[from];
        block->waiting[first / WARP] -= 1;
        wake(first + lane);
    }
}

// Allocates without padding under AddressSanitizer, so that it detects any overrun.
void *allocate(size_t bytes) {
    void *memory = nullptr;
    if (posix_memalign(&memory, MARGIN, SANITIZED ? bytes : bytes + MARGIN) != 0) return nullptr;
    memset(memory, UNWRITTEN, bytes);
    return memory;
}

// Ends a fibre after an error.
[[noreturn]] void stop() {
    give_up();
    abort();
}

// Makes the threads of a block ready.
void begin_block(Block &begun, uint3 index, uint3 threads, uint3 blocks, size_t dynamic) {
    const unsigned count = threads.x;
    begun.fibres.assign(count, Fibre{});
    begun.shared_bytes = dynamic;
    begun.dynamic = dynamic > 0 ? allocate(dynamic) : nullptr;
    for (unsigned i = 0; i < count; i++) {
        begun.fibres[i].place = {{i, 0, 0}, index, threads, blocks};
        begun.ready.push_back(i);
    }
}

// Runs threads of the block until none is ready, or one waits for other blocks.
void run_block() {
    const unsigned count = block->fibres.size();
    while (launch.error[0] == 0 && !block->ready.empty()) {
        const uint32_t at = draw(block->ready.size());
        const unsigned next = block->ready[at];
        block->ready[at] = block->ready.back();
        block->ready.pop_back();
        go_on(next);
        if (std::exchange(launch.waits, false)) {
            launch.in_vain += 1;
            return;
        }
        launch.in_vain = 0;
    }
    if (launch.error[0] == 0 && block->done < count) {
        for (unsigned i = 0; i < count && launch.error[0] == 0; i++)
            if (block->fibres[i].state == State::Exchange) meet_lanes(i);
        for (const Fibre &fibre : block->fibres) {
            if (fibre.state == State::Barrier)
                fail("a barrier at line %d is not reached by all: %u threads wait, %u of %u have ended", fibre.line,
                     block->at_barrier, block->done, count);
            if (fibre.state == State::Exchange)
                fail("%s at line %d waits for lanes that do not come", name_of(fibre.kind), fibre.line);
        }
    }
}

void end_block(Block &ended) {
    for (Fibre &fibre : ended.fibres)
        if (fibre.stack != nullptr) stacks.push_back(fibre.stack);
    for (const Shared &shared : ended.shared) free(shared.memory);
    free(ended.dynamic);
}

}  // namespace

uint64_t exchange(Exchange kind, int line, uint32_t mask, uint64_t value, int lane) {
    const unsigned index = block->running;
    Fibre &fibre = block->fibres[index];
    if (!(mask >> index % WARP & 1)) {
        fail("%s at line %d: the mask does not name its own lane", name_of(kind), line);
        stop();
    }
    fibre.state = State::Exchange;
    fibre.kind = kind;
    fibre.line = line;
    fibre.mask = mask;
    fibre.value = value;
    fibre.lane = lane;
    block->waiting[index / WARP] += 1;
    if (block->waiting[index / WARP] >= static_cast<unsigned>(__popc(mask))) meet_lanes(index);
    give_up();
    return block->fibres[block->running].value;
}

void barrier(int line) {
    const unsigned index = block->running;
    block->fibres[index].state = State::Barrier;
    block->fibres[index].line = line;
    block->at_barrier += 1;
    if (block->at_barrier == block->fibres.size()) {
        block->at_barrier = 0;
        for (unsigned i = 0; i < block->fibres.size(); i++) {
            if (block->fibres[i].line != line)
                fail("barriers at lines %d and %d meet", line, block->fibres[i].line);
            wake(i);
        }
    }
    give_up();
}

void wait_for_blocks() {
    block->ready.push_back(block->running);
    launch.waits = true;
    give_up();
}

void *shared(int key, size_t bytes) {
    for (const Shared &shared : block->shared)
        if (shared.key == key) return shared.memory;
    block->shared_bytes += bytes;
    if (block->shared_bytes > MOST_SHARED)
        fail("%zu bytes of shared memory, no device has more than %zu", block->shared_bytes, MOST_SHARED);
    void *memory = allocate(bytes);
    if (memory == nullptr) fail("no memory for %zu bytes of shared memory", bytes);
    if (launch.error[0] != 0) stop();
    block->shared.push_back({key, memory, bytes});
    return memory;
}

void *dynamic_shared() {
    if (block->dynamic == nullptr) {
        fail("the launch gives %s no shared memory", launch.kernel->name);
        stop();
    }
    return block->dynamic;
}

}  // namespace emulate

using namespace emulate;

extern "C" {

const void *htc_emulate_find(const char *name) {
    for (const Kernel *kernel = kernels; kernel != nullptr; kernel = kernel->next)
        if (strcmp(kernel->name, name) == 0) return kernel;
    return nullptr;
}

// Returns the number of resident blocks of this size; more begin when one of these has ended.
unsigned htc_emulate_resident(unsigned threads) { return threads > 512 ? 4 : 8; }

// Returns 0, or 1 with a message in `error`. One launch at a time.
int htc_emulate_launch(const void *found, const unsigned *grid, unsigned threads, size_t shared_bytes,
                       const void *arguments, size_t argument_bytes, uint64_t seed, char *error, size_t capacity) {
    const Kernel *kernel = static_cast<const Kernel *>(found);
    launch.error[0] = 0;
    launch.kernel = kernel;
    launch.arguments = arguments;
    launch.random = seed;
    const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
    if (argument_bytes != kernel->argument_bytes)
        fail("%s takes %zu bytes of arguments, is given %zu", kernel->name, kernel->argument_bytes, argument_bytes);
    if (threads == 0 || threads > MOST_THREADS || threads > static_cast<unsigned>(kernel->most_threads))
        fail("%s has blocks of at most %d threads, is given %u", kernel->name, kernel->most_threads, threads);
    if (blocks == 0 || grid[1] > 65535 || grid[2] > 65535 || grid[0] > 0x7fffffff)
        fail("%s: a grid of %u x %u x %u", kernel->name, grid[0], grid[1], grid[2]);
    if (shared_bytes > MOST_SHARED)
        fail("%zu bytes of shared memory, no device has more than %zu", shared_bytes, MOST_SHARED);
    // A step size coprime to the number of blocks visits each of them once.
    uint64_t step = 1, at = 0;
    if (launch.error[0] == 0 && blocks > 1) {
        const auto divisor = [](uint64_t a, uint64_t b) {
            while (b != 0) {
                const uint64_t rest = a % b;
                a = b;
                b = rest;
            }
            return a;
        };
        at = draw(static_cast<uint32_t>(blocks));
        do step = 1 + draw(static_cast<uint32_t>(blocks - 1));
        while (divisor(step, blocks) != 1);
    }
    // Blocks run one after the other. If one waits for others, any block that has begun continues,
    // or another begins if fewer than the resident blocks have.
    std::vector<std::unique_ptr<Block>> begun;
    uint64_t left = launch.error[0] == 0 ? blocks : 0;
    while (launch.error[0] == 0 && (left > 0 || !begun.empty())) {
        const bool finds_room = left > 0 && begun.size() < htc_emulate_resident(threads);
        const uint32_t chosen = draw(static_cast<uint32_t>(begun.size() + finds_room));
        if (chosen == begun.size()) {
            begun.push_back(std::make_unique<Block>());
            const unsigned x = at % grid[0], y = at / grid[0] % grid[1], z = at / grid[0] / grid[1];
            begin_block(*begun.back(), {x, y, z}, {threads, 1, 1}, {grid[0], grid[1], grid[2]}, shared_bytes);
            at = (at + step) % blocks;
            left -= 1;
            launch.in_vain = 0;
        }
        block = begun[chosen].get();
        run_block();
        if (launch.in_vain > IN_VAIN * (begun.size() + 1) && !(left > 0 && begun.size() < htc_emulate_resident(threads)))
            fail("%zu blocks wait for others, and %llu find no room beside them", begun.size(),
                 static_cast<unsigned long long>(left));
        if (block->done == block->fibres.size()) {
            end_block(*block);
            begun.erase(begun.begin() + chosen);
        }
    }
    for (const std::unique_ptr<Block> &other : begun) end_block(*other);
    block = nullptr;
    if (launch.error[0] != 0) snprintf(error, capacity, "%s", launch.error);
    return launch.error[0] != 0;
}

// Allocates device memory of unspecified content with the alignment of a device; null on failure.
void *htc_emulate_allocate(size_t bytes) {
    unsigned char *memory = static_cast<unsigned char *>(allocate(bytes));
    if (memory != nullptr && !SANITIZED) memset(memory + bytes, GUARD, MARGIN);
    return memory;
}

// Returns 1 if nothing was written past the end.
int htc_emulate_whole(const void *memory, size_t bytes) {
    const unsigned char *end = static_cast<const unsigned char *>(memory) + bytes;
    for (size_t i = 0; !SANITIZED && i < MARGIN; i++)
        if (end[i] != GUARD) return 0;
    return 1;
}

void htc_emulate_free(void *memory) { free(memory); }

// Returns 1 if AddressSanitizer checks the accesses.
int htc_emulate_sanitized(void) { return SANITIZED; }

}  // extern "C"
