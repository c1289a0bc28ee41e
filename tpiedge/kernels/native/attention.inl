// Attention of one token's query heads against one KV head, in f32 (V as in kernels.inl): keys in blocks, with the
// softmax's maximum and sum carried from block to block (online softmax; Dao, FlashAttention, algorithm 1).
//
// A query's blocks start at the first key it sees, so its bits are those it would have alone.

namespace {

using tpiedge::Attention;
using tpiedge::MAX_HEAD_WIDTH;

constexpr int KEYS = 64;         // of a block: its keys and values stay in the L1 or L2 cache
constexpr int MAX_HEADS = 16;    // query heads that share one reading of the keys
constexpr int KEYS_AT_ONCE = 4;  // as many as V::sum4 sums

// What is known of a query head after some keys.
struct Online {
    float highest[MAX_HEADS];
    float sum[MAX_HEADS];
    float weight[MAX_HEADS][KEYS];  // the scores of the present block, then e^(score - highest)
    float out[MAX_HEADS][MAX_HEAD_WIDTH];
};

template <class V, class W, int HEADS>
inline void scores(const float *q, const W *k, int64_t stride, int64_t width, float scale, int count,
                   float (*to)[KEYS]) {
    for (int s = 0; s < count; s += KEYS_AT_ONCE) {
        const W *key[KEYS_AT_ONCE];  // a short last group repeats its last key
        for (int i = 0; i < KEYS_AT_ONCE; i++) key[i] = k + (s + i < count ? s + i : count - 1) * stride;
        typename V::Reg acc[HEADS][KEYS_AT_ONCE];
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < KEYS_AT_ONCE; i++) acc[h][i] = V::zero();
        int64_t c = 0;
        for (; c + V::lanes <= width; c += V::lanes)
            for (int h = 0; h < HEADS; h++) {
                const auto in = V::load(q + h * width + c);
                for (int i = 0; i < KEYS_AT_ONCE; i++) acc[h][i] = V::fma(in, V::load(key[i] + c), acc[h][i]);
            }
        const int left = static_cast<int>(width - c);
        if (left)
            for (int h = 0; h < HEADS; h++) {
                const auto in = V::load_some(q + h * width + c, left);
                for (int i = 0; i < KEYS_AT_ONCE; i++)
                    acc[h][i] = V::fma(in, V::load_some(key[i] + c, left), acc[h][i]);
            }
        for (int h = 0; h < HEADS; h++) {
            V::sum4(acc[h], to[h] + s);
            for (int i = 0; i < KEYS_AT_ONCE; i++) to[h][s + i] *= scale;
        }
    }
}

// Turns a block's scores into weights; returns what the earlier blocks' sums are to be multiplied with.
template <class V>
inline float soften(float *weight, int count, float *highest, float *sum) {
    float high = *highest;
    for (int s = 0; s < count; s++) high = high > weight[s] ? high : weight[s];
    auto total = V::zero();
    for (int s = 0; s < count; s += V::lanes) {
        const auto grown = exponential<V>(V::sub(V::load(weight + s), V::broadcast(high)));
        V::store(weight + s, grown);
        total = V::add(total, count - s < V::lanes ? V::load_some(weight + s, count - s) : grown);
    }
    const float kept = *highest == high ? 1.0f : expf(*highest - high);
    *sum = *sum * kept + V::sum(total);
    *highest = high;
    return kept;
}

template <class V, class W, int HEADS, int VECTORS, bool SOME>
inline void mix_tile(const float (*weight)[KEYS], const float *kept, const W *v, int64_t stride, int count, int some,
                     float (*out)[MAX_HEAD_WIDTH], int64_t col) {
    typename V::Reg acc[HEADS][VECTORS];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < VECTORS; i++)
            acc[h][i] = V::mul(V::broadcast(kept[h]), get<V, SOME>(out[h] + col + i * V::lanes, some));
    v += col;
    for (int s = 0; s < count; s++, v += stride) {
        typename V::Reg value[VECTORS];
        for (int i = 0; i < VECTORS; i++) value[i] = get<V, SOME>(v + i * V::lanes, some);
        for (int h = 0; h < HEADS; h++) {
            const auto factor = V::broadcast(weight[h][s]);
            for (int i = 0; i < VECTORS; i++) acc[h][i] = V::fma(factor, value[i], acc[h][i]);
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < VECTORS; i++) {
            if (SOME)
                V::store_some(out[h] + col + i * V::lanes, acc[h][i], some);
            else
                V::store(out[h] + col + i * V::lanes, acc[h][i]);
        }
}

// out = kept * out + weight * v
template <class V, class W, int HEADS>
inline void mix(const float (*weight)[KEYS], const float *kept, const W *v, int64_t stride, int64_t width, int count,
                float (*out)[MAX_HEAD_WIDTH]) {
    int64_t c = 0;
    for (; c + V::VECTORS * V::lanes <= width; c += V::VECTORS * V::lanes)
        mix_tile<V, W, HEADS, V::VECTORS, false>(weight, kept, v, stride, count, V::lanes, out, c);
    for (; c + V::lanes <= width; c += V::lanes)
        mix_tile<V, W, HEADS, 1, false>(weight, kept, v, stride, count, V::lanes, out, c);
    if (c < width)
        mix_tile<V, W, HEADS, 1, true>(weight, kept, v, stride, count, static_cast<int>(width - c), out, c);
}

template <class V, class W, int HEADS>
inline void block(const Attention &a, const float *q, const W *k, const W *v, int count, int head, Online &online) {
    scores<V, W, HEADS>(q + head * a.width, k, a.k_stride, a.width, a.scale, count, online.weight + head);
    float kept[HEADS];
    for (int h = 0; h < HEADS; h++)
        kept[h] = soften<V>(online.weight[head + h], count, &online.highest[head + h], &online.sum[head + h]);
    mix<V, W, HEADS>(online.weight + head, kept, v, a.v_stride, a.width, count, online.out + head);
}

// Query heads [first, first + heads), at most MAX_HEADS of one KV head.
template <class V, class W>
void attend(const Attention &a, int64_t token, int64_t kv_head, int64_t first, int heads) {
    const int64_t stop = a.offset + token + 1;
    const int64_t start = stop > a.window ? stop - a.window : 0;
    const float *q = a.q + (token * a.heads + first) * a.width;
    const W *k = static_cast<const W *>(a.k) + kv_head * a.k_head_stride;
    const W *v = static_cast<const W *>(a.v) + kv_head * a.v_head_stride;
    Online online;
    for (int h = 0; h < heads; h++) {
        online.highest[h] = -INFINITY;
        online.sum[h] = 0.0f;
        memset(online.out[h], 0, a.width * sizeof(float));
        memset(online.weight[h], 0, sizeof online.weight[h]);
    }
    for (int64_t s = start; s < stop; s += KEYS) {
        const int count = static_cast<int>(stop - s < KEYS ? stop - s : KEYS);
        int head = 0;
        for (; head + V::TOKENS <= heads; head += V::TOKENS)
            block<V, W, V::TOKENS>(a, q, k + s * a.k_stride, v + s * a.v_stride, count, head, online);
        for (; head < heads; head++)
            block<V, W, 1>(a, q, k + s * a.k_stride, v + s * a.v_stride, count, head, online);
    }
    float *y = a.y + (token * a.heads + first) * a.width;
    for (int h = 0; h < heads; h++)
        for (int64_t c = 0; c < a.width; c++) y[h * a.width + c] = online.out[h][c] / online.sum[h];
}

template <class V, class W>
void attention(const Attention &a, int64_t token, int64_t kv_head) {
    const int64_t stop = a.head_start[kv_head + 1];
    for (int64_t head = a.head_start[kv_head]; head < stop; head += MAX_HEADS)
        attend<V, W>(a, token, kv_head, head, static_cast<int>(stop - head < MAX_HEADS ? stop - head : MAX_HEADS));
}

}  // namespace
