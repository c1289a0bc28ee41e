// Products of few tokens with a weight matrix. V as in kernels.inl. The order in which a result is summed depends on R
// and C only.

namespace {

using tpiedge::Product;

// Measured on Zen 4 cores, where other values lost memory bandwidth for one token.
constexpr int ROW_TILE = 4;              // project: rows at once
constexpr int64_t PROJECT_AHEAD = 512;   // project: bytes of each row fetched ahead
constexpr int64_t CONTRACT_AHEAD = 256;  // contract: bytes of each row fetched ahead
// contract: rows summed before they are added to the result, and bytes of each at once. More rows than a cache has ways
// evict each other where the stride is a power of two.
constexpr int DEPTH = 8;
template <class W>
constexpr int RUN = sizeof(W) == 4 ? 256 : 128;

template <class V, bool SOME, class W>
inline typename V::Reg get(const W *from, int count) {
    return SOME ? V::load_some(from, count) : V::load(from);
}

// --- project: y[t, r] = sum over c of x[t, c] * w[r, c]

template <class V, class W, int ROWS, int TOKENS>
struct ProjectTile {
    typename V::Reg acc[ROWS][TOKENS];

    template <bool SOME>
    inline void step(const W *w, int64_t w_stride, const float *x, int64_t x_stride, int count) {
        typename V::Reg wide[ROWS];
        for (int r = 0; r < ROWS; r++) wide[r] = get<V, SOME>(w + r * w_stride, count);
        for (int t = 0; t < TOKENS; t++) {
            const typename V::Reg in = get<V, SOME>(x + t * x_stride, count);
            for (int r = 0; r < ROWS; r++) acc[r][t] = V::fma(wide[r], in, acc[r][t]);
        }
    }

    static void compute(const Product &p, int64_t row, int64_t token) {
        const W *w = static_cast<const W *>(p.w) + row * p.w_stride;
        const float *x = p.x + token * p.x_stride;
        ProjectTile tile;
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < TOKENS; t++) tile.acc[r][t] = V::zero();
        constexpr int line = 64 / sizeof(W);
        int64_t c = 0;
        for (; c + line <= p.cols; c += line) {
            // What this thread reads next: further right, or the beginning of the rows below.
            const int64_t right = c + PROJECT_AHEAD / sizeof(W);
            const W *ahead = right < p.cols ? w + right : w + ROWS * p.w_stride + (right - p.cols);
            if (token == 0)
                for (int r = 0; r < ROWS; r++) V::prefetch(ahead + r * p.w_stride);
            for (int i = 0; i < line; i += V::lanes)
                tile.template step<false>(w + c + i, p.w_stride, x + c + i, p.x_stride, V::lanes);
        }
        for (; c + V::lanes <= p.cols; c += V::lanes)
            tile.template step<false>(w + c, p.w_stride, x + c, p.x_stride, V::lanes);
        if (c < p.cols) tile.template step<true>(w + c, p.w_stride, x + c, p.x_stride, static_cast<int>(p.cols - c));
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < TOKENS; t++) p.y[(token + t) * p.rows + row + r] = V::sum(tile.acc[r][t]);
    }
};

template <class V, class W, int ROWS>
void project_rows(const Product &p, int64_t row) {
    int64_t token = 0;
    for (; token + V::TOKENS <= p.tokens; token += V::TOKENS)
        ProjectTile<V, W, ROWS, V::TOKENS>::compute(p, row, token);
    if (token + 2 <= p.tokens) {
        ProjectTile<V, W, ROWS, 2>::compute(p, row, token);
        token += 2;
    }
    if (token < p.tokens) ProjectTile<V, W, ROWS, 1>::compute(p, row, token);
}

template <class V, class W>
void project(const Product &p, int64_t first, int64_t last) {
    int64_t row = first;
    for (; row + ROW_TILE <= last; row += ROW_TILE) project_rows<V, W, ROW_TILE>(p, row);
    for (; row < last; row++) project_rows<V, W, 1>(p, row);
}

// --- contract: y[t, c] = sum over r of x[t, r] * w[r, c]

template <class V, class W, int VECTORS, int TOKENS, bool SOME>
inline void contract_tile(const Product &p, int64_t row, int64_t depth, int64_t token, int64_t col, int count,
                          const W *ahead) {
    const W *w = static_cast<const W *>(p.w) + row * p.w_stride + col;
    const float *x = p.x + token * p.x_stride + row;
    typename V::Reg acc[VECTORS][TOKENS];
    for (int v = 0; v < VECTORS; v++)
        for (int t = 0; t < TOKENS; t++) acc[v][t] = V::zero();
    for (int64_t r = 0; r < depth; r++, w += p.w_stride) {
        if (token == 0)
            for (int v = 0; v < VECTORS * V::lanes; v += 64 / sizeof(W)) V::prefetch(ahead + r * p.w_stride + v);
        typename V::Reg wide[VECTORS];
        for (int v = 0; v < VECTORS; v++) wide[v] = get<V, SOME>(w + v * V::lanes, count);
        for (int t = 0; t < TOKENS; t++) {
            const typename V::Reg in = V::broadcast(x[t * p.x_stride + r]);
            for (int v = 0; v < VECTORS; v++) acc[v][t] = V::fma(wide[v], in, acc[v][t]);
        }
    }
    for (int t = 0; t < TOKENS; t++) {
        float *y = p.y + (token + t) * p.cols + col;
        for (int v = 0; v < VECTORS; v++, y += V::lanes) {
            if (SOME)
                V::store_some(y, V::add(V::load_some(y, count), acc[v][t]), count);
            else
                V::store(y, V::add(V::load(y), acc[v][t]));
        }
    }
}

template <class V, class W, int TOKENS>
void contract_step(const Product &p, int64_t row, int64_t depth, int64_t token, int64_t first, int64_t last) {
    constexpr int run = static_cast<int>(RUN<W> / (V::lanes * sizeof(W)));
    constexpr int vectors = run < V::VECTORS ? run : V::VECTORS;
    constexpr int64_t tile = vectors * V::lanes;
    const W *w = static_cast<const W *>(p.w) + row * p.w_stride;
    int64_t c = first;
    for (; c + tile <= last; c += tile) {
        // As above; these runs are too short and too many for the CPU's own prefetcher.
        const int64_t right = c + CONTRACT_AHEAD / sizeof(W);
        const W *ahead = right < last ? w + right : w + DEPTH * p.w_stride + (right - last + first);
        contract_tile<V, W, vectors, TOKENS, false>(p, row, depth, token, c, V::lanes, ahead);
    }
    for (; c + V::lanes <= last; c += V::lanes)
        contract_tile<V, W, 1, TOKENS, false>(p, row, depth, token, c, V::lanes, w + c);
    if (c < last) contract_tile<V, W, 1, TOKENS, true>(p, row, depth, token, c, static_cast<int>(last - c), w + c);
}

template <class V, class W>
void contract(const Product &p, int64_t first, int64_t last) {
    for (int64_t t = 0; t < p.tokens; t++) memset(p.y + t * p.cols + first, 0, (last - first) * sizeof(float));
    for (int64_t row = 0; row < p.rows; row += DEPTH) {
        const int64_t depth = p.rows - row < DEPTH ? p.rows - row : DEPTH;
        int64_t token = 0;
        for (; token + V::TOKENS <= p.tokens; token += V::TOKENS)
            contract_step<V, W, V::TOKENS>(p, row, depth, token, first, last);
        if (token + 2 <= p.tokens) {
            contract_step<V, W, 2>(p, row, depth, token, first, last);
            token += 2;
        }
        if (token < p.tokens) contract_step<V, W, 1>(p, row, depth, token, first, last);
    }
}

}  // namespace
