// Quantising a unit: near the numbers, zero where it fills up, and the same bytes on every instruction set.
#include "panels.h"

namespace {

enum Kind { F32, F16, BF16, KINDS };

// As native_quantise in tpiedge/kernels/quantise.py chooses.
int64_t level_of(const char *isa) { return !strncmp(isa, "avx512", 6) ? 2 : !strncmp(isa, "avx2", 4) ? 1 : 0; }

struct Numbers {
    int64_t kind;
    int64_t stride;
    Array<uint8_t> data;
    std::vector<float> values;  // [outputs, inputs]

    Numbers(Random &random, int64_t outputs, int64_t inputs)
        : kind(random.between(0, KINDS - 1)), stride(inputs + random.sometimes(9)),
          data(((outputs - 1) * stride + inputs) * size()) {
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++) values.push_back(put(random, data.data() + (o * stride + i) * size()));
    }
    int64_t size() const { return kind == F32 ? 4 : 2; }

private:
    float put(Random &random, uint8_t *to) const {
        float value = random.between(0, 4) ? random.value() : 0;
        uint32_t bits;
        if (kind == F16) {
            const uint16_t half = static_cast<uint16_t>(random.bits() & 0xbfff);  // less than 2
            memcpy(to, &half, 2);
            return from_f16(half);
        }
        memcpy(&bits, &value, 4);
        if (kind == BF16) bits &= 0xffff0000;
        memcpy(to, reinterpret_cast<const char *>(&bits) + 4 - size(), size());
        memcpy(&value, &bits, 4);
        return value;
    }
};

void check_unit(Check &check, Random &random, int64_t level, int64_t bits) {
    const int64_t outputs = random.between(1, 50), inputs = random.between(1, 150);
    const Numbers numbers(random, outputs, inputs);
    Array<uint8_t> unit(unit_nbytes(outputs, inputs, bits)), laid_out(unit.size());
    double sums[2];
    const int64_t refused = tpiedge_quantise(level, numbers.data.data(), numbers.kind, numbers.stride, outputs, inputs,
                                             bits, random.coin(), unit.data(), sums);
    check.shape(outputs, inputs, numbers.kind, bits);
    check.same(static_cast<float>(refused), 0);
    const Panels read(bits, outputs, inputs, unit);
    double signal = 0, noise = 0;
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t i = 0; i < inputs; i++) {
            const double value = numbers.values[o * inputs + i], error = value - read.value(o, i);
            signal += value * value, noise += error * error;
            const float scale = from_f16(read.scales[o * read.groups.size() + i / GROUP]);
            check.close(read.value(o, i), value, 2 * fabs(scale) + 1e-6);
        }
    check.close(static_cast<float>(sums[0]), signal, 1e-5 * signal);
    check.close(static_cast<float>(sums[1]), noise, 1e-4 * noise + 1e-9);
    // Laying the codes out again: so what fills up is zero.
    read.lay_out(0, laid_out.data());
    check.same_bytes(unit.data(), laid_out.data(), unit.size());
}

}  // namespace

void check_quantise(const char *isa) {
    Random random(7);
    Check q8("quantise_q8", isa), q4("quantise_q4", isa);
    for (int i = 0; i < 40; i++) {
        check_unit(q8, random, level_of(isa), 8);
        check_unit(q4, random, level_of(isa), 4);
    }
    for (const float bad : {NAN, INFINITY}) {
        Array<uint8_t> unit(unit_nbytes(1, 1, 8));
        double sums[2];
        if (!tpiedge_quantise(level_of(isa), &bad, F32, 1, 1, 1, 8, 0, unit.data(), sums)) q8.same(bad, 0);
    }
}
