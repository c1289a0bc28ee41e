// The attention block of quantised matrices as one call: the calls that attention_block.py names, one after the other.
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

// The tokens of one call: T of them from position `start` on, and keys and values from position 0 on.
struct Tokens {
    int64_t count;
    int64_t start;
    const float *cos;
    const float *sin;
};

// The rows of `x` [T, K, d] at the positions from `start` on.
void append(void *handle, const AttentionBlock &b, const Tokens &tokens, const float *x, uint8_t *rows) {
    const int64_t row = b.kv_heads * b.width;
    const int64_t size = b.stored == tpiedge::KV_F32 ? 4 : b.stored == tpiedge::KV_BF16 ? 2 : 1;
    uint8_t *first = rows + tokens.start * b.stride * size;
    if (b.stored == tpiedge::KV_Q8 || b.stored == tpiedge::KV_Q4) {
        tpiedge_kv_append(handle, x, first, b.stored == tpiedge::KV_Q8 ? 8 : 4, row, b.width, b.stride, b.head_stride,
                          tokens.count, b.kv_heads, b.width);
        return;
    }
    for (int64_t t = 0; t < tokens.count; t++)
        for (int64_t h = 0; h < b.kv_heads; h++, x += b.width) {
            uint8_t *at = first + (t * b.stride + h * b.head_stride) * size;
            if (b.stored == tpiedge::KV_F32) {
                memcpy(at, x, b.width * sizeof(float));
                continue;
            }
            uint16_t *rounded = reinterpret_cast<uint16_t *>(at);
            for (int64_t c = 0; c < b.width; c++) rounded[c] = tpiedge::bf16(x[c]);
        }
}

// Norm, where there is one, and rotation of [T, n, d] in `x`; the result is in `x` or in `other`, which is returned.
float *turned(void *handle, const AttentionBlock &b, const Tokens &tokens, float *x, float *other, int64_t heads,
              const float *norm) {
    const int64_t row = heads * b.width;
    if (norm) {
        tpiedge_rms_norm(handle, x, other, row, b.width, tokens.count, heads, b.width, norm, static_cast<float>(b.eps));
        float *normed = other;
        other = x;
        x = normed;
    }
    tpiedge_rope(handle, x, other, row, b.width, tokens.count, heads, b.width, tokens.cos, tokens.sin, b.rotated);
    return other;
}

}  // namespace

// y as that of tpiedge_panels_contract. `scratch`: T (H + 2 (n + K) d + K d) floats. Without memory for q, k and v the cache
// stays as it was.
TPIEDGE_EXPORT int tpiedge_panels_attention(void *handle, const AttentionBlock *block, const float *x, void *y,
                                            int64_t count, int64_t start, const float *cos, const float *sin,
                                            uint8_t *keys, uint8_t *values, float *scratch, int wide) {
    const AttentionBlock &b = *block;
    const Tokens tokens{count, start, cos, sin};
    const int64_t *head_start = reinterpret_cast<const int64_t *>(block + 1);
    const int64_t queries = count * b.heads * b.width, kv = count * b.kv_heads * b.width;
    float *normed = scratch, *q = normed + count * b.hidden, *q_other = q + queries;
    float *k = q_other + queries, *k_other = k + kv, *v = k_other + kv;
    tpiedge_rms_norm(handle, x, normed, b.hidden, 0, count, 1, b.hidden, b.norm, static_cast<float>(b.eps));
    PanelWeight qkv[3], o = b.o;
    memcpy(qkv, b.qkv, sizeof qkv);
    qkv[0].y = q;
    qkv[1].y = k;
    qkv[2].y = v;
    o.y = y;
    if (const int status = tpiedge_panels_project(handle, normed, count, qkv, 3)) return status;
    const float *turned_q = turned(handle, b, tokens, q, q_other, b.heads, b.q_norm);
    append(handle, b, tokens, turned(handle, b, tokens, k, k_other, b.kv_heads, b.k_norm), keys);
    append(handle, b, tokens, v, values);
    float *out = turned_q == q ? q_other : q;
    tpiedge_attention(handle, turned_q, keys, values, out, static_cast<int>(b.stored), head_start, b.head_stride,
                      b.stride, b.head_stride, b.stride, count, b.heads, b.kv_heads, b.width, start, b.window,
                      static_cast<float>(b.scale));
    return tpiedge_panels_contract(handle, out, count, &o, wide);
}
