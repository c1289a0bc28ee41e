// Panels on Arm CPUs that multiply matrices of eight bits (FEAT_I8MM): two outputs times two tokens, eight inputs each.
#include "panels.h"

#if defined(__aarch64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif

#include "neon_features.h"
#include "panels_neon.inl"

namespace {

// Codes of four outputs, unsigned: inputs 0 to 3 and 4 to 7 of a block of eight. `at` is the four's first byte.
template <int BITS>
inline void load_four(const uint8_t *at, uint8x16_t &first, uint8x16_t &second) {
    const uint8x16_t both = vld1q_u8(at);
    first = BITS == 4 ? vandq_u8(both, vdupq_n_u8(15)) : both;
    second = BITS == 4 ? vshrq_n_u8(both, 4) : vld1q_u8(at + 64);
}

// What the codes' offset takes off all sums of a token.
template <int BITS>
inline int32_t offset(int32_t correction) {
    return BITS == 4 ? correction : 16 * correction;
}

// Sums of eight outputs and T tokens, T even. `of[t][r]`: outputs 2 r and 2 r + 1, each of tokens 2 t and 2 t + 1.
template <int T>
struct Pairs {
    int32x4_t of[T / 2][4];

    template <int BITS>
    inline void start(const uint8_t *corrections) {
        for (int t = 0; t < T / 2; t++) {
            const int32_t low = offset<BITS>(at<int32_t>(corrections, 2 * t));
            const int32_t high = offset<BITS>(at<int32_t>(corrections, 2 * t + 1));
            const int32x2_t both = vset_lane_s32(high, vdup_n_s32(low), 1);
            for (int r = 0; r < 4; r++) of[t][r] = vcombine_s32(both, both);
        }
    }
    // Eight inputs.
    template <int BITS>
    inline void add(const uint8_t *codes, const uint8_t *q) {
        uint8x16_t outputs[4];  // two in each
        for (int i = 0; i < 2; i++) {
            uint8x16_t first, second;
            load_four<BITS>(codes + 16 * i, first, second);
            const uint32x4_t low = vreinterpretq_u32_u8(first), high = vreinterpretq_u32_u8(second);
            outputs[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(low, high));
            outputs[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(low, high));
        }
        for (int t = 0; t < T / 2; t++) {
            const int8x16_t x = vreinterpretq_s8_u8(vld1q_u8(q + 16 * t));
            for (int r = 0; r < 4; r++) of[t][r] = vusmmlaq_s32(of[t][r], outputs[r], x);
        }
    }
    inline int32x4_t first_of(int t, int i) const { return vuzp1q_s32(of[t][2 * i], of[t][2 * i + 1]); }
    inline int32x4_t second_of(int t, int i) const { return vuzp2q_s32(of[t][2 * i], of[t][2 * i + 1]); }
};

struct I8mm : NeonPanels {
    static constexpr int TOKENS = 8;
    static constexpr int STEP = 8;
    static constexpr bool OWN_DOTS = true;
    static constexpr bool FETCHES_AHEAD = false;
    static constexpr bool IN_REGISTERS = false;

    // `step`: bytes from a block's activations to the next block's.
    template <int BITS>
    static inline void one_token(const uint8_t *codes, int64_t inputs, const uint8_t *q, int step, int32_t correction,
                                 Ints &sums) {
        for (auto &sum : sums.of) sum = vdupq_n_s32(offset<BITS>(correction));
        TPIEDGE_ROLLED
        for (int64_t done = 0; done < inputs; done += 8, codes += 16 * BITS, q += step) {
            const int8x8_t x = vreinterpret_s8_u8(vld1_u8(q));
            for (int i = 0; i < 4; i++) {
                uint8x16_t first, second;
                load_four<BITS>(codes + 16 * i, first, second);
                sums.of[i] = vusdotq_lane_s32(vusdotq_lane_s32(sums.of[i], first, x, 0), second, x, 1);
            }
        }
    }

    // Half of the outputs: with all of them there would be more sums than registers.
    template <int BITS, int T>
    static inline void pairs_of_tokens(const uint8_t *codes, int64_t inputs, const uint8_t *q, int step,
                                       const uint8_t *corrections, Ints *sums, int half) {
        Pairs<T> pairs;
        pairs.template start<BITS>(corrections);
        codes += 32 * half;
        TPIEDGE_ROLLED
        for (int64_t done = 0; done < inputs; done += 8, codes += 16 * BITS, q += step)
            pairs.template add<BITS>(codes, q);
        for (int t = 0; t < T / 2; t++)
            for (int i = 0; i < 2; i++) {
                sums[2 * t].of[2 * half + i] = pairs.first_of(t, i);
                sums[2 * t + 1].of[2 * half + i] = pairs.second_of(t, i);
            }
    }

    template <int BITS, int T>
    static inline void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                            Ints *sums) {
        constexpr int even = T / 2 * 2;
        if constexpr (even > 0)
            for (int half = 0; half < 2; half++)
                pairs_of_tokens<BITS, even>(codes, inputs, q, STEP * T, corrections, sums, half);
        if constexpr (even < T)
            one_token<BITS>(codes, inputs, q + STEP * even, STEP * T, at<int32_t>(corrections, even), sums[even]);
    }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::neon_i8mm_panels() {
    return has_dotprod() && has_i8mm() ? &PANEL_KERNELS<I8mm> : nullptr;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tpiedge::PanelKernels *tpiedge::neon_i8mm_panels() { return nullptr; }

#endif
