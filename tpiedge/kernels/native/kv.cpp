// The C interface of the KV cache: attention over its pages, and appending to them. The callers in Python check pointers
// and sizes, as for interface.cpp.
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
    const Span *spans;
    int64_t tile;  // tokens of a piece
    int64_t part;  // query heads of a piece
    int64_t parts;
};

int64_t pieces_of(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

int64_t tiles_of(const Span &span, int64_t tile) { return span.tokens <= tile ? 1 : pieces_of(span.tokens, tile); }

// Pieces of one span follow each other. Its last tokens see the most keys: their pieces come first.
void compute_attention(const void *context, int64_t index) {
    const AttentionJob &job = *static_cast<const AttentionJob *>(context);
    const int64_t each = job.attention.layout.kv_heads * job.parts, kv_head = index % each / job.parts;
    int64_t after = index / each;  // tiles
    const Span *span = job.spans;
    for (; after >= tiles_of(*span, job.tile); span++) after -= tiles_of(*span, job.tile);
    const int64_t token = (tiles_of(*span, job.tile) - 1 - after) * job.tile;
    const int64_t tokens = span->tokens - token < job.tile ? span->tokens - token : job.tile;
    const int64_t *start = job.attention.head_start + kv_head;
    const int64_t first = start[0] + index % job.parts * job.part;
    const int64_t last = start[1] - first < job.part ? start[1] : first + job.part;
    if (first < last) job.kernel(job.attention, *span, token, tokens, kv_head, first, last);
}

// Pieces are as large as can share one reading of the keys, unless some threads would have nothing to do. Returns how
// many there are.
int64_t divide(AttentionJob &job, int64_t count, int64_t threads) {
    const int64_t *head_start = job.attention.head_start, kv_heads = job.attention.layout.kv_heads;
    int64_t heads = 1;  // of the KV head that has the most
    for (int64_t j = 0; j < kv_heads; j++)
        if (head_start[j + 1] - head_start[j] > heads) heads = head_start[j + 1] - head_start[j];
    job.tile = heads < tpiedge::ATTENTION_ROWS ? tpiedge::ATTENTION_ROWS / heads : 1;
    int64_t readings = 0;
    for (const Span *span = job.spans; span < job.spans + count; span++) readings += tiles_of(*span, job.tile) * kv_heads;
    const int64_t wanted = readings < threads && readings ? pieces_of(threads, readings) : 1;
    job.part = pieces_of(pieces_of(heads, wanted), HEADS_AT_ONCE) * HEADS_AT_ONCE;
    job.parts = pieces_of(heads, job.part);
    return readings * job.parts;
}

// Pairs of a query and a key, as if every query saw as many keys as the last one of its span.
int64_t seen(const Span *spans, int64_t count, int64_t window) {
    int64_t pairs = 0;
    for (const Span *span = spans; span < spans + count; span++) {
        const int64_t stop = span->start + span->tokens;
        pairs += span->tokens * (stop < window ? stop : window);
    }
    return pairs;
}

void copy_rows(const Append &a) {
    for (int64_t t = 0; t < a.tokens; t++)
        for (int64_t h = 0; h < a.heads; h++)
            memcpy(a.to + t * a.token_stride + h * a.head_stride, a.x + t * a.x_token_stride + h * a.x_head_stride,
                   a.width * sizeof(float));
}

void round_rows(const Append &a) {
    for (int64_t t = 0; t < a.tokens; t++)
        for (int64_t h = 0; h < a.heads; h++) {
            const float *x = a.x + t * a.x_token_stride + h * a.x_head_stride;
            uint16_t *to = reinterpret_cast<uint16_t *>(a.to + t * a.token_stride + h * a.head_stride);
            for (int64_t c = 0; c < a.width; c++) to[c] = tpiedge::bf16(x[c]);
        }
}

using AppendKernel = void (*)(const Append &);

AppendKernel append_kernel(const Context &context, int64_t format) {
    switch (format) {
        case tpiedge::KV_F32: return copy_rows;
        case tpiedge::KV_BF16: return round_rows;
        case tpiedge::KV_Q8: return context.kernels->kv.append_q8;
        default: return context.kernels->kv.append_q4;
    }
}

// Keys, or values, of all spans: rows of x, at strides in numbers.
struct Source {
    const float *x;
    int64_t token_stride;
    int64_t head_stride;
    int64_t to;  // bytes from a key to what x is of
};

// The span's rows among [first, last) of all, page by page.
void append_span(AppendKernel kernel, const Source &from, const PageLayout &layout, const Span &span, int64_t first,
                 int64_t last) {
    const int64_t stop = last - span.row < span.tokens ? last - span.row : span.tokens;
    for (int64_t token = first > span.row ? first - span.row : 0; token < stop;) {
        const int64_t position = span.start + token, room = layout.positions - position % layout.positions;
        const int64_t run = stop - token < room ? stop - token : room;
        kernel(Append{from.x + (span.row + token) * from.token_stride,
                      tpiedge::key_at(layout, span, 0, position) + from.to, from.token_stride, from.head_stride,
                      layout.row_bytes, layout.head_bytes, run, layout.kv_heads, layout.width});
        token += run;
    }
}

}  // namespace

// y [T, N, d] of the queries of all spans. Threads take spans in this order: they end together best if the longest sequences
// come first.
TPIEDGE_EXPORT void tpiedge_attention(void *handle, const float *q, float *y, const PageLayout *layout,
                                      const Span *spans, int64_t count, const int64_t *head_start, int64_t heads,
                                      int64_t window, float scale, float cap, const float *sinks) {
    Context &context = *static_cast<Context *>(handle);
    AttentionJob job{Attention{q, y, head_start, *layout, heads, window, scale, cap, sinks},
                     context.kernels->kv.attention[layout->format], spans, 0, 0, 0};
    const int64_t pieces = divide(job, count, context.pool.threads());
    if (seen(spans, count, window) * heads * layout->width >= WORTH_SHARING)
        context.pool.run(compute_attention, &job, pieces);
    else
        for (int64_t piece = 0; piece < pieces; piece++) compute_attention(&job, piece);
}

// Keys and values [T, K, d] of all spans, to their pages. Strides count numbers.
TPIEDGE_EXPORT void tpiedge_kv_append(void *handle, const float *k, const float *v, const PageLayout *layout,
                                      const Span *spans, int64_t count, int64_t k_token_stride, int64_t k_head_stride,
                                      int64_t v_token_stride, int64_t v_head_stride) {
    Context &context = *static_cast<Context *>(handle);
    const AppendKernel kernel = append_kernel(context, layout->format);
    const Source sources[] = {{k, k_token_stride, k_head_stride, 0},
                              {v, v_token_stride, v_head_stride, layout->value_bytes}};
    const int64_t numbers = 2 * layout->kv_heads * layout->width;  // of a token
    tpiedge::share_rows(context.pool, tpiedge::tokens_of(spans, count), numbers, [&](int64_t first, int64_t last) {
        for (const Span *span = spans; span < spans + count; span++)
            for (const Source &from : sources) append_span(kernel, from, *layout, *span, first, last);
    });
}
