// The C interface of the KV cache: attention over it, and appending to it where it is quantised. The callers in Python
// check pointers and sizes, as for interface.cpp.
#include "context.h"

using tpiedge::Append;
using tpiedge::Attention;
using tpiedge::Context;

namespace {

// Multiplications of an attention (one of its two products) from which waking other threads pays.
constexpr int64_t WORTH_SHARING = 1 << 18;
constexpr int64_t HEADS_AT_ONCE = 4;  // a multiple of every instruction set's TOKENS

struct AttentionJob {
    Attention attention;
    tpiedge::AttentionKernel kernel;
    int64_t tokens;
    int64_t kv_heads;
    int64_t tile;  // tokens of a piece
    int64_t tiles;
    int64_t part;  // query heads of a piece
    int64_t parts;
};

void compute_attention(const void *context, int64_t index) {
    const AttentionJob &job = *static_cast<const AttentionJob *>(context);
    // The last tokens see the most keys: their pieces come first.
    const int64_t each = job.kv_heads * job.parts, kv_head = index % each / job.parts;
    const int64_t token = (job.tiles - 1 - index / each) * job.tile;
    const int64_t tokens = job.tokens - token < job.tile ? job.tokens - token : job.tile;
    const int64_t *start = job.attention.head_start + kv_head;
    const int64_t first = start[0] + index % job.parts * job.part;
    const int64_t last = start[1] - first < job.part ? start[1] : first + job.part;
    if (first < last) job.kernel(job.attention, token, tokens, kv_head, first, last);
}

int64_t pieces_of(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

// Pieces are as large as can share one reading of the keys, unless some threads would have nothing to do.
void divide(AttentionJob &job, int64_t threads) {
    const int64_t *head_start = job.attention.head_start;
    int64_t heads = 1;  // of the KV head that has the most
    for (int64_t j = 0; j < job.kv_heads; j++)
        if (head_start[j + 1] - head_start[j] > heads) heads = head_start[j + 1] - head_start[j];
    job.tile = heads < tpiedge::ATTENTION_ROWS ? tpiedge::ATTENTION_ROWS / heads : 1;
    job.tiles = pieces_of(job.tokens, job.tile);
    const int64_t readings = job.tiles * job.kv_heads;
    const int64_t wanted = readings < threads && readings ? pieces_of(threads, readings) : 1;
    job.part = pieces_of(pieces_of(heads, wanted), HEADS_AT_ONCE) * HEADS_AT_ONCE;
    job.parts = pieces_of(heads, job.part);
}

}  // namespace

// `format`: a KVFormat. Strides count numbers, or bytes where they are quantised.
TPIEDGE_EXPORT void tpiedge_attention(void *handle, const float *q, const void *k, const void *v, float *y, int format,
                                      const int64_t *head_start, int64_t k_head_stride, int64_t k_stride,
                                      int64_t v_head_stride, int64_t v_stride, int64_t tokens, int64_t heads,
                                      int64_t kv_heads, int64_t width, int64_t offset, int64_t window, float scale) {
    Context &context = *static_cast<Context *>(handle);
    const int64_t size = format == tpiedge::KV_F32 ? 4 : format == tpiedge::KV_BF16 ? 2 : 1;
    Attention attention{};
    attention.q = q;
    attention.k = static_cast<const unsigned char *>(k);
    attention.v = static_cast<const unsigned char *>(v);
    attention.y = y;
    attention.head_start = head_start;
    attention.k_head_stride = k_head_stride * size;
    attention.k_stride = k_stride * size;
    attention.v_head_stride = v_head_stride * size;
    attention.v_stride = v_stride * size;
    attention.heads = heads;
    attention.width = width;
    attention.offset = offset;
    attention.window = window;
    attention.scale = scale;
    AttentionJob job{attention, context.kernels->kv.attention[format], tokens, kv_heads, 0, 0, 0, 0};
    divide(job, context.pool.threads());
    const int64_t seen = offset + tokens < window ? offset + tokens : window;
    const int64_t pieces = job.tiles * kv_heads * job.parts;
    if (seen * tokens * heads * width >= WORTH_SHARING)
        context.pool.run(compute_attention, &job, pieces);
    else
        for (int64_t piece = 0; piece < pieces; piece++) compute_attention(&job, piece);
}

// Keys or values in codes of `bits` bits (8 or 4). The strides of x count numbers, the others bytes.
TPIEDGE_EXPORT void tpiedge_kv_append(void *handle, const float *x, void *to, int bits, int64_t x_token_stride,
                                      int64_t x_head_stride, int64_t token_stride, int64_t head_stride, int64_t tokens,
                                      int64_t heads, int64_t width) {
    Context &context = *static_cast<Context *>(handle);
    const auto kernel = bits == 8 ? context.kernels->kv.append_q8 : context.kernels->kv.append_q4;
    tpiedge::share_rows(context.pool, tokens, heads * width, [&](int64_t first, int64_t last) {
        kernel(Append{x + first * x_token_stride, static_cast<unsigned char *>(to) + first * token_stride, x_token_stride,
                      x_head_stride, token_stride, head_stride, last - first, heads, width});
    });
}
