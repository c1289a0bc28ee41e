// Products of quantised activations with quantised matrices, laid out as in tpiedge/kernels/panels.py.
//
// Of each token, the activations of a group of 32 inputs are integers q with one scale dx: dx = max |x| / 127,
// q = x * (127 / max |x|) to the nearest integer, halves to even. Where a group has a NaN or an infinity, q is 0 and dx
// NaN; where 127 / max |x| is not finite, both are 0. An output is folded over the groups in the order of inputs:
//     y = fma(float(sum of v * q), scale * dx, y)
// in f32, the sum exact: v is code - offset, or what a table has for the code. A format whose halves of a group have own
// scales does so twice. Then, if it has minimums:
//     y = fma(minimum, float(sum of q) * dx, y)
// So bits depend neither on the instruction set nor on threads, other tokens or pieces. The largest sum has 128 * 127 * 32
// = 2^19: f32 has every integer up to 2^24.
//
// The outputs of a row-parallel matrix are sums over its units, which may be those of several nodes. So that they do not
// depend on who adds up what, each unit is folded by itself, from 0, and its part is rounded to a multiple of a power of
// two, the step of the matrix's grid (grid.py), to the nearest, halves to even; these integers are added. That needs no
// operation more than the rounding: dx has the step's reciprocal as a factor already. Beside the sums those of the parts'
// squares are kept, in f32 and of all tokens of a tile together, which show whether a part or a sum may have been too
// large for 32 bits (see squares_within in panels_interface.cpp).
//
// Quantised activations lie in tiles of `tile_tokens` tokens; the last tile has what is left. A tile of T tokens is, unit
// by unit and group by group: dx of each token (T f32), minus eight times the sum of each token's q (T int32), then the
// q; behind a unit's groups, of each: minus eight times the sum of each token's first sixteen q (T int32), and dx times the
// sum of each token's q (T f32). q: for each
// `step` inputs those of every token, T * step bytes. Short groups are filled up with zeros to a multiple of
// 8 inputs. So one token takes the same bytes in every tile, and a product reads a tile from its first byte to its last.
#ifndef TPIEDGE_PANELS_H
#define TPIEDGE_PANELS_H

#include <stdint.h>
#include <string.h>

namespace tpiedge {

constexpr int64_t PANEL = 16;
constexpr int64_t GROUP = 32;
constexpr int64_t GROUP_FILL = 8;
constexpr int64_t LINE_BYTES = 64;

// Of two groups of a panel in q8 or q4: a line of scales, then the codes.
constexpr int64_t pair_nbytes(int64_t bits) { return LINE_BYTES + 2 * GROUP * PANEL * bits / 8; }

// Numbered as in panels.py, which says what each has.
enum Format : int64_t { Q8, Q4, Q4_1, Q4_ZERO, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, IQ4_NL, MXFP4 };

constexpr int64_t bits_of(int64_t format) {
    if (format == Q8) return 8;
    if (format == Q6_K) return 6;
    return format == Q5_0 || format == Q5_1 || format == Q5_K ? 5 : 4;
}
constexpr bool is_two_level(int64_t format) { return format == Q4_K || format == Q5_K; }
// Of a block, whose header precedes its codes.
constexpr int64_t block_groups(int64_t format) {
    return format == Q4 || format == Q8 ? 2 : format == Q4_1 || format == Q5_1 ? 1 : 8;
}
constexpr int64_t whole_lines(int64_t nbytes) { return (nbytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }
constexpr int64_t header_nbytes(int64_t format, int64_t groups) {
    if (is_two_level(format)) return LINE_BYTES + whole_lines((groups + 1) / 2 * 48);
    if (format == Q6_K) return whole_lines(32 + 32 * groups);
    return whole_lines(groups * (format == MXFP4 ? 16 : format == Q4_ZERO ? 48 : format == Q4_1 || format == Q5_1 ? 64 : 32));
}
// Of a group, or of its first inputs: those of five and six bits have one or two lines more.
constexpr int64_t group_nbytes(int64_t format, int64_t inputs) {
    const int64_t bits = bits_of(format), fill = (inputs + GROUP_FILL - 1) / GROUP_FILL * GROUP_FILL;
    return fill * PANEL * (bits == 8 ? 8 : 4) / 8 + (bits == 8 ? 0 : bits - 4) * LINE_BYTES;
}
constexpr int64_t block_nbytes(int64_t format, int64_t inputs) {
    const int64_t rest = inputs % GROUP;
    return header_nbytes(format, (inputs + GROUP - 1) / GROUP) + inputs / GROUP * group_nbytes(format, GROUP) +
           (rest ? group_nbytes(format, rest) : 0);
}

// Inputs of the units: `per_unit` of each, the last of what is left.
struct Inputs {
    int64_t count;
    int64_t per_unit;
};

// Panels that follow each other in one unit, times all tokens; or those of some units, their parts added.
struct PanelRun {
    int64_t format;
    const uint8_t *data;
    int64_t units;        // that follow each other, all of the same inputs; one unless there are sums
    int64_t data_stride;  // from one unit to the next
    int64_t inputs;       // of one unit
    int64_t outputs;      // of these panels; the last panel may have less than 16
    // Of one tile after the other: `tile_nbytes` from one to the next, the first unit `unit_nbytes` per token behind it.
    const uint8_t *activations;
    int64_t tile_nbytes;
    int64_t unit_nbytes;
    int64_t tokens;
    float *y;                // of the first token and output
    int64_t y_stride;        // from one token to the next
    int64_t y_panel_stride;  // from one panel to the next
    // Of a row-parallel matrix instead: the sums of the units' parts, whole panels laid out as y; and those of their
    // squares, a panel for each tile of tokens.
    int32_t *sums;
    float *squares;
    int64_t squares_panel_stride;  // from one panel to the next
    bool adds;  // sums and squares go on; otherwise they start from 0
    bool ahead;  // whether codes are asked for ahead of their use, by kernels that can
};

struct PanelKernels {
    int tile_tokens;
    int step;        // inputs of one token that lie side by side in a tile
    bool can_fetch;  // codes ahead of their use
    // Writes one tile: x has at most tile_tokens tokens at the stride. `factor`, a power of two: of every dx.
    void (*quantise)(const float *x, int64_t stride, int64_t tokens, const Inputs &inputs, float factor, uint8_t *tile);
    void (*multiply)(const PanelRun &);
};

// Null where the build or the CPU lacks the instruction set.
const PanelKernels *portable_panels();
const PanelKernels *avx2_panels();
const PanelKernels *avxvnni_panels();
const PanelKernels *avx512vnni_panels();
const PanelKernels *neon_panels();
const PanelKernels *neon_dotprod_panels();
const PanelKernels *neon_i8mm_panels();

}  // namespace tpiedge

// Unnamed, as everything that has code: sources compiled for different CPUs must not share it.
namespace {

// One of the numbers that lie side by side in a tile.
template <class V>
inline V at(const uint8_t *values, int index) {
    V value;
    memcpy(&value, values + index * sizeof value, sizeof value);
    return value;
}

inline int64_t groups_of(int64_t inputs) { return (inputs + tpiedge::GROUP - 1) / tpiedge::GROUP; }
inline int64_t filled(int64_t inputs) {
    return (inputs + tpiedge::GROUP_FILL - 1) / tpiedge::GROUP_FILL * tpiedge::GROUP_FILL;
}
// Of one token's quantised activations of one unit: the groups, and all.
inline int64_t groups_nbytes(int64_t inputs) { return filled(inputs) + 8 * groups_of(inputs); }
inline int64_t quantised_nbytes(int64_t inputs) { return groups_nbytes(inputs) + 8 * groups_of(inputs); }

inline int64_t units_of(const tpiedge::Inputs &inputs) {
    return inputs.count ? (inputs.count + inputs.per_unit - 1) / inputs.per_unit : 0;
}
inline int64_t inputs_of_unit(const tpiedge::Inputs &inputs, int64_t unit) {
    const int64_t left = inputs.count - unit * inputs.per_unit;
    return left < inputs.per_unit ? left : inputs.per_unit;
}
// Of one token's quantised activations of all units.
inline int64_t quantised_nbytes(const tpiedge::Inputs &inputs) {
    const int64_t units = units_of(inputs);
    if (units == 0) return 0;
    return (units - 1) * quantised_nbytes(inputs.per_unit) + quantised_nbytes(inputs_of_unit(inputs, units - 1));
}

// Of one panel.
constexpr int64_t panel_nbytes(int64_t inputs, int64_t format) {
    const int64_t whole = tpiedge::block_groups(format) * tpiedge::GROUP, rest = inputs % whole;
    return inputs / whole * tpiedge::block_nbytes(format, whole) + (rest ? tpiedge::block_nbytes(format, rest) : 0);
}
// Where the scales and the codes of a group lie in a panel.
inline int64_t scales_at(int64_t group, int64_t bits) {
    return group / 2 * tpiedge::pair_nbytes(bits) + group % 2 * 2 * tpiedge::PANEL;
}
inline int64_t codes_at(int64_t group, int64_t bits) {
    const int64_t before = group % 2 * tpiedge::GROUP * tpiedge::PANEL * bits / 8;
    return group / 2 * tpiedge::pair_nbytes(bits) + tpiedge::LINE_BYTES + before;
}

// What becomes of a group's activations.
struct Quantised {
    float dx;
    int32_t sum;
    int32_t first;  // the sum of the first sixteen q
};

// By the largest magnitude of a group. The bits of magnitudes are ordered as they are, infinities and what is no number
// above all.
struct QuantisedScale {
    float dx;
    float inverse;
    bool zero;  // all q are 0

    explicit QuantisedScale(int32_t most) {
        float amax;
        memcpy(&amax, &most, sizeof amax);
        const bool number = most < 0x7f800000;
        inverse = 127.0f / amax;
        zero = !number || inverse > 3.402823466e38f;
        dx = !number ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
    }
};

}  // namespace

#endif
