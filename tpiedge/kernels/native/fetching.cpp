// Implements fetching.h.
#include "fetching.h"

#include <stdlib.h>

#include <algorithm>
#include <initializer_list>
#include <chrono>

#include "context.h"

namespace tpiedge {

namespace {

constexpr int64_t INPUTS = 2048;
constexpr int64_t BYTES = 2 << 20;  // of the codes that a product reads
constexpr int REPEATS = 12;
constexpr double GAIN = 0.97;  // less is what clocks and neighbours disturb

// Takes the bytes out of all caches.
void flush(const uint8_t *data, int64_t nbytes) {
#if defined(__x86_64__)
    for (int64_t i = 0; i < nbytes; i += LINE_BYTES) __builtin_ia32_clflush(data + i);
    __builtin_ia32_mfence();
#else
    static_cast<void>(data), static_cast<void>(nbytes);
#endif
}

double seconds_of(const PanelKernels &kernels, const PanelRun &run, int64_t nbytes) {
    flush(run.data, nbytes);
    const auto begun = std::chrono::steady_clock::now();
    kernels.multiply(run);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

}  // namespace

Fetches::Fetches(const PanelKernels &kernels) : tile_tokens_(kernels.tile_tokens) {
    if (!kernels.can_fetch) return;
    const int64_t tile = tile_tokens_, most = 2 * tile, width = quantised_nbytes(INPUTS);
    const int64_t outputs = BYTES / panel_nbytes(INPUTS, Q4) * PANEL;
    Room data, x, quantised, y;
    if (!data.of<uint8_t>(BYTES) || !x.of<float>(tile * INPUTS) || !quantised.of<uint8_t>(most * width) ||
        !y.of<float>(most * outputs))
        return;
    memset(data.of<uint8_t>(BYTES), 0x11, BYTES);
    std::fill_n(x.of<float>(tile * INPUTS), tile * INPUTS, 1.0f);
    for (int kind = 0; kind < KINDS; kind++) {
        const int64_t tokens = kind == 0 ? 1 : kind == 1 ? tile / 2 : kind == 2 ? tile : most;
        for (int64_t first = 0; first < tokens; first += tile)
            kernels.quantise(x.of<float>(0), INPUTS, std::min(tile, tokens - first), Inputs{INPUTS, INPUTS}, 1.0f,
                             quantised.of<uint8_t>(0) + first * width);
        for (const int64_t format : {Q4, Q8}) {
            const int64_t nbytes = panel_nbytes(INPUTS, format), panels = BYTES / nbytes;
            PanelRun run{format, data.of<uint8_t>(0), 1, 0, INPUTS, panels * PANEL, quantised.of<uint8_t>(0), tile * width, 0, tokens,
                         y.of<float>(0), outputs, PANEL, nullptr, nullptr, 0, false, false};
            double plain = 1.0, ahead = 1.0;
            for (int i = 0; i < REPEATS; i++) {
                run.ahead = false;
                plain = std::min(plain, seconds_of(kernels, run, panels * nbytes));
                run.ahead = true;
                ahead = std::min(ahead, seconds_of(kernels, run, panels * nbytes));
            }
            ahead_[bits_of(format) > 4][kind] = ahead < GAIN * plain;
        }
    }
}

const Fetches &fetches_of(const PanelKernels &kernels) {
    static const Fetches none(*portable_panels());
    if (!kernels.can_fetch) return none;
    static const Fetches measured(kernels);
    return measured;
}

}  // namespace tpiedge
