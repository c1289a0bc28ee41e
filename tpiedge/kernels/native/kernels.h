// The parts of the native kernels: a product of few tokens with a weight matrix, cut into pieces for a pool of threads.
//
// T tokens, R rows of the stored weight, C columns. All sizes and strides count elements. The order in which a result
// is summed depends on R and C only, never on T, on the piece or on the thread: so neither do its bits.
#ifndef TPIEDGE_KERNELS_H
#define TPIEDGE_KERNELS_H

#include <stdint.h>

namespace tpiedge {

struct Product {
    const float *x;  // project: [T, C], contract: [T, R]; contiguous
    const void *w;   // [R, C], f32 or bf16
    float *y;        // project: [T, R], contract: [T, C]; contiguous
    int64_t w_stride;
    int64_t tokens;
    int64_t rows;
    int64_t cols;
};

// Computes the outputs [first, last) of every token: rows of w for project, columns of w for contract.
using Kernel = void (*)(const Product &, int64_t first, int64_t last);

struct Kernels {
    Kernel project_f32;
    Kernel project_bf16;
    Kernel contract_f32;
    Kernel contract_bf16;
};

// Null where the build or the CPU lacks the instruction set.
const Kernels *portable_kernels();
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();

}  // namespace tpiedge

#endif
