// Vectors of sixteen floats, made of those that an instruction set has (V as in kernels.inl): what is summed over a row is
// summed in the same order everywhere, every multiplication and addition fused, and so has the same bits.
//
// Beside V's operations:
//   sum    of lanes i and i + 8, of those i and i + 4, i and i + 2, i and i + 1
//   sum4   of four vectors; in each four lanes 0 and 2, 1 and 3, then both, then those of the fours 0 and 2, 1 and 3, then both
// V has fused(a, b, c), which is a * b + c rounded once; quads(a, b, c, d), sums of each four lanes in that order, of all four
// side by side; store_quads(to, a), four of them, with lanes 4 to 7 added where there are eight.

namespace {

template <class V>
struct Sixteen {
    static constexpr int lanes = 16;
    static constexpr int PARTS = lanes / V::lanes;
    static_assert(PARTS == 2 || PARTS == 4, "vectors of sixteen floats need no parts");
    static constexpr int TOKENS = V::TOKENS < 2 ? V::TOKENS : 2;
    static constexpr int VECTORS = V::VECTORS / PARTS > 0 ? V::VECTORS / PARTS : 1;
    static constexpr int KEYS = V::KEYS;

    struct Reg {
        typename V::Reg of[PARTS];
    };

    // Loops, no lambdas: GCC compiles those of a template without the instruction set that the source asks for.
    static inline Reg zero() {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::zero();
        return all;
    }
    static inline Reg broadcast(float value) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::broadcast(value);
        return all;
    }
    template <class W>
    static inline Reg load(const W *from) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::load(from + i * V::lanes);
        return all;
    }
    template <class W>
    static inline Reg load_some(const W *from, int count) {
        W whole[lanes] = {};
        memcpy(whole, from, count * sizeof(W));
        return load(whole);
    }
    static inline void store(float *to, const Reg &value) {
        for (int i = 0; i < PARTS; i++) V::store(to + i * V::lanes, value.of[i]);
    }
    static inline void store_some(float *to, const Reg &value, int count) {
        float whole[lanes];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static inline Reg add(const Reg &a, const Reg &b) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::add(a.of[i], b.of[i]);
        return all;
    }
    static inline Reg sub(const Reg &a, const Reg &b) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::sub(a.of[i], b.of[i]);
        return all;
    }
    static inline Reg mul(const Reg &a, const Reg &b) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::mul(a.of[i], b.of[i]);
        return all;
    }
    static inline Reg div(const Reg &a, const Reg &b) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::div(a.of[i], b.of[i]);
        return all;
    }
    static inline Reg max(const Reg &a, const Reg &b) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::max(a.of[i], b.of[i]);
        return all;
    }
    static inline Reg fma(const Reg &a, const Reg &b, const Reg &c) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::fused(a.of[i], b.of[i], c.of[i]);
        return all;
    }
    static inline Reg power2(const Reg &magic) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::power2(magic.of[i]);
        return all;
    }
    static inline Reg half(uint16_t bits) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::half(bits);
        return all;
    }
    static inline Reg codes(const int8_t *from) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::codes(from + i * V::lanes);
        return all;
    }
    template <int SHIFT>
    static inline Reg nibbles(const unsigned char *from) {
        Reg all;
        for (int i = 0; i < PARTS; i++) all.of[i] = V::template nibbles<SHIFT>(from + i * V::lanes);
        return all;
    }
    // The second half of the parts onto the first, until one is left.
    static inline typename V::Reg folded(const Reg &a) {
        if constexpr (PARTS == 2) return V::add(a.of[0], a.of[1]);
        else return V::add(V::add(a.of[0], a.of[2]), V::add(a.of[1], a.of[3]));
    }
    static inline float sum(const Reg &a) { return V::sum(folded(a)); }
    static inline void sum4(const Reg *four, float *to) {
        Reg quads;
        for (int i = 0; i < PARTS; i++)
            quads.of[i] = V::quads(four[0].of[i], four[1].of[i], four[2].of[i], four[3].of[i]);
        V::store_quads(to, folded(quads));
    }
};

template <class V>
using Wide = std::conditional_t<V::lanes == 16, V, Sixteen<V>>;

}  // namespace
