// The KV cache, which lies in pages: attention over it, and appending to it (kv_format.py says how a row is stored,
// kv_pages.py where). Shapes as in kernels.h.
#ifndef TPIEDGE_KV_H
#define TPIEDGE_KV_H

#include <stdint.h>

#include <type_traits>

#include "interface.h"

namespace tpiedge {

// How keys and values are stored. The numbering of _FORMATS in kv_pages.py.
enum KVFormat { KV_F32, KV_BF16, KV_Q8, KV_Q4, KV_FORMATS };

struct Attention {
    const float *q;             // [T, N, d], contiguous, of all spans
    float *y;                   // as q
    const int64_t *head_start;  // [K + 1]: query heads [head_start[j], head_start[j + 1]) belong to KV head j
    PageLayout layout;
    int64_t heads;
    int64_t window;  // a query sees its last `window` keys, itself included
    float scale;
    float cap;  // a score becomes cap * tanh(score / cap), unless this is 0
    const float *sinks;  // of each query head a score without a key, or null
};

// The query heads [first, last) of one KV head, for `tokens` tokens of the span from its token `token` on.
using AttentionKernel = void (*)(const Attention &, const Span &, int64_t token, int64_t tokens, int64_t kv_head,
                                 int64_t first, int64_t last);

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

// Where the key of a position of one KV head is; the next positions of the page follow. Its own copy in every source, for
// the CPU that this is compiled for.
static inline unsigned char *key_at(const PageLayout &layout, const Span &span, int64_t kv_head, int64_t position) {
    const int64_t page = span.pages[position / layout.positions];
    return reinterpret_cast<unsigned char *>(page + layout.layer_offset + kv_head * layout.head_bytes +
                                             position % layout.positions * layout.row_bytes);
}

constexpr int64_t MAX_HEAD_WIDTH = 512;  // as in shared_library.py
// Query heads times tokens that a piece of work takes at most, unless it is one token.
constexpr int64_t ATTENTION_ROWS = 32;

}  // namespace tpiedge

#endif
