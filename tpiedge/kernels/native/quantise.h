// Quantising numbers to panels of integers with scales: as tpiedge/kernels/quantise.py says, to the same bytes as its
// numpy.
#ifndef TPIEDGE_QUANTISE_H
#define TPIEDGE_QUANTISE_H

#include <stdint.h>

namespace tpiedge {

enum class WeightKind { F32, F16, BF16 };

// `outputs` x `inputs` numbers, and what becomes of them.
struct WeightUnit {
    const void *values;
    WeightKind kind;
    int64_t stride;  // numbers from one output to the next
    int64_t outputs;
    int64_t inputs;
    int64_t bits;  // of a code: 4 or 8
    bool searches;
    uint8_t *panels;
    double signal;  // the squares of the weights
    double noise;   // those of their errors
};

// False where a weight or a scale is not a finite number: then the panels are not complete.
using QuantiseUnit = bool (*)(WeightUnit &);

// Null where this machine or this build lacks the instructions.
QuantiseUnit avx2_quantise();
QuantiseUnit avx512_quantise();

}  // namespace tpiedge

#endif
