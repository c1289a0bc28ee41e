// Vectors of four floats in the compiler's own notation: every CPU of the architecture has them (SSE2, NEON).
#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels.h"

namespace {

struct Portable {
    typedef float Reg __attribute__((vector_size(16)));
    typedef uint16_t Half __attribute__((vector_size(8)));
    typedef uint32_t Word __attribute__((vector_size(16)));
    static constexpr int lanes = 4;
    static constexpr int TOKENS = 2;
    static constexpr int VECTORS = 4;
    static constexpr int KEYS = 1;

    static Reg zero() { return Reg{}; }
    static Reg broadcast(float value) { return Reg{value, value, value, value}; }
    static Reg load(const float *from) { return load_some(from, lanes); }
    static Reg load(const uint16_t *from) { return load_some(from, lanes); }
    static Reg load_some(const float *from, int count) {
        Reg value{};
        memcpy(&value, from, count * sizeof(float));
        return value;
    }
    static Reg load_some(const uint16_t *from, int count) {
        Half half{};
        memcpy(&half, from, count * sizeof(uint16_t));
        return reinterpret_cast<Reg>(__builtin_convertvector(half, Word) << 16);
    }
    static void store(float *to, Reg value) { memcpy(to, &value, sizeof value); }
    static void store_some(float *to, Reg value, int count) { memcpy(to, &value, count * sizeof(float)); }
    static Reg add(Reg a, Reg b) { return a + b; }
    static Reg sub(Reg a, Reg b) { return a - b; }
    static Reg mul(Reg a, Reg b) { return a * b; }
    static Reg div(Reg a, Reg b) { return a / b; }
    static Reg max(Reg a, Reg b) { return a > b ? a : b; }
    static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
    static float sum(Reg a) { return (a[0] + a[2]) + (a[1] + a[3]); }
    static Reg quads(Reg a, Reg b, Reg c, Reg d) { return Reg{sum(a), sum(b), sum(c), sum(d)}; }
    static void store_quads(float *to, Reg a) { store(to, a); }
    // a * b + c rounded once. Where the CPU has no instruction for it: in f64 the product is exact, and a sum that is not
    // is rounded to odd, towards which side it was cut off; rounded once more, to f32, it is as if it had been exact
    // (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    static Reg fused(Reg a, Reg b, Reg c) {
#ifdef __FP_FAST_FMAF
        Reg value;
        for (int i = 0; i < lanes; i++) value[i] = __builtin_fmaf(a[i], b[i], c[i]);
        return value;
#else
        const Pair low = half_of<0>(a) * half_of<0>(b) + half_of<0>(c), high = half_of<1>(a) * half_of<1>(b) + half_of<1>(c);
        if (__builtin_expect(rounds_as_it_is(low, high), 1)) return joined(low, high);
        return joined(odd_sum(half_of<0>(a) * half_of<0>(b), half_of<0>(c)),
                      odd_sum(half_of<1>(a) * half_of<1>(b), half_of<1>(c)));
#endif
    }
    typedef double Pair __attribute__((vector_size(16)));
    typedef int64_t PairBits __attribute__((vector_size(16)));
    typedef int32_t Words __attribute__((vector_size(16)));

    template <int HALF>
    static Pair half_of(Reg a) {
#ifdef __SSE2__
        return _mm_cvtps_pd(HALF ? _mm_movehl_ps(a, a) : a);
#else
        return Pair{static_cast<double>(a[2 * HALF]), static_cast<double>(a[2 * HALF + 1])};
#endif
    }
    static Reg joined(Pair low, Pair high) {
#ifdef __SSE2__
        return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
#else
        return Reg{static_cast<float>(low[0]), static_cast<float>(low[1]), static_cast<float>(high[0]),
                   static_cast<float>(high[1])};
#endif
    }
    // Whether rounding four sums in f64 to f32 gives what rounding the exact ones would. It may not where one lies in the
    // middle between two f32, or where f32 has fewer bits: below 2^-126, but for 0.
    static bool rounds_as_it_is(Pair low, Pair high) {
#ifdef __SSE2__
        const __m128 l = _mm_castpd_ps(low), h = _mm_castpd_ps(high);
        const Words lower = reinterpret_cast<Words>(_mm_shuffle_ps(l, h, _MM_SHUFFLE(2, 0, 2, 0)));
        const Words upper = reinterpret_cast<Words>(_mm_shuffle_ps(l, h, _MM_SHUFFLE(3, 1, 3, 1))) & 0x7fffffff;
        const Words doubtful = ((lower & 0x1fffffff) == 0x10000000) | ((upper < 0x38100000) & (upper != 0));
        return !_mm_movemask_ps(reinterpret_cast<__m128>(doubtful));
#else
        (void)low, (void)high;
        return false;
#endif
    }
    static Pair odd_sum(Pair product, Pair c) {
        const Pair sum = product + c;
        const Pair added = sum - product, error = (product - (sum - added)) + (c - added);
        PairBits bits = reinterpret_cast<PairBits>(sum);
        // Neither comparison holds of what is no number, the error of infinities.
        const PairBits inexact = (error > 0.0) | (error < 0.0), even = (bits & 1) - 1;
        const PairBits towards = ((reinterpret_cast<PairBits>(error) ^ bits) >> 63) | 1;
        bits += inexact & even & towards;
        return reinterpret_cast<Pair>(bits);
    }
    static Reg power2(Reg magic) { return reinterpret_cast<Reg>((reinterpret_cast<Word>(magic) + 127) << 23); }
    static Reg half(uint16_t bits) {
        const uint32_t rest = bits & 0x7fffu;
        const Word wide = Word{} + (rest << 13);
        const Word infinite = Word{} + (0x7f800000u | rest << 13);
        const Reg value = rest >= 0x7c00 ? reinterpret_cast<Reg>(infinite) : reinterpret_cast<Reg>(wide) * 0x1p112f;
        return bits & 0x8000 ? -value : value;
    }
    static Reg codes(const int8_t *from) {
        return Reg{static_cast<float>(from[0]), static_cast<float>(from[1]), static_cast<float>(from[2]),
                   static_cast<float>(from[3])};
    }
    template <int SHIFT>
    static Reg nibbles(const unsigned char *from) {
        Reg value;
        for (int i = 0; i < lanes; i++) value[i] = static_cast<float>(from[i] >> SHIFT & 15);
        return value;
    }
    static void prefetch(const void *at) { __builtin_prefetch(at); }
};

}  // namespace
