// Rows of the KV cache (V as in kernels.inl): reading a row of each format, and writing those that are quantised, as
// tpiedge/kernels/kv_format.py describes them.
//
// What a code means is the same f32 on every instruction set, because scale * code has at most 18 significant bits; and
// so are the codes, because every operation that leads to them is rounded by itself.

namespace {

using tpiedge::Append;

constexpr int KV_GROUP = 32;

// A byte of a quantised row.
struct Q8 {
    unsigned char byte;
};
struct Q4 {
    unsigned char byte;
};

inline uint16_t half_at(const unsigned char *from) {
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

constexpr uint16_t HALF_INFINITY = 0x7c00, HALF_NAN = 0x7e00;

inline float float_of_half(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= HALF_INFINITY) return float_of(sign | 0x7f800000u | (rest << 13));
    return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

// The f16 next to `value` >= 0 (or -0), downwards or upwards.
inline uint16_t half_below(float value) {
    const uint32_t bits = bits_of(value) & 0x7fffffff;  // -0 is 0
    const int exponent = static_cast<int>(bits >> 23) - 127;
    if (exponent > 15) return HALF_INFINITY - 1;
    if (exponent >= -14) return static_cast<uint16_t>((exponent + 15) << 10 | (bits & 0x7fffff) >> 13);
    if (exponent >= -24) return static_cast<uint16_t>(((bits & 0x7fffff) | 0x800000) >> (-1 - exponent));
    return 0;
}

inline uint16_t half_above(float value) {
    const uint16_t below = half_below(value);
    return float_of_half(below) < value ? below + 1 : below;
}

// --- reading

inline int64_t whole_groups(int64_t width) { return width / KV_GROUP; }
inline int64_t all_groups(int64_t width) { return (width + KV_GROUP - 1) / KV_GROUP; }

// A whole group of a row: get(i) are its numbers [i, i + V::lanes).
template <class V, class W>
struct WholeGroup;

template <class V>
struct WholeGroup<V, Q8> {
    typename V::Reg scale;
    const int8_t *codes;

    WholeGroup(const Q8 *row, int64_t width, int64_t group)
        : scale(V::half(half_at(&row->byte + 2 * group))),
          codes(reinterpret_cast<const int8_t *>(row + 2 * all_groups(width) + KV_GROUP * group)) {}
    typename V::Reg get(int i) const { return V::mul(scale, V::codes(codes + i)); }
};

template <class V>
struct WholeGroup<V, Q4> {
    static constexpr int HALF = KV_GROUP / 2;
    typename V::Reg scale;
    typename V::Reg least;
    const unsigned char *codes;

    WholeGroup(const Q4 *row, int64_t width, int64_t group)
        : scale(V::half(half_at(&row->byte + 4 * group))), least(V::half(half_at(&row->byte + 4 * group + 2))),
          codes(&row->byte + 4 * all_groups(width) + HALF * group) {}
    typename V::Reg get(int i) const {
        const auto code = i < HALF ? V::template nibbles<0>(codes + i) : V::template nibbles<4>(codes + i - HALF);
        return V::fma(scale, code, least);
    }
};

// The last group of a row, where it is short: at most KV_GROUP - 1 numbers.
inline void expand_rest(const Q8 *row, int64_t width, float *to) {
    const int64_t groups = all_groups(width), first = KV_GROUP * whole_groups(width);
    const int8_t *codes = reinterpret_cast<const int8_t *>(row + 2 * groups);
    const float scale = float_of_half(half_at(&row->byte + 2 * (groups - 1)));
    for (int64_t c = first; c < width; c++) to[c - first] = scale * static_cast<float>(codes[c]);
}

inline void expand_rest(const Q4 *row, int64_t width, float *to) {
    const int64_t groups = all_groups(width), whole = whole_groups(width);
    const unsigned char *scales = &row->byte + 4 * (groups - 1);
    const unsigned char *codes = &row->byte + 4 * groups + KV_GROUP / 2 * whole;
    const float scale = float_of_half(half_at(scales)), least = float_of_half(half_at(scales + 2));
    const int count = static_cast<int>(width - KV_GROUP * whole), half = (count + 1) / 2;
    for (int i = 0; i < count; i++) {
        const int code = i < half ? codes[i] & 15 : codes[i - half] >> 4;
        to[i] = scale * static_cast<float>(code) + least;
    }
}

// A row to f32.
template <class V, class W>
inline void expand(const W *row, int64_t width, float *to) {
    if constexpr (std::is_same<W, uint16_t>::value) {
        int64_t c = 0;
        for (; c + V::lanes <= width; c += V::lanes) V::store(to + c, V::load(row + c));
        for (; c < width; c++) to[c] = float_of(static_cast<uint32_t>(row[c]) << 16);
    } else {
        const int64_t groups = whole_groups(width);
        for (int64_t g = 0; g < groups; g++) {
            const WholeGroup<V, W> group(row, width, g);
            for (int i = 0; i < KV_GROUP; i += V::lanes) V::store(to + g * KV_GROUP + i, group.get(i));
        }
        if (groups * KV_GROUP < width) expand_rest(row, width, to + groups * KV_GROUP);
    }
}

// --- writing

// One group: its numbers, filled up with the first; the least and the greatest; whether all are finite.
struct Group {
    float x[KV_GROUP];
    float least;
    float greatest;
    bool finite;
};

template <class V>
inline void take_group(const float *x, int count, Group &group) {
    memcpy(group.x, x, count * sizeof(float));
    for (int i = count; i < KV_GROUP; i++) group.x[i] = x[0];
    auto high = V::load(group.x), low = V::sub(V::zero(), high), nothing = V::zero();
    for (int i = 0; i < KV_GROUP; i += V::lanes) {
        const auto in = V::load(group.x + i);
        high = V::max(high, in);
        low = V::max(low, V::sub(V::zero(), in));
        nothing = V::add(nothing, V::mul(in, V::zero()));
    }
    float highs[V::lanes], lows[V::lanes];
    V::store(highs, high);
    V::store(lows, low);
    for (int i = 1; i < V::lanes; i++) {
        highs[0] = highs[0] > highs[i] ? highs[0] : highs[i];
        lows[0] = lows[0] > lows[i] ? lows[0] : lows[i];
    }
    group.greatest = highs[0];
    group.least = -lows[0];
    group.finite = V::sum(nothing) == 0.0f;
}

// (x - least) / scale to the nearest integer, halves to even.
inline void codes_of(const Group &group, float least, float scale, int32_t *codes) {
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int i = 0; i < KV_GROUP; i++)
        codes[i] = static_cast<int32_t>(bits_of((group.x[i] - least) * inverse + ROUND) - bits_of(ROUND));
}

template <class V>
inline void pack_q8(const float *x, int count, unsigned char *scale_at, unsigned char *codes_at) {
    Group group;
    take_group<V>(x, count, group);
    const float most = group.greatest > -group.least ? group.greatest : -group.least;
    uint16_t scale = group.finite ? half_above(most / 127.0f) : HALF_NAN;
    if (scale >= HALF_INFINITY) {
        scale = HALF_NAN;
        memset(codes_at, 0, count);
    } else {
        int32_t codes[KV_GROUP];
        codes_of(group, 0.0f, float_of_half(scale), codes);
        for (int i = 0; i < count; i++) codes_at[i] = static_cast<unsigned char>(codes[i]);
    }
    memcpy(scale_at, &scale, sizeof scale);
}

template <class V>
inline void pack_q4(const float *x, int count, unsigned char *scale_at, unsigned char *codes_at) {
    Group group;
    take_group<V>(x, count, group);
    uint16_t least = 0, scale = HALF_NAN;
    if (group.finite) {
        least = group.least < 0.0f ? 0x8000 | half_above(-group.least) : half_below(group.least);
        if ((least & 0x7fff) < HALF_INFINITY) scale = half_above((group.greatest - float_of_half(least)) / 15.0f);
    }
    const int half = (count + 1) / 2;
    if (scale >= HALF_INFINITY) {
        scale = HALF_NAN;
        least = 0;
        memset(codes_at, 0, half);
    } else {
        int32_t codes[KV_GROUP];
        codes_of(group, float_of_half(least), float_of_half(scale), codes);
        for (int i = 0; i < half; i++)
            codes_at[i] = static_cast<unsigned char>(codes[i] | (half + i < count ? codes[half + i] << 4 : 0));
    }
    memcpy(scale_at, &scale, sizeof scale);
    memcpy(scale_at + 2, &least, sizeof least);
}

template <class V, class F>
void append(const Append &a) {
    constexpr bool q8 = std::is_same<F, Q8>::value;
    const int64_t groups = (a.width + KV_GROUP - 1) / KV_GROUP;
    for (int64_t t = 0; t < a.tokens; t++)
        for (int64_t h = 0; h < a.heads; h++) {
            const float *x = a.x + t * a.x_token_stride + h * a.x_head_stride;
            unsigned char *scales = a.to + t * a.token_stride + h * a.head_stride;
            unsigned char *codes = scales + (q8 ? 2 : 4) * groups;
            for (int64_t c = 0; c < a.width; c += KV_GROUP, scales += q8 ? 2 : 4, codes += KV_GROUP / (q8 ? 1 : 2)) {
                const int count = static_cast<int>(a.width - c < KV_GROUP ? a.width - c : KV_GROUP);
                if (q8)
                    pack_q8<V>(x + c, count, scales, codes);
                else
                    pack_q4<V>(x + c, count, scales, codes);
            }
        }
}

}  // namespace
