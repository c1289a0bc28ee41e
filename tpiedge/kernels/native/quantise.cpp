// From numbers to panels of integers with scales: as tpiedge/kernels/quantise.py says, to the same bytes as its numpy.
//
// A tile is 32 inputs of as many outputs as a vector has lanes; the vectors are those that GCC and Clang know on any
// machine. Sums run over the inputs in order and nothing is fused (-ffp-contract=off): every width gives the same bits.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Vectors are passed by value, but to functions that are inlined: no calling convention matters.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "interface.h"
#include "panels.h"

#define TPIEDGE_INLINE __attribute__((always_inline)) inline

#if defined(__x86_64__)
#define TPIEDGE_TARGET(isa) __attribute__((target(isa)))
#endif

namespace {

using tpiedge::GROUP;
using tpiedge::GROUP_FILL;
using tpiedge::LINE_BYTES;
using tpiedge::PANEL;

constexpr int DIVISORS = 6;
constexpr float Q4_DIVISORS[DIVISORS] = {8.0f, 7.0f, 7.5f, 8.5f, 9.0f, 9.5f};
constexpr int32_t INFINITE = 0x7F800000;

enum Kind { F32, F16, BF16 };

struct Range {
    float least;
    float greatest;
};

struct Unit {
    const void *values;
    int64_t stride;  // numbers from one output to the next
    int64_t outputs;
    int64_t inputs;
    bool searches;
    uint8_t *panels;
    double signal;
    double noise;
};

TPIEDGE_INLINE float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <int LANES>
struct Vectors;

template <>
struct Vectors<4> {
    typedef float Floats __attribute__((vector_size(16)));
    typedef int32_t Ints __attribute__((vector_size(16)));
    typedef uint16_t Halves __attribute__((vector_size(8)));
};

template <>
struct Vectors<8> {
    typedef float Floats __attribute__((vector_size(32)));
    typedef int32_t Ints __attribute__((vector_size(32)));
    typedef uint16_t Halves __attribute__((vector_size(16)));
};

template <>
struct Vectors<16> {
    typedef float Floats __attribute__((vector_size(64)));
    typedef int32_t Ints __attribute__((vector_size(64)));
    typedef uint16_t Halves __attribute__((vector_size(32)));
};

// Computes with vectors of LANES numbers.
template <int LANES>
struct Quantiser {
    using Floats = typename Vectors<LANES>::Floats;
    using Ints = typename Vectors<LANES>::Ints;
    using Halves = typename Vectors<LANES>::Halves;

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
        const Floats above = value > least ? value : least;
        const Floats within = above < greatest ? above : greatest;
        return (within + magic) - magic;
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

    template <int KIND>
    static TPIEDGE_INLINE void load(const void *values, int64_t stride, int outputs, int inputs, Tile &tile) {
        constexpr int SIZE = KIND == F32 ? 4 : 2;
        alignas(64) int32_t column[GROUP][LANES];
        if (outputs < LANES || inputs < GROUP) memset(column, 0, sizeof column);
        for (int r = 0; r < outputs; r++) {
            const char *from = static_cast<const char *>(values) + r * stride * SIZE;
            if (KIND == F32) {
                for (int i = 0; i < inputs; i++) memcpy(&column[i][r], from + i * 4, 4);
            } else {
                for (int i = 0; i < inputs; i++) {
                    uint16_t half;
                    memcpy(&half, from + i * 2, 2);
                    column[i][r] = half;
                }
            }
        }
        for (int i = 0; i < GROUP; i++) {
            Ints bits;
            memcpy(&bits, column[i], sizeof bits);
            tile.w[i] = KIND == F16 ? widened(bits) : (Floats)(KIND == BF16 ? bits << 16 : bits);
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
        constexpr int AT_ONCE = 3;
        for (int first = 0; first < DIVISORS; first += AT_ONCE) {
            Scale scales[AT_ONCE];
            Floats errors[AT_ONCE];
            for (int c = 0; c < AT_ONCE; c++) scales[c] = stored(extreme / -Q4_DIVISORS[first + c]);
            errors_of<AT_ONCE>(tile, scales, range, errors);
            if (first == 0) least = errors[0];
            for (int c = 0; c < AT_ONCE; c++) keep_better(best, least, scales[c], errors[c]);
        }
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

    template <int KIND, int BITS>
    static TPIEDGE_INLINE bool quantise_tile(Unit &unit, int64_t panel_output, int64_t lane, int64_t group, uint8_t *panel) {
        constexpr int SIZE = KIND == F32 ? 4 : 2;
        const Range range = BITS == 8 ? Range{-127, 127} : Range{-8, 7};
        const int64_t input = group * GROUP;
        const int64_t first_output = panel_output + lane;
        const int64_t left = unit.outputs - first_output;
        const int outputs = static_cast<int>(left < 0 ? 0 : left < LANES ? left : LANES);
        const int inputs = static_cast<int>(unit.inputs - input < GROUP ? unit.inputs - input : GROUP);
        const char *from = static_cast<const char *>(unit.values) + (first_output * unit.stride + input) * SIZE;
        Tile tile;
        if (outputs == LANES && inputs == GROUP) {
            load<KIND>(from, unit.stride, LANES, GROUP, tile);
        } else {
            load<KIND>(from, unit.stride, outputs, inputs, tile);
        }
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

    template <int KIND, int BITS>
    static TPIEDGE_INLINE bool quantise_unit(Unit &unit) {
        const int64_t groups = groups_of(unit.inputs), nbytes = panel_nbytes(unit.inputs, BITS);
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

    static TPIEDGE_INLINE bool quantise(Unit &unit, int64_t kind, int64_t bits) {
        switch (kind) {
            case F32: return bits == 8 ? quantise_unit<F32, 8>(unit) : quantise_unit<F32, 4>(unit);
            case F16: return bits == 8 ? quantise_unit<F16, 8>(unit) : quantise_unit<F16, 4>(unit);
            default: return bits == 8 ? quantise_unit<BF16, 8>(unit) : quantise_unit<BF16, 4>(unit);
        }
    }
};

bool quantise_portable(Unit &unit, int64_t kind, int64_t bits) { return Quantiser<4>::quantise(unit, kind, bits); }

#if defined(__x86_64__)
TPIEDGE_TARGET("avx2") bool quantise_avx2(Unit &unit, int64_t kind, int64_t bits) {
    return Quantiser<8>::quantise(unit, kind, bits);
}

TPIEDGE_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
bool quantise_avx512(Unit &unit, int64_t kind, int64_t bits) { return Quantiser<16>::quantise(unit, kind, bits); }

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace

// Quantises outputs x inputs numbers (kind 0 f32, 1 f16, 2 bf16; `stride` numbers from one output to the next) into
// panels of `bits` bits, with at most the instruction set `level`: 0 any, 1 AVX2, 2 AVX512. `sums` becomes the squares
// of the weights and of their errors. Returns 0, or 1 where a weight or a scale is not a finite number: then the
// panels are not complete.
TPIEDGE_EXPORT int64_t tpiedge_quantise(int64_t level, const void *values, int64_t kind, int64_t stride,
                                        int64_t outputs, int64_t inputs, int64_t bits, int64_t searches,
                                        uint8_t *panels, double *sums) {
    Unit unit{values, stride, outputs, inputs, searches != 0, panels, 0, 0};
    bool done;
#if defined(__x86_64__)
    if (level >= 2 && has_avx512()) {
        done = quantise_avx512(unit, kind, bits);
    } else if (level >= 1 && __builtin_cpu_supports("avx2")) {
        done = quantise_avx2(unit, kind, bits);
    } else {
        done = quantise_portable(unit, kind, bits);
    }
#else
    (void)level;
    done = quantise_portable(unit, kind, bits);
#endif
    sums[0] = unit.signal;
    sums[1] = unit.noise;
    return done ? 0 : 1;
}
