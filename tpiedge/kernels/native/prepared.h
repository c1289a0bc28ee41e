// Prepares formats other than q8 and q4 for a product: scales in f32, and codes as bytes (panels.py has each layout).
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

// What a code is more than what it stands for; with tables, what an entry is.
constexpr int offset_of(int64_t format) {
    return has_table(format) ? 128 : format == Q6_K ? 32 : format == Q5_0 ? 16 : 0;
}

constexpr int64_t PREPARED_INPUTS = 8 * GROUP;

// Of up to eight groups of a panel: what is added to y is scales * dx * (sum of v * q) + minimums * dx * (sum of q).
struct Prepared {
    alignas(64) float scales[8][2][PANEL];  // one for each half of a group, or one
    alignas(64) float minimums[8][PANEL];
    const uint8_t *stored[8];  // codes
    // Unless kernels take codes as they are stored: bytes that are 128 more than what each stands for.
    alignas(64) uint8_t bytes[8][GROUP * PANEL];
};

// 128 more than what a code stands for. Those of MXFP4 are twice as large, and its scales half as large.
inline const uint8_t *table_of(int64_t format) {
    alignas(16) static constexpr uint8_t IQ4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                    129, 141, 153, 166, 181, 197, 217, 241};
    alignas(16) static constexpr uint8_t FP4[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                    128, 127, 126, 125, 124, 122, 120, 116};
    return format == IQ4_NL ? IQ4 : FP4;
}

// 2^(e - 128): below 2^-126 an f32 has no exponent left.
inline float power(uint32_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

constexpr uint64_t EACH = 0x0101010101010101;  // byte of a word

typedef uint64_t Sixteen __attribute__((vector_size(16)));  // bytes

inline Sixteen load(const uint8_t *from) {
    Sixteen found;
    memcpy(&found, from, sizeof found);
    return found;
}

// The six-bit scales of a group of a two-level block, or its minimums.
inline Sixteen sixth(const uint8_t *header, int64_t group, int of_minimums) {
    const uint8_t *const pair = header + LINE_BYTES + group / 2 * 48;
    const Sixteen lower = load(pair + group % 2 * 16) >> of_minimums * 4;
    const Sixteen upper = load(pair + 32) >> (group % 2 * 4 + of_minimums * 2);
    return (lower & 15 * EACH) | (upper & 3 * EACH) << 4;
}

typedef uint64_t Line __attribute__((vector_size(64)));

inline void load_line(const uint8_t *from, Line &found) { memcpy(&found, from, sizeof found); }

// Eight inputs of five or six bits, 128 more than what each stands for: the lower four bits are at `codes`, the upper ones
// the lowest of `plane`, which moves on.
template <int64_t FORMAT>
inline void wide_codes(const uint8_t *codes, Line &plane, Line *both) {
    constexpr int64_t WIDE = bits_of(FORMAT) - 4;
    constexpr uint64_t MORE = (FORMAT == Q6_K ? 96 : FORMAT == Q5_0 ? 112 : 128) * EACH, UPPER = (WIDE == 2 ? 3 : 1) * EACH;
    Line lower;
    load_line(codes, lower);
    both[0] = ((lower & 15 * EACH) | (plane & UPPER) << 4) + MORE;
    plane >>= WIDE;
    both[1] = ((lower >> 4 & 15 * EACH) | (plane & UPPER) << 4) + MORE;
    plane >>= WIDE;
}

// Those of a group or its first inputs, whose upper bits are in a line or two before the lower ones.
template <int64_t FORMAT>
inline void widen_codes(const uint8_t *codes, int64_t inputs, uint8_t *bytes) {
    constexpr int64_t PER_LINE = bits_of(FORMAT) == 6 ? 16 : GROUP;
    const uint8_t *const planes = codes;
    codes += (bits_of(FORMAT) - 4) * LINE_BYTES;
    for (int64_t done = 0; done < inputs; done += PER_LINE) {
        Line plane;
        load_line(planes + done / PER_LINE * LINE_BYTES, plane);
        for (int64_t i = done; i < inputs && i < done + PER_LINE; i += 8, bytes += 2 * LINE_BYTES) {
            Line both[2];
            wide_codes<FORMAT>(codes + i / 8 * LINE_BYTES, plane, both);
            memcpy(bytes, both, sizeof both);
        }
    }
}

}  // namespace
}  // namespace tpiedge

#endif
