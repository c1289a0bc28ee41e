// Vectors of four floats in the compiler's own notation: every CPU of the architecture has them (SSE2, NEON).
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels.h"

namespace {

struct Portable {
    typedef float Reg __attribute__((vector_size(16)));
    typedef uint16_t Half __attribute__((vector_size(8)));
    typedef uint32_t Word __attribute__((vector_size(16)));
    static constexpr int lanes = 4;
    static constexpr int TOKENS = 2;
    static constexpr int VECTORS = 4;

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
    static void sum4(const Reg *four, float *to) {
        for (int i = 0; i < 4; i++) to[i] = sum(four[i]);
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

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::portable_kernels() { return &KERNELS<Portable>; }
