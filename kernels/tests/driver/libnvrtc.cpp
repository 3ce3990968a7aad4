// A compiler for GPUs whose code the driver of libcuda.cpp takes, which knows the kernels of the sources by their names.
//
// HTC_FAKE chooses what is wrong with it: `no-compiling` for sources that do not compile.
#include <cstdlib>
#include <cstring>
#include <string>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

enum { SUCCESS = 0, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
    std::string log;
    bool compiled = false;
};

const std::string CUBIN = "\x7f" "ELF";
const std::string PTX("// PTX\0", 7);

int put(const std::string &from, char *to) {
    memcpy(to, from.data(), from.size());
    return SUCCESS;
}

}  // namespace

API nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, SUCCESS; }
API nvrtcGetNumSupportedArchs(int *count) { return *count = 2, SUCCESS; }
API nvrtcGetSupportedArchs(int *numbers) { return numbers[0] = 80, numbers[1] = 90, SUCCESS; }
extern "C" const char *nvrtcGetErrorString(int code) { return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "unknown"; }

API nvrtcCreateProgram(Program **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
    if (source == nullptr || name == nullptr) return INVALID_PROGRAM;
    for (int i = 0; i < headers; i++)
        if (texts[i] == nullptr || names[i] == nullptr) return INVALID_PROGRAM;
    return *program = new Program, SUCCESS;
}
API nvrtcDestroyProgram(Program **program) {
    delete *program;
    return *program = nullptr, SUCCESS;
}
API nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    bool target = false;
    for (int i = 0; i < count; i++) target = target || strcmp(options[i], "--gpu-architecture=sm_90") == 0;
    if (!target) return INVALID_OPTION;
    const char *fake = getenv("HTC_FAKE");
    if (fake != nullptr && strstr(fake, "no-compiling") != nullptr) {
        program->log = "error: no such thing";
        return COMPILATION;
    }
    return program->compiled = true, SUCCESS;
}
// Sizes are with the zero that ends a text.
API nvrtcGetProgramLogSize(Program *program, size_t *size) { return *size = program->log.size() + 1, SUCCESS; }
API nvrtcGetProgramLog(Program *program, char *to) { return strcpy(to, program->log.c_str()), SUCCESS; }
API nvrtcGetCUBINSize(Program *program, size_t *size) {
    return *size = CUBIN.size(), program->compiled ? SUCCESS : INVALID_PROGRAM;
}
API nvrtcGetCUBIN(Program *program, char *to) { return program->compiled ? put(CUBIN, to) : INVALID_PROGRAM; }
API nvrtcGetPTXSize(Program *program, size_t *size) {
    return *size = PTX.size(), program->compiled ? SUCCESS : INVALID_PROGRAM;
}
API nvrtcGetPTX(Program *program, char *to) { return program->compiled ? put(PTX, to) : INVALID_PROGRAM; }
