// Products with quantised matrices: every bit is that of the reference, so the same on all instruction sets.
#include "panels.h"

namespace {

// Numbers that round to where halves go, that overflow, or that are none.
void make_special(Random &random, float *x, int64_t count) {
    const int64_t kind = random.between(0, 7);
    const int64_t at = random.between(0, count - 1);
    for (int64_t i = 0; i < count; i++) {
        if (kind == 0) x[i] = 0;
        if (kind == 1) x[i] = static_cast<float>(random.between(-253, 253)) / 2;  // with 127 as the largest
        if (kind == 2) x[i] *= 1e-38f;
        if (kind == 3) x[i] *= 1e-42f;
    }
    if (kind == 1) x[at] = 127;
    if (kind == 4) x[at] = NAN;
    if (kind == 5) x[at] = random.coin() ? INFINITY : -INFINITY;
    if (kind == 6) x[at] = 1e30f;
    if (kind == 7) x[at] = 3e38f;
}

Floats activations(Random &random, int64_t tokens, int64_t inputs) {
    Floats x = random_floats(random, tokens * inputs);
    for (int64_t t = 0; t < tokens; t++)
        if (random.between(0, 3) == 0) {
            const int64_t first = random.between(0, inputs - 1);
            make_special(random, x.data() + t * inputs + first, random.between(1, inputs - first));
        }
    return x;
}

void compare(Check &check, const Panels &matrix, const Floats &x, const Floats &y, int64_t tokens) {
    check.shape(tokens, matrix.outputs(), matrix.inputs(), matrix.bits);
    for (int64_t t = 0; t < tokens; t++) {
        const Quantised token = matrix.quantise(x.data() + t * matrix.inputs());
        for (int64_t o = 0; o < matrix.outputs(); o++)
            check.same(y[t * matrix.outputs() + o], matrix.product(token, o));
    }
}

Panels column_parallel(Random &random, int64_t rows, int64_t cols) {
    const int64_t bits = random.coin() ? 8 : 4;
    return Panels(random, bits, rows, cols, random.between(1, rows), false);
}

Panels row_parallel(Random &random, int64_t rows, int64_t cols, int64_t rows_per_unit) {
    const int64_t bits = random.coin() ? 8 : 4;
    return Panels(random, bits, rows, cols, rows_per_unit, true);
}

void check_project(void *handle, Check &check, Random &random, int64_t tokens, int64_t rows, int64_t cols) {
    const Floats x = activations(random, tokens, cols);
    std::vector<Panels> matrices;
    std::vector<Floats> results;
    std::vector<PanelWeight> weights;
    const int64_t count = random.between(1, 4);
    for (int64_t i = 0; i < count; i++) {
        matrices.push_back(column_parallel(random, i ? random.between(1, 40) : rows, cols));
        results.emplace_back(tokens * matrices[i].rows);
        weights.push_back(matrices[i].weight(results[i].data()));
    }
    complete(tpiedge_panels_project(handle, x.data(), tokens, weights.data(), count));
    for (int64_t i = 0; i < count; i++) compare(check, matrices[i], x, results[i], tokens);
}

// x += sums.
void check_add_sums(void *handle, Check &check, Random &random, const Array<int64_t> &sums, int64_t exponent) {
    const Floats x = random_floats(random, sums.size());
    Floats y(sums.size()), z(sums.size());
    Array<int32_t> narrow(sums.size());
    for (int64_t i = 0; i < sums.size(); i++) {
        y[i] = z[i] = x[i];
        narrow[i] = static_cast<int32_t>(static_cast<uint32_t>(sums[i]));
    }
    const BlockEnd end = plain_end();
    tpiedge_add_sums(handle, y.data(), sums.data(), 1, sums.size(), exponent, tpiedge::INT64_SUMS, &end, nullptr);
    tpiedge_add_sums(handle, z.data(), narrow.data(), sums.size(), 1, exponent, tpiedge::INT32_SUMS, &end, nullptr);
    const float step = ldexpf(1.0f, static_cast<int>(exponent));
    for (int64_t i = 0; i < sums.size(); i++) {
        check.same(y[i], sums[i] == NO_SUM ? NAN : x[i] + static_cast<float>(sums[i]) * step);
        check.same(z[i], x[i] + static_cast<float>(narrow[i]) * step);
    }
}

void check_contract(void *handle, Check &check, Random &random, int64_t tokens, int64_t rows, int64_t cols,
                    int64_t rows_per_unit) {
    const Floats x = activations(random, tokens, rows);
    const Panels matrix = row_parallel(random, rows, cols, rows_per_unit);
    const int64_t exponent = random.between(-40, 20), most = random.coin() ? INT32_MAX : random.between(0, 1 << 20);
    Array<int64_t> wide(tokens * cols);
    const PanelWeight weight = matrix.weight(wide.data(), exponent);
    complete(tpiedge_panels_contract(handle, x.data(), tokens, &weight, 1));
    check.shape(tokens, cols, rows, exponent);
    for (int64_t t = 0; t < tokens; t++) {
        const Quantised token = matrix.quantise(x.data() + t * rows);
        for (int64_t o = 0; o < cols; o++) check.equal(wide[t * cols + o], matrix.sum(token, o, exponent));
    }
    Array<int32_t> narrow(tokens * cols);
    const PanelWeight less = matrix.weight(narrow.data(), exponent, most);
    if (tpiedge_panels_contract(handle, x.data(), tokens, &less, 0) != tpiedge::TOO_LARGE)
        for (int64_t i = 0; i < wide.size(); i++) {
            check.agree(narrow[i], wide[i]);
            if (wide[i] > most || wide[i] < -most) check.agree(wide[i], most);
        }
    check_add_sums(handle, check, random, wide, exponent);
}

// x = scale * (x + factor * norm(sums + bias)).
void check_end(void *handle, Check &check, Random &random, int64_t tokens, int64_t width) {
    const Floats x = random_floats(random, tokens * width), bias = random_floats(random, width);
    const Floats norm = random_floats(random, width);
    Array<int32_t> narrow(x.size());
    Array<int64_t> wide(x.size());
    Floats floats(x.size());
    const float step = ldexpf(1.0f, -12);
    for (int64_t i = 0; i < x.size(); i++) {
        wide[i] = narrow[i] = static_cast<int32_t>(random.between(-100000000, 100000000));
        floats[i] = static_cast<float>(narrow[i]) * step;
    }
    const BlockEnd end{random.coin() ? bias.data() : nullptr, random.coin() ? norm.data() : nullptr, 1e-6,
                       random.coin() ? 1 : 0.22, random.coin() ? 1 : 0.7};
    Floats rows(x.size()), scratch(end.norm ? x.size() : 0), wanted(x.size());
    for (int64_t i = 0; i < x.size(); i++) rows[i] = end.bias ? floats[i] + bias[i % width] : floats[i];
    if (end.norm)
        tpiedge_rms_norm(handle, rows.data(), rows.data(), width, 0, tokens, 1, width, norm.data(), 1e-6f);
    const float factor = static_cast<float>(end.factor), scale = static_cast<float>(end.scale);
    for (int64_t i = 0; i < x.size(); i++) wanted[i] = scale * (x[i] + factor * rows[i]);
    const void *const kinds[] = {narrow.data(), wide.data(), floats.data()};
    for (int kind = 0; kind < 3; kind++) {
        Floats y(x.size());
        memcpy(y.data(), x.data(), x.size() * sizeof(float));
        tpiedge_add_sums(handle, y.data(), kinds[kind], tokens, width, -12, kind, &end, scratch.data());
        check.shape(tokens, width, kind);
        for (int64_t i = 0; i < y.size(); i++) check.same(y[i], wanted[i]);
    }
}

// What its parts are, one after the other.
void check_ffn(void *handle, Check &check, Random &random) {
    const int64_t tokens = random.between(1, 10), hidden = random.between(1, 70), inner = random.between(1, 70);
    const int64_t cols = random.between(1, 40);
    const Floats x = random_floats(random, tokens * hidden), norm = random_floats(random, hidden);
    const Panels gate = column_parallel(random, inner, hidden), up = column_parallel(random, inner, hidden);
    const Panels down = row_parallel(random, inner, cols, random.between(1, inner));
    check.shape(tokens, hidden, inner, cols);

    const Floats gate_bias = random_floats(random, inner), up_bias = random_floats(random, inner);
    const float *biases[] = {random.coin() ? gate_bias.data() : nullptr, random.coin() ? up_bias.data() : nullptr};
    const int64_t exponent = random.between(-30, 0);
    Floats normed(tokens * hidden), gated(tokens * inner), raised(tokens * inner);
    Array<int64_t> wanted(tokens * cols), y(tokens * cols);
    const bool gated_too = random.coin(), normed_too = random.coin(), given = gated_too && random.coin();
    const int64_t activation = random.between(0, 1);
    const Strided inputs(random, tokens, inner);
    memcpy(normed.data(), x.data(), normed.size() * sizeof(float));
    if (normed_too)
        tpiedge_rms_norm(handle, x.data(), normed.data(), hidden, 0, tokens, 1, hidden, norm.data(), 1e-5f);
    const PanelWeight parts[] = {gate.weight(gated.data()), up.weight(raised.data()),
                                 down.weight(wanted.data(), exponent)};
    complete(tpiedge_panels_project(handle, normed.data(), tokens, parts, 2));
    for (int64_t i = 0; i < tokens * inner; i++) {
        if (biases[0]) gated[i] += gate_bias[i % inner];
        if (biases[1]) raised[i] += up_bias[i % inner];
    }
    if (given) inputs.copy(tokens, raised);
    tpiedge_activate(handle, gated_too ? gated.data() : raised.data(), gated_too ? raised.data() : nullptr,
                     gated.data(), tokens * inner, activation);
    complete(tpiedge_panels_contract(handle, gated.data(), tokens, &parts[2], 1));

    Floats scratch(tokens * (hidden + (1 + (gated_too && !given)) * inner));
    const PanelFFN fused{gated_too ? gate.weight(nullptr, biases[0]) : PanelWeight{},
                         given ? PanelWeight{} : up.weight(nullptr, biases[1]), down.weight(nullptr, exponent), normed_too ? norm.data() : nullptr, 1e-5, activation};
    const auto compute = [&](void *sums, int wide) {
        return tpiedge_panels_ffn(handle, &fused, x.data(), given ? inputs.data.data() : nullptr, given ? inputs.stride : 0, sums,
                                  tokens, scratch.data(), wide);
    };
    complete(compute(y.data(), 1));
    for (int64_t i = 0; i < y.size(); i++) check.equal(y[i], wanted[i]);
    Array<int32_t> narrow(tokens * cols);
    if (compute(narrow.data(), 0) != tpiedge::TOO_LARGE)
        for (int64_t i = 0; i < y.size(); i++) check.agree(narrow[i], wanted[i]);
}

}  // namespace

void check_panels(void *handle, const char *isa) {
    Random random(5);
    Check project("panels_project", isa), contract("panels_contract", isa), ffn("panels_ffn", isa);
    Check end("add_sums", isa);
    for (int i = 0; i < 40; i++) {
        const int64_t tokens = i < 20 ? 1 + i : random.between(1, 9);
        const int64_t rows = random.between(1, 90), cols = random.between(1, 200);
        check_project(handle, project, random, tokens, rows, cols);
        check_contract(handle, contract, random, tokens, cols, rows, random.between(1, cols));
        check_ffn(handle, ffn, random);
        const int64_t width = random.between(1, 700);
        check_end(handle, end, random, 1 + i % 4, width);
    }
    check_end(handle, end, random, 300, 700);  // shared by threads
    // More activations than pass over a matrix together.
    check_project(handle, project, random, 170, 3, 4100);
    check_contract(handle, contract, random, 1000, 4100, 3, 1400);  // units one by one, the last of them short
    check_contract(handle, contract, random, 170, 4100, 3, 300);    // some units at a time
    check_contract(handle, contract, random, 4200, 1, 272, 1);      // more sums than are kept
}
