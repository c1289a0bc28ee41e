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
constexpr bool has_f16_scales(int64_t format) { return format != MXFP4 && format != Q6_K && !is_two_level(format); }

inline const uint16_t *halves_at(const uint8_t *header, int64_t row) {
    return reinterpret_cast<const uint16_t *>(header) + row * PANEL;
}

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

inline void prepare_two_levels(const uint8_t *block, int64_t groups, const float (*d)[PANEL], Prepared &made) {
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *const pair = block + LINE_BYTES + g / 2 * 48, *const lower = pair + g % 2 * 16;
        for (int r = 0; r < PANEL; r++) {
            const int upper = pair[32 + r] >> g % 2 * 4;
            made.scales[g][0][r] = d[0][r] * static_cast<float>((lower[r] & 15) | (upper & 3) << 4);
            made.minimums[g][r] = -d[1][r] * static_cast<float>(lower[r] >> 4 | (upper >> 2 & 3) << 4);
        }
    }
}

inline void prepare_halves(const uint8_t *block, int64_t groups, const float *d, Prepared &made) {
    for (int64_t g = 0; g < groups; g++)
        for (int half = 0; half < 2; half++) {
            const int8_t *const scales = reinterpret_cast<const int8_t *>(block + 32 + 32 * g + 16 * half);
            for (int r = 0; r < PANEL; r++) made.scales[g][half][r] = d[r] * static_cast<float>(scales[r]);
        }
}

inline void prepare_zeros(const uint8_t *block, int64_t groups, Prepared &made) {
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *const zeros = block + 2 * LINE_BYTES + PANEL * g;
        for (int r = 0; r < PANEL; r++) made.minimums[g][r] = -made.scales[g][0][r] * static_cast<float>(zeros[r]);
    }
}

// 2^(e - 128): below 2^-126 an f32 has no exponent left.
inline void prepare_powers(const uint8_t *block, int64_t groups, Prepared &made) {
    for (int64_t g = 0; g < groups; g++)
        for (int r = 0; r < PANEL; r++) {
            const uint32_t e = block[PANEL * g + r], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
            memcpy(&made.scales[g][0][r], &bits, sizeof bits);
        }
}

typedef uint64_t Line __attribute__((vector_size(64)));

inline void load(const uint8_t *from, Line &line) { memcpy(&line, from, sizeof line); }

// Of five and six bits: those of a group, whose upper bits are in a line or two behind the lower four.
inline void prepare_codes(int64_t format, const uint8_t *codes, int64_t inputs, uint8_t *bytes) {
    constexpr uint64_t EACH = 0x0101010101010101;
    const bool six = format == Q6_K;
    const uint64_t upper = (six ? 3 : 1) * EACH, more = EACH * (format == Q6_K ? 96 : format == Q5_0 ? 112 : 128);
    const uint8_t *const planes = codes + inputs / 8 * LINE_BYTES;
    for (int64_t i = 0; i < inputs; i += 8, codes += LINE_BYTES, bytes += 2 * LINE_BYTES) {
        Line both, plane;
        load(codes, both);
        load(planes + (six ? i / 16 * LINE_BYTES : 0), plane);
        const int64_t at = six ? i / 4 % 4 * 2 : i / 4, next = at + (six ? 2 : 1);
        const Line low = ((both & 15 * EACH) | (plane >> at & upper) << 4) + more;
        const Line high = ((both >> 4 & 15 * EACH) | (plane >> next & upper) << 4) + more;
        memcpy(bytes, &low, sizeof low);
        memcpy(bytes + LINE_BYTES, &high, sizeof high);
    }
}

}  // namespace
}  // namespace tpiedge

#endif
