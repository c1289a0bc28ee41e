// Two layers of fixed numbers: what becomes of some tokens is the same on every instruction set and architecture, and from
// one version to the next. The tests know the checksum.
#include "kv.h"
#include "panels.h"

namespace {

constexpr int64_t HIDDEN = 80, HEADS = 5, KV_HEADS = 2, WIDTH = 40, INNER = 272, POSITIONS = 90, UNIT = 128;
constexpr int64_t PAGE = 64;  // positions
constexpr int64_t SCRATCH = 2 * HIDDEN + (2 * HEADS + 3 * KV_HEADS) * WIDTH + 2 * INNER;
constexpr int64_t STEPS[] = {1, 70, 3, 16};

Panels matrix(Random &random, int64_t bits, int64_t rows, int64_t cols, int64_t rows_per_unit, bool transposed) {
    Panels made(random, bits, rows, cols, rows_per_unit, transposed);
    made.tame();
    return made;
}

struct Layer {
    Floats norm, ffn_norm, q_norm, k_norm, q_bias, k_bias, v_bias, gate_bias;
    Panels q, k, v, o, gate, up, down;
    PageLayout layout;
    PanelFFN ffn;
    // Before the first query head of every KV head.
    struct {
        AttentionBlock block;
        int64_t head_start[KV_HEADS + 1];
    } attention;

    // `number`: of the layer; `finer`: how many bits of grids lie below those that 32 bits hold.
    Layer(Random &random, int64_t number, int64_t bits, int format, int64_t row_nbytes, int64_t finer)
        : norm(random_floats(random, HIDDEN)), ffn_norm(random_floats(random, HIDDEN)),
          q_norm(random_floats(random, WIDTH)), k_norm(random_floats(random, WIDTH)),
          q_bias(random_floats(random, HEADS * WIDTH)), k_bias(random_floats(random, KV_HEADS * WIDTH)),
          v_bias(random_floats(random, KV_HEADS * WIDTH)), gate_bias(random_floats(random, INNER)),
          q(matrix(random, bits, HEADS * WIDTH, HIDDEN, WIDTH, false)),
          k(matrix(random, bits, KV_HEADS * WIDTH, HIDDEN, WIDTH, false)),
          v(matrix(random, bits, KV_HEADS * WIDTH, HIDDEN, WIDTH, false)),
          o(matrix(random, bits, HEADS * WIDTH, HIDDEN, WIDTH, true)),
          gate(matrix(random, bits, INNER, HIDDEN, UNIT, false)), up(matrix(random, bits, INNER, HIDDEN, UNIT, false)),
          down(matrix(random, bits, INNER, HIDDEN, UNIT, true)),
          layout{format, KV_HEADS, WIDTH, PAGE, number * KV_HEADS * 2 * PAGE * row_nbytes, 2 * PAGE * row_nbytes,
                 row_nbytes, PAGE * row_nbytes},
          ffn{gate.weight(nullptr, gate_bias.data()), up.weight(nullptr), down.weight(nullptr, -16 - finer),
              ffn_norm.data(), 1e-5, tpiedge::SILU} {
        attention = {{{q.weight(nullptr, q_bias.data()), k.weight(nullptr, k_bias.data()),
                       v.weight(nullptr, v_bias.data())},
                      o.weight(nullptr, -16 - finer), 3, HIDDEN, norm.data(), HEADS, q_norm.data(), k_norm.data(),
                      nullptr, nullptr, 0, 0, 0, WIDTH, layout, int64_t{50}, 1e-5, 0.15625, 0},
                     {0, 3, HEADS}};
    }
    PanelBlock first() { return PanelBlock{&attention.block, nullptr, nullptr, 0, plain_end()}; }
    PanelBlock second() { return PanelBlock{nullptr, &ffn, nullptr, 0, plain_end()}; }
};

void check_case(void *handle, Check &check, int64_t bits, int format, int64_t finer) {
    Random random(static_cast<uint64_t>(100 * bits + format));
    const int64_t row_nbytes = static_cast<int64_t>(encode(format, Floats(WIDTH).data(), WIDTH).size());
    Layer first(random, 0, bits, format, row_nbytes, finer), second(random, 1, bits, format, row_nbytes, finer);
    Pages pages(second.layout, POSITIONS);
    const PanelBlock blocks[] = {first.first(), first.second(), second.first(), second.second()};
    check.shape(bits, format, finer);
    int64_t start = 0;
    for (const int64_t tokens : STEPS) {
        const Floats cos = random_floats(random, tokens * WIDTH), sin = random_floats(random, tokens * WIDTH);
        Floats x = random_floats(random, tokens * HIDDEN), scratch(tokens * SCRATCH);
        const Rotation rotation{cos.data(), sin.data(), nullptr};
        double seconds[2];
        const Span span = pages.span(tokens, start, 0);
        complete(tpiedge_panels_stack(handle, blocks, 4, x.data(), &span, 1, &rotation, nullptr, 0, scratch.data(),
                                      seconds));
        for (const float value : x) check.close(value, 0, 1e4);  // and a number
        start += tokens;
    }
    // The keys of the first layer and the values of the second one are part of the checksum.
    const auto take = [&](const uint8_t *row) { check.same_bytes(row, row, row_nbytes); };
    for (int64_t head = 0; head < KV_HEADS; head++)
        for (int64_t at = 0; at < POSITIONS; at++) take(pages.key(first.layout, head, at));
    for (int64_t head = 0; head < KV_HEADS; head++)
        for (int64_t at = 0; at < POSITIONS; at++) take(pages.value(second.layout, head, at));
}

}  // namespace

void check_golden_stack(void *handle, const char *isa) {
    Check check("golden_stack", isa);
    for (const int64_t bits : {4, 8})
        for (int format = 0; format < FORMATS; format++)
            for (const int64_t finer : {0, 12}) check_case(handle, check, bits, format, finer);
}
