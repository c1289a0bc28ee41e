// Products with quantised matrices (panels.h), written once for a type P. Each instruction set's source defines P before
// it includes this:
//   TOKENS             of a tile, at most 8: as many as registers allow
//   STEP               inputs of one token that lie side by side in a tile: 4 or 8
//   Floats             sixteen f32, one for each output of a panel; zero(), store(at, v), store_some(at, v, n) for n < 16
//                      of them
//   FETCHES_AHEAD      whether codes can be asked for ahead of their use
//   IN_REGISTERS       whether codes_of<FORMAT>(codes, i, both) makes the eight inputs i of a group what Sum<4> takes, less by
//                      offset_of(FORMAT), and sixths(at, four) the numbers of six bits of two groups Floats: scales and
//                      minimums of the first, then of the second
//   scales(at)         sixteen f16 as Floats
//   Ints               sixteen exact sums
//   fold(sum, scales, dx, y)   fma(float(sum), scales * dx, y), each operation rounded once, products first
//   add_product(a, b, y)   fma(a, b, y) for a float b
//   product(a, b), negated(a), widened(bytes), widened_signed(bytes)   of Floats; sixteen bytes as Floats
//   power(at)          power (prepared.h) of sixteen bytes
//   lookup(table, from, low, high)   of 64 bytes: table[byte & 15] and table[byte >> 4], as bytes
//   add_part(y, sums, squares)   adds sixteen y, each rounded to the nearest integer (halves to even; any integer where it is
//                      no number or does not fit), to Ints, and their squares to Floats
//   load(at), load_ints(at), store_ints(at, sums)
//   quantise(x, q)     32 floats to 32 int8 (as bytes) by the rules of panels.h; returns {dx, sum of q, that of the first 16}
// and, where OWN_DOTS is false (STEP is 4 then):
//   Codes<BITS>        of sixteen outputs and four inputs, as Sum likes them
//   codes8(at, c), codes4(at, low, high)   from a block of 64 bytes: one of four inputs, or two
//   Sum<BITS>          of one token: start(correction), add(codes, q) with four q, total() -> Ints. `correction`
//                      is -8 * sum of q: what the offset of four-bit codes takes off; that of eight bits takes 16 times
//                      it. A type that subtracts the offset from codes of eight bits ignores it. At most 8 additions.
// or, where OWN_DOTS is true:
//   dots<BITS, T>(codes, inputs, q, corrections, sums)   all sums of one group: `inputs` (8, 16, 24 or 32; a constant
//                      where 32) of T tokens, and corrections, as they lie in a tile; sums[T].
// Everything lives in an unnamed namespace: two sources must never share code compiled for different CPUs.

#include <string.h>

#include <utility>

#include "compiler.h"
#include "panels.h"
#include "prepared.h"

namespace {

using tpiedge::GROUP;
using tpiedge::Inputs;
using tpiedge::LINE_BYTES;
using tpiedge::PANEL;
using tpiedge::PanelRun;

constexpr int64_t SCALES = 2 * PANEL;  // bytes of a group's
constexpr int64_t AHEAD = 3072;        // bytes: how far ahead codes are asked for where there is one tile

template <int BITS>
constexpr int64_t plain_format = BITS == 4 ? tpiedge::Q4 : tpiedge::Q8;

template <int BITS>
constexpr int64_t code_nbytes(int64_t inputs) {
    return inputs * PANEL * BITS / 8;
}

// --- activations

template <class P>
void quantise_group(const float *x, int64_t count, int64_t token, int64_t tokens, float factor, uint8_t *to,
                    uint8_t *behind) {
    alignas(64) float whole[GROUP] = {};
    alignas(32) uint8_t q[GROUP];
    if (count < GROUP) {
        memcpy(whole, x, count * sizeof(float));
        x = whole;
    }
    const Quantised group = P::quantise(x, q);
    const float dx = group.dx * factor;
    const int32_t correction = -8 * group.sum, first = -8 * group.first;
    const float moment = static_cast<float>(correction) * -0.125f * dx;
    memcpy(to + 4 * token, &dx, 4);
    memcpy(to + 4 * (tokens + token), &correction, 4);
    memcpy(behind + 4 * token, &first, 4);
    memcpy(behind + 4 * (tokens + token), &moment, 4);
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
            uint8_t *behind = to + groups_nbytes(count) * tokens;
            for (int64_t i = 0; i < count; i += GROUP, behind += 8 * tokens) {
                const int64_t some = count - i < GROUP ? count - i : GROUP;
                quantise_group<P>(from + i, some, t, tokens, factor, to, behind);
                to += groups_nbytes(some) * tokens;
            }
            to = behind;
            from += count;
        }
    }
}

// --- sums of a group

template <class P, int BITS, int T>
TPIEDGE_INLINE void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
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
            distance = !run.ahead ? 0 : tiles == 1 ? AHEAD : panel_nbytes(run.inputs, plain_format<BITS>);
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

    TPIEDGE_INLINE void group(const uint8_t *codes, int64_t inputs, const uint8_t *scales, const uint8_t *x) {
        fetching.group(codes);
        typename P::Ints sums[T];
        dots<P, BITS, T>(codes, inputs, x + 8 * T, x + 4 * T, sums);
        const typename P::Floats scale = P::scales(reinterpret_cast<const uint16_t *>(scales));
        for (int t = 0; t < T; t++) y[t] = P::fold(sums[t], scale, at<float>(x, t), y[t]);
    }

    // Of a copy, because sums whose address is known elsewhere have no registers.
    TPIEDGE_INLINE void short_group(const uint8_t *codes, int64_t inputs, const uint8_t *scales, const uint8_t *x) {
        Tile copy(*this);
        copy.group_apart(codes, inputs, scales, x);
        *this = copy;
    }
    TPIEDGE_APART void group_apart(const uint8_t *codes, int64_t inputs, const uint8_t *scales, const uint8_t *x) {
        group(codes, inputs, scales, x);
    }

    // All groups of a panel.
    TPIEDGE_INLINE void groups(const uint8_t *pair, int64_t inputs, const uint8_t *x) {
        constexpr int64_t codes = code_nbytes<BITS>(GROUP);
        const int64_t activations = groups_nbytes(GROUP) * T;
        for (; inputs >= 2 * GROUP; inputs -= 2 * GROUP, pair += tpiedge::pair_nbytes(BITS), x += 2 * activations) {
            group(pair + LINE_BYTES, GROUP, pair, x);
            group(pair + LINE_BYTES + codes, GROUP, pair + SCALES, x + activations);
        }
        if (inputs > GROUP) {
            group(pair + LINE_BYTES, GROUP, pair, x);
            short_group(pair + LINE_BYTES + codes, filled(inputs - GROUP), pair + SCALES, x + activations);
        } else if (inputs > 0) {
            short_group(pair + LINE_BYTES, filled(inputs), pair, x);
        }
    }

    static inline const uint8_t *activations(const PanelRun &run, int64_t token) {
        return run.activations + token / P::TOKENS * run.tile_nbytes + run.unit_nbytes * T;
    }

    TPIEDGE_INLINE void fold(const uint8_t *panel, int64_t inputs, const uint8_t *x) {
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
void plain_panels(const PanelRun &run) {
    const int64_t nbytes = panel_nbytes(run.inputs, plain_format<BITS>);
    const uint8_t *panel = run.data;
    for (int64_t output = 0; output < run.outputs; output += PANEL, panel += nbytes)
        for (int64_t token = 0; token < run.tokens; token += P::TOKENS)
            some_tokens<P, BITS, P::TOKENS>(run, panel, token, output,
                                            run.tokens - token < P::TOKENS ? run.tokens - token : P::TOKENS);
}

// --- formats whose scales or codes are prepared, a block of a panel at a time for all tokens

using tpiedge::Prepared;

constexpr int64_t PREPARED_TILES = 32;  // that share what was prepared: their sums stay in the first cache

template <class P>
inline typename P::Floats scales_at(const uint8_t *header, int64_t row) {
    return P::scales(reinterpret_cast<const uint16_t *>(header) + row * PANEL);
}

// The scales of a group, or of half of it, from the header of its block; and what is added to its weights.
template <class P, int64_t FORMAT>
struct Header {
    const uint8_t *at;
    int64_t groups;
    typename P::Floats d, d_min;

    inline Header(const uint8_t *header, int64_t groups) : at(header), groups(groups) {
        if constexpr (tpiedge::is_two_level(FORMAT) || FORMAT == tpiedge::Q6_K) d = scales_at<P>(at, 0);
        if constexpr (tpiedge::is_two_level(FORMAT)) d_min = P::negated(scales_at<P>(at, 1));
    }
    inline typename P::Floats scales(int64_t group, int64_t half) const {
        if constexpr (FORMAT == tpiedge::MXFP4) return P::power(at + group * PANEL);
        if constexpr (FORMAT == tpiedge::Q6_K)
            return P::product(d, P::widened_signed(tpiedge::load(at + (1 + group) * 2 * PANEL + half * PANEL)));
        if constexpr (tpiedge::is_two_level(FORMAT)) return P::product(d, P::widened(tpiedge::sixth(at, group, 0)));
        return scales_at<P>(at, group);
    }
    // Of a group and the next one.
    inline void pair(int64_t group, typename P::Floats *scales, typename P::Floats *minimums) const {
        typename P::Floats four[4];
        P::sixths(at + LINE_BYTES + group / 2 * 48, four);
        for (int i = 0; i < 2; i++) scales[i] = P::product(d, four[2 * i]), minimums[i] = P::product(d_min, four[2 * i + 1]);
    }
    inline typename P::Floats minimums(int64_t group) const {
        if constexpr (tpiedge::is_two_level(FORMAT)) return P::product(d_min, P::widened(tpiedge::sixth(at, group, 1)));
        if constexpr (FORMAT != tpiedge::Q4_ZERO) return scales_at<P>(at, 1);
        const auto zeros = tpiedge::load(at + (2 * groups + group) * PANEL);
        return P::product(P::negated(scales_at<P>(at, group)), P::widened(zeros));
    }
};

template <class P, int64_t FORMAT>
inline void to_bytes(const uint8_t *codes, int64_t inputs, uint8_t *bytes) {
    if constexpr (tpiedge::bits_of(FORMAT) > 4) return tpiedge::widen_codes<FORMAT>(codes, inputs, bytes);
    for (int64_t i = 0; i < inputs; i += 8, codes += LINE_BYTES, bytes += 2 * LINE_BYTES)
        P::lookup(tpiedge::table_of(FORMAT), codes, bytes, bytes + LINE_BYTES);
}

// Blocks of up to 256 inputs. Returns where the next one is.
template <class P, int64_t FORMAT>
const uint8_t *prepare(const uint8_t *block, int64_t inputs, Prepared &made) {
    for (int64_t g = 0; g * GROUP < inputs;) {
        const int64_t left = groups_of(inputs) - g, most = tpiedge::block_groups(FORMAT), groups = left < most ? left : most;
        const Header<P, FORMAT> header(block, groups);
        block += tpiedge::header_nbytes(FORMAT, groups);
        for (int64_t i = 0; i < groups; i++, g++) {
            for (int half = 0; half < (FORMAT == tpiedge::Q6_K ? 2 : 1); half++)
                P::store(made.scales[g][half], header.scales(i, half));
            if constexpr (tpiedge::has_minimums(FORMAT)) P::store(made.minimums[g], header.minimums(i));
            const int64_t some = inputs - g * GROUP < GROUP ? filled(inputs - g * GROUP) : GROUP;
            made.stored[g] = block;
            if constexpr (!tpiedge::codes_as_stored(FORMAT)) to_bytes<P, FORMAT>(block, some, made.bytes[g]);
            block += tpiedge::group_nbytes(FORMAT, some);
        }
    }
    return block;
}

// Where the sums of a tile of tokens go on, y [T, 16]; the last inputs of a row-parallel unit add them to `sums`.
struct Target {
    float *y;
    bool begins;
    int32_t *sums;
    float *squares;
};

template <class P, int T>
TPIEDGE_INLINE void store(const typename P::Floats *y, const Target &to) {
    if (!to.sums) {
        for (int t = 0; t < T; t++) P::store(to.y + t * PANEL, y[t]);
        return;
    }
    typename P::Floats squares = P::load(to.squares);
    for (int t = 0; t < T; t++) {
        typename P::Ints sums = P::load_ints(to.sums + t * PANEL);
        P::add_part(y[t], sums, squares);
        P::store_ints(to.sums + t * PANEL, sums);
    }
    P::store(to.squares, squares);
}

// Whole groups of a panel times one token, without a detour through memory.
template <class P, int64_t FORMAT>
struct OneToken {
    const uint8_t *x, *behind;  // of the next group
    typename P::Floats y = P::zero();

    TPIEDGE_INLINE void group(const uint8_t *codes, const typename P::Floats *scales, typename P::Floats minimum) {
        constexpr bool halves = FORMAT == tpiedge::Q6_K;
        constexpr int offset = tpiedge::offset_of(FORMAT) / 8;
        const int32_t correction = at<int32_t>(x, 1), first = at<int32_t>(behind, 0);
        typename P::template Sum<4> sums[2];
        sums[0].start(offset ? (halves ? first : correction) * offset : 0);
        sums[1].start((correction - first) * offset);
        for (int i = 0; i < 4; i++) {
            typename P::template Codes<4> both[2];
            P::template codes_of<FORMAT>(codes, i, both);
            for (int four = 0; four < 2; four++) sums[halves ? i / 2 : 0].add(both[four], x + 8 + 8 * i + 4 * four);
        }
        y = P::fold(sums[0].total(), scales[0], at<float>(x, 0), y);
        if constexpr (halves) y = P::fold(sums[1].total(), scales[1], at<float>(x, 0), y);
        if constexpr (tpiedge::has_minimums(FORMAT)) y = P::add_product(minimum, at<float>(behind, 1), y);
        x += groups_nbytes(GROUP);
        behind += 8;
    }

    TPIEDGE_INLINE void panel(const uint8_t *block, int64_t groups) {
        constexpr int64_t most = tpiedge::block_groups(FORMAT), nbytes = tpiedge::group_nbytes(FORMAT, GROUP);
        for (; groups > 0; groups -= most) {
            const int64_t some = groups < most ? groups : most;
            const Header<P, FORMAT> header(block, some);
            block += tpiedge::header_nbytes(FORMAT, some);
            if constexpr (tpiedge::is_two_level(FORMAT)) {
                for (int64_t g = 0; g < some; g += 2, block += nbytes) {
                    typename P::Floats scales[2], minimums[2];
                    header.pair(g, scales, minimums);
                    group(block, scales, minimums[0]);
                    if (g + 1 < some) group(block += nbytes, scales + 1, minimums[1]);
                }
            } else {
                for (int64_t g = 0; g < some; g++, block += nbytes) {
                    const typename P::Floats scales[2] = {header.scales(g, 0), header.scales(g, 1)};
                    group(block, scales, tpiedge::has_minimums(FORMAT) ? header.minimums(g) : P::zero());
                }
            }
        }
    }

    static void multiply(const PanelRun &run) {
        const int64_t groups = run.inputs / GROUP, nbytes = panel_nbytes(run.inputs, FORMAT);
        for (int64_t index = 0; index * PANEL < run.outputs; index++) {
            const uint8_t *panel = run.data + index * nbytes, *x = run.activations + run.unit_nbytes;
            if (!run.sums) {
                OneToken one{x, x + groups_nbytes(run.inputs)};
                one.panel(panel, groups);
                const int64_t left = run.outputs - index * PANEL;
                float *const y = run.y + index * run.y_panel_stride;
                left < PANEL ? P::store_some(y, one.y, static_cast<int>(left)) : P::store(y, one.y);
                continue;
            }
            int32_t *const sums_at = run.sums + index * run.y_panel_stride;
            float *const squares_at = run.squares + index * run.squares_panel_stride;
            if (!run.adds) memset(sums_at, 0, PANEL * sizeof *sums_at), memset(squares_at, 0, PANEL * sizeof *squares_at);
            typename P::Ints sums = P::load_ints(sums_at);
            typename P::Floats squares = P::load(squares_at);
            for (int64_t unit = 0; unit < run.units; unit++, panel += run.data_stride, x += quantised_nbytes(run.inputs)) {
                OneToken one{x, x + groups_nbytes(run.inputs)};
                one.panel(panel, groups);
                P::add_part(one.y, sums, squares);
            }
            P::store_ints(sums_at, sums);
            P::store(squares_at, squares);
        }
    }
};

template <class P, int64_t... FORMAT>
auto one_token_of(int64_t format, std::integer_sequence<int64_t, FORMAT...>) {
    static constexpr void (*ALL[])(const PanelRun &) = {OneToken<P, tpiedge::Q4_1 + FORMAT>::multiply...};
    return ALL[format - tpiedge::Q4_1];
}

template <class P>
using Prepare = const uint8_t *(*)(const uint8_t *, int64_t, Prepared &);

template <class P, int64_t... FORMAT>
Prepare<P> prepare_of(int64_t format, std::integer_sequence<int64_t, FORMAT...>) {
    static constexpr Prepare<P> ALL[] = {prepare<P, tpiedge::Q4_1 + FORMAT>...};
    return ALL[format - tpiedge::Q4_1];
}

// What was prepared, times a tile of T tokens, added to y. With BITS = 4 codes are as they are stored, without offset.
template <class P, int BITS, int T>
struct PreparedTile {
    const Prepared &block;
    const uint8_t *behind;
    bool halves, minimums;
    int64_t ahead;

    void compute(int64_t inputs, const uint8_t *x, const Target &to) const {
        typename P::Floats y[T];
        TPIEDGE_UNROLLED
        for (int t = 0; t < T; t++) y[t] = to.begins ? P::zero() : P::load(to.y + t * PANEL);
        int64_t g = 0;
        for (; (g + 1) * GROUP <= inputs; g++, x += groups_nbytes(GROUP) * T) group(g, GROUP, x, y);
        if (g * GROUP < inputs) {  // of copies, as in Tile
            typename P::Floats copies[T];
            TPIEDGE_UNROLLED
            for (int t = 0; t < T; t++) copies[t] = y[t];
            group_apart(g, filled(inputs - g * GROUP), x, copies);
            TPIEDGE_UNROLLED
            for (int t = 0; t < T; t++) y[t] = copies[t];
        }
        store<P, T>(y, to);
    }

    TPIEDGE_APART void group_apart(int64_t g, int64_t inputs, const uint8_t *x, typename P::Floats *y) const {
        group(g, inputs, x, y);
    }

    TPIEDGE_INLINE void group(int64_t g, int64_t inputs, const uint8_t *x, typename P::Floats *y) const {
        static constexpr int32_t NONE[T] = {};
        for (int64_t i = 0; i < ahead; i += LINE_BYTES) __builtin_prefetch(block.stored[g] + AHEAD + i);
        const uint8_t *const codes = BITS == 8 ? block.bytes[g] : block.stored[g];
        const uint8_t *const q = x + 8 * T, *const sums_of_q = x + 4 * T;
        if (BITS == 8 && halves) {
            const uint8_t *const of_first = behind + 8 * T * g;
            alignas(32) int32_t of_second[T];
            for (int t = 0; t < T; t++) of_second[t] = at<int32_t>(sums_of_q, t) - at<int32_t>(of_first, t);
            const int64_t first = inputs < GROUP / 2 ? inputs : GROUP / 2;
            fold(codes, first, q, of_first, block.scales[g][0], x, y);
            fold(codes + first * PANEL, inputs - first, q + first * T, reinterpret_cast<const uint8_t *>(of_second),
                 block.scales[g][1], x, y);
        } else {
            fold(codes, inputs, q, BITS == 4 ? reinterpret_cast<const uint8_t *>(NONE) : sums_of_q, block.scales[g][0], x, y);
        }
        if (BITS == 8 && !minimums) return;
        const typename P::Floats minimum = P::load(block.minimums[g]);
        const uint8_t *const moments = behind + 8 * T * g + 4 * T;
        for (int t = 0; t < T; t++) y[t] = P::add_product(minimum, at<float>(moments, t), y[t]);
    }

    TPIEDGE_INLINE static void fold(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                                    const float *scales, const uint8_t *x, typename P::Floats *y) {
        typename P::Ints sums[T];
        dots<P, BITS, T>(codes, inputs, q, corrections, sums);
        const typename P::Floats scale = P::load(scales);
        for (int t = 0; t < T; t++) y[t] = P::fold(sums[t], scale, at<float>(x, t), y[t]);
    }
};

template <class P, int BITS, int T>
void prepared_tokens(const Prepared &block, int64_t inputs, int64_t format, int64_t tokens, const uint8_t *x,
                     const uint8_t *behind, int64_t ahead, const Target &to) {
    if constexpr (T > 0) {
        if (tokens == T)
            PreparedTile<P, BITS, T>{block, behind, format == tpiedge::Q6_K, tpiedge::has_minimums(format), ahead}.compute(
                inputs, x, to);
        else
            prepared_tokens<P, BITS, T - 1>(block, inputs, format, tokens, x, behind, ahead, to);
    }
}

template <class P>
void prepared_panels(const PanelRun &run) {
    const int64_t format = run.format, nbytes = panel_nbytes(run.inputs, format), most = PREPARED_TILES * P::TOKENS;
    constexpr auto formats = std::make_integer_sequence<int64_t, tpiedge::MXFP4 - tpiedge::Q4_1 + 1>();
    const auto prepares = prepare_of<P>(format, formats);
    if constexpr (P::IN_REGISTERS)
        if (run.tokens == 1 && run.inputs % GROUP == 0) return one_token_of<P>(format, formats)(run);
    const auto product = tpiedge::codes_as_stored(format) ? prepared_tokens<P, 4, P::TOKENS> : prepared_tokens<P, 8, P::TOKENS>;
    const int64_t ahead = run.ahead ? tpiedge::group_nbytes(format, GROUP) + LINE_BYTES : 0;
    Prepared block;
    alignas(64) float y[PREPARED_TILES * P::TOKENS * PANEL];
    for (int64_t output = 0; output < run.outputs; output += PANEL)
        for (int64_t first = 0; first < run.tokens; first += most) {
            const int64_t tokens = run.tokens - first < most ? run.tokens - first : most, index = output / PANEL;
            int32_t *const sums = run.sums ? run.sums + first * PANEL + index * run.y_panel_stride : nullptr;
            float *const squares =
                run.sums ? run.squares + first / P::TOKENS * PANEL + index * run.squares_panel_stride : nullptr;
            if (sums && !run.adds) {
                memset(sums, 0, tokens * PANEL * sizeof *sums);
                memset(squares, 0, (tokens + P::TOKENS - 1) / P::TOKENS * PANEL * sizeof *squares);
            }
            for (int64_t unit = 0; unit < (sums ? run.units : 1); unit++) {
                const uint8_t *at = run.data + index * nbytes + unit * run.data_stride;
                for (int64_t i = 0; i < run.inputs; i += tpiedge::PREPARED_INPUTS) {
                    const int64_t left = run.inputs - i;
                    const int64_t inputs = left < tpiedge::PREPARED_INPUTS ? left : tpiedge::PREPARED_INPUTS;
                    const int64_t before = run.unit_nbytes + unit * quantised_nbytes(run.inputs) + groups_nbytes(i);
                    const int64_t to_behind = groups_nbytes(run.inputs) - groups_nbytes(i) + i / GROUP * 8;
                    Target to{y, i == 0, inputs == left ? sums : nullptr, squares};
                    at = prepares(at, inputs, block);
                    for (int64_t t = 0; t < tokens; t += P::TOKENS) {
                        const int64_t some = tokens - t < P::TOKENS ? tokens - t : P::TOKENS;
                        const uint8_t *x = run.activations + (first + t) / P::TOKENS * run.tile_nbytes + before * some;
                        to.y = y + t * PANEL;
                        product(block, inputs, format, some, x, x + to_behind * some, t == 0 ? ahead : 0, to);
                        if (to.sums) to.sums += P::TOKENS * PANEL, to.squares += PANEL;
                    }
                }
            }
            if (sums) continue;
            const int64_t count = run.outputs - output < PANEL ? run.outputs - output : PANEL;
            for (int64_t t = 0; t < tokens; t++)
                memcpy(run.y + (first + t) * run.y_stride + index * run.y_panel_stride, y + t * PANEL,
                       count * sizeof(float));
        }
}

template <class P>
void multiply(const PanelRun &run) {
    if (run.format == tpiedge::Q8)
        plain_panels<P, 8>(run);
    else if (run.format == tpiedge::Q4)
        plain_panels<P, 4>(run);
    else
        prepared_panels<P>(run);
}

template <class P>
constexpr tpiedge::PanelKernels PANEL_KERNELS = {P::TOKENS, P::STEP, P::FETCHES_AHEAD, quantise<P>, multiply<P>};

}  // namespace
