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

// Computes a block's sums by `block(y, rest, wide)`, in 32 bits, into `scratch`, or else in 64, and ends it. `last`: a
// matrix on its grid.
template <class Block>
TPIEDGE_STATUS add_block(void *handle, float *x, int64_t tokens, const PanelWeight &last, const BlockEnd &end,
                         float *scratch, const Block &block) {
    const int64_t width = last.cols, count = tokens * width * (end.parts[0] ? 2 : 1);
    int32_t *const narrow = reinterpret_cast<int32_t *>(scratch);
    float *const rest = scratch + count;
    const int status = block(narrow, rest, 0);
    if (status == DONE)
        tpiedge_add_sums(handle, x, narrow, tokens, width, last.exponent, tpiedge::INT32_SUMS, &end, rest);
    if (status != TOO_LARGE) return status;
    tpiedge::Room room;
    int64_t *sums = room.of<int64_t>(count);
    if (!sums) return NO_MEMORY;
    if (const int failed = block(sums, rest, 1)) return failed;
    tpiedge_add_sums(handle, x, sums, tokens, width, last.exponent, tpiedge::INT64_SUMS, &end, rest);
    return DONE;
}

}  // namespace

// Every block changes x [T, H]. `scratch`: T (H + the most that a block takes) floats. `seconds`: what attention and FFN
// blocks took. `inputs`: of all FFNs without up, side by side, in rows `input_stride` apart, or null. A block without memory
// is not added, nor are those after it computed.
TPIEDGE_EXPORT int tpiedge_panels_stack(void *handle, const PanelBlock *blocks, int64_t count, float *x, const Span *spans,
                                        int64_t span_count, const Rotation *rotations, const float *inputs,
                                        int64_t input_stride, float *scratch, double *seconds) {
    const int64_t tokens = tpiedge::tokens_of(spans, span_count);
    seconds[0] = seconds[1] = 0;
    for (const PanelBlock *b = blocks; b < blocks + count; b++) {
        const auto begun = Clock::now();
        const auto compute = [&](void *y, float *rest, int wide) {
            if (b->attention)
                return tpiedge_panels_attention(handle, b->attention, x, y, spans, span_count, rotations + b->number, rest,
                                                wide);
            int64_t before = 0;  // bytes of the FFN's sums
            if (b->ffn) {
                const float *const own = inputs ? inputs + b->number : nullptr;
                const int status = tpiedge_panels_ffn(handle, b->ffn, x, own, input_stride, y, tokens, rest, wide);
                if (status != DONE || !b->experts) return status;
                before = tokens * b->ffn->down.cols * (wide ? 8 : 4);
            }
            return tpiedge_panels_experts(handle, b->experts, x, static_cast<uint8_t *>(y) + before, nullptr, tokens, rest,
                                          wide);
        };
        const PanelWeight &last = b->attention ? b->attention->o : b->ffn ? b->ffn->down : b->experts->down;
        if (const int status = add_block(handle, x, tokens, last, b->end, scratch, compute)) return status;
        seconds[b->attention ? 0 : 1] += seconds_since(begun);
    }
    return DONE;
}
