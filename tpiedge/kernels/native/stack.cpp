// Computes all layers in one call, for a node that has every share of quantised matrices.
#include <chrono>

#include "context.h"

namespace {

using tpiedge::DONE;
using tpiedge::NO_MEMORY;
using tpiedge::TOO_LARGE;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begun) {
    return std::chrono::duration<double>(Clock::now() - begun).count();
}

// Adds to x what `block(y, wide)` computes: in 32 bits, into `narrow`, or else in 64.
template <class Block>
TPIEDGE_STATUS add_block(float *x, int64_t count, int64_t exponent, int32_t *narrow, const Block &block) {
    const int status = block(narrow, 0);
    if (status == DONE) tpiedge_add_sums(x, narrow, count, exponent, 0);
    if (status != TOO_LARGE) return status;
    tpiedge::Room room;
    int64_t *sums = room.of<int64_t>(count);
    if (!sums) return NO_MEMORY;
    if (const int failed = block(sums, 1)) return failed;
    tpiedge_add_sums(x, sums, count, exponent, 1);
    return DONE;
}

}  // namespace

// x [T, H] += attention, += FFN of every layer. `scratch`: T (H + the most that a block takes) floats. `seconds`: what
// attention and FFN blocks took. A block without memory is not added, nor are those after it computed.
TPIEDGE_EXPORT int tpiedge_panels_stack(void *handle, const PanelLayer *layers, int64_t count, float *x, const Span *spans,
                                        int64_t span_count, const float *cos, const float *sin, float *scratch,
                                        double *seconds) {
    const int64_t tokens = tpiedge::tokens_of(spans, span_count);
    seconds[0] = seconds[1] = 0;
    for (const PanelLayer *layer = layers; layer < layers + count; layer++) {
        const int64_t numbers = tokens * layer->attention->hidden;
        int32_t *const sums = reinterpret_cast<int32_t *>(scratch);
        float *const rest = scratch + numbers;
        auto begun = Clock::now();
        const auto attention = [&](void *y, int wide) {
            return tpiedge_panels_attention(handle, layer->attention, x, y, spans, span_count, cos, sin, rest, wide);
        };
        if (const int status = add_block(x, numbers, layer->attention->o.exponent, sums, attention)) return status;
        seconds[0] += seconds_since(begun);
        begun = Clock::now();
        const auto ffn = [&](void *y, int wide) {
            return tpiedge_panels_ffn(handle, layer->ffn, x, y, tokens, layer->ffn_norm, static_cast<float>(layer->eps),
                                      rest, wide);
        };
        if (const int status = add_block(x, numbers, layer->ffn[2].exponent, sums, ffn)) return status;
        seconds[1] += seconds_since(begun);
    }
    return DONE;
}
