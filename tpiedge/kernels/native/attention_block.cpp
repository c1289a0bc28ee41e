// The attention block of quantised matrices as one call: the calls that attention_block.py names, one after the other.
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

// The rows of `x` [T, K, d] at the positions from `start` on.
void append(void *handle, const AttentionBlock &b, const float *x, const Cached &to) {
    const int64_t row = b.kv_heads * b.width;
    const int64_t size = b.stored == tpiedge::KV_F32 ? 4 : b.stored == tpiedge::KV_BF16 ? 2 : 1;
    unsigned char *first = to.rows + b.start * to.stride * size;
    if (b.stored == tpiedge::KV_Q8 || b.stored == tpiedge::KV_Q4) {
        tpiedge_kv_append(handle, x, first, b.stored == tpiedge::KV_Q8 ? 8 : 4, row, b.width, to.stride, to.head_stride,
                          b.tokens, b.kv_heads, b.width);
        return;
    }
    for (int64_t t = 0; t < b.tokens; t++)
        for (int64_t h = 0; h < b.kv_heads; h++, x += b.width) {
            unsigned char *at = first + (t * to.stride + h * to.head_stride) * size;
            if (b.stored == tpiedge::KV_F32) {
                memcpy(at, x, b.width * sizeof(float));
                continue;
            }
            uint16_t *rounded = reinterpret_cast<uint16_t *>(at);
            for (int64_t c = 0; c < b.width; c++) rounded[c] = tpiedge::bf16(x[c]);
        }
}

// Norm, where there is one, and rotation of [T, n, d] in `x`; the result is in `x` or in `other`, which is returned.
float *turned(void *handle, const AttentionBlock &b, float *x, float *other, int64_t heads, const float *norm) {
    const int64_t row = heads * b.width;
    if (norm) {
        tpiedge_rms_norm(handle, x, other, row, b.width, b.tokens, heads, b.width, norm, static_cast<float>(b.eps));
        float *normed = other;
        other = x;
        x = normed;
    }
    tpiedge_rope(handle, x, other, row, b.width, b.tokens, heads, b.width, b.cos, b.sin, b.rotated);
    return other;
}

}  // namespace

// `scratch`: T (H + 2 (n + K) d + K d) floats.
TPIEDGE_EXPORT void tpiedge_panels_attention(void *handle, const AttentionBlock *block, float *scratch) {
    const AttentionBlock &b = *block;
    const int64_t *head_start = reinterpret_cast<const int64_t *>(block + 1);
    const int64_t queries = b.tokens * b.heads * b.width, kv = b.tokens * b.kv_heads * b.width;
    float *normed = scratch, *q = normed + b.tokens * b.hidden, *q_other = q + queries;
    float *k = q_other + queries, *k_other = k + kv, *v = k_other + kv;
    tpiedge_rms_norm(handle, b.x, normed, b.hidden, 0, b.tokens, 1, b.hidden, b.norm, static_cast<float>(b.eps));
    PanelWeight qkv[3];
    memcpy(qkv, b.qkv, sizeof qkv);
    qkv[0].y = q;
    qkv[1].y = k;
    qkv[2].y = v;
    tpiedge_panels_project(handle, normed, b.tokens, qkv, 3);
    const float *turned_q = turned(handle, b, q, q_other, b.heads, b.q_norm);
    append(handle, b, turned(handle, b, k, k_other, b.kv_heads, b.k_norm), b.keys);
    append(handle, b, v, b.values);
    float *out = turned_q == q ? q_other : q;
    tpiedge_attention(handle, turned_q, b.keys.rows, b.values.rows, out, static_cast<int>(b.stored), head_start,
                      b.keys.head_stride, b.keys.stride, b.values.head_stride, b.values.stride, b.tokens, b.heads,
                      b.kv_heads, b.width, b.start, b.window, static_cast<float>(b.scale));
    tpiedge_panels_contract(handle, out, b.tokens, &b.o);
}
