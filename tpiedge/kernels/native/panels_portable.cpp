// Products with quantised matrices for any CPU, with vectors of sixteen bytes in the compiler's own notation.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "panels.h"
#include "prepared.h"

namespace {

struct PortablePanels {
    static constexpr int TOKENS = 2;
    static constexpr int STEP = 4;
    static constexpr bool OWN_DOTS = false;
    static constexpr bool FETCHES_AHEAD = false;
    static constexpr bool IN_REGISTERS = false;
    typedef int16_t Eight __attribute__((vector_size(16)));
    typedef uint8_t Bytes __attribute__((vector_size(8)));
    static constexpr int VECTORS = 8;  // of products of sixteen outputs and four inputs
    struct Floats {
        float of[16];
    };
    struct Ints {
        int32_t of[16];
    };

    static Floats zero() { return {}; }
    static void store(float *to, const Floats &value) { store_some(to, value, 16); }
    static void store_some(float *to, const Floats &value, int count) { memcpy(to, value.of, count * sizeof(float)); }

    // An f16 as f32: its exponent and fraction moved, and 2^112 times that, which also makes normal numbers of denormals.
    static float wide(uint16_t half) {
        const uint32_t bits = static_cast<uint32_t>(half & 0x7fff) << 13;
        float value, power;
        const uint32_t power_bits = 0x77800000;
        memcpy(&value, &bits, sizeof value);
        memcpy(&power, &power_bits, sizeof power);
        value *= power;
        uint32_t result;
        memcpy(&result, &value, sizeof result);
        if ((half & 0x7c00) == 0x7c00) result = bits | 0x7f800000;
        result |= static_cast<uint32_t>(half & 0x8000) << 16;
        memcpy(&value, &result, sizeof value);
        return value;
    }
    static Floats scales(const uint16_t *from) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = wide(from[r]);
        return value;
    }
    static Floats fold(const Ints &sum, const Floats &scales, float dx, const Floats &y) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = fmaf(static_cast<float>(sum.of[r]), scales.of[r] * dx, y.of[r]);
        return value;
    }
    static Floats add_product(const Floats &a, float b, const Floats &y) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = fmaf(a.of[r], b, y.of[r]);
        return value;
    }
    static Floats product(const Floats &a, const Floats &b) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = a.of[r] * b.of[r];
        return value;
    }
    static Floats negated(const Floats &a) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = -a.of[r];
        return value;
    }
    template <class Byte>
    static Floats all(tpiedge::Sixteen bytes) {
        Byte of[16];
        memcpy(of, &bytes, sizeof of);
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = of[r];
        return value;
    }
    static Floats widened(tpiedge::Sixteen bytes) { return all<uint8_t>(bytes); }
    static Floats widened_signed(tpiedge::Sixteen bytes) { return all<int8_t>(bytes); }
    static Floats power(const uint8_t *from) {
        Floats value;
        for (int r = 0; r < 16; r++) value.of[r] = tpiedge::power(from[r]);
        return value;
    }
    static void lookup(const uint8_t *table, const uint8_t *from, uint8_t *low, uint8_t *high) {
        for (int i = 0; i < 64; i++) {
            low[i] = table[from[i] & 15];
            high[i] = table[from[i] >> 4];
        }
    }
    // Above 2^23 an f32 is an integer; below, adding that leaves no bits for a fraction.
    static int32_t rounded(float y) {
        constexpr float INTEGERS = 8388608.0f, LIMIT = 2147483648.0f;
        const float most = fabsf(y);
        if (!(most < LIMIT)) return INT32_MIN;
        const float whole = most < INTEGERS ? (most + INTEGERS) - INTEGERS : most;
        return static_cast<int32_t>(y < 0.0f ? -whole : whole);
    }
    static Floats load(const float *from) {
        Floats value;
        memcpy(value.of, from, sizeof value.of);
        return value;
    }
    static Ints load_ints(const int32_t *from) {
        Ints value;
        memcpy(value.of, from, sizeof value.of);
        return value;
    }
    static void store_ints(int32_t *to, const Ints &value) { memcpy(to, value.of, sizeof value.of); }
    static void add_part(const Floats &y, Ints &sums, Floats &squares) {
        for (int r = 0; r < 16; r++) {
            const uint32_t sum = static_cast<uint32_t>(sums.of[r]) + static_cast<uint32_t>(rounded(y.of[r]));
            sums.of[r] = static_cast<int32_t>(sum);  // may wrap, and is of no use then
            squares.of[r] += y.of[r] * y.of[r];
        }
    }
    static Quantised quantise(const float *x, uint8_t *q) {
        int32_t most = 0;
        for (int i = 0; i < 32; i++) {
            int32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bits &= INT32_MAX;
            most = bits > most ? bits : most;
        }
        const QuantisedScale scale(most);
        if (scale.zero) {
            memset(q, 0, 32);
            return {scale.dx, 0, 0};
        }
        int32_t sums[2] = {};
        for (int i = 0; i < 32; i++) {
            // 1.5 * 2^23 leaves no bits for a fraction, and rounds as every addition does.
            const float magic = x[i] * scale.inverse + 12582912.0f;
            const int32_t n = static_cast<int32_t>(magic - 12582912.0f);
            q[i] = static_cast<uint8_t>(n);
            sums[i / 16] += n;
        }
        return {scale.dx, sums[0] + sums[1], sums[0]};
    }

    // Those of eight bits without their offset; eight of 64.
    template <int BITS>
    struct Codes {
        Eight of[VECTORS];
    };

    static Eight eight(const uint8_t *from) {
        Bytes bytes;
        memcpy(&bytes, from, sizeof bytes);
        return __builtin_convertvector(bytes, Eight);
    }
    static void codes8(const uint8_t *from, Codes<8> &codes) {
        for (int i = 0; i < VECTORS; i++) codes.of[i] = eight(from + 8 * i) - 128;
    }
    static void codes4(const uint8_t *from, Codes<4> &low, Codes<4> &high) {
        for (int i = 0; i < VECTORS; i++) {
            const Eight both = eight(from + 8 * i);
            low.of[i] = both & 15;
            high.of[i] = both >> 4;
        }
    }
    // Four q, twice.
    static Eight repeated(const uint8_t *q) {
        int16_t of[8];
        for (int i = 0; i < 8; i++) of[i] = static_cast<int8_t>(q[i % 4]);
        Eight x;
        memcpy(&x, of, sizeof x);
        return x;
    }
    static Ints by_fours(const Eight *of) {
        int16_t all[64];
        memcpy(all, of, sizeof all);
        Ints sums;
        for (int r = 0; r < 16; r++) sums.of[r] = (all[4 * r] + all[4 * r + 1]) + (all[4 * r + 2] + all[4 * r + 3]);
        return sums;
    }

    template <int BITS>
    struct Sum;
};

// Eight products of four bits and eight fit 16 bits.
template <>
struct PortablePanels::Sum<4> {
    Eight of[VECTORS];
    int32_t correction;

    void start(int32_t start) {
        memset(of, 0, sizeof of);
        correction = start;
    }
    void add(const Codes<4> &codes, const uint8_t *q) {
        const Eight x = repeated(q);
        for (int i = 0; i < VECTORS; i++) of[i] += codes.of[i] * x;
    }
    Ints total() const {
        Ints sums = by_fours(of);
        for (int r = 0; r < 16; r++) sums.of[r] += correction;
        return sums;
    }
};

// Of eight bits and eight only two: their upper and lower bytes are summed apart.
template <>
struct PortablePanels::Sum<8> {
    Eight low[VECTORS], high[VECTORS];

    void start(int32_t) {
        memset(low, 0, sizeof low);
        memset(high, 0, sizeof high);
    }
    void add(const Codes<8> &codes, const uint8_t *q) {
        const Eight x = repeated(q);
        for (int i = 0; i < VECTORS; i++) {
            const Eight products = codes.of[i] * x;
            low[i] += products & 255;
            high[i] += products >> 8;
        }
    }
    Ints total() const {
        Ints sums = by_fours(low);
        const Ints above = by_fours(high);
        for (int r = 0; r < 16; r++) sums.of[r] += above.of[r] * 256;
        return sums;
    }
};

}  // namespace

#include "panels.inl"

const tpiedge::PanelKernels *tpiedge::portable_panels() { return &PANEL_KERNELS<PortablePanels>; }
