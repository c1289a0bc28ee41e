// Vectors of eight floats: AVX2, FMA and F16C.
#include "kernels.h"
#include "x86_features.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

namespace {

struct Avx2 {
    using Reg = __m256;
    static constexpr int lanes = 8;
    static constexpr int TOKENS = 2;
    static constexpr int VECTORS = 4;
    static constexpr int KEYS = 4;

    static Reg zero() { return _mm256_setzero_ps(); }
    static Reg broadcast(float value) { return _mm256_set1_ps(value); }
    static Reg load(const float *from) { return _mm256_loadu_ps(from); }
    static Reg load(const uint16_t *from) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    template <class W>
    static Reg load_some(const W *from, int count) {
        W whole[lanes] = {};
        memcpy(whole, from, count * sizeof(W));
        return load(whole);
    }
    static void store(float *to, Reg value) { _mm256_storeu_ps(to, value); }
    static void store_some(float *to, Reg value, int count) {
        float whole[lanes];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
    static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
    static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
    static float sum(Reg a) {
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    static Reg fused(Reg a, Reg b, Reg c) { return fma(a, b, c); }
    // Of each 128 bits of a and b: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
    static Reg weave(Reg a, Reg b) { return add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
    static Reg quads(Reg a, Reg b, Reg c, Reg d) {
        const __m256d ab = _mm256_castps_pd(weave(a, b)), cd = _mm256_castps_pd(weave(c, d));
        return add(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    }
    static void store_quads(float *to, Reg a) {
        _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
    }
    static Reg power2(Reg magic) {
        const __m256i n = _mm256_add_epi32(_mm256_castps_si256(magic), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
    }
    static Reg half(uint16_t bits) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(bits))); }
    static __m256i bytes(const void *from) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i *>(from)));
    }
    static Reg codes(const int8_t *from) {
        const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    }
    template <int SHIFT>
    static Reg nibbles(const unsigned char *from) {
        const __m256i low = SHIFT ? _mm256_srli_epi32(bytes(from), SHIFT)
                                  : _mm256_and_si256(bytes(from), _mm256_set1_epi32(15));
        return _mm256_cvtepi32_ps(low);
    }
    static void prefetch(const void *at) { _mm_prefetch(static_cast<const char *>(at), _MM_HINT_T0); }
};

}  // namespace

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::avx2_kernels() {
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? &KERNELS<Avx2> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::Kernels *tpiedge::avx2_kernels() { return nullptr; }

#endif
