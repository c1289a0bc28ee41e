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

    static __m512i codes_of(tpiedge::Line bytes) { return (__m512i)bytes; }
    // Eight inputs: those of five and six bits with their upper bits from `plane`, those of a table as bytes, else as stored.
    template <int64_t FORMAT>
    static void bytes_of(const uint8_t *codes, tpiedge::Line &plane, tpiedge::Line *both) {
        if constexpr (tpiedge::bits_of(FORMAT) > 4) return tpiedge::wide_codes<FORMAT>(codes, plane, both);
        __m512i found[2];
        codes4(codes, found[0], found[1]);
        for (int i = 0; i < 2; i++)
            both[i] = (tpiedge::Line)(tpiedge::has_table(FORMAT) ? looked_up(tpiedge::table_of(FORMAT), found[i]) : found[i]);
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
