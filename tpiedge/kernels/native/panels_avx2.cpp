// Products with quantised matrices with AVX2.
#include "panels.h"
#include "x86_features.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "panels_avx2.inl"

namespace {

inline __m256i four_sums(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
// Keeps GCC from adding products to each other first: that takes more registers than there are.
inline void settle(__m256i &sum) { asm("" : "+x"(sum)); }

struct SignedCodes {
    __m256i magnitudes, signs;
};

struct MultiplyAdd {
    static SignedCodes codes8(__m256i stored) {
        const __m256i signs = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
        return {_mm256_abs_epi8(signs), signs};
    }

    template <int BITS>
    struct Sum;
};

// Two products of a code of at most 15 and at most 127 in 16 bits; eight of them still fit.
template <>
struct MultiplyAdd::Sum<4> {
    __m256i pairs;

    void start(__m256i) { pairs = _mm256_setzero_si256(); }
    void add(__m256i codes, __m256i x) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes, x));
        settle(pairs);
    }
    __m256i total(__m256i correction) const { return _mm256_add_epi32(correction, four_sums(pairs)); }
};

// Codes without their offset: |code| * (q with the code's sign). Two products of 128 and 127 fit 16 bits; with the codes
// as they are stored they would not.
template <>
struct MultiplyAdd::Sum<8> {
    __m256i sums;

    void start(__m256i) { sums = _mm256_setzero_si256(); }
    void add(const SignedCodes &codes, __m256i x) {
        const __m256i pairs = _mm256_maddubs_epi16(codes.magnitudes, _mm256_sign_epi8(x, codes.signs));
        sums = _mm256_add_epi32(sums, four_sums(pairs));
        settle(sums);
    }
    __m256i total(__m256i) const { return sums; }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::avx2_panels() {
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? &PANEL_KERNELS<Avx2Panels<MultiplyAdd>> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::avx2_panels() { return nullptr; }

#endif
