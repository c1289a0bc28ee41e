// Routers against a loop over columns, and a block of experts against its parts, one token and one expert at a time.
#include <algorithm>

#include "panels.h"

namespace {

float logit(const float *x, const float *w, int64_t width) {
    float lanes[16] = {};
    for (int64_t c = 0; c < width; c++) lanes[c % 16] += x[c] * w[c];
    for (int half = 8; half; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

// The experts of one token, ascending, and their weights.
void choose(const float *logits, int64_t experts, int64_t chosen, bool normalised, std::vector<int64_t> &ids,
            std::vector<double> &weights) {
    bool finite = true;
    for (int64_t e = 0; e < experts; e++) finite &= std::isfinite(logits[e]);
    std::vector<int64_t> order;
    for (int64_t e = 0; e < experts; e++) order.push_back(e);
    if (finite)
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    ids.assign(order.begin(), order.begin() + chosen);
    const double best = logits[order[0]];
    std::sort(ids.begin(), ids.end());
    double total = 0;
    for (const int64_t e : normalised ? ids : order) total += exp(logits[e] - best);
    weights.clear();
    for (const int64_t e : ids) weights.push_back(finite ? exp(logits[e] - best) / total : NAN);
}

// Some experts are alike, and some rows have no numbers.
void spoil(Random &random, Floats &router, int64_t experts, Floats &x, int64_t width) {
    for (int64_t e = 1; e < experts; e++)
        if (random.between(0, 3) == 0)
            memcpy(router.data() + e * width, router.data(), static_cast<size_t>(width) * sizeof(float));
    for (int64_t t = 0; t < x.size() / width; t++) {
        const int64_t kind = random.between(0, 20), at = t * width + random.between(0, width - 1);
        if (kind == 0) x[at] = NAN;
        if (kind == 1) x[at] = INFINITY;
        if (kind == 2) memset(x.data() + t * width, 0, static_cast<size_t>(width) * sizeof(float));
    }
}

// A router with vectors of its own, some of which it uses.
struct RandomRouter {
    Floats matrix, bias, norm, scale;
    Router router;

    RandomRouter(Random &random, int64_t experts, int64_t width, int64_t chosen)
        : matrix(random_floats(random, experts * width)), bias(random_floats(random, experts)),
          norm(random_floats(random, width)), scale(random_floats(random, experts)) {
        router = {matrix.data(), experts, chosen, random.coin(), pick(random, bias), pick(random, norm), pick(random, scale)};
    }

private:
    static const float *pick(Random &random, const Floats &from) { return random.coin() ? from.data() : nullptr; }
};

struct Routes {
    Floats logits, weights;
    Array<int64_t> ids;

    Routes(void *handle, const Floats &x, const Router &router, int64_t width)
        : logits(x.size() / width * router.experts), weights(x.size() / width * router.chosen),
          ids(x.size() / width * router.chosen) {
        tpiedge_route(handle, x.data(), x.size() / width, width, &router, logits.data(), ids.data(), weights.data());
    }
};

void check_route(void *handle, Check &check, Random &random, int64_t tokens, int64_t experts, int64_t width) {
    const int64_t chosen = random.between(1, experts);
    Floats x = random_floats(random, tokens * width);
    RandomRouter of(random, experts, width, chosen);
    const Router &router = of.router;
    spoil(random, of.matrix, experts, x, width);
    const Routes found(handle, x, router, width);
    check.shape(tokens, experts, width, chosen);
    std::vector<int64_t> ids;
    std::vector<double> weights;
    for (int64_t t = 0; t < tokens; t++) {
        const float *const logits = found.logits.data() + t * experts;
        for (int64_t e = 0; e < experts; e++)
            check.same(logits[e], logit(x.data() + t * width, router.weights + e * width, width) +
                                      (router.bias ? router.bias[e] : 0.0f));
        choose(logits, experts, chosen, router.normalised, ids, weights);
        for (int64_t i = 0; i < chosen; i++) {
            const float weight = found.weights[t * chosen + i];
            check.equal(found.ids[t * chosen + i], ids[static_cast<size_t>(i)]);
            if (std::isnan(weights[static_cast<size_t>(i)]))
                check.same(weight, NAN);
            else
                check.close(weight, weights[static_cast<size_t>(i)] * (router.scale ? router.scale[ids[i]] : 1), 3e-7);
        }
    }
}

// Experts as nodes have them: expert, unit, then gate, up and down.
struct Mixture {
    std::vector<Panels> matrices[3];
    int64_t places[4] = {};  // in a unit; the last is where the next unit begins
    int64_t expert_nbytes;
    Array<uint8_t> data;

    Mixture(Random &random, int64_t experts, int64_t hidden, int64_t outputs, int64_t columns, int64_t unit)
        : expert_nbytes(lay_out(random, experts, hidden, outputs, columns, unit)), data(experts * expert_nbytes) {
        for (int m = 0; m < 3; m++)
            for (int64_t e = 0; e < experts; e++)
                for (int64_t u = 0; u < of(m, e).units(); u++)
                    of(m, e).lay_out(u, data.data() + e * expert_nbytes + u * places[3] + places[m]);
    }
    const Panels &of(int m, int64_t expert) const { return matrices[m][static_cast<size_t>(expert)]; }
    PanelWeight weight(int m, int64_t expert, int64_t exponent = 0, void *y = nullptr) const {
        const Panels &of_expert = of(m, expert);
        return PanelWeight{data.data() + expert * expert_nbytes + places[m], y, of_expert.bits == 4, places[3], of_expert.rows,
                           of_expert.cols, of_expert.rows_per_unit, nullptr, exponent, INT32_MAX, of_expert.rows};
    }

private:
    int64_t lay_out(Random &random, int64_t experts, int64_t hidden, int64_t outputs, int64_t columns, int64_t unit) {
        const int64_t whole = std::min(unit, columns);
        for (int m = 0; m < 3; m++) {
            const int64_t bits = random.coin() ? 8 : 4;
            for (int64_t e = 0; e < experts; e++) {
                matrices[m].emplace_back(random, bits, columns, m == 2 ? outputs : hidden, unit, m == 2);
                matrices[m].back().tame();
            }
            places[m + 1] = places[m] + (m == 2 ? unit_nbytes(outputs, whole, bits) : unit_nbytes(whole, hidden, bits));
        }
        places[3] += 64 * random.sometimes(2);
        return places[3] * of(0, 0).units();
    }
};

int64_t rounded(float part, int64_t exponent) {
    const double steps = ldexp(static_cast<double>(part), static_cast<int>(-exponent));
    return fabs(steps) <= 0x1p46 ? static_cast<int64_t>(nearbyint(steps)) : NO_SUM;
}

void add(int64_t &sum, int64_t part) { sum = sum == NO_SUM || part == NO_SUM ? NO_SUM : sum + part; }

void check_block(void *handle, Check &check, Random &random, int64_t tokens, int64_t experts, int64_t columns,
                 int64_t hidden) {
    const int64_t outputs = random.between(1, 50), exponent = random.between(-30, 0);
    const int64_t most = std::min<int64_t>(experts, 4), chosen = tokens > 20 ? most : random.between(1, most);
    const Mixture mixture(random, experts, hidden, outputs, columns, random.between(1, 70));
    const bool normed = random.coin(), biased = random.coin(), ends_biased = random.coin();
    const Floats norm = random_floats(random, hidden), down_bias = random_floats(random, experts * outputs);
    const Floats gate_bias = random_floats(random, experts * columns), up_bias = random_floats(random, experts * columns);
    Floats x = random_floats(random, tokens * hidden);
    RandomRouter of(random, experts, hidden, chosen);
    spoil(random, of.matrix, experts, x, hidden);
    Floats rows(x.size()), own_rows(x.size()), gate(columns), up(columns), scratch(x.size());
    const auto norm_rows = [&](const float *weight, Floats &to) {
        memcpy(to.data(), x.data(), static_cast<size_t>(x.size()) * sizeof(float));
        if (weight) tpiedge_rms_norm(handle, x.data(), to.data(), hidden, 0, tokens, 1, hidden, weight, 1e-5f);
    };
    norm_rows(normed ? norm.data() : nullptr, rows);
    norm_rows(of.router.norm, own_rows);
    const Routes routes(handle, of.router.norm ? own_rows : rows, of.router, hidden);
    const int64_t activation = random.between(0, 3);
    Array<int64_t> wanted(tokens * outputs), part(outputs), y(tokens * outputs);
    for (int64_t i = 0; i < tokens * chosen; i++) {
        const int64_t token = i / chosen, expert = routes.ids[i];
        const PanelWeight inner[] = {mixture.weight(0, expert, 0, gate.data()), mixture.weight(1, expert, 0, up.data())};
        complete(tpiedge_panels_project(handle, rows.data() + token * hidden, 1, inner, 2));
        for (int64_t c = 0; biased && c < columns; c++) {
            gate[c] += gate_bias[expert * columns + c];
            up[c] += up_bias[expert * columns + c];
        }
        tpiedge_activate(handle, gate.data(), up.data(), gate.data(), columns, activation);
        for (float &value : gate) value *= routes.weights[i];
        const PanelWeight down = mixture.weight(2, expert, exponent, part.data());
        complete(tpiedge_panels_contract(handle, gate.data(), 1, &down, 1));
        for (int64_t o = 0; o < outputs; o++) {
            int64_t &sum = wanted[token * outputs + o];
            if (i % chosen == 0) sum = 0;
            add(sum, part[o]);
            if (ends_biased) add(sum, rounded(routes.weights[i] * down_bias[expert * outputs + o], exponent));
        }
    }
    const PanelExperts block{mixture.weight(0, 0), mixture.weight(1, 0), mixture.weight(2, 0, exponent), of.router,
                             mixture.expert_nbytes, biased ? gate_bias.data() : nullptr, biased ? up_bias.data() : nullptr,
                             ends_biased ? down_bias.data() : nullptr, normed ? norm.data() : nullptr, 1e-5, activation};
    check.shape(tokens, experts, hidden, columns);
    Array<int64_t> ids(tokens * chosen);
    complete(tpiedge_panels_experts(handle, &block, x.data(), y.data(), ids.data(), tokens, scratch.data(), 1));
    for (int64_t i = 0; i < ids.size(); i++) check.equal(ids[i], routes.ids[i]);
    for (int64_t i = 0; i < y.size(); i++) check.equal(y[i], wanted[i]);
    Array<int32_t> narrow(tokens * outputs);
    if (tpiedge_panels_experts(handle, &block, x.data(), narrow.data(), nullptr, tokens, scratch.data(), 0) != tpiedge::TOO_LARGE)
        for (int64_t i = 0; i < y.size(); i++) check.agree(narrow[i], wanted[i]);
}

// An FFN and experts side by side in a call for a stack, against their own calls and the end of two sums.
void check_pair(void *handle, Check &check, Random &random) {
    const int64_t tokens = random.between(1, 9), hidden = random.between(1, 60), columns = random.between(1, 100);
    const int64_t experts = random.between(1, 6), inner = random.between(1, 60), exponent = random.between(-30, 0);
    const Mixture mixture(random, experts, hidden, hidden, columns, random.between(1, 70));
    RandomRouter of(random, experts, hidden, random.between(1, std::min<int64_t>(experts, 4)));
    Panels gate(random, 4, inner, hidden, inner, false), up(random, 8, inner, hidden, inner, false);
    Panels down(random, 4, inner, hidden, inner, true);
    for (Panels *matrix : {&gate, &up, &down}) matrix->tame();
    const Floats norm = random_floats(random, hidden), end_norm = random_floats(random, hidden);
    const Floats first = random_floats(random, hidden), second = random_floats(random, hidden);
    const PanelFFN ffn{gate.weight(nullptr), up.weight(nullptr), down.weight(nullptr, exponent), norm.data(), 1e-5, 0};
    const PanelExperts mixed{mixture.weight(0, 0), mixture.weight(1, 0), mixture.weight(2, 0, exponent), of.router,
                             mixture.expert_nbytes, nullptr, nullptr, nullptr, norm.data(), 1e-5, 1};
    const BlockEnd end{nullptr, random.coin() ? end_norm.data() : nullptr, 1e-5, 0.5, 0.75, {first.data(), second.data()}};
    Floats x = random_floats(random, tokens * hidden), wanted(x.size());
    memcpy(wanted.data(), x.data(), static_cast<size_t>(x.size()) * sizeof(float));
    Array<int64_t> sums(2 * x.size());
    Floats scratch(tokens * (4 * hidden + 2 * inner));
    complete(tpiedge_panels_ffn(handle, &ffn, x.data(), nullptr, 0, sums.data(), tokens, scratch.data(), 1));
    complete(tpiedge_panels_experts(handle, &mixed, x.data(), sums.data() + x.size(), nullptr, tokens, scratch.data(), 1));
    tpiedge_add_sums(handle, wanted.data(), sums.data(), tokens, hidden, exponent, tpiedge::INT64_SUMS, &end, scratch.data());
    const Span span{tokens, 0, nullptr, 0};
    const PanelBlock block{nullptr, &ffn, &mixed, 0, end};
    double seconds[2];
    complete(tpiedge_panels_stack(handle, &block, 1, x.data(), &span, 1, nullptr, nullptr, 0, scratch.data(), seconds));
    check.shape(tokens, experts, hidden, columns);
    for (int64_t i = 0; i < x.size(); i++) check.same(x[i], wanted[i]);
}

}  // namespace

void check_experts(void *handle, const char *isa) {
    Random random(12);
    Check router("route", isa), block("panels_experts", isa), pair("panels_stack", isa);
    for (int i = 0; i < 60; i++) {
        const int64_t tokens = random.between(1, 40), experts = random.between(1, 40), width = random.between(1, 200);
        check_route(handle, router, random, tokens, experts, width);
    }
    check_route(handle, router, random, 70, 100, 1000);
    check_route(handle, router, random, 2, 1024, 20);
    for (int i = 0; i < 60; i++) {
        const int64_t tokens = random.between(1, 20), experts = random.between(1, 9), columns = random.between(1, 150);
        check_block(handle, block, random, tokens, experts, columns, random.between(1, 90));
    }
    for (int i = 0; i < 20; i++) check_pair(handle, pair, random);
    check_block(handle, block, random, 300, 1, 70, 40);  // more rows than an expert has at once
    check_block(handle, block, random, 90, 5, 3000, 8);  // and than a batch has
}
