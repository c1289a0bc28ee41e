// Quantises numbers to panels of integers with scales. Each instruction set's source defines a type V first:
//   LANES                                the numbers of a vector
//   Floats, Ints, Halves                 vectors of LANES f32, i32, u16, which GCC and Clang know on any machine
//   max(a, b), min(a, b)                 a where it is the greater, or less; else b
//   columns(from, stride, to)            of LANES outputs, `stride` numbers apart, 32 inputs of 16 bits each: by input
//
// A tile is 32 inputs of LANES outputs. Sums run over the inputs in order and nothing is fused (-ffp-contract=off): every
// width gives the same bits.
#include <stdint.h>
#include <string.h>

#include <type_traits>

// Vectors are passed by value, but to functions that are inlined: no calling convention matters.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "compiler.h"
#include "panels.h"
#include "quantise.h"

namespace {

using tpiedge::GROUP;
using tpiedge::GROUP_FILL;
using tpiedge::LINE_BYTES;
using tpiedge::PANEL;
using tpiedge::WeightKind;
using tpiedge::WeightUnit;

constexpr int DIVISORS = 6;
constexpr float Q4_DIVISORS[DIVISORS] = {8.0f, 7.0f, 7.5f, 8.5f, 9.0f, 9.5f};
constexpr int32_t INFINITE = 0x7F800000;

struct Range {
    float least;
    float greatest;
};

TPIEDGE_INLINE float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class V>
struct Quantiser {
    static constexpr int LANES = V::LANES;
    using Floats = typename V::Floats;
    using Ints = typename V::Ints;
    using Halves = typename V::Halves;

    static TPIEDGE_INLINE Floats magnitude(const Floats &value) { return (Floats)((Ints)value & 0x7FFFFFFF); }

    // f16, in the lower halves, as f32.
    static TPIEDGE_INLINE Floats widened(const Ints &half) {
        const Ints rest = (half & 0x7FFF) << 13;
        const Floats least = Floats{} + of_bits(113 << 23);
        const Ints small = (Ints)((Floats)(rest + (113 << 23)) - least);
        const Ints normal = rest + (rest >= (31 << 23) ? Ints{} + ((255 - 31) << 23) : Ints{} + ((127 - 15) << 23));
        return (Floats)((half & 0x8000) << 16 | (rest < (1 << 23) ? small : normal));
    }

    // To the nearest f16, halves to even; -0 and what rounds to it become 0; a NaN becomes an infinity.
    static TPIEDGE_INLINE Ints narrowed(const Floats &value) {
        const Ints size = (Ints)value & 0x7FFFFFFF;
        // Below the smallest normal number the sum with 0.5 puts the last bit of f16 at the last bit of f32.
        const Ints small = (Ints)((Floats)size + 0.5f) - (Ints)(Floats{} + 0.5f);
        const Ints normal = (size - ((127 - 15) << 23) + 0xFFF + ((size >> 13) & 1)) >> 13;
        const Ints finite = size < (113 << 23) ? small : normal;
        const Ints whole = size >= 0x477FF000 ? Ints{} + 0x7C00 : finite;
        return whole == 0 ? whole : whole | (((Ints)value >> 16) & 0x8000);
    }

    // To the nearest integer of the range, halves to even: the sum with 1.5 * 2^23 has no bits for fractions.
    static TPIEDGE_INLINE Floats rounded(const Floats &value, const Range &range) {
        const Floats magic = Floats{} + 12582912.0f;
        const Floats least = Floats{} + range.least, greatest = Floats{} + range.greatest;
        return (V::min(V::max(value, least), greatest) + magic) - magic;
    }

    // Scales as they are stored.
    struct Scale {
        Ints half;
        Floats wide;
        Floats inverse;
    };

    static TPIEDGE_INLINE Scale stored(const Floats &wanted) {
        Scale scale;
        scale.half = narrowed(wanted);
        scale.wide = widened(scale.half);
        scale.inverse = scale.half == 0 ? Floats{} : 1.0f / scale.wide;
        return scale;
    }

    struct Tile {
        Floats w[GROUP];  // by input
    };

    template <WeightKind KIND>
    static TPIEDGE_INLINE void load(const void *values, int64_t stride, int outputs, int inputs, Tile &tile) {
        Ints columns[GROUP];
        if (outputs < LANES || inputs < GROUP) {
            gather<KIND>(values, stride, outputs, inputs, columns);
        } else if (KIND == WeightKind::F32) {
            gather<KIND>(values, stride, LANES, GROUP, columns);
        } else {
            V::columns(static_cast<const uint16_t *>(values), stride, columns);
        }
        for (int i = 0; i < GROUP; i++) {
            const Ints bits = columns[i];
            const Ints whole = KIND == WeightKind::BF16 ? bits << 16 : bits;
            tile.w[i] = KIND == WeightKind::F16 ? widened(bits) : (Floats)whole;
        }
    }

    // As V::columns, number by number; zeros where `outputs` or `inputs` end.
    template <WeightKind KIND>
    static TPIEDGE_INLINE void gather(const void *values, int64_t stride, int outputs, int inputs, Ints *columns) {
        using Bits = std::conditional_t<KIND == WeightKind::F32, uint32_t, uint16_t>;
        char *to = reinterpret_cast<char *>(columns);
        if (outputs < LANES || inputs < GROUP) memset(to, 0, GROUP * sizeof(Ints));
        for (int r = 0; r < outputs; r++) {
            const Bits *from = static_cast<const Bits *>(values) + r * stride;
            for (int i = 0; i < inputs; i++) {
                Bits number;
                memcpy(&number, from + i, sizeof number);
                const uint32_t bits = number;
                memcpy(to + (i * LANES + r) * sizeof bits, &bits, sizeof bits);
            }
        }
    }

    // The weights of largest magnitude, the first of several; false where one is no number.
    static TPIEDGE_INLINE bool extremes(const Tile &tile, Floats &extreme) {
        Floats largest = {};
        Ints odd = {};
        extreme = Floats{};
        for (int i = 0; i < GROUP; i++) {
            const Floats size = magnitude(tile.w[i]);
            const Ints larger = size > largest;
            extreme = larger ? tile.w[i] : extreme;
            largest = larger ? size : largest;
            odd |= (Ints)size >= INFINITE;
        }
        int32_t any = 0;
        for (int r = 0; r < LANES; r++) any |= odd[r];
        return !any;
    }

    // Of COUNT scales at once: the sums of squared errors.
    template <int COUNT>
    static TPIEDGE_INLINE void errors_of(const Tile &tile, const Scale *scales, const Range &range, Floats *errors) {
        Floats sums[COUNT] = {};
        for (int i = 0; i < GROUP; i++) {
            const Floats w = tile.w[i];
            for (int c = 0; c < COUNT; c++) {
                const Floats off = w - rounded(w * scales[c].inverse, range) * scales[c].wide;
                sums[c] += off * off;
            }
        }
        for (int c = 0; c < COUNT; c++) errors[c] = sums[c];
    }

    static TPIEDGE_INLINE void keep_better(Scale &best, Floats &least, const Scale &scale, const Floats &error) {
        const Ints takes = error < least;
        best.half = takes ? scale.half : best.half;
        best.wide = takes ? scale.wide : best.wide;
        best.inverse = takes ? scale.inverse : best.inverse;
        least = takes ? error : least;
    }

    static TPIEDGE_INLINE void search(const Tile &tile, const Floats &extreme, const Range &range, Scale &best, Floats &least) {
        Scale scales[DIVISORS];
        Floats errors[DIVISORS];
        for (int c = 0; c < DIVISORS; c++) scales[c] = stored(extreme / -Q4_DIVISORS[c]);
        errors_of<DIVISORS>(tile, scales, range, errors);
        least = errors[0];
        for (int c = 1; c < DIVISORS; c++) keep_better(best, least, scales[c], errors[c]);
        Floats over = {}, under = {};
        for (int i = 0; i < GROUP; i++) {
            const Floats code = rounded(tile.w[i] * best.inverse, range);
            over += tile.w[i] * code;
            under += code * code;
        }
        const Scale fitting = stored(under == 0 ? Floats{} : over / under);
        Floats error;
        errors_of<1>(tile, &fitting, range, &error);
        keep_better(best, least, fitting, error);
    }

    // The codes of `inputs` inputs in lines of 4 (q8) or 8 (q4), zeros where `outputs` or inputs end.
    template <int BITS>
    static TPIEDGE_INLINE void store(const Tile &tile, const Scale &scale, const Range &range, int outputs, int inputs,
                              uint8_t *to) {
        constexpr int IN_LINE = 32 / BITS;
        Ints real;
        for (int r = 0; r < LANES; r++) real[r] = r < outputs ? -1 : 0;
        for (int i = 0; i < inputs; i += IN_LINE, to += LINE_BYTES) {
            Ints word = {};
            for (int j = 0; j < IN_LINE && i + j < inputs; j++) {
                const Floats code = rounded(tile.w[i + j] * scale.inverse, range) - (range.least - (BITS == 8 ? 1 : 0));
                word |= __builtin_convertvector(code, Ints) << (BITS == 8 ? 8 * j : 8 * (j & 3) + (j & 4));
            }
            word &= real;
            memcpy(to, &word, sizeof word);
        }
    }

    template <WeightKind KIND, int BITS>
    static TPIEDGE_INLINE bool quantise_tile(WeightUnit &unit, int64_t panel_output, int64_t lane, int64_t group, uint8_t *panel) {
        constexpr int SIZE = KIND == WeightKind::F32 ? 4 : 2;
        const Range range = BITS == 8 ? Range{-127, 127} : Range{-8, 7};
        const int64_t input = group * GROUP;
        const int64_t first_output = panel_output + lane;
        const int64_t left = unit.outputs - first_output;
        const int outputs = static_cast<int>(left < 0 ? 0 : left < LANES ? left : LANES);
        const int inputs = static_cast<int>(unit.inputs - input < GROUP ? unit.inputs - input : GROUP);
        const char *from = static_cast<const char *>(unit.values) + (first_output * unit.stride + input) * SIZE;
        Tile tile;
        load<KIND>(from, unit.stride, outputs, inputs, tile);
        Floats extreme, error = {};
        if (!extremes(tile, extreme)) return false;
        Scale scale = stored(BITS == 8 ? magnitude(extreme) / 127.0f : extreme / -Q4_DIVISORS[0]);
        for (int r = 0; r < LANES; r++)
            if ((scale.half[r] & 0x7C00) == 0x7C00) return false;
        if (BITS == 4 && unit.searches) {
            search(tile, extreme, range, scale, error);
        } else {
            errors_of<1>(tile, &scale, range, &error);
        }
        Floats squares = {};
        for (int i = 0; i < GROUP; i++) squares += tile.w[i] * tile.w[i];
        for (int r = 0; r < LANES; r++) {
            unit.signal += static_cast<double>(squares[r]);
            unit.noise += static_cast<double>(error[r]);
        }
        const Halves halves = __builtin_convertvector(scale.half, Halves);
        memcpy(panel + scales_at(group, BITS) + lane * sizeof(uint16_t), &halves, sizeof halves);
        store<BITS>(tile, scale, range, outputs, inputs, panel + codes_at(group, BITS) + 4 * lane);
        return true;
    }

    template <WeightKind KIND, int BITS>
    static TPIEDGE_INLINE bool quantise_unit(WeightUnit &unit) {
        const int64_t groups = groups_of(unit.inputs), nbytes = panel_nbytes(unit.inputs, BITS == 4 ? tpiedge::Q4 : tpiedge::Q8);
        constexpr int64_t LAST_STEP = GROUP_FILL * PANEL * BITS / 8;
        uint8_t *panel = unit.panels;
        for (int64_t output = 0; output < unit.outputs; output += PANEL, panel += nbytes) {
            if (groups % 2) memset(panel + scales_at(groups, BITS), 0, 2 * PANEL);
            memset(panel + nbytes - LAST_STEP, 0, LAST_STEP);
            for (int64_t group = 0; group < groups; group++)
                for (int lane = 0; lane < PANEL; lane += LANES)
                    if (!quantise_tile<KIND, BITS>(unit, output, lane, group, panel)) return false;
        }
        return true;
    }

    static bool quantise(WeightUnit &unit) {
        switch (unit.kind) {
            case WeightKind::F32: return with<WeightKind::F32>(unit);
            case WeightKind::F16: return with<WeightKind::F16>(unit);
            default: return with<WeightKind::BF16>(unit);
        }
    }

    template <WeightKind KIND>
    static TPIEDGE_INLINE bool with(WeightUnit &unit) {
        return unit.bits == 8 ? quantise_unit<KIND, 8>(unit) : quantise_unit<KIND, 4>(unit);
    }
};

}  // namespace
