// The interface of each instruction set's kernels: operations cut into pieces for a pool of threads. Products with f32
// and bf16 matrices are made for few tokens; the others take any number.
//
// T tokens, R rows of the stored weight, C columns, N query heads, K KV heads, S positions, d head width. All sizes and
// strides count elements. How a token's result is computed never depends on the other tokens, on the piece or on the
// thread: so neither do its bits.
#ifndef TPIEDGE_KERNELS_H
#define TPIEDGE_KERNELS_H

#include <stdint.h>

#include "kv.h"

namespace tpiedge {

// That share x, computed with one hand-over to the pool.
constexpr int MAX_PRODUCTS = 4;  // as in library.py

struct Product {
    const float *x;  // project: [T, C], contract: [T, R]
    const void *w;   // [R, C], f32 or bf16
    float *y;        // project: [T, R], contract: [T, C]; contiguous
    int64_t w_stride;
    int64_t tokens;
    int64_t rows;
    int64_t cols;
    int64_t x_stride;  // from one token to the next
};

// Computes the outputs [first, last) of every token: rows of w for project, columns of w for contract.
using ProductKernel = void (*)(const Product &, int64_t first, int64_t last);

// Rows of x at two strides, [tokens, heads, width]; the result is contiguous.
struct Rows {
    const float *x;
    float *y;
    int64_t token_stride;
    int64_t head_stride;
    int64_t tokens;
    int64_t heads;
    int64_t width;
};

// Of a router: y [T, experts] = x [T, width] @ router [experts, width].T
struct Logits {
    const float *x;
    const float *router;
    float *y;
    int64_t experts;
    int64_t width;
};

struct Kernels {
    ProductKernel project_f32;
    ProductKernel project_bf16;
    ProductKernel contract_f32;
    ProductKernel contract_bf16;
    // y = weight * (x * rsqrt(mean(x^2) + eps)) of each row
    void (*rms_norm)(const Rows &, const float *weight, float eps);
    // The first `rotated` columns of each row; then all are multiplied by the token's factor, if there are factors.
    void (*rope)(const Rows &, const Rotation &, int64_t rotated);
    // y = activation(gate) * up, where GPT_OSS takes clamp(up) + 1; without `up`, y = activation(gate)
    void (*activate)(const float *gate, const float *up, float *y, int64_t count, int64_t activation);
    // Of some tokens and experts.
    void (*logits)(const Logits &, int64_t first_token, int64_t last_token, int64_t first, int64_t last);
    KVKernels kv;
};

// Null where the build or the CPU lacks the instruction set.
const Kernels *portable_kernels();
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();
const Kernels *neon_kernels();

}  // namespace tpiedge

#endif
