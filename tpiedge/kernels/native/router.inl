// A router's logits. V as in kernels.inl, of sixteen lanes: column c is added in lane c % 16, its product rounded before, so
// numpy has the same bits (experts.py).

#include "compiler.h"

namespace {

// The next `count` columns: as many as lanes, or fewer.
template <class V, int T, int E>
TPIEDGE_INLINE void add_columns(const tpiedge::Logits &l, const float *x, const float *w, int count,
                                typename V::Reg (&sums)[T][E]) {
    typename V::Reg some[E];
    for (int e = 0; e < E; e++)
        some[e] = count < V::lanes ? V::load_some(w + e * l.width, count) : V::load(w + e * l.width);
    for (int t = 0; t < T; t++) {
        const auto in = count < V::lanes ? V::load_some(x + t * l.width, count) : V::load(x + t * l.width);
        for (int e = 0; e < E; e++) sums[t][e] = V::add(sums[t][e], V::mul(in, some[e]));
    }
}

template <class V, int T, int E>
void logits_of(const tpiedge::Logits &l, int64_t token, int64_t expert) {
    const float *x = l.x + token * l.width, *w = l.router + expert * l.width;
    typename V::Reg sums[T][E];
    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) sums[t][e] = V::zero();
    int64_t c = 0;
    for (; c + V::lanes <= l.width; c += V::lanes) add_columns<V, T, E>(l, x + c, w + c, V::lanes, sums);
    if (c < l.width) add_columns<V, T, E>(l, x + c, w + c, static_cast<int>(l.width - c), sums);
    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) l.y[(token + t) * l.experts + expert + e] = V::sum(sums[t][e]);
}

template <class V>
void logits(const tpiedge::Logits &l, int64_t first_token, int64_t last_token, int64_t first, int64_t last) {
    constexpr int T = V::TOKENS, E = V::VECTORS;
    for (int64_t expert = first; expert < last; expert += E) {
        const int64_t some = last - expert < E ? last - expert : E;
        int64_t token = first_token;
        for (; some == E && token + T <= last_token; token += T) logits_of<V, T, E>(l, token, expert);
        for (; some == E && token < last_token; token++) logits_of<V, 1, E>(l, token, expert);
        for (; token < last_token; token++)
            for (int64_t e = expert; e < expert + some; e++) logits_of<V, 1, 1>(l, token, e);
    }
}

}  // namespace
