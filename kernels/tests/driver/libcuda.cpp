// A driver for a GPU that is not there: the functions of libcuda that the program calls, on the emulation.
//
// What is asked of a stream happens as late as it may, at the next wait, so that memory which is given back or written
// anew too early is noticed. What a driver refuses is refused: no current context, addresses and nodes of graphs that it did
// not give. HTC_FAKE chooses what is wrong with it, HTC_FAKE_LOG names a file for what was called. Libraries that
// compute on a stream find their way to it by hooks.hpp.
#include "../../src/emulate/unit.cpp"
#include "hooks.hpp"

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY = 209,
    INVALID_PTX = 218,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
    UPDATE_FAILURE = 910,
};

using fake::Address;

struct Node {
    const emulate::Kernel *kernel;  // null for a copy
    unsigned grid[3];
    unsigned threads;
    unsigned shared;
    std::vector<uint64_t> arguments;
    Address from, to;
    size_t bytes;
    // Whether it is behind the one in front of it, in a graph.
    bool follows;
};

// A graph that cannot run: a node's handle is its address.
struct Graph {
    std::deque<Node> nodes;
};

// One that can, and is changed by the nodes of what it was made of.
struct Executable {
    const Graph *made_of;
    std::vector<Node> nodes;
};

struct KernelNode {
    const emulate::Kernel *kernel;
    unsigned grid[3];
    unsigned threads[3];
    unsigned shared;
    void **parameters;
    void **extra;
    void *kern;
    void *context;
};

struct CopySide {
    size_t x, y, z, lod;
    unsigned type;
    void *host;
    Address device;
    void *array;
    void *reserved;
    size_t pitch, height;
};

struct CopyNode {
    CopySide from, to;
    size_t width, height, depth;
};

struct Event {
    bool pending;
};

struct Stream {
    std::deque<std::function<void()>> queue;
};

int dummy_context;
thread_local void *current = nullptr;
Code sticky = SUCCESS;
uint64_t launches = 0;
std::map<Address, size_t> memory;
std::set<void *> hosts, modules, streams, events, graphs;
std::map<const emulate::Kernel *, unsigned> most_shared;
size_t taken = 0;
int handles = 0;

bool is(const char *what) {
    const char *fake = getenv("HTC_FAKE");
    return fake != nullptr && strstr(fake, what) != nullptr;
}

void log(const std::string &line) {
    const char *path = getenv("HTC_FAKE_LOG");
    if (path == nullptr) return;
    if (FILE *file = fopen(path, "a")) {
        fprintf(file, "%s\n", line.c_str());
        fclose(file);
    }
}

bool holds(Address from, size_t bytes) {
    auto above = memory.upper_bound(from);
    if (above == memory.begin()) return false;
    --above;
    return from + bytes <= above->first + above->second;
}

void run(const Node &node) {
    if (sticky != SUCCESS) return;
    if (node.kernel == nullptr) {
        if (!holds(node.from, node.bytes) || !holds(node.to, node.bytes)) {
            log("copy of memory that is not there");
            sticky = ILLEGAL_ADDRESS;
            return;
        }
        memmove(reinterpret_cast<void *>(node.to), reinterpret_cast<void *>(node.from), node.bytes);
        return;
    }
    char error[512] = {};
    if (htc_emulate_launch(node.kernel, node.grid, node.threads, node.shared, node.arguments.data(),
                           node.kernel->argument_bytes, launches++, error, sizeof error) != 0) {
        log(std::string("failed: ") + error);
        sticky = ILLEGAL_ADDRESS;
    }
}

void drain(Stream *stream) {
    while (!stream->queue.empty()) {
        auto next = std::move(stream->queue.front());
        stream->queue.pop_front();
        next();
    }
}

Code later(Stream *stream, Node node) {
    stream->queue.push_back([node = std::move(node)] { run(node); });
    return SUCCESS;
}

}  // namespace

// Functions are called by any thread; a stream that is drained calls some of them again.
std::recursive_mutex everything;
#define LOCKED const std::lock_guard<std::recursive_mutex> locked(everything)
// What every function looks at first.
#define NEEDS_CONTEXT                                      \
    LOCKED;                                                \
    if (current != &dummy_context) return INVALID_CONTEXT; \
    if (sticky != SUCCESS) return sticky
#define API extern "C" __attribute__((visibility("default"))) int

API cuInit(unsigned) {
    if (is("stub")) return STUB_LIBRARY;
    return is("no-device") ? NO_DEVICE : SUCCESS;
}
API cuDriverGetVersion(int *version) { return *version = 13000, SUCCESS; }
API cuGetErrorName(int code, const char **text) {
    switch (code) {
    case ILLEGAL_ADDRESS: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; return SUCCESS;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
    case STUB_LIBRARY: *text = "CUDA_ERROR_STUB_LIBRARY"; return SUCCESS;
    case NO_BINARY: *text = "CUDA_ERROR_NO_BINARY_FOR_GPU"; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
API cuGetErrorString(int code, const char **text) {
    switch (code) {
    case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; return SUCCESS;
    case STUB_LIBRARY: *text = "the library is a stub"; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
API cuDeviceGetCount(int *count) { return *count = is("none") ? 0 : 2, SUCCESS; }
API cuDeviceGet(int *device, int index) {
    if (index < 0 || index > 1) return INVALID_DEVICE;
    return *device = index, SUCCESS;
}
API cuDeviceGetName(char *name, int room, int device) {
    snprintf(name, room, "Emulated %d", device);
    return SUCCESS;
}
API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = static_cast<unsigned char>(16 * device + i);
    return SUCCESS;
}
API cuDeviceGetAttribute(int *value, int which, int) {
    switch (which) {
    case 16: *value = 4; return SUCCESS;                              // multiprocessors
    case 38: *value = 1 << 20; return SUCCESS;                        // cache
    case 75: *value = is("old") ? 7 : 9; return SUCCESS;              // major
    case 76: *value = is("old") ? 5 : 0; return SUCCESS;              // minor
    case 97: *value = 227 << 10; return SUCCESS;                      // shared memory that may be asked for
    case 115: *value = is("no-pools") ? 0 : 1; return SUCCESS;        // pools
    default: log("attribute " + std::to_string(which)); return INVALID_VALUE;
    }
}
API cuDevicePrimaryCtxRetain(void **context, int) {
    if (is("full")) return OUT_OF_MEMORY;
    return *context = &dummy_context, SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int) {
    LOCKED;
    log("left: " + std::to_string(memory.size()) + " allocations, " + std::to_string(hosts.size()) + " of the host, " +
        std::to_string(modules.size()) + " modules, " + std::to_string(streams.size()) + " streams, " +
        std::to_string(events.size()) + " events, " + std::to_string(graphs.size()) + " graphs, " +
        std::to_string(handles) + " handles of libraries");
    return SUCCESS;
}
API cuCtxSetCurrent(void *context) { return current = context, SUCCESS; }

API cuStreamCreate(Stream **stream, unsigned) {
    NEEDS_CONTEXT;
    *stream = new Stream;
    streams.insert(*stream);
    return SUCCESS;
}
API cuStreamDestroy_v2(Stream *stream) {
    LOCKED;
    drain(stream);
    streams.erase(stream);
    delete stream;
    return SUCCESS;
}
API cuStreamSynchronize(Stream *stream) {
    LOCKED;
    if (current != &dummy_context) return INVALID_CONTEXT;
    drain(stream);
    return sticky;
}
API cuEventCreate(Event **event, unsigned) {
    NEEDS_CONTEXT;
    *event = new Event{false};
    events.insert(*event);
    return SUCCESS;
}
API cuEventDestroy_v2(Event *event) {
    LOCKED;
    events.erase(event);
    delete event;
    return SUCCESS;
}
API cuEventRecord(Event *event, Stream *stream) {
    NEEDS_CONTEXT;
    event->pending = true;
    stream->queue.push_back([event] { event->pending = false; });
    return SUCCESS;
}
API cuEventSynchronize(Event *event) {
    NEEDS_CONTEXT;
    for (void *stream : streams) {
        auto &queue = static_cast<Stream *>(stream)->queue;
        while (event->pending && !queue.empty()) {
            auto next = std::move(queue.front());
            queue.pop_front();
            next();
        }
    }
    return sticky;
}

API cuMemAlloc_v2(Address *address, size_t bytes) {
    NEEDS_CONTEXT;
    const char *most = getenv("HTC_FAKE_MEMORY");
    if (most != nullptr && taken + bytes > strtoull(most, nullptr, 10)) return OUT_OF_MEMORY;
    void *found = htc_emulate_allocate(bytes);
    if (found == nullptr) return OUT_OF_MEMORY;
    *address = reinterpret_cast<Address>(found);
    memory[*address] = bytes;
    taken += bytes;
    return SUCCESS;
}
API cuMemFree_v2(Address address) {
    LOCKED;
    auto found = memory.find(address);
    if (found == memory.end()) {
        log("free of memory that is not there");
        return INVALID_VALUE;
    }
    if (!htc_emulate_whole(reinterpret_cast<void *>(address), found->second)) log("written behind its end");
    // What comes later would see this.
    memset(reinterpret_cast<void *>(address), 0xdd, found->second);
    htc_emulate_free(reinterpret_cast<void *>(address));
    taken -= found->second;
    memory.erase(found);
    return SUCCESS;
}
API cuMemAllocAsync(Address *address, size_t bytes, Stream *stream) {
    return cuMemAlloc_v2(address, bytes);
}
API cuMemFreeAsync(Address address, Stream *stream) {
    NEEDS_CONTEXT;
    if (memory.find(address) == memory.end()) {
        log("free of memory that is not there");
        return INVALID_VALUE;
    }
    stream->queue.push_back([address] { cuMemFree_v2(address); });
    return SUCCESS;
}
API cuMemHostAlloc(void **host, size_t bytes, unsigned) {
    NEEDS_CONTEXT;
    *host = malloc(bytes);
    hosts.insert(*host);
    log("memory of the host");
    return SUCCESS;
}
API cuMemFreeHost(void *host) {
    LOCKED;
    hosts.erase(host);
    free(host);
    return SUCCESS;
}
API cuMemGetInfo_v2(size_t *free, size_t *total) {
    NEEDS_CONTEXT;
    const char *most = getenv("HTC_FAKE_MEMORY");
    *total = most != nullptr ? strtoull(most, nullptr, 10) : size_t{1} << 40;
    *free = *total - taken;
    return SUCCESS;
}
API cuDeviceGetDefaultMemPool(void **pool, int) { return *pool = &dummy_context, SUCCESS; }
API cuMemPoolSetAttribute(void *, int, void *) { return SUCCESS; }
API cuMemPoolGetAttribute(void *, int, uint64_t *value) { return *value = 0, SUCCESS; }
API cuMemPoolTrimTo(void *, size_t) { return SUCCESS; }
API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, Stream *stream) {
    NEEDS_CONTEXT;
    if (!holds(to, bytes)) return INVALID_VALUE;
    stream->queue.push_back([=] { memcpy(reinterpret_cast<void *>(to), from, bytes); });
    return SUCCESS;
}
API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, Stream *stream) {
    NEEDS_CONTEXT;
    if (!holds(from, bytes)) return INVALID_VALUE;
    stream->queue.push_back([=] { memcpy(to, reinterpret_cast<const void *>(from), bytes); });
    return SUCCESS;
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream *stream) {
    NEEDS_CONTEXT;
    Node node{};
    node.from = from;
    node.to = to;
    node.bytes = bytes;
    return later(stream, std::move(node));
}

API cuModuleLoadDataEx(void **module, const void *image, unsigned options, int *which, void **values) {
    NEEDS_CONTEXT;
    const bool cubin = memcmp(image, "\x7f" "ELF", 4) == 0;
    log(cubin ? "load cubin" : "load PTX");
    if (cubin && is("no-cubin")) return NO_BINARY;
    if (!cubin && is("no-ptx")) {
        for (unsigned i = 0; i < options; i++)
            if (which[i] == 5) strcpy(static_cast<char *>(values[i]), "unsupported version");
        return INVALID_PTX;
    }
    *module = malloc(1);
    modules.insert(*module);
    return SUCCESS;
}
API cuModuleUnload(void *module) {
    LOCKED;
    modules.erase(module);
    free(module);
    return SUCCESS;
}
API cuModuleGetFunction(const void **function, void *, const char *name) {
    NEEDS_CONTEXT;
    *function = htc_emulate_find(name);
    return *function != nullptr ? SUCCESS : NOT_FOUND;
}
API cuFuncSetAttribute(const emulate::Kernel *kernel, int which, int value) {
    NEEDS_CONTEXT;
    if (which != 8 || value > 227 << 10) return INVALID_VALUE;
    log(std::string("shared memory of ") + kernel->name + ": " + std::to_string(value));
    most_shared[kernel] = value;
    return SUCCESS;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const emulate::Kernel *, int threads, size_t) {
    // Of four multiprocessors.
    *blocks = static_cast<int>(htc_emulate_resident(static_cast<unsigned>(threads)) / 4);
    return SUCCESS;
}

namespace {

// A launch as it is kept, where a driver would take it.
Code launch_of(const emulate::Kernel *kernel, const unsigned grid[3], const unsigned threads[3], unsigned shared,
               void **parameters, void **extra, Node *node) {
    if (threads[1] != 1 || threads[2] != 1 || extra != nullptr) return INVALID_VALUE;
    if (threads[0] > static_cast<unsigned>(kernel->most_threads)) return INVALID_VALUE;
    if (grid[1] > 65535 || grid[2] > 65535) return INVALID_VALUE;
    if (shared > 48 << 10 && shared > most_shared[kernel]) return INVALID_VALUE;
    *node = Node{kernel, {grid[0], grid[1], grid[2]}, threads[0], shared, {}, 0, 0, 0, false};
    node->arguments.resize((kernel->argument_bytes + 7) / 8);
    memcpy(node->arguments.data(), parameters[0], kernel->argument_bytes);
    return SUCCESS;
}

Code copy_of(const CopyNode *copy, Node *node) {
    const CopySide &from = copy->from, &to = copy->to;
    for (const CopySide *side : {&from, &to}) {
        if (side->type != 2 || side->x != 0 || side->y != 0 || side->z != 0 || side->lod != 0) return INVALID_VALUE;
        if (side->pitch < copy->width || side->height < copy->height) return INVALID_VALUE;
    }
    if (copy->height != 1 || copy->depth != 1) return INVALID_VALUE;
    if (!holds(from.device, copy->width) || !holds(to.device, copy->width)) return INVALID_VALUE;
    *node = Node{nullptr, {}, 0, 0, {}, from.device, to.device, copy->width, false};
    return SUCCESS;
}

// A node runs behind the one before it.
Code add(const Node **added, Graph *graph, Node *const *behind, size_t count, Node node) {
    if (graphs.count(graph) == 0) return INVALID_VALUE;
    const bool first = graph->nodes.empty();
    // It may yet be told of the one in front of it.
    if (count > (first ? 0 : 1) || (count == 1 && behind[0] != &graph->nodes.back())) return INVALID_VALUE;
    node.follows = first || count == 1;
    graph->nodes.push_back(std::move(node));
    *added = &graph->nodes.back();
    return SUCCESS;
}

Code change(Executable *made, const Node *name, Node node) {
    if (is("no-update")) return UPDATE_FAILURE;
    if (graphs.count(made) == 0 || graphs.count(const_cast<Graph *>(made->made_of)) == 0) return INVALID_VALUE;
    const std::deque<Node> &nodes = made->made_of->nodes;
    for (size_t i = 0; i < nodes.size(); i++) {
        if (&nodes[i] != name) continue;
        if ((made->nodes[i].kernel == nullptr) != (node.kernel == nullptr)) return INVALID_VALUE;
        made->nodes[i] = std::move(node);
        log("change a node");
        return SUCCESS;
    }
    return INVALID_VALUE;
}

}  // namespace

API cuLaunchKernel(const emulate::Kernel *kernel, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                   unsigned tz, unsigned shared, Stream *stream, void **parameters, void **extra) {
    NEEDS_CONTEXT;
    const unsigned grid[3] = {x, y, z}, threads[3] = {tx, ty, tz};
    Node node{};
    if (Code code = launch_of(kernel, grid, threads, shared, parameters, extra, &node)) return code;
    log(std::string("launch ") + kernel->name);
    return later(stream, std::move(node));
}

API cuGraphCreate(Graph **graph, unsigned) {
    NEEDS_CONTEXT;
    if (is("no-graphs")) {
        log("a graph is refused");
        return NOT_SUPPORTED;
    }
    graphs.insert(*graph = new Graph);
    return SUCCESS;
}
API cuGraphDestroy(Graph *graph) {
    LOCKED;
    graphs.erase(graph);
    delete graph;
    return SUCCESS;
}
API cuGraphAddKernelNode_v2(const Node **added, Graph *graph, Node *const *behind, size_t count,
                            const KernelNode *launch) {
    NEEDS_CONTEXT;
    Node node{};
    if (Code code = launch_of(launch->kernel, launch->grid, launch->threads, launch->shared, launch->parameters,
                              launch->extra, &node))
        return code;
    return add(added, graph, behind, count, std::move(node));
}
API cuGraphAddMemcpyNode(const Node **added, Graph *graph, Node *const *behind, size_t count, const CopyNode *copy,
                         void *context) {
    NEEDS_CONTEXT;
    Node node{};
    if (context != &dummy_context) return INVALID_CONTEXT;
    if (Code code = copy_of(copy, &node)) return code;
    return add(added, graph, behind, count, std::move(node));
}
struct Edge {
    unsigned char from_port, to_port, type, reserved[5];
};
// A launch behind another, which lets it begin early: programmatic, from the port of that name.
API cuGraphAddDependencies_v2(Graph *graph, Node *const *from, Node *const *to, const Edge *edge, size_t count) {
    NEEDS_CONTEXT;
    if (is("no-overlap")) return NOT_SUPPORTED;
    if (graphs.count(graph) == 0 || count != 1) return INVALID_VALUE;
    if (edge->from_port != 1 || edge->to_port != 0 || edge->type != 1) return INVALID_VALUE;
    std::deque<Node> &nodes = graph->nodes;
    for (size_t i = 1; i < nodes.size(); i++) {
        if (&nodes[i] != to[0]) continue;
        if (&nodes[i - 1] != from[0] || nodes[i].follows) return INVALID_VALUE;
        if (nodes[i - 1].kernel == nullptr || nodes[i].kernel == nullptr) return INVALID_VALUE;
        nodes[i].follows = true;
        log("let a launch begin early");
        return SUCCESS;
    }
    return INVALID_VALUE;
}
API cuGraphInstantiateWithFlags(Executable **made, const Graph *graph, unsigned long long) {
    NEEDS_CONTEXT;
    for (const Node &node : graph->nodes)
        if (!node.follows) return INVALID_VALUE;
    log("make a graph");
    *made = new Executable{graph, {graph->nodes.begin(), graph->nodes.end()}};
    graphs.insert(*made);
    return SUCCESS;
}
API cuGraphExecDestroy(Executable *made) {
    LOCKED;
    graphs.erase(made);
    delete made;
    return SUCCESS;
}
API cuGraphExecKernelNodeSetParams_v2(Executable *made, const Node *name, const KernelNode *launch) {
    NEEDS_CONTEXT;
    Node node{};
    if (Code code = launch_of(launch->kernel, launch->grid, launch->threads, launch->shared, launch->parameters,
                              launch->extra, &node))
        return code;
    return change(made, name, std::move(node));
}
API cuGraphExecMemcpyNodeSetParams(Executable *made, const Node *name, const CopyNode *copy, void *context) {
    NEEDS_CONTEXT;
    Node node{};
    if (context != &dummy_context) return INVALID_CONTEXT;
    if (Code code = copy_of(copy, &node)) return code;
    return change(made, name, std::move(node));
}
API cuGraphLaunch(Executable *graph, Stream *stream) {
    NEEDS_CONTEXT;
    log("launch a graph of " + std::to_string(graph->nodes.size()));
    for (const Node &node : graph->nodes) later(stream, node);
    return SUCCESS;
}

// The other side of hooks.hpp.
API htc_fake_ready() { LOCKED; return current == &dummy_context && sticky == SUCCESS; }
API htc_fake_holds(Address from, size_t bytes) { LOCKED; return holds(from, bytes); }
API htc_fake_handles(int change) { LOCKED; return handles += change; }
API htc_fake_log(const char *line) { LOCKED; return log(line), SUCCESS; }
API htc_fake_later(void *on, const fake::Range *ranges, size_t count, fake::Work *work) {
    LOCKED;
    if (streams.count(on) == 0) return INVALID_VALUE;
    Stream *stream = static_cast<Stream *>(on);
    std::vector<fake::Range> touched(ranges, ranges + count);
    stream->queue.push_back([touched = std::move(touched), work = std::move(*work)] {
        if (sticky != SUCCESS) return;
        for (const fake::Range &range : touched) {
            if (holds(range.from, range.bytes)) continue;
            log("a library computes on memory that is not there");
            sticky = ILLEGAL_ADDRESS;
            return;
        }
        work();
    });
    return SUCCESS;
}
