// Attention, with several query heads for each KV head, windows, and strides as a KV cache with room left has them.
#include "kv.h"

namespace {

struct Case {
    int64_t tokens;
    int64_t kv_heads;
    int64_t width;
    int64_t offset;
    int64_t positions;  // with a key and a value
    int64_t window;
    std::vector<int64_t> head_start;

    explicit Case(Random &random)
        : tokens(random.between(1, 9)), kv_heads(random.between(1, 3)), width(random.between(1, 100)),
          offset(random.sometimes(150)), positions(offset + tokens),
          window(random.coin() ? random.between(1, 80) : int64_t{1} << 62), head_start{0} {
        for (int64_t j = 0; j < kv_heads; j++) head_start.push_back(head_start.back() + random.between(1, 18));
    }
    int64_t heads() const { return head_start.back(); }
};

// Keys or values. Strides count numbers, or bytes where they are quantised.
struct Cache {
    int format;
    int64_t width;
    int64_t unit;
    int64_t stride;
    int64_t head_stride;
    Array<uint8_t> data;
    std::vector<std::vector<float>> rows;  // what they stand for, [K * S]

    Cache(Random &random, const Case &c, int format_) : Cache(random, c, format_, encode_rows(random, c, format_)) {}
    const std::vector<float> &row(const Case &c, int64_t head, int64_t at) const {
        return rows[static_cast<size_t>(head * c.positions + at)];
    }

private:
    using Encoded = std::vector<std::vector<uint8_t>>;

    static Encoded encode_rows(Random &random, const Case &c, int format) {
        Encoded made;
        for (int64_t i = 0; i < c.kv_heads * c.positions; i++)
            made.push_back(encode(format, random_floats(random, c.width).data(), c.width));
        return made;
    }
    Cache(Random &random, const Case &c, int format_, const Encoded &encoded)
        : format(format_), width(c.width), unit(format == F32 ? 4 : format == BF16 ? 2 : 1),
          stride(static_cast<int64_t>(encoded[0].size()) / unit + random.sometimes(9)),
          head_stride(c.positions * stride + random.sometimes(9)),
          data(((c.kv_heads - 1) * head_stride + (c.positions - 1) * stride) * unit +
               static_cast<int64_t>(encoded[0].size())) {
        for (int64_t j = 0; j < c.kv_heads; j++)
            for (int64_t s = 0; s < c.positions; s++) {
                const auto &from = encoded[static_cast<size_t>(j * c.positions + s)];
                uint8_t *to = data.data() + (j * head_stride + s * stride) * unit;
                memcpy(to, from.data(), from.size());
                rows.push_back(decode(format, to, width));
            }
    }
};

// Of one query head of one token.
std::vector<double> attend(const Case &c, const float *q, const Cache &k, const Cache &v, int64_t kv_head,
                           int64_t token, double scale) {
    const int64_t stop = c.offset + token + 1, start = stop > c.window ? stop - c.window : 0;
    std::vector<double> scores, out(static_cast<size_t>(c.width));
    double highest = -INFINITY, sum = 0;
    for (int64_t s = start; s < stop; s++) {
        const auto &key = k.row(c, kv_head, s);
        double score = 0;
        for (int64_t i = 0; i < c.width; i++) score += static_cast<double>(q[i]) * key[i];
        scores.push_back(score * scale);
        highest = fmax(highest, score * scale);
    }
    for (double &score : scores) sum += score = exp(score - highest);
    for (int64_t s = start; s < stop; s++) {
        const auto &value = v.row(c, kv_head, s);
        for (int64_t i = 0; i < c.width; i++) out[i] += scores[s - start] / sum * value[i];
    }
    return out;
}

void check_case(void *handle, Check &check, Random &random) {
    const Case c(random);
    const int format = static_cast<int>(random.between(0, FORMATS - 1));
    const float scale = 1 / sqrtf(static_cast<float>(c.width));
    const Floats q = random_floats(random, c.tokens * c.heads() * c.width);
    const Cache k(random, c, format), v(random, c, format);
    Floats y(q.size());
    tpiedge_attention(handle, q.data(), k.data.data(), v.data.data(), y.data(), format, c.head_start.data(),
                      k.head_stride, k.stride, v.head_stride, v.stride, c.tokens, c.heads(), c.kv_heads, c.width,
                      c.offset, c.window, scale);
    check.shape(c.tokens, c.heads(), c.positions, c.width);
    for (int64_t t = 0; t < c.tokens; t++)
        for (int64_t j = 0; j < c.kv_heads; j++)
            for (int64_t h = c.head_start[j]; h < c.head_start[j + 1]; h++) {
                const int64_t at = (t * c.heads() + h) * c.width;
                const auto wanted = attend(c, q.data() + at, k, v, j, t, scale);
                for (int64_t i = 0; i < c.width; i++) check.close(y[at + i], wanted[i], 2e-5);
            }
}

}  // namespace

void check_attention(void *handle, const char *isa) {
    Random random(3);
    Check check("attention", isa);
    for (int i = 0; i < 40; i++) check_case(handle, check, random);
}
