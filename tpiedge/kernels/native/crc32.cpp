// The CRC-32 of zlib (reflected polynomial 0xEDB88320), by carry-less multiplication where the CPU has it.
//
// A stretch of 64 bytes is four polynomials of 128 bits. Each step multiplies them by x^512 modulo the polynomial (two
// products of 64 bits each) and adds the next stretch; what is left at the end is folded into one, then into 64 bits,
// then reduced by Barrett's method (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ").
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#include "interface.h"

namespace {

constexpr uint32_t POLYNOMIAL = 0xEDB88320;
constexpr int TABLES = 8;

struct Tables {
    uint32_t of[TABLES][256];

    Tables() {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
            of[0][byte] = crc;
        }
        for (int table = 1; table < TABLES; table++) {
            for (int byte = 0; byte < 256; byte++) {
                const uint32_t before = of[table - 1][byte];
                of[table][byte] = (before >> 8) ^ of[0][before & 0xFF];
            }
        }
    }
};

// Eight bytes at a time by table. `crc` is not inverted here.
uint32_t by_table(const uint8_t *data, size_t size, uint32_t crc) {
    static const Tables tables;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++) crc ^= tables.of[7 - byte][(word >> (8 * byte)) & 0xFF];
    }
    for (; size; data++, size--) crc = (crc >> 8) ^ tables.of[0][(crc ^ *data) & 0xFF];
    return crc;
}

#if defined(__x86_64__)

// x^n modulo the polynomial, bit-reflected, for the distances that a lane moves.
alignas(16) constexpr uint64_t BY_512[2] = {0x0154442bd4, 0x01c6e41596};
alignas(16) constexpr uint64_t BY_128[2] = {0x01751997d0, 0x00ccaa009e};
alignas(16) constexpr uint64_t BY_64[2] = {0x0163cd6124, 0};
alignas(16) constexpr uint64_t BARRETT[2] = {0x01db710641, 0x01f7011641};

#define TPIEDGE_PCLMUL __attribute__((target("pclmul,sse4.1")))

TPIEDGE_PCLMUL inline __m128i load(const void *at) { return _mm_loadu_si128(static_cast<const __m128i *>(at)); }

TPIEDGE_PCLMUL inline __m128i fold(__m128i lane, __m128i by, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(lane, by, 0x00);
    const __m128i high = _mm_clmulepi64_si128(lane, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// `size` is a multiple of 16, at least 64.
TPIEDGE_PCLMUL uint32_t by_multiplication(const uint8_t *data, size_t size, uint32_t crc) {
    __m128i lane[4];
    for (int i = 0; i < 4; i++) lane[i] = load(data + 16 * i);
    lane[0] = _mm_xor_si128(lane[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
    const __m128i by_512 = load(BY_512);
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        for (int i = 0; i < 4; i++) lane[i] = fold(lane[i], by_512, load(data + 16 * i));
    }
    const __m128i by_128 = load(BY_128);
    __m128i all = lane[0];
    for (int i = 1; i < 4; i++) all = fold(all, by_128, lane[i]);
    for (; size; data += 16, size -= 16) all = fold(all, by_128, load(data));

    const __m128i low_word = _mm_setr_epi32(-1, 0, -1, 0);
    all = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by_128, 0x10));
    const __m128i rest = _mm_srli_si128(all, 4);
    all = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(all, low_word), load(BY_64), 0x00), rest);

    const __m128i barrett = load(BARRETT);
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(all, low_word), barrett, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_word), barrett, 0x00);
    return static_cast<uint32_t>(_mm_extract_epi32(_mm_xor_si128(all, quotient), 1));
}

uint32_t update(const uint8_t *data, size_t size, uint32_t crc) {
    static const bool multiplies = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    const size_t whole = size & ~size_t{15};
    if (!multiplies || whole < 64) return by_table(data, size, crc);
    return by_table(data + whole, size - whole, by_multiplication(data, whole, crc));
}

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)

uint32_t update(const uint8_t *data, size_t size, uint32_t crc) {
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32d(crc, word);
    }
    for (; size; data++, size--) crc = __crc32b(crc, *data);
    return crc;
}

#else

uint32_t update(const uint8_t *data, size_t size, uint32_t crc) { return by_table(data, size, crc); }

#endif

}  // namespace

// As zlib's crc32(): `before` is 0, or the result for the bytes that come before.
TPIEDGE_EXPORT uint32_t tpiedge_crc32(const void *data, int64_t size, uint32_t before) {
    return ~update(static_cast<const uint8_t *>(data), static_cast<size_t>(size), ~before);
}
