// Decides whether products prefetch codes ahead of their use.
//
// One token of 1.1 billion weights in 4 bits took a Xeon with AMX 20.7 ms so, instead of 23.5; on a Zen 4 core a product in
// 8 bits took 1.6 times as long. Eight tokens, which keep a core computing for longer, gain a fifth there. So it is measured.
#ifndef TPIEDGE_FETCHING_H
#define TPIEDGE_FETCHING_H

#include "panels.h"

namespace tpiedge {

class Fetches {
public:
    // Measures for about 40 ms, if the kernels can ask ahead. Without memory to measure with, nothing is asked for.
    explicit Fetches(const PanelKernels &kernels);

    bool ahead(int64_t format, int64_t tokens) const { return ahead_[bits_of(format) > 4][of_tokens(tokens)]; }

private:
    static constexpr int KINDS = 4;  // of numbers of tokens: one, few, a tile of many, several tiles

    int of_tokens(int64_t tokens) const {
        return tokens == 1 ? 0 : tokens <= tile_tokens_ / 2 ? 1 : tokens <= tile_tokens_ ? 2 : 3;
    }

    int64_t tile_tokens_;
    bool ahead_[2][KINDS] = {};  // of q4, which also stands for other formats of four bits, and of q8
};

// Of this process, which measures once. All contexts with such kernels have the same ones.
const Fetches &fetches_of(const PanelKernels &kernels);

}  // namespace tpiedge

#endif
