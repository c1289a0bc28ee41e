// The attention block of quantised matrices and all layers at once: what their parts are, one after the other.
#include "kv.h"
#include "panels.h"

namespace {

// Where some tokens stand: from position `start` on, of one of the sequences.
struct Place {
    size_t sequence;
    int64_t tokens, start, row;
};

struct Case {
    int64_t tokens, hidden, heads, kv_heads, width, rotated;
    int format;
    bool norms;
    bool biased;
    bool normed;            // before q, k and v
    int64_t projections;    // as in AttentionBlock
    bool value_norm;
    bool whole;
    int64_t q_heads, k_heads;  // of the matrices
    int64_t first_q, first_k;
    bool factors;
    bool sunk;
    float cap;
    int64_t exponent;  // of the grid of o
    PageLayout layout;
    std::vector<int64_t> head_start;
    std::vector<Place> places;

    explicit Case(Random &random)
        : tokens(0), hidden(random.between(1, 60)), heads(0), kv_heads(random.between(1, 3)),
          width(2 * random.between(1, 40)), rotated(random.coin() ? width : 2 * random.between(1, width / 2)),
          format(static_cast<int>(random.between(0, FORMATS - 1))), norms(random.coin()),
          biased(random.coin()), normed(random.between(0, 3)), projections(3 - random.sometimes(2)),
          value_norm(!random.between(0, 3)), whole(!random.between(0, 2)), factors(random.coin()),
          sunk(random.coin()), cap(random.coin() ? 0.0f : 2.0f), exponent(random.between(-30, 0)),
          layout(random_layout(random, format, kv_heads, width)), head_start{0} {
        for (int64_t j = 0; j < kv_heads; j++) head_start.push_back(heads += random.between(1, 4));
        first_q = whole ? random.between(0, 3) : 0;
        first_k = whole ? random.between(0, 2) : 0;
        q_heads = first_q + heads + (whole ? random.between(0, 2) : 0);
        k_heads = first_k + kv_heads + (whole ? random.between(0, 2) : 0);
        for (int64_t count = random.between(1, 3); count > 0; count--) add_place(random);
    }

private:
    // Of a new sequence, or what follows the place before.
    void add_place(Random &random) {
        const bool follows = !places.empty() && random.coin();
        const size_t sequence = places.empty() ? 0 : places.back().sequence + !follows;
        const int64_t start = follows ? places.back().start + places.back().tokens : random.sometimes(130);
        places.push_back(Place{sequence, random.between(1, 3), start, tokens});
        tokens += places.back().tokens;
    }
};

// The pages of all sequences; positions before the first place are filled, and all that a block without k and v sees.
struct Cache {
    std::vector<Pages> sequences;

    Cache(Random &random, const Case &c) {
        for (const Place &place : c.places) {
            if (place.sequence < sequences.size()) continue;
            sequences.emplace_back(c.layout, place.start + 10);
            for (int64_t at = 0; at < place.start + (c.projections == 1 ? 10 : 0); at++)
                for (int64_t h = 0; h < c.kv_heads; h++) {
                    const Floats key = random_floats(random, c.width), value = random_floats(random, c.width);
                    put(c, sequences.back(), h, at, key.data(), value.data());
                }
        }
    }
    void append(const Case &c, const Floats &k, const Floats &v) {
        for (const Place &place : c.places)
            for (int64_t t = 0; t < place.tokens; t++)
                for (int64_t h = 0; h < c.kv_heads; h++) {
                    const int64_t from = ((place.row + t) * c.kv_heads + h) * c.width;
                    put(c, sequences[place.sequence], h, place.start + t, k.data() + from, v.data() + from);
                }
    }
    std::vector<Span> spans(const Case &c) const {
        std::vector<Span> made;
        for (const Place &place : c.places)
            made.push_back(sequences[place.sequence].span(place.tokens, place.start, place.row));
        return made;
    }
    void same(Check &check, const Cache &wanted) const {
        for (size_t at = 0; at < sequences.size(); at++) sequences[at].same(check, wanted.sequences[at]);
    }

private:
    static void put(const Case &c, Pages &pages, int64_t head, int64_t at, const float *k, const float *v) {
        const auto key = encode(c.format, k, c.width), value = encode(c.format, v, c.width);
        memcpy(pages.key(c.layout, head, at), key.data(), key.size());
        memcpy(pages.value(c.layout, head, at), value.data(), value.size());
    }
};

struct Parameters {
    Floats x, norm, q_norm, k_norm, v_norm, cos, sin, factors, q_bias, k_bias, v_bias, sinks;
    Panels q, k, v, o;

    Parameters(Random &random, const Case &c)
        : x(random_floats(random, c.tokens * c.hidden)), norm(random_floats(random, c.hidden)),
          q_norm(random_floats(random, c.whole ? c.q_heads * c.width : c.width)),
          k_norm(random_floats(random, c.whole ? c.k_heads * c.width : c.width)), v_norm(random_floats(random, c.width)),
          cos(random_floats(random, c.tokens * c.rotated)), sin(random_floats(random, c.tokens * c.rotated)),
          factors(random_floats(random, c.tokens)), q_bias(random_floats(random, c.q_heads * c.width)),
          k_bias(random_floats(random, c.k_heads * c.width)), v_bias(random_floats(random, c.kv_heads * c.width)),
          sinks(random_floats(random, c.heads)),
          q(random, 4, c.q_heads * c.width, c.hidden, c.width, false),
          k(random, 8, c.k_heads * c.width, c.hidden, c.width, false),
          v(random, 4, c.kv_heads * c.width, c.hidden, c.width, false),
          o(random, 8, c.heads * c.width, c.hidden, c.width, true) {}
    Rotation rotation(bool with_factors) const {
        return Rotation{cos.data(), sin.data(), with_factors ? factors.data() : nullptr};
    }
};

// The products [T, row] of `count` heads from the first on, of those that the matrix has.
Floats own_heads(const Case &c, const Floats &x, int64_t row, int64_t first, int64_t count) {
    Floats made(c.tokens * count * c.width);
    for (int64_t t = 0; t < c.tokens; t++)
        memcpy(made.data() + t * count * c.width, x.data() + t * row + first * c.width,
               static_cast<size_t>(count * c.width) * sizeof(float));
    return made;
}

void norm_heads(void *handle, const Case &c, Floats &x, const Floats &norm) {
    const int64_t width = norm.size(), heads = x.size() / c.tokens / width;
    tpiedge_rms_norm(handle, x.data(), x.data(), heads * width, width, c.tokens, heads, width, norm.data(), 1e-5f);
}

Floats turned(void *handle, const Case &c, const Floats &x, int64_t heads, const Rotation &rotation) {
    Floats y(x.size());
    tpiedge_rope(handle, x.data(), y.data(), heads * c.width, c.width, c.tokens, heads, c.width, &rotation, c.rotated);
    return y;
}

void add_bias(const Case &c, const Floats &bias, Floats &y) {
    for (int64_t i = 0; c.biased && i < y.size(); i++) y[i] += bias[i % bias.size()];
}

using Sums = Array<int64_t>;

Sums by_parts(void *handle, const Case &c, const Parameters &p, float scale, Cache &cache) {
    const int64_t q_row = c.q_heads * c.width, k_row = c.k_heads * c.width;
    Floats normed(p.x.size()), q(c.tokens * q_row), k(c.tokens * k_row), v(c.tokens * c.kv_heads * c.width);
    memcpy(normed.data(), p.x.data(), p.x.size() * sizeof(float));
    if (c.normed)
        tpiedge_rms_norm(handle, p.x.data(), normed.data(), c.hidden, 0, c.tokens, 1, c.hidden, p.norm.data(), 1e-5f);
    const PanelWeight weights[] = {p.q.weight(q.data()), p.k.weight(k.data()), p.v.weight(v.data())};
    complete(tpiedge_panels_project(handle, normed.data(), c.tokens, weights, 3));
    add_bias(c, p.q_bias, q);
    add_bias(c, p.k_bias, k);
    add_bias(c, p.v_bias, v);
    const Floats raw_k = own_heads(c, k, k_row, c.first_k, c.kv_heads);
    if (c.projections == 2) memcpy(v.data(), raw_k.data(), v.size() * sizeof(float));
    if (c.value_norm) norm_heads(handle, c, v, p.v_norm);
    if (c.norms) {
        norm_heads(handle, c, q, p.q_norm);
        norm_heads(handle, c, k, p.k_norm);
    }
    const Floats own_q = own_heads(c, q, q_row, c.first_q, c.heads);
    const Floats turned_q = turned(handle, c, own_q, c.heads, p.rotation(c.factors));
    if (c.projections > 1) {
        const Floats own_k = own_heads(c, k, k_row, c.first_k, c.kv_heads);
        cache.append(c, turned(handle, c, own_k, c.kv_heads, p.rotation(false)), v);
    }
    Floats out(turned_q.size());
    Sums y(c.tokens * c.hidden);
    const auto spans = cache.spans(c);
    tpiedge_attention(handle, turned_q.data(), out.data(), &c.layout, spans.data(), static_cast<int64_t>(spans.size()),
                      c.head_start.data(), c.heads, int64_t{1} << 62, scale, c.cap,
                      c.sunk ? p.sinks.data() : nullptr);
    const PanelWeight o = p.o.weight(y.data(), c.exponent);
    complete(tpiedge_panels_contract(handle, out.data(), c.tokens, &o, 1));
    return y;
}

// An AttentionBlock with what follows it.
Array<uint8_t> pack(const Case &c, const Parameters &p, float scale) {
    const auto bias = [&](const Floats &of) { return c.biased ? of.data() : nullptr; };
    const AttentionBlock block{{p.q.weight(nullptr, bias(p.q_bias)), p.k.weight(nullptr, bias(p.k_bias)),
                                p.v.weight(nullptr, bias(p.v_bias))},
                               p.o.weight(nullptr, c.exponent), c.projections, c.hidden,
                               c.normed ? p.norm.data() : nullptr, c.heads, c.norms ? p.q_norm.data() : nullptr,
                               c.norms ? p.k_norm.data() : nullptr, c.value_norm ? p.v_norm.data() : nullptr,
                               c.sunk ? p.sinks.data() : nullptr, c.whole, c.first_q, c.first_k, c.rotated, c.layout,
                               int64_t{1} << 62, 1e-5f, scale, c.cap};
    const int64_t starts_nbytes = static_cast<int64_t>(c.head_start.size() * sizeof(int64_t));
    Array<uint8_t> packed(static_cast<int64_t>(sizeof block) + starts_nbytes);
    memcpy(packed.data(), &block, sizeof block);
    memcpy(packed.data() + sizeof block, c.head_start.data(), static_cast<size_t>(starts_nbytes));
    return packed;
}

int64_t scratch_of(const Case &c) {
    const int64_t k_heads = c.projections > 1 ? c.k_heads : 0;
    return c.hidden + (2 * (c.q_heads + k_heads) + c.kv_heads) * c.width;
}

void check_block(void *handle, Check &check, Random &random) {
    const Case c(random);
    const Parameters p(random, c);
    Random again = random;
    Cache cache(random, c), own(again, c);
    const float scale = 0.25f;
    const Sums wanted = by_parts(handle, c, p, scale, cache);

    Sums y(wanted.size());
    Array<int32_t> narrow(wanted.size());
    Floats scratch(c.tokens * scratch_of(c));
    const Array<uint8_t> packed = pack(c, p, scale);
    const auto spans = own.spans(c);
    const auto *packed_block = reinterpret_cast<const AttentionBlock *>(packed.data());
    const Rotation rotation = p.rotation(c.factors);
    const auto compute = [&](void *sums, int wide) {
        return tpiedge_panels_attention(handle, packed_block, p.x.data(), sums, spans.data(),
                                        static_cast<int64_t>(spans.size()), &rotation, scratch.data(), wide);
    };
    check.shape(c.tokens, c.hidden, c.heads, c.format);
    if (compute(narrow.data(), 0) != tpiedge::TOO_LARGE)
        for (int64_t i = 0; i < y.size(); i++) check.agree(narrow[i], wanted[i]);
    complete(compute(y.data(), 1));
    for (int64_t i = 0; i < y.size(); i++) check.equal(y[i], wanted[i]);
    own.same(check, cache);
}

Floats copy_of(const Floats &from) {
    Floats made(from.size());
    memcpy(made.data(), from.data(), from.size() * sizeof(float));
    return made;
}

// Two layers of the same matrices, on one cache, which keeps nothing that is no number: the bits of that are the CPU's choice.
void check_stack(void *handle, Check &check, Random &random) {
    const Case c(random);
    Parameters p(random, c);
    for (Panels *matrix : {&p.q, &p.k, &p.v, &p.o}) matrix->tame();
    const int64_t inner = random.between(1, 60);
    const Floats norm = random_floats(random, c.hidden);
    Panels gate(random, 4, inner, c.hidden, inner, false), up(random, 8, inner, c.hidden, inner, false);
    Panels down(random, 4, inner, c.hidden, inner, true);
    for (Panels *matrix : {&gate, &up, &down}) matrix->tame();
    const int64_t exponent = random.between(-30, 0);
    const PanelFFN ffn{random.coin() ? gate.weight(nullptr) : PanelWeight{}, up.weight(nullptr),
                       down.weight(nullptr, exponent), norm.data(), 1e-5, random.between(0, 1)};
    // After the FFN, with inputs of both layers side by side.
    const PanelFFN given{gate.weight(nullptr), PanelWeight{}, down.weight(nullptr, exponent), nullptr, 0,
                         random.between(0, 1)};
    const Strided inputs(random, c.tokens, 2 * inner);
    const Floats end_bias = random_floats(random, c.hidden), end_norm = random_floats(random, c.hidden);
    const bool ended = random.coin();
    const BlockEnd ends[] = {ended ? BlockEnd{end_bias.data(), end_norm.data(), 1e-5, 0.5, 1, {}} : plain_end(),
                             ended ? BlockEnd{end_bias.data(), nullptr, 0, 1, 0.75, {}} : plain_end(),
                             ended ? BlockEnd{nullptr, end_norm.data(), 1e-5, 1, 0.5, {}} : plain_end()};
    Random again = random;
    Cache cache(random, c), own(again, c);
    const auto spans = cache.spans(c), own_spans = own.spans(c);
    const int64_t count = static_cast<int64_t>(spans.size());
    const Array<uint8_t> packed = pack(c, p, 0.25f);
    const auto *block = reinterpret_cast<const AttentionBlock *>(packed.data());

    const Rotation rotations[] = {p.rotation(false), p.rotation(true)};
    const int64_t of_attention = scratch_of(c), of_ffn = c.hidden + 2 * inner;
    Sums y(p.x.size());
    Floats wanted = copy_of(p.x), scratch(c.tokens * of_attention), ffn_scratch(c.tokens * of_ffn);
    Floats end_scratch(c.tokens * c.hidden);
    for (int layer = 0; layer < 2; layer++) {
        complete(tpiedge_panels_attention(handle, block, wanted.data(), y.data(), spans.data(), count,
                                          rotations + layer, scratch.data(), 1));
        tpiedge_add_sums(handle, wanted.data(), y.data(), c.tokens, c.hidden, c.exponent, tpiedge::INT64_SUMS, ends,
                         end_scratch.data());
        complete(tpiedge_panels_ffn(handle, &ffn, wanted.data(), nullptr, 0, y.data(), c.tokens, ffn_scratch.data(), 1));
        tpiedge_add_sums(handle, wanted.data(), y.data(), c.tokens, c.hidden, exponent, tpiedge::INT64_SUMS, ends + 1,
                         end_scratch.data());
        complete(tpiedge_panels_ffn(handle, &given, wanted.data(), inputs.data.data() + layer * inner, inputs.stride,
                                    y.data(), c.tokens, ffn_scratch.data(), 1));
        tpiedge_add_sums(handle, wanted.data(), y.data(), c.tokens, c.hidden, exponent, tpiedge::INT64_SUMS, ends + 2,
                         end_scratch.data());
    }

    Floats x = copy_of(p.x);
    Floats all_scratch(c.tokens * (c.hidden + (of_attention > of_ffn ? of_attention : of_ffn)));
    std::vector<PanelBlock> blocks;
    for (int64_t layer = 0; layer < 2; layer++) {
        blocks.push_back({block, nullptr, nullptr, layer, ends[0]});
        blocks.push_back({nullptr, &ffn, nullptr, 0, ends[1]});
        blocks.push_back({nullptr, &given, nullptr, layer * inner, ends[2]});
    }
    double seconds[2];
    complete(tpiedge_panels_stack(handle, blocks.data(), 6, x.data(), own_spans.data(), count, rotations,
                                  inputs.data.data(), inputs.stride, all_scratch.data(), seconds));
    check.shape(c.tokens, c.hidden, inner, c.format);
    for (int64_t i = 0; i < x.size(); i++) {
        check.same(x[i], wanted[i]);
        check.close(x[i], 0, 1e9);
    }
    own.same(check, cache);
}

}  // namespace

void check_attention_block(void *handle, const char *isa) {
    Random random(10);
    Check attention("panels_attention", isa), stack("panels_stack", isa);
    for (int i = 0; i < 80; i++) check_block(handle, attention, random);
    for (int i = 0; i < 20; i++) check_stack(handle, stack, random);
}
