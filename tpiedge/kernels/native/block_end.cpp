// The end of a block: its sums, a bias, a norm, and the residual stream.
#include <math.h>

#include "context.h"

namespace {

// What a sum of parts may be leaves room for those of all nodes (panels_interface.cpp). What is NOT_A_NUMBER, or beyond,
// becomes no number.
constexpr int64_t MOST_OF_A_SUM = int64_t{1} << 56;
// Columns at a time of rows that need not be whole.
constexpr int64_t SOME = 256;

// Sums [T, H] in steps of 2^exponent, or f32; a second one may follow.
struct Source {
    const void *sums;
    int kind;
    float step;
    int64_t size;  // of a sum

    // Rounded to f32 once.
    void widen(int64_t from, int64_t count, float *y) const {
        if (kind == tpiedge::F32_SUMS) {
            memcpy(y, static_cast<const float *>(sums) + from, count * sizeof *y);
        } else if (kind == tpiedge::INT32_SUMS) {
            const int32_t *at = static_cast<const int32_t *>(sums) + from;
            for (int64_t i = 0; i < count; i++) y[i] = static_cast<float>(at[i]) * step;
        } else {
            const int64_t *at = static_cast<const int64_t *>(sums) + from;
            for (int64_t i = 0; i < count; i++) {
                const bool number = at[i] >= -MOST_OF_A_SUM && at[i] <= MOST_OF_A_SUM;
                y[i] = number ? static_cast<float>(at[i]) * step : __builtin_nanf("");
            }
        }
    }
};

// The columns [first, first + count) of one row of x, which begins at `row` of all numbers.
void end_columns(const tpiedge::Kernels &kernels, float *x, const Source &source, int64_t row, int64_t first,
                 int64_t count, const BlockEnd &end, float *y) {
    const auto norm = [&](float *z, const float *weight) {
        kernels.rms_norm(tpiedge::Rows{z, z, count, 0, 1, 1, count}, weight, static_cast<float>(end.eps));
    };
    source.widen(row + first, count, y);
    if (end.parts[0]) {
        float *const second = y + source.size;
        source.widen(source.size + row + first, count, second);
        norm(y, end.parts[0]);
        norm(second, end.parts[1]);
        for (int64_t i = 0; i < count; i++) y[i] += second[i];
    }
    if (end.bias)
        for (int64_t i = 0; i < count; i++) y[i] += end.bias[first + i];
    if (end.norm) norm(y, end.norm);
    const float factor = static_cast<float>(end.factor), scale = static_cast<float>(end.scale);
    float *to = x + row + first;
    for (int64_t i = 0; i < count; i++) to[i] = scale * (to[i] + factor * y[i]);
}

}  // namespace

// x [T, H] = scale * (x + factor * norm(sums + bias)), each operation rounded by itself. `kind`: one of Sums. `scratch`: as
// many floats as sums, if there is a norm.
TPIEDGE_EXPORT void tpiedge_add_sums(void *handle, float *x, const void *sums, int64_t tokens, int64_t width,
                                     int64_t exponent, int kind, const BlockEnd *end, float *scratch) {
    tpiedge::Context &context = *static_cast<tpiedge::Context *>(handle);
    const Source source{sums, kind, ldexpf(1.0f, static_cast<int>(exponent)), tokens * width};
    tpiedge::share_rows(context.pool, tokens, width, [&](int64_t first, int64_t last) {
        for (int64_t row = first * width; row < last * width; row += width) {
            if (end->norm || end->parts[0]) {
                end_columns(*context.kernels, x, source, row, 0, width, *end, scratch + row);
                continue;
            }
            float some[SOME];
            for (int64_t c = 0; c < width; c += SOME)
                end_columns(*context.kernels, x, source, row, c, width - c < SOME ? width - c : SOME, *end, some);
        }
    });
}
