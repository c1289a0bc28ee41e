// Vectors of sixteen floats: AVX-512 with byte and word operations (for the tails of bf16 rows).
#include "kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl")
#endif

namespace {

struct Avx512 {
    using Reg = __m512;
    static constexpr int lanes = 16;
    static constexpr int TOKENS = 4;
    static constexpr int VECTORS = 4;
    static constexpr int KEYS = 4;

    static __mmask16 mask(int count) { return static_cast<__mmask16>((1u << count) - 1); }
    // A full zeroing mask, because GCC 12 warns of its own header's undefined source in the plain forms.
    static Reg widen(__m256i half) {
        return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, half), 16));
    }
    static Reg zero() { return _mm512_setzero_ps(); }
    static Reg broadcast(float value) { return _mm512_set1_ps(value); }
    static Reg load(const float *from) { return _mm512_loadu_ps(from); }
    static Reg load(const uint16_t *from) {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
    }
    static Reg load_some(const float *from, int count) { return _mm512_maskz_loadu_ps(mask(count), from); }
    static Reg load_some(const uint16_t *from, int count) {
        return widen(_mm256_maskz_loadu_epi16(mask(count), from));
    }
    static void store(float *to, Reg value) { _mm512_storeu_ps(to, value); }
    static void store_some(float *to, Reg value, int count) { _mm512_mask_storeu_ps(to, mask(count), value); }
    static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
    static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
    static Reg max(Reg a, Reg b) { return _mm512_maskz_max_ps(0xffff, a, b); }
    static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
    template <int HALF>
    static __m256 half(Reg a) {
        return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(a), HALF));
    }
    static __m128 halves(Reg a) {
        const __m256 eight = _mm256_add_ps(half<0>(a), half<1>(a));
        return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    static float sum(Reg a) {
        __m128 four = halves(a);
        four = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
    }
    // Of each 128 bits of a and b: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
    static Reg weave(Reg a, Reg b) {
        return add(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));
    }
    static void sum4(const Reg *four, float *to) {
        const __m512d ab = _mm512_castps_pd(weave(four[0], four[1]));
        const __m512d cd = _mm512_castps_pd(weave(four[2], four[3]));
        const Reg low = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, ab, cd));
        _mm_storeu_ps(to, halves(add(low, _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, ab, cd)))));
    }
    static Reg power2(Reg magic) {
        const __m512i n = _mm512_add_epi32(_mm512_castps_si512(magic), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, n, 23));
    }
    static Reg half(uint16_t bits) {
        return _mm512_maskz_cvtph_ps(0xffff, _mm256_set1_epi16(static_cast<short>(bits)));
    }
    static __m512i bytes(const void *from) {
        return _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(static_cast<const __m128i *>(from)));
    }
    static Reg codes(const int8_t *from) {
        const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, sixteen));
    }
    template <int SHIFT>
    static Reg nibbles(const unsigned char *from) {
        const __m512i low = SHIFT ? _mm512_maskz_srli_epi32(0xffff, bytes(from), SHIFT)
                                  : _mm512_maskz_and_epi32(0xffff, bytes(from), _mm512_set1_epi32(15));
        return _mm512_maskz_cvtepi32_ps(0xffff, low);
    }
    static void prefetch(const void *at) { _mm_prefetch(static_cast<const char *>(at), _MM_HINT_T0); }
};

}  // namespace

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::avx512_kernels() {
    const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl");
    return has ? &KERNELS<Avx512> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::Kernels *tpiedge::avx512_kernels() { return nullptr; }

#endif
