// Drawing a token from scores, and finding the likeliest: what draw.py defines, to the same tokens. Nothing is
// sorted but what is given back: a threshold is looked for in the bits of the scores, eleven at a time.
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <vector>

#include "interface.h"
#include "mass.h"
#include "mass.inl"

namespace {

constexpr int64_t BUCKETS = 2048;
constexpr int64_t BLOCK = 64;          // tokens whose best is looked at before they are
constexpr int SHIFTS[] = {21, 10, 0};  // where in a key the digits begin that a round looks at

// Of a thread, kept from one draw to the next: fresh pages of the system would take as long as the draw.
struct Scratch {
    std::vector<int64_t> masses;
    std::vector<float> scores;
    std::vector<float> best;
    std::vector<int32_t> ids;
    std::vector<int32_t> candidates;
};

Scratch &scratch() {
    static thread_local Scratch mine;
    return mine;
}

// Ascends with the score. Both zeros have the same.
uint32_t key_of(float score) {
    const float one_zero = score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &one_zero, sizeof bits);
    return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// Some tokens, ascending by id.
struct Tokens {
    const float *scores;
    int64_t count;
    const int32_t *ids;  // null where they are 0, 1, 2 ...

    int64_t id(int64_t at) const { return ids ? ids[at] : at; }
};

// The score at which the amounts of the tokens, taken from the largest score down, reach `needed`.
struct Threshold {
    float score;
    int64_t before;        // the amounts of larger scores
    const int32_t *equal;  // the places of the tokens with this score, ascending
};

// The places of tokens among which the threshold is, ascending; at first all.
struct Candidates {
    int32_t *places;
    int64_t count;
    bool all = true;

    template <class Work>
    void each(Work work) const {
        if (all) {
            for (int64_t i = 0; i < count; i++) work(static_cast<int32_t>(i));
        } else {
            for (int64_t i = 0; i < count; i++) work(places[i]);
        }
    }
    template <class Kept>
    void keep(Kept kept) {
        int64_t left = 0;
        each([&](int32_t place) {
            places[left] = place;
            left += kept(place);
        });
        count = left;
        all = false;
    }
};

// The largest digit down to which the amounts reach `needed`; `before` becomes those of larger ones.
template <class Digit, class Amount>
uint32_t bucket_of(const Candidates &candidates, Digit digit, Amount amount, int64_t needed, int64_t &before) {
    int64_t sums[2][BUCKETS] = {};  // in turns: two tokens in a row seldom wait for each other
    int turn = 0;
    candidates.each([&](int32_t place) { sums[turn ^= 1][digit(place)] += amount(place); });
    uint32_t at = BUCKETS - 1;
    for (; before + sums[0][at] + sums[1][at] < needed; at--) before += sums[0][at] + sums[1][at];
    return at;
}

// `needed` is above 0 and at most the sum of all amounts (place -> int64).
template <class Amount>
Threshold threshold(const Tokens &tokens, Amount amount, int64_t needed) {
    scratch().candidates.resize(tokens.count);
    Candidates candidates{scratch().candidates.data(), tokens.count};
    int64_t before = 0;
    for (const int shift : SHIFTS) {
        const auto digit = [&](int32_t place) { return key_of(tokens.scores[place]) >> shift & (BUCKETS - 1); };
        const uint32_t bucket = bucket_of(candidates, digit, amount, needed, before);
        candidates.keep([&](int32_t place) { return digit(place) == bucket; });
    }
    return {tokens.scores[candidates.places[0]], before, candidates.places};
}

float best_of(const float *scores, int64_t count) {
    constexpr int64_t AT_ONCE = 16;  // else each would wait for the one before
    float best[AT_ONCE];
    for (float &one : best) one = scores[0];
    int64_t i = 0;
    for (; i + AT_ONCE <= count; i += AT_ONCE)
        for (int64_t j = 0; j < AT_ONCE; j++) best[j] = scores[i + j] > best[j] ? scores[i + j] : best[j];
    for (; i < count; i++) best[0] = scores[i] > best[0] ? scores[i] : best[0];
    return *std::max_element(best, best + AT_ONCE);
}

// Tokens of `all` among which those with the k largest scores are, and what equals the least of these: where k blocks have
// a score so large, the k-th largest is not below it. All of them where k is large.
Tokens shortlist(const Tokens &all, int64_t k) {
    const int64_t blocks = (all.count + BLOCK - 1) / BLOCK;
    if (k >= blocks) return all;
    Scratch &room = scratch();
    room.best.resize(2 * blocks);
    float *best = room.best.data(), *sorted = best + blocks;
    for (int64_t b = 0; b < blocks; b++)
        best[b] = best_of(all.scores + b * BLOCK, std::min(BLOCK, all.count - b * BLOCK));
    std::copy(best, best + blocks, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + blocks, [](float a, float b) { return a > b; });
    const float least = sorted[k - 1];
    room.ids.clear();
    room.scores.clear();
    for (int64_t b = 0; b < blocks; b++) {
        if (best[b] < least) continue;
        for (int64_t i = b * BLOCK; i < std::min((b + 1) * BLOCK, all.count); i++) {
            if (all.scores[i] < least) continue;
            room.ids.push_back(static_cast<int32_t>(i));
            room.scores.push_back(all.scores[i]);
        }
    }
    return {room.scores.data(), static_cast<int64_t>(room.ids.size()), room.ids.data()};
}

constexpr auto one_each = [](int32_t) { return int64_t{1}; };

// The tokens with the k largest scores, and what equals the least of them.
Tokens top_k(const Tokens &all, int64_t k) {
    if (k == 0 || k >= all.count) return all;
    const Tokens some = shortlist(all, k);
    const float least = threshold(some, one_each, k).score;
    Scratch &room = scratch();
    room.ids.resize(some.count);
    room.scores.resize(some.count);
    int64_t kept = 0;
    for (int64_t i = 0; i < some.count; i++) {
        const float score = some.scores[i];
        room.ids[kept] = static_cast<int32_t>(some.id(i));
        room.scores[kept] = score;
        kept += score >= least;
    }
    return {room.scores.data(), kept, room.ids.data()};
}

int64_t total_of(const int64_t *masses, int64_t count) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += masses[i];
    return total;
}

// Leaves no mass to any but the fewest likeliest tokens that have `top_p` of the total.
void cut_nucleus(const Tokens &tokens, double top_p, int64_t *masses) {
    if (top_p >= 1) return;
    const int64_t total = total_of(masses, tokens.count);
    const int64_t wanted = static_cast<int64_t>(ceil(top_p * static_cast<double>(total)));
    const int64_t needed = std::min(std::max(wanted, int64_t{1}), total);
    const Threshold least = threshold(tokens, [masses](int32_t at) { return masses[at]; }, needed);
    const int64_t each = masses[least.equal[0]];
    const int64_t last = least.equal[(needed - least.before + each - 1) / each - 1];
    const float *scores = tokens.scores;
    for (int64_t i = 0; i <= last; i++) masses[i] &= -static_cast<int64_t>(scores[i] >= least.score);
    for (int64_t i = last + 1; i < tokens.count; i++) masses[i] &= -static_cast<int64_t>(scores[i] > least.score);
}

// Leaves no mass to tokens less likely than `min_p` times the likeliest.
void cut_unlikely(double min_p, int bits, int64_t *masses, int64_t count) {
    if (min_p <= 0) return;
    const int64_t least = static_cast<int64_t>(ceil(min_p * static_cast<double>(int64_t{1} << bits)));
    for (int64_t i = 0; i < count; i++) masses[i] &= -static_cast<int64_t>(masses[i] >= least);
}

// The first place up to which there is more than `number` of the total, which is above 0.
int64_t inverted(const int64_t *masses, int64_t count, double number) {
    const int64_t total = total_of(masses, count);
    int64_t left = std::min(static_cast<int64_t>(number * static_cast<double>(total)), total - 1);
    int64_t at = 0;
    while ((left -= masses[at]) >= 0) at++;
    return at;
}

void find_masses(int64_t level, const Tokens &tokens, float best, double temperature, int bits) {
    std::vector<int64_t> &masses = scratch().masses;
    masses.resize(tokens.count);
    const tpiedge::MassKernel avx2 = level >= 1 ? tpiedge::avx2_masses() : nullptr;
    (avx2 ? avx2 : &MassOf<Two>::all)(tokens.scores, tokens.count, best, temperature, bits, masses.data());
}

int64_t drawn(int64_t level, const Tokens &all, double temperature, int64_t k, double top_p, double min_p,
              double number) {
    const int bits = tpiedge::mass_bits(all.count);
    const Tokens tokens = top_k(all, k);
    find_masses(level, tokens, best_of(tokens.scores, tokens.count), temperature, bits);
    int64_t *masses = scratch().masses.data();
    cut_nucleus(tokens, top_p, masses);
    cut_unlikely(min_p, bits, masses, tokens.count);
    return tokens.id(inverted(masses, tokens.count, number));
}

// The `wanted` likeliest, equals by id; at most as many as there are.
void find_likeliest(const Tokens &all, int64_t wanted, int64_t *ids) {
    const Tokens some = shortlist(all, wanted);
    const Threshold least = threshold(some, one_each, wanted);
    int64_t found = 0;
    for (int64_t i = 0; found < least.before; i++)
        if (some.scores[i] > least.score) ids[found++] = some.id(i);
    for (int64_t i = 0; found < wanted; i++) ids[found++] = some.id(least.equal[i]);
    std::stable_sort(ids, ids + wanted, [&](int64_t a, int64_t b) { return all.scores[a] > all.scores[b]; });
}

}  // namespace

// The id of a token drawn from `count` scores, of which none is NaN and one is above -inf, with the rules of draw.py;
// `number`, from [0, 1), says which. `level`: the instruction set, 0 any, 1 AVX2. Returns -1 where there is no memory.
TPIEDGE_EXPORT int64_t tpiedge_draw(int64_t level, const float *scores, int64_t count, double temperature, int64_t top_k,
                                    double top_p, double min_p, double number) {
    try {
        return drawn(level, {scores, count, nullptr}, temperature, top_k, top_p, min_p, number);
    } catch (const std::bad_alloc &) {
        return -1;
    }
}

// The `wanted` likeliest of `count` tokens, from 1 to all, likeliest first, into `ids`. Returns the masses of all at
// temperature 1, or -1 where there is no memory.
TPIEDGE_EXPORT int64_t tpiedge_likeliest(int64_t level, const float *scores, int64_t count, int64_t wanted,
                                         int64_t *ids) {
    try {
        const Tokens tokens{scores, count, nullptr};
        find_likeliest(tokens, wanted, ids);
        find_masses(level, tokens, scores[ids[0]], 1, tpiedge::mass_bits(count));
        return total_of(scratch().masses.data(), count);
    } catch (const std::bad_alloc &) {
        return -1;
    }
}
