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

struct Routes {
    Floats logits, weights;
    Array<int64_t> ids;

    Routes(void *handle, const Floats &x, const Floats &router, int64_t width, int64_t chosen, bool normalised)
        : logits(x.size() / width * (router.size() / width)), weights(x.size() / width * chosen),
          ids(x.size() / width * chosen) {
        tpiedge_route(handle, x.data(), x.size() / width, width, router.data(), router.size() / width, chosen, normalised,
                      logits.data(), ids.data(), weights.data());
    }
};

void check_route(void *handle, Check &check, Random &random, int64_t tokens, int64_t experts, int64_t width) {
    const int64_t chosen = random.between(1, experts);
    const bool normalised = random.coin();
    Floats x = random_floats(random, tokens * width), router = random_floats(random, experts * width);
    spoil(random, router, experts, x, width);
    const Routes found(handle, x, router, width, chosen, normalised);
    check.shape(tokens, experts, width, chosen);
    std::vector<int64_t> ids;
    std::vector<double> weights;
    for (int64_t t = 0; t < tokens; t++) {
        const float *const logits = found.logits.data() + t * experts;
        for (int64_t e = 0; e < experts; e++)
            check.same(logits[e], logit(x.data() + t * width, router.data() + e * width, width));
        choose(logits, experts, chosen, normalised, ids, weights);
        for (int64_t i = 0; i < chosen; i++) {
            const float weight = found.weights[t * chosen + i];
            check.equal(found.ids[t * chosen + i], ids[static_cast<size_t>(i)]);
            if (std::isnan(weights[static_cast<size_t>(i)]))
                check.same(weight, NAN);
            else
                check.close(weight, weights[static_cast<size_t>(i)], 1e-7);
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

void add(int64_t &sum, int64_t part) { sum = sum == NO_SUM || part == NO_SUM ? NO_SUM : sum + part; }

void check_block(void *handle, Check &check, Random &random, int64_t tokens, int64_t experts, int64_t columns,
                 int64_t hidden) {
    const int64_t outputs = random.between(1, 50), exponent = random.between(-30, 0);
    const int64_t most = std::min<int64_t>(experts, 4), chosen = tokens > 20 ? most : random.between(1, most);
    const Mixture mixture(random, experts, hidden, outputs, columns, random.between(1, 70));
    const bool normalised = random.coin(), normed = random.coin();
    const Floats norm = random_floats(random, hidden);
    Floats x = random_floats(random, tokens * hidden), router = random_floats(random, experts * hidden);
    spoil(random, router, experts, x, hidden);
    Floats rows(x.size()), gate(columns), up(columns), scratch(x.size());
    memcpy(rows.data(), x.data(), static_cast<size_t>(x.size()) * sizeof(float));
    if (normed) tpiedge_rms_norm(handle, x.data(), rows.data(), hidden, 0, tokens, 1, hidden, norm.data(), 1e-5f);
    const Routes routes(handle, rows, router, hidden, chosen, normalised);
    const int64_t activation = random.between(0, 2);
    Array<int64_t> wanted(tokens * outputs), part(outputs), y(tokens * outputs);
    for (int64_t i = 0; i < tokens * chosen; i++) {
        const int64_t token = i / chosen, expert = routes.ids[i];
        const PanelWeight inner[] = {mixture.weight(0, expert, 0, gate.data()), mixture.weight(1, expert, 0, up.data())};
        complete(tpiedge_panels_project(handle, rows.data() + token * hidden, 1, inner, 2));
        tpiedge_activate(handle, gate.data(), up.data(), gate.data(), columns, activation);
        for (float &value : gate) value *= routes.weights[i];
        const PanelWeight down = mixture.weight(2, expert, exponent, part.data());
        complete(tpiedge_panels_contract(handle, gate.data(), 1, &down, 1));
        for (int64_t o = 0; o < outputs; o++) {
            int64_t &sum = wanted[token * outputs + o];
            if (i % chosen == 0) sum = 0;
            add(sum, part[o]);
        }
    }
    const PanelExperts block{mixture.weight(0, 0), mixture.weight(1, 0), mixture.weight(2, 0, exponent), experts,
                             mixture.expert_nbytes, chosen, normalised, router.data(), normed ? norm.data() : nullptr,
                             1e-5, activation};
    check.shape(tokens, experts, hidden, columns);
    complete(tpiedge_panels_experts(handle, &block, x.data(), y.data(), tokens, scratch.data(), 1));
    for (int64_t i = 0; i < y.size(); i++) check.equal(y[i], wanted[i]);
    Array<int32_t> narrow(tokens * outputs);
    if (tpiedge_panels_experts(handle, &block, x.data(), narrow.data(), tokens, scratch.data(), 0) != tpiedge::TOO_LARGE)
        for (int64_t i = 0; i < y.size(); i++) check.agree(narrow[i], wanted[i]);
}

}  // namespace

void check_experts(void *handle, const char *isa) {
    Random random(12);
    Check router("route", isa), block("panels_experts", isa);
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
    check_block(handle, block, random, 300, 1, 70, 40);  // more rows than an expert has at once
    check_block(handle, block, random, 90, 5, 3000, 8);  // and than a batch has
}
