// MassKernel (mass.h) with the vectors V (LANES, Floats, Doubles, Longs): additions, multiplications and a division of f64,
// each rounded once, so the same bits whatever the width. draw.py does the same, operation by operation.
#include "compiler.h"

namespace {

constexpr double LOG2_E = 1 / 0.6931471805599453;
// ln 2 in two parts, the first of 32 bits: it times an exponent is exact.
constexpr double LN2_HIGH = 0x1.62e42feep-1;
constexpr double LN2_LOW = 0x1.a39ef35793c76p-33;
constexpr double LEAST = -64;        // whose mass is 0, as that of all below
constexpr double TO_WHOLE = 0x1p52;  // added, it leaves a whole number in the lower 52 bits
constexpr double SIGNED = 0x1.8p52;  // likewise of numbers below 0, in the lower 51 bits
constexpr int64_t FRACTION = (int64_t{1} << 52) - 1;
constexpr int64_t EXPONENT_BIAS = 1023;

template <class V>
struct MassOf {
    using Floats = typename V::Floats;
    using Doubles = typename V::Doubles;
    using Longs = typename V::Longs;
    static constexpr int LANES = V::LANES;

    // e^r for |r| <= ln 2 / 2, to 2^-46 of it: the series to r^11.
    static TPIEDGE_INLINE Doubles series(const Doubles &r) {
        Doubles sum = r * (1.0 / 39916800) + 1.0 / 3628800;
        sum = sum * r + 1.0 / 362880;
        sum = sum * r + 1.0 / 40320;
        sum = sum * r + 1.0 / 5040;
        sum = sum * r + 1.0 / 720;
        sum = sum * r + 1.0 / 120;
        sum = sum * r + 1.0 / 24;
        sum = sum * r + 1.0 / 6;
        sum = sum * r + 0.5;
        sum = sum * r + 1.0;
        return sum * r + 1.0;
    }

    static TPIEDGE_INLINE void some(const float *scores, double best, double temperature, int64_t bits,
                                    int64_t *masses) {
        Floats narrow;
        memcpy(&narrow, scores, sizeof narrow);
        const Doubles zero{};
        const Doubles below = __builtin_convertvector(narrow, Doubles) - best;
        const Doubles scaled = below < zero ? below / temperature : zero;  // not NaN where both are infinite
        const Doubles x = scaled > zero + LEAST ? scaled : zero + LEAST;
        const Doubles magic = x * LOG2_E + SIGNED;
        const Doubles n = magic - SIGNED;
        const Doubles r = (x - n * LN2_HIGH) - n * LN2_LOW;
        const Longs exponent = ((Longs)magic + (EXPONENT_BIAS + bits)) << 52;
        const Longs mass = (Longs)(series(r) * (Doubles)exponent + TO_WHOLE) & FRACTION;
        memcpy(masses, &mass, sizeof mass);
    }

    static void all(const float *scores, int64_t count, float best, double temperature, int bits, int64_t *masses) {
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES) some(scores + i, best, temperature, bits, masses + i);
        if (i == count) return;
        float last[LANES] = {};
        int64_t made[LANES];
        memcpy(last, scores + i, (count - i) * sizeof(float));
        some(last, best, temperature, bits, made);
        memcpy(masses + i, made, (count - i) * sizeof(int64_t));
    }
};

// What every processor has.
struct Two {
    static constexpr int LANES = 2;
    typedef float Floats __attribute__((vector_size(8)));
    typedef double Doubles __attribute__((vector_size(16)));
    typedef int64_t Longs __attribute__((vector_size(16)));
};

}  // namespace
