// The KV cache: attention over it, and appending to it where it is quantised (kv_format.py says how). Shapes as in
// kernels.h.
#ifndef TPIEDGE_KV_H
#define TPIEDGE_KV_H

#include <stdint.h>

#include <type_traits>

namespace tpiedge {

// How keys and values are stored. The numbering of _STORED in attention.py.
enum KVFormat { KV_F32, KV_BF16, KV_Q8, KV_Q4, KV_FORMATS };

struct Attention {
    const float *q;             // [T, N, d], contiguous
    const unsigned char *k;     // [K, S] rows of d numbers at the strides below, in bytes
    const unsigned char *v;     // as k
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

// The query heads [first, last) of one KV head, for `tokens` tokens from `token` on.
using AttentionKernel = void (*)(const Attention &, int64_t token, int64_t tokens, int64_t kv_head, int64_t first,
                                 int64_t last);

// Rows of x at two strides, to rows at two strides in bytes.
struct Append {
    const float *x;  // [T, K, d]
    unsigned char *to;
    int64_t x_token_stride;
    int64_t x_head_stride;
    int64_t token_stride;
    int64_t head_stride;
    int64_t tokens;
    int64_t heads;
    int64_t width;
};

struct KVKernels {
    AttentionKernel attention[KV_FORMATS];
    void (*append_q8)(const Append &);
    void (*append_q4)(const Append &);
};

constexpr int64_t MAX_HEAD_WIDTH = 256;  // as in library.py
// Query heads times tokens that a piece of work takes at most, unless it is one token.
constexpr int64_t ATTENTION_ROWS = 32;

}  // namespace tpiedge

#endif
