// What tpiedge_open makes: threads, the kernels of one instruction set, and memory that the calls use again.
#ifndef TPIEDGE_CONTEXT_H
#define TPIEDGE_CONTEXT_H

#include <string.h>

#include <mutex>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "panels.h"
#include "pool.h"

namespace tpiedge {

// The kernels of one instruction set; both null where the build or the CPU lacks it.
struct Isa {
    const Kernels *kernels;
    const PanelKernels *panels;
};

struct Context {
    Context(int threads, const Isa &isa) : pool(threads), kernels(isa.kernels), panels(isa.panels) {}

    Pool pool;
    const Kernels *kernels;
    const PanelKernels *panels;
    std::mutex panels_call;            // of products with quantised matrices: they keep what they quantised below
    std::vector<float> partial;        // of a contraction: [slices, T, C]; of quantised matrices [panels, T, 16]
    std::vector<float> inner;          // of a quantised FFN: gate and up
    std::vector<uint8_t> activations;  // quantised, whole tiles
};

// Pieces are small enough that a thread that lost its core for a while does not hold up the others, and a multiple of
// `grain` outputs.
inline int64_t piece_of(int64_t outputs, int64_t grain, int64_t wanted) {
    const int64_t piece = ((outputs + wanted - 1) / wanted + grain - 1) / grain * grain;
    return piece > 0 ? piece : grain;
}

// The bits of the nearest bf16, halves to even, as torch rounds.
inline uint16_t bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// `wanted` elements at least, from a multiple of a cache line's bytes on. What a vector held is not kept.
template <class T>
T *room(std::vector<T> &vector, int64_t wanted) {
    wanted += LINE_BYTES / static_cast<int64_t>(sizeof(T));
    if (static_cast<int64_t>(vector.size()) < wanted) {
        vector.clear();
        vector.resize(wanted);
    }
    const auto at = reinterpret_cast<uintptr_t>(vector.data());
    return vector.data() + (-at & (LINE_BYTES - 1)) / sizeof(T);
}

}  // namespace tpiedge

#endif
