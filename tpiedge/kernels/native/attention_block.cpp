// The attention block of quantised matrices as one call: the calls that attention_block.py names, one after the other.
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

// The products of a matrix of q or k, of which the heads [first, first + count) are used.
struct Heads {
    float *x;  // [T, row]
    float *other;
    int64_t row;
    int64_t first;
    int64_t count;
    const float *norm;
};

// Norm, where there is one, and rotation of [T, n, d]; the result is in `x` or in `other`, which is returned.
float *turned(void *handle, const AttentionBlock &b, int64_t tokens, const Rotation &rotation, const Heads &of) {
    const int64_t width = b.layout.width;
    float *x = of.x, *other = of.other;
    if (of.norm) {
        const int64_t normed = b.whole ? of.row : width;
        tpiedge_rms_norm(handle, x, other, of.row, normed, tokens, of.row / normed, normed, of.norm,
                         static_cast<float>(b.eps));
        x = of.other;
        other = of.x;
    }
    tpiedge_rope(handle, x + of.first * width, other, of.row, width, tokens, of.count, width, &rotation, b.rotated);
    return other;
}

// Values [T, K, d] in `v`: the products of v, or those of k before its norm.
void make_values(void *handle, const AttentionBlock &b, int64_t tokens, const Heads &keys, float *v) {
    const int64_t width = b.layout.width, row = keys.count * width;
    if (b.projections == 2)
        for (int64_t t = 0; t < tokens; t++)
            memcpy(v + t * row, keys.x + t * keys.row + keys.first * width, row * sizeof *v);
    if (b.v_norm)
        tpiedge_rms_norm(handle, v, v, row, width, tokens, keys.count, width, b.v_norm, static_cast<float>(b.eps));
}

}  // namespace

// y as that of tpiedge_panels_contract. The keys and values of all spans are appended before any token attends. `scratch`:
// T (H + 2 (rows of q and k) + K d) floats. Without memory for q, k and v the cache stays as it was.
TPIEDGE_EXPORT int tpiedge_panels_attention(void *handle, const AttentionBlock *block, const float *x, void *y,
                                            const Span *spans, int64_t count, const Rotation *rotation, float *scratch,
                                            int wide) {
    const AttentionBlock &b = *block;
    const PageLayout &layout = b.layout;
    const int64_t tokens = tpiedge::tokens_of(spans, count);
    const int64_t *head_start = reinterpret_cast<const int64_t *>(block + 1);
    PanelWeight qkv[3], o = b.o;
    memcpy(qkv, b.qkv, sizeof qkv);
    const int64_t q_row = qkv[0].rows, k_row = b.projections > 1 ? qkv[1].rows : 0, kv_row = layout.kv_heads * layout.width;
    float *normed = scratch, *q = normed + tokens * b.hidden, *k = q + 2 * tokens * q_row, *v = k + 2 * tokens * k_row;
    const Heads queries{q, q + tokens * q_row, q_row, b.first_q, b.heads, b.q_norm};
    const Heads keys{k, k + tokens * k_row, k_row, b.first_k, layout.kv_heads, b.k_norm};
    qkv[0].y = q;
    qkv[1].y = k;
    qkv[2].y = v;
    o.y = y;
    if (b.norm) {
        tpiedge_rms_norm(handle, x, normed, b.hidden, 0, tokens, 1, b.hidden, b.norm, static_cast<float>(b.eps));
        x = normed;
    }
    if (const int status = tpiedge_panels_project(handle, x, tokens, qkv, b.projections)) return status;
    const float *turned_q = turned(handle, b, tokens, *rotation, queries);
    if (b.projections > 1) {
        make_values(handle, b, tokens, keys, v);
        const Rotation of_keys{rotation->cos, rotation->sin, nullptr};
        const float *turned_k = turned(handle, b, tokens, of_keys, keys);
        tpiedge_kv_append(handle, turned_k, v, &layout, spans, count, kv_row, layout.width, kv_row, layout.width);
    }
    float *out = turned_q == queries.x ? queries.other : queries.x;
    tpiedge_attention(handle, turned_q, out, &layout, spans, count, head_start, b.heads, b.window,
                      static_cast<float>(b.scale), static_cast<float>(b.cap), b.sinks);
    return tpiedge_panels_contract(handle, out, tokens, &o, wide);
}
