// Quantising with AVX2: eight outputs at once.
#include "quantise.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "quantise.inl"
#include "quantise_avx.inl"

namespace {

struct Avx2 {
    static constexpr int LANES = 8;
    typedef float Floats __attribute__((vector_size(32)));
    typedef int32_t Ints __attribute__((vector_size(32)));
    typedef uint16_t Halves __attribute__((vector_size(16)));

    static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
    static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }

    static void columns(const uint16_t *from, int64_t stride, Ints *to) {
        for (int i = 0; i < GROUP; i += 16) {
            __m256i turned[8];
            turn_over(from + i, stride, turned);
            for (int j = 0; j < 8; j++) {
                to[i + j] = (Ints)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(turned[j]));
                to[i + j + 8] = (Ints)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(turned[j], 1));
            }
        }
    }
};

}  // namespace

tpiedge::QuantiseUnit tpiedge::avx2_quantise() {
    return __builtin_cpu_supports("avx2") ? &Quantiser<Avx2>::quantise : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

tpiedge::QuantiseUnit tpiedge::avx2_quantise() { return nullptr; }

#endif
