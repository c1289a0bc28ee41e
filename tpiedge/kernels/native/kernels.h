// The parts of the native kernels: operations of few tokens, cut into pieces for a pool of threads.
//
// T tokens, R rows of the stored weight, C columns, N query heads, K KV heads, S positions, d head width. All sizes and
// strides count elements. How a token's result is computed never depends on the other tokens, on the piece or on the
// thread: so neither do its bits.
#ifndef TPIEDGE_KERNELS_H
#define TPIEDGE_KERNELS_H

#include <stdint.h>

namespace tpiedge {

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

struct Attention {
    const float *q;             // [T, N, d], contiguous
    const void *k;              // [K, S, d] at the strides below, f32 or bf16
    const void *v;              // as k
    float *y;                   // [T, N, d], contiguous
    const int64_t *head_start;  // [K + 1]: query heads [head_start[j], head_start[j + 1]) belong to KV head j
    int64_t k_head_stride;
    int64_t k_stride;
    int64_t v_head_stride;
    int64_t v_stride;
    int64_t heads;
    int64_t width;
    int64_t offset;  // the key index of the first query
    int64_t window;  // a query sees its last `window` keys, itself included
    float scale;
};

constexpr int64_t MAX_HEAD_WIDTH = 256;  // as in library.py

struct Kernels {
    ProductKernel project_f32;
    ProductKernel project_bf16;
    ProductKernel contract_f32;
    ProductKernel contract_bf16;
    // y = weight * (x * rsqrt(mean(x^2) + eps)) of each row
    void (*rms_norm)(const Rows &, const float *weight, float eps);
    // The first `rotated` columns of each row; cos and sin are [tokens, rotated].
    void (*rope)(const Rows &, const float *cos, const float *sin, int64_t rotated);
    // y = silu(gate) * up
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t count);
    // The query heads of one KV head for one token.
    void (*attention_f32)(const Attention &, int64_t token, int64_t kv_head);
    void (*attention_bf16)(const Attention &, int64_t token, int64_t kv_head);
};

// Null where the build or the CPU lacks the instruction set.
const Kernels *portable_kernels();
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();

}  // namespace tpiedge

#endif
