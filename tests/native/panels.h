// Quantised matrices, laid out as tpiedge/kernels/panels.py says, and the slow reference of their products.
#ifndef TPIEDGE_TESTS_PANELS_H
#define TPIEDGE_TESTS_PANELS_H

#include <vector>

#include "check.h"

constexpr int64_t GROUP = 32, PANEL = 16;

constexpr int64_t NO_SUM = INT64_MIN;

// As native code would convert it.
float from_f16(uint16_t bits);

// Bytes of a unit.
int64_t unit_nbytes(int64_t outputs, int64_t inputs, int64_t bits);

// Inputs that share a scale.
struct Group {
    int64_t first;
    int64_t count;
};

// Activations of one token in eight bits.
struct Quantised {
    std::vector<int> codes;     // of each input
    std::vector<float> scales;  // of each group
};

struct Panels {
    int64_t bits;
    int64_t rows;  // as stored: outputs, or inputs where transposed
    int64_t cols;
    int64_t rows_per_unit;
    bool transposed;
    std::vector<Group> groups;     // in order of inputs
    std::vector<int> codes;        // [outputs, inputs]
    std::vector<uint16_t> scales;  // [outputs, groups], f16
    int64_t unit_nbytes;
    Array<uint8_t> data;  // ends with the last unit

    Panels(Random &random, int64_t bits, int64_t rows, int64_t cols, int64_t rows_per_unit, bool transposed);
    // Reads one unit.
    Panels(int64_t bits, int64_t outputs, int64_t inputs, const Array<uint8_t> &unit);
    int64_t outputs() const { return transposed ? cols : rows; }
    int64_t inputs() const { return transposed ? rows : cols; }
    int64_t units() const { return (rows + rows_per_unit - 1) / rows_per_unit; }
    PanelWeight weight(float *y, const float *bias = nullptr) const {
        return PanelWeight{data.data(), y, bits == 4, unit_nbytes, rows, cols, rows_per_unit, bias, 0, 0, rows};
    }
    // Row-parallel, on a grid.
    PanelWeight weight(void *y, int64_t exponent, int64_t most = INT32_MAX) const {
        return PanelWeight{data.data(), y, bits == 4, unit_nbytes, rows, cols, rows_per_unit, nullptr, exponent, most, rows};
    }
    Quantised quantise(const float *x) const;
    float product(const Quantised &x, int64_t output) const;  // column-parallel
    int64_t sum(const Quantised &x, int64_t output, int64_t exponent) const;
    void tame();  // scales of moderate size
    float value(int64_t output, int64_t input) const;  // of matrices of one unit
    void lay_out(int64_t unit, uint8_t *to) const;

private:
    float fold(const Quantised &x, int64_t output, size_t first, size_t last, float factor) const;
    int64_t unit_rows(int64_t unit) const;
    int64_t nbytes(int64_t unit) const;
    void find_groups();
    void fill_codes(Random &random);
    void lay_out_panel(int64_t output, int64_t outputs, const std::vector<int64_t> &groups, uint8_t *to) const;
};

#endif
