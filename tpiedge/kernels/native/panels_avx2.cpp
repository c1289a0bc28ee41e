// Products with quantised matrices with AVX2.
#include "panels.h"
#include "x86_features.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>

#include <type_traits>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "panels_avx2.inl"

namespace {

struct SignedCodes {
    Pair magnitudes, signs;
};

struct Avx2Integers : Avx2Panels {
    template <int BITS>
    using Codes = std::conditional_t<BITS == 4, Pair, SignedCodes>;

    static void codes8(const uint8_t *from, SignedCodes &codes) {
        const Pair stored = load_codes(from);
        const __m256i offset = _mm256_set1_epi8(-128);
        codes.signs = {_mm256_xor_si256(stored.low, offset), _mm256_xor_si256(stored.high, offset)};
        codes.magnitudes = {_mm256_abs_epi8(codes.signs.low), _mm256_abs_epi8(codes.signs.high)};
    }
    static __m256i four_sums(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

    template <int BITS>
    struct Sum;
};

// Two products of a code of at most 15 and at most 127 in 16 bits; eight of them still fit.
template <>
struct Avx2Integers::Sum<4> {
    Pair pairs;
    int32_t correction;

    void start(int32_t value) {
        pairs = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        correction = value;
    }
    void add(const Pair &codes, const uint8_t *q) {
        const __m256i x = _mm256_set1_epi32(four(q));
        pairs.low = _mm256_add_epi16(pairs.low, _mm256_maddubs_epi16(codes.low, x));
        pairs.high = _mm256_add_epi16(pairs.high, _mm256_maddubs_epi16(codes.high, x));
    }
    Pair total() const {
        const __m256i first = _mm256_set1_epi32(correction);
        return {_mm256_add_epi32(first, four_sums(pairs.low)), _mm256_add_epi32(first, four_sums(pairs.high))};
    }
};

// Codes without their offset: |code| * (q with the code's sign). Two products of 128 and 127 fit 16 bits; with the codes
// as they are stored they would not.
template <>
struct Avx2Integers::Sum<8> {
    Pair sums;

    void start(int32_t) { sums = {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static __m256i products(__m256i magnitudes, __m256i signs, __m256i x) {
        return four_sums(_mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, signs)));
    }
    void add(const SignedCodes &codes, const uint8_t *q) {
        const __m256i x = _mm256_set1_epi32(four(q));
        sums.low = _mm256_add_epi32(sums.low, products(codes.magnitudes.low, codes.signs.low, x));
        sums.high = _mm256_add_epi32(sums.high, products(codes.magnitudes.high, codes.signs.high, x));
    }
    Pair total() const { return sums; }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::avx2_panels() {
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? &PANEL_KERNELS<Avx2Integers> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::avx2_panels() { return nullptr; }

#endif
