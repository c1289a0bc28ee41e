// Attention of some sequences at once, with several query heads for each KV head, windows, and pages with room left.
#include "kv.h"

namespace {

struct Case {
    int64_t kv_heads;
    int64_t width;
    int64_t window;
    float cap;
    int format;
    PageLayout layout;
    std::vector<int64_t> head_start;
    std::vector<float> sinks;  // or none

    explicit Case(Random &random)
        : kv_heads(random.between(1, 3)), width(random.between(1, random.between(0, 5) ? 100 : 512)),
          window(random.coin() ? random.between(1, 80) : int64_t{1} << 62), cap(random.coin() ? 0.0f : 1.5f),
          format(static_cast<int>(random.between(0, FORMATS - 1))),
          layout(random_layout(random, format, kv_heads, width)), head_start{0} {
        for (int64_t j = 0; j < kv_heads; j++) head_start.push_back(head_start.back() + random.between(1, 18));
        if (random.coin())
            for (int64_t h = 0; h < heads(); h++) sinks.push_back(3 * random.value());
    }
    int64_t heads() const { return head_start.back(); }
};

// Its tokens are those of the case from `row` on. Rows beyond its last position are never written.
struct Sequence {
    using Rows = std::vector<std::vector<float>>;

    int64_t row;
    int64_t tokens;
    int64_t offset;
    int64_t positions;  // with a key and a value
    Pages pages;
    Rows keys;  // what they stand for, [K * S]
    Rows values;

    Sequence(Random &random, const Case &c, int64_t row_)
        : row(row_), tokens(random.between(1, 9)), offset(random.sometimes(150)), positions(offset + tokens),
          pages(c.layout, positions) {
        for (int64_t j = 0; j < c.kv_heads; j++)
            for (int64_t s = 0; s < positions; s++) {
                keys.push_back(put(random, c, pages.key(c.layout, j, s)));
                values.push_back(put(random, c, pages.value(c.layout, j, s)));
            }
    }
    Span span() const { return pages.span(tokens, offset, row); }

private:
    static std::vector<float> put(Random &random, const Case &c, uint8_t *to) {
        const auto bytes = encode(c.format, random_floats(random, c.width).data(), c.width);
        memcpy(to, bytes.data(), bytes.size());
        return decode(c.format, to, c.width);
    }
};

// Of one query head of one token. `sink`: one more score, or -INFINITY.
std::vector<double> attend(const Case &c, const float *q, const Sequence &of, int64_t kv_head, int64_t token,
                           double scale, double sink) {
    const int64_t stop = of.offset + token + 1, start = stop > c.window ? stop - c.window : 0;
    const auto row = [&](int64_t s) { return static_cast<size_t>(kv_head * of.positions + s); };
    std::vector<double> scores, out(static_cast<size_t>(c.width));
    double highest = sink;
    for (int64_t s = start; s < stop; s++) {
        double score = 0;
        for (int64_t i = 0; i < c.width; i++) score += static_cast<double>(q[i]) * of.keys[row(s)][i];
        score *= scale;
        if (c.cap > 0) score = c.cap * tanh(score / c.cap);
        scores.push_back(score);
        highest = fmax(highest, score);
    }
    double sum = exp(sink - highest);
    for (double &score : scores) sum += score = exp(score - highest);
    for (int64_t s = start; s < stop; s++)
        for (int64_t i = 0; i < c.width; i++) out[i] += scores[s - start] / sum * of.values[row(s)][i];
    return out;
}

void check_sequence(Check &check, const Case &c, const Sequence &of, const Floats &q, const Floats &y, double scale) {
    check.shape(of.tokens, c.heads(), of.positions, c.width);
    for (int64_t t = 0; t < of.tokens; t++)
        for (int64_t j = 0; j < c.kv_heads; j++)
            for (int64_t h = c.head_start[j]; h < c.head_start[j + 1]; h++) {
                const int64_t at = ((of.row + t) * c.heads() + h) * c.width;
                const double sink = c.sinks.empty() ? -INFINITY : c.sinks[static_cast<size_t>(h)];
                const auto wanted = attend(c, q.data() + at, of, j, t, scale, sink);
                for (int64_t i = 0; i < c.width; i++) check.close(y[at + i], wanted[i], 2e-5);
            }
}

void check_case(void *handle, Check &check, Random &random) {
    const Case c(random);
    const float scale = 1 / sqrtf(static_cast<float>(c.width));
    std::vector<Sequence> sequences;
    std::vector<Span> spans;
    int64_t tokens = 0;
    for (int64_t count = random.between(1, 4); count > 0; count--) {
        sequences.emplace_back(random, c, tokens);
        tokens += sequences.back().tokens;
    }
    const bool reversed = random.coin();
    for (const Sequence &of : sequences) spans.insert(reversed ? spans.begin() : spans.end(), of.span());
    const Floats q = random_floats(random, tokens * c.heads() * c.width);
    Floats y(q.size());
    tpiedge_attention(handle, q.data(), y.data(), &c.layout, spans.data(), static_cast<int64_t>(spans.size()),
                      c.head_start.data(), c.heads(), c.window, scale, c.cap,
                      c.sinks.empty() ? nullptr : c.sinks.data());
    for (const Sequence &of : sequences) check_sequence(check, c, of, q, y, scale);
}

}  // namespace

void check_attention(void *handle, const char *isa) {
    Random random(3);
    Check check("attention", isa);
    for (int i = 0; i < 40; i++) check_case(handle, check, random);
}
