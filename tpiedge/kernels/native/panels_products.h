// What products of panels share: those of whole matrices (panels_interface.cpp) and of experts (experts.cpp).
#ifndef TPIEDGE_PANELS_PRODUCTS_H
#define TPIEDGE_PANELS_PRODUCTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "context.h"

namespace {

using tpiedge::Context;
using tpiedge::DONE;
using tpiedge::Inputs;
using tpiedge::NO_MEMORY;
using tpiedge::PANEL;
using tpiedge::PanelKernels;
using tpiedge::PanelRun;
using tpiedge::Rows;
using tpiedge::TOO_LARGE;

// What a part may be in 64 bits, in steps of its grid: the parts of as many units as there are (8,192 at most, those of the
// widest FFN) add up in any order. Beyond it, and for what is no number, a sum is NOT_A_NUMBER.
constexpr float MOST_OF_A_PART = 70368744177664.0f;  // 2^46
constexpr int64_t NOT_A_NUMBER = INT64_MIN;

enum Width { NARROW, WIDE };  // 32 or 64 bits

// `outputs` from `panel` on of one unit at `unit`.
inline void run_panels(const PanelKernels &panels, const PanelWeight &w, PanelRun run, const uint8_t *unit, int64_t panel,
                       int64_t outputs) {
    run.data = unit + panel * panel_nbytes(run.inputs, w.format);
    run.outputs = outputs;
    panels.multiply(run);
}

// The panels [first, last) of a column-parallel matrix, unit by unit; a whole unit has `unit_panels`.
inline void project_piece(const PanelKernels &panels, const PanelWeight &w, int64_t unit_panels, PanelRun run, int64_t first,
                          int64_t last) {
    run.inputs = w.cols;
    while (first < last) {
        const int64_t unit = first / unit_panels, panel = first % unit_panels;
        const int64_t begin = unit * w.rows_per_unit + panel * PANEL;
        const int64_t some = last - first < unit_panels - panel ? last - first : unit_panels - panel;
        int64_t end = begin + some * PANEL;
        if (end > (unit + 1) * w.rows_per_unit) end = (unit + 1) * w.rows_per_unit;
        if (end > w.rows) end = w.rows;
        run.y = static_cast<float *>(w.y) + begin;
        run_panels(panels, w, run, w.data + unit * w.unit_nbytes, panel, end - begin);
        first += some;
    }
}

// The outputs of a piece of a row-parallel matrix: rows of y are often so far apart that the CPU's caches keep only a few of
// them, so sums lie side by side until they are done, `stride` from one panel to the next.
struct Outputs {
    int64_t begin;
    int64_t count;
    int64_t stride;
    int64_t cols;

    Outputs(const PanelWeight &w, int64_t tokens, int64_t first, int64_t last)
        : begin(first * PANEL), count((last * PANEL < w.cols ? last * PANEL : w.cols) - begin), stride(PANEL * tokens),
          cols(w.cols) {}

    // Rows of y from sums that lie side by side.
    template <class Sum>
    void copy(const Sum *sums, int64_t tokens, Sum *y) const {
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t o = 0; o < count; o += PANEL) {
                const int64_t some = count - o < PANEL ? count - o : PANEL;
                memcpy(y + t * cols + begin + o, sums + o / PANEL * stride + t * PANEL, some * sizeof(Sum));
            }
    }
};

// Whether none is above `most`, nor no number.
inline bool all_within(const float *values, int64_t count, float most) {
    int beyond = 0;
    for (int64_t i = 0; i < count; i++) beyond |= !(values[i] <= most);
    return !beyond;
}

// To the nearest integer, halves to even, as all kernels do it. Above 2^23 an f32 is an integer; below, adding that leaves no
// bits for a fraction.
inline int64_t rounded(float part) {
    constexpr float INTEGERS = 8388608.0f;
    const float most = fabsf(part);
    if (!(most <= MOST_OF_A_PART)) return NOT_A_NUMBER;
    const float whole = most < INTEGERS ? (most + INTEGERS) - INTEGERS : most;
    return static_cast<int64_t>(part < 0.0f ? -whole : whole);
}

inline int64_t panels_of(const PanelWeight &w, bool transposed, int64_t unit_panels) {
    if (transposed || w.rows == 0) return transposed ? unit_panels : 0;
    const int64_t units = (w.rows + w.rows_per_unit - 1) / w.rows_per_unit;
    const int64_t last = w.rows - (units - 1) * w.rows_per_unit;
    return (units - 1) * unit_panels + (last + PANEL - 1) / PANEL;
}

inline int64_t filled_outputs(int64_t outputs) { return (outputs + PANEL - 1) / PANEL * PANEL; }

// The squares of parts with which, by the inequality of Cauchy and Schwarz, the magnitudes of `units` parts add up to `most`
// at most, rounded each; less a hundredth, since squares are summed in f32: of 8,192 units and 8 tokens an error of 2^-8.
inline float squares_within(int64_t most, int64_t units) {
    const double parts = static_cast<double>(most - units);
    return parts > 0 ? static_cast<float>(0.99 * parts * parts / static_cast<double>(units)) : -1.0f;
}

inline Inputs inputs_of(const PanelWeight &w, bool transposed) {
    return transposed ? Inputs{w.rows, w.rows_per_unit} : Inputs{w.cols, w.cols > 0 ? w.cols : 1};
}

// What remains of an empty share.
inline TPIEDGE_STATUS contract_nothing(const PanelWeight &w, int64_t tokens, Width width) {
    memset(w.y, 0, tokens * w.cols * (width == WIDE ? 8 : 4));
    return DONE;
}

// dx has the reciprocal of the grid's step as a factor.
inline float factor_of(const PanelWeight &row_parallel) { return ldexpf(1.0f, static_cast<int>(-row_parallel.exponent)); }

}  // namespace

#endif
