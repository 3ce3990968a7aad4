// Everything that is compiled for the emulation, as one unit, so that a linker leaves no kernel out.
#include "emulate.cpp"
#include "trial.cpp"

#include "../cuda/cu/elementwise.cu"
#include "../cuda/cu/attention.cu"
#include "../cuda/cu/kv.cu"
#include "../cuda/cu/vectors.cu"
#include "../cuda/cu/fused.cu"
#include "../cuda/cu/products.cu"
#include "../cuda/cu/tiles.cu"
#include "../cuda/cu/bands.cu"
#include "../cuda/cu/sampling.cu"
