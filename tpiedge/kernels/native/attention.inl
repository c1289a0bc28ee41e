// Attention of some tokens' query heads against one KV head, in f32, with a causal mask and a sliding window (V as in
// kernels.inl). Keys come in blocks, with the softmax's maximum and sum carried from block to block (online softmax;
// Dao, FlashAttention, algorithm 1).
//
// Blocks begin at multiples of KEYS, whichever key a query sees first, and a key that a query does not see takes no
// part in its sums: so its bits are those it would have alone. A block lies within one page. Several queries (a token's heads, or tokens) share one
// reading of the keys; where they are many, stored keys are widened to f32 first, which changes no bit either.

namespace {

using tpiedge::ATTENTION_ROWS;
using tpiedge::Attention;
using tpiedge::MAX_HEAD_WIDTH;

constexpr int KEYS = 64;         // of a block: its keys and values stay in the L1 or L2 cache
constexpr int KEYS_AT_ONCE = 4;  // as many as V::sum4 sums; V::KEYS of them share a reading of the query
// From one row of results to the next: a line more than a power of two, so that rows do not share a set of the L1 cache.
constexpr int64_t OUT_WIDTH = MAX_HEAD_WIDTH + 16;

// A run of keys or values as one query after the other reads them: rows of W numbers, or of codes.
template <class V, class W>
struct Run {
    const unsigned char *at;
    int64_t stride;
    int64_t width;

    const W *row(int64_t s) const { return reinterpret_cast<const W *>(at + s * stride); }
};

// Memory that is read soon, asked for little by little between computations: all at once, it would fill the CPU's queue for
// lines and what is computed would wait behind it.
struct Ahead {
    const unsigned char *at;
    const unsigned char *end;
    int64_t step;

    // After about `times` calls of `some` all of [at, at + nbytes) is asked for.
    Ahead(const unsigned char *from, int64_t nbytes, int64_t times)
        : at(from), end(from + nbytes), step((nbytes / LINE + times) / times * LINE) {}

    void some() {
        constexpr int l2 = 2;  // a block may be too large for the L1 cache
        const unsigned char *stop = end - at < step ? end : at + step;
        for (; at < stop; at += LINE) __builtin_prefetch(at, 0, l2);
    }

  private:
    static constexpr int64_t LINE = 64;
};

template <class W>
constexpr bool CODES = std::is_same<W, Q8>::value || std::is_same<W, Q4>::value;

// What is known of the queries after some keys.
struct Online {
    const float *q[ATTENTION_ROWS];
    int low[ATTENTION_ROWS];  // of the present block: which keys the query sees
    int high[ATTENTION_ROWS];
    float highest[ATTENTION_ROWS];
    float sum[ATTENTION_ROWS];
    float kept[ATTENTION_ROWS];          // what the earlier blocks' sums are multiplied with
    float weight[ATTENTION_ROWS][KEYS];  // of the present block: products with its keys, then e^(score - highest)
    alignas(64) float out[ATTENTION_ROWS][OUT_WIDTH];

    // Of `count` queries from the first on: whether they see the same keys.
    bool alike(int first, int count) const {
        for (int r = first + 1; r < first + count; r++)
            if (low[r] != low[first] || high[r] != high[first]) return false;
        return true;
    }
};

// Adds to acc the products of queries with some keys' numbers [0, width) of f32 or bf16.
template <class V, class W, int ROWS>
inline void multiply(const float *const *q, int64_t from, const W *const *key, int64_t width,
                     typename V::Reg (*acc)[V::KEYS]) {
    int64_t c = 0;
    for (; c + V::lanes <= width; c += V::lanes)
        for (int h = 0; h < ROWS; h++) {
            const auto in = V::load(q[h] + from + c);
            for (int i = 0; i < V::KEYS; i++) acc[h][i] = V::fma(in, V::load(key[i] + c), acc[h][i]);
        }
    const int left = static_cast<int>(width - c);
    if (left)
        for (int h = 0; h < ROWS; h++) {
            const auto in = V::load_some(q[h] + from + c, left);
            for (int i = 0; i < V::KEYS; i++) acc[h][i] = V::fma(in, V::load_some(key[i] + c, left), acc[h][i]);
        }
}

// Likewise of codes.
template <class V, class W, int ROWS>
inline void multiply_codes(const float *const *q, const W *const *key, int64_t width, typename V::Reg (*acc)[V::KEYS]) {
    const int64_t groups = whole_groups(width);
    for (int64_t g = 0; g < groups; g++)
        for (int i = 0; i < KV_GROUP; i += V::lanes) {
            typename V::Reg value[V::KEYS];
            for (int k = 0; k < V::KEYS; k++) value[k] = WholeGroup<V, W>(key[k], width, g).get(i);
            for (int h = 0; h < ROWS; h++) {
                const auto in = V::load(q[h] + g * KV_GROUP + i);
                for (int k = 0; k < V::KEYS; k++) acc[h][k] = V::fma(in, value[k], acc[h][k]);
            }
        }
    if (groups * KV_GROUP == width) return;
    float rest[V::KEYS][KV_GROUP];
    const float *rows[V::KEYS];
    for (int k = 0; k < V::KEYS; k++) {
        expand_rest(key[k], width, rest[k]);
        rows[k] = rest[k];
    }
    multiply<V, float, ROWS>(q, groups * KV_GROUP, rows, width - groups * KV_GROUP, acc);
}

template <class V, class W, int ROWS>
inline void scores(const float *const *q, const Run<V, W> &k, int count, float (*to)[KEYS], Ahead &ahead) {
    for (int s = 0; s < count; s += KEYS_AT_ONCE) {
        ahead.some();
        const W *key[KEYS_AT_ONCE];  // a short last group repeats its last key
        for (int i = 0; i < KEYS_AT_ONCE; i++) key[i] = k.row(s + i < count ? s + i : count - 1);
        typename V::Reg sums[ROWS][KEYS_AT_ONCE];
        for (int first = 0; first < KEYS_AT_ONCE; first += V::KEYS) {
            typename V::Reg acc[ROWS][V::KEYS];
            for (int h = 0; h < ROWS; h++)
                for (int i = 0; i < V::KEYS; i++) acc[h][i] = V::zero();
            if constexpr (CODES<W>)
                multiply_codes<V, W, ROWS>(q, key + first, k.width, acc);
            else
                multiply<V, W, ROWS>(q, 0, key + first, k.width, acc);
            for (int h = 0; h < ROWS; h++)
                for (int i = 0; i < V::KEYS; i++) sums[h][first + i] = acc[h][i];
        }
        for (int h = 0; h < ROWS; h++) V::sum4(sums[h], to[h] + s);
    }
}

// cap * tanh(score / cap), where tanh(z) is 1 - 2 / (1 + e^(2 z)).
template <class V>
inline typename V::Reg capped(typename V::Reg score, float cap) {
    const auto grown = V::add(V::broadcast(1.0f), exponential<V>(V::mul(score, V::broadcast(2.0f / cap))));
    return V::mul(V::broadcast(cap), V::sub(V::broadcast(1.0f), V::div(V::broadcast(2.0f), grown)));
}

// Turns a block's products of the keys [low, high) into weights, and the others into zeros; returns what the earlier
// blocks' sums are to be multiplied with. WHOLE: the keys are [0, KEYS).
template <class V, bool WHOLE, bool CAPPED>
inline float soften(float *weight, const Attention &a, int low, int high, float *highest, float *sum) {
    if (WHOLE) low = 0, high = KEYS;  // said to the compiler: the loops below take the same few registers
    const auto factor = V::broadcast(a.scale);
    for (int s = 0; s < low; s++) weight[s] = -INFINITY;
    for (int s = high; s < KEYS; s++) weight[s] = -INFINITY;
    for (int s = 0; s < high; s += V::lanes) V::store(weight + s, V::mul(V::load(weight + s), factor));
    if (CAPPED) {
        for (int s = 0; s < high; s += V::lanes) V::store(weight + s, capped<V>(V::load(weight + s), a.cap));
        for (int s = 0; s < low; s++) weight[s] = -INFINITY;
        for (int s = high; s < KEYS; s++) weight[s] = -INFINITY;
    }
    auto most = V::broadcast(*highest);
    for (int s = 0; s < high; s += V::lanes) most = V::max(most, V::load(weight + s));
    float each[V::lanes];
    V::store(each, most);
    for (int half = V::lanes / 2; half > 0; half /= 2)  // several at once: one after the other, each waits for the last
        for (int i = 0; i < half; i++) each[i] = each[i] > each[i + half] ? each[i] : each[i + half];
    for (int s = 0; s < high; s += V::lanes)
        V::store(weight + s, exponential<V>(V::sub(V::load(weight + s), V::broadcast(each[0]))));
    for (int s = 0; s < low; s++) weight[s] = 0.0f;
    for (int s = high; s < KEYS; s++) weight[s] = 0.0f;
    auto total = V::zero();
    for (int s = 0; s < high; s += V::lanes) total = V::add(total, V::load(weight + s));
    float kept = 1.0f;
    if (*highest != each[0]) {
        float same[V::lanes];
        V::store(same, exponential<V>(V::broadcast(*highest - each[0])));
        kept = same[0];
    }
    *sum = *sum * kept + V::sum(total);
    *highest = each[0];
    return kept;
}

template <class V, class W, int ROWS, int VECTORS, bool SOME>
inline void mix_tile(const float (*weight)[KEYS], const float *kept, const Run<V, W> &v, int first, int last, int some,
                     float (*out)[OUT_WIDTH], int64_t from, int64_t col, Ahead &ahead) {
    typename V::Reg acc[ROWS][VECTORS];
    for (int h = 0; h < ROWS; h++)
        for (int i = 0; i < VECTORS; i++)
            acc[h][i] = V::mul(V::broadcast(kept[h]), get<V, SOME>(out[h] + from + col + i * V::lanes, some));
    for (int s = first; s < last; s++) {
        ahead.some();
        const W *row = v.row(s) + col;
        typename V::Reg value[VECTORS];
        for (int i = 0; i < VECTORS; i++) value[i] = get<V, SOME>(row + i * V::lanes, some);
        for (int h = 0; h < ROWS; h++) {
            const auto factor = V::broadcast(weight[h][s]);
            for (int i = 0; i < VECTORS; i++) acc[h][i] = V::fma(factor, value[i], acc[h][i]);
        }
    }
    for (int h = 0; h < ROWS; h++)
        for (int i = 0; i < VECTORS; i++) {
            if (SOME)
                V::store_some(out[h] + from + col + i * V::lanes, acc[h][i], some);
            else
                V::store(out[h] + from + col + i * V::lanes, acc[h][i]);
        }
}

// out = kept * out + weight * v, of the columns [from, from + v.width) of out.
template <class V, class W, int ROWS>
inline void mix_columns(const float (*weight)[KEYS], const float *kept, const Run<V, W> &v, int first, int last,
                        float (*out)[OUT_WIDTH], int64_t from, Ahead &ahead) {
    int64_t c = 0;
    for (; c + V::VECTORS * V::lanes <= v.width; c += V::VECTORS * V::lanes)
        mix_tile<V, W, ROWS, V::VECTORS, false>(weight, kept, v, first, last, V::lanes, out, from, c, ahead);
    for (; c + V::lanes <= v.width; c += V::lanes)
        mix_tile<V, W, ROWS, 1, false>(weight, kept, v, first, last, V::lanes, out, from, c, ahead);
    const int left = static_cast<int>(v.width - c);
    if (left) mix_tile<V, W, ROWS, 1, true>(weight, kept, v, first, last, left, out, from, c, ahead);
}

// Of codes: `VECTORS` from the i-th number of a whole group on.
template <class V, class W, int ROWS, int VECTORS>
inline void mix_group(const float (*weight)[KEYS], const float *kept, const Run<V, W> &v, int first, int last,
                      float (*out)[OUT_WIDTH], int64_t group, int i, Ahead &ahead) {
    const int64_t col = group * KV_GROUP + i;
    typename V::Reg acc[ROWS][VECTORS];
    for (int h = 0; h < ROWS; h++)
        for (int n = 0; n < VECTORS; n++)
            acc[h][n] = V::mul(V::broadcast(kept[h]), V::load(out[h] + col + n * V::lanes));
    for (int s = first; s < last; s++) {
        ahead.some();
        const WholeGroup<V, W> codes(v.row(s), v.width, group);
        typename V::Reg value[VECTORS];
        for (int n = 0; n < VECTORS; n++) value[n] = codes.get(i + n * V::lanes);
        for (int h = 0; h < ROWS; h++) {
            const auto factor = V::broadcast(weight[h][s]);
            for (int n = 0; n < VECTORS; n++) acc[h][n] = V::fma(factor, value[n], acc[h][n]);
        }
    }
    for (int h = 0; h < ROWS; h++)
        for (int n = 0; n < VECTORS; n++) V::store(out[h] + col + n * V::lanes, acc[h][n]);
}

template <class V, class W, int ROWS>
inline void mix(const float (*weight)[KEYS], const float *kept, const Run<V, W> &v, int first, int last,
                float (*out)[OUT_WIDTH], Ahead &ahead) {
    if constexpr (!CODES<W>) {
        mix_columns<V, W, ROWS>(weight, kept, v, first, last, out, 0, ahead);
    } else {
        constexpr int vectors = KV_GROUP / V::lanes < V::VECTORS ? KV_GROUP / V::lanes : V::VECTORS;
        const int64_t groups = whole_groups(v.width);
        for (int64_t g = 0; g < groups; g++)
            for (int i = 0; i < KV_GROUP; i += vectors * V::lanes)
                mix_group<V, W, ROWS, vectors>(weight, kept, v, first, last, out, g, i, ahead);
        const int64_t done = groups * KV_GROUP;
        if (done == v.width) return;
        float rest[KEYS][KV_GROUP];
        for (int s = first; s < last; s++) expand_rest(v.row(s), v.width, rest[s]);
        const Run<V, float> run{reinterpret_cast<const unsigned char *>(rest), sizeof rest[0], v.width - done};
        mix_columns<V, float, ROWS>(weight, kept, run, first, last, out, done, ahead);
    }
}

template <class V, class W>
inline void score_rows(const Run<V, W> &k, int rows, Online &online, Ahead &ahead) {
    int r = 0;  // the later a query, the more keys it sees
    for (; r + V::TOKENS <= rows; r += V::TOKENS)
        scores<V, W, V::TOKENS>(online.q + r, k, online.high[r + V::TOKENS - 1], online.weight + r, ahead);
    for (; r < rows; r++) scores<V, W, 1>(online.q + r, k, online.high[r], online.weight + r, ahead);
}

template <class V, class W>
inline void mix_rows(const Run<V, W> &v, int rows, Online &online, Ahead &ahead) {
    int r = 0;
    while (r < rows)
        if (r + V::TOKENS <= rows && online.alike(r, V::TOKENS)) {
            mix<V, W, V::TOKENS>(online.weight + r, online.kept + r, v, online.low[r], online.high[r], online.out + r,
                ahead);
            r += V::TOKENS;
        } else {
            mix<V, W, 1>(online.weight + r, online.kept + r, v, online.low[r], online.high[r], online.out + r,
                ahead);
            r++;
        }
}

// Calls `use` with `count` rows: as they are, or widened to f32 where otherwise several passes would widen them.
template <class V, class W, class Use>
inline void with_rows(const Run<V, W> &rows, int count, int queries, float *scratch, Use use) {
    if constexpr (std::is_same<W, float>::value) {
        use(rows);
    } else {
        if (queries == 1 || queries == V::TOKENS) return use(rows);
        for (int s = 0; s < count; s++) expand<V>(rows.row(s), rows.width, scratch + s * rows.width);
        use(Run<V, float>{reinterpret_cast<const unsigned char *>(scratch),
                          rows.width * static_cast<int64_t>(sizeof(float)), rows.width});
    }
}

// The query heads [first, first + heads) of one KV head for `tokens` tokens from `token` on: ATTENTION_ROWS at most.
template <class V, class W>
void attend(const Attention &a, const Span &span, int64_t token, int64_t tokens, int64_t kv_head, int64_t first,
            int64_t heads) {
    const int64_t width = a.layout.width, stride = a.layout.row_bytes;
    const int rows = static_cast<int>(tokens * heads);
    Online online;
    float scratch[KEYS * MAX_HEAD_WIDTH];
    for (int r = 0; r < rows; r++) {
        online.q[r] = a.q + ((span.row + token + r / heads) * a.heads + first + r % heads) * width;
        online.highest[r] = a.sinks ? a.sinks[first + r % heads] : -INFINITY;
        online.sum[r] = a.sinks ? 1.0f : 0.0f;
        memset(online.out[r], 0, width * sizeof(float));
    }
    const int64_t position = span.start + token, last = position + tokens;
    const int64_t begin = position + 1 > a.window ? position + 1 - a.window : 0;
    for (int64_t s = begin / KEYS * KEYS; s < last; s += KEYS) {
        const int count = static_cast<int>(last - s < KEYS ? last - s : KEYS);
        for (int r = 0; r < rows; r++) {
            const int64_t stop = position + r / heads + 1 - s, start = stop - a.window;
            online.high[r] = static_cast<int>(stop < 0 ? 0 : stop < KEYS ? stop : KEYS);
            online.low[r] = static_cast<int>(start < 0 ? 0 : start < KEYS ? start : KEYS);
        }
        const unsigned char *keys = tpiedge::key_at(a.layout, span, kv_head, s);
        const int64_t readings = (rows + V::TOKENS - 1) / V::TOKENS;
        Ahead values(keys + a.layout.value_bytes, count * stride, readings * ((count + KEYS_AT_ONCE - 1) / KEYS_AT_ONCE));
        with_rows(Run<V, W>{keys, stride, width}, count, rows, scratch,
                  [&](const auto &run) { score_rows(run, rows, online, values); });
        for (int r = 0; r < rows; r++) {
            const int low = online.low[r], high = online.high[r];
            const bool whole = low == 0 && high == KEYS;
            const auto softened = a.cap > 0.0f ? (whole ? soften<V, true, true> : soften<V, false, true>)
                                               : (whole ? soften<V, true, false> : soften<V, false, false>);
            online.kept[r] =
                low < high ? softened(online.weight[r], a, low, high, &online.highest[r], &online.sum[r]) : 1.0f;
        }
        // Where the next page lies the CPU cannot guess.
        const int64_t left = last - s - KEYS;
        Ahead next(left > 0 ? tpiedge::key_at(a.layout, span, kv_head, s + KEYS) : keys,
                   left > KEYS ? KEYS * stride : left > 0 ? left * stride : 0, readings * count);
        with_rows(Run<V, W>{keys + a.layout.value_bytes, stride, width}, count, rows, scratch,
                  [&](const auto &run) { mix_rows(run, rows, online, next); });
    }
    for (int r = 0; r < rows; r++) {
        float *y = a.y + (online.q[r] - a.q);
        for (int64_t c = 0; c < width; c++) y[c] = online.out[r][c] / online.sum[r];
    }
}

template <class V, class W>
void attention(const Attention &a, const Span &span, int64_t token, int64_t tokens, int64_t kv_head, int64_t first,
               int64_t last) {
    for (int64_t head = first; head < last; head += ATTENTION_ROWS) {
        const int64_t heads = last - head < ATTENTION_ROWS ? last - head : ATTENTION_ROWS;
        const int64_t most = ATTENTION_ROWS / heads;
        for (int64_t t = 0; t < tokens; t += most)
            attend<V, W>(a, span, token + t, tokens - t < most ? tokens - t : most, kv_head, head, heads);
    }
}

}  // namespace
