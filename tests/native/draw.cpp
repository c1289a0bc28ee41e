// Drawing tokens: where the number falls in their probabilities, summed here in f64 in the same order; and the likeliest,
// sorted. The same tokens on every instruction set.
#include <algorithm>
#include <numeric>
#include <vector>

#include "check.h"

namespace {

constexpr double NEAR = 1e-9;

// As draw.py chooses.
int64_t level_of(const char *isa) { return strncmp(isa, "avx", 3) ? 0 : 1; }

// Some equal, some masked; the first is neither.
Floats random_scores(Random &random, int64_t count) {
    Floats scores(count);
    const bool equal = random.coin();
    for (float &score : scores) {
        score = equal ? static_cast<float>(random.between(-3, 3)) : 4 * random.value();
        if (random.between(0, 9) == 0) score = -INFINITY;
    }
    scores[0] = 1;
    return scores;
}

std::vector<int64_t> descending(const Floats &scores) {
    std::vector<int64_t> ids(scores.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
    return ids;
}

struct Rules {
    double temperature;
    int64_t top_k;
    double top_p;
    double min_p;
};

// The probabilities of the tokens that survive; what is on a border survives.
std::vector<double> survivors(const Floats &scores, const Rules &rules) {
    const std::vector<int64_t> ids = descending(scores);
    const float best = scores[ids[0]];
    std::vector<double> weights(scores.size());
    const int64_t k = rules.top_k ? std::min(rules.top_k, scores.size()) : scores.size();
    for (const int64_t id : ids)
        if (scores[id] >= scores[ids[k - 1]]) weights[id] = exp((static_cast<double>(scores[id]) - best) / rules.temperature);
    const double needed = rules.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
    double before = 0;
    for (const int64_t id : ids) {
        const double weight = weights[id];
        if (before >= needed * (1 + NEAR) || weight < rules.min_p * (1 - NEAR)) weights[id] = 0;
        before += weight;
    }
    return weights;
}

void check_one(Check &check, Random &random, int64_t level) {
    const int64_t count = random.between(1, random.coin() ? 40 : 5000);
    const Floats scores = random_scores(random, count);
    const Rules rules{random.between(1, 8) * 0.25, random.sometimes(count + 1),
                      random.coin() ? 1.0 : random.between(1, 99) * 0.01, random.sometimes(9) * 0.02};
    const double number = static_cast<double>(random.bits() >> 11) * 0x1p-53;
    const int64_t token = tpiedge_draw(level, scores.data(), count, rules.temperature, rules.top_k, rules.top_p,
                                       rules.min_p, number);
    check.shape(count, rules.top_k, level);
    check.equal(token, std::min(std::max(token, int64_t{0}), count - 1));
    const std::vector<double> weights = survivors(scores, rules);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double before = std::accumulate(weights.begin(), weights.begin() + token, 0.0);
    const double slack = 4e-3 * (rules.top_p < 1) + NEAR;  // a token more or less where the nucleus ends
    check.agree(weights[token] > 0, 1);
    check.agree(number >= before / total - slack && number <= (before + weights[token]) / total + slack, 1);
}

void check_likeliest(Check &check, Random &random, int64_t level) {
    const int64_t count = random.between(1, random.coin() ? 40 : 5000);
    const Floats scores = random_scores(random, count);
    const int64_t wanted = random.between(1, std::min(count, int64_t{32}));
    Array<int64_t> found(wanted);
    check.shape(count, wanted, level);
    const int64_t mass = tpiedge_likeliest(level, scores.data(), count, wanted, found.data());
    check.equal(mass, mass);
    const std::vector<int64_t> ids = descending(scores);
    check.same_bytes(found.data(), ids.data(), wanted * sizeof(int64_t));
    double total = 0;
    for (const float score : scores) total += exp(static_cast<double>(score) - scores[ids[0]]);
    int length = 0;
    for (int64_t left = count; left; left >>= 1) length++;
    check.agree(fabs(ldexp(static_cast<double>(mass), -std::min(50, 62 - length)) / total - 1) < NEAR, 1);
}

}  // namespace

void check_draw(const char *isa) {
    Random random(11);
    Check drawn("draw", isa), likeliest("likeliest", isa);
    for (int i = 0; i < 300; i++) {
        check_one(drawn, random, level_of(isa));
        check_likeliest(likeliest, random, level_of(isa));
    }
}
