// Products with f32 and bf16 matrices, and the feed-forward block, which must be what its parts are.
#include <vector>

#include "check.h"

namespace {

// Rounding: a unit in the last place for each addend and each of the additions.
double bound(double absolute, int64_t addends) { return absolute * static_cast<double>(addends + 8) * 0x1p-24 + 1e-37; }

struct Matrix {
    int64_t rows;
    int64_t cols;
    int64_t stride;
    Stored data;

    Matrix(Random &random, int64_t rows_, int64_t cols_) : Matrix(random, rows_, cols_, random.coin()) {}
    Matrix(Random &random, int64_t rows_, int64_t cols_, bool half)
        : rows(rows_), cols(cols_), stride(cols_ + random.sometimes(9)),
          data(random, rows_ ? (rows_ - 1) * stride + cols_ : 0, half) {}
    Weight weight(float *y) const { return Weight{data.data(), y, data.is_bf16, stride, rows}; }
    double at(int64_t row, int64_t col) const { return data[row * stride + col]; }
};

void check_project(void *handle, Check &check, Random &random) {
    const int64_t tokens = random.between(1, 9), cols = random.between(1, 150);
    const Floats x = random_floats(random, tokens * cols);
    std::vector<Matrix> matrices;
    std::vector<Floats> results;
    std::vector<Weight> weights;
    const int64_t count = random.between(1, 4);
    for (int64_t i = 0; i < count; i++) {
        const int64_t rows = random.between(1, 60);
        matrices.emplace_back(random, rows, cols);
        results.emplace_back(tokens * matrices[i].rows);
        weights.push_back(matrices[i].weight(results[i].data()));
    }
    tpiedge_project(handle, x.data(), tokens, cols, weights.data(), count);
    for (int64_t i = 0; i < count; i++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t r = 0; r < matrices[i].rows; r++) {
                double sum = 0, absolute = 0;
                for (int64_t c = 0; c < cols; c++) {
                    const double product = x[t * cols + c] * matrices[i].at(r, c);
                    sum += product, absolute += fabs(product);
                }
                check.shape(tokens, matrices[i].rows, cols, matrices[i].data.is_bf16);
                check.close(results[i][t * matrices[i].rows + r], sum, bound(absolute, cols));
            }
}

void check_contract(void *handle, Check &check, Random &random) {
    const int64_t tokens = random.between(1, 9), rows = random.between(0, 200), cols = random.between(1, 150);
    const Floats x = random_floats(random, tokens * rows);
    const Matrix matrix(random, rows, cols);
    Floats y(tokens * cols);
    const Weight weight = matrix.weight(y.data());
    complete(tpiedge_contract(handle, x.data(), &weight, tokens, cols));
    check.shape(tokens, rows, cols, matrix.data.is_bf16);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < cols; c++) {
            double sum = 0, absolute = 0;
            for (int64_t r = 0; r < rows; r++) {
                const double product = x[t * rows + r] * matrix.at(r, c);
                sum += product, absolute += fabs(product);
            }
            check.close(y[t * cols + c], sum, bound(absolute, rows));
        }
}

void round_to_bf16(Floats &values) {
    for (float &value : values) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        const uint32_t cut = bits & 0xffff, last = (bits >> 16) & 1;
        bits = (bits - cut) + (cut > 0x8000 || (cut == 0x8000 && last) ? 0x10000 : 0);
        memcpy(&value, &bits, sizeof bits);
    }
}

void check_ffn(void *handle, Check &check, Random &random) {
    const int64_t tokens = random.between(1, 6), hidden = random.between(1, 90), inner = random.between(1, 90);
    const int64_t cols = random.between(1, 90);
    const bool half = random.coin();
    const Floats x = random_floats(random, tokens * hidden), norm = random_floats(random, hidden);
    const Matrix gate(random, inner, hidden, half), up(random, inner, hidden, half), down(random, inner, cols, half);
    const bool gated_too = random.coin(), normed_too = random.coin(), given = gated_too && random.coin();
    Strided inputs(random, tokens, inner);
    const int64_t activation = random.between(0, 1);
    check.shape(tokens, hidden, inner, cols);

    for (const int rounds : {0, 1}) {
        Floats normed(tokens * hidden), gated(tokens * inner), raised(tokens * inner), wanted(tokens * cols);
        memcpy(normed.data(), x.data(), normed.size() * sizeof(float));
        if (normed_too)
            tpiedge_rms_norm(handle, x.data(), normed.data(), hidden, 0, tokens, 1, hidden, norm.data(), 1e-5f);
        if (rounds) round_to_bf16(normed);
        const Weight parts[] = {gate.weight(gated.data()), up.weight(raised.data()), down.weight(wanted.data())};
        tpiedge_project(handle, normed.data(), tokens, hidden, parts, 2);
        if (given) inputs.copy(tokens, raised);
        tpiedge_activate(handle, gated_too ? gated.data() : raised.data(), gated_too ? raised.data() : nullptr,
                         gated.data(), tokens * inner, activation);
        if (rounds) round_to_bf16(gated);
        complete(tpiedge_contract(handle, gated.data(), &parts[2], tokens, cols));

        Floats scratch(tokens * (hidden + (given ? 1 : 2) * inner)), y(tokens * cols);
        float *const inside = scratch.data() + tokens * hidden;
        const Weight fused[] = {gated_too ? gate.weight(inside) : Weight{},
                                given ? Weight{nullptr, inputs.data.data(), 0, inputs.stride, inner}
                                      : up.weight(inside + tokens * inner),
                                down.weight(y.data())};
        complete(tpiedge_ffn(handle, x.data(), tokens, hidden, normed_too ? norm.data() : nullptr, 1e-5f, rounds, fused,
                             activation, cols, scratch.data()));
        for (int64_t i = 0; i < y.size(); i++) check.same(y[i], wanted[i]);
    }
}

}  // namespace

void check_products(void *handle, const char *isa) {
    Random random(1);
    Check project("project", isa), contract("contract", isa), ffn("ffn", isa);
    for (int i = 0; i < 30; i++) {
        check_project(handle, project, random);
        check_contract(handle, contract, random);
        check_ffn(handle, ffn, random);
    }
}
