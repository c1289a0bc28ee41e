// The attention block of quantised matrices as one call: the calls that attention_block.py names, one after the other.
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

// The tokens of one call: T of all spans.
struct Tokens {
    int64_t count;
    const float *cos;
    const float *sin;
};

// Norm, where there is one, and rotation of [T, n, d] in `x`; the result is in `x` or in `other`, which is returned.
float *turned(void *handle, const AttentionBlock &b, const Tokens &tokens, float *x, float *other, int64_t heads,
              const float *norm) {
    const int64_t width = b.layout.width, row = heads * width;
    if (norm) {
        tpiedge_rms_norm(handle, x, other, row, width, tokens.count, heads, width, norm, static_cast<float>(b.eps));
        float *normed = other;
        other = x;
        x = normed;
    }
    tpiedge_rope(handle, x, other, row, width, tokens.count, heads, width, tokens.cos, tokens.sin, b.rotated);
    return other;
}

}  // namespace

// y as that of tpiedge_panels_contract; cos and sin are [T, r]. The keys and values of all spans are appended before any
// token attends. `scratch`: T (H + 2 (n + K) d + K d) floats. Without memory for q, k and v the cache stays as it was.
TPIEDGE_EXPORT int tpiedge_panels_attention(void *handle, const AttentionBlock *block, const float *x, void *y,
                                            const Span *spans, int64_t count, const float *cos, const float *sin,
                                            float *scratch, int wide) {
    const AttentionBlock &b = *block;
    const PageLayout &layout = b.layout;
    const Tokens tokens{tpiedge::tokens_of(spans, count), cos, sin};
    const int64_t *head_start = reinterpret_cast<const int64_t *>(block + 1);
    const int64_t kv_row = layout.kv_heads * layout.width;
    const int64_t queries = tokens.count * b.heads * layout.width, kv = tokens.count * kv_row;
    float *normed = scratch, *q = normed + tokens.count * b.hidden, *q_other = q + queries;
    float *k = q_other + queries, *k_other = k + kv, *v = k_other + kv;
    tpiedge_rms_norm(handle, x, normed, b.hidden, 0, tokens.count, 1, b.hidden, b.norm, static_cast<float>(b.eps));
    PanelWeight qkv[3], o = b.o;
    memcpy(qkv, b.qkv, sizeof qkv);
    qkv[0].y = q;
    qkv[1].y = k;
    qkv[2].y = v;
    o.y = y;
    if (const int status = tpiedge_panels_project(handle, normed, tokens.count, qkv, 3)) return status;
    const float *turned_q = turned(handle, b, tokens, q, q_other, b.heads, b.q_norm);
    const float *turned_k = turned(handle, b, tokens, k, k_other, layout.kv_heads, b.k_norm);
    tpiedge_kv_append(handle, turned_k, v, &layout, spans, count, kv_row, layout.width, kv_row, layout.width);
    float *out = turned_q == q ? q_other : q;
    tpiedge_attention(handle, turned_q, out, &layout, spans, count, head_start, b.heads, b.window,
                      static_cast<float>(b.scale));
    return tpiedge_panels_contract(handle, out, tokens.count, &o, wide);
}
