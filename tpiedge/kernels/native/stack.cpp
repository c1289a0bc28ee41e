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

// Ends a block that computes sums by `block(y, wide)`: in 32 bits, into `narrow`, or else in 64.
template <class Block>
TPIEDGE_STATUS add_block(void *handle, float *x, int64_t tokens, int64_t width, int64_t exponent, const BlockEnd &end,
                         float *scratch, const Block &block) {
    int32_t *const narrow = reinterpret_cast<int32_t *>(scratch);
    float *const rest = scratch + tokens * width;
    const int status = block(narrow, rest, 0);
    if (status == DONE) tpiedge_add_sums(handle, x, narrow, tokens, width, exponent, tpiedge::INT32_SUMS, &end, rest);
    if (status != TOO_LARGE) return status;
    tpiedge::Room room;
    int64_t *sums = room.of<int64_t>(tokens * width);
    if (!sums) return NO_MEMORY;
    if (const int failed = block(sums, rest, 1)) return failed;
    tpiedge_add_sums(handle, x, sums, tokens, width, exponent, tpiedge::INT64_SUMS, &end, rest);
    return DONE;
}

}  // namespace

// Attention and FFN of every layer change x [T, H]. `scratch`: T (H + the most that a block takes) floats. `seconds`: what
// attention and FFN blocks took. Every layer has one of the rotations. A block without memory is not added, nor are those after it computed.
TPIEDGE_EXPORT int tpiedge_panels_stack(void *handle, const PanelLayer *layers, int64_t count, float *x, const Span *spans,
                                        int64_t span_count, const Rotation *rotations, float *scratch,
                                        double *seconds) {
    const int64_t tokens = tpiedge::tokens_of(spans, span_count);
    seconds[0] = seconds[1] = 0;
    for (const PanelLayer *layer = layers; layer < layers + count; layer++) {
        const AttentionBlock &of_attention = *layer->attention;
        const PanelFFN &of_ffn = *layer->ffn;
        auto begun = Clock::now();
        const auto attention = [&](void *y, float *rest, int wide) {
            return tpiedge_panels_attention(handle, &of_attention, x, y, spans, span_count, rotations + layer->rotation, rest,
                                            wide);
        };
        if (const int status = add_block(handle, x, tokens, of_attention.o.cols, of_attention.o.exponent, layer->ends[0],
                                         scratch, attention))
            return status;
        seconds[0] += seconds_since(begun);
        begun = Clock::now();
        const auto ffn = [&](void *y, float *rest, int wide) {
            return tpiedge_panels_ffn(handle, &of_ffn, x, y, tokens, rest, wide);
        };
        if (const int status =
                add_block(handle, x, tokens, of_ffn.down.cols, of_ffn.down.exponent, layer->ends[1], scratch, ffn))
            return status;
        seconds[1] += seconds_since(begun);
    }
    return DONE;
}
