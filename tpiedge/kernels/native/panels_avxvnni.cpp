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

struct DotProducts {
    static __m256i codes8(__m256i stored) { return stored; }

    template <int BITS>
    struct Sum {
        __m256i sums;

        void start(__m256i correction) { sums = BITS == 4 ? correction : _mm256_slli_epi32(correction, 4); }
        void add(__m256i codes, __m256i x) { sums = _mm256_dpbusd_avx_epi32(sums, codes, x); }
        __m256i total(__m256i) const { return sums; }
    };
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::avxvnni_panels() {
    return avx2_panels() && has_avx_vnni() ? &PANEL_KERNELS<Avx2Panels<DotProducts>> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::avxvnni_panels() { return nullptr; }

#endif
