#include "panels.h"

namespace {

int64_t up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// Two groups: a line of scales, then their codes.
int64_t pair_nbytes(int64_t bits) { return 64 + 64 * PANEL * bits / 8; }

int64_t panel_nbytes(int64_t inputs, int64_t bits) {
    return up(inputs, 64) / 64 * 64 + up(inputs, 8) * PANEL * bits / 8;
}

// Where a panel has the scale of output r for a group, and the code for an input, perhaps with another's.
int64_t scale_place(int64_t bits, int64_t r, int64_t group) {
    return group / 2 * pair_nbytes(bits) + group % 2 * 32 + 2 * r;
}

int64_t code_place(int64_t bits, int64_t r, int64_t input) {
    const int64_t within = input % 64, inputs_of_block = 32 / bits;
    return input / 64 * pair_nbytes(bits) + 64 + within / inputs_of_block * 64 + 4 * r + within % 4;
}

int code_at(const uint8_t *panel, int64_t bits, int64_t r, int64_t input) {
    const int stored = panel[code_place(bits, r, input)];
    return bits == 8 ? stored : input % 8 < 4 ? stored & 15 : stored >> 4;
}

// Of any size that an f16 has, some zero.
uint16_t random_f16(Random &random) {
    const int64_t kind = random.between(0, 9);
    if (kind == 0) return 0;
    const int64_t exponent = kind == 1 ? 0 : kind == 2 ? random.between(1, 30) : random.between(5, 12);
    return static_cast<uint16_t>((random.coin() << 15) | (exponent << 10) | (random.bits() & 0x3ff));
}

}  // namespace

int64_t unit_nbytes(int64_t outputs, int64_t inputs, int64_t bits) {
    return up(outputs, PANEL) / PANEL * panel_nbytes(inputs, bits);
}

float from_f16(uint16_t bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
    const float size = exponent ? ldexpf(static_cast<float>(fraction + 1024), exponent - 25)
                                : ldexpf(static_cast<float>(fraction), -24);
    return bits & 0x8000 ? -size : size;
}

Panels::Panels(Random &random, int64_t bits_, int64_t rows_, int64_t cols_, int64_t rows_per_unit_, bool transposed_)
    : bits(bits_), rows(rows_), cols(cols_), rows_per_unit(rows_per_unit_), transposed(transposed_),
      unit_nbytes(nbytes(0) + 64 * random.sometimes(3)), data((units() - 1) * unit_nbytes + nbytes(units() - 1)) {
    find_groups();
    fill_codes(random);
    for (int64_t unit = 0; unit < units(); unit++) lay_out(unit, data.data() + unit * unit_nbytes);
}

Panels::Panels(int64_t bits_, int64_t outputs, int64_t inputs, const Array<uint8_t> &unit)
    : bits(bits_), rows(outputs), cols(inputs), rows_per_unit(outputs), transposed(false), unit_nbytes(unit.size()),
      data(0) {
    find_groups();
    for (int64_t o = 0; o < outputs; o++) {
        const uint8_t *panel = unit.data() + o / PANEL * panel_nbytes(inputs, bits);
        const int64_t r = o % PANEL;
        for (size_t g = 0; g < groups.size(); g++) {
            scales.push_back(0);
            memcpy(&scales.back(), panel + scale_place(bits, r, g), 2);
        }
        for (int64_t i = 0; i < inputs; i++) codes.push_back(code_at(panel, bits, r, i));
    }
}

// Units of inputs have groups of their own.
void Panels::find_groups() {
    const int64_t stretch = transposed ? rows_per_unit : cols;
    for (int64_t begin = 0; begin < inputs(); begin += stretch) {
        const int64_t end = begin + stretch < inputs() ? begin + stretch : inputs();
        for (int64_t at = begin; at < end; at += GROUP) groups.push_back({at, end - at < GROUP ? end - at : GROUP});
    }
}

int64_t Panels::unit_rows(int64_t unit) const {
    const int64_t left = rows - unit * rows_per_unit;
    return left < rows_per_unit ? left : rows_per_unit;
}

int64_t Panels::nbytes(int64_t unit) const {
    const int64_t outputs = transposed ? cols : unit_rows(unit), inputs = transposed ? unit_rows(unit) : cols;
    return ::unit_nbytes(outputs, inputs, bits);
}

void Panels::fill_codes(Random &random) {
    for (int64_t i = 0; i < outputs() * inputs(); i++) {
        const int64_t largest = (1 << bits) - 1;
        const bool extreme = random.between(0, 9) == 0;
        codes.push_back(static_cast<int>(extreme ? random.coin() * largest : random.between(0, largest)));
    }
    for (size_t i = 0; i < outputs() * groups.size(); i++) scales.push_back(random_f16(random));
}

void Panels::lay_out(int64_t unit, uint8_t *to) const {
    const int64_t row = unit * rows_per_unit, stop = row + unit_rows(unit);
    std::vector<int64_t> own;
    for (int64_t g = 0; g < static_cast<int64_t>(groups.size()); g++)
        if (!transposed || (groups[g].first >= row && groups[g].first < stop)) own.push_back(g);
    const int64_t first = transposed ? 0 : row, last = transposed ? cols : stop;
    memset(to, 0, nbytes(unit));
    for (int64_t output = first; output < last; output += PANEL) {
        lay_out_panel(output, last - output < PANEL ? last - output : PANEL, own, to);
        to += panel_nbytes(transposed ? stop - row : cols, bits);
    }
}

void Panels::lay_out_panel(int64_t output, int64_t count, const std::vector<int64_t> &own, uint8_t *to) const {
    const int64_t before = groups[own.front()].first;
    const int64_t stretch = groups[own.back()].first + groups[own.back()].count - before;
    for (int64_t r = 0; r < count; r++) {
        for (size_t g = 0; g < own.size(); g++)
            memcpy(to + scale_place(bits, r, g), &scales[(output + r) * groups.size() + own[g]], 2);
        for (int64_t i = 0; i < stretch; i++) {
            const int code = codes[(output + r) * inputs() + before + i];
            to[code_place(bits, r, i)] |= static_cast<uint8_t>(code << (bits == 8 || i % 8 < 4 ? 0 : 4));
        }
    }
}

Quantised Panels::quantise(const float *x) const {
    Quantised made;
    for (const Group &group : groups) {
        float highest = 0;
        bool finite = true;
        for (int64_t i = group.first; i < group.first + group.count; i++) {
            finite = finite && isfinite(x[i]);
            highest = fmaxf(highest, fabsf(x[i]));
        }
        const float factor = 127.0f / highest;
        const bool zero = !finite || highest == 0 || isinf(factor);
        for (int64_t i = group.first; i < group.first + group.count; i++)
            made.codes.push_back(zero ? 0 : static_cast<int>(nearbyintf(x[i] * factor)));
        made.scales.push_back(!finite ? NAN : zero ? 0.0f : highest / 127.0f);
    }
    return made;
}

// Of the groups [first, last).
float Panels::fold(const Quantised &x, int64_t output, size_t first, size_t last, float factor) const {
    const int offset = bits == 8 ? 128 : 8;
    float y = 0;
    for (size_t g = first; g < last; g++) {
        int sum = 0;
        for (int64_t i = groups[g].first; i < groups[g].first + groups[g].count; i++)
            sum += (codes[output * inputs() + i] - offset) * x.codes[i];
        const float dx = x.scales[g] * factor;
        y = fmaf(static_cast<float>(sum), from_f16(scales[output * groups.size() + g]) * dx, y);
    }
    return y;
}

float Panels::product(const Quantised &x, int64_t output) const { return fold(x, output, 0, groups.size(), 1.0f); }

int64_t Panels::sum(const Quantised &x, int64_t output, int64_t exponent) const {
    const float factor = ldexpf(1.0f, static_cast<int>(-exponent));
    int64_t total = 0;
    for (size_t first = 0, last; first < groups.size(); first = last) {
        const int64_t unit = groups[first].first / rows_per_unit;
        for (last = first; last < groups.size() && groups[last].first / rows_per_unit == unit;) last++;
        const float part = fold(x, output, first, last, factor);
        if (!(fabsf(part) <= 0x1p46f)) return NO_SUM;
        total += static_cast<int64_t>(nearbyintf(part));
    }
    return total;
}

void Panels::tame() {
    for (uint16_t &scale : scales) scale = static_cast<uint16_t>((scale & 0x83ff) | 5 << 10);
    for (int64_t unit = 0; unit < units(); unit++) lay_out(unit, data.data() + unit * unit_nbytes);
}

float Panels::value(int64_t output, int64_t input) const {
    const float scale = from_f16(scales[output * groups.size() + input / GROUP]);
    return scale * static_cast<float>(codes[output * inputs() + input] - (bits == 8 ? 128 : 8));
}
