// Products with quantised matrices (panels.h), written once for a type P that each instruction set's source defines
// before it includes this:
//   TOKENS             of a tile, at most 8: as many as registers allow
//   STEP               inputs of one token that lie side by side in a tile: 4 or 8
//   Floats             sixteen f32, one for each output of a panel; zero(), store(at, v), store_some(at, v, n) for n < 16
//                      of them
//   FETCHES_AHEAD      whether codes can be asked for ahead of their use
//   scales(at)         sixteen f16 as Floats
//   Ints               sixteen exact sums
//   fold(sum, scales, dx, y)   fma(float(sum), scales * dx, y), each operation rounded once, products first
//   add_part(y, sums, squares)   adds sixteen y, each rounded to the nearest integer (halves to even; any integer where it is
//                      no number or does not fit), to Ints, and their squares to Floats
//   load(at), load_ints(at), store_ints(at, sums)
//   quantise(x, q)     32 floats to 32 int8 (as bytes) by the rules of panels.h; returns {dx, sum of q}
// and, where OWN_DOTS is false (STEP is 4 then):
//   Codes<BITS>        of sixteen outputs and four inputs, as Sum likes them
//   codes8(at, c), codes4(at, low, high)   from a block of 64 bytes: one of four inputs, or two
//   Sum<BITS>          of one token: start(correction), add(codes, q) with four q, total() -> Ints. `correction`
//                      is -8 * sum of q: what the offset of four-bit codes takes off; that of eight bits takes 16 times
//                      it. A type that subtracts the offset from the codes ignores it. At most 8 additions.
// or, where OWN_DOTS is true:
//   dots<BITS, T>(codes, inputs, q, corrections, sums)   all sums of one group: `inputs` (8, 16, 24 or 32; a constant
//                      where 32) of T tokens, and corrections, as they lie in a tile; sums[T].
// Everything lives in an unnamed namespace: two sources must never share code compiled for different CPUs.

#include <string.h>

#include "panels.h"

namespace {

using tpiedge::GROUP;
using tpiedge::Inputs;
using tpiedge::LINE_BYTES;
using tpiedge::PANEL;
using tpiedge::PanelRun;

constexpr int64_t SCALES = 2 * PANEL;  // bytes of a group's
constexpr int64_t AHEAD = 3072;        // bytes: how far ahead codes are asked for where there is one tile

template <int BITS>
constexpr int64_t code_nbytes(int64_t inputs) {
    return inputs * PANEL * BITS / 8;
}

// --- activations

template <class P>
void quantise_group(const float *x, int64_t count, int64_t token, int64_t tokens, float factor, uint8_t *to) {
    alignas(64) float whole[GROUP] = {};
    alignas(32) uint8_t q[GROUP];
    if (count < GROUP) {
        memcpy(whole, x, count * sizeof(float));
        x = whole;
    }
    const Quantised group = P::quantise(x, q);
    const float dx = group.dx * factor;
    const int32_t correction = -8 * group.sum;
    memcpy(to + 4 * token, &dx, 4);
    memcpy(to + 4 * (tokens + token), &correction, 4);
    to += 8 * tokens + P::STEP * token;
    for (int64_t i = 0; i < filled(count); i += P::STEP) memcpy(to + i * tokens, q + i, P::STEP);
}

template <class P>
void quantise(const float *x, int64_t stride, int64_t tokens, const Inputs &inputs, float factor, uint8_t *tile) {
    const int64_t units = units_of(inputs);
    for (int64_t t = 0; t < tokens; t++) {
        const float *from = x + t * stride;
        uint8_t *to = tile;
        for (int64_t unit = 0; unit < units; unit++) {
            const int64_t count = inputs_of_unit(inputs, unit);
            for (int64_t i = 0; i < count; i += GROUP) {
                const int64_t some = count - i < GROUP ? count - i : GROUP;
                quantise_group<P>(from + i, some, t, tokens, factor, to);
                to += quantised_nbytes(some) * tokens;
            }
            from += count;
        }
    }
}

// --- sums of a group

template <class P, int BITS, int T>
inline void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                 typename P::Ints *sums) {
    if constexpr (P::OWN_DOTS) {
        P::template dots<BITS, T>(codes, inputs, q, corrections, sums);
    } else {
        using Codes = typename P::template Codes<BITS>;
        typename P::template Sum<BITS> sum[T];
        for (int t = 0; t < T; t++) sum[t].start(at<int32_t>(corrections, t));
        for (int64_t i = 0; i < inputs; i += 8, codes += code_nbytes<BITS>(8), q += 8 * T) {
            Codes first, second;
            if constexpr (BITS == 4) {
                P::codes4(codes, first, second);
            } else {
                P::codes8(codes, first);
                P::codes8(codes + 64, second);
            }
            for (int t = 0; t < T; t++) sum[t].add(first, q + 4 * t);
            for (int t = 0; t < T; t++) sum[t].add(second, q + 4 * (T + t));
        }
        for (int t = 0; t < T; t++) sums[t] = sum[t].total();
    }
}

// --- one panel times one tile

// Which bytes are asked for ahead of their use, where that is faster (fetching.h). Of several tiles only the first would wait
// for memory, and the others leave it idle: so each asks for its part of the groups of the panel that comes next.
template <class P, int BITS>
class Fetching {
    int64_t distance, tiles, groups_left;  // bytes, 0 for none; of the token; before the next one that is this tile's to ask for

  public:
    inline Fetching(const PanelRun &run, int64_t token) {
        if constexpr (P::FETCHES_AHEAD) {
            tiles = (run.tokens + P::TOKENS - 1) / P::TOKENS;
            distance = !run.ahead ? 0 : tiles == 1 ? AHEAD : panel_nbytes(run.inputs, BITS);
            groups_left = token / P::TOKENS;
        }
    }

    // Beside the group at `codes`. Addresses behind the last panel are not read.
    inline void group(const uint8_t *codes) {
        if constexpr (P::FETCHES_AHEAD) {
            if (distance == 0 || groups_left-- > 0) return;
            groups_left = tiles - 1;
            const uintptr_t first = reinterpret_cast<uintptr_t>(codes) + distance;
            for (int64_t i = 0; i < code_nbytes<BITS>(GROUP) + SCALES; i += LINE_BYTES)
                __builtin_prefetch(reinterpret_cast<const void *>(first + i));
        }
    }
};

template <class P, int BITS, int T>
struct Tile {
    typename P::Floats y[T];
    Fetching<P, BITS> fetching;

    Tile(const PanelRun &run, int64_t token) : fetching(run, token) {}

    inline void group(const uint8_t *codes, int64_t inputs, const uint8_t *scales, const uint8_t *x) {
        fetching.group(codes);
        typename P::Ints sums[T];
        dots<P, BITS, T>(codes, inputs, x + 8 * T, x + 4 * T, sums);
        const typename P::Floats scale = P::scales(reinterpret_cast<const uint16_t *>(scales));
        for (int t = 0; t < T; t++) y[t] = P::fold(sums[t], scale, at<float>(x, t), y[t]);
    }

    // All groups of a panel.
    inline void groups(const uint8_t *pair, int64_t inputs, const uint8_t *x) {
        constexpr int64_t codes = code_nbytes<BITS>(GROUP);
        const int64_t activations = quantised_nbytes(GROUP) * T;
        for (; inputs >= 2 * GROUP; inputs -= 2 * GROUP, pair += tpiedge::pair_nbytes(BITS), x += 2 * activations) {
            group(pair + LINE_BYTES, GROUP, pair, x);
            group(pair + LINE_BYTES + codes, GROUP, pair + SCALES, x + activations);
        }
        if (inputs > GROUP) {
            group(pair + LINE_BYTES, GROUP, pair, x);
            group(pair + LINE_BYTES + codes, filled(inputs - GROUP), pair + SCALES, x + activations);
        } else if (inputs > 0) {
            group(pair + LINE_BYTES, filled(inputs), pair, x);
        }
    }

    static inline const uint8_t *activations(const PanelRun &run, int64_t token) {
        return run.activations + token / P::TOKENS * run.tile_nbytes + run.unit_nbytes * T;
    }

    inline void fold(const uint8_t *panel, int64_t inputs, const uint8_t *x) {
        for (int t = 0; t < T; t++) y[t] = P::zero();
        groups(panel, inputs, x);
    }

    static void add_units(const PanelRun &run, const uint8_t *panel, int64_t token, int64_t output) {
        const int64_t index = output / PANEL;
        int32_t *const sums_at = run.sums + token * PANEL + index * run.y_panel_stride;
        float *const squares_at = run.squares + token / P::TOKENS * PANEL + index * run.squares_panel_stride;
        if (!run.adds) {
            memset(sums_at, 0, T * PANEL * sizeof *sums_at);
            memset(squares_at, 0, PANEL * sizeof *squares_at);
        }
        typename P::Ints sums[T];
        for (int t = 0; t < T; t++) sums[t] = P::load_ints(sums_at + t * PANEL);
        typename P::Floats squares = P::load(squares_at);
        const uint8_t *x = activations(run, token);
        Tile tile(run, token);
        for (int64_t unit = 0; unit < run.units; unit++) {
            tile.fold(panel, run.inputs, x);
            for (int t = 0; t < T; t++) P::add_part(tile.y[t], sums[t], squares);
            panel += run.data_stride;
            x += quantised_nbytes(run.inputs) * T;
        }
        for (int t = 0; t < T; t++) P::store_ints(sums_at + t * PANEL, sums[t]);
        P::store(squares_at, squares);
    }

    static void compute(const PanelRun &run, const uint8_t *panel, int64_t token, int64_t output) {
        if (run.sums) return add_units(run, panel, token, output);
        const int64_t left = run.outputs - output;
        const int64_t count = left < PANEL ? left : PANEL;
        float *to = run.y + token * run.y_stride + output / PANEL * run.y_panel_stride;
        Tile tile(run, token);
        tile.fold(panel, run.inputs, activations(run, token));
        for (int t = 0; t < T; t++, to += run.y_stride) {
            if (count < PANEL)
                P::store_some(to, tile.y[t], static_cast<int>(count));
            else
                P::store(to, tile.y[t]);
        }
    }
};

// --- a run

// A tile of 1 to T tokens.
template <class P, int BITS, int T>
void some_tokens(const PanelRun &run, const uint8_t *panel, int64_t token, int64_t output, int64_t tokens) {
    if constexpr (T > 0) {
        if (tokens == T)
            Tile<P, BITS, T>::compute(run, panel, token, output);
        else
            some_tokens<P, BITS, T - 1>(run, panel, token, output, tokens);
    }
}

template <class P, int BITS>
void panels(const PanelRun &run) {
    const int64_t nbytes = panel_nbytes(run.inputs, BITS);
    const uint8_t *panel = run.data;
    for (int64_t output = 0; output < run.outputs; output += PANEL, panel += nbytes)
        for (int64_t token = 0; token < run.tokens; token += P::TOKENS)
            some_tokens<P, BITS, P::TOKENS>(run, panel, token, output,
                                            run.tokens - token < P::TOKENS ? run.tokens - token : P::TOKENS);
}

template <class P>
constexpr tpiedge::PanelKernels PANEL_KERNELS = {P::TOKENS, P::FETCHES_AHEAD, quantise<P>, panels<P, 4>,
                                                      panels<P, 8>};

}  // namespace
