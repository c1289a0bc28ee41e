// What formats other than q8 and q4 need before a product: scales in f32, and codes as bytes (panels.py has each layout).
#ifndef TPIEDGE_PREPARED_H
#define TPIEDGE_PREPARED_H

#include <stdint.h>
#include <string.h>

#include "panels.h"

namespace tpiedge {
namespace {

constexpr bool has_table(int64_t format) { return format == IQ4_NL || format == MXFP4; }
constexpr bool has_minimums(int64_t format) {
    return format == Q4_1 || format == Q4_ZERO || format == Q5_1 || is_two_level(format);
}
constexpr bool codes_as_stored(int64_t format) { return bits_of(format) == 4 && !has_table(format); }

constexpr int64_t PREPARED_INPUTS = 8 * GROUP;

// Of up to eight groups of a panel: what is added to y is scales * dx * (sum of v * q) + minimums * dx * (sum of q).
struct Prepared {
    alignas(64) float scales[8][2][PANEL];  // one for each half of a group, or one
    alignas(64) float minimums[8][PANEL];
    alignas(64) uint8_t bytes[8][GROUP * PANEL];
    // Eight bits, 128 more than what each stands for, at `bytes`; or four bits as they are stored.
    const uint8_t *codes[8];
};

// 128 more than what a code stands for. Those of MXFP4 are twice as large, and its scales half as large.
inline const uint8_t *table_of(int64_t format) {
    alignas(16) static constexpr uint8_t IQ4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                    129, 141, 153, 166, 181, 197, 217, 241};
    alignas(16) static constexpr uint8_t FP4[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                    128, 127, 126, 125, 124, 122, 120, 116};
    return format == IQ4_NL ? IQ4 : FP4;
}

typedef uint64_t Sixteen __attribute__((vector_size(16)));  // bytes

// Six-bit scales and minimums of two groups: [group][scale or minimum][output].
inline void unpack_sixths(const uint8_t *pair, uint8_t (*found)[2][PANEL]) {
    constexpr uint64_t EACH = 0x0101010101010101;
    Sixteen upper;
    memcpy(&upper, pair + 32, sizeof upper);
    for (int g = 0; g < 2; g++, upper >>= 4) {
        Sixteen lower;
        memcpy(&lower, pair + 16 * g, sizeof lower);
        const Sixteen scales = (lower & 15 * EACH) | (upper & 3 * EACH) << 4;
        const Sixteen minimums = (lower >> 4 & 15 * EACH) | (upper & 12 * EACH) << 2;
        memcpy(found[g][0], &scales, sizeof scales);
        memcpy(found[g][1], &minimums, sizeof minimums);
    }
}

inline void prepare_halves(const uint8_t *header, int64_t groups, const float *d, Prepared &made) {
    for (int64_t g = 0; g < groups; g++)
        for (int half = 0; half < 2; half++) {
            const int8_t *const scales = reinterpret_cast<const int8_t *>(header + 32 + 32 * g + 16 * half);
            for (int r = 0; r < PANEL; r++) made.scales[g][half][r] = d[r] * static_cast<float>(scales[r]);
        }
}

// 2^(e - 128): below 2^-126 an f32 has no exponent left.
inline void prepare_powers(const uint8_t *header, int64_t groups, int64_t first, Prepared &made) {
    for (int64_t g = 0; g < groups; g++)
        for (int r = 0; r < PANEL; r++) {
            const uint32_t e = header[PANEL * g + r], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
            memcpy(&made.scales[first + g][0][r], &bits, sizeof bits);
        }
}

typedef uint64_t Line __attribute__((vector_size(64)));

inline void load(const uint8_t *from, Line &line) { memcpy(&line, from, sizeof line); }

// Of five or six bits: those of a group, whose upper bits are in a line or two behind the lower four.
template <int BITS>
inline void widen_codes(const uint8_t *codes, int64_t inputs, uint64_t more, uint8_t *bytes) {
    constexpr uint64_t EACH = 0x0101010101010101, UPPER = (BITS == 6 ? 3 : 1) * EACH;
    const uint8_t *const planes = codes + inputs / 8 * LINE_BYTES;
    Line plane = {};
    for (int64_t i = 0; i < inputs; i += 8, codes += LINE_BYTES, bytes += 2 * LINE_BYTES) {
        Line both;
        load(codes, both);
        if (BITS == 6 ? i % 16 == 0 : i == 0) load(planes + i / 16 * LINE_BYTES, plane);
        const Line low = ((both & 15 * EACH) | (plane & UPPER) << 4) + more * EACH;
        plane >>= BITS - 4;
        const Line high = ((both >> 4 & 15 * EACH) | (plane & UPPER) << 4) + more * EACH;
        plane >>= BITS - 4;
        memcpy(bytes, &low, sizeof low);
        memcpy(bytes + LINE_BYTES, &high, sizeof high);
    }
}

}  // namespace
}  // namespace tpiedge

#endif
