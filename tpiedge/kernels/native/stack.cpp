// All blocks of quantised matrices one after the other, for a node that shares them with no other.
#include <chrono>

#include "interface.h"

namespace {

using Clock = std::chrono::steady_clock;

void add(float *x, const float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] += y[i];
}

double seconds_since(Clock::time_point begun) {
    return std::chrono::duration<double>(Clock::now() - begun).count();
}

}  // namespace

// x [T, H] += attention, += FFN of every layer. `scratch`: T (H + the most that a block takes) floats. `seconds`: what
// attention and FFN blocks took. A block without memory is not added, nor are those after it computed.
TPIEDGE_EXPORT int tpiedge_panels_stack(void *handle, const PanelLayer *layers, int64_t count, float *x, int64_t tokens,
                                        int64_t start, const float *cos, const float *sin, float *scratch,
                                        double *seconds) {
    seconds[0] = seconds[1] = 0;
    for (const PanelLayer *layer = layers; layer < layers + count; layer++) {
        const int64_t numbers = tokens * layer->attention->hidden;
        float *const y = scratch, *const rest = scratch + numbers;
        auto begun = Clock::now();
        if (tpiedge_panels_attention(handle, layer->attention, x, y, tokens, start, cos, sin, layer->keys,
                                     layer->values, rest))
            return 1;
        add(x, y, numbers);
        seconds[0] += seconds_since(begun);
        begun = Clock::now();
        if (tpiedge_panels_ffn(handle, layer->ffn, x, y, tokens, layer->ffn_norm, static_cast<float>(layer->eps), rest))
            return 1;
        add(x, y, numbers);
        seconds[1] += seconds_since(begun);
    }
    return 0;
}
