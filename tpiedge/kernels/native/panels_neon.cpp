// Panels on every 64-bit Arm CPU: products of eight bits, each in sixteen, added up in pairs.
#include "panels.h"

#if defined(__aarch64__)

#include "panels_neon.inl"

namespace {

// Sums of sixteen outputs, each in parts: those of four bits by the place of an input among four, because eight
// products of at most 15 * 127 fit 16 bits; those of eight bits in pairs of places.
template <int BITS>
struct Parts;

template <>
struct Parts<4> {
    int16x8_t of[8];

    void start() {
        for (auto &part : of) part = vdupq_n_s16(0);
    }
    void add(int at, int8x8_t codes, int8x8_t x) { of[at] = vmlal_s8(of[at], codes, x); }
    int32x4_t pairs(int at) const { return vpaddlq_s16(of[at]); }
};

template <>
struct Parts<8> {
    int32x4_t of[8];

    void start() {
        for (auto &part : of) part = vdupq_n_s32(0);
    }
    void add(int at, int8x8_t codes, int8x8_t x) { of[at] = vpadalq_s16(of[at], vmull_s8(codes, x)); }
    int32x4_t pairs(int at) const { return of[at]; }
};

struct Baseline : NeonCodes {
    static constexpr int TOKENS = 2;
    static constexpr int STEP = 4;
    static constexpr bool OWN_DOTS = true;
    static constexpr bool FETCHES_AHEAD = false;
    static constexpr bool IN_REGISTERS = false;

    template <int BITS>
    static inline void add(Parts<BITS> &parts, const Codes &codes, const uint8_t *q) {
        int32_t four;
        memcpy(&four, q, sizeof four);
        const int8x8_t x = vreinterpret_s8_s32(vdup_n_s32(four));
        for (int i = 0; i < 4; i++) {
            parts.add(2 * i, vget_low_s8(codes.of[i]), x);
            parts.add(2 * i + 1, vget_high_s8(codes.of[i]), x);
        }
    }

    template <int BITS, int T>
    static inline void dots(const uint8_t *codes, int64_t inputs, const uint8_t *q, const uint8_t *corrections,
                            Ints *sums) {
        Parts<BITS> parts[T];
        for (auto &part : parts) part.start();
        TPIEDGE_ROLLED
        for (int64_t done = 0; done < inputs; done += 8, codes += 16 * BITS, q += 8 * T) {
            Codes first, second;
            load_codes<BITS>(codes, first, second);
            for (int t = 0; t < T; t++) add<BITS>(parts[t], first, q + 4 * t);
            for (int t = 0; t < T; t++) add<BITS>(parts[t], second, q + 4 * (T + t));
        }
        for (int t = 0; t < T; t++) {
            const int32x4_t start = vdupq_n_s32(BITS == 4 ? at<int32_t>(corrections, t) : 0);
            for (int i = 0; i < 4; i++)
                sums[t].of[i] = vaddq_s32(start, vpaddq_s32(parts[t].pairs(2 * i), parts[t].pairs(2 * i + 1)));
        }
    }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::neon_panels() { return &PANEL_KERNELS<Baseline>; }

#else

const tpiedge::PanelKernels *tpiedge::neon_panels() { return nullptr; }

#endif
