// Norm, rotation and activation.
#include "check.h"

namespace {

constexpr int64_t SHARED = 70000;

// Rows at two strides.
struct Strided {
    int64_t tokens;
    int64_t heads;
    int64_t width;
    int64_t head_stride;
    int64_t token_stride;
    Floats x;

    Strided(Random &random, int64_t tokens_, int64_t width_)
        : tokens(tokens_), heads(random.between(1, 4)), width(width_),
          head_stride(width + random.between(0, 7)), token_stride(heads * head_stride + random.between(0, 7)),
          x(random_floats(random, (tokens - 1) * token_stride + (heads - 1) * head_stride + width)) {}
    const float *row(int64_t token, int64_t head) const {
        return x.data() + token * token_stride + head * head_stride;
    }
};

void check_norm(void *handle, Check &check, Random &random, int64_t tokens) {
    const Strided rows(random, tokens, random.between(1, 140));
    const Floats weight = random_floats(random, rows.width);
    Floats y(rows.tokens * rows.heads * rows.width);
    tpiedge_rms_norm(handle, rows.x.data(), y.data(), rows.token_stride, rows.head_stride, rows.tokens, rows.heads,
                     rows.width, weight.data(), 1e-6f);
    check.shape(rows.tokens, rows.heads, rows.width);
    const float *result = y.data();
    for (int64_t t = 0; t < rows.tokens; t++)
        for (int64_t h = 0; h < rows.heads; h++) {
            const float *x = rows.row(t, h);
            double squares = 0;
            for (int64_t c = 0; c < rows.width; c++) squares += static_cast<double>(x[c]) * x[c];
            const double factor = 1 / sqrt(squares / static_cast<double>(rows.width) + 1e-6);
            for (int64_t c = 0; c < rows.width; c++) {
                const double wanted = weight[c] * x[c] * factor;
                check.close(*result++, wanted, fabs(wanted) * 1e-5);
            }
        }
}

void check_rope(void *handle, Check &check, Random &random, int64_t tokens) {
    const int64_t half = random.between(1, 70), rotated = 2 * half;
    const Strided rows(random, tokens, rotated + random.sometimes(20));
    const Floats cos = random_floats(random, rows.tokens * rotated), sin = random_floats(random, rows.tokens * rotated);
    const Floats factors = random_floats(random, rows.tokens);
    Floats y(rows.tokens * rows.heads * rows.width);
    const Rotation rotation{cos.data(), sin.data(), random.coin() ? factors.data() : nullptr};
    tpiedge_rope(handle, rows.x.data(), y.data(), rows.token_stride, rows.head_stride, rows.tokens, rows.heads,
                 rows.width, &rotation, rotated);
    check.shape(rows.tokens, rows.heads, rows.width, rotated);
    const float *result = y.data();
    for (int64_t t = 0; t < rows.tokens; t++)
        for (int64_t h = 0; h < rows.heads; h++)
            for (int64_t c = 0; c < rows.width; c++, result++) {
                const float *x = rows.row(t, h), factor = rotation.factor ? factors[t] : 1.0f;
                if (c >= rotated) {
                    check.same(*result, x[c] * factor);
                    continue;
                }
                const double other = c < half ? -x[c + half] : x[c - half];
                const double direct = static_cast<double>(x[c]) * cos[t * rotated + c];
                const double turned = other * sin[t * rotated + c];
                check.close(*result, factor * (direct + turned), fabs(factor) * (fabs(direct) + fabs(turned)) * 4e-7);
            }
}

double active(int64_t activation, double x) {
    if (activation == tpiedge::GPT_OSS) return fmin(x, 7) / (1 + exp(-1.702 * fmin(x, 7)));
    return x / (1 + exp(activation == tpiedge::SILU ? -x : -1.5957691216057308 * (x + 0.044715 * x * x * x)));
}

// What it is multiplied by.
double factor(int64_t activation, double up) {
    return activation == tpiedge::GPT_OSS ? fmax(-7, fmin(up, 7)) + 1 : up;
}

void check_activate(void *handle, Check &check, Random &random, int64_t count, int64_t activation) {
    Floats gate = random_floats(random, count);
    for (float &value : gate) value *= 30;
    Floats up = random_floats(random, count);
    for (float &value : up) value *= 5;
    Floats y(count);
    check.shape(count, activation);
    for (const bool gated : {true, false}) {
        tpiedge_activate(handle, gate.data(), gated ? up.data() : nullptr, y.data(), count, activation);
        for (int64_t i = 0; i < count; i++) {
            const double wanted = active(activation, gate[i]) * (gated ? factor(activation, up[i]) : 1);
            check.close(y[i], wanted, fabs(wanted) * 1.2e-5 + 1e-35);
        }
    }
    for (const float special : {NAN, INFINITY, 0.0f, 1e38f}) {
        const float one = 1.0f;
        float result = 0.0f;
        tpiedge_activate(handle, &special, &one, &result, 1, activation);
        if (activation == tpiedge::GPT_OSS && special > 7)
            check.close(result, 2 * active(activation, special), 1e-5);
        else
            check.same(result, special);
    }
}

}  // namespace

void check_elementwise(void *handle, const char *isa) {
    Random random(2);
    Check norm("rms_norm", isa), rope("rope", isa), activate("activate", isa);
    for (int i = 0; i < 30; i++) {
        check_norm(handle, norm, random, random.between(1, 4));
        check_rope(handle, rope, random, random.between(1, 4));
        check_activate(handle, activate, random, random.between(1, 150),
                       i % 3 == 2 ? tpiedge::GPT_OSS : i % 3);
    }
    // So many that the threads share them.
    check_norm(handle, norm, random, SHARED);
    check_rope(handle, rope, random, SHARED);
    check_activate(handle, activate, random, SHARED + 17, tpiedge::SILU);
}
