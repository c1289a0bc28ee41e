// Sixteen outputs as two vectors of eight (panels.inl), which AVX2 and AVX-VNNI share. What differs is a type Integers:
//   codes8(stored)     eight-bit codes of eight outputs and four inputs, as Sum<8> likes them; Sum<4> takes them as they
//                      are, one to a byte
//   Sum<BITS>          of one token and eight outputs: start(correction), add(codes, x) with the token's four q repeated,
//                      total(correction); one of the two uses the correction. At most 8 additions.

#include <string.h>

#include "compiler.h"
#include "panels_avx.inl"
#include "prepared.h"

namespace {

struct Pair {
    __m256i low, high;
};

// Four bytes, eight times.
inline __m256i repeated(const uint8_t *four) { return _mm256_set1_epi32(at<int32_t>(four, 0)); }

// Of T tokens. They are members, because GCC 12 keeps an array of them in memory.
template <class Sum, int T>
struct Sums {
    Sum first;
    Sums<Sum, T - 1> others;

    TPIEDGE_INLINE void start(const uint8_t *corrections) {
        first.start(repeated(corrections));
        others.start(corrections + 4);
    }
    template <class Codes>
    TPIEDGE_INLINE void add(const Codes &codes, const uint8_t *q) {
        first.add(codes, repeated(q));
        others.add(codes, q + 4);
    }
    TPIEDGE_INLINE void total(const uint8_t *corrections, Pair *sums, __m256i Pair::*half) const {
        sums[0].*half = first.total(repeated(corrections));
        others.total(corrections + 4, sums + 1, half);
    }
};

template <class Sum>
struct Sums<Sum, 0> {
    TPIEDGE_INLINE void start(const uint8_t *) {}
    template <class Codes>
    TPIEDGE_INLINE void add(const Codes &, const uint8_t *) {}
    TPIEDGE_INLINE void total(const uint8_t *, Pair *, __m256i Pair::*) const {}
};

template <class Integers>
struct Avx2Panels : AvxPanels {
    // With 8 tokens q4 takes as long and q8 a tenth longer: AVX2 needs registers for more than sums.
    static constexpr int TOKENS = 6;
    static constexpr bool OWN_DOTS = true;
    // With it 4 tokens in q4 take 5 to 12 % less time, 128 tokens 2 to 6 % more (Zen 3).
    static constexpr bool FETCHES_AHEAD = false;
    static constexpr bool IN_REGISTERS = false;
    // Up to so many tokens have registers for the sums of all outputs; beyond, one half comes after the other.
    static constexpr int WHOLE = 3;
    struct Floats {
        __m256 low, high;
    };
    using Ints = Pair;

    static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static void store(float *to, const Floats &value) {
        _mm256_storeu_ps(to, value.low);
        _mm256_storeu_ps(to + 8, value.high);
    }
    static void store_some(float *to, const Floats &value, int count) {
        float whole[16];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static __m256 eight_scales(const uint16_t *from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
    }
    static Floats scales(const uint16_t *from) { return {eight_scales(from), eight_scales(from + 8)}; }
    static Floats fold(const Ints &sum, const Floats &scales, float dx, const Floats &y) {
        const __m256 factor = _mm256_set1_ps(dx);
        return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.low), _mm256_mul_ps(scales.low, factor), y.low),
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum.high), _mm256_mul_ps(scales.high, factor), y.high)};
    }

    static Floats add_product(const Floats &a, float b, const Floats &y) {
        const __m256 factor = _mm256_set1_ps(b);
        return {_mm256_fmadd_ps(a.low, factor, y.low), _mm256_fmadd_ps(a.high, factor, y.high)};
    }

    static Floats product(const Floats &a, const Floats &b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    static Floats negated(const Floats &a) { return product(a, {_mm256_set1_ps(-1.0f), _mm256_set1_ps(-1.0f)}); }
    static Floats widened(tpiedge::Sixteen bytes) {
        const __m128i low = (__m128i)bytes, high = _mm_unpackhi_epi64(low, low);
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high))};
    }
    static Floats widened_signed(tpiedge::Sixteen bytes) {
        const __m128i low = (__m128i)bytes, high = _mm_unpackhi_epi64(low, low);
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
    }
    static Floats power(const uint8_t *from) {
        float of[16];
        for (int r = 0; r < 16; r++) of[r] = tpiedge::power(from[r]);
        return load(of);
    }

    static Floats load(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
    static Ints load_ints(const int32_t *from) {
        const __m256i *at = reinterpret_cast<const __m256i *>(from);
        return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
    }
    static void store_ints(int32_t *to, const Ints &value) {
        __m256i *at = reinterpret_cast<__m256i *>(to);
        _mm256_storeu_si256(at, value.low);
        _mm256_storeu_si256(at + 1, value.high);
    }
    static void add_part(const Floats &y, Ints &sums, Floats &squares) {
        sums.low = _mm256_add_epi32(sums.low, _mm256_cvtps_epi32(y.low));
        sums.high = _mm256_add_epi32(sums.high, _mm256_cvtps_epi32(y.high));
        squares.low = _mm256_fmadd_ps(y.low, y.low, squares.low);
        squares.high = _mm256_fmadd_ps(y.high, y.high, squares.high);
    }

    // Eight inputs of eight outputs.
    template <int BITS, int T>
    TPIEDGE_INLINE static void add(Sums<typename Integers::template Sum<BITS>, T> &sums, const uint8_t *codes,
                                   const uint8_t *q) {
        const __m256i *blocks = reinterpret_cast<const __m256i *>(codes);
        const __m256i here = _mm256_loadu_si256(blocks);
        if constexpr (BITS == 4) {
            const __m256i nibble = _mm256_set1_epi8(15);
            sums.add(_mm256_and_si256(here, nibble), q);
            sums.add(_mm256_and_si256(_mm256_srli_epi16(here, 4), nibble), q + 4 * T);
        } else {
            sums.add(Integers::codes8(here), q);
            sums.add(Integers::codes8(_mm256_loadu_si256(blocks + 2)), q + 4 * T);
        }
    }

    template <int BITS, int T>
    TPIEDGE_INLINE static void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                                    Pair *sums) {
        using Half = Sums<typename Integers::template Sum<BITS>, T>;
        if constexpr (T <= WHOLE) {
            Half low, high;
            low.start(corrections);
            high.start(corrections);
            TPIEDGE_ROLLED
            for (int64_t i = 0; i < inputs; i += 8, codes += 16 * BITS, q += 8 * T) {
                add<BITS, T>(low, codes, q);
                add<BITS, T>(high, codes + 32, q);
            }
            low.total(corrections, sums, &Pair::low);
            high.total(corrections, sums, &Pair::high);
        } else {
            half<BITS, T>(codes, inputs, q, corrections, sums, &Pair::low);
            half<BITS, T>(codes + 32, inputs, q, corrections, sums, &Pair::high);
        }
    }

    template <int BITS, int T>
    TPIEDGE_INLINE static void half(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                                    Pair *sums, __m256i Pair::*to) {
        Sums<typename Integers::template Sum<BITS>, T> some;
        some.start(corrections);
        TPIEDGE_ROLLED
        for (int64_t i = 0; i < inputs; i += 8, codes += 16 * BITS, q += 8 * T) add<BITS, T>(some, codes, q);
        some.total(corrections, sums, to);
    }
};

}  // namespace
