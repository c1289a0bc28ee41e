// Panels on Arm CPUs that sum four products of eight bits at once (FEAT_DotProd).
#include "panels.h"

#if defined(__aarch64__)

#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#include "neon_features.h"
#include "panels_neon.inl"

namespace {

struct Dotprod : NeonCodes {
    static constexpr int TOKENS = 4;
    static constexpr int STEP = 4;
    static constexpr bool OWN_DOTS = true;
    static constexpr bool FETCHES_AHEAD = false;
    static constexpr bool IN_REGISTERS = false;

    template <int LANE>
    static inline void add(Ints &sum, const Codes &codes, int8x16_t x) {
        for (int i = 0; i < 4; i++) sum.of[i] = vdotq_laneq_s32(sum.of[i], codes.of[i], x, LANE);
    }
    // Eight inputs: the first four of each of T tokens, then the others, four tokens' in a vector.
    template <int T, size_t... AT>
    static inline void add_all(Ints *sums, const Codes &first, const Codes &second, const int8x16_t *x,
                               std::index_sequence<AT...>) {
        (add<AT % 4>(sums[AT % T], AT < T ? first : second, x[AT / 4]), ...);
    }
    template <int T>
    static inline void load_inputs(const uint8_t *q, int8x16_t *x) {
        for (int i = 0; i < T / 2; i++) x[i] = vreinterpretq_s8_u8(vld1q_u8(q + 16 * i));
        if (T % 2) x[T / 2] = vreinterpretq_s8_u8(vcombine_u8(vld1_u8(q + T / 2 * 16), vdup_n_u8(0)));
    }

    template <int BITS, int T>
    static inline void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                            Ints *sums) {
        for (int t = 0; t < T; t++)
            for (int i = 0; i < 4; i++) sums[t].of[i] = vdupq_n_s32(BITS == 4 ? at<int32_t>(corrections, t) : 0);
        TPIEDGE_ROLLED
        for (int64_t done = 0; done < inputs; done += 8, codes += 16 * BITS, q += 8 * T) {
            Codes first, second;
            load_codes<BITS>(codes, first, second);
            int8x16_t x[(T + 1) / 2];
            load_inputs<T>(q, x);
            add_all<T>(sums, first, second, x, std::make_index_sequence<2 * T>());
        }
    }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::neon_dotprod_panels() {
    return has_dotprod() ? &PANEL_KERNELS<Dotprod> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::neon_dotprod_panels() { return nullptr; }

#endif
