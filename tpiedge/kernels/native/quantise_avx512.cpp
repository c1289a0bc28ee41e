// Quantising with AVX512: sixteen outputs at once.
#include "quantise.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "quantise.inl"
#include "quantise_avx.inl"

namespace {

struct Avx512 {
    static constexpr int LANES = 16;
    typedef float Floats __attribute__((vector_size(64)));
    typedef int32_t Ints __attribute__((vector_size(64)));
    typedef uint16_t Halves __attribute__((vector_size(32)));

    // A full zeroing mask, because GCC 12 warns of its own header's undefined source in the plain forms.
    static Floats max(Floats a, Floats b) { return _mm512_maskz_max_ps(0xffff, a, b); }
    static Floats min(Floats a, Floats b) { return _mm512_maskz_min_ps(0xffff, a, b); }

    static Ints widen(__m256i numbers) { return (Ints)_mm512_maskz_cvtepu16_epi32(0xffff, numbers); }

    static void columns(const uint16_t *from, int64_t stride, Ints *to) {
        for (int i = 0; i < GROUP; i += 16) {
            __m256i upper[8], lower[8];
            turn_over(from + i, stride, upper);
            turn_over(from + i + 8 * stride, stride, lower);
            for (int j = 0; j < 8; j++) {
                to[i + j] = widen(_mm256_permute2x128_si256(upper[j], lower[j], 0x20));
                to[i + j + 8] = widen(_mm256_permute2x128_si256(upper[j], lower[j], 0x31));
            }
        }
    }
};

}  // namespace

tpiedge::QuantiseUnit tpiedge::avx512_quantise() {
    const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has ? &Quantiser<Avx512>::quantise : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

tpiedge::QuantiseUnit tpiedge::avx512_quantise() { return nullptr; }

#endif
