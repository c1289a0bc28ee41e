// Vectors of four floats: NEON, which every 64-bit Arm CPU has.
#include "kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

namespace {

struct Neon {
    using Reg = float32x4_t;
    static constexpr int lanes = 4;
    static constexpr int TOKENS = 4;
    static constexpr int VECTORS = 4;
    static constexpr int KEYS = 2;

    static Reg zero() { return vdupq_n_f32(0.0f); }
    static Reg broadcast(float value) { return vdupq_n_f32(value); }
    static Reg load(const float *from) { return vld1q_f32(from); }
    static Reg load(const uint16_t *from) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)); }
    template <class W>
    static Reg load_some(const W *from, int count) {
        W whole[lanes] = {};
        memcpy(whole, from, count * sizeof(W));
        return load(whole);
    }
    static void store(float *to, Reg value) { vst1q_f32(to, value); }
    static void store_some(float *to, Reg value, int count) { memcpy(to, &value, count * sizeof(float)); }
    static Reg add(Reg a, Reg b) { return vaddq_f32(a, b); }
    static Reg sub(Reg a, Reg b) { return vsubq_f32(a, b); }
    static Reg mul(Reg a, Reg b) { return vmulq_f32(a, b); }
    static Reg div(Reg a, Reg b) { return vdivq_f32(a, b); }
    static Reg max(Reg a, Reg b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // vmaxq's NaN differs
    static Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
    static Reg fused(Reg a, Reg b, Reg c) { return fma(a, b, c); }
    static float sum(Reg a) { return vaddv_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a))); }
    // a0 + a2, b0 + b2, a1 + a3, b1 + b3.
    static Reg weave(Reg a, Reg b) { return vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b)); }
    static Reg quads(Reg a, Reg b, Reg c, Reg d) {
        const Reg ab = weave(a, b), cd = weave(c, d);
        return vaddq_f32(vcombine_f32(vget_low_f32(ab), vget_low_f32(cd)),
                         vcombine_f32(vget_high_f32(ab), vget_high_f32(cd)));
    }
    static void store_quads(float *to, Reg a) { store(to, a); }
    static Reg power2(Reg magic) {
        const uint32x4_t n = vaddq_u32(vreinterpretq_u32_f32(magic), vdupq_n_u32(127));
        return vreinterpretq_f32_u32(vshlq_n_u32(n, 23));
    }
    static Reg half(uint16_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))); }
    static Reg codes(const int8_t *from) {
        int32_t four;
        memcpy(&four, from, sizeof four);
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
    }
    template <int SHIFT>
    static Reg nibbles(const unsigned char *from) {
        uint32_t four;
        memcpy(&four, from, sizeof four);
        four = four >> SHIFT & 0x0f0f0f0fu;
        return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
    }
    static void prefetch(const void *at) { __builtin_prefetch(at); }
};

}  // namespace

#include "kernels.inl"

const tpiedge::Kernels *tpiedge::neon_kernels() { return &KERNELS<Neon>; }

#else

const tpiedge::Kernels *tpiedge::neon_kernels() { return nullptr; }

#endif
