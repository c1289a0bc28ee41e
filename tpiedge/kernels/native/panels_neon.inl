// The part that panel kernels of all 64-bit Arm CPUs share (panels.inl): sixteen outputs as four vectors of four.

#include <arm_neon.h>
#include <string.h>

#include "compiler.h"
#include "panels.h"
#include "prepared.h"

namespace {

struct NeonPanels {
    struct Floats {
        float32x4_t of[4];
    };
    struct Ints {
        int32x4_t of[4];
    };

    static Floats zero() { return {}; }
    static void store(float *to, const Floats &value) {
        for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, value.of[i]);
    }
    static void store_some(float *to, const Floats &value, int count) {
        float whole[16];
        store(whole, value);
        memcpy(to, whole, count * sizeof(float));
    }
    static Floats scales(const uint16_t *from) {
        Floats made;
        for (int i = 0; i < 4; i++) made.of[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i)));
        return made;
    }
    static Floats fold(const Ints &sum, const Floats &scales, float dx, const Floats &y) {
        Floats made;
        for (int i = 0; i < 4; i++)
            made.of[i] = vfmaq_f32(y.of[i], vcvtq_f32_s32(sum.of[i]), vmulq_n_f32(scales.of[i], dx));
        return made;
    }

    static Floats add_product(const Floats &a, float b, const Floats &y) {
        Floats made;
        for (int i = 0; i < 4; i++) made.of[i] = vfmaq_n_f32(y.of[i], a.of[i], b);
        return made;
    }
    static Floats product(const Floats &a, const Floats &b) {
        Floats made;
        for (int i = 0; i < 4; i++) made.of[i] = vmulq_f32(a.of[i], b.of[i]);
        return made;
    }
    static Floats negated(const Floats &a) {
        Floats made;
        for (int i = 0; i < 4; i++) made.of[i] = vnegq_f32(a.of[i]);
        return made;
    }
    static Floats widened(tpiedge::Sixteen bytes) {
        const uint8x16_t all = (uint8x16_t)bytes;
        const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(all)), vmovl_u8(vget_high_u8(all))};
        Floats made;
        for (int i = 0; i < 4; i++) {
            const uint16x8_t half = halves[i / 2];
            made.of[i] = vcvtq_f32_u32(vmovl_u16(i % 2 ? vget_high_u16(half) : vget_low_u16(half)));
        }
        return made;
    }
    static Floats widened_signed(tpiedge::Sixteen bytes) {
        const int8x16_t all = (int8x16_t)bytes;
        const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(all)), vmovl_s8(vget_high_s8(all))};
        Floats made;
        for (int i = 0; i < 4; i++) {
            const int16x8_t half = halves[i / 2];
            made.of[i] = vcvtq_f32_s32(vmovl_s16(i % 2 ? vget_high_s16(half) : vget_low_s16(half)));
        }
        return made;
    }
    static Floats power(const uint8_t *from) {
        float of[16];
        for (int r = 0; r < 16; r++) of[r] = tpiedge::power(from[r]);
        return load(of);
    }
    static void lookup(const uint8_t *table, const uint8_t *from, uint8_t *low, uint8_t *high) {
        const uint8x16_t values = vld1q_u8(table);
        for (int i = 0; i < 64; i += 16) {
            const uint8x16_t both = vld1q_u8(from + i);
            vst1q_u8(low + i, vqtbl1q_u8(values, vandq_u8(both, vdupq_n_u8(15))));
            vst1q_u8(high + i, vqtbl1q_u8(values, vshrq_n_u8(both, 4)));
        }
    }

    static Floats load(const float *from) {
        return {{vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)}};
    }
    static Ints load_ints(const int32_t *from) {
        return {{vld1q_s32(from), vld1q_s32(from + 4), vld1q_s32(from + 8), vld1q_s32(from + 12)}};
    }
    static void store_ints(int32_t *to, const Ints &value) {
        for (int i = 0; i < 4; i++) vst1q_s32(to + 4 * i, value.of[i]);
    }
    static void add_part(const Floats &y, Ints &sums, Floats &squares) {
        for (int i = 0; i < 4; i++) {
            sums.of[i] = vaddq_s32(sums.of[i], vcvtnq_s32_f32(y.of[i]));
            squares.of[i] = vfmaq_f32(squares.of[i], y.of[i], y.of[i]);
        }
    }

    static int32x4_t magnitude(const float *x) {
        return vandq_s32(vreinterpretq_s32_f32(vld1q_f32(x)), vdupq_n_s32(INT32_MAX));
    }
    static Quantised quantise(const float *x, uint8_t *q) {
        int32x4_t most = magnitude(x);
        for (int i = 4; i < 32; i += 4) most = vmaxq_s32(most, magnitude(x + i));
        const QuantisedScale scale(vmaxvq_s32(most));
        if (scale.zero) {
            memset(q, 0, 32);
            return {scale.dx, 0, 0};
        }
        for (int i = 0; i < 32; i += 8) {
            const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), scale.inverse));
            const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), scale.inverse));
            vst1_u8(q + i, vreinterpret_u8_s8(vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high)))));
        }
        const int32_t first = vaddlvq_s8(vreinterpretq_s8_u8(vld1q_u8(q)));
        return {scale.dx, first + vaddlvq_s8(vreinterpretq_s8_u8(vld1q_u8(q + 16))), first};
    }
};

// Codes of all outputs and four inputs: four outputs in a vector. Those of eight bits are less their offset, as signed
// numbers have them; those of four bits are not.
struct NeonCodes : NeonPanels {
    struct Codes {
        int8x16_t of[4];
    };

    // Of a block of eight inputs.
    template <int BITS>
    static inline void load_codes(const uint8_t *from, Codes &first, Codes &second) {
        const uint8x16_t offset = vdupq_n_u8(128), low = vdupq_n_u8(15);
        for (int i = 0; i < 4; i++) {
            const uint8x16_t in = vld1q_u8(from + 16 * i);
            first.of[i] = vreinterpretq_s8_u8(BITS == 4 ? vandq_u8(in, low) : veorq_u8(in, offset));
            const uint8x16_t other = BITS == 4 ? vshrq_n_u8(in, 4) : veorq_u8(vld1q_u8(from + 64 + 16 * i), offset);
            second.of[i] = vreinterpretq_s8_u8(other);
        }
    }
};

}  // namespace
