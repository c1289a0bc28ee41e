// The part that panel kernels of AVX2 and later share (panels.inl). To be included where AVX2, FMA and F16C are
// enabled.

#include <immintrin.h>

#include "panels.h"

namespace {

struct AvxPanels {
    static constexpr int STEP = 4;

    static __m256i magnitude(const float *x) {
        return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(x)), _mm256_set1_epi32(INT32_MAX));
    }
    static int32_t largest(__m256i a) {
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    static int32_t added_words(__m128i a) { return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e))); }

    static void lookup(const uint8_t *table, const uint8_t *from, uint8_t *low, uint8_t *high) {
        const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
        const __m256i nibble = _mm256_set1_epi8(15);
        for (int i = 0; i < 64; i += 32) {
            const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + i));
            const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(low + i),
                                _mm256_shuffle_epi8(values, _mm256_and_si256(both, nibble)));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(high + i), _mm256_shuffle_epi8(values, upper));
        }
    }

    static Quantised quantise(const float *x, uint8_t *q) {
        const __m256i most = _mm256_max_epi32(_mm256_max_epi32(magnitude(x), magnitude(x + 8)),
                                              _mm256_max_epi32(magnitude(x + 16), magnitude(x + 24)));
        const QuantisedScale scale(largest(most));
        const __m256 inverse = _mm256_set1_ps(scale.inverse);
        __m256i n[4];
        for (int i = 0; i < 4; i++) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
        if (scale.zero)
            for (int i = 0; i < 4; i++) n[i] = _mm256_setzero_si256();
        // Packing works on halves of 16 bytes; the last step puts them in order.
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        const __m256i bytes = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(q), bytes);
        const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
        const int32_t first = added_words(_mm256_castsi256_si128(sums)) - 128 * 16;
        return {scale.dx, first + added_words(_mm256_extracti128_si256(sums, 1)) - 128 * 16, first};
    }
};

}  // namespace
