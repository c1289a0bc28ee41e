// Products with quantised matrices with AVX-VNNI: eight sums of four products at once.
#include "panels.h"
#include "x86_features.h"

#if defined(TPIEDGE_AVX_VNNI)

#include <immintrin.h>
#include <stddef.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#include "panels_avx2.inl"

namespace {

struct AvxVnni : Avx2Panels {
    template <int BITS>
    using Codes = Pair;

    static void codes8(const uint8_t *from, Pair &codes) { codes = load_codes(from); }

    template <int BITS>
    struct Sum {
        Pair sums;

        void start(int32_t correction) {
            sums.low = sums.high = _mm256_set1_epi32(BITS == 4 ? correction : correction * 16);
        }
        void add(const Pair &codes, const uint8_t *q) {
            const __m256i x = _mm256_set1_epi32(four(q));
            sums.low = _mm256_dpbusd_avx_epi32(sums.low, codes.low, x);
            sums.high = _mm256_dpbusd_avx_epi32(sums.high, codes.high, x);
        }
        Pair total() const { return sums; }
    };
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::avxvnni_panels() {
    return avx2_panels() && has_avx_vnni() ? &PANEL_KERNELS<AvxVnni> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::avxvnni_panels() { return nullptr; }

#endif
