// Sixteen outputs as two vectors of eight (panels.inl): what AVX2 and AVX-VNNI share.

#include "panels_avx.inl"

namespace {

struct Pair {
    __m256i low, high;
};

struct Avx2Panels : AvxPanels {
    static constexpr int TOKENS = 4;
    struct Floats {
        __m256 low, high;
    };
    using Ints = Pair;

    static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Floats load(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
    static Floats load_some(const float *from, int count) {
        float whole[16] = {};
        memcpy(whole, from, count * sizeof(float));
        return load(whole);
    }
    static void store(float *to, const Floats &value) {
        _mm256_storeu_ps(to, value.low);
        _mm256_storeu_ps(to + 8, value.high);
    }
    static void store_some(float *to, const Floats &value, int count) {
        float whole[16];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static __m256 eight_scales(const uint16_t *from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    }
    static Floats scales(const uint16_t *from) { return {eight_scales(from), eight_scales(from + 8)}; }
    static Floats fold(const Ints &sum, const Floats &scales, float dx, const Floats &y) {
        const __m256 factor = _mm256_set1_ps(dx);
        return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.low), _mm256_mul_ps(scales.low, factor), y.low),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.high), _mm256_mul_ps(scales.high, factor), y.high)};
    }
    static Pair load_codes(const uint8_t *from) {
        const __m256i *at = reinterpret_cast<const __m256i *>(from);
        return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
    }
    static __m256i low_nibbles(__m256i both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
    static void codes4(const uint8_t *from, Pair &first, Pair &second) {
        const Pair both = load_codes(from);
        first = {low_nibbles(both.low), low_nibbles(both.high)};
        second = {low_nibbles(_mm256_srli_epi16(both.low, 4)), low_nibbles(_mm256_srli_epi16(both.high, 4))};
    }
};

}  // namespace
