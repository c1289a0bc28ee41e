// Vectors of sixteen floats, made of those that an instruction set has (V as in kernels.inl). What is summed over a row
// is summed in the same order everywhere, every multiplication and addition fused, and so has the same bits.
//
// Beside V's operations:
//   sum    of lanes i and i + 8, of those i and i + 4, i and i + 2, i and i + 1
//   sum4   of four vectors; in each four lanes 0 and 2, 1 and 3, then both, then those of the fours 0 and 2, 1 and 3, then both
// V has fused(a, b, c), which is a * b + c rounded once; quads(a, b, c, d), sums of each four lanes in that order, of all four
// side by side; store_quads(to, a), four of them, with lanes 4 to 7 added where there are eight.

namespace {

// Twice as many lanes. Two members, because GCC keeps an array of two in memory.
template <class V>
struct Doubled {
    static constexpr int lanes = 2 * V::lanes;
    static constexpr int TOKENS = V::TOKENS < 2 ? V::TOKENS : 2;
    static constexpr int VECTORS = V::VECTORS > 1 ? V::VECTORS / 2 : 1;
    static constexpr int KEYS = V::KEYS;
    static constexpr int HALF = V::lanes;

    struct Reg {
        typename V::Reg low, high;
    };

    static inline Reg zero() { return {V::zero(), V::zero()}; }
    static inline Reg broadcast(float value) { return {V::broadcast(value), V::broadcast(value)}; }
    template <class W>
    static inline Reg load(const W *from) {
        return {V::load(from), V::load(from + HALF)};
    }
    template <class W>
    static inline Reg load_some(const W *from, int count) {
        W whole[lanes] = {};
        memcpy(whole, from, count * sizeof(W));
        return load(whole);
    }
    static inline void store(float *to, const Reg &value) {
        V::store(to, value.low);
        V::store(to + HALF, value.high);
    }
    static inline void store_some(float *to, const Reg &value, int count) {
        float whole[lanes];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static inline Reg add(const Reg &a, const Reg &b) { return {V::add(a.low, b.low), V::add(a.high, b.high)}; }
    static inline Reg sub(const Reg &a, const Reg &b) { return {V::sub(a.low, b.low), V::sub(a.high, b.high)}; }
    static inline Reg mul(const Reg &a, const Reg &b) { return {V::mul(a.low, b.low), V::mul(a.high, b.high)}; }
    static inline Reg div(const Reg &a, const Reg &b) { return {V::div(a.low, b.low), V::div(a.high, b.high)}; }
    static inline Reg max(const Reg &a, const Reg &b) { return {V::max(a.low, b.low), V::max(a.high, b.high)}; }
    static inline Reg fused(const Reg &a, const Reg &b, const Reg &c) {
        return {V::fused(a.low, b.low, c.low), V::fused(a.high, b.high, c.high)};
    }
    static inline Reg fma(const Reg &a, const Reg &b, const Reg &c) { return fused(a, b, c); }
    static inline float sum(const Reg &a) { return V::sum(V::add(a.low, a.high)); }
    static inline Reg quads(const Reg &a, const Reg &b, const Reg &c, const Reg &d) {
        return {V::quads(a.low, b.low, c.low, d.low), V::quads(a.high, b.high, c.high, d.high)};
    }
    static inline void store_quads(float *to, const Reg &a) { V::store_quads(to, V::add(a.low, a.high)); }
    static inline void sum4(const Reg *four, float *to) { store_quads(to, quads(four[0], four[1], four[2], four[3])); }
    static inline Reg power2(const Reg &magic) { return {V::power2(magic.low), V::power2(magic.high)}; }
    static inline Reg half(uint16_t bits) { return {V::half(bits), V::half(bits)}; }
    static inline Reg codes(const int8_t *from) { return {V::codes(from), V::codes(from + HALF)}; }
    template <int SHIFT>
    static inline Reg nibbles(const unsigned char *from) {
        return {V::template nibbles<SHIFT>(from), V::template nibbles<SHIFT>(from + HALF)};
    }
};

template <class V, int LANES = V::lanes>
struct Sixteen;
template <class V>
struct Sixteen<V, 16> {
    using Type = V;
};
template <class V>
struct Sixteen<V, 8> {
    using Type = Doubled<V>;
};
template <class V>
struct Sixteen<V, 4> {
    using Type = Doubled<Doubled<V>>;
};

template <class V>
using Wide = typename Sixteen<V>::Type;

}  // namespace
