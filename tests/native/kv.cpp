// Appending to the pages of a KV cache: every byte is that of the reference.
#include "kv.h"

#include "panels.h"

namespace {

constexpr uint16_t INFINITE = 0x7c00, NOT_A_NUMBER = 0x7e00;

// The least f16 that is not below x >= 0.
uint16_t above(float x) {
    uint16_t low = 0, high = INFINITE;
    while (low < high) {
        const uint16_t middle = (low + high) / 2;
        if (from_f16(middle) >= x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// The greatest that is not above it.
uint16_t below(float x) {
    const uint16_t bits = above(x);
    return bits == INFINITE || from_f16(bits) > x ? bits - 1 : bits;
}

struct Extent {
    float least = INFINITY;
    float greatest = -INFINITY;
    bool finite = true;

    Extent(const float *x, int64_t count) {
        for (int64_t i = 0; i < count; i++) {
            least = fminf(least, x[i]);
            greatest = fmaxf(greatest, x[i]);
            finite = finite && isfinite(x[i]);
        }
    }
};

int code_of(float distance, uint16_t scale) {
    return scale ? static_cast<int>(nearbyintf(distance * (1.0f / from_f16(scale)))) : 0;
}

void put(uint8_t *at, uint16_t half) { memcpy(at, &half, sizeof half); }

void encode_q8(const float *x, int64_t count, uint8_t *scale_at, uint8_t *codes) {
    const Extent extent(x, count);
    const uint16_t scale = extent.finite ? above(fmaxf(extent.greatest, -extent.least) / 127.0f) : INFINITE;
    put(scale_at, scale == INFINITE ? NOT_A_NUMBER : scale);
    for (int64_t i = 0; i < count; i++) codes[i] = scale == INFINITE ? 0 : static_cast<uint8_t>(code_of(x[i], scale));
}

void encode_q4(const float *x, int64_t count, uint8_t *scales_at, uint8_t *codes) {
    const Extent extent(x, count);
    uint16_t least = 0, scale = INFINITE;
    if (extent.finite) least = extent.least < 0 ? 0x8000 | above(-extent.least) : below(extent.least);
    const bool fits = extent.finite && (least & 0x7fff) != INFINITE;
    if (fits) scale = above((extent.greatest - from_f16(least)) / 15.0f);
    const bool bad = scale == INFINITE;
    put(scales_at, bad ? NOT_A_NUMBER : scale);
    put(scales_at + 2, bad ? 0 : least);
    const int64_t half = (count + 1) / 2;
    memset(codes, 0, half);
    for (int64_t i = 0; i < count && !bad; i++)
        codes[i % half] |= static_cast<uint8_t>(code_of(x[i] - from_f16(least), scale) << (i < half ? 0 : 4));
}

int64_t scales_nbytes(int format, int64_t width) { return (width + GROUP - 1) / GROUP * (format == Q8 ? 2 : 4); }

int64_t row_nbytes(int format, int64_t width) {
    if (format == F32 || format == BF16) return width * (format == F32 ? 4 : 2);
    return scales_nbytes(format, width) + (format == Q8 ? width : (width + 1) / 2);
}

uint16_t half_at(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return half;
}

void make_special(Random &random, float *x, int64_t count) {
    const int64_t kind = random.between(0, 9);
    const int64_t at = random.between(0, count - 1);
    for (int64_t i = 0; i < count; i++) {
        if (kind == 0) x[i] = 0;
        if (kind == 1) x[i] = fabsf(x[i]);
        if (kind == 2) x[i] = 3;
        if (kind == 3) x[i] *= 1e-7f;
        if (kind == 4) x[i] *= 1e-38f;
        if (kind == 5) x[i] = static_cast<float>(random.between(-127, 127)) / 2;
    }
    if (kind == 6) x[at] = NAN;
    if (kind == 7) x[at] = random.coin() ? INFINITY : -INFINITY;
    if (kind == 8) x[at] = random.coin() ? 65504 : -65520;
    if (kind == 9) x[at] = random.coin() ? 1e7f : 1e5f;
}

// Of keys, or of values.
struct Source {
    int64_t head_stride;
    int64_t stride;
    Floats x;

    Source(Random &random, int64_t tokens, int64_t heads, int64_t width)
        : head_stride(width + random.sometimes(5)), stride(heads * head_stride + random.sometimes(5)),
          x(random_floats(random, (tokens - 1) * stride + (heads - 1) * head_stride + width)) {
        const int64_t first = random.between(0, x.size() - 1);
        if (random.coin()) make_special(random, x.data() + first, random.between(1, x.size() - first));
    }
    const float *row(int64_t token, int64_t head) const { return x.data() + token * stride + head * head_stride; }
};

// Two spans: `tokens` of one sequence, and some of another.
void check_append(void *handle, Check &check, Random &random, int format, int64_t tokens, int64_t width) {
    const int64_t heads = random.between(1, 3), others = random.between(1, 3);
    const PageLayout layout = random_layout(random, format, heads, width);
    const Source k(random, tokens + others, heads, width), v(random, tokens + others, heads, width);
    const int64_t starts[] = {random.sometimes(150), random.sometimes(150)}, counts[] = {tokens, others};
    std::vector<Pages> pages, wanted;
    std::vector<Span> spans;
    for (int i = 0; i < 2; i++) {
        pages.emplace_back(layout, starts[i] + counts[i]);
        wanted.emplace_back(layout, starts[i] + counts[i]);
        spans.insert(spans.begin(), pages.back().span(counts[i], starts[i], i * tokens));
    }
    tpiedge_kv_append(handle, k.x.data(), v.x.data(), &layout, spans.data(), 2, k.stride, k.head_stride, v.stride,
                      v.head_stride);
    check.shape(tokens, heads, width);
    for (int i = 0; i < 2; i++) {
        for (int64_t t = 0; t < counts[i]; t++)
            for (int64_t h = 0; h < heads; h++) {
                const auto key = encode(format, k.row(i * tokens + t, h), width);
                const auto value = encode(format, v.row(i * tokens + t, h), width);
                memcpy(wanted[i].key(layout, h, starts[i] + t), key.data(), key.size());
                memcpy(wanted[i].value(layout, h, starts[i] + t), value.data(), value.size());
            }
        pages[i].same(check, wanted[i]);
    }
}

}  // namespace

std::vector<uint8_t> encode(int format, const float *x, int64_t width) {
    std::vector<uint8_t> row(static_cast<size_t>(row_nbytes(format, width)));
    if (format == F32) memcpy(row.data(), x, row.size());
    if (format == BF16)
        for (int64_t i = 0; i < width; i++) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            bits += 0x7fff + (bits >> 16 & 1);  // to the nearest, halves to even
            memcpy(&row[2 * i], reinterpret_cast<const char *>(&bits) + 2, 2);
        }
    if (format == F32 || format == BF16) return row;
    uint8_t *scales = row.data(), *codes = scales + scales_nbytes(format, width);
    for (int64_t i = 0; i < width; i += GROUP) {
        const int64_t count = width - i < GROUP ? width - i : GROUP;
        (format == Q8 ? encode_q8 : encode_q4)(x + i, count, scales, codes);
        scales += format == Q8 ? 2 : 4;
        codes += format == Q8 ? count : (count + 1) / 2;
    }
    return row;
}

std::vector<float> decode(int format, const uint8_t *row, int64_t width) {
    std::vector<float> x(static_cast<size_t>(width));
    if (format == F32) memcpy(x.data(), row, 4 * x.size());
    if (format == BF16)
        for (int64_t i = 0; i < width; i++) memcpy(reinterpret_cast<char *>(&x[i]) + 2, row + 2 * i, 2);
    if (format == F32 || format == BF16) return x;
    const uint8_t *codes = row + scales_nbytes(format, width);
    for (int64_t i = 0; i < width; i++) {
        const int64_t group = i / GROUP, at = i % GROUP, left = width - group * GROUP;
        const int64_t half = ((left < GROUP ? left : GROUP) + 1) / 2;
        if (format == Q8) {
            x[i] = from_f16(half_at(row + 2 * group)) * static_cast<float>(static_cast<int8_t>(codes[i]));
            continue;
        }
        const uint8_t both = codes[group * GROUP / 2 + at % half];
        const int code = at < half ? both & 15 : both >> 4;
        x[i] = from_f16(half_at(row + 4 * group + 2)) + from_f16(half_at(row + 4 * group)) * static_cast<float>(code);
    }
    return x;
}

PageLayout random_layout(Random &random, int format, int64_t kv_heads, int64_t width) {
    const int64_t unit = format == F32 ? 4 : format == BF16 ? 2 : 1;
    const int64_t row = row_nbytes(format, width), positions = random.coin() ? 64 : 128;
    const int64_t value_bytes = positions * row + unit * random.sometimes(9);
    const int64_t head_bytes = value_bytes + positions * row + unit * random.sometimes(9);
    return PageLayout{format, kv_heads, width, positions, unit * random.sometimes(9), head_bytes, row, value_bytes};
}

void check_kv(void *handle, const char *isa) {
    Random random(6);
    Check f32("kv_append_f32", isa), bf16("kv_append_bf16", isa), q8("kv_append_q8", isa), q4("kv_append_q4", isa);
    Check *const checks[] = {&f32, &bf16, &q8, &q4};
    for (int i = 0; i < 120; i++) {
        const int64_t tokens = random.between(1, 3), width = random.between(1, 140);
        for (int format = 0; format < FORMATS; format++)
            check_append(handle, *checks[format], random, format, tokens, width);
    }
    // Of a prompt.
    for (int format = 0; format < FORMATS; format++) check_append(handle, *checks[format], random, format, 700, 130);
}
