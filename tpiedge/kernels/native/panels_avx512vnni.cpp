// Products with quantised matrices with AVX512-VNNI: sixteen sums of four products at once.
#include "panels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "panels_avx.inl"
#include "prepared.h"

namespace {

struct Avx512Vnni : AvxPanels {
    static constexpr int TOKENS = 8;
    static constexpr bool OWN_DOTS = false;
    static constexpr bool FETCHES_AHEAD = true;
    static constexpr bool IN_REGISTERS = true;
    using Floats = __m512;
    using Ints = __m512i;

    static __mmask16 mask(int count) { return static_cast<__mmask16>((1u << count) - 1); }
    static Floats zero() { return _mm512_setzero_ps(); }
    static void store(float *to, Floats value) { _mm512_storeu_ps(to, value); }
    static void store_some(float *to, Floats value, int count) { _mm512_mask_storeu_ps(to, mask(count), value); }
    // Full zeroing masks, because GCC 12 warns of its own header's undefined source in the plain forms.
    static Floats scales(const uint16_t *from) {
        return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
    }
    static Floats fold(Ints sum, Floats scales, float dx, Floats y) {
        return _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, sum), _mm512_mul_ps(scales, _mm512_set1_ps(dx)), y);
    }

    static Floats add_product(Floats a, float b, Floats y) { return _mm512_fmadd_ps(a, _mm512_set1_ps(b), y); }

    static Floats product(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats negated(Floats a) { return _mm512_mul_ps(a, _mm512_set1_ps(-1.0f)); }
    static Floats widened(tpiedge::Sixteen bytes) {
        return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)bytes));
    }
    static Floats widened_signed(tpiedge::Sixteen bytes) {
        return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)bytes));
    }
    static Floats power(const uint8_t *from) {
        const __m512i e = _mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)tpiedge::load(from));
        const __m512i usual = _mm512_maskz_slli_epi32(0xffff, _mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        const __mmask16 least = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
        const __m512i denormal = _mm512_maskz_sllv_epi32(0xffff, _mm512_set1_epi32(0x00200000), e);
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(usual, least, denormal));
    }

    static void lookup(const uint8_t *table, const uint8_t *from, uint8_t *low, uint8_t *high) {
        __m512i both[2];
        codes4(from, both[0], both[1]);
        _mm512_storeu_si512(low, looked_up(table, both[0]));
        _mm512_storeu_si512(high, looked_up(table, both[1]));
    }
    static __m512i looked_up(const uint8_t *table, __m512i at) {
        return _mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, (__m128i)tpiedge::load(table)), at);
    }

    static Floats load(const float *from) { return _mm512_loadu_ps(from); }
    static Ints load_ints(const int32_t *from) { return _mm512_loadu_si512(from); }
    static void store_ints(int32_t *to, Ints value) { _mm512_storeu_si512(to, value); }
    static void add_part(Floats y, Ints &sums, Floats &squares) {
        sums = _mm512_add_epi32(sums, _mm512_maskz_cvtps_epi32(0xffff, y));
        squares = _mm512_fmadd_ps(y, y, squares);
    }

    template <int BITS>
    using Codes = __m512i;

    static void codes8(const uint8_t *from, __m512i &codes) { codes = _mm512_loadu_si512(from); }
    static void codes4(const uint8_t *from, __m512i &low, __m512i &high) {
        const __m512i both = _mm512_loadu_si512(from), nibble = _mm512_set1_epi8(15);
        low = _mm512_and_si512(both, nibble);
        high = _mm512_and_si512(_mm512_maskz_srli_epi16(0xffffffff, both, 4), nibble);
    }

    // Codes of five and six bits have their upper bits in a line or two before the lower ones (panels.py).
    template <int64_t FORMAT>
    static void codes_of(const uint8_t *codes, int i, __m512i *both) {
        constexpr int wide = tpiedge::bits_of(FORMAT) - 4;
        codes4(codes + (wide + i) * tpiedge::LINE_BYTES, both[0], both[1]);
        for (int half = 0; half < 2; half++) {
            if constexpr (tpiedge::has_table(FORMAT)) both[half] = looked_up(tpiedge::table_of(FORMAT), both[half]);
            if constexpr (wide > 0) {
                const int bit = wide * (2 * i + half);
                tpiedge::Line plane;
                tpiedge::load_line(codes + bit / 8 * tpiedge::LINE_BYTES, plane);
                plane = bit % 8 < 4 ? plane << (4 - bit % 8) : plane >> (bit % 8 - 4);
                both[half] |= (__m512i)(plane & (wide == 2 ? 0x30 : 0x10) * tpiedge::EACH);
            }
        }
    }
    static void sixths(const uint8_t *from, Floats *four) {
        const __m512i lower = _mm512_maskz_broadcast_i64x4(0xff, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
        const __m512i upper = _mm512_maskz_broadcast_i32x4(0xffff, (__m128i)tpiedge::load(from + 32));
        const __m512i each = _mm512_maskz_shuffle_i64x2(0xff, lower, lower, 0b01010000);
        const __m512i low = _mm512_and_si512(_mm512_maskz_srlv_epi64(0xff, each, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)),
                                             _mm512_set1_epi8(15));
        const __m512i high = _mm512_maskz_rorv_epi64(0xff, upper, _mm512_setr_epi64(60, 60, 62, 62, 0, 0, 2, 2));
        alignas(64) uint8_t bytes[64];
        _mm512_store_si512(bytes, _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi8(0x30))));
        for (int i = 0; i < 4; i++) four[i] = widened(tpiedge::load(bytes + 16 * i));
    }

    template <int BITS>
    struct Sum {
        __m512i sum;

        void start(int32_t correction) {
            sum = _mm512_set1_epi32(correction);
            if (BITS == 8) sum = _mm512_maskz_slli_epi32(0xffff, sum, 4);
        }
        // With the four repeated by the instruction itself: GCC takes an instruction more for that, and 32 tokens a fifth
        // longer.
        void add(__m512i codes, const uint8_t *q) {
            const uint8_t(&four)[4] = *reinterpret_cast<const uint8_t(*)[4]>(q);
            asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(four));
        }
        Ints total() const { return sum; }
    };
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::avx512vnni_panels() {
    const bool has = avx2_panels() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    return has ? &PANEL_KERNELS<Avx512Vnni> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::avx512vnni_panels() { return nullptr; }

#endif
